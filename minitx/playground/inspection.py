"""One step of a text, seen from inside: attention maps of the tokens that the model has read for it.

Legend: P prompt tokens, T generated tokens.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from minitx.config.errors import ConfigError
from minitx.inference.predictor import Predictor
from minitx.interpret.attention_maps import attention_maps
from minitx.interpret.html import embedded
from minitx.models.transformers import DecoderOnly, EncoderDecoder

MAX_MAP_TOKENS = 128
"""Rows and columns of a map, at most: of longer texts the last ones."""


def inspected(
    predictor: Predictor, source: Sequence[int], target: Sequence[int], start: int, prompt: int
) -> Iterator[dict[str, Any]]:
    """Yield the maps of one forward over the tokens in the cache, as for html.embedded, with their first tokens.

    Args:
        predictor: the model.
        source: ids that an encoder reads.
        target: ids that a decoder reads, prompt and generated ones.
        start: index of the first token of `target` that is still in the cache.
        prompt: number of tokens of the prompt.
    """
    size = predictor.model.head.out_features
    if not all(0 <= token < size for token in (*source, *target)) or not 0 <= start < max(len(target), 1):
        raise ConfigError(f"the request has ids outside the vocabulary of {size} tokens, or starts after its text")
    inputs = forward_inputs(predictor, source, target[start:], prompt)
    labels = {
        side: [predictor.tokenizer.tokens(ids[-MAX_MAP_TOKENS:])]
        for side, ids in (("source", source), ("target", target[start:]))
    }
    maps = attention_maps(predictor.model, inputs, labels)
    for kind in ("encoder", "decoder", "cross"):
        layers = getattr(maps, kind)
        setattr(maps, kind, [layer[..., -MAX_MAP_TOKENS:, -MAX_MAP_TOKENS:] for layer in layers])
    first = {"source": max(len(source) - MAX_MAP_TOKENS, 0), "target": max(len(target) - MAX_MAP_TOKENS, start)}
    tags = {f"{kind}/text": items for kind, items in maps.encoded().items()}
    yield {"runs": embedded({"model": tags}), "first": first}


def forward_inputs(
    predictor: Predictor, source: Sequence[int], target: Sequence[int], prompt: int
) -> dict[str, torch.Tensor]:
    """Arguments of the model's forward."""
    src, tgt = (torch.tensor([[*ids]], dtype=torch.long, device=predictor.device) for ids in (source, target))
    if isinstance(predictor.model, EncoderDecoder):
        return {"src_ids": src, "tgt_ids": tgt}
    if isinstance(predictor.model, DecoderOnly):
        return {"ids": tgt, "prefix": torch.tensor([prompt], device=predictor.device)}
    return {"ids": src}
