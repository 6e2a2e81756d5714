"""The guide is true: what it shows is run, what it names is there."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_give_what_the_page_says(page: Path) -> None:
    failed, _ = doctest.testfile(str(page), module_relative=False)
    assert not failed


def test_every_page_is_linked() -> None:
    text = (ROOT / "README.md").read_text()
    assert [page.name for page in PAGES if f"docs/{page.name}" not in text] == []


def test_a_scheme_is_added_in_one_file_and_the_whole_matrix_runs_on_it(tmp_path: Path) -> None:
    """As docs/positions.md tells: its code goes to the end of positions.py, and nowhere else."""
    (code,) = re.findall(r"```python\n(@register.*?)```", (ROOT / "docs" / "positions.md").read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 20
    for folder in ("minitx", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "minitx" / "nn" / "positions.py").open("a") as file:
        file.write(f"\n\n{code}")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        "kerple",
        "tests/nn",
        "tests/test_report.py",
    ]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:]
    passed = re.search(r"(\d+) passed", ran.stdout)
    assert passed is not None
    assert int(passed[1]) >= 20, "the scheme is met by the tests that run over all schemes"
