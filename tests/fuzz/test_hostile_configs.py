"""Arbitrary configs: valid ones build and step, all others are refused with a sentence, and none runs code."""

import itertools
import json
import os
import random
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from asking import FINE, REFUSED, Asked, few_and_many
from hostile import alter, places
from hypothesis import given
from hypothesis import strategies as st

from minitx.checkpoints import format as checkpoint
from minitx.cli.main import COMMANDS
from minitx.config import yaml_files
from minitx.config.errors import ConfigError
from minitx.config.registry import resolve
from minitx.config.schema import Config, ModelConfig, config_from_dict
from minitx.data.tasks import TASKS, Text, Translation
from minitx.data.tasks.base import generator
from minitx.nn import POSITION_IDS, POSITIONS
from minitx.nn.positions import GIVEN
from minitx.training.api import resolved
from minitx.training.losses import cross_entropy
from minitx.training.optim import build_optimizer
from predictors import trained

START = "run: {name: y}\nmodel: {d_model: 8, n_heads: 2, n_layers: 1}\n"
TINY = ["--data.name=reverse", "--data.batch_size=2", "--model.d_model=8", "--model.n_heads=2", "--model.n_layers=1"]
CALL = "{class_path: os.system, init_args: {command: touch canary}}"
SMALL_TASKS = sorted(name for name, task in TASKS.items() if not issubclass(task, Text | Translation))


def laughing(section: str) -> str:
    rows = [f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]" for before, name in itertools.pairwise("abcdefghi")]
    return f"{section}:\n  name: reverse\n  a: &a [{','.join('x' * 10)}]\n  " + "\n  ".join(rows)


