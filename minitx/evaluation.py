"""Measuring a model truthfully: by what it writes when nobody holds its hand, and by its loss beside that.

Exact match is free-running: the model writes the whole answer greedily, <eos> included, and is compared with the
reference. Token accuracy is teacher-forced: each token is predicted after the right ones. They are never mixed.

Legend: N examples, T target tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitx.data.examples import Examples, Pairs
from minitx.data.framing import IGNORE, Batch, frame, prompt, reference
from minitx.data.loader import FixedBatches
from minitx.data.tokenizers import SpecialIds
from minitx.generation.decode import generate
from minitx.hardware import moved
from minitx.models import DecoderOnly, EncoderDecoder, EncoderOnly, Transformer

BATCH = 500
"""Examples evaluated at once."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within this block."""
    before = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(before)


@dataclass(frozen=True)
class Scores:
    """Sums over examples; add them up, then read the means."""

    examples: int = 0
    exact: int | None = None  # None for running text, which has no answers, and where nothing was written
    tokens: int = 0
    correct: int = 0
    loss: float = 0.0

    def __add__(self, other: Scores) -> Scores:
        exact = None if self.exact is None and other.exact is None else (self.exact or 0) + (other.exact or 0)
        sums = {name: getattr(self, name) + getattr(other, name) for name in ("examples", "tokens", "correct", "loss")}
        return dataclasses.replace(self, exact=exact, **sums)

    def means(self) -> dict[str, float]:
        """exact_match and token_accuracy as shares, loss in nats a token; for running text bits per token."""
        tokens = max(self.tokens, 1)
        result = {"loss": self.loss / tokens, "token_accuracy": self.correct / tokens}
        if self.exact is None:
            return {**result, "bits_per_token": result["loss"] / math.log(2)}
        return {"exact_match": self.exact / max(self.examples, 1), **result}


def score(model: Transformer, examples: Examples, architecture: str, special: SpecialIds, free: bool = True) -> Scores:
    """Scores of one batch of examples, without free-running ones if not `free`; call eval() first."""
    device = next(model.parameters()).device
    examples = type(examples)(*(moved(tensor, device) for tensor in examples))
    with torch.inference_mode():
        scores = teacher_forced(model, frame(examples, architecture, special))
        exact = None
        if free and isinstance(examples, Pairs):
            exact = int(exact_matches(model, examples, architecture, special).sum())
    return dataclasses.replace(scores, examples=examples[0].size(0), exact=exact)


def teacher_forced(model: Transformer, batch: Batch) -> Scores:
    """Loss and token accuracy, each token predicted after the right ones."""
    logits = model(*batch.inputs()).float()  # [N, T, V]
    predicted = batch.labels != IGNORE
    loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE, reduction="sum")
    correct = (logits.argmax(dim=-1) == batch.labels) & predicted
    return Scores(tokens=int(predicted.sum()), correct=int(correct.sum()), loss=float(loss))


def exact_matches(model: Transformer, pairs: Pairs, architecture: str, special: SpecialIds) -> Tensor:
    """Whether the model writes each whole answer by itself: bool [N]."""
    if isinstance(model, EncoderOnly):
        batch = frame(pairs, architecture, special)
        said = model(*batch.inputs()).argmax(dim=-1)
        return ((said == batch.labels) | (batch.labels == IGNORE)).all(dim=1)
    expected = reference(pairs, special)  # [N, T + 1]
    written = write(model, pairs.source, pairs.source_keep, architecture, special, expected.size(1))
    # A row that goes on past its <eos>, or never writes one, differs from the reference there.
    written = F.pad(written, (0, expected.size(1) - written.size(1)), value=special.pad)
    return (written == expected).all(dim=1)


def write(
    model: EncoderDecoder | DecoderOnly,
    source: Tensor,
    keep: Tensor,
    architecture: str,
    special: SpecialIds,
    max_new_tokens: int,
) -> Tensor:
    """Greedy answers to questions [N, S], padded on the right: [N, T], <eos> included, then padding."""
    start = prompt(source, keep, architecture, special)
    return generate(
        model,
        start.ids,
        *start.source,
        keep=start.keep,
        max_new_tokens=max_new_tokens,
        eos=special.eos,
        pad=special.pad,
    )


def evaluate(
    model: Transformer, examples: Examples, architecture: str, special: SpecialIds, free: bool = True
) -> Scores:
    """Scores over any number of examples, in batches, in evaluation mode; free as for score."""
    total = Scores()
    with evaluating(model):
        for part in FixedBatches(examples, BATCH):
            total = total + score(model, part, architecture, special, free)
    return total


def by_length(model: Transformer, pairs: Pairs, architecture: str, special: SpecialIds) -> dict[int, Scores]:
    """Scores for each length of the question."""
    lengths = pairs.source_keep.sum(dim=1)
    return {
        int(length): evaluate(model, Pairs(*(part[lengths == length] for part in pairs)), architecture, special)
        for length in lengths.unique()
    }
