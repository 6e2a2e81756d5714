"""Generation and evaluation on a simulated GPU: one synchronization per token, and no float64 without support."""

import copy
from typing import Any

import pytest
import torch

from minitx.evaluation.metrics import evaluate
from minitx.hardware import devices
from minitx.inference.predictor import Predictor
from predictors import built, prompts
from tests.standin.device import LOG, WrongDevice, simulated

WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("encoder_decoder", {}),
    "streamed, with an encoder": ("encoder_decoder", {"stream": True}),
    "beams": ("encoder_decoder", {"num_beams": 3}),
    "penalties": ("decoder_only", {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 3}),
    "many rows, of which some end": ("decoder_only", {"do_sample": True, "num_return_sequences": 8, "seed": 1}),
}


def moved(predictor: Predictor) -> Predictor:
    return Predictor(copy.deepcopy(predictor.model).to("meta"), predictor.tokenizer, predictor.config)


def test_tensors_on_different_devices_are_an_error() -> None:
    with simulated("meta"), pytest.raises(WrongDevice):
        torch.ones(3, device="meta") + torch.ones(3)


def generated(predictor: Predictor, options: dict[str, Any]) -> list[str]:
    asked = prompts(predictor)
    return [*predictor.generate(asked[0] if "stream" in options else asked, **options)]


@pytest.mark.parametrize("way", WAYS)
def test_a_token_waits_once_and_needs_no_float64(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an Apple GPU; the texts are those of the CPU."""
    architecture, given = WAYS[way]
    on_cpu = built(architecture, ends=way.endswith("end"))
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", ("meta",))
    waits = []
    for tokens in (4, 12):
        options = {"max_new_tokens": tokens, **given}
        with simulated("meta", float64=False):
            predictor = moved(on_cpu)
            LOG.clear()
            texts = generated(predictor, options)
        waits.append(len(LOG))
    assert texts == generated(on_cpu, options)
    assert 0 < waits[1] - waits[0] <= 8, LOG


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_decoder", "encoder_only"])
def test_evaluation_needs_no_float64(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(predictor: Predictor) -> list[float]:
        texts, special = prompts(predictor), predictor.tokenizer.special
        means = evaluate(predictor.model, predictor.task.examples("validation", 20), architecture, special).means()
        return [*predictor.score(texts, texts), *means.values()]

    expected = measured(built(architecture))
    monkeypatch.setattr(devices, "WITHOUT_FLOAT64", ("meta",))
    with simulated("meta", float64=False):
        assert measured(moved(built(architecture))) == pytest.approx(expected, rel=1e-5)
