"""Typed texts as batches, and batches as labels of figures."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitx.data.batch import IGNORE
from minitx.data.prompts import framed, labels, padded
from minitx.data.text.tokenizer_training import CharTokenizer

LETTERS = CharTokenizer().train([["abcdefg"]])
SPECIAL, CPU = LETTERS.special, torch.device("cpu")
some_rows = st.lists(st.lists(st.integers(6, 12), max_size=6), min_size=1, max_size=4)


def encoded(*texts: str) -> list[list[int]]:
    return [LETTERS.encode_masked(text) for text in texts]


def predicted(row: torch.Tensor) -> list[int]:
    return [token for token in row.tolist() if token != IGNORE]


@given(some_rows)
def test_padded_keeps_every_row(rows: list[list[int]]) -> None:
    ids, keep = padded(rows, SPECIAL.pad, CPU)
    assert ids.shape == keep.shape == (len(rows), max(1, *map(len, rows)))
    assert ids.dtype == torch.long
    for row, numbers, real in zip(rows, ids.tolist(), keep.tolist(), strict=True):
        assert numbers[: len(row)] == row
        assert numbers[len(row) :] == [SPECIAL.pad] * (len(numbers) - len(row))
        assert real == [place < len(row) for place in range(len(numbers))]


def test_a_question_and_its_answer() -> None:
    sources, answers = encoded("abc", "d"), encoded("cba", "")
    both = framed(sources, answers, "pairs", "encoder_decoder", SPECIAL, CPU)
    assert both.src.tolist() == [sources[0], [*sources[1], SPECIAL.pad, SPECIAL.pad]]
    assert predicted(both.labels[0]) == [*answers[0], SPECIAL.eos]
    assert predicted(both.labels[1]) == [SPECIAL.eos]
    joined = framed(sources, answers, "pairs", "decoder_only", SPECIAL, CPU)
    assert joined.tgt[0].tolist() == [*sources[0], SPECIAL.sep, *answers[0]]
    assert joined.prefix.tolist() == [4, 2]
    assert predicted(joined.labels[0]) == [*answers[0], SPECIAL.eos]


def test_running_text_is_read_whole_and_only_its_continuation_is_scored() -> None:
    sources, answers = encoded("abc", "d"), encoded("ga", "efg")
    whole = framed(sources, None, "stream", "decoder_only", SPECIAL, CPU)
    assert whole.tgt[0].tolist() == sources[0]
    assert predicted(whole.labels[0]) == sources[0][1:]
    batch = framed(sources, answers, "stream", "decoder_only", SPECIAL, CPU)
    for row, (source, answer) in enumerate(zip(sources, answers, strict=True)):
        assert predicted(batch.labels[row]) == answer
        assert batch.tgt[row, : len(source + answer)].tolist() == source + answer


def test_only_masks_are_scored() -> None:
    sources, answers = encoded("a<mask>c<mask>", "<mask>"), encoded("abcd", "g")
    batch = framed(sources, answers, "masked", "encoder_only", SPECIAL, CPU)
    assert batch.src[0].tolist() == sources[0]
    assert batch.labels[0].tolist() == [IGNORE, answers[0][1], IGNORE, answers[0][3]]
    assert batch.labels[1].tolist() == [*answers[1], IGNORE, IGNORE, IGNORE]
    assert batch.src_keep.tolist() == [[True] * 4, [True, False, False, False]]


@pytest.mark.parametrize("kind", ["pairs", "masked"])
def test_an_encoder_answers_place_by_place(kind) -> None:
    batch = framed(encoded("abc"), None, kind, "encoder_only", SPECIAL, CPU)
    assert batch.labels.shape == (1, 3)
    with pytest.raises(ValueError, match="as long as the text"):
        framed(encoded("abc"), encoded("ab"), kind, "encoder_only", SPECIAL, CPU)


def test_labels_are_the_tokens_without_padding_and_the_end() -> None:
    batch = framed(encoded("ab", "c"), encoded("ba", "c"), "pairs", "encoder_decoder", SPECIAL, CPU)
    assert labels(batch, LETTERS) == {"source": [["a", "b"], ["c"]], "target": [["<bos>", "b", "a"], ["<bos>", "c"]]}
    batch = framed(encoded("ab", "c"), encoded("ba", "c"), "pairs", "decoder_only", SPECIAL, CPU)
    assert labels(batch, LETTERS) == {"target": [["a", "b", "<sep>", "b", "a"], ["c", "<sep>", "c"]]}
    batch = framed(encoded("a<mask>", "c"), None, "masked", "encoder_only", SPECIAL, CPU)
    assert labels(batch, LETTERS) == {"source": [["a", "<mask>"], ["c"]]}
