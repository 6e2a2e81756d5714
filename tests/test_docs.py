"""The documentation and the README are true: their code and commands run, their links and figures exist."""

import doctest
import itertools
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from minitx.cli.main import COMMANDS, main
from minitx.config.schema import Config
from minitx.data.tasks import TASKS
from pages import DOCS, PAGES, ROOT, Command, blocks, commands, named, typed
from short_configs import config_from_words, short
from test_imports import FILES, is_core, relative

README = ROOT / "README.md"
MAX_WORDS = 1300  # of the README
SHELL = [block for block in blocks(README) if block.language == "bash"]
CONSOLE_PAGES = [page for page in PAGES if any(block.language == "console" for block in blocks(page))]
LONG_PAGES = {"cost", "positions", "reversal", "decoding", "encoder_decoder", "layers", "add_norm"}
"""Those with the longest trainings or the most figures run with the slow tests alone, which compare their output."""
EVERYDAY_PAGES = [page for page in CONSOLE_PAGES if page.stem not in LONG_PAGES]
SHORT = [*short(2), "--log.attention.pictures", "false", "--log.every_n_steps", "1"]
CODE_COLUMNS = 88  # characters in a line of code that fit the column of text on a built page
MAX_PERCENT_DIFFERENCE = 12.0  # in points, between a printed figure and the page: results differ between machines


def option(words: list[str], name: str) -> list[str]:
    """The values of an option that may be given several times."""
    return [value for key, value in itertools.pairwise(words) if key == name]


def name_of_run(words: list[str]) -> str:
    (name,) = option(words, "--run.name") or [Path(option(words, "--config")[0]).stem]
    return name


def test_the_readme_is_short_and_the_core_as_long_as_its_table_says() -> None:
    assert len(README.read_text().split()) <= MAX_WORDS
    counts: dict[str, int] = {}
    for file in filter(is_core, FILES):
        folder = relative(file).split("/")[0]
        counts[folder] = counts.get(folder, 0) + len(file.read_text().splitlines())
    table = README.read_text().partition("<!-- core -->")[2].partition("<!-- /core -->")[0]
    rows = re.findall(r"^\| `(\w+)/` \|.*\| ([\d,]+) \|$", table, re.MULTILINE)
    assert {folder: int(lines.replace(",", "")) for folder, lines in rows} == counts


def test_commands_of_the_readme_are_known_and_use_the_runs_of_earlier_ones() -> None:
    """Typed in order after `make train`: a run is trained before it is used, and each config has its own run."""
    lines = [shlex.split(line, comments=True) for block in SHELL for line in block.text.splitlines()]
    for words in filter(None, lines):
        assert words[0] in ("make", "minitx") or words == ["source", ".venv/bin/activate"], words
        if words[0] == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text()
    runs = {"reverse": ["configs/reverse.yaml"]}
    for words in (words[1:] for block in SHELL for words in typed(block)):
        for run in re.findall(r"\bruns/(\w+)", " ".join(words)):
            assert run in runs, words
        if words[0] == "train":
            configs, name = option(words, "--config"), name_of_run(words)
            assert name not in runs or ("--resume" in words and runs[name] == configs), words
            assert "--resume" not in words or name in runs, words
            runs[name] = configs


def test_links_of_the_readme_lead_to_files() -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[\w-]*)?\)", README.read_text())
    assert "docs/index.md" in targets
    assert not [path for path in targets if not (ROOT / path).exists()]


def test_code_fits_its_column_and_gives_the_output_of_the_page() -> None:
    lines = [(named(page), line) for page in PAGES for block in blocks(page) for line in block.text.splitlines()]
    assert [(page, line) for page, line in lines if len(line) > CODE_COLUMNS] == []
    assert [named(page) for page in PAGES if doctest.testfile(str(page), module_relative=False).failed] == []


def test_the_navigation_has_every_page_once_and_the_numbers_of_the_chapters() -> None:
    nav, chapters = (ROOT / "mkdocs.yml").read_text(), (DOCS / "guide" / "index.md").read_text()
    assert sorted(re.findall(r"[\w/]+\.md", nav)) == sorted(map(named, PAGES))
    listed = re.findall(r"^(\d+)\. \[.*?\]\((\w+)\.md\)", chapters, re.MULTILINE)
    assert listed == re.findall(r"- (\d+)\. .*: guide/(\w+)\.md", nav)
    assert [int(number) for number, _ in listed] == [*range(1, 16)]


def test_yaml_and_shell_commands_parse(tmp_path: Path) -> None:
    """Console blocks are run, see below; the arguments of all other shell blocks are parsed: unknown ones raise."""
    file = tmp_path / "block.yaml"
    for page, block in ((each, block) for each in [README, *PAGES] for block in blocks(each)):
        for _, command, *words in typed(block) if block.language == "bash" else []:
            COMMANDS[command].parser(command).parse_args(words)
        if block.language == "yaml":
            file.write_text(block.text)
            assert isinstance(config_from_words("--config", str(file)), Config), (page, block.text)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """runs/reverse after two steps, for pages without a training of their own."""
    folder = tmp_path_factory.mktemp("trained")
    main(["train", "--config", str(ROOT / "configs/reverse.yaml"), "--run.folder", str(folder / "runs"), *SHORT])
    return folder


