"""A model's folder as Hugging Face writes it: config.json, *.safetensors, tokenizer.json. Here, or from the hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from minitx.config.errors import ConfigError

WANTED = ("*.json", "*.safetensors")
"""Files that are fetched from the hub."""


def folder_of(source: str) -> Path:
    """The folder that a path means, or a name on the hub, which is fetched.

    Raises:
        ConfigError: neither.
    """
    path = Path(source)
    if path.is_dir():
        return path
    if path.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source):
        raise ConfigError(f"there is no folder {source}: give one with config.json, *.safetensors and tokenizer.json")
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(source, allow_patterns=[*WANTED]))
    except Exception as error:  # not there, not public, not reachable: of no common class
        reason = next(iter(str(error).strip().splitlines()), "")
        raise ConfigError(
            f"{source} is neither a folder here nor could it be fetched from the hub ({type(error).__name__}: {reason})"
        ) from None


def settings(folder: Path, name: str, needed: bool = False) -> dict[str, Any]:
    """A JSON file of the folder; empty where it is not there.

    Raises:
        ConfigError: needed and not there, or not an object in JSON.
    """
    path = folder / name
    if not path.is_file():
        if needed:
            raise ConfigError(f"{folder} has no {name}: it is not a model's folder")
        return {}
    try:
        plain = json.loads(path.read_bytes())
    except ValueError:
        plain = None
    if not isinstance(plain, dict):
        raise ConfigError(f"{path} is damaged: it is not an object in JSON")
    return plain


class Weights:
    """The tensors of a folder, each read when asked for.

    Args:
        folder: with model.safetensors, or several parts and model.safetensors.index.json.
        base: what names begin with; files of a bare model leave it out.

    Raises:
        ConfigError: no such files, or damaged ones.
    """

    def __init__(self, folder: Path, base: str) -> None:
        index = settings(folder, "model.safetensors.index.json")
        names = sorted(set(index.get("weight_map", {}).values())) or ["model.safetensors"]
        for name in names:
            if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_file():
                hint = "; weights in other formats (*.bin) are not read" if not index else ""
                raise ConfigError(f"{folder} has no {name}{hint}")
        self._places: dict[str, tuple[Any, str]] = {}
        for name in names:
            try:
                file = safe_open(folder / name, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ConfigError(f"{folder / name} is damaged: {error}") from None
            self._places |= {_modern(key): (file, key) for key in file.keys()}  # noqa: SIM118
        if not any(key.startswith(base) for key in self._places):
            self._places = {base + key: place for key, place in self._places.items()}

    @property
    def names(self) -> set[str]:
        """All names."""
        return set(self._places)

    def __getitem__(self, name: str) -> Tensor:
        file, key = self._places[name]
        tensor: Tensor = file.get_tensor(key)
        return tensor.float()

    def missing(self, names: Iterable[str]) -> list[str]:
        """Those that are not there."""
        return sorted(set(names) - self.names)


def _modern(name: str) -> str:
    """Norms of the first BERTs say gamma and beta."""
    return re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
