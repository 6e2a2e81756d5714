from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minitx.config.errors import ConfigError, did_you_mean
from minitx.config.parser import Parser, config_from_words
from minitx.config.registry import build, resolve
from minitx.config.schema import Config, ModelConfig, OptimizerConfig, RunConfig, TrainerConfig, config_from_dict

BASE = """
run: {name: base, seed: 3}
data: {name: reverse, symbols: 5, length: [1, 4]}
model: {d_model: 32, position: {name: learned, max_len: 9}}
optimizer: {lr: 0.5, schedule: {warmup_steps: 7}}
"""


def parse(*arguments: str) -> Config:
    return config_from_words(arguments)


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse(*arguments)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], str]:
    """file(text): a YAML file, its path."""
    written = 0

    def write(text: str) -> str:
        nonlocal written
        written += 1
        path = tmp_path / f"{written}.yaml"
        path.write_text(text)
        return str(path)

    return write


def configs(*paths: str) -> list[str]:
    return [argument for path in paths for argument in ("--config", path)]


# ---- files and overrides ---------------------------------------------------------------------------------------------


def test_config_is_a_key_of_the_command_line_only(file: Callable[[str], str]) -> None:
    inner = {"config": {"data": {"name": "reverse"}}}
    with pytest.raises(ConfigError, match="unknown key config"):
        config_from_dict(inner)
    assert refusal(*configs(file("config: {data: {name: reverse}}"))).startswith("unknown key config")


def test_configs_share_nothing_that_can_be_changed() -> None:
    one, other = config_from_dict({"data": {"length": [1, 2]}}), config_from_dict({"data": {"length": [1, 2]}})
    one.data["length"].append(3)
    one.model.position["name"] = "rope"
    assert other == config_from_dict({"data": {"length": [1, 2]}}) != one


def test_nothing_said_is_all_defaults() -> None:
    assert parse() == Config()


def test_a_file_sets_what_it_names_and_leaves_the_rest(file: Callable) -> None:
    config = parse("--config", file(BASE))
    assert config == Config(
        run=RunConfig(name="base", seed=3),
        data={"name": "reverse", "symbols": 5, "length": [1, 4]},
        model=ModelConfig(d_model=32, position={"name": "learned", "max_len": 9}),
        optimizer=OptimizerConfig(lr=0.5, schedule=dataclasses.replace(Config().optimizer.schedule, warmup_steps=7)),
    )


def test_types_are_those_of_the_dataclasses(file: Callable) -> None:
    config = parse("--config", file("optimizer: {lr: 1, betas: [0.8, 0]}\ntrainer: {devices: 2}\nmodel: {bias: no}"))
    assert isinstance(config.optimizer.lr, float)
    assert config.optimizer.betas == (0.8, 0.0)
    assert config.trainer.devices == 2
    assert config.model.bias is False


def test_a_later_file_wins_key_by_key(file: Callable) -> None:
    config = parse(*configs(file(BASE), file("run: {seed: 4}\noptimizer: {schedule: {warmup_steps: 8}}")))
    assert config.run == RunConfig(name="base", seed=4)
    assert config.optimizer.lr == 0.5
    assert config.optimizer.schedule.warmup_steps == 8
    assert parse(*configs(file("run: {seed: 4}"), file(BASE))).run.seed == 3


OPEN = [
    # (the data section of a later file, what is then in force)
    ("{symbols: 7}", {"name": "reverse", "symbols": 7, "length": [1, 4]}),
    ("{name: reverse, batch_size: 2}", {"name": "reverse", "symbols": 5, "length": [1, 4], "batch_size": 2}),
    ("{name: copy}", {"name": "copy"}),  # another class has other options
    ("{name: copy, symbols: 3}", {"name": "copy", "symbols": 3}),
]


