"""docs/results.md has the recorded results, and every config has its row."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import common, fourier, lengths, results, solved
from benchmarks.measures import MEASURES, Measure
from benchmarks.targets import TARGETS, Target
from minitx.data.splits import SPLITS
from minitx.data.tasks import TASKS
from minitx.evaluation.report import MEANINGS

ROOT = Path(__file__).parent.parent
CONFIGS = {path.stem: path for path in (ROOT / "configs").glob("*.yaml")}


def test_a_page_is_what_its_command_writes() -> None:
    assert (ROOT / "docs/results.md").read_text() == results.page(), "run python -m benchmarks.results"
    page = (ROOT / "docs/lengths.md").read_text()
    for file in lengths.KEPT.glob("*.json"):
        assert lengths.section(file.stem) in page, "run python -m benchmarks.lengths"


def test_the_table_of_splits_has_every_task() -> None:
    rows = json.loads((common.RESULTS / "splits.json").read_text())["rows"]
    own = {name for name in TASKS if not name.startswith("imported")}
    assert {(row["task"], row["split"]) for row in rows} == {(name, split) for name in own for split in SPLITS}
    page = (ROOT / "docs/splits.md").read_text()
    for row in rows:
        assert row["split"] == "training" or f"| {row['split']} | {row['examples']:,} |" in page
        assert sum(row["shares"].values()) == pytest.approx(1.0)


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))


def rounded(short: str, exact: str) -> bool:
    """Whether a number is another one with fewer digits."""
    return abs(float(short) - float(exact)) <= 0.5001 * 10.0 ** -len(short.partition(".")[2])


def test_the_header_of_a_config_has_its_recorded_figures() -> None:
    for target in (target for target in TARGETS if target.name in CONFIGS and results.kept(target)):
        header = CONFIGS[target.name].read_text().partition("# Expected:")[2].partition("# Reference:")[0]
        header = " ".join(header.replace("#", "").split())
        for name in target.headline:
            mean, *_ = numbers(results.described(results.kept(target), name).rpartition(": ")[2])
            assert any(rounded(number, mean) for number in numbers(header)), (target.name, name, mean)
        variants = [other for other in TARGETS if other.stem == target.stem and results.kept(other)]
        texts = [results.described(results.kept(other), name) for other in variants for name in other.headline]
        recorded = [pair for text in texts if len(pair := numbers(text.rpartition(": ")[2])) == 2]
        for pair in re.findall(r"([\d.,]+) \+- ([\d.]+)", header):
            assert any(all(map(rounded, numbers(" ".join(pair)), other)) for other in recorded), (target.name, pair)
        steps = [row["solved_at_step"] for row in json.loads(solved.FILE.read_text()) if row["config"] == target.name]
        for pair in re.findall(r"solved after (\d+) to (\d+) steps", header):
            assert [*map(int, pair)] == [min(steps), max(steps)], target.name


def test_every_config_has_a_row_whose_figures_are_measured() -> None:
    """That the overrides of rows fit: test_configs.py."""
    assert set(CONFIGS) <= {target.stem for target in TARGETS}
    assert len({target.name for target in TARGETS}) == len(TARGETS)
    for target in (target for target in TARGETS if target.stem in CONFIGS):
        assert {name.partition("@")[0] for name in target.headline} <= {*MEASURES, *MEANINGS}
        assert target.lengths or not any("@" in name for name in target.headline)


def test_frequencies_are_those_that_embeddings_and_neurons_are_made_of() -> None:
    numbers = torch.arange(23)
    wave = {w: torch.cos(2 * torch.pi * w * numbers / 23) for w in (3, 5)}
    shares = fourier.embedding_shares(torch.stack((2 * wave[3], wave[5] + 7), dim=1))
    assert shares.tolist() == pytest.approx([0.8 if w == 3 else 0.2 if w == 5 else 0 for w in range(1, 12)], abs=1e-6)
    a, b = numbers[:, None], numbers[None]
    product = 1 + wave[3][a] + wave[3][b] * 2 + wave[3][a] * wave[3][b]
    power, total = fourier.neuron_power(torch.stack((product, wave[3][a] * wave[5][b], product + wave[5][a]), dim=2))
    assert (power / total)[2].tolist() == pytest.approx([1, 0, 2.75 / 3.25], abs=1e-6)
    assert (power / total)[4].tolist() == pytest.approx([0, 0, 0.5 / 3.25], abs=1e-6)


ROW = {**dict.fromkeys(results.KEPT, 0), "measured": {}, "by_length": {"1": {"exact_match": 1.0}}}


def test_a_row_without_figures_says_why() -> None:
    assert results.described([ROW], "exact_match@4-9") == "exact match, length 4-9: not measured"
    targets = Target("copy-y", "w", "ref", "goal", needs="a GPU"), Target("nowhere", "w", "ref", "goal")
    assert [*map(results.missing, targets)] == ["not run: needs a GPU", "not run: there is no config yet"]
    recorded = next(target for target in TARGETS if results.kept(target))
    with pytest.raises(ValueError, match="holds figures of"):
        results.kept(dataclasses.replace(recorded, overrides=("--data.symbols=4",)))


def test_training_a_row_keeps_figures_measures_and_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def swept(plan: Any, jobs: int) -> tuple[list[dict[str, Any]], list[str]]:
        assert ([*plan.seeds], plan.resolved({}).config.data["symbols"], plan.lengths) == ([1, 2], 5, range(1, 4))
        return [{**ROW, "seed": seed, "folder": f"v{seed}", "config": {}} for seed in (1, 2)], []

    monkeypatch.setattr(common, "sweep", swept)
    monkeypatch.setattr(results, "RUNS", tmp_path)
    monkeypatch.setitem(results.MEASURES, "diagonal", Measure("rows", lambda folder: {"v1": 0.25, "v2": 0.75}[folder]))
    target = Target("copy-x", "w", "r", "t", "copy", ("--data.symbols=5",), "1:3", ("exact_match", "diagonal"))
    results.train(target, 2, 1, [])
    kept = results.kept(target)
    assert [(each["seed"], each["measured"]) for each in kept] == [(1, {"diagonal": 0.25}), (2, {"diagonal": 0.75})]
    assert not {"folder", "config"} & kept[0].keys(), "paths of this machine"
