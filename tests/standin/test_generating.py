"""Generating and judging on a GPU, without one: one synchronization a token, and no float64 where there is none."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from minitx.evaluation.metrics import evaluate
from minitx.hardware import devices
from minitx.inference.predictor import Predictor
from predictors import built, prompts
from tests.standin.device import LOG, WrongDevice, simulated

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_p": 0.9, "seed": 1},
    "beams": {"num_beams": 3},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 9},
    "many rows, of which some end": {"do_sample": True, "num_return_sequences": 8, "seed": 1},
}
every_writer = pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder"])


def moved(predictor: Predictor) -> Predictor:
    """On the simulated device."""
    return Predictor(copy.deepcopy(predictor.model).to("meta"), predictor.tokenizer, predictor.config)


def test_the_stand_in_itself() -> None:
    with simulated("meta"):
        x = torch.ones(3, device="meta")
        assert (x + 1).tolist() == [2.0] * 3
        LOG.clear()
        assert int(x.sum()) == 3
        assert len(x.nonzero()) == len(x[x > 0]) == 3
        assert len(LOG) == 3
        with pytest.raises(WrongDevice):
            x + torch.ones(3)


@every_writer
@pytest.mark.parametrize("way", WAYS)
def test_a_token_waits_once_and_needs_no_float64(way: str, architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an Apple GPU; the texts are those of the CPU."""
    on_cpu = built(architecture, ends="end" in way)
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", ("meta",))
    waits = []
    for tokens in (10, 20):
        options = {"max_new_tokens": tokens, **WAYS[way]}
        expected = on_cpu.generate(prompts(on_cpu), **options)
        with simulated("meta", float64=False):
            predictor = moved(on_cpu)
            LOG.clear()
            assert predictor.generate(prompts(on_cpu), **options) == expected
        waits.append(len(LOG))
    assert waits[1] - waits[0] <= 10, LOG


@every_writer
def test_a_streamed_token_waits_once(architecture: str) -> None:
    on_cpu = built(architecture, ends=False)
    with simulated("meta"):
        predictor = moved(on_cpu)
        LOG.clear()
        text = "".join(predictor.generate(prompts(on_cpu)[0], stream=True, max_new_tokens=20))
    assert len(LOG) <= 20 + 3, LOG
    assert text == on_cpu.generate(prompts(on_cpu)[0], max_new_tokens=20)


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder", "encoder_only"])
def test_judging_needs_no_float64(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def judged(predictor: Predictor) -> list[float]:
        texts, special = prompts(predictor), predictor.tokenizer.special
        means = evaluate(predictor.model, predictor.task.examples("validation", 20), architecture, special).means()
        return [*predictor.score(texts, texts), *means.values()]

    expected = judged(built(architecture))
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", ("meta",))
    with simulated("meta", float64=False):
        assert judged(moved(built(architecture))) == pytest.approx(expected, rel=1e-5)