@pytest.mark.parametrize(("section", "expected"), OPEN)
def test_a_later_file_adds_to_an_open_section_unless_it_names_another_class(
    file: Callable, section: str, expected: dict
) -> None:
    assert parse(*configs(file(BASE), file(f"data: {section}"))).data == expected


def test_the_same_holds_for_a_nested_open_section(file: Callable) -> None:
    base = file(BASE)
    wider = parse(*configs(base, file("model: {position: {max_len: 20}}"))).model
    assert wider.position == {"name": "learned", "max_len": 20}
    assert wider.d_model == 32
    other = parse(*configs(base, file("model: {position: {name: sinusoidal}}"))).model
    assert other.position == {"name": "sinusoidal"}


def test_files_that_say_nothing_of_an_open_section_leave_it(file: Callable) -> None:
    config = parse(*configs(file(BASE), file("model: {d_model: 16}")))
    assert config.data["symbols"] == 5
    assert config.model.position == {"name": "learned", "max_len": 9}
    assert config.model.d_model == 16


def test_going_back_to_the_first_class_does_not_bring_back_what_another_dropped(file: Callable) -> None:
    config = parse(*configs(file(BASE), file("data: {name: copy}"), file("data: {name: reverse}")))
    assert config.data == {"name": "reverse"}


def test_an_option_may_come_before_the_name(file: Callable) -> None:
    config = parse(*configs(file("data: {symbols: 7}"), file("data: {symbols: 8, length: [2, 3]}")))
    assert config.data == {"symbols": 8, "length": [2, 3]}


def test_the_command_line_overrides_one_key(file: Callable) -> None:
    config = parse("--config", file(BASE), "--model.d_model", "128", "--optimizer.schedule.name", "linear")
    assert (config.model.d_model, config.optimizer.schedule.name) == (128, "linear")
    assert config.optimizer.schedule.warmup_steps == 7


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--data.symbols", "9"], {"name": "reverse", "symbols": 9, "length": [1, 4]}),
        (["--data.symbols=9"], {"name": "reverse", "symbols": 9, "length": [1, 4]}),
        (["--data.length", "[2, 3]"], {"name": "reverse", "symbols": 5, "length": [2, 3]}),
        (["--data.batch_size", "4"], {"name": "reverse", "symbols": 5, "length": [1, 4], "batch_size": 4}),
        (
            ["--data.symbols", "9", "--data.batch_size", "4"],
            {"name": "reverse", "symbols": 9, "length": [1, 4], "batch_size": 4},
        ),
        (["--data", "{name: copy}"], {"name": "copy"}),
    ],
)
def test_the_command_line_overrides_an_open_section(file: Callable, arguments: list[str], expected: dict) -> None:
    assert parse("--config", file(BASE), *arguments).data == expected


def test_the_command_line_overrides_a_nested_open_section(file: Callable) -> None:
    config = parse("--config", file(BASE), "--model.position.max_len", "77")
    assert config.model.position == {"name": "learned", "max_len": 77}


def test_the_command_line_reaches_two_levels_into_an_open_section(file: Callable) -> None:
    text = file("data: {name: text, tokenizer: {name: char}}")
    assert parse("--config", text, "--data.tokenizer.name", "x").data["tokenizer"] == {"name": "x"}


def test_the_command_line_names_another_class_as_a_file_does(file: Callable) -> None:
    config = parse("--config", file(BASE), "--model.position.name", "sinusoidal", "--data.name", "copy")
    assert config.model.position == {"name": "sinusoidal"}
    assert config.data == {"name": "copy"}
    config = parse("--config", file(BASE), "--data.name", "copy", "--data.symbols", "9")
    assert config.data == {"name": "copy", "symbols": 9}


@pytest.mark.parametrize(
    "arguments", [["--data.name", "copy", "--data.symbols", "5"], ["--data", "{name: copy, symbols: 5}"]]
)
def test_what_the_command_line_says_of_another_class_holds_even_if_the_file_said_it(
    file: Callable, arguments: list[str]
) -> None:
    assert parse("--config", file(BASE), *arguments).data == {"name": "copy", "symbols": 5}


