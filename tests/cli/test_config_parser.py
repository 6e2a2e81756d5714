"""From files and the command line to a Config: what wins, and one sentence for each mistake."""

import itertools
import json
import shlex
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from minitx.cli.config_parser import Parser
from minitx.cli.conversion import export_arguments
from minitx.config.errors import ConfigError
from minitx.config.schema import OPEN_SECTIONS, AttentionLogConfig, Config, EmbeddingLogConfig, config_from_dict
from minitx.config.training_sections import StopConfig
from minitx.config.yaml_files import nested
from minitx.training.start import flat
from short_configs import config_from_words as parse


def refusal(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*words)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


@pytest.fixture
def file(tmp_path: Path) -> Callable[[Any], list[str]]:
    """file(values): the words that name a YAML file."""

    def write(contents: Any) -> list[str]:
        path = tmp_path / f"{len([*tmp_path.iterdir()])}.yaml"
        path.write_text(json.dumps(contents))
        return ["--config", str(path)]

    return write


def as_words(values: dict[str, Any]) -> list[str]:
    """The same values on the command line, key by key."""
    return [word for key, value in flat(values).items() for word in (f"--{key}", json.dumps(value))]


def test_a_file_sets_its_keys_and_a_later_one_wins_key_by_key(file: Callable) -> None:
    def values(seed: int, warmup_steps: int) -> dict[str, Any]:
        optimizer = {"lr": 0.5, "schedule": {"warmup_steps": warmup_steps}}
        return {"run": {"name": "base", "seed": seed}, "model": {"d_model": 32}, "optimizer": optimizer}

    base, changed = config_from_dict(values(3, 7)), config_from_dict(values(4, 8))
    written, later = file(values(3, 7)), {"run": {"seed": 4}, "optimizer": {"schedule": {"warmup_steps": 8}}}
    assert parse(*written) == base
    assert parse(*written, *file(later)) == parse(*written, *as_words(later)) == changed
    assert parse(*file(later), *written) == parse(*as_words(later), *written) == base
    assert parse(*written, "--run.seed=9", "--run.seed=4", "--optimizer.schedule={warmup_steps: 8}") == changed
    assert parse() == Config()


@pytest.mark.parametrize("section", OPEN_SECTIONS)
@pytest.mark.parametrize(("later", "expected"), [
    ({"symbols": 7}, {"name": "a", "symbols": 7, "inner": {"name": "p", "size": 3, "sample": 2}}),
    ({"name": "a", "z": 1}, {"name": "a", "symbols": 5, "inner": {"name": "p", "size": 3, "sample": 2}, "z": 1}),
    ({"inner": {"size": 4, "name": "q"}}, {"name": "a", "symbols": 5, "inner": {"name": "q", "size": 4}}),
    ({"symbols": [2, 3]}, {"name": "a", "symbols": [2, 3], "inner": {"name": "p", "size": 3, "sample": 2}}),
    ("a", {"name": "a", "symbols": 5, "inner": {"name": "p", "size": 3, "sample": 2}}),
    ({"symbols": 5, "name": "b"}, {"name": "b", "symbols": 5}),  # another class has other options
], ids=str)  # fmt: skip
def test_options_stay_until_another_class_is_named(file: Callable, section: str, later: Any, expected: dict) -> None:
    base = file(nested(section, {"name": "a", "symbols": 5, "inner": {"name": "p", "size": 3, "sample": 2}}))
    words = as_words(nested(section, later))
    joined = ["=".join(pair) for pair in zip(words[::2], words[1::2], strict=True)]
    for more in (file(nested(section, later)), words, joined, [*file({"run": {"seed": 4}}), *words]):
        assert attrgetter(section)(parse(*base, *more)) == expected


def test_the_first_class_does_not_bring_back_its_options(file: Callable) -> None:
    layers = [file({"data": data}) for data in ({"name": "a", "x": 1}, {"name": "b"}, {"name": "a"})]
    assert parse(*itertools.chain(*layers)).data == {"name": "a"}
    assert parse(*layers[0], "--data", "{name: b, x: 2}").data == {"name": "b", "x": 2}
    assert parse("--data.x", "3", *layers[1]).data == {"x": 3, "name": "b"}, "options before the first name stay"


def test_options_that_another_name_drops_are_listed(file: Callable) -> None:
    base = file({"data": {"name": "a", "x": 1, "y": 2, "tokenizer": {"name": "bpe", "size": 9}}})
    for words, expected in (
        (["--data.x", "3"], []),
        (["--data.name", "a"], []),
        (["--data.name", "b", "--data.y", "2"], ["data.name b replaces a; not taken over from the file: x, tokenizer"]),
        (["--data.tokenizer", "char"], ["data.tokenizer.name char replaces bpe; not taken over from the file: size"]),
    ):
        assert Parser(configured=True).parse_args([*base, *words]).dropped == expected


