"""Registered names and their options: as `minitx list` prints them, and as read from the sources before any import."""

from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minitx.cli import source_options
from minitx.cli.listing import listing
from minitx.cli.main import main
from minitx.cli.source_options import SOURCES, registered_options
from minitx.config import yaml_files
from minitx.config.registry import parameters
from minitx.data.tasks import TASKS
from minitx.data.text.corpora import CORPORA
from minitx.data.text.tokenizer_training import TOKENIZERS
from minitx.nn import POSITION_IDS, POSITIONS
from minitx.nn.positions import GIVEN

SECTIONS = {
    "data.name": TASKS, "data.path": CORPORA, "data.tokenizer.name": TOKENIZERS,
    "model.position.name": POSITIONS, "model.position_ids.name": POSITION_IDS, "--config": yaml_files.bundled(),
}  # fmt: skip
own_options = partial(parameters, given=frozenset(GIVEN))


def test_every_name_has_a_summary_and_its_options() -> None:
    listed: dict[str, dict[str, str]] = {}
    for line in listing().splitlines():
        if not line.startswith(" "):
            section = listed.setdefault(line.split()[0], {})
        else:
            name, text = line.split(maxsplit=1)
            section[name] = text
    assert {key: list(lines) for key, lines in listed.items()} == {key: list(names) for key, names in SECTIONS.items()}
    for key in list(SECTIONS)[:-1]:
        for name, thing in SECTIONS[key].items():
            summary, _, options = listed[key][name].partition("  [")
            assert summary == thing.__doc__.strip().splitlines()[0]
            assert summary.endswith(".")
            assert not summary.endswith("et al."), "a sentence that ends on the next line"
            named = [option.partition("=")[0] for option in options.split(", ") if "=" in option]
            assert named == [*own_options(thing)]
            assert not {*named} & {*GIVEN}
    assert "[max_len=" in listed["model.position.name"]["learned"]
    assert "tokenizer={'name': 'char'}" in listed["data.name"]["text"]
    assert listed["--config"]["reverse"].startswith('Reversal, "3 1 4" -> "4 1 3"')
    assert all(len(summary) > 20 and summary.endswith(".") for summary in listed["--config"].values())


@pytest.mark.parametrize("section", SOURCES)
def test_names_and_options_are_those_of_the_classes(section: str) -> None:
    found = registered_options(SOURCES[section])
    registry = SECTIONS[f"{section.replace('window_', '')}.name"]
    expected = {name: own_options(kind).keys() for name, kind in registry.items()}
    assert {name: options.keys() for name, options in found.items()} == expected
    for name, options in found.items():
        types = own_options(registry[name])
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
