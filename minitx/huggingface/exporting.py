"""`minitx export`: a checkpoint of ours to a folder that `transformers` loads, or to plain safetensors."""

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
from minitx.huggingface.rewriting import Told, rewritten
from minitx.huggingface.tokenizer_files import generation_settings, write_json, write_tokenizer
from minitx.inference.predictor import Predictor, load
from minitx.models.transformers import max_positions

LONGEST = 1024
"""Positions that an exported table has at least, where ours are made of sines."""
RUNNING = 200
"""Tokens of running text to write where nobody says."""


def export(source: str | Path, to: Literal["hf", "safetensors"], folder: str | Path) -> str:
    """Write a trained model for others.

    Args:
        source: a checkpoint file, or a run folder.
        to: hf, a folder that transformers loads; safetensors, weights under our own names with the config beside them.
        folder: made if it is not there; it must be empty.

    Returns:
        What it was written as: a model_type of theirs, or minitx.

    Raises:
        ConfigError: a folder with something in it, or a model that no family of theirs can express, with its settings.
    """
    folder = Path(folder)
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise ConfigError(f"{folder} is not an empty folder: name a new one")
    file = checkpoint.find(source)
    predictor = load(file, "cpu")
    longest = _longest(predictor)
    if to == "hf":
        family, told = choose(predictor, longest)
        settings = family.to_theirs(told.config, longest) | _ids(predictor)
        weights = _translated(family, told)
    else:
        family = None
        settings = {"minitx": checkpoint.FORMAT, **predictor.config.to_dict()}
        weights = {name: part.detach() for name, part in predictor.model.named_parameters()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror})") from None
    save_file(
        {name: part.contiguous() for name, part in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    write_json(folder / "config.json", settings)
    write_tokenizer(predictor.tokenizer, folder, predictor.task.kind, predictor.architecture, longest)
    if family is not None and predictor.architecture != "encoder_only":
        most = RUNNING if predictor.task.kind == "stream" else predictor.task.longest[1] + 1
        generation = generation_settings(predictor.tokenizer, predictor.architecture, most)
        write_json(folder / "generation_config.json", generation)
    name = family.model_type if family is not None else None
    (folder / "README.md").write_text(card(predictor, file, name), encoding="utf-8")
    return name or "minitx"


def choose(predictor: Predictor, longest: int) -> tuple[Family, Told]:
    """The first family that can express a model, and the model as that family tells it.

    Raises:
        ConfigError: none can; with what each of this architecture lacks.
    """
    model, config = predictor.model, predictor.config.model
    config = dataclasses.replace(config, vocab_size=model.head.out_features)
    reasons = []
    for family in FAMILIES.values():
        if family.fixed["architecture"] != config.architecture:
            continue
        told = rewritten(model, config, family, longest)
        try:
            family.to_theirs(told.config, longest)
        except ValueError as lacking:
            reasons.append(f"{family.model_type} has no {lacking}")
        else:
            return family, told
    raise ConfigError(f"this model cannot be told in Hugging Face's words: {'; '.join(reasons)}")


def _translated(family: Family, told: Told) -> dict[str, Tensor]:
    """Their tensors."""
    left = set(told.weights)
    theirs: dict[str, Tensor] = {}
    for link in family.links(told.config):
        theirs |= zip(link.theirs, link.write([told.weights[name] for name in link.ours]), strict=True)
        left -= set(link.ours)
    assert not left, left  # a family's table names all of ours
    for copy, original in family.copies.items():
        if theirs[original].dim() == 1 or not told.config.tie_embeddings:  # what is tied there needs one name
            theirs[copy] = theirs[original].clone()
    return theirs


def _longest(predictor: Predictor) -> int:
    """Tokens that the model takes."""
    reach = max_positions(predictor.model)
    needed = framing.positions(predictor.architecture, predictor.task.longest)
    return max(needed, LONGEST) if reach is None else reach


def _ids(predictor: Predictor) -> dict[str, int | None]:
    """The special tokens that stand in a config.json, too."""
    special = predictor.tokenizer.special
    told = {"pad_token_id": special.pad, "bos_token_id": special.bos, "eos_token_id": special.eos}
    if predictor.architecture == "encoder_decoder":
        told["decoder_start_token_id"] = special.bos
    return {name: index if index >= 0 else None for name, index in told.items()}
