"""What a checkpoint file may be made of, looked at before torch is given it: nothing that runs, and nothing that grows.

A checkpoint is a zip archive of one pickle, which says what there is, and the bytes of each tensor. `weights_only`
keeps a pickle from calling what it likes; it still lets it ask for more memory than the file has bytes, and believes
what it says of its own sizes.
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
NAMES = {
    "collections OrderedDict",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_parameter",
    *(f"torch {kind}Storage" for kind in _STORAGES),
}
"""All that a checkpoint's pickle may name: fewer than weights_only allows, among them bytearray, of any size."""
_NAMING = {"GLOBAL", "STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4"}
DEEPEST = 50
"""Levels of lists within lists; a checkpoint has about ten."""


def check(path: Path) -> int:
    """Look at an archive without loading it.

    Returns:
        The bytes of its pickle.

    Raises:
        ConfigError: no zip archive, one that is packed or not what its table of contents says, or a pickle that names
            anything but tensors.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise ConfigError(f"{path} is packed, and could unpack to any size: a minitx checkpoint never is")
            size = path.stat().st_size
            if sum(entry.file_size for entry in entries) > size:
                raise ConfigError(f"{path} is damaged: it claims to hold more than its {size:,} bytes")
            (pickled,) = (entry for entry in entries if entry.filename.count("/") == 1 and _is_pickle(entry))
            named = set()
            for code, argument, _ in pickletools.genops(archive.read(pickled)):
                if code.name in _NAMING:
                    named.add(str(argument))
    except (OSError, ValueError, EOFError, IndexError, RuntimeError, NotImplementedError, zipfile.BadZipFile) as error:
        if isinstance(error, ValueError) and str(error).startswith(str(path)):
            raise
        raise ConfigError(_damaged(path)) from None
    if strange := sorted(named - NAMES):
        raise ConfigError(
            f"{_damaged(path)}; it names {strange[0][:80]!r}, a checkpoint holds nothing but tensors and plain types"
        )
    return pickled.file_size


def _is_pickle(entry: zipfile.ZipInfo) -> bool:
    return entry.filename.endswith("/data.pkl")


def _damaged(path: Path) -> str:
    return f"{path} is damaged, or not a minitx checkpoint: it cannot be read as one"


def load(path: Path, map_location: Any) -> Any:
    """What is in an archive, in memory of its own.

    The file is mapped first, so that a tensor that claims to be larger than it is takes nothing and reaches nothing;
    then what holds what it claims is copied.

    Raises:
        ConfigError: see check; or what torch refuses.
    """
    pickled = check(path)
    try:
        contents = torch.load(path, map_location=map_location, weights_only=True, mmap=True)
    except Exception:  # torch raises a dozen kinds for damaged, foreign and hostile files
        raise ConfigError(_damaged(path)) from None
    return _Copies(path, pickled).of(contents)


class _Copies:
    """Copies of tensors that are mapped from a file; one copy for tensors that share their memory.

    Args:
        path: of the file, for messages.
        pickled: bytes of its pickle, and so the most things that it can hold without holding one of them twice.
    """

    def __init__(self, path: Path, pickled: int) -> None:
        self.path = path
        self.done: dict[Any, Any] = {}
        self.kept: list[Any] = []  # what `done` knows by its address must not go away
        self.left = path.stat().st_size
        self.things = pickled

    def of(self, thing: Any, depth: int = 0) -> Any:
        """The same, its tensors copied. Dicts and lists are changed in place."""
        self.things -= 1
        if depth > DEEPEST or self.things < 0:
            raise ConfigError(f"{self.path} is damaged: its lists are nested without end")
        if isinstance(thing, Tensor):
            return self._copy(thing)
        if not isinstance(thing, dict | list | tuple):
            return thing
        if id(thing) not in self.done:
            self.kept.append(thing)
            self.done[id(thing)] = thing  # a list may hold itself
            if isinstance(thing, tuple):
                self.done[id(thing)] = type(thing)(self.of(part, depth + 1) for part in thing)
            else:
                for key, part in list(thing.items() if isinstance(thing, dict) else enumerate(thing)):
                    thing[key] = self.of(part, depth + 1)
        return self.done[id(thing)]

    def _copy(self, tensor: Tensor) -> Tensor:
        size = tensor.numel() * tensor.element_size()
        memory = tensor.untyped_storage()
        if tensor.layout != torch.strided or size > memory.nbytes():
            raise ConfigError(
                f"{self.path} is damaged: a tensor claims the shape {[*tensor.shape]} of {size:,} bytes, and has "
                f"{memory.nbytes():,}"
            )
        key = (memory.data_ptr(), tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        if key not in self.done:
            self.left -= size
            if self.left < 0:
                raise ConfigError(f"{self.path} is damaged: its tensors claim more than the file has bytes")
            self.done[key] = tensor.detach().clone()
        return self.done[key]


def check_plain(section: Any, most: int) -> None:
    """See that a section is plain JSON, and no larger than what it was read from.

    Args:
        section: of a checkpoint.
        most: things that it may hold, each list and number counted wherever it stands.

    Raises:
        ConfigError: anything but dicts with names, lists, texts, numbers, truth and None; or too many of them.
    """
    waiting, seen = [section], 0
    while waiting:
        thing = waiting.pop()
        seen += 1
        if seen > most:
            raise ConfigError(
                f"its minitx section is nested without end, over {most:,} values in a file of so many bytes"
            )
        if isinstance(thing, dict):
            if strange := [name for name in thing if not isinstance(name, str)]:
                raise ConfigError(f"its minitx section must have texts for names, got {strange[0]!r:.60}")
            waiting += thing.values()
        elif isinstance(thing, list):
            waiting += thing
        elif not isinstance(thing, str | int | float | None):
            raise ConfigError(f"its minitx section holds a {type(thing).__name__}, which is no plain JSON")
