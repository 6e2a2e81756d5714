"""Attention maps with the tokens they belong to: what `attend` returns and TensorBoard shows.

Legend: B batch, T queries, S keys, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from minitx.checkpoints.atomic_files import written_whole
from minitx.config.errors import ConfigError
from minitx.interpret.recording import Map, record_attention

if TYPE_CHECKING:
    from PIL import Image

KINDS = {"encoder": ("source", "source"), "decoder": ("target", "target"), "cross": ("target", "source")}
"""Whose tokens ask, and whose are looked at."""


class Picture(NamedTuple):
    """The heads of one layer for one example, side by side."""

    kind: str  # encoder, decoder or cross
    layer: int  # from 1
    image: Image.Image


@dataclass
class AttentionMaps:
    """The attention weights of one forward.

    encoder, decoder and cross are lists over layers of [B, H, T, S], probabilities taken before dropout; an
    architecture without a kind leaves its list empty. Encoder maps are source x source, decoder maps target x target,
    cross maps target x source; queries first.
    """

    tokens: dict[str, list[list[str]]]
    """Labels of "source" and "target": a list over the batch of a list over tokens, without padding."""
    encoder: list[Tensor] = field(default_factory=list)
    decoder: list[Tensor] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)

    def pictures(self, example: int = 0) -> Iterator[Picture]:
        """One picture for each kind and layer."""
        from minitx.interpret import images

        for kind in KINDS:
            for number, layer in enumerate(self.layers(kind, example), start=1):
                drawn = images.heads(layer.weights.numpy(), list(layer.queries), list(layer.keys))
                yield Picture(kind, number, drawn)

    def layers(self, kind: str, example: int = 0) -> list[Map]:
        """The maps of one kind for one example, layer by layer, without padding."""
        queries, keys = (self.tokens[side][example] if getattr(self, kind) else [] for side in KINDS[kind])
        cut = (example, slice(None), slice(len(queries)), slice(len(keys)))
        return [Map(weights[cut].float().cpu(), queries, keys, kind) for weights in getattr(self, kind)]

    def encoded(self, example: int = 0) -> dict[str, list[bytes]]:
        """Each kind that there is, with the statistics of its heads, as TensorBoard and the offline page take it."""
        from minitx.interpret.head_statistics import head_statistics
        from minitx.tensorboard.map_format import encode

        found = {}
        for kind, sides in KINDS.items():
            layers: list[Tensor] = getattr(self, kind)
            if layers:
                queries, keys = (
                    [*self.tokens[side][example], *[None] * (size - len(self.tokens[side][example]))]
                    for side, size in zip(sides, layers[0].shape[2:], strict=True)
                )
                weights = [layer[example].float().cpu().numpy() for layer in layers]
                extras = {}
                if kind != "cross":
                    whole = self.rollout(kind, example)
                    extras["rollout"] = pad(whole, (0, len(keys) - len(whole)) * 2).numpy()
                found[kind] = encode(kind, queries, keys, weights, head_statistics(self.layers(kind, example)), extras)
        return found

    def rollout(self, kind: str, example: int = 0) -> Tensor:
        """Attention rollout (Abnar and Zuidema 2020): how much of each token is left at each place above all layers.

        The product over layers of half the mean of their heads and half the identity, which stands for the residual
        stream, each row summing to one.

        Args:
            kind: encoder or decoder, self-attention.
            example: of the batch.

        Returns:
            [T, T] without padding; each row sums to one.

        Raises:
            ConfigError: another kind, or one that this architecture does not have.
        """
        layers = self.layers(kind, example) if kind in KINDS and kind != "cross" else []
        if not layers:
            have = " or ".join(name for name in KINDS if name != "cross" and getattr(self, name)) or "nothing"
            raise ConfigError(f"rollout is of self-attention, which is here of {have}; got {kind}")
        own = torch.eye(len(layers[0].queries))
        whole = own
        for layer in layers:
            mixed = (layer.weights.mean(dim=0) + own) / 2  # [T, T]
            whole = mixed / mixed.sum(dim=1, keepdim=True) @ whole
        return whole

    def alignment(self) -> Tensor:
        """Where the source was looked at for each target token: the last cross-attention, mean of its heads, [B, T, S].

        Row t belongs to the token written after the first t + 1 that were read.

        Raises:
            ConfigError: an architecture without cross-attention.
        """
        if not self.cross:
            raise ConfigError(
                "there is no alignment without cross-attention: model.architecture is not encoder_decoder"
            )
        return self.cross[-1].mean(dim=1)

    def save_png(self, path: str | Path, example: int = 0) -> None:
        """One PNG with all kinds and layers below one another."""
        from minitx.interpret import images

        titled = [images.titled(image, f"{kind}, layer {layer}") for kind, layer, image in self.pictures(example)]
        images.stacked(titled).save(path)

    def save_html(self, path: str | Path, beside: Mapping[str, AttentionMaps] | None = None) -> None:
        """One HTML file with all kinds, layers, heads and examples, to look into without a network.

        Args:
            path: of the file.
            beside: further maps by name, of another model or another text of as many tokens, to compare these with.

        Raises:
            ConfigError: there are no maps, or two of one name.
        """
        from minitx.interpret import html

        others = {name: maps._runs()["maps"] for name, maps in (beside or {}).items()}
        if "maps" in others:
            raise ConfigError("beside: 'maps' is the name of these maps themselves, choose another")
        page = html.page(self._runs() | others)
        with written_whole(path) as file:
            file.write(page.encode())

    def _repr_html_(self) -> str:
        """The same page in a notebook."""
        from minitx.interpret import html

        runs = self._runs()
        return html.frame(runs) if runs["maps"] else "<p>no attention maps</p>"

    def _runs(self) -> dict[str, dict[str, list[bytes]]]:
        """Every example's maps, as html.page takes them."""
        batch = max(map(len, self.tokens.values()), default=0)
        return {
            "maps": {
                f"{kind}/example_{example + 1}": items
                for example in range(batch)
                for kind, items in self.encoded(example).items()
            }
        }


