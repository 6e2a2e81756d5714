"""Lengths of the examples for training, validation and test of every task, with its default options.

python -m benchmarks.splits [--multi30k FOLDER]       the folder of Multi30k's files, for translation (data/README.md)
"""

import argparse
from typing import Any

import torch
from torch import Tensor

from benchmarks.common import record, table
from minitx.config.registry import build
from minitx.data.examples import Pairs
from minitx.data.splits import SPLITS, Split
from minitx.data.tasks import TASKS, QuestionTask, Task, generator

TRAINING_EXAMPLES = 50_000
BATCH = 1000
MAX_COLUMNS = 16
"""More different lengths are shown in groups of ten."""
TEXT = {"path": "python_code", "tokenizer": {"name": "char"}, "test_share": 0.1}
OPTIONS: dict[str, dict[str, Any]] = {"text": TEXT, "masked_text": TEXT}
UNITS = {
    "addition": "digits of the operands", "dates": "characters", "number_words": "digits of the number",
    "text": "tokens of a block", "masked_text": "tokens of a block", "markov": "tokens of a block",
    "translation": "tokens of the source", "counting": "symbols of the answer",
}  # fmt: skip
"""The unit of a question's length if it is not the number of symbols."""


def lengths(task: Task, split: Split) -> Tensor:
    """The lengths of a split's examples, int64 [N]; for training of a sample."""
    stratified = isinstance(task, QuestionTask) and task.has_lengths
    if stratified:  # strata are those of questions as they are sampled
        task.answered = lambda source, keep: Pairs(source, keep, source[:, :1], keep[:, :1])  # type: ignore[attr-defined]
    if split == "training":
        size = task.batch_size if hasattr(task, "buckets") else BATCH  # a batch of translation has pairs of one length
        parts = [task.batch(generator(number), size) for number in range(TRAINING_EXAMPLES // size)]
    else:
        parts = [task.examples(split)]
    if stratified:
        return torch.cat([task.strata(part.source, part.source_keep) for part in parts])  # type: ignore[attr-defined]
    if task.kind == "pairs":
        return torch.cat([part.source_keep.sum(dim=1) for part in parts])  # type: ignore[attr-defined]
    return torch.cat([torch.full((len(part),), part.width - (task.kind == "stream")) for part in parts])


def shares(task: Task, found: Tensor) -> dict[str, float]:
    """The share of each length, or of each group of ten."""
    counts = found.bincount()
    if (counts > 0).sum() <= MAX_COLUMNS:
        names = {int(length): str(int(length)) for length in counts.nonzero()}
        if hasattr(task, "digits"):  # of two operands, in one number
            names = {length: "+".join(map(str, divmod(length, task.digits[1] + 1))) for length in names}
        return {name: float(counts[length]) / len(found) for length, name in names.items()}
    grouped = (found.clamp(min=1) - 1) // 10
    return {
        f"{10 * ten + 1}-{10 * ten + 10}": float(count) / len(found)
        for ten, count in enumerate(grouped.bincount())
        if count
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--multi30k", help="folder with train.de, val.de, test_2016.de and their translations")
    folder = parser.parse_args().multi30k
    options = {**OPTIONS, **({"translation": {"path": folder, "test": "test_2016"}} if folder else {})}
    rows, lines = [], []
    for name in sorted(TASKS):
        if name.startswith("imported") or (name == "translation" and not folder):
            continue
        task: Task = build(TASKS, {"name": name, **options.get(name, {})}, "data")
        for split in SPLITS:
            found = lengths(task, split)
            shared = shares(task, found)
            rows.append({"task": name, "split": split, "examples": len(found), "shares": shared})
            title = [f"`{name}`", UNITS.get(name, "symbols")] if split == "training" else ["", ""]
            size = "sampled" if split == "training" else f"{len(found):,}"
            lines.append([*title, split, size, ", ".join(f"{key}: {100 * share:.1f}" for key, share in shared.items())])
    record(
        "splits", rows, table(["task", "length in", "split", "examples", "share of each length, %"], lines), "splits.md"
    )


if __name__ == "__main__":
    main()
