"""Averages of weights compared with the last weights: one run with a moving average gives all three.

    python -m benchmarks.averaging shakespeare --data.path data/shakespeare.txt
    python -m benchmarks.averaging multi30k_small            the records of other configs are kept

Each kept checkpoint of the run has the trained weights beside their average: the mean is that of the last five.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import minitx
from benchmarks.common import RESULTS, machine, record, table
from minitx.checkpoints import format as checkpoint
from minitx.cli.config_parser import Parser
from minitx.config import yaml_files
from minitx.evaluation.report import evaluation_report
from minitx.sweeps.tables import shown
from minitx.training.api import train
from minitx.training.callbacks.average_weights import TRAINED, average

METRICS = {"shakespeare": "loss", "multi30k_small": "bleu"}
SEEDS = (61, 62, 63)
LAST = 5
FILE = RESULTS / "averaging.json"


def figures(name: str, seed: int, local: dict[str, Any]) -> dict[str, Any]:
    """The metric of a run's last weights, of the mean of its kept ones, and of the moving average."""
    every = yaml_files.read(name)["trainer"]["max_steps"] // 20
    own: dict[str, Any] = {"run.folder": "runs/averaging", "run.name": f"{name}_{seed}", "run.seed": seed}
    own |= {"trainer.ema": 0.99, "trainer.keep_every_n_steps": every, "log.attention.every_n_validations": 0}
    train(name, own | local)
    folder = checkpoint.find(f"runs/averaging/{name}_{seed}", "last").parent
    values = {"moving": evaluated(folder / "last.ckpt", METRICS[name])}
    kept = sorted(folder.glob("step_*.ckpt"))[-LAST:]
    for file in kept:
        contents = checkpoint.read(file)
        checkpoint.write(contents | {"state_dict": contents[TRAINED]}, file)
    mean, _ = average(folder, LAST)
    values |= {"last": evaluated(kept[-1], METRICS[name]), "mean": evaluated(mean, METRICS[name])}
    return {"config": name, "seed": seed, "machine": machine(), **values}


def evaluated(file: Path, metric: str) -> float:
    value: float = evaluation_report(minitx.load(file))[metric]
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=METRICS)
    chosen, words = parser.parse_known_args()
    local = Parser(configured=True).parse_args(words).values
    rows = json.loads(FILE.read_text(encoding="utf-8"))["rows"] if FILE.exists() else []
    for name in chosen.names:
        rows = [row for row in rows if row["config"] != name] + [figures(name, seed, local) for seed in SEEDS]
    lines = []
    for name in dict.fromkeys(row["config"] for row in rows):
        mine = [row for row in rows if row["config"] == name]
        cells = [shown(METRICS[name], [row[key] for row in mine]) for key in ("last", "mean", "moving")]
        lines.append([f"`{name}`, {METRICS[name]}", *cells])
    header = ["config", "last weights", f"mean of the last {LAST}, a twentieth of the run apart", "`trainer.ema: 0.99`"]
    record("averaging", rows, table(header, lines), "howto/resume.md")


if __name__ == "__main__":
    main()
