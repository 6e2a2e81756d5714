"""The same weights, the same prompts, the same options: token for token and score for score what transformers writes.

Padding is the last id, which counts as a token like any other; the end is an id that random weights do write.
"""

from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from huggingface.hf_models import pair
from minitx.generation.beam import Beams, beam_search
from minitx.generation.decode import generate
from minitx.generation.logits_processors import combine_processors
from minitx.generation.sampling import filtered
from small_models import keep_of, pairwise

transformers = pytest.importorskip("transformers")

VOCAB, LIMIT, BEAMS = 303, 14, 4
PAD = VOCAB - 1


class Both:
    """One family: their generate and ours, on the same ragged batch."""

    def __init__(self, name: str, lengths: tuple[int, ...] = (7, 3, 5, 1, 6, 2, 4, 7, 5)) -> None:
        self.theirs, self.ours = pair(name)
        for table in (self.theirs.get_input_embeddings().weight, self.ours.embedding.table.weight):
            table.data.mul_(0.2)  # otherwise T5, whose head is tied, repeats the latest token
        self.reads_source = hasattr(self.ours, "encode")
        self.keep = keep_of(*lengths, left=not self.reads_source)
        drawn = torch.randint(0, PAD, self.keep.shape, generator=torch.Generator().manual_seed(3))
        self.ids = drawn.masked_fill(~self.keep, PAD)
        start = self.ids.new_zeros(len(self.ids), 1)
        self.arguments = (start, self.ids, self.keep) if self.reads_source else (self.ids,)
        self.shared = {"keep": None if self.reads_source else self.keep, "max_new_tokens": LIMIT, "pad": PAD}
        rows = self.greedy(eos=VOCAB).tolist()
        often = [sum(token in row for row in rows) for token in range(PAD)]
        # A token that about half of the rows write when nothing ends.
        self.eos = min(range(PAD), key=lambda token: (abs(often[token] - len(rows) / 2), token))

    def greedy(self, eos: Any, **options: Any) -> Tensor:
        return generate(self.ours, *self.arguments, eos=eos, **self.shared, **options).ids

    def transformers(self, eos: Any, **options: Any) -> Any:
        start = {"decoder_start_token_id": 0} if self.reads_source else {}
        written = self.theirs.generate(
            self.ids, attention_mask=self.keep.long(), do_sample=False, max_new_tokens=LIMIT, pad_token_id=PAD,
            eos_token_id=eos, return_dict_in_generate=True, output_scores=True, **start, **options,
        )  # fmt: skip
        return written.sequences[:, self.arguments[0].size(1) :], getattr(written, "sequences_scores", None)


both = cache(Both)


def same_tokens(found: Tensor, expected: Tensor) -> None:
    assert torch.equal(*torch.nn.utils.rnn.pad_sequence([found.T, expected.T], batch_first=True, padding_value=PAD))


def check_beams(one: Both, eos: Any, adjust: Any = None, theirs: dict[str, Any] | None = None, **options: Any) -> Beams:
    """The K best of each prompt, in their order, with their scores."""
    ours = {"num_beams": BEAMS, "eos": eos, "logits_processor": adjust, **one.shared, **options}
    found = beam_search(one.ours, *one.arguments, **ours)
    expected, scores = one.transformers(eos, num_beams=BEAMS, num_return_sequences=BEAMS, **options, **(theirs or {}))
    same_tokens(found.ids.flatten(0, 1), expected)
    torch.testing.assert_close(found.scores.flatten(), scores, atol=1e-4, rtol=1e-5)
    return found


@pairwise({"name": ["qwen3", "t5"], "early_stopping": [True, False, "never"], "length_penalty": [0.0, 1.0, 2.0, -1.0]})
def test_beams(name: str, length_penalty: float, early_stopping: Any) -> None:
    one = both(name)
    found = check_beams(one, one.eos, length_penalty=length_penalty, early_stopping=early_stopping)
    if length_penalty == 1.0:
        assert {*(found.ids == one.eos).any(dim=-1).flatten().tolist()} == {True, False}, "some end and some do not"
    several = {"qwen3": [137, 138, 141], "t5": [185, 190, 193]}[name]  # a settled prompt may seem improvable
    check_beams(one, several, length_penalty=length_penalty, early_stopping=early_stopping)


@pytest.mark.parametrize("name", ["qwen3", "t5"])
def test_penalties(name: str) -> None:
    """Prompts of one length: their repetition penalty counts padding as a token, ours does not."""
    one = both(name, (4, 4, 4))
    penalties = {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_new_tokens": 5}
    adjust = combine_processors([one.eos], **penalties)
    same_tokens(one.greedy(one.eos, logits_processor=adjust), one.transformers(one.eos, **penalties)[0])
    check_beams(one, one.eos, adjust, penalties)


WORDS = 9
rows_of_logits = st.lists(
    st.lists(st.integers(-500, 500), min_size=WORDS, max_size=WORDS, unique=True), min_size=1, max_size=4
).map(lambda rows: torch.tensor(rows) / 100)


@given(
    rows_of_logits, st.floats(0.3, 3.0), st.none() | st.integers(1, WORDS + 2), st.none() | st.floats(0.05, 0.999),
    st.none() | st.floats(0.001, 0.999),
)  # fmt: skip
@settings(max_examples=100)
def test_filters(logits: Tensor, temperature: float, k: int | None, p: float | None, share: float | None) -> None:
    """Tokens so near to a threshold that rounding decides aside: there one of the two may keep a token more."""
    expected = transformers.TemperatureLogitsWarper(temperature)(None, logits)
    if k is not None:
        expected = transformers.TopKLogitsWarper(k)(None, expected)
    near = torch.zeros(len(logits), dtype=torch.bool)
    if p is not None:
        shares = expected.softmax(dim=-1).sort(dim=-1, descending=True).values.cumsum(dim=-1)
        near |= ((shares - p).abs() < 1e-5).any(dim=-1)
        expected = transformers.TopPLogitsWarper(p)(None, expected)
    if share is not None:
        probabilities = expected.softmax(dim=-1)
        near |= ((probabilities / probabilities.amax(dim=-1, keepdim=True) - share).abs() < 1e-5).any(dim=-1)
        expected = transformers.MinPLogitsWarper(share)(None, expected)
    found = filtered(logits, temperature, k, p, share)
    torch.testing.assert_close(found[~near], expected.softmax(dim=-1)[~near], atol=1e-6, rtol=1e-5)
    assert torch.equal(found[~near] == 0, (expected == -torch.inf)[~near])
