"""What can be measured of a trained model besides its figures on held-out examples: from a Predictor to a share."""

from __future__ import annotations

from collections.abc import Callable

import torch

from minitx import Predictor, record_attention
from minitx.data.examples import Pairs
from minitx.data.framing import frame
from minitx.inspection.heads import task_statistics


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
    """What makes induction: the best head's score, and below that head the best one's weight on the token before
    (Olsson et al. 2022).
    """
    (heads,) = task_statistics(predictor, 1000, "test").values()  # of a decoder alone
    score = {statistic.name: statistic.values for statistic in heads}
    best = [max(value or 0.0 for value in layer) for layer in score["induction"]]
    above = best.index(max(best))
    below = (value or 0.0 for layer in score["previous_token"][:above] for value in layer)
    return best[above], max(below, default=0.0)


MEASURES: dict[str, Callable[[Predictor], float]] = {
    "diagonal": lambda predictor: share_of_rows(predictor, mirrored=False),
    "antidiagonal": lambda predictor: share_of_rows(predictor, mirrored=True),
    "induction_head": lambda predictor: head_scores(predictor)[0],
    "previous_token_head": lambda predictor: head_scores(predictor)[1],
}
"""By the name that a target gives."""

MEANINGS = {
    "diagonal": "rows on the diagonal",
    "antidiagonal": "rows on the anti-diagonal",
    "induction_head": "an induction head's weight on what came next",
    "previous_token_head": "a head below it, on the token before",
}
"""As docs/results.md says it."""
