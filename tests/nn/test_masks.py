"""Masks as properties: each rule against the sentence that defines it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitx.nn import masks

lengths = st.integers(1, 12)
keeps = st.integers(1, 8).flatmap(
    lambda width: st.lists(st.lists(st.booleans(), min_size=width, max_size=width), min_size=1, max_size=4)
)


@given(queries=lengths, keys=lengths)
def test_causal_is_right_aligned(queries: int, keys: int) -> None:
    """Query t of T sees keys up to S - T + t; the last query sees every key."""
    mask = masks.build(masks.causal, queries=queries, keys=keys)
    assert mask.dtype == torch.bool
    assert mask.shape == (queries, keys)
    for t in range(queries):
        for s in range(keys):
            assert bool(mask[t, s]) == (s <= keys - queries + t)
    assert mask[-1].all()


@given(queries=lengths, keys=lengths)
def test_a_step_is_the_last_rows_of_the_whole(queries: int, keys: int) -> None:
    """One rule for training, prefill in pieces and one-token decoding: a shorter call is the bottom of the square."""
    queries = min(queries, keys)
    for predicate in (masks.causal, masks.window(3, causal=True), masks.window(3, causal=False)):
        square = masks.build(predicate, queries=keys, keys=keys)
        assert torch.equal(masks.build(predicate, queries=queries, keys=keys), square[keys - queries :])


@given(length=lengths, size=st.integers(1, 15))
def test_causal_window_counts_its_keys(length: int, size: int) -> None:
    """`size` keys, itself included and the nearest before it; fewer only where the text begins."""
    mask = masks.build(masks.window(size, causal=True), queries=length, keys=length)
    for t in range(length):
        seen = mask[t].nonzero().flatten().tolist()
        assert seen == list(range(max(0, t - size + 1), t + 1))
        assert len(seen) == min(size, t + 1)


@given(length=lengths, half=st.integers(0, 7))
def test_bidirectional_window_counts_its_keys(length: int, half: int) -> None:
    size = 2 * half + 1
    mask = masks.build(masks.window(size, causal=False), queries=length, keys=length)
    for t in range(length):
        assert mask[t].nonzero().flatten().tolist() == list(range(max(0, t - half), min(length, t + half + 1)))
        if half <= t < length - half:
            assert mask[t].sum() == size
    assert torch.equal(mask, mask.T)


@pytest.mark.parametrize("size", [0, -3])
@pytest.mark.parametrize("causal", [False, True])
def test_window_needs_a_key(size: int, causal: bool) -> None:
    with pytest.raises(ValueError, match=rf"model\.window.*{size}"):
        masks.window(size, causal=causal)


def test_even_window_has_no_middle() -> None:
    with pytest.raises(ValueError, match=r"model\.window.*odd.*6"):
        masks.window(6, causal=False)


@given(keeps)
def test_key_padding_hides_padding_from_every_query(rows: list[list[bool]]) -> None:
    keep = torch.tensor(rows)
    mask = masks.key_padding(keep)
    assert mask is not None
    assert mask.dtype == torch.bool
    whole = mask.expand(keep.size(0), 3, 5, keep.size(1))  # broadcasts to [B, H, T, S]
    for b, row in enumerate(rows):
        assert whole[b].reshape(15, -1).tolist() == [row] * 15


def test_nothing_to_mask_is_no_mask() -> None:
    assert masks.key_padding(None) is None
    assert masks.combine() is None
    assert masks.combine(None, None) is None


@given(st.integers(0, 2**32 - 1), st.lists(st.sampled_from(["square", "padding", "none"]), min_size=1, max_size=5))
def test_combine_is_and(seed: int, kinds: list[str]) -> None:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"square": (4, 4), "padding": (2, 1, 1, 4)}
    parts = [
        None if kind == "none" else torch.rand(shapes[kind], generator=generator) < 0.7
        for kind in kinds
    ]  # fmt: skip
    combined = masks.combine(*parts)
    present = [part for part in parts if part is not None]
    if not present:
        assert combined is None
        return
    assert combined is not None
    whole = combined.expand(2, 1, 4, 4)
    for b in range(2):
        for t in range(4):
            for s in range(4):
                votes = [bool(part.expand(2, 1, 4, 4)[b, 0, t, s]) for part in present]
                assert bool(whole[b, 0, t, s]) == all(votes)


@given(queries=lengths, keys=lengths, size=st.integers(1, 9))
def test_build_is_the_and_of_its_predicates(queries: int, keys: int, size: int) -> None:
    near, odd_keys = masks.window(2 * size - 1, causal=False), lambda query, key: (key % 2 == 1) | (query < 0)
    together = masks.build(masks.causal, near, odd_keys, queries=queries, keys=keys)
    apart = [masks.build(predicate, queries=queries, keys=keys) for predicate in (masks.causal, near, odd_keys)]
    assert torch.equal(together.expand(queries, keys), apart[0] & apart[1] & apart[2])


@given(lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4), tokens=lengths)
def test_prefix_is_causal_with_an_open_beginning(lengths: list[int], tokens: int) -> None:
    mask = masks.build(masks.prefix(torch.tensor(lengths)), queries=tokens, keys=tokens)
    assert mask.dtype == torch.bool
    assert mask.shape == (len(lengths), 1, tokens, tokens)
    for b, length in enumerate(lengths):
        for t in range(tokens):
            for s in range(tokens):
                both_in_it = s < length and t < length
                assert bool(mask[b, 0, t, s]) == (s <= t or both_in_it)


@given(
    st.integers(1, 8).flatmap(
        lambda width: st.lists(st.lists(st.integers(0, 3), min_size=width, max_size=width), min_size=1, max_size=4)
    )
)
def test_same_document_is_equality(rows: list[list[int]]) -> None:
    mask = masks.build(masks.same_document(torch.tensor(rows)), queries=len(rows[0]), keys=len(rows[0]))
    assert mask.dtype == torch.bool
    assert mask.shape == (len(rows), 1, len(rows[0]), len(rows[0]))
    for b, row in enumerate(rows):
        for t, mine in enumerate(row):
            assert mask[b, 0, t].tolist() == [mine == other for other in row]


@given(tokens=lengths, seed=st.integers(0, 2**16))
def test_rules_of_rows_and_of_places_go_together(tokens: int, seed: int) -> None:
    """[T, S] and [B, 1, T, S] broadcast: the AND of each row's own rule with the one for all."""
    documents = torch.randint(0, 3, (2, tokens), generator=torch.Generator().manual_seed(seed))
    together = masks.build(masks.causal, masks.same_document(documents), queries=tokens, keys=tokens)
    for b in range(2):
        own = masks.build(masks.same_document(documents[b : b + 1]), queries=tokens, keys=tokens)[0, 0]
        assert torch.equal(together[b, 0], own & torch.ones(tokens, tokens).tril().bool())
