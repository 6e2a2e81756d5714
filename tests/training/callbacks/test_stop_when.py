"""Training that ends before max_steps: at a figure of the validations, or once it improves no longer."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from minitx.config.training_sections import StopConfig
from minitx.training.api import train_config as train
from minitx.training.callbacks.stop_when import StopWhen
from tests.training.callbacks.test_log_attention import logged
from tests.training.interrupting import state

EVERY_STEP = {"max_steps": 6, "val_every_n_steps": 1}


@pytest.mark.parametrize(("values", "settings", "expected"), [
    ([0.5, 1.0, 0.9, 1.0, 1.0, 1.0], {"metric": "exact_match", "at_least": 1.0}, {"steps": 5, "solved_at_step": 4}),
    ([0.5, 0.9, 0.8], {"metric": "exact_match", "at_least": 0.9, "patience": 1}, {"steps": 2, "solved_at_step": 2}),
    ([3.0, 2.0, 1.0, 1.0], {"metric": "loss", "at_most": 2.0}, {"steps": 3, "solved_at_step": 2}),
    ([3.0, 2.0, 2.0, 1.9, 1.9, 2.0, 1.0], {"metric": "loss"}, {"steps": 6, "no_improvement_from_step": 5}),
    ([3.0, 2.0, 2.5, 2.4, 1.0], {"metric": "loss"}, {"steps": 4, "no_improvement_from_step": 3}),
    ([1.0, 2.0, 3.0], {"metric": "token_accuracy"}, {"steps": 3}),
    ([2.0, math.nan, math.nan, 1.0], {"metric": "loss"}, {"steps": 3, "no_improvement_from_step": 2}),
    ([math.nan] * 3, {"metric": "loss", "at_most": 2.0}, {"steps": 3}),
])  # fmt: skip
def test_which_validation_is_the_last(values: list[float], settings: dict[str, Any], expected: dict[str, int]) -> None:
    stop, trainer = StopWhen(StopConfig(**settings)), Mock(max_steps=len(values), accumulate_grad_batches=1)
    trainer.val_check_interval, loop = 1, trainer.fit_loop.epoch_loop
    loop.max_steps = len(values)
    for trainer.global_step, value in enumerate(values, 1):
        stop.on_validation_end(trainer, SimpleNamespace(validated={settings["metric"]: value}))
        if loop.max_steps == trainer.global_step:
            break
    assert {"steps": trainer.global_step, **stop.outcome()[0]} == expected
    assert "1 validations" not in stop.outcome()[1]


def test_a_stopped_run_is_complete_and_resumes_only_with_other_settings(small: Any, folder: Path, capsys: Any) -> None:
    log = {"attention": {"every_n_steps": 5, "every_n_validations": 5, "examples": 1}, "embeddings": {"examples": 1}}
    stop_when = {"metric": "loss", "at_most": 100.0}
    sections = {"trainer": {**EVERY_STEP, "stop_when": stop_when}, "log": log}
    results = train(small(**sections))
    assert (results["steps"], results["solved_at_step"]) == (2, 1)
    assert capsys.readouterr().out.count("solved at step 1: loss at most 100.0 in 2 validations") == 1
    assert state(folder)["global_step"] == 2, "the last step is saved"
    found = logged(folder)
    assert (list(found["cross/example_1"]), list(found["answers/text_summary"])) == ([0, 2], [1, 2]), "and logged"
    assert train(small(**sections), resume=True) | {"seconds": 0} == results | {"seconds": 0}
    assert state(folder)["validated"], "not once more"
    train(small(**sections | {"log": {**sections["log"], "every_n_steps": 1}}), resume=True)
    with pytest.raises(ValueError, match=r"v0 was ended by trainer\.stop_when at step 2; .*max_steps 6 -> 9"):
        train(small(**sections | {"trainer": {**sections["trainer"], "max_steps": 9}}), resume=True)
    free = train(small(**sections | {"trainer": EVERY_STEP}), resume=True)
    assert (free["steps"], "solved_at_step" in free) == (6, False)
    assert "Embedding dir exists" not in capsys.readouterr().out