def attention_maps(model: nn.Module, inputs: Mapping[str, Tensor], tokens: dict[str, list[list[str]]]) -> AttentionMaps:
    """Run the model once on inputs, keyword arguments of its forward, and keep every attention map, on the CPU."""
    with torch.no_grad(), record_attention(model) as recorded:
        model(**inputs)
    maps = AttentionMaps(tokens)
    for name, weights in recorded.items():
        getattr(maps, kind_of(name)).append(weights.cpu())
    return maps


def kind_of(name: str) -> str:
    """encoder, decoder or cross, from a module's path."""
    return "cross" if name.endswith("cross_attn") else name.split(".")[0]


class StepwiseMaps:
    """Records every step of a decode within a `with` block; call collect after each.

    Args:
        model: writes one token a step.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._stack = ExitStack()
        self._recorded: dict[str, Tensor] = {}
        self._rows: dict[str, list[Tensor]] = {}

    def __enter__(self) -> StepwiseMaps:
        self._recorded = self._stack.enter_context(record_attention(self.model))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def collect(self) -> None:
        """Keep what the latest step has seen."""
        for name, weights in self._recorded.items():
            self._rows.setdefault(name, []).append(weights.cpu())
        self._recorded.clear()

    def maps(self, tokens: dict[str, list[list[str]]]) -> AttentionMaps:
        """The whole maps; tokens are their labels."""
        maps = AttentionMaps(tokens)
        for name, rows in self._rows.items():
            kind = kind_of(name)
            getattr(maps, kind).append(_causal(rows) if kind == "decoder" else torch.cat(rows, dim=2))
        return maps


def _causal(steps: list[Tensor]) -> Tensor:
    """Steps [B, H, t, s] of causal self-attention as one [B, H, T, T]: a key that a step did not see has no weight."""
    size = sum(step.size(2) for step in steps)
    whole = steps[0].new_zeros(*steps[0].shape[:2], size, size)
    end = 0
    for step in steps:
        begin, end = end, end + step.size(2)
        whole[:, :, begin:end, end - step.size(3) : end] = step
    return whole
