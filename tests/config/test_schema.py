"""The schema of a config: every key has a meaning, its default is a value it takes, and its range is kept."""

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from minitx.cli.config_parser import Parser
from minitx.config.errors import ConfigError
from minitx.config.schema import Config, ModelConfig, OptimizerConfig, config_from_dict
from minitx.config.validation import keys
from minitx.config.yaml_files import nested, parse

KEYS = {key: field for key, field in keys(Config) if not dataclasses.is_dataclass(field.annotation)}
BEYOND = {"minimum": -1, "exclusiveMinimum": 0, "maximum": 1, "exclusiveMaximum": 0}
"""From a limit of a JSON schema to a value just outside."""


def schemas() -> Iterator[tuple[str, Any]]:
    """Every key with each of its JSON schemas, which are pydantic's and not read from its errors."""
    whole = TypeAdapter(Config).json_schema()
    for key in KEYS:
        part = whole
        for name in key.split("."):
            part = part["properties"][name]
            part = whole["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        yield from ((key, each) for each in part.get("anyOf", [part]))


def test_a_number_out_of_range_is_refused_with_its_key() -> None:
    ranges = [(key, part[limit] + step) for key, part in schemas() for limit, step in BEYOND.items() if limit in part]
    assert len(ranges) > 40
    for key, value in ranges:
        with pytest.raises(ConfigError, match=rf"^{key}: expected (an integer|a number|a list).*, got "):
            config_from_dict(nested(key, value))


def test_help_lists_every_key_with_its_meaning() -> None:
    parser = Parser(configured=True)
    assert all(f"--{key} " in parser.format_help() for key in ["config", "model.d_model"])
    options = {text: action for action in parser._actions for text in action.option_strings}
    assert options["--model.architecture"].choices == ("encoder_decoder", "decoder_only", "encoder_only")
    for key, field in KEYS.items():
        assert re.fullmatch(r"[A-Za-z].{9,} \(.+; default: .+\)", str(options[f"--{key}"].help)), key
        assert options[f"--{key}"].choices is None or field.default in options[f"--{key}"].choices


@pytest.mark.parametrize(("model", "key"), [
    ({"n_heads": 3, "n_kv_heads": 2}, "model.d_model must be divisible by .*\nmodel.n_heads must be divisible by"),
    ({"architecture": "decoder_only", "n_decoder_layers": 2}, "model.n_decoder_layers is for encoder_decoder"),
    *(({"window": each}, "model.window: expected an integer of at least 1 or a list") for each in ([], [3, 0])),
    ({"parallel_residual": True, "norm_first": False}, "model.sandwich_norm and model.parallel_residual need"),
    ({"shared_norm": True}, "model.shared_norm needs model.parallel_residual true"),
    ({"sandwich_norm": True, "norm_first": False}, "model.sandwich_norm and model.parallel_residual need"),
])  # fmt: skip
def test_numbers_that_do_not_fit_together_are_refused(model: dict[str, Any], key: str) -> None:
    for build in (lambda: ModelConfig(**model), lambda: config_from_dict({"model": model})):
        with pytest.raises(ConfigError, match=f"^{key}"):
            build()


def test_a_config_travels_as_json_and_yaml() -> None:
    data = {"tokenizer": {"name": "char"}, "pair": (1, (2, 3)), "share": float("inf"), "language": "no"}
    plain = Config(data=data, model=ModelConfig(window=(5, None)), optimizer=OptimizerConfig(lr=1e-5)).to_dict()
    assert plain["data"]["pair"] == [1, [2, 3]]
    for write, read in ((json.dumps, json.loads), (yaml.safe_dump, yaml.safe_load), (yaml.safe_dump, parse)):
        assert read(write(plain)) == plain == config_from_dict(read(write(plain))).to_dict()


def test_configs_share_nothing_that_can_be_changed() -> None:
    plain = {"data": {"length": [1, 2]}}
    one, other = config_from_dict(plain), config_from_dict(plain)
    one.data["length"].append(3)
    one.model.position["name"] = "rope"
    assert plain == {"data": {"length": [1, 2]}}
    assert other == config_from_dict(plain) != one
    assert Config().model.position == {"name": "sinusoidal"}
