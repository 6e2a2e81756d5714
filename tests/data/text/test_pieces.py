import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx.data.text.pieces import Pieces
from minitx.data.text.tokenizer_training import CharTokenizer

TEXTS = st.lists(st.text("abcäß -", max_size=6), min_size=1, max_size=8)
VOCABULARY = CharTokenizer().train([["abcäß -"]])


@given(TEXTS, st.data())
@settings(max_examples=60, deadline=None)
def test_pieces_are_joined_without_gaps(texts: list[str], data: st.DataObject) -> None:
    several = st.lists(st.integers(0, len(texts) - 1), min_size=3, max_size=3)
    rows = data.draw(st.lists(several, min_size=1, max_size=6))
    expected = ["".join(texts[number] for number in row) for row in rows]
    width = max(map(len, expected)) + data.draw(st.integers(0, 3))
    ids, keep = Pieces(texts, VOCABULARY).joined(torch.tensor(rows), width)
    assert ids.shape == keep.shape == (len(rows), width)
    assert [VOCABULARY.decode(row.tolist()) for row in ids] == expected
    assert keep.sum(dim=1).tolist() == [*map(len, expected)]
    assert (ids[~keep] == VOCABULARY.special.pad).all()
    assert (keep == (torch.arange(width) < keep.sum(dim=1, keepdim=True))).all()


def test_a_character_that_the_vocabulary_does_not_hold_is_named() -> None:
    with pytest.raises(ValueError, match="'z' is not in the tokenizer's alphabet"):
        Pieces(["ab", "az"], VOCABULARY)
