"""Configs by name: found in a checkout and in an installed package, trained as the file is, listed with a line."""

from pathlib import Path

import pytest

from minitx.cli.listing import listing
from minitx.cli.main import main
from minitx.config import bundled
from minitx.config.parser import config_from_words

ROOT = Path(__file__).parents[2]


def test_every_config_has_its_name() -> None:
    paths = set((ROOT / "configs").rglob("*.yaml"))
    assert set(bundled.configs().values()) == paths
    assert bundled.configs()["model/llama"] == ROOT / "configs/model/llama.yaml"


@pytest.mark.parametrize("name", bundled.configs())
def test_a_name_means_its_file(name: str) -> None:
    def read(value: str) -> object:
        return config_from_words(["--config", value])

    assert read(name) == read(str(ROOT / f"configs/{name}.yaml"))


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("reverse").write_text("run: {name: mine}\n")
    assert config_from_words(["--config", "reverse"]).run.name == "mine"


def test_an_installed_package_has_them_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/only.yaml").write_text("# A line.\n# Another.\nrun: {name: only}\n")
    monkeypatch.setattr(bundled, "_PACKAGE", tmp_path)
    bundled.folder.cache_clear()
    try:
        assert bundled.configs() == {"only": tmp_path / "configs/only.yaml"}
        assert bundled.summary(tmp_path / "configs/only.yaml") == "A line."
    finally:
        bundled.folder.cache_clear()


def test_a_typo_is_told_from_a_missing_file(capsys: pytest.CaptureFixture[str]) -> None:
    for value, sentence in (
        ("revers", "there is no file revers, nor a config of that name: did you mean reverse?"),
        ("my/own.yaml", "there is no file my/own.yaml"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(["train", "--config", value])
        assert capsys.readouterr().err == f"minitx: --config: {sentence}\n"


def test_the_listing_tells_each_with_its_first_line() -> None:
    section = listing().split("--config (or a file)\n")[1].splitlines()
    told = dict(line.split(maxsplit=1) for line in section)
    assert told.keys() == bundled.configs().keys()
    assert told["reverse"].startswith('Reversal, "3 1 4" -> "4 1 3"')
    assert all(len(summary) > 20 for summary in told.values())
