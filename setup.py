"""A step of the build that pyproject.toml cannot express: a wheel has configs/ in the package, as minitx/configs."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConfigs(build_py):
    """Copy configs/ beside the modules; an editable install reads them in the checkout."""

    def run(self) -> None:
        """Build as usual, then copy."""
        super().run()
        if not self.editable_mode:
            shutil.copytree(
                Path(__file__).parent / "configs", Path(self.build_lib) / "minitx/configs", dirs_exist_ok=True
            )


setup(cmdclass={"build_py": BuildWithConfigs})
