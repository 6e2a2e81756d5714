"""Held-out examples and their texts: the split, and the parts of them that a log or a page shows."""

import inspect
from collections.abc import Iterable
from itertools import pairwise

import torch

from minitx.config.errors import ConfigError, counted
from minitx.data.examples import Examples, Masked, Pairs, Stream
from minitx.data.splits import SPLITS, Split
from minitx.data.tasks import Task
from minitx.data.tokenizers import MASK, SpecialIds, Tokenizer

Rows = list[list[int]]


def purpose(task: Task) -> str:
    """A line about a task: the languages of a translation, which its docstring lacks; else that docstring's start."""
    languages = [getattr(task, side, None) for side in ("source", "target")]
    if all(languages):
        return "Sentences to translate from {} to {}.".format(*languages)
    return (inspect.getdoc(type(task)) or "").split("\n\n")[0].replace("\n", " ")


def held_out_split(task: Task, name: str | None) -> Split:
    """The held-out split of this name, which --split gives; by default the final one."""
    if name is None:
        return task.final_split
    if name not in SPLITS or name == "training":
        raise ConfigError(f"--split must be test or validation, got {name}")
    return name


def counted_examples(examples: int, split: str, path: str | None = None) -> str:
    """The source of figures: 12 examples held out for test, or 12 examples of the file that --path gives."""
    return f"{counted(examples, 'example')} {f'held out for {split}' if path is None else f'of {path}'}"


def clipped(examples: Examples, max_tokens: int) -> Examples:
    """The same examples with at most max_tokens of running text to read; questions and answers are kept whole."""
    if isinstance(examples, Pairs):
        return examples
    end = max_tokens + isinstance(examples, Stream)  # of a stream, a model reads all but the last
    return examples.map(lambda part: part[:, :end])


def example_texts(examples: Examples, tokenizer: Tokenizer, max_tokens: int) -> tuple[list[str], list[str] | None]:
    """Prompts and answers, see example_ids, as texts without special tokens except <mask>."""
    prompts, answers = example_ids(examples, tokenizer.special, max_tokens)
    known = None if answers is None else [*map(tokenizer.decode, answers)]
    return [decode_masked(ids, tokenizer) for ids in prompts], known


def example_ids(examples: Examples, special: SpecialIds, max_tokens: int) -> tuple[Rows, Rows | None]:
    """Prompts and their answers, if any, with padding and other special tokens; given tokens belong to the prompt.

    Of running text, the longest document within max_tokens of each block; of a masked one, with masks and without.
    """
    if isinstance(examples, Pairs):
        source, target, pad = examples.source, examples.target, special.pad
        if examples.given is not None:
            source = torch.cat((source, target.masked_fill(~examples.given, pad)), dim=1)
            target = target.masked_fill(examples.given, pad)
        return source.tolist(), target.tolist()
    assert isinstance(examples, Stream | Masked)
    rows = (examples.ids if isinstance(examples, Stream) else examples.target).tolist()
    parts = [_longest_document(row[:max_tokens], special.eos) for row in rows]
    whole = [row[part] for row, part in zip(rows, parts, strict=True)]
    if isinstance(examples, Stream):
        return whole, None
    return [row[part] for row, part in zip(examples.source.tolist(), parts, strict=True)], whole


def decode_masked(ids: Iterable[int], tokenizer: Tokenizer) -> str:
    """The text of ids, without the special tokens except <mask>."""
    pieces: list[list[int]] = [[]]
    for token in ids:
        if token == tokenizer.special.mask:
            pieces.append([])
        else:
            pieces[-1].append(token)
    return MASK.join(map(tokenizer.decode, pieces))


def _longest_document(row: list[int], eos: int) -> slice:
    """The longest run of tokens without `eos`."""
    borders = [-1, *(index for index, token in enumerate(row) if token == eos), len(row)]
    start, stop = max(pairwise(borders), key=lambda pair: pair[1] - pair[0])
    return slice(start + 1, stop)
