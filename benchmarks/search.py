"""TPE against random search: learning rate and weight decay of a config, by the validation loss of the best trial.

    python -m benchmarks.search --data.path data/shakespeare.txt --jobs 2

Each repeat is a search of its own, with its own seed of training. An interrupted benchmark is resumed.
"""

import argparse
import itertools
import statistics
from typing import Any

from benchmarks.common import DOCS, record, table, trained
from minitx.sweeps import grid
from minitx.sweeps.plan import SearchOptions

RANGES = ["optimizer.lr=1e-4..1e-1", "optimizer.weight_decay=1e-3..10"]
EVERY = 5  # trials from one column to the next


def best_losses(words: list[str], search: SearchOptions, repeat: int, jobs: int) -> list[float]:
    """The held-out loss of the best trial so far, by the score in validations, after each trial."""
    rows = trained(words, grid.parse(RANGES), 1, None, jobs, repeat, search)
    scores = [(row["score"], row["figures"]["loss"]) for row in rows]
    return [loss for _, loss in itertools.accumulate(scores, max)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300)
    given, words = parser.parse_known_args()
    config = str(DOCS.parent / "configs/shakespeare.yaml")
    words = ["--config", config, "--optimizer.name", "adamw", "--run.folder", "runs/search", *words]
    words += [f"--trainer.{key}={given.steps}" for key in ("max_steps", "val_every_n_steps", "save_every_n_steps")]
    rows: list[dict[str, Any]] = []
    for name in ("random", "tpe"):
        for repeat in range(1, given.repeats + 1):
            losses = best_losses(words, SearchOptions(name, given.trials), repeat, given.jobs)
            rows.append({"search": name, "repeat": repeat, "losses": losses})
    shown, lines = [*range(EVERY, given.trials, EVERY), given.trials], []
    for name in ("random", "tpe"):
        found = [row["losses"] for row in rows if row["search"] == name]
        cells = [[losses[trials - 1] for losses in found] for trials in shown]
        lines.append([name, *(f"{statistics.fmean(cell):.3f} ({min(cell):.3f} to {max(cell):.3f})" for cell in cells)])
    header = ["search", *(f"best of {trials} trials" for trials in shown)]
    record("search", rows, table(header, lines), "howto/sweep.md")


if __name__ == "__main__":
    main()
