"""`minitx export`: a checkpoint to a folder that `transformers` loads, or to plain safetensors."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from safetensors.torch import save_file
from torch import Tensor

from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError
from minitx.data import framing
from minitx.huggingface.card import card
from minitx.huggingface.families import FAMILIES, Family
from minitx.huggingface.hub_files import write_json
from minitx.huggingface.rewriting import PlainModel, rewritten
from minitx.huggingface.tokenizer_files import generation_settings, special_ids, write_tokenizer
from minitx.inference.predictor import Predictor, load
from minitx.models.transformers import max_positions

MIN_TABLE_POSITIONS = 1024
"""Minimum length of a table that replaces sinusoids."""
STREAM_TOKENS = 200
"""Default max_new_tokens of models of running text."""


def export(source: str | Path, to: Literal["hf", "safetensors"], folder: str | Path) -> str:
    """Write a trained model for other libraries.

    Args:
        source: a checkpoint file, or a run folder.
        to: hf, a folder that transformers loads; safetensors, weights under their minitx names and the config.
        folder: empty, or created.

    Returns:
        The model_type of the folder, or minitx.

    Raises:
        ConfigError: a folder that is not empty, or a model that no family can express, with its settings.
    """
    folder = Path(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder: name a new one")
    file = checkpoint.find(source)
    predictor = load(file, "cpu")
    architecture, tokenizer, task = predictor.architecture, predictor.tokenizer, predictor.task
    max_length = max_positions(predictor.model)
    if max_length is None:
        max_length = max(framing.positions(architecture, task.longest), MIN_TABLE_POSITIONS)
    name = "minitx"
    if to == "hf":
        family, plain = choose(predictor, max_length)
        name = family.model_type
        settings = family.to_hf(plain.config, max_length) | special_ids(tokenizer, architecture)
        weights = _convert(family, plain)
    else:
        settings = {"minitx": checkpoint.FORMAT, **predictor.config.to_dict()}
        weights = {name: part.detach() for name, part in predictor.model.named_parameters()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror})") from None
    tensors = {name: part.contiguous() for name, part in weights.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    write_json(folder / "config.json", settings)
    write_tokenizer(tokenizer, folder, task.kind, architecture, max_length)
    if to == "hf" and architecture != "encoder_only":
        max_new_tokens = STREAM_TOKENS if task.kind == "stream" else task.longest[1] + 1
        write_json(folder / "generation_config.json", generation_settings(tokenizer, architecture, max_new_tokens))
    (folder / "README.md").write_text(card(predictor, file, to == "hf"), encoding="utf-8")
    return name


def choose(predictor: Predictor, max_length: int) -> tuple[Family, PlainModel]:
    """The first family that can express a model, and the model rewritten for it.

    Raises:
        ConfigError: no family can; with the settings that each family of this architecture lacks.
    """
    model = predictor.model
    config = dataclasses.replace(predictor.config.model, vocab_size=model.head.out_features)
    reasons = []
    for family in FAMILIES.values():
        if family.fixed["architecture"] != config.architecture:
            continue
        plain = rewritten(model, config, family, max_length)
        try:
            family.to_hf(plain.config, max_length)
        except ConfigError as lacking:
            reasons.append(f"{family.model_type} has no {lacking}")
        else:
            return family, plain
    raise ConfigError(f"no Hugging Face family can express this model: {'; '.join(reasons)}")


def _convert(family: Family, plain: PlainModel) -> dict[str, Tensor]:
    """The tensors by their Hugging Face names."""
    left, tensors = set(plain.weights), dict[str, Tensor]()
    for link in family.links(plain.config):
        tensors |= zip(link.hf_names, link.to_hf([plain.weights[name] for name in link.names]), strict=True)
        left -= set(link.names)
    assert not left, left  # the links of a family have all parameters
    for copy, original in family.copies.items():
        if tensors[original].dim() == 1 or not plain.config.tie_embeddings:  # transformers restores tied tables
            tensors[copy] = tensors[original].clone()
    return tensors
