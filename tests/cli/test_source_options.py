"""Options read from source agree with the classes themselves, and all mistakes of a config are reported at once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minitx.cli import source_options
from minitx.cli.listing import OPEN, own_options
from minitx.cli.main import main
from minitx.cli.source_options import SOURCES, registered_options


@pytest.mark.parametrize("section", SOURCES)
def test_names_and_options_are_those_of_the_classes(section: str) -> None:
    found = registered_options(SOURCES[section])
    assert {name: options.keys() for name, options in found.items()} == {
        name: own_options(kind).keys() for name, kind in OPEN[section].items()
    }
    for name, options in found.items():
        types = own_options(OPEN[section][name])
        assert all(kind in (types[option][0], Any) for option, (kind, _) in options.items())
    assert sum(kind is not Any for options in found.values() for kind, _ in options.values()) > len(found) / 2


def test_five_mistakes_are_five_lines(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a fresh process, where torch is not loaded and only the sources know the names.
    monkeypatch.setattr(source_options, "sys", SimpleNamespace(modules={}))
    file = tmp_path / "config.yaml"
    file.write_text(
        "data: {name: reverse, symbls: 5, nmae: copy}\nmodel: {d_modle: 8, position: rop, position_ids: own}\n"
        "trainer: {max_steps: 0}\n"
    )
    with pytest.raises(SystemExit, match="2"):
        main(["train", "--config", str(file)])
    assert sorted(capsys.readouterr().err.splitlines()) == [
        "minitx: model.position.name: unknown name 'rop'; did you mean rope?",
        "minitx: model.position_ids.name: unknown name 'own'; known are: consecutive, coupled, offset, randomized; "
        "one of your own needs --import FILE",
        "minitx: trainer.max_steps: expected an integer of at least 1, got 0",
        "minitx: unknown key data.nmae: did you mean data.name? (for data.name reverse)",
        "minitx: unknown key data.symbls: did you mean data.symbols? (for data.name reverse)",
        "minitx: unknown key model.d_modle: did you mean model.d_model?",
    ]
