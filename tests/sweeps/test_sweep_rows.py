"""One line a run: read, torn and looked up."""

from pathlib import Path

from minitx.config.schema import Config, config_from_dict
from minitx.sweeps import rows


def test_what_is_appended_is_read_even_after_a_torn_line(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "rows.jsonl"
    assert rows.read(file) == []
    rows.append(file, {"seed": 1})
    with file.open("a") as torn:
        torn.write('{"seed": 2, "fig')
    assert rows.read(file) == [{"seed": 1}]
    rows.append(file, {"seed": 3})
    rows.append(file, {"seed": 4})
    assert rows.read(file) == [{"seed": 1}, {"seed": 3}, {"seed": 4}]


def test_the_newest_row_that_covers_the_lengths() -> None:
    known = [
        {"fingerprint": "a", "lengths": None, "n": 0},
        {"fingerprint": "a", "lengths": [2, 9], "n": 1},
        {"fingerprint": "b", "lengths": [1, 99], "n": 2},
        {"fingerprint": "a", "lengths": None, "n": 3},
    ]
    assert rows.latest(known, "a", None) == known[3]
    assert rows.latest(known, "a", range(2, 10)) == known[1]
    assert rows.latest(known, "a", range(3, 6)) == known[1]
    assert rows.latest(known, "a", range(1, 6)) is None
    assert rows.latest(known, "a", range(2, 11)) is None
    assert rows.latest(known, "c", None) is None


def test_an_experiment_is_the_same_wherever_it_lands_and_another_with_another_key() -> None:
    def mark(**sections: dict[str, object]) -> str:
        return rows.fingerprint(config_from_dict({**Config().to_dict(), **sections}).to_dict())

    plain = mark()
    assert mark(run={"name": "other", "folder": "elsewhere"}) == plain
    assert mark(run={"seed": 2}) != plain
    assert mark(trainer={"max_steps": 3}) != plain
    assert mark(data={"name": "copy"}) != plain