def test_what_comes_later_on_the_command_line_wins(file: Callable) -> None:
    assert parse("--run.seed", "9", "--config", file(BASE)).run.seed == 3
    assert parse("--config", file(BASE), "--run.seed", "9", "--run.seed", "10").run.seed == 10


def test_two_parsers_share_nothing(file: Callable) -> None:
    parse("--config", file(BASE), "--data.symbols", "9", "--model.position.max_len", "4")
    assert parse() == Config()
    assert Config().model.position == {"name": "sinusoidal"}


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("model.d_modle", "model.d_model"),
        ("model.n_head", "model.n_heads"),
        ("trainer.maxsteps", "trainer.max_steps"),
        ("optimizer.schedule.warmup_step", "optimizer.schedule.warmup_steps"),
        ("log.attention.example", "log.attention.examples"),
        ("modle.d_model", "model.d_model"),
        ("run.sed", "run.seed"),
    ],
)
@pytest.mark.parametrize("where", ["file", "dict"])
def test_an_unknown_key_is_refused_with_the_nearest(file: Callable, key: str, near: str, where: str) -> None:
    section: Any = 3
    for part in reversed(key.split(".")):
        section = {part: section}
    if where == "file":
        sentence = refusal("--config", file(json.dumps(section)))
    else:
        with pytest.raises(ConfigError, match="unknown key") as caught:
            config_from_dict(section)
        sentence = str(caught.value)
    assert sentence == f"unknown key {key}: did you mean {near}?"


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("model.d_modle", "model.d_model"),
        ("trainer.maxsteps", "trainer.max_steps"),
        ("modle.d_model", "model.d_model"),
        ("optimizer.schedule.warmupsteps", "optimizer.schedule.warmup_steps"),
    ],
)
@pytest.mark.parametrize("form", ["--{} 3", "--{}=3"])
def test_an_unknown_argument_is_refused_with_the_nearest(key: str, near: str, form: str) -> None:
    assert refusal(*form.format(key).split()) == f"unknown key {key}: did you mean {near}?"


@pytest.mark.parametrize("key", ["trainer.max", "optimizer.schedule.warmup", "run.see"])
def test_the_beginning_of_a_key_is_not_the_key(key: str) -> None:
    assert refusal(f"--{key}", "3").startswith(f"unknown key {key}")


def test_all_mistakes_are_told_together(file: Callable) -> None:
    path = file("model: {d_modle: 8, n_heads: 0}\noptimizer: {lr: fast}")
    with pytest.raises(ConfigError) as caught:
        parse("--config", path, "--trainer.max_steps", "0", "--run.seed", str(2**70))
    assert sorted(str(caught.value).splitlines()) == [
        "model.n_heads: expected an integer of at least 1, got 0",
        "optimizer.lr: expected a number above 0, got 'fast'",
        f"run.seed: expected below 2^63, got {2**70}",
        "trainer.max_steps: expected an integer of at least 1, got 0",
        "unknown key model.d_modle: did you mean model.d_model?",
    ]


@pytest.mark.parametrize("order", [("a", "b", "--size", "3"), ("a", "--size", "3", "b"), ("--size=3", "a", "b")])
def test_texts_stand_before_and_after_options(order: tuple[str, ...]) -> None:
    parser = Parser()
    parser.add_argument("first")
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--size", type=int)
    parsed = parser.parse_args(order)
    assert (parsed.first, parsed.rest, parsed.size) == ("a", ["b"], 3)


def test_where_nothing_is_near_the_known_keys_are_listed() -> None:
    sentence = refusal("--run.zzzzzz", "1")
    assert sentence.startswith("unknown key run.zzzzzz: known are: ")
    for field in dataclasses.fields(RunConfig):
        assert f"run.{field.name}" in sentence


