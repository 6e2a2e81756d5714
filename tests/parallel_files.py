"""Files in two made-up languages that translate into each other word by word."""

import random
from pathlib import Path

WORDS = {
    "null": "zero", "eins": "one", "zwei": "two", "drei": "three", "vier": "four",
    "sechs": "six", "sieben": "seven", "acht": "eight", "neun": "nine", "zehn": "ten",
}  # fmt: skip
HELD_OUT = 12


def made_up(count: int, seed: int, longest: int = 6) -> list[tuple[str, str]]:
    """Different sentences of 1 to `longest` words, each with its translation."""
    draw, found = random.Random(seed), {}
    while len(found) < count:
        words = draw.choices(list(WORDS), k=draw.randint(1, longest))
        found[" ".join(words)] = " ".join(WORDS[word] for word in words)
    return list(found.items())


def write_split(folder: Path, name: str, pairs: list[tuple[str, str]], languages=("de", "en")) -> None:
    for side, language in enumerate(languages):
        (folder / f"{name}.{language}").write_text("".join(pair[side] + "\n" for pair in pairs))


def make_files(folder: Path) -> Path:
    """100 pairs for training, HELD_OUT each for val and test, their last word unlike any of made_up."""
    write_split(folder, "train", made_up(100, seed=5))
    held_out = [(f"{source} elf", f"{target} eleven") for source, target in made_up(2 * HELD_OUT, seed=6)]
    write_split(folder, "val", held_out[:HELD_OUT])
    write_split(folder, "test", held_out[HELD_OUT:])
    return folder
