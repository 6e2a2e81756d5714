"""Settings as text: what --set may say, and the folders' names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minitx.sweeps import grid

WORD = st.text("ab=,[]{}'\" :/.é", max_size=8)


def test_values_are_parted_by_commas_outside_brackets_and_quotes() -> None:
    assert grid.parse(["a.b=x, y", "data.length=[1, 8],[1,16]", "p={name: t5, n: 3},none", "--q='a,b',c"]) == {
        "a.b": ["x", "y"],
        "data.length": ["[1, 8]", "[1,16]"],
        "p": ["{name: t5, n: 3}", "none"],
        "q": ["'a,b'", "c"],
    }


@pytest.mark.parametrize(
    ("texts", "sentence"),
    [
        (["rope"], "--set must be KEY=VALUE"),
        (["=rope"], "--set must be KEY=VALUE"),
        (["a="], "--set must be KEY=VALUE"),
        (["a=x,,y"], "--set must be KEY=VALUE"),
        (["a=x,x"], "names a value twice"),
        (["a=x", "a=y"], "--set a is given twice"),
        (["run.seed=1,2"], "--seeds"),
        (["run.name=a"], "names its runs"),
        (["run.folder=a"], "lays out its folder"),
        (["config=a"], "the files are the same"),
    ],
)
def test_what_cannot_be_is_refused(texts: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        grid.parse(texts)


def test_every_combination_once_the_last_key_fastest() -> None:
    assert grid.combinations({"a": ["1", "2"], "b": ["x", "y"]}) == [
        {"a": "1", "b": "x"}, {"a": "1", "b": "y"}, {"a": "2", "b": "x"}, {"a": "2", "b": "y"},
    ]  # fmt: skip
    assert grid.combinations({}) == [{}]


@given(st.lists(st.dictionaries(WORD, WORD, max_size=3), min_size=2, max_size=4, unique_by=lambda d: str(d)))
def test_different_settings_have_different_plain_folders(several: list[dict[str, str]]) -> None:
    names = [grid.slug(settings) for settings in several]
    for name in names:
        assert name
        assert "/" not in name
        assert name not in (".", "..")
        assert len(name.encode()) <= 255
    parts = ["__".join(f"{key}={value}" for key, value in settings.items()) for settings in several]
    assert len(set(names)) == len(set(parts))


def test_a_folder_says_what_is_in_it() -> None:
    assert grid.slug({"model.position.name": "rope", "model.n_layers": "2"}) == (
        "model.position.name=rope__model.n_layers=2"
    )
    assert grid.slug({}) == "all"
    assert grid.described({}) == "the config as it is"
    assert grid.described({"a": "1", "b": "x"}) == "a 1, b x"
