"""Checks of a checkpoint file: nothing in it may run, or take more memory than the file has bytes.

A checkpoint is a zip archive of one pickle and the bytes of each tensor. `weights_only` keeps the pickle from calling
arbitrary functions, but trusts the sizes that it declares.
"""

from __future__ import annotations

import pickletools
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitx.config.errors import ConfigError

_STORAGES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
ALLOWED_GLOBALS = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {kind}Storage" for kind in _STORAGES),
}
"""Globals of a checkpoint's pickle. weights_only allows more, among them bytearray, of any size."""
_GLOBAL_OPCODES = {"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"}
MAX_DEPTH = 50
"""Levels of nested lists; a checkpoint has about ten."""


def check(path: Path) -> int:
    """Check an archive without loading it.

    Returns:
        Size of its pickle in bytes.

    Raises:
        ConfigError: not a zip archive, compressed, larger than the file by its own table of contents, or a pickle that
            names anything but tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            compressed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
            size, declared = path.stat().st_size, sum(entry.file_size for entry in entries)
            names: set[str] = set()
            if not compressed and declared <= size:
                (pickled,) = (each for each in entries if each.filename.partition("/")[2] == "data.pkl")
                opcodes = pickletools.genops(archive.read(pickled))
                names = {str(argument) for code, argument, _ in opcodes if code.name in _GLOBAL_OPCODES}
    except (OSError, ValueError, EOFError, IndexError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        raise ConfigError(_damaged(path)) from None
    if compressed:
        raise ConfigError(f"{path} is compressed, and could unpack to any size: a minitx checkpoint never is")
    if declared > size:
        raise ConfigError(f"{path} is damaged: it declares more than its {size:,} bytes")
    if unknown := sorted(names - ALLOWED_GLOBALS):
        raise ConfigError(
            f"{_damaged(path)}; it names {unknown[0][:80]!r}, a checkpoint holds nothing but tensors and plain types"
        )
    return pickled.file_size


def _damaged(path: Path) -> str:
    return f"{path} is damaged, or not a minitx checkpoint: it cannot be read as one"


def load(path: Path, map_location: Any) -> Any:
    """Read the contents of an archive into memory.

    The file is mapped first, so that a tensor with a false size allocates nothing; then tensors of valid sizes are
    copied.

    Raises:
        ConfigError: see check; or an error of torch.
    """
    pickle_size = check(path)
    try:
        contents = torch.load(path, map_location=map_location, weights_only=True, mmap=True)
    except Exception:  # torch raises a dozen types for damaged, foreign and hostile files
        raise ConfigError(_damaged(path)) from None
    return _Copies(path, pickle_size).of(contents)


class _Copies:
    """Copies of tensors that are mapped from a file; tensors that share memory share one copy.

    Args:
        path: of the file.
        max_values: size of its pickle in bytes, and so the number of values it can hold without repetition.
    """

    def __init__(self, path: Path, max_values: int) -> None:
        self.path = path
        self.copies: dict[Any, Any] = {}
        self.kept: list[Any] = []  # keeps alive the objects whose id is a key of `copies`
        self.bytes_left = path.stat().st_size
        self.values_left = max_values

    def of(self, value: Any, depth: int = 0) -> Any:
        """Copy the tensors in a value; dicts and lists are changed in place."""
        self.values_left -= 1
        if depth > MAX_DEPTH or self.values_left < 0:
            raise ConfigError(f"{self.path} is damaged: its lists are nested without end")
        if isinstance(value, Tensor):
            return self._copy(value)
        if not isinstance(value, dict | list | tuple):
            return value
        if id(value) not in self.copies:
            self.kept.append(value)
            self.copies[id(value)] = value  # a list may hold itself
            if isinstance(value, tuple):
                self.copies[id(value)] = type(value)(self.of(part, depth + 1) for part in value)
            else:
                for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
                    value[key] = self.of(part, depth + 1)
        return self.copies[id(value)]

    def _copy(self, tensor: Tensor) -> Tensor:
        size, storage = tensor.numel() * tensor.element_size(), tensor.untyped_storage()
        if tensor.layout != torch.strided or size > storage.nbytes():
            raise ConfigError(
                f"{self.path} is damaged: a tensor declares the shape {[*tensor.shape]} of {size:,} bytes, and has "
                f"{storage.nbytes():,}"
            )
        key = (storage.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        if key not in self.copies:
            self.bytes_left -= size
            if self.bytes_left < 0:
                raise ConfigError(f"{self.path} is damaged: its tensors declare more than the file has bytes")
            self.copies[key] = tensor.detach().clone()
        return self.copies[key]


def check_plain(section: Any, max_values: int) -> None:
    """Check that a section is plain JSON of limited size.

    Args:
        section: of a checkpoint.
        max_values: number of values, each counted wherever it occurs.

    Raises:
        ConfigError: anything but dicts with string keys, lists, strings, numbers, booleans and None; or too many.
    """
    pending, count = [section], 0
    while pending:
        value = pending.pop()
        count += 1
        if count > max_values:
            raise ConfigError(f"its minitx section is nested without end, over {max_values:,} values")
        if isinstance(value, dict):
            if invalid := [name for name in value if not isinstance(name, str)]:
                raise ConfigError(f"its minitx section must have strings for keys, got {invalid[0]!r:.60}")
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif not isinstance(value, str | int | float | None):
            raise ConfigError(f"its minitx section must be plain JSON, got a {type(value).__name__}")
