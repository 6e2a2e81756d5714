"""The README is short and true: its figures, its commands and its links. test_docs.py runs its code."""

import itertools
import re
import shlex
from pathlib import Path

from pages import ROOT, blocks, typed
from test_imports import FILES, is_core, relative

README = ROOT / "README.md"
TEXT = README.read_text()
MAX_WORDS = 1300
SHELL = [block for block in blocks(README) if block.language == "bash"]


def option(words: list[str], name: str) -> list[str]:
    """The values of an option that may be given several times."""
    return [value for key, value in itertools.pairwise(words) if key == name]


def test_it_is_short() -> None:
    assert len(TEXT.split()) <= MAX_WORDS


def test_the_core_is_as_long_as_the_table_says() -> None:
    counts: dict[str, int] = {}
    for file in filter(is_core, FILES):
        folder = relative(file).split("/")[0]
        counts[folder] = counts.get(folder, 0) + len(file.read_text().splitlines())
    table = TEXT.partition("<!-- core -->")[2].partition("<!-- /core -->")[0]
    rows = re.findall(r"^\| `(\w+)/` \|.*\| ([\d,]+) \|$", table, re.MULTILINE)
    assert {folder: int(lines.replace(",", "")) for folder, lines in rows} == counts


def test_shell_blocks_have_known_programs() -> None:
    lines = [shlex.split(line, comments=True) for block in SHELL for line in block.text.splitlines()]
    for words in filter(None, lines):
        assert words[0] in ("make", "minitx") or words == ["source", ".venv/bin/activate"], words
        if words[0] == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text()


def test_commands_use_the_runs_of_earlier_commands() -> None:
    """Typed in order after `make train`: a run is trained before it is used, and each config has its own run."""
    runs = {"reverse": ["configs/reverse.yaml"]}
    for words in (words[1:] for block in SHELL for words in typed(block)):
        for run in re.findall(r"\bruns/(\w+)", " ".join(words)):
            assert run in runs, words
        if words[0] == "train":
            configs = option(words, "--config")
            (name,) = option(words, "--run.name") or [Path(configs[0]).stem]
            assert name not in runs or ("--resume" in words and runs[name] == configs), words
            assert "--resume" not in words or name in runs, words
            runs[name] = configs


def test_its_links_lead_to_files() -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[\w-]*)?\)", TEXT)
    assert "docs/index.md" in targets
    for path in targets:
        assert (ROOT / path).exists(), path
    for path in re.findall(r"!\[.*?\]\((.*?)\)", TEXT):
        assert (ROOT / path).stat().st_size > 1000
