"""Results of minitx against published ones: trains the rows of benchmarks/targets.py and records their metrics.

    python -m benchmarks.results reverse copy --seeds 3      train, and write benchmarks/results/runs/<name>.json
    python -m benchmarks.results                             only write docs/results.md from these files

An interrupted run is resumed. Further options may describe the machine (--data.path FILE, --trainer.accelerator gpu);
any other option makes another experiment, which needs its own row.
"""

import argparse
import json
from statistics import fmean
from typing import Any

from benchmarks import solved
from benchmarks.common import DOCS, RESULTS, machines, table, trained
from benchmarks.measures import MEASURES
from benchmarks.targets import TARGETS, Target
from minitx.config.errors import did_you_mean
from minitx.sweeps.tables import shown

RUNS = RESULTS / "runs"
CONFIGS = DOCS.parent / "configs"
LOCAL = ("--data.path", "--trainer.accelerator", "--trainer.compile", "--trainer.precision", "--run.folder")
KEPT = (
    "seed", "figures", "by_length", "steps", "seconds", "precision", "split", "examples", "parameters",
    "flops_per_step", "flops", "machine",
)  # fmt: skip


def train(target: Target, seeds: int, jobs: int, local: list[str]) -> None:
    """Train a row with `seeds` seeds, from its first one on, and store the results."""
    words = ["--config", str(CONFIGS / f"{target.stem}.yaml"), *target.overrides]
    words += [f"--run.name={target.name}", "--run.folder=runs/results", *local]
    kept = []
    for row in trained(words, {}, seeds, target.lengths, jobs, target.first_seed):
        measured = {name: MEASURES[name].of(row["folder"]) for name in target.headline if name in MEASURES}
        kept.append({**{key: row[key] for key in KEPT}, "measured": measured})
    record = {"config": target.stem, "overrides": target.overrides, "lengths": target.lengths, "rows": kept}
    RUNS.mkdir(parents=True, exist_ok=True)
    (RUNS / f"{target.name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def kept(target: Target) -> list[dict[str, Any]]:
    """The recorded results of a row; empty if it was not run.

    Raises:
        ValueError: the figures of another experiment.
    """
    file = RUNS / f"{target.name}.json"
    if not file.exists():
        return []
    record = json.loads(file.read_text(encoding="utf-8"))
    then = (record["config"], tuple(record["overrides"]), record["lengths"])
    if then != (target.stem, target.overrides, target.lengths):
        raise ValueError(f"{file.name} holds figures of {then}: run `python -m benchmarks.results {target.name}` again")
    rows: list[dict[str, Any]] = record["rows"]
    return rows


def figure(row: dict[str, Any], name: str) -> float | None:
    """One figure of one run: a name, or name@from-to, the mean over these lengths with equal weight; None if there is
    none of them, as past the positions of a model."""
    plain, _, lengths = name.partition("@")
    if not lengths:
        return {**row["figures"], **row["measured"]}[name]
    first, last = map(int, lengths.split("-"))
    found = [part[plain] for length, part in row["by_length"].items() if first <= int(length) <= last]
    return sum(found) / len(found) if found else None


def described(rows: list[dict[str, Any]], name: str) -> str:
    """A figure over the seeds of a row, as text."""
    plain, _, lengths = name.partition("@")
    label, unit = plain.replace("_", " "), plain
    if plain in MEASURES:
        label, _, unit = MEASURES[plain]
    values = [value for row in rows if (value := figure(row, name)) is not None]
    text = shown(unit, values) if len(values) == len(rows) else "not measured"
    return f"{label}{f', length {lengths}' if lengths else ''}: {text}"


def missing(target: Target) -> str:
    """Why a row has no figures."""
    if not (CONFIGS / f"{target.stem}.yaml").exists():
        return "not run: there is no config yet"
    return f"not run: needs {target.needs}" if target.needs else "not run"


def page() -> str:
    """docs/results.md."""
    summary, details, runs = [], [], []
    for target in TARGETS:
        rows = kept(target)
        about = [f"`{target.name}`", target.what, target.reference, target.target]
        if not rows:
            summary.append([*about, missing(target), ""])
            continue
        seconds = shown("seconds", [row["seconds"] for row in rows])
        flops = fmean(row["flops"] for row in rows)
        cost = f"{len(rows)} x {seconds} s; {rows[0]['parameters']:,} parameters; {flops:.2g} FLOP"
        summary.append([*about, "<br>".join(described(rows, name) for name in target.headline), cost])
        for row in rows:
            figures = "; ".join(described([row], name) for name in target.headline)
            examples = f"{row['examples']:,} of {row['split']}"
            took = [f"{row['steps']:,}", f"{row['seconds']:.1f}", row["precision"]]
            details.append([f"`{target.name}`", row["seed"], figures, examples, *took])
        where = machines(rows, "{device}; torch {torch}; Python {python}; {date}")
        how = " ".join([f"configs/{target.stem}.yaml", *target.overrides])
        runs.append([f"`{target.name}`", f"`{how}`", where])
    parts = [
        "# Results",
        "Each row is a config, or a variant of one, beside published results of the same experiment. Exact match is "
        "free-running: the model generates the whole answer, including `<eos>`, for examples that are not in the "
        "training set. Figures are means over seeds with the standard deviation of a sample. FLOP: what torch "
        "counts for forward and backward of a run's first batch (without `data.stages`), times the number of steps.",
        "`python -m benchmarks.results NAME` trains a row and stores its figures in `benchmarks/results/runs`, from "
        "which this page is generated.",
        table(["row", "experiment", "reference", "target", "measured", "cost of a run"], summary),
        *filter(None, [solved.section()]),
        "## Each run",
        table(["row", "seed", "figures", "examples", "steps", "seconds", "precision"], details),
        "## Where and how",
        table(["row", "config and overrides", "measured on"], runs),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="rows of benchmarks/targets.py to train")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    chosen, local = parser.parse_known_args()
    known = {target.name: target for target in TARGETS}
    for name in chosen.names:
        if name not in known:
            parser.error(f"there is no row {name}: {did_you_mean(name, known)}")
    for word in local:
        if word.startswith("--") and word.partition("=")[0] not in LOCAL:
            parser.error(f"{word} makes another experiment: add its own row to benchmarks/targets.py")
    for name in chosen.names:
        train(known[name], chosen.seeds, chosen.jobs, local)
    (DOCS / "results.md").write_text(page(), encoding="utf-8")
    print(DOCS / "results.md")


if __name__ == "__main__":
    main()
