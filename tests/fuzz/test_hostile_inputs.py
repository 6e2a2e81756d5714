"""Hostile training states, tokenizers and model folders: refused with a sentence, in little time and memory."""

import copy
import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import hostile
import pytest
import torch
from asking import Asked, few_and_many, limited
from hostile import alter, hostile_folder, tokenizer

from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError
from minitx.data.text.tokenizer_checks import check
from minitx.data.tokenizers import Tokenizer
from minitx.huggingface.importing import import_model
from minitx.training.api import train_config
from minitx.training.optim import build_optimizer
from minitx.training.resilience.training_state import checked
from minitx.training.resolve import ResolvedRun, resolve
from tests.training.conftest import small_config

TWO_STEPS = {"max_steps": 2}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[ResolvedRun, Path]:
    """A run to resume, and its last.ckpt."""
    config = small_config(tmp_path_factory.mktemp("trained"), model={"d_model": 8}, trainer=TWO_STEPS)
    train_config(config)
    resumed = resolve(config, resume=True)
    return resumed, resumed.start.file


def fitted(run: ResolvedRun, state: dict[str, Any]) -> ResolvedRun:
    """The run with a state in its checkpoint, checked."""
    return checked(run._replace(start=replace(run.start, contents={**run.start.contents, **state})))


@few_and_many(50, 1000, 2)
def test_a_training_state_fits_or_is_refused(trained: tuple[ResolvedRun, Path], count: int, seed: int) -> None:
    """One that fits leads to finite weights, without a write past the end of moments that are too small."""
    resumed, asked, chance = trained[0], Asked(), random.Random(seed)

    def resume(state: dict[str, Any]) -> None:
        model = copy.deepcopy(resumed.model)
        optimizer = build_optimizer(model, resumed.config.optimizer)
        optimizer.load_state_dict(fitted(resumed, state).start.contents["optimizer_states"][0])
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        assert all(parameter.isfinite().all() for parameter in model.parameters())

    others = ("minitx", "state_dict", "global_step")  # checked before
    for _ in range(count):
        state = copy.deepcopy({name: part for name, part in resumed.start.contents.items() if name not in others})
        # Half of them in the optimizer, which has the largest part.
        what = alter(chance, state if chance.random() < 0.5 else state["optimizer_states"])
        asked.call(lambda: resume(state), what)  # noqa: B023
    asked.check()


@pytest.mark.parametrize(("key", "within", "beyond", "message"), [
    ("global_step", (2,), (-5, 2.0, True, None, 10**40, torch.tensor(2)), "its global_step must be"),
    ("sampling", (2,), (0, 3, 2.0, True, None, "2", torch.zeros(2)), "newer .*: its sampling must be 1 or 2, got"),
    ("skipped_steps", (0, 2), (-1, 3), "is damaged: skipped_steps"),
    ("seconds", (0, 1e9), (-0.1, float("inf")), "is damaged: seconds"),
    ("precision", ("64-true", "bf16-mixed"), (None, 32, "transformer-engine", ["32-true"]), "damaged: precision"),
    ("MixedPrecision", (None, {"scale": 1.0}), ([1.0], {"scale": -1.0}, {"scale": "1"}), "damaged: MixedPrecision"),
    ("callbacks", ({},), ({"StopOnDivergence": {"in_a_row": 0, "overflows": 0, "first": 3, "norm": 1.0}},), "a norm"),
    ("trained_weights", (None,), ({"model.embedding.table.weight": torch.zeros(3)},), "have the shapes of the weights"),
    ("state", (), ({},), "is damaged"),  # nothing, after two steps
    ("step", (0.0, 2.0), (-1.0, 3.0), "is damaged: step"),
    ("exp_avg_sq", (0.0, 1.0), (-1e-9, float("nan")), "is damaged: exp_avg_sq"),
])  # fmt: skip
def test_values_of_a_training_state_have_limits(
    trained: tuple[ResolvedRun, Path], tmp_path: Path, key: str, within: tuple, beyond: tuple, message: str
) -> None:
    """Those that a run is resumed by, of the whole run of two steps, and of the optimizer."""
    (tmp_path / "runs/small/v0").mkdir(parents=True)
    expected = [(value, nullcontext()) for value in within]
    expected += [(value, pytest.raises(ConfigError, match=message)) for value in beyond]
    for value, outcome in expected:
        contents = checkpoint.read(trained[1])
        if key in (moments := contents["optimizer_states"][0]["state"][0]):
            moments[key].fill_(value)
        else:
            (contents["optimizer_states"][0] if key == "state" else contents)[key] = value
        with outcome:
            if key in ("global_step", "sampling"):  # checked before the others
                torch.save(contents, tmp_path / "runs/small/v0/last.ckpt")
                resolve(small_config(tmp_path, model={"d_model": 8}, trainer=TWO_STEPS), resume=True)
            else:
                fitted(trained[0], contents)


