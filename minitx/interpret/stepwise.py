"""Attention while a model writes: one row of each map at a time, put together to the maps of the whole text.

Legend: B batch, H heads, T target tokens, S source tokens.
"""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor, nn

from minitx.interpret.attention_maps import AttentionMaps, kind_of
from minitx.interpret.recording import record_attention


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
