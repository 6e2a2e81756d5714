"""Arbitrary configs: valid ones build and step, all others are refused with a sentence, and none runs code."""

import json
import os
import random
import types
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
import torch
from asking import FINE, REFUSED, Asked, few_and_many
from hypothesis import HealthCheck, given, settings
from hypothesis import seed as start_at
from hypothesis import strategies as st

from minitx.config.errors import ConfigError
from minitx.config.schema import Config, LogConfig, ModelConfig, OptimizerConfig, TrainerConfig, config_from_dict
from minitx.config.yaml_files import read
from minitx.data.tasks import TASKS, Text, Translation
from minitx.data.tasks.base import generator
from minitx.nn import POSITION_IDS, POSITIONS
from minitx.training.api import resolved
from minitx.training.losses import cross_entropy
from minitx.training.optim import build_optimizer

START = "run: {name: y}\nmodel: {d_model: 8, n_heads: 2, n_layers: 1}\n"
TINY = ["--data.name=reverse", "--data.batch_size=2", "--model.d_model=8", "--model.n_heads=2", "--model.n_layers=1"]
CALL = "{class_path: os.system, init_args: {command: touch canary}}"

# ---- files -----------------------------------------------------------------------------------------------------------


def laughing(section: str) -> str:
    """A billion laughs."""
    rows = [
        f"{name}: &{name} [{','.join([f'*{before}'] * 10)}]"
        for before, name in zip("abcdefgh", "bcdefghi", strict=True)
    ]
    return f"{section}:\n  name: reverse\n  a: &a [{','.join('x' * 10)}]\n  " + "\n  ".join(rows)