def test_an_argument_without_dashes_is_refused() -> None:
    assert "stray" in refusal("stray")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("model.d_model", "wide", "an integer of at least 1"),
        ("model.d_model", "1.5", "an integer"),
        ("model.bias", "maybe", "true or false"),
        ("optimizer.lr", "fast", "a number above 0"),
        ("trainer.max_steps", "[1]", "an integer"),
        ("model.architecture", "gpt", "'encoder_decoder', 'decoder_only', 'encoder_only'"),
        ("optimizer.schedule.name", "cosinus", "'cosine'"),
        ("optimizer.betas", "[0.9]", "a list of 2 numbers"),
        ("model.position", "rope", "keys and values, e.g. {name: rope}"),
        ("data", "reverse", "keys and values, e.g. {name: reverse}"),
        ("model.vocab_size", "many", "an integer of at least 1 or null"),
        ("model.norm_eps", "tiny", "a number above 0 or null"),
        ("trainer.compile", "maybe", "true or false or 'auto'"),
    ],
)
@pytest.mark.parametrize("where", ["file", "command line", "dict"])
def test_a_wrong_type_is_refused_with_what_was_expected_and_what_came(
    file: Callable, key: str, value: str, expected: str, where: str
) -> None:
    section: Any = json.loads(value) if value[0] in "[0123456789" else value
    for part in reversed(key.split(".")):
        section = {part: section}
    if where == "command line":
        sentence = refusal(f"--{key}", value)
    elif where == "file":
        sentence = refusal("--config", file(json.dumps(section)))
    else:
        with pytest.raises(ConfigError, match="expected") as caught:
            config_from_dict(section)
        sentence = str(caught.value)
    assert sentence.startswith(f"{key}: expected ")
    assert expected in sentence
    assert value in sentence
    for noise in ("class", "typing", "Literal", "Parser", "Union"):
        assert noise not in sentence


@pytest.mark.parametrize(
    ("section", "key", "expected"),
    [
        ("trainer", "compile", "true or false or 'auto'"),
        ("trainer", "devices", "an integer or text"),
        ("trainer", "compile_mode", "one of 'default', 'reduce-overhead', 'max-autotune'"),
        ("optimizer", "betas", "a list of 2 numbers"),
        ("optimizer", "lr", "a number above 0"),
    ],
)
def test_null_where_there_must_be_a_value_is_refused(section: str, key: str, expected: str) -> None:
    sentence = f"{section}.{key}: expected {expected}, got null"
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        config_from_dict({section: {key: None}})


@pytest.mark.parametrize("text", ["trainer: fast", "model: 3", "run: [1]", "optimizer: null"])
def test_a_section_that_is_no_section_is_refused(file: Callable, text: str) -> None:
    assert refusal("--config", file(text)).startswith(text.partition(":")[0])


def test_a_missing_file_is_refused_by_name() -> None:
    assert refusal("--config", "/no/such/file.yaml") == "--config: there is no file /no/such/file.yaml"


@pytest.mark.parametrize("text", ["model: [", "a: b: c", "- 1\n- 2", "just words"])
def test_a_file_that_is_no_config_is_refused(file: Callable, text: str) -> None:
    assert "config" in refusal("--config", file(text))


@given(
    st.dictionaries(
        st.sampled_from(["run", "data", "model", "optimizer", "trainer", "log", "extra"]),
        st.dictionaries(st.text(max_size=4) | st.sampled_from(["name", "seed"]), st.integers() | st.text(max_size=3)),
    )
)
@settings(max_examples=60, deadline=None)
def test_any_mapping_of_mappings_is_a_config_or_a_sentence_for_each_mistake(plain: dict) -> None:
    try:
        config = config_from_dict(plain)
    except ConfigError as error:
        mistakes = str(error).split("\n")
    else:
        assert isinstance(config, Config)
        return
    assert all(" " in mistake for mistake in mistakes)


