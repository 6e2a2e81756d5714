"""`minitx list`: every registered name with its summary and options, and the bundled configs."""

from minitx.cli.listing import listing, own_options
from minitx.config import yaml_files
from minitx.data.tasks import TASKS
from minitx.data.text.corpora import CORPORA
from minitx.data.text.tokenizer_training import TOKENIZERS
from minitx.nn import POSITION_IDS, POSITIONS
from minitx.nn.positions import GIVEN

SECTIONS = {
    "data.name": TASKS,
    "data.path": CORPORA,
    "data.tokenizer.name": TOKENIZERS,
    "model.position.name": POSITIONS,
    "model.position_ids.name": POSITION_IDS,
    "--config": yaml_files.bundled(),
}


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
