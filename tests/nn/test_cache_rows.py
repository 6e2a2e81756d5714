"""Rows of a cache that leave and continue each other, and windows that drop tokens: the same logits, no more memory."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitx.generation.decode import generate
from minitx.generation.sampling import greedy
from minitx.nn import Cache
from minitx.nn.cache import FIRST_CAPACITY, LayerCache
from small_models import build_tiny, close, draw, every_decoder, every_scheme, keep_of


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def agreement(before: list[list[int]], rows: list[int]) -> int:
    """The number of first tokens in which each row agrees with the row that it continues."""
    lengths = [
        next((i for i, (a, b) in enumerate(zip(before[new], before[old], strict=True)) if a != b), len(before[0]))
        for new, old in enumerate(rows)
    ]
    return min(lengths)


# --- a row that continues another -------------------------------------------------------------------------------------


class Beams:
    """A layer's cache whose keys are hashes of all tokens of a row so far, so that rows that agree have equal keys."""

    def __init__(self, rows: int, window: int | None) -> None:
        self.layer, self.window = LayerCache(), window
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.keys = torch.empty(0)

    def expected(self) -> Tensor:
        hashes = [[float(hash(tuple(row[: end + 1])) % 9973) for end in range(len(row))] for row in self.tokens]
        return torch.tensor(hashes)

    def extend(self, columns: list[list[int]]) -> None:
        """Append several tokens to each row."""
        self.tokens = [row + tokens for row, tokens in zip(self.tokens, columns, strict=True)]
        k, cache = self.expected()[:, None, -len(columns[0]) :, None], Cache()
        cache.pos = torch.arange(len(self.tokens[0]))[None]
        keys, values = self.layer.extend(k, k + 0.5, self.window)
        close(values, keys + 0.5)
        assert cache.key_positions(len(columns[0]), self.window).size(1) == keys.size(2)
        self.keys = keys[:, 0, :, 0].clone()


@given(st.data(), st.integers(1, 4), st.sampled_from([None, 1, 2, 5, 40]), st.integers(1, 45), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_reordering_is_selecting_where_rows_differ_no_earlier(
    data: st.DataObject, rows: int, window: int | None, prompt: int, spare: int
) -> None:
    """However much smaller than necessary `since` is, and after windows have dropped tokens."""
    beams = Beams(rows, window)
    beams.extend([[token % 3 for token in range(prompt)]] * rows)
    for step in range(data.draw(st.integers(2, 40))):
        parents = data.draw(st.lists(st.integers(0, rows - 1), min_size=rows, max_size=rows))
        beams.layer.reorder(torch.tensor(parents), max(agreement(beams.tokens, parents) - spare, 0))
        beams.tokens = [beams.tokens[row] for row in parents]
        beams.extend([[(row * step + row) % 2] for row in range(rows)])
        assert torch.equal(beams.keys, beams.expected()[:, -(window or 10**6) :])


@every_decoder
@pytest.mark.parametrize(
    ("name", "options"),
    [("learned", {"position_ids": "coupled"}), ("rope", {"window": 5}), ("t5", {"n_kv_heads": 1}), ("all_hooks", {})],
)
def test_a_model_continues_alike_after_both(name: str, options: dict[str, Any], architecture: str) -> None:
    """Two prompts with three beams each, padded on the left; the beams of a prompt have its source in common."""
    model, beams = build_tiny(architecture, name, **options), 3
    source = (draw(2, 5), keep_of(5, 3)) if architecture == "encoder_decoder" else ()
    caches = [model.start(*(part.repeat_interleave(beams, 0) for part in source)) for _ in range(2)]
    ids, keep = (part.repeat_interleave(beams, 0) for part in (draw(2, 4), keep_of(4, 2, left=True)))
    for cache in caches:
        model.step(ids, cache, keep)
    read = ids.tolist()
    for _ in range(FIRST_CAPACITY + 2):
        rows = [place // beams * beams + int(torch.randint(beams, ())) for place in range(2 * beams)]
        caches[0].reorder(torch.tensor(rows), agreement(read, rows))
        caches[1].select(torch.tensor(rows))
        new = draw(2 * beams, 1)
        read = [[*read[row], *token] for row, token in zip(rows, new.tolist(), strict=True)]
        close(*(model.step(new, cache) for cache in caches))
        assert caches[0].ids.tolist() == read


# --- windows that drop tokens -----------------------------------------------------------------------------------------


@every_decoder
@every_scheme
@pytest.mark.parametrize("window", [1, 3])
def test_far_beyond_a_window_logits_are_those_without_a_cache(window: int, name: str, architecture: str) -> None:
    """Ragged prompts, and so many tokens that the cache drops some more than once."""
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