# ---- there and back --------------------------------------------------------------------------------------------------

FULL = Config(
    run=RunConfig(name="all", seed=0, folder="/elsewhere"),
    data={"name": "text", "path": "x.txt", "tokenizer": {"name": "char"}, "block": 16, "test_share": 0.1},
    model=ModelConfig(
        architecture="decoder_only", n_kv_heads=2, d_head=8, d_ff=100, window=5, vocab_size=99,
        position={"name": "learned", "max_len": 12}, norm_first=False, tie_embeddings=False, dropout=0.25,
    ),
    optimizer=OptimizerConfig(lr=1e-5, betas=(0.5, 0.75)),
    trainer=TrainerConfig(devices=2, strategy="ddp", precision="bf16-mixed"),
)  # fmt: skip


@pytest.mark.parametrize("config", [Config(), FULL])
def test_a_config_travels_as_json(config: Config) -> None:
    plain = config.to_dict()
    assert json.loads(json.dumps(plain)) == plain
    assert config_from_dict(json.loads(json.dumps(plain))) == config


def test_a_config_travels_as_yaml(file: Callable) -> None:
    import yaml

    assert parse("--config", file(yaml.safe_dump(FULL.to_dict()))) == FULL


def test_tuples_become_lists_at_every_level() -> None:
    config = Config(data={"name": "reverse", "length": (1, 3), "deeper": {"pair": (1, (2, 3))}})
    assert config.to_dict()["data"] == {"name": "reverse", "length": [1, 3], "deeper": {"pair": [1, [2, 3]]}}


def test_a_part_of_a_config_leaves_the_rest_at_its_defaults() -> None:
    config = config_from_dict({"model": {"d_model": 8}})
    assert config == Config(model=ModelConfig(d_model=8))


def test_reading_a_dict_does_not_change_it() -> None:
    plain = {"model": {"position": {"name": "learned", "max_len": 3}}, "data": {"name": "copy", "length": [1, 2]}}
    before = json.dumps(plain)
    config_from_dict(plain)
    assert json.dumps(plain) == before


# ---- open sections ---------------------------------------------------------------------------------------------------


class Plain:
    """Takes nothing."""


class Shape:
    """Something with options."""

    def __init__(self, d_model: int, sides: int = 3, lengths: tuple[int, int] = (1, 2), label: str | None = None):
        if sides < 3:
            raise ConfigError(f"thing.sides must be at least 3, got {sides}")
        self.d_model, self.sides, self.lengths, self.label = d_model, sides, lengths, label


REGISTRY: dict[str, type] = {"shape": Shape, "plain": Plain}


def test_resolving_fills_in_defaults_and_converts() -> None:
    resolved = resolve(REGISTRY, {"name": "shape", "lengths": [4, 5]}, "thing", ("d_model",))
    assert resolved == {"name": "shape", "sides": 3, "lengths": (4, 5), "label": None}
    assert resolve(REGISTRY, {"name": "plain"}, "thing") == {"name": "plain"}


def test_resolving_twice_changes_nothing_more() -> None:
    once = resolve(REGISTRY, {"name": "shape", "sides": 4}, "thing", ("d_model",))
    assert resolve(REGISTRY, once, "thing", ("d_model",)) == once


def test_resolving_leaves_the_section_as_it_was() -> None:
    section = {"name": "shape", "sides": 4}
    resolve(REGISTRY, section, "thing", ("d_model",))
    build(REGISTRY, section, "thing", d_model=8)
    assert section == {"name": "shape", "sides": 4}


