"""Rows of finished runs: appended, read after an incomplete line, and looked up."""

from pathlib import Path

from minitx.config.schema import Config, config_from_dict
from minitx.sweeps import rows


def test_an_incomplete_line_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "rows.jsonl"
    assert rows.read(file) == []
    rows.append(file, {"seed": 1})
    file.write_text(file.read_text() + '{"seed": 2, "fig')
    assert rows.read(file) == [{"seed": 1}]
    rows.append(file, {"seed": 3})
    rows.append(file, {"seed": 4})
    assert rows.read(file) == [{"seed": 1}, {"seed": 3}, {"seed": 4}]


def test_the_newest_row_with_the_lengths() -> None:
    recorded = [
        {"fingerprint": "a", "lengths": None, "n": 0},
        {"fingerprint": "a", "lengths": [2, 9], "n": 1},
        {"fingerprint": "b", "lengths": [1, 99], "n": 2},
        {"fingerprint": "a", "lengths": None, "n": 3},
    ]
    for wanted, lengths, expected in (
        ("a", None, 3), ("a", range(2, 10), 1), ("a", range(3, 6), 1), ("a", range(1, 6), None),
        ("a", range(2, 11), None), ("c", None, None),
    ):  # fmt: skip
        assert rows.latest(recorded, wanted, lengths) == (None if expected is None else recorded[expected])


def test_a_fingerprint_depends_on_all_keys_but_name_and_folder() -> None:
    def fingerprint(**sections: dict[str, object]) -> str:
        return rows.fingerprint(config_from_dict({**Config().to_dict(), **sections}).to_dict())

    plain = fingerprint()
    assert fingerprint(run={"name": "other", "folder": "elsewhere"}) == plain
    for changes in ({"run": {"seed": 2}}, {"trainer": {"max_steps": 3}}, {"data": {"name": "copy"}}):
        assert fingerprint(**changes) != plain  # type: ignore[arg-type]
