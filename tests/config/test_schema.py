"""The schema of a config: every key has a meaning, its default is a value it takes, and its range is kept."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from annotated_types import Ge, Gt, Le, Lt
from pydantic.fields import FieldInfo

from minitx.config.errors import ConfigError
from minitx.config.parser import explanations, nested
from minitx.config.schema import Config, ModelConfig, config_from_dict, keys

KEYS = dict(keys())


def bounds(field: FieldInfo) -> list[Any]:
    """The constraints of a field, also those of the members of a union."""
    found = list(field.metadata)
    for member in get_args(field.annotation):
        for constraint in getattr(member, "__metadata__", ()):
            found += constraint.metadata if isinstance(constraint, FieldInfo) else [constraint]
    return found


def beyond(constraint: Any) -> float | None:
    """A value just outside a constraint."""
    values = {Ge: ("ge", -1), Gt: ("gt", 0), Lt: ("lt", 0), Le: ("le", 1)}
    for kind, (name, step) in values.items():
        if isinstance(constraint, kind):
            return getattr(constraint, name) + step  # type: ignore[no-any-return]
    return None


RANGES = [
    (key, value)
    for key, field in KEYS.items()
    for value in map(beyond, bounds(field))
    if value is not None
]  # fmt: skip


def test_ranges_are_declared() -> None:
    assert len(RANGES) > 40


@pytest.mark.parametrize(("key", "value"), RANGES)
def test_a_number_out_of_range_is_refused_with_its_key(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=rf"^{key}: expected .*, got "):
        config_from_dict(nested(key, value))


def test_every_key_is_explained() -> None:
    assert {key: bool(text) for key, text in explanations(Config).items()} == dict.fromkeys(KEYS, True)


def test_a_default_config_is_valid_and_travels_as_json() -> None:
    assert config_from_dict(Config().to_dict()) == Config()


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ({"n_heads": 3}, "model.d_model must be divisible by model.n_heads"),
        ({"n_heads": 4, "n_kv_heads": 3}, "model.n_heads must be divisible by model.n_kv_heads"),
        ({"architecture": "decoder_only", "n_decoder_layers": 2}, "model.n_decoder_layers is for encoder_decoder"),
        ({"prefix_lm": True}, "model.prefix_lm is for decoder_only"),
        ({"window": 4}, "model.window must be odd"),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(model: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=f"^{key}"):
        ModelConfig(**model)
