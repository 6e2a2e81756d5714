"""The same function in other words of ours: a model with other settings whose outputs are equal, for a family's sake.

Legend: D d_model, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import NamedTuple

import torch
from torch import Tensor

from minitx.config.schema import ModelConfig
from minitx.huggingface.families import Family
from minitx.models.transformers import Transformer

ADDED = ("learned", "sinusoidal", "none")
"""Schemes that are a vector for each position, added to the embedding."""


class Told(NamedTuple):
    """A model as its config and its weights, each under its first name."""

    config: ModelConfig
    weights: dict[str, Tensor]


def rewritten(model: Transformer, config: ModelConfig, family: Family, longest: int) -> Told:
    """The model as a family tells it, as far as that can be done without changing what it computes.

    Args:
        model: ours.
        config: its own.
        family: for whose sake.
        longest: positions in a table that takes the place of sinusoids.
    """
    told = Told(config, {name: part.detach().cpu().float() for name, part in model.named_parameters()})
    usual = {"bias": True, "head_bias": False, "scale_embeddings": True} | dict(family.fixed)
    if family.position == "learned" and config.position["name"] in ADDED and _counts(config):
        told = _with_table(told, model, longest)
    if family.position == config.position["name"] == "sinusoidal" and not config.position.get("halves"):
        told = _in_halves(told)
    if not usual["scale_embeddings"] and config.scale_embeddings and "scale_embeddings" in family.fixed:
        told = _unscaled(told)
    if usual["bias"] and not config.bias:
        told = _with_biases(told, r"_proj$", {"bias": True, "qkv_bias": None})
    elif usual.get("qkv_bias") and not config.qkv_bias:
        told = _with_biases(told, r"self_attn\.[qkv]_proj$", {"qkv_bias": True})
    if usual["head_bias"] and not config.head_bias:
        told.weights["head.bias"] = torch.zeros_like(told.weights["embedding.table.weight"][:, 0])
        told = Told(dataclasses.replace(told.config, head_bias=True), told.weights)
    return told


def _counts(config: ModelConfig) -> bool:
    """Whether each token is told its place, so that a table of places says all."""
    return config.position_ids["name"] == "consecutive"


def _with_table(told: Told, model: Transformer, longest: int) -> Told:
    """A learned table in the place of any scheme that adds a vector for each position."""
    config, weights = told
    if config.position["name"] == "learned":
        return told
    for name in ("encoder", "decoder"):
        if stack := getattr(model, name, None):
            nothing = torch.zeros(1, longest, config.d_model)
            places = torch.arange(longest)[None]
            weights[f"{name}.position.table.weight"] = stack.position.cpu().embed(nothing, places)[0]
    return Told(dataclasses.replace(config, position={"name": "learned", "max_len": longest}), weights)


def _in_halves(told: Told) -> Told:
    """Sines before cosines: all vectors between layers with their places exchanged in the same way."""
    config, weights = told
    order = torch.arange(config.d_model).view(-1, 2).T.flatten()
    for name, part in weights.items():
        place = name.rpartition(".")[0]
        if place.endswith(("o_proj", "down_proj", "norm")):  # they write such vectors
            weights[name] = part[order]
        elif part.dim() == 2:  # they read them; a table of tokens has them as its rows
            weights[name] = part[:, order]
    return Told(dataclasses.replace(config, position={**config.position, "halves": True}), weights)


def _unscaled(told: Told) -> Told:
    """A table that holds what the scaled one gave; a head that shared it keeps the old one for itself."""
    config, weights = told
    table = weights["embedding.table.weight"]
    if config.tie_embeddings:
        weights["head.weight"] = table
    weights["embedding.table.weight"] = table * math.sqrt(config.d_model)
    return Told(dataclasses.replace(config, scale_embeddings=False, tie_embeddings=False), weights)


def _with_biases(told: Told, pattern: str, changes: dict[str, bool | None]) -> Told:
    """Biases of zero for the linear maps of layers whose names match."""
    config, weights = told
    for name in [name.removesuffix(".weight") for name in weights if name.endswith(".weight") and ".layers." in name]:
        if re.search(pattern, name):
            weights.setdefault(f"{name}.bias", torch.zeros_like(weights[f"{name}.weight"][:, 0]))
    return Told(dataclasses.replace(config, **changes), weights)  # type: ignore[arg-type]
