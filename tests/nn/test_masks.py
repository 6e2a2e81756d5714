"""Masks as properties: each rule against the sentence that defines it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitx.nn import masks

lengths = st.integers(1, 12)


def rows_of(elements: st.SearchStrategy) -> st.SearchStrategy:
    """One to four rows of equal length."""
    widths = st.integers(1, 8)
    return widths.flatmap(lambda n: st.lists(st.lists(elements, min_size=n, max_size=n), min_size=1, max_size=4))


@given(queries=lengths, keys=lengths, size=st.integers(1, 15))
def test_rules_are_right_aligned(queries: int, keys: int, size: int) -> None:
    """Query t of T has index S - T + t. A window has `size` keys, the query's own included."""
    rules = [
        (masks.causal, lambda query, key: key <= query),
        (masks.window(size, causal=True), lambda query, key: query - size < key <= query),
        (masks.window(2 * size - 1, causal=False), lambda query, key: abs(query - key) < size),
    ]
    for predicate, allows in rules:
        mask = masks.build(predicate, queries=queries, keys=keys)
        assert mask.dtype == torch.bool
        assert mask.tolist() == [[allows(q, key) for key in range(keys)] for q in range(keys - queries, keys)]
    together = masks.build(*(predicate for predicate, _ in rules), queries=queries, keys=keys)
    apart = [masks.build(predicate, queries=queries, keys=keys) for predicate, _ in rules]
    assert torch.equal(together, apart[0] & apart[1] & apart[2])


@pytest.mark.parametrize(
    ("size", "causal", "message"),
    [(0, True, "0"), (-3, False, "-3"), (2**31, True, "2147483648"), (6, False, "odd.*6")],
)
def test_a_window_has_a_key_and_a_middle(size: int, causal: bool, message: str) -> None:
    with pytest.raises(ValueError, match=rf"model\.window.*{message}"):
        masks.window(size, causal=causal)


@given(prefixes=st.lists(st.integers(0, 9), min_size=1, max_size=4), tokens=lengths)
def test_a_prefix_is_open_in_both_directions_and_the_rest_is_causal(prefixes: list[int], tokens: int) -> None:
    mask = masks.build(masks.prefix(torch.tensor(prefixes)), queries=tokens, keys=tokens)
    for row, length in zip(mask[:, 0].tolist(), prefixes, strict=True):
        assert row == [[s <= t or max(s, t) < length for s in range(tokens)] for t in range(tokens)]


@given(rows_of(st.integers(0, 3)))
def test_same_document_is_equality(rows: list[list[int]]) -> None:
    """Also together with a rule for all rows."""
    tokens, same = len(rows[0]), masks.same_document(torch.tensor(rows))
    mask = masks.build(same, queries=tokens, keys=tokens)
    assert mask[:, 0].tolist() == [[[mine == other for other in row] for mine in row] for row in rows]
    assert torch.equal(masks.build(masks.causal, same, queries=tokens, keys=tokens), mask.tril())
