"""Measures of a trained model besides its metrics on held-out examples, and of its curves."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minitx import Predictor, load, record_attention
from minitx.checkpoints import format as checkpoint
from minitx.data.examples import Pairs
from minitx.evaluation.bleu import text_scores
from minitx.evaluation.metrics import exact_matches
from minitx.generation.options import GenerationOptions
from minitx.interpret.task_statistics import task_statistics


def share_of_rows(predictor: Predictor, mirrored: bool) -> float:
    """The best cross-attention head's share of rows whose largest weight is on the diagonal, or the anti-diagonal."""
    pairs = predictor.task.examples("test", 1000)
    assert isinstance(pairs, Pairs)
    pairs = pairs.to(predictor.device)
    with torch.no_grad(), record_attention(predictor.model) as maps:
        predictor.model(**pairs.frame(predictor.architecture, predictor.tokenizer.special).model_inputs())
    size = pairs.source.size(1)
    length = pairs.source_keep.sum(dim=1, keepdim=True)
    row = torch.arange(size, device=predictor.device)
    expected = (length - 1 - row if mirrored else row.expand(len(length), -1))[:, None]  # [N, 1, T]
    counted = (row < length)[:, None]
    best = 0.0
    for name, weights in maps.items():
        if name.endswith("cross_attn"):
            hits = (weights[:, :, :size].argmax(dim=-1) == expected) & counted  # [N, H, T]
            best = max(best, float((hits.sum(dim=(0, 2)) / counted.sum()).max()))
    return best


def head_scores(predictor: Predictor) -> tuple[float, float]:
    """The highest induction score of a head, and the highest weight on the previous token in the layers before it
    (Olsson et al. 2022).
    """
    (heads,) = task_statistics(predictor, 1000, "test").values()  # the decoder is the only stack
    score = {statistic.name: statistic.values for statistic in heads}
    best = [max(value or 0.0 for value in layer) for layer in score["induction"]]
    above = best.index(max(best))
    below = (value or 0.0 for layer in score["previous_token"][:above] for value in layer)
    return best[above], max(below, default=0.0)


def training_match(predictor: Predictor) -> float:
    """Exact match on 2,000 training examples."""
    pairs = predictor.task.batch(torch.Generator().manual_seed(0), 2000)
    assert isinstance(pairs, Pairs)
    right = exact_matches(predictor.model, pairs, predictor.architecture, predictor.tokenizer.special)
    assert right is not None  # pairs have answers
    return float(right.float().mean())


def bleu_of_beams(predictor: Predictor) -> float:
    """Lower-cased BLEU of translations by beam search with 5 beams."""
    scores = text_scores(predictor, predictor.task.sentences("test"), GenerationOptions(num_beams=5))
    return float(scores["bleu_lowercase"])


def first_step(folder: str, curve: str, reached: Callable[[float], bool]) -> float:
    """Optimizer steps until a curve of a run's events reaches a value; infinite if it never does."""
    events = EventAccumulator(checkpoint.find(folder).parent.as_posix(), size_guidance={"scalars": 0}).Reload()
    return min((point.step for point in events.Scalars(curve) if reached(point.value)), default=float("inf"))


class Measure(NamedTuple):
    """A measure of a trained model."""

    meaning: str  # as in docs/results.md
    of: Callable[[str], float]  # from a run's folder
    unit: str = "exact_match"  # the metric, or column, as which its figures are printed


def _of_model(measure: Callable[[Predictor], float]) -> Callable[[str], float]:
    return lambda folder: measure(load(folder))


MEASURES = {
    "diagonal": Measure("rows on the diagonal", _of_model(lambda model: share_of_rows(model, mirrored=False))),
    "antidiagonal": Measure("rows on the anti-diagonal", _of_model(lambda model: share_of_rows(model, mirrored=True))),
    "induction_head": Measure(
        "weight of an induction head on the following symbol", _of_model(lambda model: head_scores(model)[0])
    ),
    "previous_token_head": Measure(
        "weight of a head in a layer before it on the previous token", _of_model(lambda model: head_scores(model)[1])
    ),
    "training_match": Measure("exact match in training", _of_model(training_match)),
    "bleu_of_beams": Measure("bleu lowercase, 5 beams", _of_model(bleu_of_beams), unit="bleu"),
    "steps_to_low_loss": Measure(
        "steps until the training loss is below 0.05",
        lambda folder: first_step(folder, "training/loss", lambda loss: loss < 0.05),
        unit="steps",
    ),
    "steps_to_exact_match": Measure(
        "steps until exact match in validation is 99 %",
        lambda folder: first_step(folder, "validation/exact_match", lambda share: share >= 0.99),
        unit="steps",
    ),
}
