"""Configs by name: found in a checkout and in an installed package, and read as the file is."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from minitx.config import yaml_files

ROOT = Path(__file__).parents[2]


def test_every_config_has_its_name_before_which_a_file_of_that_name_comes(tmp_path: Path, monkeypatch: Any) -> None:
    assert set(yaml_files.bundled().values()) == set((ROOT / "configs").rglob("*.yaml"))
    for name, path in yaml_files.bundled().items():
        assert path == ROOT / f"configs/{name}.yaml"
        assert yaml_files.read(name) == yaml_files.read(str(path))
    monkeypatch.chdir(tmp_path)
    Path("reverse").write_text("run: {name: mine}\n", encoding="utf-16")  # by PowerShell
    assert yaml_files.read("reverse") == {"run": {"name": "mine"}}


def test_an_installed_package_has_them_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/only.yaml").write_text("run: {name: only}\n")
    monkeypatch.setattr(yaml_files, "_PACKAGE", tmp_path)
    assert yaml_files.bundled() == {"only": tmp_path / "configs/only.yaml"}


@pytest.mark.parametrize(("name", "sentence"), [
    ("revers", "there is no file revers, nor a config of that name: did you mean reverse?"),
    ("a/revers.yml", "there is no file a/revers.yml, nor a config of that name: did you mean reverse?"),
    ("bert", "there is no file bert, nor a config of that name: did you mean model/bert?"),
    ("my/own.yaml", "there is no file my/own.yaml"),
    (f"my/{300 * 'x'}", f"there is no file my/{300 * 'x'}"),
    ("", f"there is no file '', nor a config of that name: known are: {', '.join(sorted(yaml_files.bundled()))}"),
])  # fmt: skip
def test_a_typo_differs_from_a_missing_file(name: str, sentence: str, refused: Callable) -> None:
    assert refused("train", "--config", name) == f"minitx: --config: {sentence}\n"


def test_the_order_of_a_mapping_of_changes_has_no_meaning() -> None:
    base = {"data": {"name": "a", "x": 1}, "trainer": {"ema": 0.5, "profile": 1}}
    changes = {"data.y": 2, "data.name": "b", "trainer": {"ema": 0.1, "profile": 3}, "trainer.ema": 0.2}
    expected = {"data": {"name": "b", "y": 2}, "trainer": {"ema": 0.2, "profile": 3}}
    for order in itertools.permutations(changes.items()):
        assert yaml_files.overridden(base, dict(order)) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-3", 1e-3), ("-2E5", -2e5), ("'a' #2", "a"), ("[en, no]", ["en", "no"]), ("TRUE", True), ("false", False)]
    + [(text, text) for text in ("1e", "a: b: c", "010", "1:30.5", "2024-01-01", "2024-01-01T10:00:00")]
    + [(text, text) for text in ("a #2", "5 #1", "# x", "no", "Yes", "ON", "off", "trueish")],
)
def test_a_value_is_yaml_1_2_or_text(text: str, value: object) -> None:
    assert yaml_files.parse(text) == value
    assert yaml_files.parse(yaml.dump([text], Dumper=yaml_files.Dumper)) == [text]


@pytest.mark.parametrize(("text", "problem"), [
    ("- 1", "expected keys and their values, got [1]"),
    ("a: [1", "must be YAML, got line 1: while parsing a flow sequence"),
    ("a: 1\na: 2", "got line 2: the key 'a' again"),
    ("a: 010", "got line 1: 010, which YAML 1.1 reads in base 8 or 60"),
    ("a: &a [1, *a]", "more than 20,000 values"),
    ("run: {1: 2}", "must have names for keys, got 1 in run"),
    (f"run: {'[' * 21}{']' * 21}", "at most 20,000 values in 20 levels, got more under 'run'"),
    ("run: !!binary aGk=", "must hold texts, numbers, lists and sections, got b'hi' for run"),
    (f"a: 1{' ' * 2**20}", "at most 1,048,576 bytes"),
])  # fmt: skip
def test_what_is_no_config_is_refused(text: str, problem: str, refused: Callable, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    assert problem in refused("train", "--config", str(tmp_path / "x.yaml"))