def test_building_hands_over_options_and_context() -> None:
    thing = build(REGISTRY, {"name": "shape", "sides": 4, "label": "x"}, "thing", d_model=8)
    assert isinstance(thing, Shape)
    assert (thing.d_model, thing.sides, thing.lengths, thing.label) == (8, 4, (1, 2), "x")


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({}, "thing.name is missing: it is one of plain, shape"),
        ({"sides": 3}, "thing.name is missing: it is one of plain, shape"),
        ({"name": "shap"}, "thing.name: unknown name 'shap'; did you mean shape?"),
        ({"name": "zzz"}, "thing.name: unknown name 'zzz'; known are: plain, shape"),
        ({"name": 3}, "thing.name: unknown name 3; known are: plain, shape"),
        ({"name": "shape", "side": 4}, "unknown key thing.side: did you mean thing.sides? (for thing.name shape)"),
        ({"name": "shape", "sides": "many"}, "thing.sides: expected an integer, got 'many' (for thing.name shape)"),
        (
            {"name": "shape", "lengths": [1]},
            "thing.lengths: expected a list of 2 integers, got [1] (for thing.name shape)",
        ),
    ],
)
def test_an_open_section_is_checked_as_a_typed_one_is(section: dict, sentence: str) -> None:
    with pytest.raises(ConfigError, match="thing") as caught:
        resolve(REGISTRY, section, "thing", ("d_model",))
    assert str(caught.value) == sentence


def test_a_list_of_names_is_no_name() -> None:
    with pytest.raises(ConfigError, match=r"thing\.name"):
        resolve(REGISTRY, {"name": ["shape", "plain"]}, "thing")


def test_what_the_context_gives_is_no_option() -> None:
    with pytest.raises(ConfigError, match=r"unknown key thing\.d_model"):
        resolve(REGISTRY, {"name": "shape", "d_model": 3}, "thing", ("d_model",))


def test_a_class_without_options_takes_none() -> None:
    with pytest.raises(ConfigError, match=r"unknown key thing\.sides.*\(for thing\.name plain\)"):
        resolve(REGISTRY, {"name": "plain", "sides": 3}, "thing")


def test_what_a_constructor_refuses_is_told_in_its_own_words() -> None:
    with pytest.raises(ConfigError, match=r"^thing\.sides must be at least 3, got 2$"):
        build(REGISTRY, {"name": "shape", "sides": 2}, "thing", d_model=8)


def test_the_nearest_name_or_all_of_them() -> None:
    assert did_you_mean("revers", ["copy", "reverse"]) == "did you mean reverse?"
    assert did_you_mean("qqq", ["b", "a"]) == "known are: a, b"


def test_a_parser_raises_instead_of_leaving_the_process() -> None:
    parser = Parser()
    parser.add_argument("--size", type=int)
    with pytest.raises(ConfigError, match="--size: invalid int value: 'x'"):
        parser.parse_args(["--size", "x"])


def data_of(*words: str) -> dict:
    return config_from_words(words).data


@pytest.mark.parametrize("joined", [True, False])
def test_an_options_own_option_is_one_key_of_it(joined: bool, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("data: {name: text, block: 8, tokenizer: {name: bpe, size: 300, sample: 2}}\n")

    def said(**options: object) -> dict:
        pairs = [(f"--data.tokenizer.{key}", str(value)) for key, value in options.items()]
        words = ["=".join(pair) for pair in pairs] if joined else [word for pair in pairs for word in pair]
        return data_of("--config", str(file), *words, "--data.block", "9")

    assert said(size=500) == {"name": "text", "block": 9, "tokenizer": {"name": "bpe", "size": 500, "sample": 2}}
    assert said(size=500, name="bpe")["tokenizer"] == {"name": "bpe", "size": 500, "sample": 2}
    assert said(size=500, name="unigram")["tokenizer"] == {"name": "unigram", "size": 500}, (
        "another class, other options"
    )
    assert data_of("--data.name=text", "--data.tokenizer.name", "char")["tokenizer"] == {"name": "char"}


def test_an_options_own_option_without_a_value() -> None:
    with pytest.raises(ConfigError, match=r"^data\.tokenizer\.size: expected a value$"):
        data_of("--data.name", "text", "--data.tokenizer.size")
