"""What can be measured of a trained model besides its figures on held-out examples, and read off its curves."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from minitx import Predictor, checkpoint, load, record_attention
from minitx.data.examples import Pairs
from minitx.data.framing import frame
from minitx.evaluation import exact_matches


def share_of_rows(predictor: Predictor, mirrored: bool) -> float:
    """The best cross-attention head's share of rows whose largest weight is on the diagonal, or the anti-diagonal."""
    pairs = predictor.task.examples("test", 1000)
    assert isinstance(pairs, Pairs)
    pairs = Pairs(*(part.to(predictor.device) for part in pairs))
    with torch.no_grad(), record_attention(predictor.model) as maps:
        predictor.model(*frame(pairs, predictor.architecture, predictor.tokenizer.special).inputs())
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
    """What makes induction: the best head's weight on the symbol behind where the present one stood, and below that
    head the best one's weight on the token before (Olsson et al. 2022).
    """
    pairs = predictor.task.examples("test", 1000)
    assert isinstance(pairs, Pairs)
    pairs = Pairs(*(part.to(predictor.device) for part in pairs))
    with torch.no_grad(), record_attention(predictor.model) as maps:
        predictor.model(*frame(pairs, predictor.architecture, predictor.tokenizer.special).inputs())
    questions, answers = pairs.source_keep.sum(dim=1), pairs.target_keep.sum(dim=1)  # [N]
    first = questions - 1 - answers  # where the answer begins in the question; behind the symbol that is asked for
    row = torch.arange(len(questions), device=predictor.device)
    copied: dict[str, list[torch.Tensor]] = {name: [] for name in maps}
    for place in range(int(answers.max()) - 1):  # the answer's symbol at `place`, when there is another one behind it
        has = answers > place + 1
        for name, weights in maps.items():  # the question, <sep>, the answer: [N, H, T, T]
            asks, told = (questions + 1 + place)[has], (first + place + 1)[has]
            copied[name].append(weights[row[has], :, asks, told])
    means = {name: torch.cat(parts).mean(dim=0).max() for name, parts in copied.items()}
    names = list(maps)
    best = max(names, key=lambda name: float(means[name]))
    real = (
        torch.arange(1, maps[best].size(2), device=predictor.device) < (questions + 1 + answers)[:, None]
    )  # [N, T - 1]
    before = [maps[name].diagonal(-1, 2, 3).transpose(1, 2)[real].mean(dim=0) for name in names[: names.index(best)]]
    return float(means[best]), max((float(weights.max()) for weights in before), default=0.0)


def training_match(predictor: Predictor) -> float:
    """Exact match on 2,000 examples that training has drawn."""
    pairs = predictor.task.batch(torch.Generator().manual_seed(0), 2000)
    assert isinstance(pairs, Pairs)
    right = exact_matches(predictor.model, pairs, predictor.architecture, predictor.tokenizer.special)
    return float(right.float().mean())


def first_step(folder: str, curve: str, reached: Callable[[float], bool]) -> float:
    """The optimiser steps until a curve of a run's events is where it shall be; infinite where it never is."""
    events = EventAccumulator(checkpoint.find(folder).parent.as_posix(), size_guidance={"scalars": 0}).Reload()
    return min((point.step for point in events.Scalars(curve) if reached(point.value)), default=float("inf"))


class Measure(NamedTuple):
    """What is kept of a trained model, by the name that a target gives."""

    meaning: str  # as docs/results.md says it
    of: Callable[[str], float]  # from a run's folder
    share: bool = True  # or steps


def _of_model(measure: Callable[[Predictor], float]) -> Callable[[str], float]:
    return lambda folder: measure(load(folder))


MEASURES = {
    "diagonal": Measure("rows on the diagonal", _of_model(lambda model: share_of_rows(model, mirrored=False))),
    "antidiagonal": Measure("rows on the anti-diagonal", _of_model(lambda model: share_of_rows(model, mirrored=True))),
    "induction_head": Measure(
        "an induction head's weight on what came next", _of_model(lambda model: head_scores(model)[0])
    ),
    "previous_token_head": Measure(
        "a head below it, on the token before", _of_model(lambda model: head_scores(model)[1])
    ),
    "training_match": Measure("exact match in training", _of_model(training_match)),
    "learnt_after": Measure(
        "steps until the training loss is below 0.05",
        lambda folder: first_step(folder, "training/loss", lambda loss: loss < 0.05),
        share=False,
    ),
    "understood_after": Measure(
        "steps until exact match in validation is 99 %",
        lambda folder: first_step(folder, "validation/exact_match", lambda share: share >= 0.99),
        share=False,
    ),
}