FILES: dict[str, tuple[str | bytes, str]] = {
    "a tag that calls": (f"{START}data: !!python/object/apply:os.system ['touch canary']", "must be YAML, got line 3"),
    "a class in an option": (f"{START}data: {{name: reverse, symbols: {CALL}}}", "data.symbols: expected an integer"),
    "an import path": (f"{START}data: {{name: os.system}}", "data.name: unknown name 'os.system'"),
    "another file inside": ("log: {attention: other.yaml}\ndata: {name: reverse}", "log.attention: expected keys"),
    "bytes": (random.Random(1).randbytes(500), "must be YAML, got unacceptable character"),
    "a billion laughs": (laughing("data"), "more than 2,000 values"),
    "merge keys that double": (
        "\n".join(["a: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 25))]),
        "must be YAML, got line 10: more than 2,000 values",
    ),
    "many values": ("data: [" + "1," * 10**4 + "]", "more than 2,000 values"),
    "deep sections": ("\n".join(" " * level + "a:" for level in range(900)), "nested too deeply"),
    "an alias as a key": (laughing("data") + "\n  ? *i\n  : 1", "more than 2,000 values"),
    "a sexagesimal integer": ("data: {name: reverse, symbols: 1" + ":01" * 10**5 + "}", "a number of more than 100"),
    "a key twice in two documents": ("data: x\n---\ndata: x", "a single document in the stream but found another"),
    "a long key": (f"? {'a' * 10**5}\n: 1", f"unknown key {'a' * 100}: known are: data"),
    "a set": ("data: !!set {a, b}", "must hold texts, numbers, lists and sections"),
    "a width": ("data: {name: reverse}\nmodel: {d_model: 1000000}", "model.d_model 1000000, model.n_heads 4 would"),
    "a depth": ("data: {name: reverse}\nmodel: {n_layers: 1000000000}", "model.n_layers 1000000000"),
    "a long table": ("data: {name: reverse}\nmodel: {position: {name: learned, max_len: 1000000000}}",
                     "training with model.position.name learned, model.position.max_len 1000000000"),
    "a long block": ("data: {name: text, block: 1000000}\nmodel: {architecture: decoder_only}", "data.batch_size 64"),
}  # fmt: skip


def test_a_file_that_is_no_config_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(yaml_files, "MAX_VALUES", 2_000)
    asked = Asked()
    for what, (content, sentence) in FILES.items():
        Path("case.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
        message = asked.line("describe", "--config", "case.yaml", what=what)
        assert sentence in message, what
        assert max(map(len, message.split("\n"))) < 1000, what
        assert not Path("canary").exists(), what
    for value in (CALL, "!!python/object/apply:os.system ['touch canary']"):
        asked.line("describe", *TINY, f"--data.length={value}")
        assert not Path("canary").exists(), value
    asked.check(fine=False)


def test_a_tag_on_any_value_is_read_or_refused(tmp_path: Path) -> None:
    tags = ("int", "float", "bool", "null", "timestamp", "omap", "pairs", "set", "map", "seq", "merge")
    for tag, value in itertools.product(tags, ("x", "''", "[1]", "{a: b}", "1:2:99", "2001-99-99")):
        read_or_refuse(tmp_path / "case.yaml", f"data: !!{tag} {value}".encode())


@given(st.text("ab: -[]{}&*!|>'\"%@`#\n?,.0<~=", max_size=60).map(str.encode) | st.binary(max_size=60))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    read_or_refuse(tmp_path_factory.getbasetemp() / "any.yaml", content)


def read_or_refuse(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with suppress(ConfigError):
        assert isinstance(yaml_files.read(str(path)), dict)


def config_of(chance: random.Random) -> dict[str, Any]:
    """A tiny config of some task, scheme, numbering and architecture, with a value for every key."""
    name, position, numbering = (chance.choice([*names]) for names in (SMALL_TASKS, POSITIONS, POSITION_IDS))
    own: dict[str, Any] = {
        "architecture": chance.choice(["encoder_decoder", "decoder_only", "encoder_only"]),
        "position": resolve(POSITIONS, {"name": position}, "model.position", GIVEN),
        "position_ids": resolve(POSITION_IDS, {"name": numbering}, "model.position_ids", GIVEN),
    }
    sizes = {"batch_size": 2, "validation_size": 3, "test_size": 3}
    model = ModelConfig(d_model=8, n_heads=2, n_layers=1, **own)
    return json.loads(json.dumps(Config(data=resolve(TASKS, {"name": name, **sizes}, "data"), model=model).to_dict()))


def step(values: dict[str, Any]) -> None:
    config, task, model, *_ = resolved(config_from_dict(values))
    batch = task.batch(generator(1), min(task.batch_size, 4)).frame(config.model.architecture, task.vocabulary.special)
    optimizer = build_optimizer(model, config.optimizer)
    loss = cross_entropy(model(**batch.model_inputs()), batch.labels)
    loss.backward()
    optimizer.step()
    assert loss.dim() == 0
    json.dumps(config.to_dict())


@few_and_many(25, 1000, 8)
def test_every_config_steps_or_is_refused(count: int, seed: int) -> None:
    asked, chance = Asked(), random.Random(seed)
    for _ in range(count):
        values = config_of(chance)
        usual = {*numbers(values)}
        section = chance.choice([values, values["data"], values["model"], values["model"], values["optimizer"]])
        what = " and ".join(alter(chance, section) for _ in range(chance.choice((1, 1, 2))))
        if not any(1000 < part < 2**60 for part in {*numbers(values)} - usual):  # large, valid and slow
            asked.call(lambda: step(values), what)  # noqa: B023
    asked.check()
    assert asked.came[FINE] > count // 20
    assert asked.came[REFUSED] > count // 5


def numbers(tree: Any) -> list[int]:
    values = (reduce(lambda part, key: part[key], place, tree) for place in places(tree))
    return [value for value in values if type(value) is int]


WORDS = [
    "", "x", "0", "1", "-1", "2", "8", "1e-3", "nan", "true", "null", "[]", "[1, 2]", "{}", "{name: x}", "reverse", "a=b",  # noqa: E501
    "auto", "cpu", "--", "-", "=", "'", "[", "{a", "\x00", "é", "\ud800", "99999999999999999999999", "../x", "runs", ":",  # noqa: E501
    "1:3", "3:1", "x.png", "x.html", "x.json", "/", "test", "*", "a,b", "run.seed=1,2", "%s", "{}" * 9, "a" * 5000,
]  # fmt: skip


@few_and_many(20, 1000, 3)
def test_any_words_get_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, seed: int) -> None:
    """Random words after commands that do not train, with existing keys."""
    contents, path = trained("decoder_only", n_layers=1), "small.ckpt"
    contents["minitx"]["config"]["data"] |= {"test_size": 5, "validation_size": 5}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115 (closed with the process)
    checkpoint.write(contents, path)
    chance, asked = random.Random(seed), Asked()
    known = {}
    for name, command in COMMANDS.items():
        options = [option for action in command.parser(name)._actions for option in action.option_strings]
        known[name] = [option.lstrip("-") for option in options if option not in ("--print_shtab", "--device")]
    starts = [
        ["describe", *TINY], ["describe"], ["generate", path, "3 1", "--max_new_tokens=2"], ["list"], ["nonsense"],
        ["evaluate", path, "--split=test"], ["attend", path, "3 1"], ["ablate", path, "--examples=2"],
        ["train", "--data.name=nothing"], ["sweep", "--data.name=nothing"], ["generate", path, "x"],
    ]  # fmt: skip
    for number in range(count):
        name, *words = chance.choice(starts)
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            key, value = chance.choice(known.get(name) or ["x"]), chance.choice(WORDS)
            if chance.random() < 0.1:
                key = key[:-1] + chance.choice("xyz.")
            words += chance.choice(([f"--{key}={value}"], [f"--{key}", value], [f"--{key}"], [value]))
        asked.line(name, *words, what=f"{number} of seed {seed}: {name} {words!r}"[:300])
    asked.check()
