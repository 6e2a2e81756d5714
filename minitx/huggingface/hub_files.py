"""A model folder in Hugging Face's format, local or on the hub: config.json, *.safetensors, tokenizer.json."""

import json
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from minitx.config.errors import ConfigError, first_line
from minitx.data.text.work_progress import progress
from minitx.hardware.machine import unknown_host

MAX_JSON_BYTES, MAX_VALUES = 2**26, 4_000_000  # tokenizer.json of Gemma has half of each
MAX_HEADER_BYTES = 2**22  # of a .safetensors file; that of a model with a thousand layers has a fifth


def local_folder(source: str, revision: str | None = None) -> Path:
    """The folder of a path, or of a name on the hub after its download; for a path, a revision is a subfolder."""
    path = Path(source)
    if path.is_dir():
        if revision is not None and not (path / revision).is_dir():
            raise ConfigError(f"{source} has no folder {revision}: --revision names one, or a revision on the hub")
        return path / (revision or "")
    if path.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source):
        raise ConfigError(f"there is no folder {source}: give one with config.json, *.safetensors and tokenizer.json")
    import huggingface_hub

    try:
        read, copies = ["*.json", "*.safetensors"], ["*/*", "consolidated*"]  # * matches / too
        download = partial(huggingface_hub.snapshot_download, allow_patterns=read, ignore_patterns=copies)
        return Path(download(source, revision=revision))
    except Exception as error:  # missing, private and unreachable models have errors of no common class
        offline = isinstance(error, huggingface_hub.errors.LocalEntryNotFoundError)
        unknown = unknown_host(huggingface_hub.constants.ENDPOINT) if offline else ""
        reason = unknown or first_line(error, with_class=True)
        raise ConfigError(f"{source} is not a local folder and was not downloaded from the hub ({reason})") from None


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing."""
    path = folder / name
    if not path.is_file():
        return {}
    if (
        path.stat().st_size > MAX_JSON_BYTES
        or sum(map((data := path.read_bytes()).count, (b",", b"[", b"{"))) > MAX_VALUES
    ):
        raise ConfigError(f"{path} must have at most {MAX_JSON_BYTES:,} bytes and {MAX_VALUES:,} values, got more")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is damaged: it is not a JSON object")
    return value


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write indented JSON."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_weights(folder: Path, base: str) -> dict[str, Tensor]:
    """The tensors of model.safetensors, or of the files in its index, in fp32; names get the prefix if all lack it."""
    whole = (folder / "model.safetensors").is_file()  # transformers too prefers it to shards
    index = {} if whole else read_json(folder, "model.safetensors.index.json")
    weights: dict[str, Tensor] = {}
    for name in sorted(set(index.get("weight_map", {}).values())) or ["model.safetensors"]:
        if not isinstance(name, str) or Path(name).name != name or not (folder / name).is_file():
            hint = "; weights in other formats (*.bin) are not read" if not index else ""
            raise ConfigError(f"{folder} has no {name}{hint}")
        with (folder / name).open("rb") as file:
            if (start := file.read(8)) == b"version ":
                raise ConfigError(f"{folder / name} is a Git LFS pointer: run git lfs pull in its folder")
            if int.from_bytes(start, "little") > MAX_HEADER_BYTES:
                raise ConfigError(f"{folder / name} is damaged: its header is longer than {MAX_HEADER_BYTES:,} bytes")
        try:
            tensors = load_file(folder / name)
        except (SafetensorError, OSError, KeyError) as error:  # KeyError: a type that torch lacks
            raise ConfigError(f"{folder / name} is damaged: {error}") from None
        total = sum(tensor.nbytes for tensor in tensors.values())
        shown = progress(tensors.items(), f"reading {name}", lambda item: item[1].nbytes, total, "B")
        weights |= {key: part.float() if part.is_floating_point() else part for key, part in shown}
    prefix = "" if any(key.startswith(base) for key in weights) else base
    for old, new in (("gamma", "weight"), ("beta", "bias")):  # names in files of the first BERTs
        weights = {re.sub(rf"LayerNorm\.{old}$", f"LayerNorm.{new}", key): tensor for key, tensor in weights.items()}
    return {prefix + key: tensor for key, tensor in weights.items()}