def test_a_refusal_prints_few_of_many_values(trained: tuple[ResolvedRun, Path]) -> None:
    value = Mock(__repr__=Mock(return_value="value"))
    with pytest.raises(ConfigError, match=r"must be a list of one, got \[value, value"):
        fitted(trained[0], {"optimizer_states": [value] * 1000})
    assert value.__repr__.call_count <= 10


def use(backend: dict[str, Any]) -> None:
    found = Tokenizer.from_dict(backend)
    for text in hostile.WORDS:
        found.decode(found.encode(text))
    found.check_fits(2 * hostile.VOCAB)


@few_and_many(20, 1000, 2)
def test_an_altered_tokenizer_is_used_or_refused(count: int, seed: int) -> None:
    asked, chance = Asked(), random.Random(seed)
    for _ in range(count):
        backend = tokenizer()
        asked.call(lambda: use(backend), alter(chance, backend))  # noqa: B023
    asked.check()


@pytest.mark.parametrize("what", hostile.TOKENIZERS)
def test_rules_without_end_are_refused(what: str) -> None:
    early = "replace" in what or "words" in what  # before they are tried out
    with pytest.raises(ConfigError, match=r"must have [^<]+$" if early else None), limited():
        use(tokenizer() | hostile.TOKENIZERS[what])


@pytest.mark.parametrize("growths", [(100,), (10, 1, 10), (25, 2, 2)])
@pytest.mark.parametrize("pattern", ["a", "", "\u00e4"])  # what replaces nothing is added to each character
def test_replacements_make_a_text_at_most_a_hundred_times_longer(pattern: str, growths: tuple[int, ...]) -> None:
    contents = ["b" * (growth * len(pattern.encode()) if pattern else growth - 1) for growth in growths]
    for last, outcome in (("", nullcontext()), ("b", pytest.raises(ConfigError, match="100 times longer"))):
        rules = [hostile.replacement(pattern, content) for content in (*contents[:-1], contents[-1] + last)]
        with outcome:
            check(tokenizer() | {"pre_tokenizer": None} | hostile.normalizing(*rules))


def test_texts_of_rules_have_at_most_2000_characters() -> None:
    check(tokenizer() | hostile.normalizing({"type": "Prepend", "prepend": "a" * 2000}))
    with pytest.raises(ConfigError, match="characters for"):
        check(tokenizer() | hostile.normalizing({"type": "Prepend", "prepend": "a" * 2001}))


@pytest.mark.parametrize("pattern", [r"\d{1,2}|\w+", *hostile.CATASTROPHES])
def test_a_regular_expression_is_tried_out(pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizers.py").write_text("1 / 0")  # not to be imported
    refusal = pytest.raises(ConfigError, match=r"the regular expression .* failed")
    with refusal if pattern in hostile.CATASTROPHES else nullcontext(), limited():
        assert Tokenizer.from_dict(tokenizer() | {"pre_tokenizer": hostile.split(pattern)}).encode("ab 12")


@few_and_many(20, 1000, 2)
def test_model_folders_are_imported_or_refused(tmp_path: Path, count: int, seed: int) -> None:
    asked, chance = Asked(), random.Random(seed)
    for number in range(count):
        folder = tmp_path / str(number)
        asked.call(lambda: import_model(str(folder), folder / "out.ckpt"), hostile_folder(chance, folder))  # noqa: B023
    asked.check()


@pytest.mark.parametrize("what", hostile.FOLDERS)
def test_folders_made_to_harm_are_refused(tmp_path: Path, what: str) -> None:
    hostile.write_folder(tmp_path / "model", dict([hostile.FOLDERS[what]]))
    with pytest.raises(ConfigError), limited():
        import_model(str(tmp_path / "model"), tmp_path / "out.ckpt")
