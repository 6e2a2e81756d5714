"""`minitx list`: every registered name with its summary and options, and the bundled configs."""

import dataclasses

import pytest

from minitx.cli.listing import listing
from minitx.config import bundled
from minitx.data.tasks import TASKS
from minitx.data.text.corpora import CORPORA
from minitx.data.text.tokenizer_training import TOKENIZERS
from minitx.nn import POSITION_IDS, POSITIONS


def entry(name: str) -> str:
    (line,) = (line for line in listing().partition("\n--config")[0].splitlines() if line.split()[:1] == [name])
    return line


@pytest.mark.parametrize("registry", [TASKS, CORPORA, TOKENIZERS, POSITIONS])
def test_every_registered_name_is_listed_with_its_summary(registry: dict) -> None:
    for name, thing in registry.items():
        summary = thing.__doc__.strip().splitlines()[0]
        assert summary in entry(name)


def test_sections_are_listed_under_their_keys() -> None:
    heads = [line for line in listing().splitlines() if not line.startswith(" ")]
    assert [head.split()[0] for head in heads] == [
        "data.name",
        "data.path",
        "data.tokenizer.name",
        "model.position.name",
        "model.position_ids.name",
        "--config",
    ]
    lines = listing().splitlines()
    for head, registry in zip(
        heads, (TASKS, CORPORA, TOKENIZERS, POSITIONS, POSITION_IDS, bundled.configs()), strict=True
    ):
        start = lines.index(head) + 1
        assert [line.split()[0] for line in lines[start : start + len(registry)]] == list(registry)


@pytest.mark.parametrize("name", sorted(TASKS))
def test_options_are_listed_with_their_defaults(name: str) -> None:
    for field in dataclasses.fields(TASKS[name]):
        assert f"{field.name}={getattr(TASKS[name](), field.name)}" in entry(name)


def test_a_class_without_options_shows_none() -> None:
    assert "[" not in entry("none")
    assert "[max_len=" in entry("learned")


def test_arguments_from_the_model_are_no_options() -> None:
    for name in POSITIONS:
        for given in ("d_model=", "n_heads=", "d_head=", "causal="):
            assert given not in entry(name)
