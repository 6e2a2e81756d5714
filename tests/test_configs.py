"""Every experiment in configs/ explains itself and trains. Killed and resumed runs: training/test_resume.py."""

import math
from pathlib import Path

import pytest
import yaml

import minitx
from benchmarks.measures import share_of_rows
from benchmarks.targets import TARGETS
from minitx.config import yaml_files
from minitx.config.schema import config_from_dict
from minitx.data.text import corpora
from minitx.huggingface.families import FAMILIES
from minitx.huggingface.families import resolved as completed
from minitx.training.api import resolved
from minitx.training.api import train_config as train
from short_configs import config_from_words, short, shortened

FOLDER = Path(__file__).parent.parent / "configs"
CONFIGS = sorted(FOLDER.glob("*.yaml"))


@pytest.fixture(autouse=True)
def python_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(corpora.CORPORA, "python_code", lambda: [Path(__file__), Path(corpora.__file__)])


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_trains_two_steps(path: Path, tmp_path: Path) -> None:
    results = train(shortened(path, tmp_path))
    assert results["steps"] == 2
    assert math.isfinite(results["loss"])


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_a_family_has_the_choices_of_its_imported_models(name: str) -> None:
    family, config = FAMILIES[name], config_from_dict(yaml_files.read(f"model/{name}"))
    imported, chosen = completed(family.from_hf({"vocab_size": 10})), completed(config.model)
    for key in (*family.fixed, "activation", "tie_embeddings", "scale_embeddings"):
        assert getattr(chosen, key) == getattr(imported, key), key


def test_the_variants_of_a_config_pass_all_checks(tmp_path: Path) -> None:
    """The rows of docs/results.md, which headers of configs name as well."""
    for target in TARGETS:
        if target.overrides:
            resolved(shortened(FOLDER / f"{target.stem}.yaml", tmp_path, 2, *target.overrides))


def test_its_header_has_a_description_a_figure_and_a_reference() -> None:
    for path in CONFIGS:
        header = "".join(line for line in path.read_text().splitlines() if line.startswith("#"))
        assert "Expected:" in header, path
        assert "Reference:" in header, path
        assert yaml.safe_load(path.read_text())["run"]["name"] == path.stem


@pytest.mark.parametrize("preset", sorted(FOLDER.glob("model/*.yaml")), ids=lambda path: path.stem)
def test_a_preset_composes_with_a_task(preset: Path, tmp_path: Path) -> None:
    words = ["--config", "reverse", "--config", str(preset), "--data.length", "[3, 9]"]
    config = config_from_words(*words, *short(2), "--run.folder", str(tmp_path / "runs"))
    wanted = yaml.safe_load(preset.read_text())["model"]
    assert {key: config.to_dict()["model"][key] for key in wanted} == wanted
    assert (config.data["name"], config.model.d_model) == ("reverse", 64)
    assert math.isfinite(train(config)["loss"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "examples", "exact_match", "mirrored"), [("reverse", 8_000, 1.0, True), ("copy", 10_000, 0.999, False)]
)
def test_the_task_is_solved_and_attention_shows_it(
    name: str, examples: int, exact_match: float, mirrored: bool, tmp_path: Path
) -> None:
    """The promised figures, reached from scratch in minutes. There are few short questions: 10,000 are asked for."""
    results = train(config_from_words("--config", str(FOLDER / f"{name}.yaml"), "--run.folder", str(tmp_path)))
    assert results["examples"] >= examples
    assert results["exact_match"] >= exact_match
    assert share_of_rows(minitx.load(tmp_path / name, device="cpu"), mirrored=mirrored) >= 0.99
