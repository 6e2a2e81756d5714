"""Models with other settings and the same outputs, so that a Hugging Face family can express them.

Legend: D d_model, V vocabulary.
"""

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from minitx.checkpoints.model_weights import on_meta
from minitx.config.schema import ModelConfig
from minitx.huggingface.families import Family
from minitx.models.transformers import Transformer

Weights = dict[str, Tensor]  # each parameter under its first name


def rewritten(model: Transformer, config: ModelConfig, family: Family, max_length: int) -> tuple[ModelConfig, Weights]:
    """Rewrite a model with a resolved config towards a family's settings, as far as its outputs do not change.

    A table of positions gets max_length rows.
    """
    weights = {name: part.detach().float() for name, part in model.named_parameters()}
    position, fixed = config.position, {"bias": True, **family.fixed}
    changes: dict[str, Any] = {}
    added = position["name"] in ("sinusoidal", "none", "learned") and config.position_ids["name"] == "consecutive"
    if family.position == "learned" and added:
        weights |= _position_tables(model, config.d_model, max_length)
        changes["position"] = {"name": "learned", "max_len": max_length}
    if family.position == position["name"] == "sinusoidal" and not position.get("halves"):
        _reorder_sinusoids(weights, config.d_model)
        changes["position"] = {**position, "halves": True}
    table = weights["embedding.table.weight"]
    if fixed.get("scale_embeddings") is False and config.scale_embeddings:
        if config.tie_embeddings:
            weights["head.weight"] = table
        weights["embedding.table.weight"] = table * math.sqrt(config.d_model)
        changes |= {"scale_embeddings": False, "tie_embeddings": False}
    biases = {"head_bias": False, "qkv_bias": fixed["bias"], **fixed}
    changes |= {key: True for key in ("bias", "qkv_bias", "head_bias") if biases[key]}
    config = dataclasses.replace(config, **changes)
    parameters = on_meta(config).named_parameters()
    return config, {name: table.new_zeros(part.shape) for name, part in parameters if name.endswith("bias")} | weights


def _position_tables(model: Transformer, d_model: int, max_length: int) -> Weights:
    """A table for each stack of the vectors that its scheme adds at each position."""
    zeros, positions = torch.zeros(1, max_length, d_model), torch.arange(max_length)[None]
    return {
        f"{name}.position.table.weight": getattr(model, name).position.embed(zeros, positions)[0].detach()
        for name in ("encoder", "decoder")
        if hasattr(model, name)
    }


def _reorder_sinusoids(weights: Weights, d_model: int) -> None:
    """Put sines before cosines by one permutation of D in the whole residual stream."""
    order = torch.arange(d_model).view(-1, 2).T.flatten()
    for name, tensor in weights.items():
        module = name.rpartition(".")[0]
        if module.endswith(("q_norm", "k_norm")):  # of one head
            continue
        if module.endswith(("o_proj", "down_proj", "norm")):  # outputs of D
            weights[name] = tensor[order]
        elif tensor.dim() == 2:  # inputs of D, or a table [V, D]
            weights[name] = tensor[:, order]
