"""Rows of a cache that leave and continue each other, and windows that drop tokens: the same logits, no more memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minitx.generation.decode import generate
from minitx.generation.sampling import greedy
from minitx.nn import POSITIONS, Cache
from minitx.nn.cache import FIRST_CAPACITY, LayerCache

VOCAB = 11
every_scheme = pytest.mark.parametrize("name", [*POSITIONS, "all_hooks"])


@pytest.fixture(autouse=True)
def _no_grad():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def draw(*shape: int) -> Tensor:
    return torch.randint(0, VOCAB, shape)


def shared(before: list[list[int]], rows: list[int]) -> int:
    """Up to where each row agrees with the one that it goes on from."""
    agree = [
        next(
            (place for place, (a, b) in enumerate(zip(before[new], before[old], strict=True)) if a != b), len(before[0])
        )
        for new, old in enumerate(rows)
    ]
    return min(agree)


# ---- following another row -------------------------------------------------------------------------------------------


class Beams:
    """A layer's cache whose keys are made of all that its row has read, so that rows that read alike are alike."""

    def __init__(self, rows: int, window: int | None) -> None:
        self.layer, self.window = LayerCache(), window
        self.read: list[list[int]] = [[] for _ in range(rows)]
        self.seen = torch.empty(0)

    def say(self, columns: list[list[int]]) -> None:
        """Several tokens for each row."""
        new = []
        for row, tokens in zip(self.read, columns, strict=True):
            row += tokens
            new.append(
                [float(hash(tuple(row[:end])) % 9973) for end in range(len(row) - len(tokens) + 1, len(row) + 1)]
            )
        k = torch.tensor(new)[:, None, :, None]
        cache = Cache()
        cache.pos = torch.arange(len(self.read[0]))[None]
        keys, values = self.layer.extend(k, k + 0.5, self.window)
        torch.testing.assert_close(values, keys + 0.5)
        assert cache.key_positions(len(columns[0]), self.window).size(1) == keys.size(2)
        self.seen = keys[:, 0, :, 0].clone()

    def follow(self, rows: list[int], since: int | None) -> None:
        if since is None:
            self.layer.select(torch.tensor(rows))
        else:
            self.layer.reorder(torch.tensor(rows), since)
        self.read = [list(self.read[row]) for row in rows]


