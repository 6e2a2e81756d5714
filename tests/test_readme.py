"""What the README says is true: its Python runs, its commands and files exist, its example config trains."""

import re
from pathlib import Path

import pytest
import yaml

from minitx.cli.main import COMMANDS, main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
SHORT = ["--trainer.max_steps", "2", "--data.test_size", "5", "--data.validation_size", "5"]


def blocks(language: str) -> list[str]:
    return [text for kind, text in BLOCKS if kind == language]


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    main(["train", "--config", str(ROOT / "configs/reverse.yaml"), *SHORT])
    assert len(blocks("python")) == 2
    for code in blocks("python"):
        exec(compile(code, "README.md", "exec"), {})
    assert (tmp_path / "maps.png").exists()


def test_the_example_config_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (config,) = blocks("yaml")
    Path("own.yaml").write_text(config)
    main(["train", "--config", "own.yaml", *SHORT])
    assert Path("runs", yaml.safe_load(config)["run"]["name"], "v0", "best.ckpt").exists()


def test_every_command_and_config_exists() -> None:
    for shell in blocks("bash"):
        for line in shell.splitlines():
            if found := re.match(r"minitx (\w+)", line):
                assert found[1] in COMMANDS, line
            if found := re.search(r"--config (\S+)", line):
                assert (ROOT / found[1]).exists(), line
    for target in re.findall(r"^make ([\w-]+)", "\n".join(blocks("bash")), re.MULTILINE):
        assert f"\n{target}:" in (ROOT / "Makefile").read_text()


def test_the_house_is_as_drawn() -> None:
    (tree,) = blocks("")
    folder = ROOT / "minitx"
    for line in tree.splitlines():
        name, *rest = line.split()
        if not line.startswith(" "):
            assert (ROOT / name).exists(), name
            continue
        assert (folder / name).exists(), name
        if name.endswith("/"):
            modules = {path.stem for path in (folder / name).rglob("*.py")} - {"__init__"}
            named = {word.strip(",()") for word in rest}
            assert name == "tensorboard/" or modules <= named, f"{name}: {modules - named} not drawn"

    drawn = {line.split()[0].rstrip("/") for line in tree.splitlines() if line.startswith(" ")}
    there = {path.name for path in (ROOT / "minitx").iterdir() if path.suffix == ".py" or path.is_dir()}
    assert there - {"__init__.py", "__pycache__"} == drawn


def test_pictures_are_there() -> None:
    for path in re.findall(r"!\[.*?\]\((.*?)\)", README):
        assert (ROOT / path).stat().st_size > 1000
