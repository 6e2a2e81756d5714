"""Beyond the trained length, by position scheme and position ids: the study of Kazemnejad et al. 2023 at a small size.

    python -m benchmarks.lengths copy reverse --jobs 2      train the missing runs, then write docs/lengths.md
    python -m benchmarks.lengths copy --schemes fire pope   these schemes; the records of the others are kept
    python -m benchmarks.lengths                            only write the page from the recorded runs

The configs copy_lengths and reverse_lengths without what makes them generalize (special tokens around the question,
ids shared with the answer), all schemes with their default options, three seeds.
"""

import argparse
import json
from typing import Any

from benchmarks.common import DOCS, RESULTS, machines, table, trained
from minitx.nn import POSITIONS
from minitx.plotting.curves import Curve, accuracy_by_length
from minitx.sweeps.tables import shown

TRAINED, LENGTHS, SEEDS = (1, 20), "1:40", 3
KEPT = RESULTS / "lengths"
PUBLISHED = {  # exact match in percent at 21 to 40, 108M parameters
    "copy": {"t5": 54.9, "alibi": 42.7, "none": 39.3, "sinusoidal": 3.4, "rope": 1.5},
    "reverse": {"t5": 24.2, "none": 23.0, "alibi": 17.1, "rope": 7.7, "sinusoidal": 2.3},
}
OVERRIDES = (
    "--trainer.max_steps=1000", "--trainer.val_every_n_steps=1000", "--data.validation_size=200",
    "--data.test_size=200", "--log.attention.every_n_validations=0", "--data.add_bos=false", "--data.add_eos=false",
    "--model.n_heads=4", "--model.qk_norm=true", "--trainer.precision=auto",
)  # fmt: skip
OPTIONS = {
    "learned": ", max_len: 256",
    "rope": ", base: 10000.0",
    "t5": ", buckets: 32, max_distance: 128, bidirectional: false",
}
SCHEMES = {name: f"{{name: {name}{OPTIONS.get(name, '')}}}" for name in POSITIONS}
IDS = {"consecutive": "{name: consecutive}", "randomized": "{name: randomized, range: 256, longest: 96}"}


def train(task: str, schemes: list[str], jobs: int) -> None:
    words = ["--config", str(DOCS.parent / "configs" / f"{task}_lengths.yaml"), *OVERRIDES]
    words += [f"--run.name={task}", "--run.folder=runs/lengths"]
    values = {"model.position": [SCHEMES[name] for name in schemes], "model.position_ids": [*IDS.values()]}
    rows = trained(words, values, SEEDS, LENGTHS, jobs)
    names = {written: name for name, written in [*SCHEMES.items(), *IDS.items()]}
    kept = [
        {
            "scheme": names[row["settings"]["model.position"]],
            "ids": names[row["settings"]["model.position_ids"]],
            "exact_match": {length: figures["exact_match"] for length, figures in row["by_length"].items()},
            **{key: row[key] for key in ("seed", "seconds", "steps", "parameters", "machine")},
        }
        for row in rows
    ]
    KEPT.mkdir(parents=True, exist_ok=True)
    file = KEPT / f"{task}.json"
    recorded = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    kept = [*(row for row in recorded if row["scheme"] not in schemes), *kept]
    file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def mean(row: dict[str, Any], first: int, last: int) -> float | None:
    """Mean exact match over lengths with equal weight; None if the scheme does not support them all."""
    found = [share for length, share in row["exact_match"].items() if first <= int(length) <= last]
    return sum(found) / len(found) if len(found) == last - first + 1 else None


def spread(rows: list[dict[str, Any]], first: int, last: int) -> str:
    means = [value for row in rows if (value := mean(row, first, last)) is not None]
    return shown("exact_match", means) if len(means) == len(rows) > 0 else "-"


def section(task: str) -> str:
    """The table and the figures of one task."""
    rows = json.loads((KEPT / f"{task}.json").read_text(encoding="utf-8"))
    lines = []
    for scheme in SCHEMES:
        by_ids = {name: [row for row in rows if (row["scheme"], row["ids"]) == (scheme, name)] for name in IDS}
        if not any(by_ids.values()):
            continue  # not measured yet
        cells = [spread(by_ids[name], *span) for name in IDS for span in (TRAINED, (21, 40))]
        lines.append([f"`{scheme}`", *cells, PUBLISHED[task].get(scheme, "-")])
    header = ["scheme", *(f"{name}, {span}" for name in IDS for span in ("1-20", "21-40")), "published, 21-40"]
    pictures = "\n\n".join(f"![{task}, {name} ids](images/lengths_{task}_{name}.png)" for name in IDS)
    seconds = shown("seconds", [row["seconds"] for row in rows])
    where = f"{len(rows)} runs of {rows[0]['steps']:,} steps, {seconds} s each; {machines(rows)}; "
    where += f"`python -m benchmarks.lengths {task}`"
    return f"## {task.capitalize()}\n\n{table(header, lines)}\n\n{pictures}\n\n({where})"


def draw(task: str) -> None:
    """Draw a figure for each kind of position ids."""
    rows = json.loads((KEPT / f"{task}.json").read_text(encoding="utf-8"))
    for name in IDS:
        curves = []
        for scheme in SCHEMES:
            mine = [row for row in rows if (row["scheme"], row["ids"]) == (scheme, name)]
            if not mine:
                continue
            reached = sorted(map(int, mine[0]["exact_match"]))
            curves.append(Curve(scheme, reached, [[row["exact_match"][str(at)] for row in mine] for at in reached]))
        title = f"{task}, {name} ids: exact match by length, {SEEDS} seeds"
        accuracy_by_length(DOCS / "images" / f"lengths_{task}_{name}.png", curves, title, TRAINED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(PUBLISHED))
    parser.add_argument("--schemes", nargs="*", choices=SCHEMES, default=[*SCHEMES])
    parser.add_argument("--jobs", type=int, default=1)
    arguments = parser.parse_args()
    for task in arguments.tasks:
        train(task, arguments.schemes, arguments.jobs)
    page = DOCS / "lengths.md"
    before = page.read_text(encoding="utf-8").partition("<!-- lengths -->")[0]
    there = [task for task in PUBLISHED if (KEPT / f"{task}.json").exists()]
    for task in there:
        draw(task)
    page.write_text(f"{before}<!-- lengths -->\n\n" + "\n\n".join(map(section, there)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
