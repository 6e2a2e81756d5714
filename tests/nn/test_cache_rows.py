"""Rows of a cache that leave and continue each other, and windows that drop tokens: the same logits, no more memory."""

from typing import Any

import pytest
import torch
from torch import Tensor

from minitx.generation.decode import generate
from minitx.generation.sampling import greedy
from minitx.nn import cache as nn_cache
from minitx.nn.cache import FIRST_CAPACITY, LayerCache
from small_models import (
    DECODERS,
    PAIRINGS,
    SCHEMES,
    build_tiny,
    close,
    draw,
    keep_of,
    pairwise,
)

BEAMS, STEPS = 3, 12


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


@pairwise({"window": [None, (None, 5)], "name,numbering": PAIRINGS, "architecture": DECODERS})
def test_beams_are_rows_that_continue_each_other(
    window: Any, name: str, numbering: str, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two prompts, padded on the left; tokens that no beam has any more are dropped; one prompt leaves."""
    monkeypatch.setattr(nn_cache, "MAX_DEAD_TOKENS", 9)
    model = build_tiny(architecture, name, numbering, window=window, n_layers=2)
    source = (draw(2, 5), keep_of(5, 3)) if architecture == "encoder_decoder" else ()
    rows, beams = (model.start(*source) for _ in range(2))
    ids, keep = draw(2, 4), keep_of(4, 2, left=True)
    for cache in (rows, beams):
        model.step(ids, cache, keep)
    rows.select(torch.arange(2).repeat_interleave(BEAMS))
    beams = beams.branch(BEAMS)
    for count in range(STEPS):
        if count == STEPS // 2:
            rows.select(torch.arange(BEAMS, 2 * BEAMS))
            beams.select(torch.tensor([1]))
        prompts = len(rows.ids) // BEAMS
        parents = torch.randint(BEAMS, (prompts, BEAMS))
        rows.select((parents + BEAMS * torch.arange(prompts)[:, None]).flatten())
        beams.reorder(parents)
        beams.compact(int(beams.alive()))
        new = draw(prompts, BEAMS)
        close(model.step(new, beams), model.step(new.view(-1, 1), rows).view(prompts, BEAMS, -1), 1e-4)
    assert beams.length < rows.length + (BEAMS - 1) * STEPS, "tokens were dropped"


@pairwise({"window": [None, 1, 3], "name": SCHEMES, "architecture": DECODERS})
def test_generated_tokens_have_the_logits_of_a_forward(window: int | None, name: str, architecture: str) -> None:
    """Ragged prompts, and so many tokens that the cache grows, or drops some more than once with a window."""
    model = build_tiny(architecture, name, window=window)
    keep, prompt, limit = keep_of(5, 2, 4, left=True), draw(3, 5), 2 * FIRST_CAPACITY + 2
    source = (draw(3, 6), keep_of(6, 2, 4)) if architecture == "encoder_decoder" else ()
    found: list[Tensor] = []

    def choose(logits: Tensor, rows: Tensor | None = None) -> Tensor:
        found.append(logits)
        return greedy(logits)

    written = generate(
        model, prompt, *source, keep=keep, sampler=choose, max_new_tokens=limit, eos=-1, pad=0
    ).ids  # fmt: skip
    for row in range(3):
        whole = torch.cat((prompt[row][keep[row]], written[row]))[None]
        asked = (source[0][row : row + 1], whole, source[1][row : row + 1]) if source else (whole,)
        close(torch.stack([step[row] for step in found]), model(*asked)[0, -limit - 1 : -1], 1e-4)


@pytest.mark.parametrize("window", [1, FIRST_CAPACITY - 1, FIRST_CAPACITY, FIRST_CAPACITY + 1, None])
def test_the_capacity_of_a_window_does_not_grow(window: int | None) -> None:
    """A long text takes no more memory than its window, or than was read at once; without a window it grows."""
    layer, most = LayerCache(), 0
    layer.extend(*torch.randn(2, 1, 1, 7, 2))
    for _ in range(4 * FIRST_CAPACITY):
        layer.extend(*torch.randn(2, 1, 1, 1, 2), window)
        most = max(most, layer.buffers[0].size(2))
    assert most >= 4 * FIRST_CAPACITY if window is None else most <= max(FIRST_CAPACITY, 2 * window)


def test_a_long_prompt_keeps_its_capacity_and_no_more() -> None:
    model: Any = build_tiny("decoder_only", "rope", window=3)
    cache, ids, further = model.start(), draw(1, 3 * FIRST_CAPACITY), draw(1, 3 * FIRST_CAPACITY)
    model.step(ids, cache)
    capacity = cache.layers[0].buffers[0].size(2)
    pieces = [model.step(piece, cache) for piece in further.split([1, 5, 1, 40, 1, 1, 7, 40], dim=1)]
    assert cache.layers[0].buffers[0].size(2) == capacity
    close(torch.cat(pieces, dim=1), model(torch.cat((ids, further), dim=1))[:, -further.size(1) :])


def test_rows_may_leave_after_a_window_has_dropped_tokens() -> None:
    model: Any = build_tiny("decoder_only", "alibi", window=3)
    cache, ids = model.start(), draw(4, FIRST_CAPACITY + 5)
    for token in ids.split(1, dim=1):
        model.step(token, cache)
    left, further = torch.tensor([3, 1]), draw(2, 1)
    cache.select(left)
    close(model.step(further, cache), model(torch.cat((ids[left], further), dim=1))[:, -1:])
