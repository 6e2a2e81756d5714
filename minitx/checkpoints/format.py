"""The checkpoint file: one self-contained file of tensors and plain JSON types.

Key `minitx` has the format, the resolved config and the tokenizer, `state_dict` the weights, the others training state.
"""

import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.serialization import config as saving

from minitx.checkpoints import safe_load as archive
from minitx.checkpoints.atomic_files import written_whole
from minitx.config.errors import ConfigError, expanded

FORMAT = 1  # version of the minitx section; a newer one is refused
MISFIT = "is damaged, of a newer minitx, or its parts do not fit together"


def contents_of(config: dict[str, Any], tokenizer: dict[str, Any], weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """The contents of a checkpoint without training state, for weights by their names in a model, compiled or not."""
    state = {f"model.{name.replace('_orig_mod.', '')}": tensor for name, tensor in weights.items()}
    return {"minitx": {"format": FORMAT, "config": config, "tokenizer": tokenizer}, "state_dict": state}


def write(contents: dict[str, Any], path: str | Path, opened: Any = written_whole) -> None:
    """Write a checkpoint atomically, with the checksums that `read` verifies; `opened(path)` is a context manager.

    Raises:
        OSError: a full disk, no permission; the previous file is unchanged.
    """
    with opened(path) as file, saving.patch("save.compute_crc32", True):  # type: ignore[attr-defined]
        try:
            torch.save(contents, file)
        except RuntimeError as error:  # torch replaces the OSError of a failed write
            raise (error.__context__ if isinstance(error.__context__, OSError) else error) from None


def read(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint file to the CPU, unpickling nothing but tensors and plain types.

    Raises:
        ConfigError: missing, damaged, not a minitx checkpoint, or of a newer format.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"there is no checkpoint file {path}")
    with warnings.catch_warnings(action="ignore"):  # of torch, about files that are refused below
        contents = archive.load(path)
    section = contents.get("minitx") if isinstance(contents, dict) else None
    if not isinstance(section, dict) or not isinstance(section.get("format"), int):
        raise ConfigError(f"{path} is not a minitx checkpoint: it has no minitx section")
    if section["format"] > FORMAT:
        newer = f"checkpoint format {section['format']}, and this minitx reads up to {FORMAT}"
        raise ConfigError(f"{path} has {newer}: update minitx")
    if missing := {"config", "tokenizer"} - section.keys() or {"state_dict"} - contents.keys():
        raise ConfigError(f"{path} is damaged: it has no {' and no '.join(sorted(missing))}")
    misfit = f"{path} {MISFIT}"
    parts = {"config": section["config"], "tokenizer": section["tokenizer"], "weights": contents["state_dict"]}
    for name, part in parts.items():
        if not isinstance(part, dict):
            raise ConfigError(f"{misfit}: its {name} must be a dict, got {type(part).__name__}")
    for name, tensor in contents["state_dict"].items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            got = f"{type(tensor).__name__} {name!r:.80}"
            raise ConfigError(f"{misfit}: its weights must be tensors by name, got {got}")
    return contents


def weights(contents: Mapping[str, Any]) -> dict[str, Tensor]:
    """The model's weights in a checkpoint, for its load_state_dict."""
    return {name.removeprefix("model."): tensor for name, tensor in contents["state_dict"].items()}


def find(path: str | Path, name: str = "best") -> Path:
    """Find a checkpoint: the file itself, or the newest of that name in a run folder runs/NAME or runs/NAME/vN.

    The name is best or last; best falls back to last.

    Raises:
        ConfigError: there is none.
    """
    given, path = path, expanded(str(path), "a checkpoint")
    if not given or not (path.is_file() or path.is_dir()):  # Path("") is the current folder
        raise ConfigError(f"there is no checkpoint and no run folder at {given or repr(given)}")
    if path.is_file():
        return path
    files = [folder / f"{kind}.ckpt" for folder in [*reversed(versions(path)), path] for kind in (name, "last")]
    if found := next(filter(Path.is_file, files), None):
        return found
    runs = f"no run with one (vN/{name}.ckpt); a run in training has one from its first validation or save on"
    raise ConfigError(f"the folder {path} holds no checkpoint ({name}.ckpt) and {runs}")


def versions(folder: str | Path) -> list[Path]:
    """The version folders v0, v1, ... of a run, oldest first."""
    folder = Path(folder)
    found = [part for part in folder.iterdir() if re.fullmatch(r"v\d+", part.name)] if folder.is_dir() else []
    return sorted(found, key=lambda part: int(part.name[1:]))
