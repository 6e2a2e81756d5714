"""The grid as text: the syntax of --set and the names of folders."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minitx.sweeps import grid

TEXT = st.text("ab=,[]{}'\" :/.é", max_size=8)


def test_commas_outside_brackets_and_quotes_separate_values() -> None:
    assert grid.parse(["a.b=x', y", "data.length=[1, 8],[1,16]", "p={name: t5, n: 3},none", "--q='a,b',c"]) == {
        "a.b": ["x'", "y"], "data.length": ["[1, 8]", "[1,16]"], "p": ["{name: t5, n: 3}", "none"], "q": ["'a,b'", "c"],
    }  # fmt: skip


def test_ranges_and_combinations() -> None:
    read = grid.parse(["a=1..8", "b=3e-5..3e-4", "c=.1..0.5", "d=../x,..", "e=0..1.0", "run.init_from=1,+1"])
    assert [*read.values()] == [("1", "8"), ("3e-5", "3e-4"), (".1", "0.5"), ["../x", ".."], ("0", "1.0"), ["1", "+1"]]
    assert grid.combinations({"a": ["1", "2"], "b": ["x", "y"]}) == [{"a": a, "b": b} for a in "12" for b in "xy"]
    found = grid.every_value({"a": ["x", "y", "z"], "b": grid.Range("1", "8")})
    assert found == [{"a": a, "b": b} for a, b in zip("xyz", "188", strict=True)]


@pytest.mark.parametrize(("texts", "sentence"), [
    *[([text], "--set must be KEY=VALUE") for text in ("rope", "=rope", "a=", "a=x,,y")],
    *[([f"a={text}"], "repeats a value") for text in ("x,x", "1e-2,0.01", "[1,8],[1, 8]")],
    (["a=3..1"], "LOW < HIGH, got 3..1"), (["a=x", "a=y"], "--set a is given twice"),
    *[([f"{key}=1,2"], sentence) for key, sentence in grid.RESERVED.items()],
])  # fmt: skip
def test_invalid_settings_are_refused(texts: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        grid.parse(texts)


@given(st.lists(st.dictionaries(TEXT, TEXT, max_size=3), min_size=2, max_size=4, unique_by=str))
@example([{"a": "字" * 90}, {"a": "字" * 91}])
def test_different_settings_have_different_folder_names(several: list[dict[str, str]]) -> None:
    names = [grid.slug(settings) for settings in several]
    assert all(name not in ("", ".", "..") and "/" not in name and len(name.encode()) <= 255 for name in names)
    assert len(set(names)) == len({"__".join(f"{k}={v}" for k, v in settings.items()) for settings in several})


def test_names_contain_the_settings() -> None:
    settings = {"model.position.name": "rope", "model.n_layers": "2"}
    assert grid.slug(settings) == "model.position.name=rope__model.n_layers=2"
    assert grid.described(settings) == "model.position.name rope, model.n_layers 2"
    assert grid.described({"lr": 0.00123456789, "n": 2}) == "lr 0.001235, n 2"
    assert (grid.combinations({}), grid.slug({}), grid.described({})) == ([{}], "all", "the config unchanged")
