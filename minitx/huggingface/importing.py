"""`minitx import`: a Hugging Face model folder to a checkpoint."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.memory_checks import on_meta
from minitx.config.errors import ConfigError
from minitx.config.schema import Config, ModelConfig, RunConfig, config_from_dict
from minitx.data.tokenizers import Tokenizer
from minitx.huggingface.families import FAMILIES, Family
from minitx.huggingface.hub_files import local_folder, read_json, read_weights
from minitx.huggingface.tokenizer_files import read_tokenizer


class Imported(NamedTuple):
    """An imported model."""

    family: str
    config: Config
    tokenizer: Tokenizer
    weights: dict[str, Tensor]
    """By every name in the state dict."""


def import_model(source: str, out: str | Path) -> Imported:
    """Read a Hugging Face model and write it as a checkpoint.

    Args:
        source: a folder, or a name on the hub.
        out: the checkpoint file.

    Raises:
        ConfigError: a missing or damaged file, an unknown family, or a setting that minitx lacks.
    """
    folder = local_folder(source)
    hf = read_json(folder, "config.json", required=True)
    name = hf.get("model_type")
    if name not in FAMILIES:
        raise ConfigError(f"model_type {name} is not supported; minitx imports {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    config = config_from_dict(Config(model=family.from_hf(hf)).to_dict()).model  # with checked types
    config, tensors = _convert(family, config, read_weights(folder, family.base))
    tokenizer = read_tokenizer(folder, config.architecture, hf)
    if config.vocab_size is None or tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(
            f"the tokenizer of {folder} has {tokenizer.vocab_size} tokens, more than its model: {config.vocab_size}"
        )
    max_length = hf.get(family.length.name) or family.length.default
    data = {"name": family.task, "max_tokens" if family.task == "imported_pairs" else "block": max_length}
    run = RunConfig(name=folder.resolve().name if Path(source).is_dir() else source)
    imported = Imported(name, Config(run=run, data=data, model=config), tokenizer, tensors)
    header = checkpoint.header(imported.config.to_dict(), tokenizer.to_dict())
    state = {f"model.{name}": tensor for name, tensor in tensors.items()}
    checkpoint.write({"minitx": header, "state_dict": state}, out)
    return imported


def _convert(family: Family, config: ModelConfig, weights: dict[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Convert the weights; the config returned has an untied head if the weights have one.

    Raises:
        ConfigError: a missing or unexpected tensor, or one of another shape, with its name.
    """
    if config.tie_embeddings and family.lm_head in weights:
        # Some configs say tied although the file has two different tables.
        tied = torch.equal(weights[family.lm_head], weights[family.table])
        config = dataclasses.replace(config, tie_embeddings=tied)
    links = [*family.links(config)]
    needed = {name for link in links for name in link.hf_names}
    if missing := needed - weights.keys():
        raise ConfigError(f"the weights have no {_listed(missing)}, which {family.model} has")
    for copy, original in family.copies.items():
        if copy in weights and not torch.equal(weights[copy], weights[original]):
            raise ConfigError(f"{copy} and {original} differ; minitx has one tensor for both")
    known = needed | set(family.copies) | ({family.lm_head} if config.tie_embeddings else set())
    ignored = re.compile(f"({re.escape(family.base)})?({family.ignored})")
    if unexpected := {name for name in weights.keys() - known if not ignored.fullmatch(name)}:
        raise ConfigError(f"the weights have {_listed(unexpected)}, which {family.model} has not")
    parameters = _parameters(config)
    tensors: dict[str, Tensor] = {}
    for link in links:
        for name, tensor in zip(link.names, link.from_hf([weights.pop(name) for name in link.hf_names]), strict=True):
            shape, names = parameters.pop(name)
            if tensor.shape != shape:
                raise ConfigError(f"{', '.join(link.hf_names)}: expected {[*shape]} for {name}, got {[*tensor.shape]}")
            tensors |= dict.fromkeys(names, tensor.contiguous())
    assert not parameters, parameters  # the links of a family have all parameters
    return config, tensors


def _parameters(config: ModelConfig) -> dict[str, tuple[torch.Size, list[str]]]:
    """Shape and all state dict names of each parameter, by its first name.

    A tied head has the embedding's table, and each attention the position scheme of its stack.
    """
    names: dict[torch.nn.Parameter, list[str]] = {}
    for name, parameter in on_meta(config).named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {aliases[0]: (parameter.shape, aliases) for parameter, aliases in names.items()}


def _listed(names: set[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(sorted(names)[:3]) + more