FILES: dict[str, tuple[str | bytes, str]] = {
    "a tag that calls": (f"{START}data: !!python/object/apply:os.system ['touch canary']", "must be YAML, got line 3"),
    "a tag in a value": (f"{START}data: {{name: reverse, symbols: !!python/name:os.system }}", "must be YAML, got line 3"),  # noqa: E501
    "a class in data": (f"{START}data: {CALL}", "data.name is missing"),
    "a class in an option": (f"{START}data: {{name: reverse, symbols: {CALL}}}", "data.symbols: expected an integer"),
    "a class in model": (f"data: {{name: reverse}}\nmodel: {CALL}", "unknown key model.class_path"),
    "a class in positions": (
        f"data: {{name: reverse}}\nmodel: {{position: {{name: rope, base: {CALL}}}}}",
        "model.position.base: expected a number, got {'class_path'",
    ),
    "a class in a tokenizer": (
        f"data: {{name: text, tokenizer: {CALL}}}\nmodel: {{architecture: decoder_only}}",
        "data.tokenizer",
    ),
    "a class in a list": (f"{START}data: {{name: reverse, length: [1, {CALL}]}}", "data.length: expected a list of 2"),
    "an import path": (f"{START}data: {{name: os.system}}", "data.name: unknown name 'os.system'"),
    "one of our own": (f"{START}data: {{name: minitx.data.tasks.Reverse}}", "data.name: unknown name"),
    "interpolation": (f"{START}data: {{name: reverse, symbols: '${{oc.env:HOME}}'}}", "data.symbols: expected an int"),
    "__class__": (f"{START}data: {{name: reverse, __class__: os.system}}", "unknown key data.__class__"),
    "another file": ("model: /etc/passwd\ndata: {name: reverse}", "model: expected keys and values"),
    "another config": ("config: other.yaml\ndata: {name: reverse}", "unknown key config"),
    "another file inside": ("log: {attention: other.yaml}\ndata: {name: reverse}", "log.attention: expected keys"),
    "nothing": ("", "expected keys and their values, got None"),
    "a list": ("[1, 2]", "expected keys and their values, got [1, 2]"),
    "a text": ("hello", "expected keys and their values, got 'hello'"),
    "a tab": ("a:\tb\n\t- c", "must be YAML, got line 1"),
    "two documents": ("a: 1\n---\nb: 2", "must be YAML, got line 2"),
    "bytes": (random.Random(1).randbytes(500), "must be YAML, got 'utf-8' codec"),
    "zero bytes": (bytes(500), "must be YAML, got"),
    "100 MB": (b"# " * (50 * 2**20), "of at most 1,048,576 bytes"),
    "a billion laughs": (laughing("data"), "more than 20,000 values"),
    "recursion": ("data: &a {name: reverse, x: *a}", "more than 20,000 values"),
    "a section merged into itself": ("data: &a {name: reverse, <<: *a}", "more than 20,000 values"),
    "merge keys that double": (
        "\n".join(["a: &a0 {x: 1}", *(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}" for n in range(1, 25))]),
        "must be YAML, got line 13: more than 20,000 values",
    ),
    "a wide merge": (
        f"a: &a {{{','.join(f'k{n}: 1' for n in range(2000))}}}\nb: {{<<: [{','.join(['*a'] * 1000)}]}}",
        "more than 20,000 values",
    ),
    "many anchors": (f"data: [{','.join(f'&a{n} x, *a{n}' for n in range(10**4))}]", "more than 20,000 values"),
    "many values": ("data: [" + "1," * 10**5 + "]", "more than 20,000 values"),
    "deep sections": ("\n".join(" " * level + "a:" for level in range(900)), "nested too deeply"),
    "deep dashes": ("data:\n" + "- " * 10**4 + "x", "nested too deeply"),
    "an alias as a key": (laughing("data") + "\n  ? *i\n  : 1", "more than 20,000 values"),
    "a tag that does not fit": ("data: !!bool x", "must be YAML, got"),
    "a sexagesimal integer": ("data: {name: reverse, symbols: 1" + ":01" * 10**5 + "}", "a number of more than 100"),
    "a sexagesimal number": ("data: {name: reverse, symbols: 1" + ":01" * 10**5 + ".5}", "a number of more than 100"),
    "binary": ("data: {name: reverse, symbols: 0b" + "1" * 10**5 + "}", "a number of more than 100 characters"),
    "a list in itself": ("data: {name: reverse, symbols: &a [*a]}", "more than 20,000 values"),
    "deep lists": (f"data: {'[' * 1000}{']' * 1000}", "nested too deeply"),
    "a key twice": (f"{START}data: {{name: reverse, name: copy}}", "must be YAML, got line 3: the key 'name' again"),
    "a key that is a number": (f"{START}data: {{1: 2}}", "must have names for keys, got 1 in data"),
    "a number without end": (f"data: {{name: reverse, symbols: {'9' * 5000}}}", "a number of more than 100 characters"),
    "a set": ("data: !!set {a, b}", "must hold texts, numbers, lists and sections"),
    "bytes in a value": ("data: {name: !!binary aGVsbG8=}", "must hold texts, numbers, lists and sections"),
    "a surrogate": ('data: {name: "\\ud800"}', "the config: expected"),
    "a width": ("data: {name: reverse}\nmodel: {d_model: 1000000}", "model.d_model 1000000, model.n_heads 4 would make"),  # noqa: E501
    "a depth": ("data: {name: reverse}\nmodel: {n_layers: 1000000000}", "model.n_layers 1000000000"),
    "a vocabulary": ("data: {name: reverse}\nmodel: {vocab_size: 1000000000000}", "model.vocab_size 1000000000000"),
    "an overflow": (f"data: {{name: reverse}}\nmodel: {{d_model: {10**30}}}", "model.d_model: expected at most 1,099"),
    "positions": (
        "data: {name: reverse}\nmodel: {position: {name: learned, max_len: 100000000000}}", "model.position.max_len 100"
    ),
    "ids": (
        "data: {name: reverse}\nmodel: {position_ids: {name: randomized, range: 100000000000}}",
        "model.position_ids.range must be at most",
    ),
    "symbols": ("data: {name: reverse, symbols: 1000000000}", "data.symbols: expected at most 1,048,576"),
    "lengths": ("data: {name: reverse, length: [1, 1000000000]}", "data.length must be [smallest, largest]"),
    "a batch": ("data: {name: reverse, batch_size: 1000000000000}", "data.batch_size: expected at most 1,048,576"),
    "a block": ("data: {name: text, block: 1000000000000}\nmodel: {architecture: decoder_only}", "data.block: exp"),
    "tokens": ("data: {name: reverse, length: [1, 1000000], batch_size: 1000000}", "would take"),
    "a long block": ("data: {name: text, block: 1000000}\nmodel: {architecture: decoder_only}", "data.batch_size 64"),
    "a modulus": ("data: {name: modular_addition, modulus: 10000000}", "data.modulus: expected"),
    "a tokenizer": (
        "data: {name: text, tokenizer: {name: bpe, size: 1000000000000}}\nmodel: {architecture: decoder_only}",
        "data.tokenizer.size: expected at most",
    ),
    "steps": (f"data: {{name: reverse}}\ntrainer: {{max_steps: {10**25}}}", "trainer.max_steps: expected at most 1,0"),
    "a seed": (f"data: {{name: reverse}}\nrun: {{seed: {10**25}}}", "run.seed: expected below 9,223,372,036"),
    "no learning rate": ("data: {name: reverse}\noptimizer: {lr: .nan}", "expected a number above 0, got nan"),
    "endless learning": ("data: {name: reverse}\noptimizer: {lr: .inf}", "expected a number above 0, got inf"),
    "a zero byte": ('data: {name: "a\\0b"}', "data.name: unknown name"),
}  # fmt: skip


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    content, sentence = FILES[what]
    monkeypatch.chdir(tmp_path)
    Path("case.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    asked = Asked()
    message = asked.line("describe", "--config", "case.yaml")
    asked.check(fine=False)
    assert sentence in message
    assert max(map(len, message.split("\n"))) < 1000
    assert not Path("canary").exists()


@pytest.mark.parametrize(
    "tag", ["int", "float", "bool", "null", "timestamp", "omap", "pairs", "set", "map", "seq", "merge"]
)
@pytest.mark.parametrize("value", ["x", "''", "[1]", "{a: b}", "1:2:99", "2001-99-99"])
def test_a_tag_on_any_value_is_read_or_refused(tmp_path: Path, tag: str, value: str) -> None:
    read_or_refuse(tmp_path / "case.yaml", f"data: !!{tag} {value}".encode())


@given(st.text("ab: -[]{}&*!|>'\"%@`#\n?,.0<~=", max_size=60).map(str.encode) | st.binary(max_size=60))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    read_or_refuse(tmp_path_factory.getbasetemp() / "any.yaml", content)


def read_or_refuse(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with suppress(ConfigError):
        assert isinstance(read(str(path)), dict)


def test_the_command_line_calls_nothing_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = Asked()
    for key in ("data.length", "model.position", "run.name", "log.attention", "trainer"):
        for option in (f"{key}={CALL}", f"{key}=!!python/object/apply:os.system ['touch canary']"):
            asked.line("describe", *TINY, f"--{option}")
    asked.line("describe", *TINY, "--data.length.class_path=os.system")
    assert not asked.others, asked.others[0]
    assert not Path("canary").exists()


# ---- values ----------------------------------------------------------------------------------------------------------

SMALL_TASKS = sorted(name for name, task in TASKS.items() if not issubclass(task, Text | Translation))
NUMBERS = st.one_of(st.integers(-2, 9), st.sampled_from([0, 1, 2, 4, 8, 16, 10**6, 2**63, 10**30]))
FRACTIONS = st.one_of(st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0, -1.0, 2.0, 1e-9, 1e30, float("nan"), float("inf")]))
STRANGE = st.sampled_from([None, "x", "", [], {}, [1], {"name": "x"}, True, -3, 1.5, "1e3", [1, 2, 3], "\x00", "é"])


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Values of a type in a signature, likely and unlikely ones."""
    origin = get_origin(kind)
    if origin is Literal:
        return st.sampled_from(get_args(kind))
    if origin in (Union, types.UnionType):
        return st.one_of(*map(of_type, get_args(kind)))
    if origin is tuple:
        inner = of_type(get_args(kind)[0])
        return (
            st.lists(inner, min_size=2, max_size=2) if Ellipsis not in get_args(kind) else st.lists(inner, max_size=3)
        )
    if kind is bool:
        return st.booleans()
    if kind is int:
        return NUMBERS
    if kind is float:
        return FRACTIONS
    return st.none() if kind is type(None) else STRANGE


def options(kind: type, given: tuple[str, ...] = ()) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the options of a class or a dataclass, now and then one of them of a strange kind."""
    hints = get_type_hints(kind if hasattr(kind, "__dataclass_fields__") else kind.__init__)
    chosen = {
        name: of_type(hint) if hint in (int, float, bool) or get_origin(hint) else STRANGE
        for name, hint in hints.items()
        if name not in (*given, "return") and "ClassVar" not in str(hint)
    }
    usual = st.fixed_dictionaries({}, optional=chosen)
    return st.one_of(usual, usual, st.fixed_dictionaries({}, optional=dict.fromkeys(chosen, STRANGE)))


GIVEN = ("d_model", "n_heads", "d_head", "causal", "self")


@st.composite
def registered(draw: Any, registry: dict[str, type], names: list[str], given: tuple[str, ...] = ()) -> dict[str, Any]:
    name = draw(st.sampled_from(names))
    few = draw(st.integers(0, 2))
    own = draw(options(registry[name], given))
    return {"name": name, **dict(list(own.items())[:few])}


@st.composite
def configs(draw: Any) -> dict[str, Any]:
    """A config near to one that works: a few keys of each section, and tiny sizes by default."""
    data = {"batch_size": 2, "validation_size": 3, "test_size": 3, **draw(registered(TASKS, SMALL_TASKS, ("self",)))}
    sizes = {"d_model": 8, "n_heads": 2, "n_layers": 1}
    model = dict(list(draw(options(ModelConfig, ("position", "position_ids"))).items())[: draw(st.integers(0, 3))])
    model |= {"position": draw(registered(POSITIONS, sorted(POSITIONS), GIVEN))}
    model |= {"position_ids": draw(registered(POSITION_IDS, sorted(POSITION_IDS), GIVEN))}
    model |= {"architecture": draw(st.sampled_from(["encoder_decoder", "decoder_only", "encoder_only"]))}
    others = {
        name: dict(list(draw(options(kind, inner)).items())[:2])
        for name, kind, inner in (
            ("optimizer", OptimizerConfig, ("schedule",)),
            ("trainer", TrainerConfig, ()),
            ("log", LogConfig, ("attention", "embeddings")),
        )
    }
    return {"data": data, "model": {**sizes, **model}, **others}


def step(values: dict[str, Any]) -> None:
    """Build it, and let it learn from one batch."""
    config, task, model, *_ = resolved(config_from_dict(values))
    examples = task.batch(generator(1), min(task.batch_size, 4))
    batch = examples.frame(config.model.architecture, task.vocabulary.special)
    optimizer = build_optimizer(model, config.optimizer)
    loss = cross_entropy(model(**batch.model_inputs()), batch.labels)
    loss.backward()
    optimizer.step()
    assert loss.dim() == 0
    json.dumps(config.to_dict())


def bounded(values: dict[str, Any]) -> bool:
    """Whether a run of it is small: one that is large but fits into memory is valid, and slow."""
    wide = [value for value in (*values["model"].values(), *values["data"].values()) if isinstance(value, int)]
    wide += [
        part for value in values["data"].values() if isinstance(value, list) for part in value if isinstance(part, int)
    ]
    wide += [
        value for key in ("position", "position_ids") for value in values["model"][key].values() if type(value) is int
    ]
    return not any(1000 < value < 2**60 for value in wide)


@few_and_many(30, 500, 8)
def test_every_config_steps_or_is_refused(count: int, seed: int) -> None:
    asked = Asked()

    @start_at(seed)
    @settings(max_examples=count, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(configs())
    def one(values: dict[str, Any]) -> None:
        if bounded(values):
            asked.call(lambda: step(values), repr(values))

    one()
    asked.check()
    assert asked.came[FINE] > count // 25
    assert asked.came[REFUSED] > count // 5


# ---- words of the command line ---------------------------------------------------------------------------------------

WORDS = [
    "", "x", "0", "1", "-1", "2", "8", "1e-3", "nan", "true", "null", "[]", "[1, 2]", "{}", "{name: x}", "reverse", "a=b",  # noqa: E501
    "auto", "cpu", "--", "-", "=", "'", "[", "{a", "\x00", "é", "\ud800", "99999999999999999999999", "../x", "runs", ":",  # noqa: E501
    "1:3", "3:1", "x.png", "x.html", "x.json", "/", "test", "*", "a,b", "run.seed=1,2", "%s", "{}" * 9, "a" * 5000,
]  # fmt: skip


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    from minitx.checkpoints import format as checkpoint
    from predictors import trained as contents_of

    contents = contents_of("decoder_only", n_layers=1)
    contents["minitx"]["config"]["data"] |= {"test_size": 5, "validation_size": 5}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", open(os.devnull))  # noqa: SIM115 (closed with the process)
    checkpoint.write(contents, "small.ckpt")
    return "small.ckpt"


@few_and_many(20, 1000, 3)
def test_any_words_get_an_answer(trained: str, count: int, seed: int) -> None:
    """Random words after commands that do not train, with existing keys."""
    from minitx.cli.main import COMMANDS

    chance, asked = random.Random(seed), Asked()
    known = {}
    for name, command in COMMANDS.items():
        options = [option for action in command.parser(name)._actions for option in action.option_strings]
        known[name] = [option.lstrip("-") for option in options if option not in ("--print_shtab", "--device")]
    starts = {
        "describe": [TINY, []],
        "generate": [[trained, "3 1", "--max_new_tokens=2"], [trained, "x"]],
        "evaluate": [[trained, "--split=test"]],
        "attend": [[trained, "3 1"]],
        "ablate": [[trained, "--examples=2"]],
        "train": [["--data.name=nothing"]],
        "sweep": [["--data.name=nothing"]],
        "list": [[]],
        "nonsense": [[]],
    }
    for number in range(count):
        name = chance.choice([*starts])
        words = [*chance.choice(starts[name])]
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            key, value = chance.choice(known.get(name) or ["x"]), chance.choice(WORDS)
            if chance.random() < 0.1:
                key = key[:-1] + chance.choice("xyz.")
            words += chance.choice(([f"--{key}={value}"], [f"--{key}", value], [f"--{key}"], [value]))
        asked.line(name, *words, what=f"{number} of seed {seed}: {name} {words!r}"[:300])
    asked.check()


def test_a_step_is_that_of_its_config() -> None:
    """Otherwise the tests above would prove nothing."""
    step({"data": {"name": "copy", "batch_size": 2}, "model": {"d_model": 8, "n_heads": 2, "n_layers": 1}})
    with pytest.raises(ValueError, match=r"model\.d_model: expected an integer of at least 1, got 0"):
        step({"data": {"name": "copy"}, "model": {"d_model": 0}})
    assert config_from_dict({}) == Config()
    assert torch.is_grad_enabled()
