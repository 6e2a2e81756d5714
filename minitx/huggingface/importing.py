"""`minitx import`: a folder of theirs to an ordinary checkpoint of ours."""

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
from minitx.huggingface.hub_files import Weights, folder_of, settings
from minitx.huggingface.tokenizer_files import read_tokenizer


class Imported(NamedTuple):
    """What was read."""

    family: str
    config: Config
    tokenizer: Tokenizer
    weights: dict[str, Tensor]
    """By their names in our model."""


def read(source: str) -> Imported:
    """A model of theirs.

    Args:
        source: a folder, or a name on the hub.

    Raises:
        ConfigError: not there, damaged, of a family that is not known, or with something that ours do not have.
    """
    folder = folder_of(source)
    theirs = settings(folder, "config.json", needed=True)
    name = theirs.get("model_type")
    if name not in FAMILIES:
        raise ConfigError(f"model_type {name} is not known here, only {', '.join(FAMILIES)} are")
    family = FAMILIES[name]
    config = config_from_dict(Config(model=family.to_ours(theirs)).to_dict()).model  # of the right types
    weights = Weights(folder, family.base)
    config, tensors = _translated(family, config, weights)
    tokenizer = read_tokenizer(folder, config.architecture, theirs)
    if config.vocab_size is None or tokenizer.vocab_size > config.vocab_size:
        raise ConfigError(
            f"the tokenizer of {folder} has {tokenizer.vocab_size} tokens, more than its model: {config.vocab_size}"
        )
    longest = theirs.get(family.length) or DEFAULT_LENGTH
    data = {"name": family.task, "max_tokens" if family.task == "imported_pairs" else "block": longest}
    run = RunConfig(name=folder.resolve().name if Path(source).is_dir() else source)
    return Imported(name, Config(run=run, data=data, model=config), tokenizer, tensors)


DEFAULT_LENGTH = 512
"""Tokens that a model is taken to be made for where its config does not tell."""


def import_model(source: str, out: str | Path) -> Imported:
    """Read a model of theirs and write it as a checkpoint of ours; arguments and errors as for read."""
    imported = read(source)
    header = checkpoint.header(imported.config.to_dict(), imported.tokenizer.to_dict())
    state = {f"model.{name}": tensor for name, tensor in imported.weights.items()}
    checkpoint.write({"minitx": header, "state_dict": state}, out)
    return imported


def _translated(family: Family, config: ModelConfig, weights: Weights) -> tuple[ModelConfig, dict[str, Tensor]]:
    """The tensors of our model, and its config, which may turn out to have a head with a table of its own.

    Raises:
        ConfigError: a tensor that is missing, left over or of another shape, by its name.
    """
    if config.tie_embeddings and family.lm_head in weights.names:
        # Told to share a table and yet two of them in the file: what differs is not shared.
        own = not torch.equal(weights[family.lm_head], weights[family.table])
        config = dataclasses.replace(config, tie_embeddings=not own)
    links = [*family.links(config)]
    needed = {name for link in links for name in link.theirs}
    if missing := weights.missing(needed):
        raise ConfigError(f"the weights have no {_some(missing)}, which {family.model} has")
    for copy, original in family.copies.items():
        if copy in weights.names and not torch.equal(weights[copy], weights[original]):
            raise ConfigError(f"{copy} and {original} differ; {family.model_type} has one tensor for both here")
    known = needed | set(family.copies) | ({family.lm_head} if config.tie_embeddings else set())
    ignored = re.compile(f"({re.escape(family.base)})?({family.ignored})")
    if left := sorted(name for name in weights.names - known if not ignored.fullmatch(name)):
        raise ConfigError(f"the weights have {_some(left)}, which {family.model} has not")
    names = same_names(config)
    tensors: dict[str, Tensor] = {}
    for link in links:
        parts = link.read([weights[name] for name in link.theirs])
        for name, part in zip(link.ours, parts, strict=True):
            shape, aliases = names[name]
            if part.shape != shape:
                raise ConfigError(f"{', '.join(link.theirs)}: expected {[*shape]} for {name}, got {[*part.shape]}")
            tensors |= dict.fromkeys(aliases, part.contiguous())
    unknown = {alias for _, aliases in names.values() for alias in aliases} - tensors.keys()
    assert not unknown, unknown  # a family's table names all of ours
    return config, tensors


def same_names(config: ModelConfig) -> dict[str, tuple[torch.Size, list[str]]]:
    """The parameters of a model by their first name: the shape, and every name in its state dict.

    A tied head has the embedding's table, and each attention the position scheme of its stack.
    """
    model = on_meta(config)
    named = {name: (part.shape, [name]) for name, part in model.named_parameters()}
    first = {id(part): name for name, part in model.named_parameters()}
    for name, part in model.named_parameters(remove_duplicate=False):
        if name not in named:
            named[first[id(part)]][1].append(name)
    return named


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
