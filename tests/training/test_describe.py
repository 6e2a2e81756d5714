"""The cost of a run, before it is trained."""

import re
from itertools import cycle
from typing import Any

import pytest

from minitx.nn import POSITION_IDS, POSITIONS
from minitx.training.choices.numerics import first_batch
from minitx.training.describe import cost, describe
from minitx.training.resolve import resolve

OPTIONS: dict[str, dict[str, Any]] = {"learned": {"max_len": 4096}, "randomized": {"range": 64, "longest": 32}}


def flops(config: Any) -> int:
    config, task, model, *_ = resolve(config)
    return cost(config, model, first_batch(config, task)).flops


@pytest.mark.parametrize(("scheme", "ids"), [*zip(POSITIONS, cycle(POSITION_IDS), strict=False)])
def test_every_scheme_is_described(scheme: str, ids: str, small: Any) -> None:
    model = {
        "position": {"name": scheme, **OPTIONS.get(scheme, {})},
        "position_ids": {"name": ids, **OPTIONS.get(ids, {})},
    }
    text = describe(resolve(small(model=model)))
    assert "GFLOP" in text
    assert re.search(r"step 1: \S+  +step 6: ", text)


def test_a_second_layer_doubles_what_layers_cost(small: Any) -> None:
    one, two, three = (flops(small(model={"n_layers": layers})) for layers in (1, 2, 3))
    assert two - one == three - two > 0
    assert flops(small(trainer={"accumulate_grad_batches": 3})) == 3 * one
