"""Attention maps recorded over one forward or over the steps of a generation.

Legend: B batch, T queries, S keys, H heads; t and s are those of one step.
"""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from minitx.config.errors import ConfigError
from minitx.generation.options import GenerationOptions
from minitx.interpret.attention_maps import AttentionMaps
from minitx.interpret.recording import observed_attention

if TYPE_CHECKING:
    from minitx.inference.predictor import Predictor


def generation_maps(predictor: "Predictor", text: str, options: GenerationOptions) -> tuple[str, AttentionMaps]:
    """Generate one text within one context, a forward for each of its tokens: the text, and its attention maps.

    Raises:
        ConfigError: running text that exceeds the context.
    """
    generator, prompt = predictor.text_generator(), predictor.encode(text)
    limit, context = generator.limit(prompt, options), generator.context
    capacity = limit if context is None else context + 1 - len(prompt)
    if options.max_new_tokens is None and max(1, options.min_new_tokens) <= capacity < limit:
        options = replace(options, max_new_tokens=capacity)
    elif limit > capacity:
        advice = f"max_new_tokens must be at most {capacity}" if capacity > 0 else "no token can be generated"
        got = f"the prompt has {len(prompt)} tokens, so {advice} for data.block {context}"
        raise ConfigError(f"return_attention is limited to one context: {got}")
    with record_maps(predictor.model) as maps:
        generation = generator.generate([prompt], options)[0][0]
    start = generator.prompt_tensors([prompt])
    maps.tokens["target"] = [predictor.tokenizer.tokens(start.ids[0].tolist() + generation.ids[:-1])]
    if start.source:
        maps.tokens["source"] = [predictor.tokenizer.tokens(start.source[0][0].tolist())]
    maps.separator = predictor.tokenizer.separator
    return generation.text, maps


@contextmanager
def record_maps(model: nn.Module) -> Iterator[AttentionMaps]:
    """Record a forward or a generation's steps in this block; after it, the maps are those of one forward, on the CPU.

    They have no tokens yet.
    """
    maps, steps = AttentionMaps({}), defaultdict[str, list[Tensor]](list)
    with observed_attention(model, lambda path, weights: steps[path].append(weights.cpu())):
        yield maps
    for path, rows in steps.items():
        layers = maps.of(path)
        layers.append(_collated(rows) if layers is maps.decoder else torch.cat(rows, dim=2))


def _collated(steps: list[Tensor]) -> Tensor:
    """Collate the rows [B, H, t, s] of all steps into [B, H, T, T]; keys outside a step's window get zero."""
    size = sum(step.size(2) for step in steps)
    collated = steps[0].new_zeros(*steps[0].shape[:2], size, size)
    end = 0
    for step in steps:
        start, end = end, end + step.size(2)
        keys = min(step.size(3), end)  # a compiled step has keys of unused capacity after those of its tokens
        collated[:, :, start:end, end - keys : end] = step[..., :keys]
    return collated
