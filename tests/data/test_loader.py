import dataclasses
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minitx.config.errors import ConfigError
from minitx.config.registry import build
from minitx.config.schema import Config, RunConfig
from minitx.config.training_sections import TrainerConfig
from minitx.data.examples import Stream
from minitx.data.loader import TrainingBatches, curriculum, fixed_batches
from minitx.data.tasks import TASKS, Reverse
from toy import same

TASK = Reverse(symbols=8, length=(1, 9), batch_size=5)


def test_ranks_seeds_and_numbers_all_sample_their_own() -> None:
    runs = [Config(run=RunConfig(seed=seed), trainer=TrainerConfig(max_steps=6)) for seed in (1, 2)]
    loaders = [TrainingBatches(TASK, run, rank, lambda: 0) for run in runs for rank in range(3)]
    assert not any(same(one, other) for one, other in itertools.combinations([*itertools.chain(*loaders)], 2))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("first", range(5))
def test_each_stage_has_its_own_options_wherever_a_run_starts(first: int, accumulate: int) -> None:
    def loader(**options: Any) -> TrainingBatches:
        config = Config(trainer=TrainerConfig(max_steps=5, accumulate_grad_batches=accumulate))
        return TrainingBatches(dataclasses.replace(TASK, **options), config, 0, lambda: first * accumulate)

    easy, middle, plain = loader(length=(1, 2)), loader(length=(3, 3)), loader()
    steps = [easy, easy, middle, plain, plain]
    expected = [batch for step in range(first, 5) for batch in steps[step].step(step * accumulate)]
    found = [*loader(stages=({"steps": 2, "length": [1, 2]}, {"steps": 1, "length": [3, 3]}))]
    assert len(found) == len(expected)
    assert all(map(same, found, expected))


@pytest.mark.parametrize(("stage", "sentence"), [
    ({"length": [1, 2]}, r"data\.stages: each stage has steps, at least 1, .* \(distinct, length"),
    ({"steps": 0, "length": [1, 2]}, r"at least 1.* got \{'steps': 0"),
    ({"steps": 3, "test_size": 5}, "options of the task"),
    ({"steps": 3, "length": [4, 2]}, r"data\.stages: data\.length must be .* got \[4, 2\]"),
    ({"steps": 3, "length": "all"}, r"data\.stages: data\.length"),
    ({"steps": 3, "length": [1, 10]}, "no stage has longer examples"),
    ({"steps": 3, "symbols": 9}, "or other symbols"),
    ({"steps": 3, "length": [2, 2]}, r"that are not held out, got \{'steps': 3, 'length': \[2, 2\]\}"),
])  # fmt: skip
def test_a_stage_has_steps_and_examples_that_fit(stage: dict, sentence: str) -> None:
    """The only question of two equal symbols is a test question."""
    with pytest.raises(ConfigError, match=sentence):
        curriculum(dataclasses.replace(TASK, symbols=1, stages=(stage,)))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 5))
def test_processes_share_fixed_examples_among_them(examples: int, size: int, processes: int) -> None:
    everything = Stream(torch.arange(examples)[:, None])
    if examples < processes:
        with pytest.raises(ConfigError, match=rf"{processes} processes need an example each, got {examples}$"):
            fixed_batches(everything, size, processes - 1, processes)
        return
    loaders = [fixed_batches(everything, size, rank, processes) for rank in range(processes)]
    parts = [*itertools.chain(*loaders)]
    assert all(1 <= len(part) <= size for part in parts)
    seen = [int(value) for part in parts for value in part.ids]
    assert (seen if processes == 1 else sorted(seen)) == list(range(examples))
    shares = [len([*loader]) for loader in loaders]
    assert shares == [*map(len, loaders)]
    assert max(shares) - 1 <= min(shares) >= 1, "every process has a share"


def test_a_stage_may_have_some_of_the_languages() -> None:
    task = build(TASKS, {"name": "number_words", "stages": [{"steps": 5, "languages": ["en"]}]}, "data")
    ((steps, part),) = curriculum(task)
    assert (steps, part.vocabulary) == (5, task.vocabulary)
