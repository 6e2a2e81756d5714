"""What can be measured of a trained model besides its figures on held-out examples: from a Predictor to a share."""

from __future__ import annotations

from collections.abc import Callable

import torch

from minitx import Predictor, record_attention
from minitx.data.examples import Pairs
from minitx.data.framing import frame


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
