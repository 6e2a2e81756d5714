"""The wheel, in an environment of its own and away from the repository, does what the checkout does."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

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
