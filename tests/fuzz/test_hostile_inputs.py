"""Hostile training states, tokenizers and model folders: refused with a sentence; in slow tests, with limits."""

import copy
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import FINE, Asked
from hostile import FOLDERS, KINDS, STATES, TOKENIZERS, TRAINING, _vocabulary, attempt, write_folder

from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError
from minitx.data.tokenizers import Tokenizer
from minitx.huggingface.importing import import_model
from minitx.training.api import train_config
from minitx.training.optim import build_optimizer
from minitx.training.resilience.training_state import checked
from minitx.training.resolve import ResolvedRun, resolve

HARMLESS_STATES = {
    "moments in half precision", "expanded moments",  # converted, as for another precision
    "betas of a group",  # all these follow from the config or from the number of the step
    "alien loops", "an alien loop", "an alien progress", "no loop", "an alien schedule", "a schedule of an alien",
    "an alien step of the schedule", "an alien version", "an alien data module", "an alien epoch",
}  # fmt: skip
BY_CHANCE = {
    "moments of another shape", "moments of a smaller matrix", "moments transposed", "alien callbacks",
    "an alien digest", "an alien callback", "an alien step", "alien seconds", "alien skipped steps", "an alien scaler",
    "states in another order",
}  # fmt: skip
"""Where chance may choose a value that fits."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[ResolvedRun, Path]:
    """A run to resume, and its last.ckpt."""
    values = {**TRAINING, "run": {"folder": str(tmp_path_factory.mktemp("runs"))}}
    train_config(values)
    run = resolve(values, resume=True)
    assert run.start is not None
    return run, run.start.file


def test_a_training_state_fits_or_is_refused(trained: tuple[ResolvedRun, Path]) -> None:
    run, asked = trained[0], Asked()
    for number, (what, change) in enumerate(STATES.items()):
        contents = copy.deepcopy(run.start.contents)  # type: ignore[union-attr]
        change(random.Random(number), contents)

        def resume(contents: dict[str, Any] = contents) -> None:
            altered = run._replace(start=replace(run.start, contents=contents))  # type: ignore[type-var]
            optimizer = build_optimizer(run.model, run.config.optimizer)
            optimizer.load_state_dict(checked(altered).start.contents["optimizer_states"][0])  # type: ignore[union-attr]
            for parameter in run.model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()  # which wrote past the end of small moments

        if "step of the run" in what or what in ("a negative step", "a huge step"):
            continue  # below
        before = asked.came[FINE]
        asked.call(resume, what)
        assert what in BY_CHANCE or (asked.came[FINE] > before) == (what in HARMLESS_STATES), what
    asked.check()


@pytest.mark.parametrize("step", [-5, 2.0, True, None, 10**40, torch.tensor(2)], ids=repr)
def test_a_step_of_a_run_is_a_number(trained: tuple[ResolvedRun, Path], step: Any, tmp_path: Path) -> None:
    contents = checkpoint.read(trained[1]) | {"global_step": step}
    folder = tmp_path / "run/v0"
    folder.mkdir(parents=True)
    torch.save(contents, folder / "last.ckpt")
    with pytest.raises(ConfigError, match="its global_step must be a number of steps, got"):
        resolve({**TRAINING, "run": {"folder": str(tmp_path)}}, resume=True)


HARMLESS_TOKENIZERS = {
    "padding", "padding to a multiple", "truncation", "empty added tokens", "an added token of a huge id",
    "ids with holes", "nested rules", "a catastrophic replacement", "merges of nothing", "fixed lengths",
    "an alien part", "many added tokens", "a damaged map of characters", "a template of everything",
}  # fmt: skip
"""Those that may be built, because the library's own lengths are not used, or by chance."""


def test_tokenizers_are_bounded_or_refused() -> None:
    asked, chance = Asked(), random.Random(1)
    for what, rules in TOKENIZERS.items():
        if "catastroph" in what or "splits" in what:
            continue  # below
        backend = {**json.loads(_vocabulary().to_str()), **rules(chance)}

        def use(backend: dict[str, Any] = backend) -> None:
            tokenizer = Tokenizer.from_dict(backend)
            tokenizer.decode(tokenizer.encode("aaaaaaaaaa bbbb"))
            tokenizer.check_fits(200)

        before = asked.came[FINE]
        asked.call(use, what)
        assert what in HARMLESS_TOKENIZERS or asked.came[FINE] == before, what
    asked.check()


@pytest.mark.parametrize(("pattern", "fits"), [(r"\d{1,2}|\w+", True), (r"(x+x+)+y", False)])
def test_a_regular_expression_is_tried_out(pattern: str, fits: bool) -> None:
    backend = json.loads(_vocabulary().to_str())
    rule = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    if fits:
        assert Tokenizer.from_dict(backend | {"pre_tokenizer": rule}).encode("ab 12")
        return
    with pytest.raises(ConfigError, match=r"the regular expression .* failed"):
        Tokenizer.from_dict(backend | {"pre_tokenizer": rule})


def test_model_folders_are_imported_or_refused(tmp_path: Path) -> None:
    asked = Asked()
    for number, (what, change) in enumerate(FOLDERS.items()):
        folder = tmp_path / str(number)
        write_folder(folder)
        if "large" in what or "many" in what or "spaces" in what:
            continue  # in the slow test
        change(random.Random(number), folder)
        asked.call(lambda folder=folder: import_model(str(folder), folder / "out.ckpt"), what)  # type: ignore[misc]
    asked.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_takes_the_machine(kind: str, seed: int, tmp_path: Path) -> None:
    outcomes, faults = attempt(kind, seed, tmp_path / "cases")
    assert not faults, "\n".join(faults)
    assert sum(outcome.code == 2 for outcome in outcomes) > len(outcomes) / 4
