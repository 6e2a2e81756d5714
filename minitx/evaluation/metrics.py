"""Exact match, token accuracy and loss of a model on held-out examples.

Exact match is free-running: a whole answer is generated greedily, <eos> included, and compared with the reference;
encoder_only predicts it at once. Token accuracy and loss are teacher-forced: each token follows the correct ones.

Legend: N examples, T target tokens, V vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitx.data.batch import IGNORE, Batch
from minitx.data.examples import Examples, Pairs
from minitx.data.loader import fixed_batches
from minitx.data.tokenizers import SpecialIds
from minitx.generation.decode import generate
from minitx.models.transformers import EncoderOnly, Transformer

Show = Callable[[Iterable[Examples]], Iterable[Examples]]
EXAMPLES_AT_ONCE = 500  # answers generated in one batch
TOKENS_AT_ONCE, LOGITS_AT_ONCE = 2**13, 2**26
"""Limits of one teacher-forced forward: more is slower on a CPU, whose caches it exceeds, and can fill a GPU."""


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode within this block."""
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:  # not model.train(): a part may have been in evaluation mode before
            part.training = True


@dataclass(frozen=True)
class Scores:
    """Sums over examples, which add up over batches and processes."""

    examples: int = 0
    exact: int | None = None  # None if no answers were generated
    tokens: int = 0
    correct: int = 0
    loss: float = 0.0

    def __add__(self, other: "Scores") -> "Scores":
        exact = None if self.exact is None and other.exact is None else (self.exact or 0) + (other.exact or 0)
        tokens, correct = self.tokens + other.tokens, self.correct + other.correct
        return Scores(self.examples + other.examples, exact, tokens, correct, self.loss + other.loss)

    def means(self) -> dict[str, float]:
        """Exact match and token accuracy as shares, loss in nats per token; bits per token if nothing was generated."""
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
    return replace(scores, examples=len(examples), exact=None if matches is None else int(matches.sum()))


def teacher_forced(model: Transformer, batch: Batch) -> Scores:
    """Loss and token accuracy, each token predicted after the correct ones; logits of labelled positions only."""
    total, rows = Scores(), rows_at_once(model, max(part.size(1) for part in batch if part.dim() > 1))
    for start in range(0, len(batch.labels), rows):
        part = batch.slice(start, start + rows)
        predicted = part.labels != IGNORE
        labels = part.labels[predicted]
        logits = model.head(model(**part.model_inputs(), head=False)[predicted]).float()  # [labels, V]
        correct, loss = logits.argmax(dim=-1) == labels, F.cross_entropy(logits, labels, reduction="sum")
        total += Scores(tokens=len(labels), correct=int(correct.sum()), loss=float(loss))
    return total


def rows_at_once(model: Transformer, width: int) -> int:
    """Number of rows of `width` tokens in one teacher-forced forward."""
    return max(1, min(TOKENS_AT_ONCE, LOGITS_AT_ONCE // model.head.out_features) // width)


def exact_matches(model: Transformer, examples: Examples, architecture: str, special: SpecialIds) -> Tensor | None:
    """Whether the model generates each whole answer: bool [N]; None for examples without answers."""
    if not isinstance(examples, Pairs):
        return None
    if isinstance(model, EncoderOnly):
        batch = examples.frame(architecture, special)
        predicted = model(**batch.model_inputs()).argmax(dim=-1)
        return ((predicted == batch.labels) | (batch.labels == IGNORE)).all(dim=1)
    prompt, expected = examples.prompt(architecture, special), examples.reference(special)  # [N, T + 1]
    length = expected.size(1)
    stop = {"max_new_tokens": length, "eos": special.eos, "pad": special.pad}
    generated = generate(model, prompt.ids, *prompt.source, keep=prompt.keep, given=prompt.given, **stop).ids
    # A row without an <eos>, or with a later one, differs from the reference at the reference's <eos>.
    return (F.pad(generated, (0, length - generated.size(1)), value=special.pad) == expected).all(dim=1)


def evaluate(
    model: Transformer, examples: Examples, architecture: str, special: SpecialIds, free: bool = True, show: Show = iter
) -> Scores:
    """Scores of any number of examples, in batches passed through `show`, in evaluation mode; `free` as for score."""
    size = EXAMPLES_AT_ONCE if isinstance(examples, Pairs) else rows_at_once(model, examples.width)
    with evaluating(model):
        parts = (score(model, part, architecture, special, free) for part in show(fixed_batches(examples, size)))
        return sum(parts, start=Scores())
