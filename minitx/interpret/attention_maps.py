"""Attention maps with the labels of their tokens, as returned by `attend` and shown in TensorBoard.

Legend: B batch, T queries, S keys, H heads.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from minitx.config.errors import ConfigError
from minitx.interpret.recording import KINDS, Map, observed_attention


@dataclass
class AttentionMaps:
    """The attention weights of one forward pass.

    encoder, decoder and cross are lists over layers of [B, H, T, S], probabilities before dropout; a kind that the
    architecture lacks is an empty list. Encoder maps are source x source, decoder maps target x target, cross maps
    target x source; queries first.
    """

    tokens: dict[str, list[list[str]]]
    """Labels of "source" and "target": a list over the batch of a list over tokens, without padding."""
    encoder: list[Tensor] = field(default_factory=list)
    decoder: list[Tensor] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)
    name: str = "maps"
    """Name of the model, shown on pages."""
    separator: str | None = None  # between the labels in their text; None if unknown

    def of(self, path: str) -> list[Tensor]:
        """The list that the weights of an attention belong to, by its path in the model."""
        return getattr(self, "cross" if path.endswith("cross_attn") else path.split(".")[0])

    def layers(self, kind: str, example: int = 0) -> list[Map]:
        """The maps of one kind for one example, layer by layer, without padding."""
        if kind not in KINDS:
            raise ConfigError(f"layers: expected encoder, cross or decoder, got {kind}")
        queries, keys = (self.tokens[side][example] if getattr(self, kind) else [] for side in KINDS[kind])
        cut = (example, slice(None), slice(len(queries)), slice(len(keys)))
        return [Map(weights[cut].float().cpu(), queries, keys, kind) for weights in getattr(self, kind)]

    def rollout(self, kind: str, example: int = 0) -> Tensor:
        """Attention rollout (Abnar and Zuidema 2020): the share of each input token in each position after all layers.

        [T, T] without padding, each row sums to one: the product over layers of (mean over heads + identity) / 2, where
        the identity is the residual connection.

        Raises:
            ConfigError: cross, or a kind that this architecture does not have.
        """
        kinds = [name for name in ("encoder", "decoder") if getattr(self, name)]
        if kind not in kinds:
            raise ConfigError(f"rollout needs self-attention: expected {' or '.join(kinds) or 'nothing'}, got {kind}")
        rollout = identity = torch.eye(len(self.tokens[KINDS[kind][0]][example]))
        for layer in self.layers(kind, example):
            mixed = (layer.weights.mean(dim=0) + identity) / 2
            rollout = mixed / mixed.sum(dim=1, keepdim=True) @ rollout
        return rollout

    def alignment(self) -> Tensor:
        """Source weights of each target token: the last cross-attention, mean over heads, [B, T, S].

        Row t belongs to the prediction made after the first t + 1 target tokens.

        Raises:
            ConfigError: an architecture without cross-attention.
        """
        if not self.cross:
            raise ConfigError("alignment needs cross-attention: model.architecture is not encoder_decoder")
        return self.cross[-1].mean(dim=1)

    def save_image(self, path: str | Path, example: int = 0, title: str = "") -> None:
        """Save all kinds and layers as PNG, PDF or SVG, by the ending of the path."""
        from minitx.plotting.attention_figure import draw_attention

        draw_attention(self, Path(path), example, title)

    save_png = save_image

    def save_html(self, path: str | Path, beside: Mapping[str, Self] | None = None) -> None:
        """Save an interactive HTML file with all kinds, layers, heads and examples, usable without a network.

        `beside` are maps to compare with, by name: of another model, or of a text with the same number of tokens.

        Raises:
            ConfigError: no maps, or two of the same name.
        """
        from minitx.interpret.html import save_maps

        save_maps(self, path, beside or {})

    def _repr_html_(self) -> str:
        from minitx.interpret import encoded_maps, html

        tags = encoded_maps.by_tag(self)
        return html.frame(html.page({self.name: tags})) if tags else "<p>no attention maps</p>"


def attention_maps(model: nn.Module, inputs: Mapping[str, Tensor], tokens: dict[str, list[list[str]]]) -> AttentionMaps:
    """Run the model once on inputs, keyword arguments of its forward, and return every attention map, on the CPU."""
    maps = AttentionMaps(tokens)
    with torch.no_grad(), observed_attention(model, lambda path, weights: maps.of(path).append(weights.cpu())):
        model(**inputs)
    return maps
