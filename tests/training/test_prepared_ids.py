"""Position ids and the prefix LM, from a config to a checkpoint that is used."""

from typing import Any

import pytest
import torch

import minitx
from minitx.training.resolve import resolve

OFFSET = {"name": "offset", "largest": 3}
TABLE = {"name": "learned", "max_len": 40}


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_coupled_ids_take_their_boundaries_from_the_task(trained: Any, architecture: str) -> None:
    model = {"architecture": architecture, "position_ids": {"name": "coupled"}}
    predictor = minitx.load(trained(model=model), device="cpu")
    special, numbering = predictor.tokenizer.special, predictor.model.decoder.position_ids
    assert list(predictor.config.model.position_ids["after"]) == [special.bos, special.sep]
    assert numbering(torch.tensor([[special.bos, 7, 8, special.sep, 7]])).tolist() == [[0, 1, 2, 0, 1]]
    assert predictor.generate(["3 1", "5"])


def test_options_of_the_model_survive_a_run(trained: Any) -> None:
    """Random ids, and a prefix LM that reads the question both ways."""
    model = {"architecture": "decoder_only", "position": TABLE, "position_ids": OFFSET, "prefix_lm": True}
    predictor = minitx.load(trained(model=model), device="cpu")
    assert predictor.config.model.position_ids == OFFSET
    assert predictor.generate(["3 1 4", "5"]) == [predictor.generate("3 1 4"), predictor.generate("5")]
    maps = predictor.attend("3 1 2", "2 1 3").decoder[0][0]
    assert (maps[:, :4, :4] > 0).all(), "the question with its <sep>"
    assert (maps[:, :4, 4:] == 0).all()
    assert (maps[:, 4:, 4:].triu(1) == 0).all()


@pytest.mark.parametrize(
    "position_ids",
    [{"name": "randomized", "range": 40, "longest": 6}, {"name": "offset", "largest": 34}, {"name": "coupled"}],
)
def test_just_enough_ids_are_accepted(small: Any, position_ids: dict) -> None:
    resolve(small(model={"position_ids": position_ids, "position": TABLE}))


def test_each_stack_has_a_limit_of_its_own() -> None:
    """The encoder of 2,048 ids reads the long question, and the decoder the answer of one token."""
    numbering = {"name": "randomized", "range": 2048, "longest": 16}
    resolve({"data": {"name": "parity", "length": [1, 100]}, "model": {"position_ids": numbering}})
