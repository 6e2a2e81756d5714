"""Open sections: a registered name and the options of its class, checked as typed sections are."""

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from minitx.config.errors import ConfigError
from minitx.config.registry import build, check_fields, resolve


class Plain:
    """Takes nothing."""


@dataclass
class Shape:
    """Something with options."""

    d_model: int
    sides: int = 3
    lengths: tuple[int, int] = (1, 2)
    label: str | None = None
    share: float = 0.5

    def __post_init__(self) -> None:
        check_fields(self, "thing")
        if self.sides < 3:
            raise ConfigError(f"thing.sides must be at least 3, got {self.sides}")


REGISTRY: dict[str, type] = {"shape": Shape, "plain": Plain}


def test_resolving_fills_in_defaults_and_converts() -> None:
    section = {"name": "shape", "lengths": [4, 5]}
    before = copy.deepcopy(section)
    resolved = resolve(REGISTRY, section, "thing", ("d_model",))
    assert resolved == {"name": "shape", "sides": 3, "lengths": (4, 5), "label": None, "share": 0.5}
    assert resolve(REGISTRY, resolved, "thing", ("d_model",)) == resolved
    assert resolve(REGISTRY, {"name": "plain"}, "thing") == {"name": "plain"}
    assert {"name": "shape", **vars(build(REGISTRY, section, "thing", d_model=8))} == {**resolved, "d_model": 8}
    assert section == before
    numbers = {"name": "shape", "lengths": np.array([4, 5]), "sides": np.int64(3)}
    assert resolve(REGISTRY, numbers, "thing", ("d_model",)) == resolved
    untyped = {"untyped": type("Untyped", (), {"__init__": lambda self, option="any": None})}
    assert resolve(untyped, {"name": "untyped", "option": [3]}, "thing") == {"name": "untyped", "option": [3]}


@pytest.mark.parametrize(("section", "sentence"), [
    ({"sides": 3}, "thing.name is missing: it is one of plain, shape"),
    *(({"name": name}, f"thing.name: unknown name {name!r}; did you mean shape?") for name in ("shap", ["shape"])),
    *(({"name": name}, f"thing.name: unknown name {name!r}; known are: plain, shape") for name in ("zzz", 3)),
    *(({"name": "shape", **option}, f"{sentence} (for thing.name shape)") for option, sentence in (
        ({"side": 4}, "unknown key thing.side: did you mean thing.sides?"),
        ({"sides": "many"}, "thing.sides: expected an integer, got 'many'"),
        *(({"share": share}, f"thing.share: expected a number, got {share}") for share in (math.nan, math.inf)),
        ({"lengths": [1]}, "thing.lengths: expected a list of 2 integers, e.g. [1, 2], got [1]"),
        ({"d_model": 3}, "unknown key thing.d_model: known are: label, lengths, name, share, sides"),
    )),
    ({"name": "plain", "sides": 3}, "unknown key thing.sides: known are: name (for thing.name plain)"),
    ({"name": "shape", "sides": 2}, "thing.sides must be at least 3, got 2"),  # the constructor's own words
], ids=str)  # fmt: skip
def test_a_mistake_is_one_sentence(section: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(REGISTRY, section, "thing", d_model=8)
    assert str(caught.value) == sentence
