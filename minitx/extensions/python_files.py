"""Python files of the user's own: `--import FILE` of every command, and `imports` of a config handed to train.

A file is run because the user names it. Loading a checkpoint does not import the files that the checkpoint names.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import CodeType
from typing import Any

from minitx.config.errors import ConfigError, expanded
from minitx.config.schema import Config, config_from_dict

_latest: list[str] = []
"""The modules of the latest call of import_files, in its order."""


class _UncachedLoader(SourceFileLoader):
    """Compiles the current file: Python's own uses an older version of the same second and size from __pycache__."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def import_files(paths: Iterable[str]) -> dict[str, str]:
    """Import Python files, with any names; not a second time, unless one has changed or others were imported since.

    Returns:
        The beginning of the SHA-256 of each file, by path.

    Raises:
        ConfigError: a file that is missing, no .py file, or not Python. Other exceptions of the file are not caught.
    """
    digests: dict[str, str] = {}
    files = {}  # path and file, by the name of the module
    for path in paths:
        file = expanded(path, "--import").absolute()
        if file.suffix != ".py" or not file.is_file():
            missing = "" if file.is_file() else f", and there is no such file in {file.parent}"
            raise ConfigError(f"--import or imports: expected a Python file (.py), got {path!r}{missing}")
        code = file.read_bytes()
        if b"\0" in code:  # Python's error names no file
            raise ConfigError(f"--import or imports: expected a Python file in UTF-8, got {path!r} with null bytes")
        digests[path] = hashlib.sha256(code).hexdigest()[:16]
        place = hashlib.sha256(bytes(file) + code).hexdigest()[:16]
        files[f"{file.stem}_{place}"] = path, file  # reverse.py does not shadow another module
    if not files or ([*files] == _latest and files.keys() <= sys.modules.keys()):
        return digests
    _latest[:] = files  # all are run: a file imported since may have registered the same names
    for name, (path, file) in files.items():
        if str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))  # for modules beside the file
        loader = _UncachedLoader(name, str(file))
        spec = spec_from_loader(name, loader)
        assert spec is not None
        sys.modules[name] = module_from_spec(spec)  # where typing looks annotations up
        try:
            loader.exec_module(sys.modules[name])
        except BaseException as error:
            del sys.modules[name]
            if isinstance(error, SyntaxError) and error.filename == str(file):
                raise ConfigError(f"{path}, line {error.lineno}: {error.msg}") from None
            from minitx.nn.errors import OptionError  # imports torch, as such a file does

            if isinstance(error, OptionError):
                raise ConfigError(f"{path}: {error}") from None
            raise
    return digests


def with_imports(config: Mapping[str, Any] | Config) -> Mapping[str, Any]:
    """Import the files of a config, if its keys fit, and return its values with their hashes."""
    values = config.to_dict() if isinstance(config, Config) else config
    if not values.get("imports"):
        return values  # whose mistakes resolve reports, those of open sections too
    return {**values, "imports": import_files(config_from_dict(values).imports)}
