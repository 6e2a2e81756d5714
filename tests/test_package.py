"""The package elsewhere: its wheel in an environment of its own, a system without what only Unix has, and the CI."""

import json
import os
import re
import subprocess
import sys
import textwrap
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from minitx.cli.main import COMMANDS

ROOT = Path(__file__).parent.parent
SHORT = ["--trainer.max_steps", "4", "--data.test_size", "20", "--data.validation_size", "10"]
PLUGINS = "from tensorboard.default import *; print([plugin.__name__ for plugin in get_dynamic_plugins()])"


def output(*words: str | Path, folder: Path = ROOT) -> str:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: setuptools leaves its build folder and its egg-info where it builds."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: what belongs to the project is not known")
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    for name in output("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    output(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", folder, copy)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_carries_all_that_is_not_python(wheel: Path) -> None:
    data = [*(ROOT / "configs").rglob("*.yaml"), *(ROOT / "minitx").rglob("static/*"), ROOT / "minitx/py.typed"]
    with zipfile.ZipFile(wheel) as file:
        inside = set(file.namelist())
    assert {f"minitx/{path.relative_to(ROOT).as_posix().removeprefix('minitx/')}" for path in data} <= inside
    assert any(name.endswith("/LICENSE") for name in inside)
    assert not [name for name in inside if name.startswith(("tests", "benchmarks", "docs"))]


@pytest.mark.slow
def test_it_works_away_from_the_repository(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an environment that holds the wheel, and what it depends on from here."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path / "env", with_pip=False)
    installed = tmp_path / "env" / ("Scripts" if os.name == "nt" else "bin")
    (site,) = (tmp_path / "env").rglob("site-packages")
    output(sys.executable, "-m", "pip", "--python", installed / "python", "install", "--no-deps", wheel)
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))

    def minitx(*words: str) -> str:
        return output(installed / "minitx", *words, folder=tmp_path)

    where = output(installed / "python", "-c", "import minitx; print(minitx.__file__)", folder=tmp_path)
    assert str(installed.parent) in where, "the checkout was imported instead"
    assert "reverse_encoder" in minitx("list")
    minitx("train", "--config", "reverse", *SHORT)
    assert yaml.safe_load((tmp_path / "runs/reverse/v0/config.yaml").read_text())["data"]["name"] == "reverse"
    assert json.loads((tmp_path / "runs/reverse/v0/results.json").read_text())["steps"] == 4
    minitx("generate", "runs/reverse", "3 1 4")
    minitx("attend", "runs/reverse", "3 1 4", "--out", "maps.html")
    assert (tmp_path / "maps.html").stat().st_size > 10_000
    assert "AttentionLoader" in output(installed / "python", "-c", PLUGINS, folder=tmp_path)


HIDDEN = """
    import os, select, signal, sys

    import datasets, lightning.pytorch, tensorboard.summary.writer.event_file_writer, torch  # they ask for the system

    for module in ("fcntl", "resource", "pwd", "grp", "termios"):
        sys.modules[module] = None  # its import fails
    for owner, names in (
        (signal, ("pthread_sigmask", "SIG_BLOCK", "SIG_UNBLOCK", "SIGHUP", "SIGPIPE", "SIGXCPU", "SIGKILL")),
        (select, ("poll",)),
        (os, ("O_DIRECTORY", "sysconf", "sched_getaffinity")),
    ):
        for name in names:
            if hasattr(owner, name):
                delattr(owner, name)
    opened = os.open

    def refuse_folders(path, *arguments, **options):
        if not isinstance(path, int) and os.path.isdir(path):
            raise PermissionError(13, "a folder cannot be opened", str(path))
        return opened(path, *arguments, **options)

    os.open = refuse_folders

    from minitx.cli.main import main

    for words in sys.argv[1:]:
        main(words.split())
"""


@pytest.mark.slow
def test_a_run_without_anything_that_only_unix_has(tmp_path: Path) -> None:
    """Train, resume, generate from words and from text: fcntl, SIGHUP, pthread_sigmask and more are hidden."""
    small = "--model.d_model 16 --trainer.accelerator cpu --data.batch_size 4 --data.validation_size 8"
    run = f"--run.folder {tmp_path} --trainer.val_every_n_steps 2 --log.every_n_steps 1 {small} --data.test_size 8"
    (tmp_path / "text.txt").write_text("the cat sat on the mat.\n" * 200, encoding="utf-8")
    commands = [
        f"train --config reverse {run} --trainer.max_steps 2",
        f"train --config reverse {run} --trainer.max_steps 4 --resume",
        f"generate {tmp_path}/reverse 3",
        f"train --config python_code --data.path {tmp_path}/text.txt --data.block 8 {run} --trainer.max_steps 2",
    ]
    script = tmp_path / "hidden.py"
    script.write_text(textwrap.dedent(HIDDEN), encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "MINITX_CACHE": str(tmp_path / "cache"), "PYTHONIOENCODING": "cp1252"}
    env |= {"MPLCONFIGDIR": str(tmp_path / "matplotlib")}
    ran = subprocess.run([sys.executable, script, *commands], cwd=ROOT, env=env, capture_output=True, timeout=500)
    output = ran.stdout.decode("cp1252")
    assert ran.returncode == 0, output + ran.stderr.decode("cp1252")
    assert output.count("cannot be locked on this system") == 3, "once in each training"
    assert "--resume: continues after step 2" in output
    assert (tmp_path / "reverse/v0/results.json").exists()


def test_the_continuous_integration_runs_the_commands_that_there_are() -> None:
    """Only make's targets, minitx's commands and files that exist."""
    flow = yaml.load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"), yaml.BaseLoader)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    known = {"make": targets, "minitx": {*COMMANDS}, "python": {"-m"}}
    for job in flow["jobs"].values():
        systems = {system.partition("-")[0] for system in job["strategy"]["matrix"]["os"]}
        assert systems == {"ubuntu", "macos", "windows"}
        scripts = [step["run"] for step in job["steps"] if "run" in step]
        for tool, word, *_ in (line.split() for script in scripts for line in script.strip().splitlines()):
            assert word in known[tool], (tool, word)
        for path in re.findall(r"(?:tests|configs)/[\w./]+", " ".join(scripts)):
            assert (ROOT / path).exists(), path
    oldest = flow["jobs"]["test"]["strategy"]["matrix"]["python"][0]
    assert f'requires-python = ">={oldest}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
