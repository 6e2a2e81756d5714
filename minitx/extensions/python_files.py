"""Python files of the user's own: `--import FILE` of every command, and `imports` of a config handed to train.

A file runs because the user names it. The name in a checkpoint runs nothing: the core, which reads checkpoints, imports
no extras.
"""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

from minitx.config.errors import ConfigError, expanded
from minitx.config.schema import Config, config_from_dict


def import_files(paths: Iterable[str]) -> dict[str, str]:
    """Import Python files, whatever they are called; a file that is imported already is not run a second time.

    Returns:
        The beginning of the SHA-256 of each file, by path.

    Raises:
        ConfigError: a file that is missing, or no .py file. An exception of the file itself is not caught.
    """
    digests: dict[str, str] = {}
    for path in paths:
        file = expanded(path, "--import").absolute()
        if file.suffix != ".py" or not file.is_file():
            missing = "" if file.is_file() else f", and there is no such file in {file.parent}"
            raise ConfigError(f"--import or imports: expected a Python file (.py), got {path!r}{missing}")
        digests[path] = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        name = f"{file.stem}_{digests[path]}"  # a reverse.py hides no other module
        spec = spec_from_file_location(name, file)
        if name in sys.modules or spec is None or spec.loader is None:
            continue
        if str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))  # of the modules beside it
        sys.modules[name] = module_from_spec(spec)  # where typing looks annotations up
        try:
            spec.loader.exec_module(sys.modules[name])
        except BaseException as error:
            del sys.modules[name]
            from minitx.nn.errors import OptionError  # torch, which such a file imports

            if isinstance(error, OptionError):
                raise ConfigError(f"{path}: {error}") from None
            raise
    return digests


def with_imports(config: Mapping[str, Any] | Config) -> Mapping[str, Any]:
    """Import the files of a config, and return its values with their hashes; a ConfigError if a key does not fit."""
    values = config.to_dict() if isinstance(config, Config) else config
    paths = config_from_dict(values).imports
    return {**values, "imports": import_files(paths)} if paths else values
