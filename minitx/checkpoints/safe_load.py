"""Checks of a checkpoint file: nothing in it may run, or take more memory than the file has bytes.

A checkpoint is a zip archive of one pickle and the bytes of each tensor. `weights_only` keeps the pickle from calling
arbitrary functions, but does not check the sizes that it declares.
"""

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
MAX_DEPTH = 50  # levels of nested lists; a checkpoint has about ten
DAMAGED = "is damaged, or not a minitx checkpoint: it cannot be read as one"


def load(path: Path) -> Any:
    """Read the contents of an archive into memory.

    The file is mapped first, so that a tensor with a false size allocates nothing; only valid ones are copied.

    Raises:
        ConfigError: see check; contents that torch cannot read, or that are larger than the file.
    """
    pickle_size = check(path)
    try:
        contents = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # torch raises a dozen types for damaged, foreign and hostile files
        raise ConfigError(f"{path} {DAMAGED}") from None
    return _copied(contents, path, pickle_size)


def check(path: Path) -> int:
    """Check an archive without loading it, and return the size of its pickle in bytes.

    Raises:
        ConfigError: not a zip archive, compressed, larger than the file by its own table of contents, with contents
            that do not match their checksums, or a pickle that names anything but tensors.
        PermissionError: the user may not read the file.
    """
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise ConfigError(f"{path} is compressed, and could unpack to any size: a minitx checkpoint never is")
            if sum(entry.file_size for entry in entries) > size:
                raise ConfigError(f"{path} is damaged: it declares more than its {size:,} bytes")
            if archive.testzip() is not None:
                raise ConfigError(f"{path} {DAMAGED}; its contents do not match their checksums")
            (pickled,) = (entry for entry in entries if entry.filename.partition("/")[2] == "data.pkl")
            opcodes = pickletools.genops(archive.read(pickled))
            named = {str(argument) for opcode, argument, _ in opcodes if opcode.name in _GLOBAL_OPCODES}
    except (ConfigError, PermissionError):
        raise
    except (OSError, ValueError, EOFError, IndexError, RuntimeError, NotImplementedError, zipfile.BadZipFile):
        raise ConfigError(f"{path} {DAMAGED}") from None
    if unknown := sorted(named - ALLOWED_GLOBALS):
        holds = f"it names {unknown[0][:80]!r}, a checkpoint holds nothing but tensors and plain types"
        raise ConfigError(f"{path} {DAMAGED}; {holds}")
    return pickled.file_size


def _copied(contents: Any, path: Path, max_values: int) -> Any:
    """Copy contents whose tensors are mapped from a file, each value as often as it occurs; equal views of the file's
    bytes share one copy. `max_values` is its pickle's size in bytes: without repetition, it has no more values."""
    copies: dict[Any, Tensor] = {}
    bytes_left, values_left = path.stat().st_size, max_values

    def copied(value: Any, depth: int = 0) -> Any:
        nonlocal bytes_left, values_left
        values_left -= 1
        if depth > MAX_DEPTH or values_left < 0:
            raise ConfigError(f"{path} is damaged: its lists are nested without end")
        if isinstance(value, dict):
            return {key: copied(part, depth + 1) for key, part in value.items()}
        if isinstance(value, list | tuple):
            return type(value)([copied(part, depth + 1) for part in value])
        if not isinstance(value, Tensor):
            return value
        size, storage = value.numel() * value.element_size(), value.untyped_storage()
        if size > storage.nbytes():
            declared = f"declares the shape {[*value.shape]} of {size:,} bytes, and has {storage.nbytes():,}"
            raise ConfigError(f"{path} is damaged: a tensor {declared}")
        view = (storage.data_ptr(), value.storage_offset(), value.shape, value.stride(), value.dtype)
        if view not in copies:
            bytes_left -= size
            if bytes_left < 0:
                raise ConfigError(f"{path} is damaged: its tensors declare more than the file has bytes")
            copies[view] = value.detach().clone()
        return copies[view]

    result = copied(contents)
    copies.clear()  # `copied` refers to itself: the tensors would remain until a garbage collection
    return result