@pytest.mark.parametrize(("words", "expected"), [
    ("--model.position.base 5 --model.position.name=rope", {"name": "rope", "base": 5}),
    ("--model.position '{base: 5}' --model.position.base 7", {"name": "a", "x": 1, "base": 7}),
    ("--model.position.base 5 --model '{position: {base: 7}}'", {"name": "a", "x": 1, "base": 7}),
    ("--model.position b --model.position.name c --model.position.base 5", {"name": "c", "base": 5}),
    ("--model.position b --model.position.base 5 --model.position.name c", {"name": "c", "base": 5}),
    ("--model.position.name c --model.position b", {"name": "b"}),
])  # fmt: skip
def test_the_last_value_on_the_command_line_wins(file: Callable, words: str, expected: dict) -> None:
    """A section, its keys and its name alone are one layer, whatever their order."""
    assert parse(*file({"model": {"position": {"name": "a", "x": 1}}}), *shlex.split(words)).model.position == expected


@pytest.mark.parametrize(("key", "before", "off"), [
    ("trainer.ema", 0.9, 0.0), ("trainer.gradient_clip_val", 2.0, 0.0), ("trainer.profile", 3, 0),
    ("trainer.stop_when", {"metric": "loss"}, StopConfig()),
    ("model.window", 5, None), ("model.window_position", {"name": "rope"}, None), ("model.d_ff", 0, None),
    ("log.attention", {"examples": 5}, AttentionLogConfig(every_n_validations=0)),
    ("log.embeddings", {"examples": 5}, EmbeddingLogConfig()), ("log.to", ["csv"], ()), ("imports", ["a.py"], ()),
    ("run.init_from", "a.ckpt", None),
])  # fmt: skip
def test_null_switches_a_key_off(file: Callable, key: str, before: Any, off: Any) -> None:
    for words in (file(nested(key, None)), [f"--{key}", "null"]):
        assert attrgetter(key)(parse(*file(nested(key, before)), *words)) == off


@pytest.mark.parametrize(("key", "near"), [
    ("optimizer.schedule.warmup_step", "did you mean optimizer.schedule.warmup_steps?"),
    ("modle.d_model", "did you mean model.d_model?"), ("model.positions_ids", "did you mean model.position_ids?"),
    ("optimiser.name", "did you mean optimizer.name?"),
    ("run.see", "did you mean run.seed?"),  # the beginning of a key is not the key
    ("run.zzzzzz", "known are: folder, init_from, name, seed"),
    ("trainer.lr", "did you mean optimizer.lr?"),
])  # fmt: skip
def test_an_unknown_key_is_refused_with_the_nearest(file: Callable, key: str, near: str) -> None:
    sentence = f"unknown key {key}: {near}"
    assert refusal(*file(nested(key, 3))) == refusal(f"--{key}", "3") == refusal(f"--{key}=3") == sentence


@pytest.mark.parametrize(("key", "value", "expected"), [
    ("model.d_model", 2**41, "an integer of at least 1 and at most 1,099,511,627,776"),
    ("model.bias", "maybe", "true or false"),
    ("model.architecture", "gpt", "one of 'encoder_decoder', 'decoder_only', 'encoder_only'"),
    ("optimizer.betas", [0.9, 1.0], "a list of 2 numbers of at least 0 and below 1, e.g. [0.9, 0.98]"),
    ("optimizer.betas", [0.9], "a list of 2 numbers of at least 0 and below 1, e.g. [0.9, 0.98]"),
    ("model.position", 3, "keys and values, e.g. {name: rope}"),
    ("imports", "a.py", "a list of texts or keys and values, e.g. [mytask.py]"),
    ("trainer.compile", "maybe", "true or false or 'auto'"),
    ("trainer.devices", None, "an integer or text"),
    ("run.name", 3, "text"),
    ("optimizer.schedule", None, "keys and values"),
], ids=str)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused(file: Callable, key: str, value: Any, expected: str) -> None:
    sentence = f"{key}: expected {expected}, got {'null' if value is None else repr(value)}"
    assert refusal(*file(nested(key, value))) == sentence
    if "." in key and key != "run.name":  # a text, whatever its letters
        assert refusal(f"--{key}", json.dumps(value)) == sentence


@pytest.mark.parametrize(("words", "sentence"), [
    (["stray"], "unexpected argument 'stray'; to set a key, write --stray VALUE"),
    (["a/b.yaml"], "unexpected argument 'a/b.yaml'; to read it, write --config a/b.yaml"),
    (["reverse"], "unexpected argument 'reverse'; to read it, write --config reverse"),
    (["run.seed=3"], "unexpected argument 'run.seed'; to set a key, write --run.seed VALUE"),
    (["--confg", "x"], "unknown option --confg: did you mean --config?"),
    (["--max_steps", "3"], "unknown option --max_steps: did you mean --trainer.max_steps?"),
    (["--config", "reverse", "--batch_size", "3"], "unknown option --batch_size: did you mean --data.batch_size?"),
    (["--zzz"], "unknown option --zzz: known are: --config, --data, --help, --imports"),
    (["--data.name", "--run.seed", "3"], "--data.name: expected a value"),
])  # fmt: skip
def test_other_words_are_refused(words: list[str], sentence: str) -> None:
    assert refusal(*words) == sentence


def test_the_home_folder_is_not_left_to_the_shell() -> None:
    export_arguments(parser := Parser())
    assert parser.parse_args(["x.ckpt", "~/a"]).folder == Path.home() / "a"
