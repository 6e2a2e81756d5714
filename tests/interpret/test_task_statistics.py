"""Head statistics over many examples, independent of the batch size."""

import numpy as np
import pytest
import torch

from minitx.data.examples import Stream
from minitx.data.prompts import labels
from minitx.interpret import task_statistics as heads
from minitx.interpret.attention_maps import attention_maps
from minitx.interpret.head_statistics import HeadSums
from minitx.interpret.task_statistics import task_statistics
from predictors import CHARACTERS, EVERY, KINDS_OF, LAYERS, LONGEST, SYMBOLS, built


@pytest.mark.parametrize("architecture", EVERY)
def test_means_are_over_the_rows_of_all_examples(architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = built(architecture)
    examples = predictor.task.examples("test", 7)
    whole = task_statistics(predictor, 7)
    assert set(whole) == {*KINDS_OF[architecture]}
    monkeypatch.setattr(heads, "MAX_WEIGHTS", 3 * 2 * LAYERS * (2 * LONGEST + 1) ** 2)  # a few at a time, other padding
    assert task_statistics(predictor, 7, "test") == whole
    assert task_statistics(predictor, 7, "validation") != whole
    sums = {kind: HeadSums() for kind in whole}
    for number in range(7):  # one by one: nothing is padded
        batch = examples.slice(number, number + 1).frame(architecture, SYMBOLS.special)
        maps = attention_maps(predictor.model, batch.model_inputs(), labels(batch, SYMBOLS))
        for kind in whole:
            sums[kind].add(maps.layers(kind))
    for kind, found in whole.items():
        for one, other in zip(found, sums[kind].statistics(), strict=True):
            assert one[:3] == other[:3]
            assert np.array(one.values) == pytest.approx(np.array(other.values), abs=2e-4), (kind, one.name)


def test_long_text_is_cut_and_an_end_between_documents_is_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = built("decoder_only", text=True)
    end, pad = CHARACTERS.special.eos, CHARACTERS.special.pad
    ids = torch.tensor([[6, 7, 6, end, 8, 6, 7, 9, 6], [6, 7, 6, 6, 7, 8, pad, pad, pad]])
    batch = Stream(ids).frame("decoder_only", CHARACTERS.special)
    assert labels(batch, CHARACTERS)["target"][0] == CHARACTERS.tokens([6, 7, 6, end, 8, 6, 7, 9])
    assert len(labels(batch, CHARACTERS)["target"][1]) == 6
    monkeypatch.setattr(predictor.task, "examples", lambda split, limit: Stream(ids))
    whole = task_statistics(predictor)
    monkeypatch.setattr(heads, "MAX_TOKENS", 4)
    short = task_statistics(predictor)
    assert short != whole
    monkeypatch.setattr(predictor.task, "examples", lambda split, limit: Stream(ids[:, :5]))
    assert short == task_statistics(predictor), "four tokens are read, the fifth is what comes next"


def test_it_leaves_the_model_in_its_mode() -> None:
    predictor = built("encoder_decoder", dropout=0.5)
    predictor.model.train()
    first = task_statistics(predictor, 3)
    assert predictor.model.training
    predictor.model.eval()
    assert task_statistics(predictor, 3) == first, "measured without dropout"


def test_no_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        task_statistics(built(), 0)
