"""What the heads of a trained model do, measured over many held-out examples.

Legend: N examples, T queries, S keys, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator

from minitx.config.errors import ConfigError
from minitx.data.examples import Examples
from minitx.data.prompts import labels
from minitx.data.splits import Split
from minitx.evaluation.metrics import evaluating
from minitx.inference.predictor import Predictor
from minitx.interpret.attention_maps import KINDS, AttentionMaps, attention_maps
from minitx.interpret.head_statistics import HeadSums
from minitx.interpret.recording import attention_modules
from minitx.tensorboard.map_format import Statistic

EXAMPLES = 256
"""How many examples tell what a head does."""
LONGEST = 256
"""Of running text, this many tokens of each example are looked at."""
ROOM = 2**26
"""Weights that are held at a time: 256 MiB."""


def task_statistics(
    predictor: Predictor, examples: int | Examples = EXAMPLES, split: Split | None = None
) -> dict[str, list[Statistic]]:
    """The statistics of every head over held-out examples, each with its right answer.

    Args:
        predictor: whose heads to look at.
        examples: how many, or those that are meant.
        split: where they are from; by default where a finished run is measured.

    Returns:
        For each kind of attention that there is (encoder, decoder, cross) a list as head_statistics makes it: means
        over the rows of all examples that count.

    Raises:
        ConfigError: no example at all.
    """
    if isinstance(examples, int):
        if examples < 1:
            raise ConfigError(f"the number of examples must be at least 1, got {examples}")
        examples = predictor.task.examples(split or predictor.task.final_split, examples)
    examples = examples.clip(LONGEST)
    sums = {kind: HeadSums() for kind in KINDS}
    for maps, size in _maps(predictor, examples):
        for kind, heads in sums.items():
            for example in range(size if getattr(maps, kind) else 0):
                heads.add(maps.layers(kind, example))
    return {kind: statistics for kind, heads in sums.items() if (statistics := heads.statistics())}


def _maps(predictor: Predictor, examples: Examples) -> Iterator[tuple[AttentionMaps, int]]:
    """Maps of as many examples at a time as there is room for, and how many those are."""
    heads = sum(part.n_heads for part in attention_modules(predictor.model).values())
    at_once = max(1, ROOM // (heads * examples.width**2))
    for start in range(0, len(examples), at_once):
        part = examples.slice(start, start + at_once).to(predictor.device)
        batch = part.frame(predictor.architecture, predictor.tokenizer.special)
        with evaluating(predictor.model):
            maps = attention_maps(predictor.model, batch.model_inputs(), labels(batch, predictor.tokenizer))
        yield maps, len(part)