@pytest.fixture
def project(tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project folder: configs/, docs/ and a run."""
    for name in ("configs", "train.py"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "docs" / "images").mkdir(parents=True)
    (tmp_path / "docs" / "pictures.py").symlink_to(DOCS / "pictures.py")
    shutil.copytree(trained / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(matplotlib.rcParams, "savefig.dpi", 10)
    monkeypatch.setattr(TASKS, "data", dict(TASKS))  # a page adds one
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("double_")]:
        del sys.modules[name]  # its file


def test_python_runs(project: Path) -> None:
    """Of pages without commands, with which it is run in order, below."""
    for page in [README, *(page for page in PAGES if page not in CONSOLE_PAGES)]:
        names: dict[str, Any] = {}
        for block in blocks(page):
            if block.language == "python" and not block.text.startswith("@register"):
                exec(compile(block.text, page.name, "exec"), names)
    assert (project / "maps.png").exists()


@pytest.mark.parametrize("page", EVERYDAY_PAGES, ids=named)
def test_the_page_runs_from_top_to_bottom(page: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With trainings of two steps, only described if the page uses no such run; a sweep is planned, not run."""
    monkeypatch.setattr("minitx.sweeps.sweep.sweep", lambda planned, jobs, out, study: (None, []))

    def cut(words: list[str]) -> list[str]:
        if words[0] == "ablate":
            return [*words, "--examples", "4"]
        if words[0] == "train" and f"runs/{name_of_run(words)}" not in page.read_text():
            words = ["describe", *words[1:]]
        return [*words, *SHORT] if words[0] in ("train", "describe", "sweep") else words

    run_page(page, project, cut)


@pytest.mark.slow
@pytest.mark.parametrize("page", CONSOLE_PAGES, ids=named)
def test_the_page_shows_the_output(page: Path, project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With the full trainings; their output is compared with the page."""
    shutil.rmtree(project / "runs")
    if "runs/reverse" in page.read_text() and "configs/reverse.yaml\n" not in page.read_text():
        main(["train", "--config", "configs/reverse.yaml"])
    run_page(page, project, lambda words: words, capfd)


def run_page(page: Path, project: Path, cut: Any, capture: pytest.CaptureFixture[str] | None = None) -> None:
    """Run a page: write its files, run its Python and its commands, check that its figures are created."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.title:
            (project / block.title).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, page.name, "exec"), names)
        for command in commands(block) if block.language == "console" else []:
            if capture:
                capture.readouterr()
            run(command, cut)
            if capture:
                as_shown(command, capture.readouterr().out)
    code = "".join(block.text for block in blocks(page) if block.language != "bash")
    for picture in pictures(page):
        if picture.name in code:  # named in a command that is run; see the next test
            assert (project / "docs" / "images" / picture.name).exists(), picture


def run(command: Command, cut: Any) -> None:
    program, *words = command.words
    assert program in ("minitx", "python"), f"a console block runs minitx and python, not {program}"
    if program == "minitx":
        main(cut(words))
    else:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            runpy.run_path(words[0], run_name="__main__")


def as_shown(command: Command, out: str) -> None:
    """Each line of the page is in the output: the same words, similar percentages, any other numbers."""
    lines = [line.strip() for line in out.splitlines()]
    for line in (line for line in command.shown if line.strip() != "..."):
        similar = [other for other in lines if skeleton(other) == skeleton(line)]
        assert similar, f"{' '.join(command.words)}\nshown: {line}\nwas:\n{out}"
        wanted = percentages(line)
        differences = [[abs(a - b) for a, b in zip(wanted, percentages(other), strict=True)] for other in similar]
        nearest = min(max(found, default=0.0) for found in differences)
        assert nearest <= MAX_PERCENT_DIFFERENCE, f"shown: {line}\nwas: {similar}"


def skeleton(line: str) -> str:
    return re.sub(r"[\d.,]*\d", "#", " ".join(line.split()))


def percentages(line: str) -> list[float]:
    return [float(share) for share in re.findall(r"(\d+\.\d+) %", line)]


def pictures(page: Path) -> list[Path]:
    return [Path(path) for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())]


def test_figures_exist_and_a_command_on_the_page_creates_them() -> None:
    for page in [README, *PAGES]:
        texts = [block.text for block in blocks(page) if block.language in ("console", "bash")]
        for picture in pictures(page):
            assert (page.parent / picture).stat().st_size > 1000, picture
            if page.parent.name == "guide":
                assert any(f"docs/images/{picture.name}" in text for text in texts), f"no command makes {picture}"


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.py")), ids=lambda path: path.stem)
def test_a_notebook_runs_in_its_own_kernel_and_displays_its_figures(path: Path, tmp_path: Path) -> None:
    jupytext, nbclient = (pytest.importorskip(name) for name in ("jupytext", "nbclient"))
    notebook = jupytext.read(path)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [kind for cell in notebook.cells for out in cell.get("outputs", []) for kind in out.get("data", {})]
    counts = (shown.count("image/png"), shown.count("text/html"))  # curves; attention maps, the lens and patching
    assert counts == ((1, 2) if path.stem == "reversal_circuit" else (2, 1))


@pytest.mark.slow
def test_a_scheme_is_added_in_one_file_and_the_whole_matrix_runs_on_it(tmp_path: Path) -> None:
    """As in docs/positions.md: its code is appended to bias_positions.py, and no other file changes."""
    for folder in ("minitx", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (code,) = re.findall(r"```python\n(@register.*?)```", (DOCS / "positions.md").read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 20
    with (tmp_path / "minitx" / "nn" / "bias_positions.py").open("a") as file:
        file.write(f"\n\n{code}")
    words = ["-q", "-p", "no:cacheprovider", "-k", "kerple", "tests/nn", "tests/evaluation/test_report.py"]
    ran = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-3000:]
    (passed,) = re.findall(r"(\d+) passed", ran.stdout)
    assert int(passed) >= 20, "the tests of all schemes run on the new one"
