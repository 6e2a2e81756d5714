"""Exact match, token accuracy and loss of a model on held-out examples.

Exact match is free-running: the model generates the whole answer greedily, <eos> included, and the answer is compared
with the reference. Token accuracy and loss are teacher-forced: each token is predicted after the correct ones.

Legend: N examples, T target tokens, V vocabulary.
"""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitx.data.batch import IGNORE, Batch
from minitx.data.examples import Examples
from minitx.data.loader import FixedBatches
from minitx.data.tokenizers import SpecialIds
from minitx.generation.decode import generate
from minitx.models.transformers import EncoderOnly, Transformer

EXAMPLES_AT_ONCE = 500  # batch size of evaluation


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
    """Sums over examples, which add up over batches and processes."""

    examples: int = 0
    exact: int | None = None  # None for running text, which has no answers, and where nothing was generated
    tokens: int = 0
    correct: int = 0
    loss: float = 0.0

    def __add__(self, other: "Scores") -> "Scores":
        exact = None if self.exact is None and other.exact is None else (self.exact or 0) + (other.exact or 0)
        tokens, correct = self.tokens + other.tokens, self.correct + other.correct
        return Scores(self.examples + other.examples, exact, tokens, correct, self.loss + other.loss)

    def means(self) -> dict[str, float]:
        """exact_match and token_accuracy as shares, loss in nats per token; for running text also bits per token."""
        tokens = max(self.tokens, 1)
        result = {"loss": self.loss / tokens, "token_accuracy": self.correct / tokens}
        if self.exact is None:
            return {**result, "bits_per_token": result["loss"] / math.log(2)}
        return {"exact_match": self.exact / max(self.examples, 1), **result}


def score(model: Transformer, examples: Examples, architecture: str, special: SpecialIds, free: bool = True) -> Scores:
    """Scores of one batch of examples in the model's current mode; exact match only if `free`."""
    examples = examples.to(next(model.parameters()).device)
    with torch.inference_mode():
        scores = teacher_forced(model, examples.frame(architecture, special))
        matches = exact_matches(model, examples, architecture, special) if free else None
    return dataclasses.replace(scores, examples=len(examples), exact=None if matches is None else int(matches.sum()))


def teacher_forced(model: Transformer, batch: Batch) -> Scores:
    """Loss and token accuracy, each token predicted after the correct ones."""
    logits = model(**batch.model_inputs()).float()  # [N, T, V]
    predicted = batch.labels != IGNORE
    loss = F.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORE, reduction="sum")
    correct = (logits.argmax(dim=-1) == batch.labels) & predicted
    return Scores(tokens=int(predicted.sum()), correct=int(correct.sum()), loss=float(loss))


def exact_matches(model: Transformer, examples: Examples, architecture: str, special: SpecialIds) -> Tensor | None:
    """Whether the model generates each whole answer: bool [N]; None for examples without answers."""
    expected = examples.reference(special)  # [N, T + 1]
    if expected is None:
        return None
    if isinstance(model, EncoderOnly):
        batch = examples.frame(architecture, special)
        predicted = model(**batch.model_inputs()).argmax(dim=-1)
        return ((predicted == batch.labels) | (batch.labels == IGNORE)).all(dim=1)
    prompt, length = examples.prompt(architecture, special), expected.size(1)
    stop = {"max_new_tokens": length, "eos": special.eos, "pad": special.pad}
    generated = generate(model, prompt.ids, *prompt.source, keep=prompt.keep, **stop).ids
    # A row without an <eos>, or with a later one, differs from the reference at the reference's <eos>.
    generated = F.pad(generated, (0, length - generated.size(1)), value=special.pad)
    return (generated == expected).all(dim=1)


def evaluate(
    model: Transformer, examples: Examples, architecture: str, special: SpecialIds, free: bool = True
) -> Scores:
    """Scores of any number of examples, in batches, in evaluation mode; `free` as for score."""
    total = Scores()
    with evaluating(model):
        for part in FixedBatches(examples, EXAMPLES_AT_ONCE):
            total = total + score(model, part, architecture, special, free)
    return total
