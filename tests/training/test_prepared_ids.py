"""Position ids and the prefix LM, from a config to a checkpoint that is used."""

from typing import Any

import pytest
import torch

import minitx
from minitx.training.resolve import resolve


@pytest.mark.parametrize("architecture", ["encoder_decoder", "decoder_only"])
def test_coupled_ids_take_their_boundaries_from_the_task(small: Any, trained: Any, architecture: str) -> None:
    sections = {"model": {"architecture": architecture, "position_ids": {"name": "coupled"}}}
    ready, task, model, *_ = resolve(small(**sections))
    special = task.vocabulary.special
    assert list(ready.model.position_ids["after"]) == [special.bos, special.sep]
    numbering = model.decoder.position_ids
    assert numbering(torch.tensor([[special.bos, 7, 8, special.sep, 7]])).tolist() == [[0, 1, 2, 0, 1]]
    predictor = minitx.load(trained(**sections), device="cpu")
    assert list(predictor.config.model.position_ids["after"]) == [special.bos, special.sep]
    assert torch.equal(predictor.model.decoder.position_ids.after, numbering.after)
    assert predictor.generate(["3 1", "5"])


def test_given_boundaries_are_kept(small: Any) -> None:
    ready, _, model, *_ = resolve(small(model={"position_ids": {"name": "coupled", "after": [7]}}))
    assert list(ready.model.position_ids["after"]) == [7]
    assert model.encoder.position_ids.after.tolist() == [7]


OFFSET, RANDOMIZED = {"name": "offset", "largest": 3}, {"name": "randomized", "range": 40, "longest": 12}


@pytest.mark.parametrize(("architecture", "section"), [("encoder_decoder", OFFSET), ("decoder_only", RANDOMIZED)])
def test_random_ids_train_and_are_loaded(trained: Any, architecture: str, section: dict) -> None:
    table = {"name": "learned", "max_len": 40}
    folder = trained(model={"architecture": architecture, "position": table, "position_ids": section})
    predictor = minitx.load(folder, device="cpu")
    assert predictor.config.model.position_ids == section
    assert predictor.generate(["3 1 4", "5"]) == [predictor.generate("3 1 4"), predictor.generate("5")]


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"position_ids": {"name": "randomized", "range": 40, "longest": 5}}, r"ids\.name randomized.* 6 .* 5$"),
        (
            {"position_ids": {"name": "offset", "largest": 5}, "position": {"name": "learned", "max_len": 10}},
            r"position_ids\.name offset.*model\.position\.max_len.* 6 .* 5$",
        ),
        (
            {"position_ids": {"name": "coupled"}, "position": {"name": "learned", "max_len": 6}},
            r"position_ids\.name coupled.* 6 .* 5$",
        ),
        ({"position": {"name": "learned", "max_len": 5}}, r"model\.position\.max_len must be at least 6 .* got 5"),
    ],
)  # fmt: skip
def test_too_few_ids_for_the_longest_sequence_are_refused(small: Any, model: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        resolve(small(model=model))


@pytest.mark.parametrize(
    "position_ids",
    [{"name": "randomized", "range": 40, "longest": 6}, {"name": "offset", "largest": 34}, {"name": "coupled"}],
)
def test_just_enough_ids_are_accepted(small: Any, position_ids: dict) -> None:
    resolve(small(model={"position_ids": position_ids, "position": {"name": "learned", "max_len": 40}}))


def test_past_the_last_id_a_prompt_is_refused_by_its_keys(trained: Any) -> None:
    table = {"name": "learned", "max_len": 40}
    folder = trained(model={"architecture": "decoder_only", "position": table, "position_ids": RANDOMIZED})
    predictor = minitx.load(folder, device="cpu")
    with pytest.raises(ValueError, match=r"model\.position_ids\.name randomized.*12 tokens"):
        predictor.generate(" ".join("1" * 13))
    with pytest.raises(ValueError, match=r"at most 9 .*model\.position_ids\.name randomized"):
        predictor.generate("1 2 3", max_new_tokens=10)
    predictor.generate("1 2 3", max_new_tokens=9)


def test_a_trained_prefix_lm_reads_the_question_both_ways(trained: Any) -> None:
    predictor = minitx.load(trained(model={"architecture": "decoder_only", "prefix_lm": True}), device="cpu")
    assert predictor.model.prefix_lm
    maps = predictor.attend("3 1 2", "2 1 3").decoder[0][0]
    assert (maps[:, :4, :4] > 0).all()  # the question with its <sep>, both ways
    assert (maps[:, :4, 4:] == 0).all()
    assert (maps[:, 4:, 4:].triu(1) == 0).all()