@given(st.data(), st.integers(1, 4), st.sampled_from([None, 1, 2, 5, 40]), st.integers(1, 45), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_reordering_is_selecting_where_rows_differ_no_earlier(
    data: st.DataObject, rows: int, window: int | None, prompt: int, spare: int
) -> None:
    """However cautious `since` is, and after windows have forgotten."""
    one, other = Beams(rows, window), Beams(rows, window)
    beginning = [[token % 3 for token in range(prompt)]] * rows
    one.say(beginning)
    other.say(beginning)
    for step in range(data.draw(st.integers(2, 40))):
        parents = data.draw(st.lists(st.integers(0, rows - 1), min_size=rows, max_size=rows))
        since = max(shared(one.read, parents) - spare, 0)
        one.follow(parents, since)
        other.follow(parents, None)
        tokens = [[(row * step + row) % 2] for row in range(rows)]
        one.say(tokens)
        other.say(tokens)
        assert one.read == other.read
        assert torch.equal(one.seen, other.seen)
        expected = [[float(hash(tuple(row[: end + 1])) % 9973) for end in range(len(row))] for row in one.read]
        assert torch.equal(one.seen, torch.tensor(expected)[:, -(window or 10**6) :])


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("learned", {"position_ids": "coupled"}),
        ("rope", {"window": 5}),
        ("alibi", {"window": 3}),
        ("t5", {"n_kv_heads": 1}),
        ("all_hooks", {}),
    ],
)
def test_a_whole_model_goes_on_alike_after_both(
    name: str, options: dict[str, Any], architecture: str, tiny: Callable[..., Any]
) -> None:
    """Two prompts with three beams each, padded on the left; the beams of a prompt have its source in common."""
    model, beams = tiny(architecture, name, **options), 3
    source = ()
    if architecture == "encoder_decoder":
        source = (
            draw(2, 5).repeat_interleave(beams, 0),
            (torch.arange(5) < torch.tensor([[5], [3]])).repeat_interleave(beams, 0),
        )
    ids = draw(2, 4).repeat_interleave(beams, 0)
    keep = (torch.arange(4) >= torch.tensor([[0], [2]])).repeat_interleave(beams, 0)
    caches = [model.start(*source), model.start(*source)]
    for cache in caches:
        model.step(ids, cache, keep)
    read = ids.tolist()
    for _ in range(FIRST_CAPACITY + 6):
        rows = [place // beams * beams + int(torch.randint(beams, ())) for place in range(2 * beams)]
        caches[0].reorder(torch.tensor(rows), shared(read, rows))
        caches[1].select(torch.tensor(rows))
        new = draw(2 * beams, 1)
        read = [[*read[row], *token] for row, token in zip(rows, new.tolist(), strict=True)]
        logits = [model.step(new, cache) for cache in caches]
        torch.testing.assert_close(*logits, atol=1e-6, rtol=1e-6)
        assert caches[0].ids.tolist() == read


# ---- windows that forget ---------------------------------------------------------------------------------------------


class Recorder:
    """Greedy; records the logits and which rows they were for."""

    def __init__(self) -> None:
        self.logits: list[dict[int, Tensor]] = []

    def __call__(self, logits: Tensor, rows: Tensor | None = None) -> Tensor:
        assert rows is not None
        self.logits.append(dict(zip(rows.tolist(), logits, strict=True)))
        return greedy(logits)


@every_scheme
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])
def test_a_window_writes_far_beyond_itself_as_without_a_cache(
    architecture: str, window: int, name: str, tiny: Callable[..., Any]
) -> None:
    """Ragged prompts, so many tokens that the cache forgets more than once; each logit as of a whole forward."""
    model = tiny(architecture, name, window=window)
    lengths = torch.tensor([[5], [2], [4]])
    keep, prompt = torch.arange(5) >= 5 - lengths, draw(3, 5)
    source = (draw(3, 6), torch.arange(6) < torch.tensor([[6], [2], [4]])) if architecture == "encoder_decoder" else ()
    recorder, limit = Recorder(), 2 * FIRST_CAPACITY + 8
    written = generate(
        model, prompt, *source, keep=keep, sampler=recorder, max_new_tokens=limit, eos=-1, pad=0
    ).ids  # fmt: skip
    assert written.size(1) == limit
    for row in range(3):
        whole = torch.cat((prompt[row][keep[row]], written[row]))[None]
        asked = (source[0][row : row + 1], whole, source[1][row : row + 1]) if source else (whole,)
        expected = model(*asked)[0, -limit - 1 : -1]
        found = torch.stack([step[row] for step in recorder.logits])
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("window", [1, 3, FIRST_CAPACITY - 1, FIRST_CAPACITY, FIRST_CAPACITY + 1])
def test_the_capacity_of_a_window_does_not_grow(window: int, tiny: Callable[..., Any]) -> None:
    """A long text takes no more memory than its window, or what was read at once; without a window it grows."""
    models = [tiny("decoder_only", "rope", window=size) for size in (window, None)]
    capacities = []
    for model in models:
        cache = model.start()
        model.step(draw(1, 7), cache)
        most = 0
        for _ in range(4 * FIRST_CAPACITY):
            model.step(draw(1, 1), cache)
            most = max(most, *(layer.keys.size(2) for layer in cache._layers))
        capacities.append(most)
    assert capacities[0] <= max(FIRST_CAPACITY, 2 * window)
    assert capacities[1] >= 4 * FIRST_CAPACITY


def test_a_long_prompt_keeps_its_capacity_and_no_more(tiny: Callable[..., Any]) -> None:
    model = tiny("decoder_only", "rope", window=3)
    cache, ids = model.start(), draw(1, 3 * FIRST_CAPACITY)
    model.step(ids, cache)
    capacity = cache._layers[0].keys.size(2)
    further = draw(1, 3 * FIRST_CAPACITY)
    pieces = [model.step(piece, cache) for piece in further.split([1, 5, 1, 40, 1, 1, 7, 40], dim=1)]
    assert cache._layers[0].keys.size(2) == capacity
    whole = model(torch.cat((ids, further), dim=1))[:, -further.size(1) :]
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, atol=1e-5, rtol=1e-5)


def test_rows_may_leave_after_a_window_has_forgotten(tiny: Callable[..., Any]) -> None:
    model = tiny("decoder_only", "alibi", window=3)
    cache, ids = model.start(), draw(4, FIRST_CAPACITY + 5)
    for token in ids.split(1, dim=1):
        model.step(token, cache)
    left, further = torch.tensor([3, 1]), draw(2, 1)
    other = copy.deepcopy(cache)
    cache.select(left)
    whole = model(torch.cat((ids[left], further), dim=1))[:, -1:]
    torch.testing.assert_close(model.step(further, cache), whole, atol=1e-5, rtol=1e-5)
    other.reorder(torch.tensor([3, 1, 2, 3]), 0)
    torch.testing.assert_close(model.step(draw(4, 1).index_copy(0, torch.tensor([0, 1]), further), other)[:2], whole)
