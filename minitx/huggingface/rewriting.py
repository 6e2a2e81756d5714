"""Models with other settings and the same outputs, so that a Hugging Face family can express them.

Legend: D d_model, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minitx.config.schema import ModelConfig
from minitx.huggingface.families import Family
from minitx.models.transformers import Transformer


@dataclass
class PlainModel:
    """A model as its config and its weights, each under its first name."""

    config: ModelConfig
    weights: dict[str, Tensor]

    def configure(self, **settings: Any) -> None:
        """Change settings."""
        self.config = dataclasses.replace(self.config, **settings)


def rewritten(model: Transformer, config: ModelConfig, family: Family, max_length: int) -> PlainModel:
    """Rewrite a model towards the settings of a family, as far as its outputs stay the same.

    Args:
        model: the model.
        config: its own.
        family: the target.
        max_length: positions of a table that replaces sinusoids.
    """
    plain = PlainModel(config, {name: part.detach().cpu().float() for name, part in model.named_parameters()})
    position, fixed = config.position, {"bias": True} | dict(family.fixed)
    added = position["name"] in ("sinusoidal", "none") and config.position_ids["name"] == "consecutive"
    if family.position == "learned" and added:
        _tabulate_positions(plain, model, max_length)
    if family.position == position["name"] == "sinusoidal" and not position.get("halves"):
        _reorder_sinusoids(plain)
    if fixed.get("scale_embeddings") is False and config.scale_embeddings:
        _apply_scale(plain)
    if fixed["bias"] and not config.bias:
        _add_zero_biases(plain, r".*_proj")
        plain.configure(bias=True, qkv_bias=None)
    elif fixed.get("qkv_bias") and not config.qkv_bias:
        _add_zero_biases(plain, r".*self_attn\.[qkv]_proj")
        plain.configure(qkv_bias=True)
    if fixed.get("head_bias") and not config.head_bias:
        plain.weights["head.bias"] = torch.zeros_like(plain.weights["embedding.table.weight"][:, 0])
        plain.configure(head_bias=True)
    return plain


def _tabulate_positions(plain: PlainModel, model: Transformer, max_length: int) -> None:
    """Replace a scheme that adds a vector at each position by a learned table of these vectors."""
    for name in ("encoder", "decoder"):
        if stack := getattr(model, name, None):
            zeros, positions = torch.zeros(1, max_length, plain.config.d_model), torch.arange(max_length)[None]
            plain.weights[f"{name}.position.table.weight"] = stack.position.cpu().embed(zeros, positions)[0]
    plain.configure(position={"name": "learned", "max_len": max_length})


def _reorder_sinusoids(plain: PlainModel) -> None:
    """Put sines before cosines by one permutation of D in the whole residual stream."""
    order = torch.arange(plain.config.d_model).view(-1, 2).T.flatten()
    for name, tensor in plain.weights.items():
        if name.rpartition(".")[0].endswith(("o_proj", "down_proj", "norm")):  # outputs of D
            plain.weights[name] = tensor[order]
        elif tensor.dim() == 2:  # inputs of D, or a table [V, D]
            plain.weights[name] = tensor[:, order]
    plain.configure(position={**plain.config.position, "halves": True})


def _apply_scale(plain: PlainModel) -> None:
    """Multiply the embedding by its scale; a tied head keeps the table without it."""
    table = plain.weights["embedding.table.weight"]
    if plain.config.tie_embeddings:
        plain.weights["head.weight"] = table
    plain.weights["embedding.table.weight"] = table * math.sqrt(plain.config.d_model)
    plain.configure(scale_embeddings=False, tie_embeddings=False)


def _add_zero_biases(plain: PlainModel, pattern: str) -> None:
    """Add biases of zero to the linear maps of layers whose names match."""
    for name, tensor in [*plain.weights.items()]:
        module, _, kind = name.rpartition(".")
        if kind == "weight" and ".layers." in name and re.fullmatch(pattern, module):
            plain.weights.setdefault(f"{module}.bias", torch.zeros_like(tensor[:, 0]))
