"""model.position_ids in a config: an open section like model.position."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from minitx.cli.listing import listing
from minitx.config.parser import config_from_words
from minitx.config.registry import resolve
from minitx.config.schema import Config, ModelConfig, config_from_dict
from minitx.nn import POSITION_IDS

CONTEXT = ("causal",)


def parse(*arguments: str) -> ModelConfig:
    return config_from_words(list(arguments)).model


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    """file(text): a YAML file, its path."""
    paths = iter(range(9))

    def write(text: str) -> str:
        path = tmp_path / f"{next(paths)}.yaml"
        path.write_text(text)
        return str(path)

    return write


BASE = "model: {d_model: 32, position_ids: {name: randomized, range: 99, longest: 9}}"


@pytest.mark.parametrize(
    ("later", "expected"),
    [
        ("{longest: 7}", {"name": "randomized", "range": 99, "longest": 7}),
        ("{name: randomized, longest: 7}", {"name": "randomized", "range": 99, "longest": 7}),
        ("{name: offset}", {"name": "offset"}),
        ("{name: offset, largest: 3}", {"name": "offset", "largest": 3}),
    ],
)
def test_a_later_file_adds_unless_it_names_another_class(file: Callable, later: str, expected: dict) -> None:
    model = parse("--config", file(BASE), "--config", file(f"model: {{position_ids: {later}}}"))
    assert model.position_ids == expected
    assert model.d_model == 32
    assert model.position == {"name": "sinusoidal"}


def test_a_file_that_says_nothing_of_it_leaves_it(file: Callable) -> None:
    other = file("model: {position: {name: learned, max_len: 9}}")
    for order in ((file(BASE), other), (other, file(BASE))):
        model = parse(*[word for path in order for word in ("--config", path)])
        assert model.position_ids == {"name": "randomized", "range": 99, "longest": 9}
        assert model.position == {"name": "learned", "max_len": 9}


def test_the_command_line_goes_on_top(file: Callable) -> None:
    path = file(BASE)
    expected = {"name": "randomized", "range": 99, "longest": 5}
    assert parse("--config", path, "--model.position_ids.longest", "5").position_ids == expected
    assert parse("--config", path, "--model.position_ids.name", "coupled").position_ids == {"name": "coupled"}
    assert parse("--model.position_ids.name", "offset").position_ids == {"name": "offset"}


def test_nothing_said_is_consecutive() -> None:
    assert ModelConfig().position_ids == {"name": "consecutive"} == parse().position_ids


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"name": "ofset"}, "model.position_ids.name: unknown name 'ofset'; did you mean offset?"),
        ({"name": "random"}, "model.position_ids.name: unknown name 'random'; did you mean randomized?"),
        (
            {"name": "offset", "largst": 3},
            "unknown key model.position_ids.largst: did you mean model.position_ids.largest? "
            "(for model.position_ids.name offset)",
        ),
        (
            {"name": "randomized", "range": "wide"},
            "model.position_ids.range: expected an integer, got 'wide' (for model.position_ids.name randomized)",
        ),
        ({"range": 9}, "model.position_ids.name is missing: it is one of consecutive, coupled, offset, randomized"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_one_sentence(section: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=r"model\.position_ids") as refusal:
        resolve(POSITION_IDS, section, "model.position_ids", CONTEXT)
    assert str(refusal.value) == sentence


@pytest.mark.parametrize("after", ["sep", [1, "x"], 3.5], ids=str)
def test_boundaries_are_ids(after) -> None:
    with pytest.raises(ValueError, match=r"^model\.position_ids\.after: ") as refusal:
        resolve(POSITION_IDS, {"name": "coupled", "after": after}, "model.position_ids", CONTEXT)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", POSITION_IDS)
def test_defaults_are_filled_in_and_survive_json(name: str) -> None:
    section = resolve(POSITION_IDS, {"name": name}, "model.position_ids", CONTEXT)
    assert section["name"] == name
    assert "causal" not in section
    config = Config(model=ModelConfig(position_ids=section))
    again = config_from_dict(json.loads(json.dumps(config.to_dict()))).model.position_ids
    assert resolve(POSITION_IDS, again, "model.position_ids", CONTEXT) == section


@pytest.mark.parametrize("key", ["position_id", "positions_ids"])
def test_the_section_itself_is_suggested(key: str) -> None:
    with pytest.raises(ValueError, match=rf"^unknown key model\.{key}(\.name)?: did you mean model\.position_ids\?"):
        config_from_dict({"model": {key: {"name": "offset"}}})


def test_every_policy_is_listed() -> None:
    section = listing().split("model.position_ids.name\n")[1]
    for name in POSITION_IDS:
        assert f"  {name}" in section
    assert "largest=100" in section
