"""Encode AttentionMaps as the bytes of map_format, for TensorBoard and the offline page."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch.nn.functional import pad

from minitx.interpret.head_statistics import head_statistics
from minitx.interpret.recording import KINDS, Map
from minitx.tensorboard.map_format import Statistic, encode

if TYPE_CHECKING:
    from minitx.interpret.attention_maps import AttentionMaps


def encoded(
    maps: "AttentionMaps",
    example: int = 0,
    measured: Callable[[Sequence[Map]], list[Statistic]] | None = None,
    last: int | None = None,
) -> dict[str, list[bytes]]:
    """Encode each non-empty kind of one example, with head statistics and rollout.

    Args:
        example: the row of the batch.
        measured: computes the statistics of a kind's heads from its layers without padding; default: head_statistics.
        last: rows and columns to encode, the last ones; statistics and rollout are those of the whole maps.
    """
    shown = slice(None if last is None else -last, None)
    found = {}
    for kind, sides in KINDS.items():
        if not (padded := [layer[example].float().cpu() for layer in getattr(maps, kind)]):
            continue
        labels = (maps.tokens[side][example] for side in sides)
        sizes = padded[0].shape[1:]
        queries, keys = ([*own, *[None] * (size - len(own))] for own, size in zip(labels, sizes, strict=True))
        extras = {}
        if kind != "cross":
            rollout = maps.rollout(kind, example)
            extras["rollout"] = pad(rollout, (0, len(keys) - len(rollout)) * 2)[shown, shown].numpy()
        statistics = (measured or head_statistics)(maps.layers(kind, example))
        weights = [layer[:, shown, shown].numpy() for layer in padded]
        found[kind] = encode(kind, queries[shown], keys[shown], weights, statistics, extras, maps.separator)
    return found


def encoded_lens(tokens: Sequence[str], shares: Mapping[str, np.ndarray], separator: str | None = None) -> list[bytes]:
    """Encode the probability [T, L + 1] of the right token after each layer, by name of the lens.

    The last column of a shorter stack is repeated. A position without a known token (NaN) has zeros.
    """
    layers = max(values.shape[1] for values in shares.values())
    padded = {
        name: np.pad(values, ((0, 0), (0, layers - values.shape[1])), mode="edge") for name, values in shares.items()
    }
    return encode("lens", tokens, [*map(str, range(layers))], [], extras=padded, separator=separator)


def by_tag(maps: "AttentionMaps") -> dict[str, list[bytes]]:
    """The encoded maps of every example, by tag."""
    return {
        f"{kind}/example_{example + 1}": items
        for example in range(max(map(len, maps.tokens.values()), default=0))
        for kind, items in encoded(maps, example).items()
    }
