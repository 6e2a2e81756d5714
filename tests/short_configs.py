"""The experiments of configs/ cut down to a few steps, with texts of their own where the reader brings the text."""

from pathlib import Path
from typing import Any

import yaml

from minitx.cli.config_parser import Parser
from minitx.config.schema import Config, config_from_dict
from parallel_files import write_split


def config_from_words(*words: str) -> Config:
    """The Config of a command line: `--config FILE` and `--section.key value`, nothing else."""
    return config_from_dict(Parser(configured=True).parse_args(words).values)


def short(steps: int) -> list[str]:
    """The words that make any experiment one of a few steps, with a validation and a save at the end."""
    return [
        *[f"--trainer.{key}={steps}" for key in ("max_steps", "val_every_n_steps", "save_every_n_steps")],
        "--trainer.accelerator=cpu",
        "--trainer.precision=32-true",  # auto is a race, whose winner may change from run to run
        *(f"--data.{key}=4" for key in ("batch_size", "validation_size", "test_size")),
    ]


def shortened(path: Path, folder: Path, steps: int = 2, *more: str) -> Config:
    """An experiment of a few steps, its runs and its texts in a folder."""
    words = ["--config", str(path), *short(steps), "--run.folder", str(folder / "runs")]
    data: dict[str, Any] = yaml.safe_load(path.read_text())["data"]
    if "stages" in data:
        words += [f"--data.stages={[{**stage, 'steps': 1} for stage in data['stages'][:1]]}"]
    if data["name"] == "text":
        words += ["--data.validation_share", "0.01"]
        if data["path"].startswith("data/"):  # a text that the reader brings
            text = folder / "text.txt"
            text.write_text("What a piece of work is a man!\n" * 400)
            words += ["--data.path", str(text)]
    if data["name"] == "translation" and data["path"].startswith("data/"):  # files that the reader brings
        pairs = [(f"Zeile {number} aus einer Datei.", f"Line {number} of a file.") for number in range(40)]
        for name, part in (("train", pairs[:30]), ("val", pairs[30:35]), (data["test"], pairs[35:])):
            write_split(folder, name, part, (data["source"], data["target"]))
        words += ["--data.path", str(folder), "--data.max_tokens=20"]
    return config_from_words(*words, *more)
