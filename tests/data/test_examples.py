"""Legend: in layouts 10, 11, ... are symbols; P, B, E, S are <pad>, <bos>, <eos>, <sep>."""

import dataclasses
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitx.data import prompts
from minitx.data.batch import IGNORE
from minitx.data.examples import Pairs, Stream, positions, question_prompt
from minitx.data.tokenizers import SpecialIds
from small_models import every_architecture

P, B, E, S = 7, 8, 9, 5  # not the usual ids
SPECIAL = SpecialIds(pad=P, bos=B, eos=E, sep=S, unk=6, mask=4)
X = IGNORE
padded = partial(prompts.padded, pad=P, device=torch.device("cpu"))


@pytest.mark.parametrize("special", [SPECIAL, SPECIAL._replace(pad=E), SPECIAL._replace(pad=11)])
def test_the_end_of_a_document_is_predicted_and_padding_is_not(special: SpecialIds) -> None:
    """A tokenizer like GPT-2's has one token for both, and others may pad with a token of the text."""
    pad = special.pad
    stream = Stream(torch.tensor([[10, 11, E, 12, E, 13], [10, E, 11, 12, pad, pad]]))
    assert stream.frame("decoder_only", special).labels.equal(torch.tensor([[11, E, 12, E, 13], [E, 11, 12, X, X]]))


def pairs_of(rows: list[tuple[list[int], list[int]]]) -> Pairs:
    return Pairs(*padded([source for source, _ in rows]), *padded([target for _, target in rows]))


PAIRS = pairs_of([([10, 11, 12], [20, 21]), ([13], [22, 23, 24])])
INPUT = {"src": [[10, 11, 12], [13, P, P]], "src_keep": [[1, 1, 1], [1, 0, 0]]}
LAYOUTS = {
    "encoder_decoder": {**INPUT, "tgt": [[B, 20, 21, P], [B, 22, 23, 24]], "labels": [[20, 21, E, X], [22, 23, 24, E]]},
    "decoder_only": {
        "tgt": [[10, 11, 12, S, 20, 21], [13, S, 22, 23, 24, E]],
        "labels": [[X, X, X, 20, 21, E], [X, 22, 23, 24, E, X]],
        "prefix": [4, 2],
    },
    "encoder_only": {**INPUT, "labels": [[21, 20, 22], [23, X, X]]},
}


@every_architecture
def test_layouts(architecture: str) -> None:
    with pytest.raises(ValueError, match="question and answer must be equally long; use encoder_decoder"):
        PAIRS.frame("encoder_only", SPECIAL)
    pairs = pairs_of([([10, 11, 12], [21, 20, 22]), ([13], [23])]) if architecture == "encoder_only" else PAIRS
    batch = pairs.frame(architecture, SPECIAL)
    assert {name: part.tolist() for name, part in vars(batch).items() if part is not None} == LAYOUTS[architecture]
    wide = pairs_of([([10] * 9, [20]), ([12], [21] * 7), ([13], [22])]).frame("decoder_only", SPECIAL)
    assert wide.tgt.shape == wide.labels.shape == (3, 9 + 1 + 1), "as wide as the longest pair"


@every_architecture
@given(st.integers(1, 9), st.integers(1, 9))
def test_positions_are_the_longest_sequences_that_the_stacks_read(architecture: str, source: int, target: int) -> None:
    target = source if architecture == "encoder_only" else target
    batch = pairs_of([([10] * source, [11] * target), ([10], [11])]).frame(architecture, SPECIAL)
    parts = {"encoder": batch.src, "decoder": batch.tgt}
    read = {stack: part.size(1) for stack, part in parts.items() if part is not None}
    assert positions(architecture, (source, target)) == read
    if architecture != "encoder_only":  # generation reads no more: its last token is not an input
        start = question_prompt(*padded([[10] * source]), architecture, SPECIAL)
        assert start.ids.size(1) + target == read["decoder"]
        assert [part.size(1) for part in start.source[:1]] == [read[stack] for stack in read if stack == "encoder"]


def test_a_scalar_belongs_to_the_whole_batch() -> None:
    """Other tensors are cut into the examples of each process and of each row: test_loader.py."""
    batch = dataclasses.replace(PAIRS.frame("decoder_only", SPECIAL), step_labels=torch.tensor(7))
    assert batch.to("cpu").slice(0, 1).step_labels == 7


def test_given_tokens_are_read_and_not_predicted() -> None:
    source, target = padded([[10, 11, 12], [13]]), padded([[20, 21, 22, 23], [24, 25]])
    given = torch.tensor([[True, False, True, False], [True, False, False, False]])
    pairs, plain = Pairs(*source, *target, given), Pairs(*source, *target)
    for architecture in ("encoder_decoder", "decoder_only"):
        batch, every = pairs.frame(architecture, SPECIAL), plain.frame(architecture, SPECIAL)
        assert torch.equal(batch.tgt, every.tgt)
        assert torch.equal(batch.labels, every.labels.masked_fill(torch.isin(every.labels, target[0][given]), X))
    assert pairs.frame("encoder_decoder", SPECIAL).labels.tolist() == [[X, 21, X, 23, E], [X, 25, E, X, X]]
    assert pairs.prompt("decoder_only", SPECIAL).given.tolist() == [[20, X, 22, X], [24, X, X, X]]
    assert torch.equal(pairs.reference(SPECIAL), plain.reference(SPECIAL))
