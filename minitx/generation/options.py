"""Options of `generate`, with Hugging Face's names. Without torch, since the command line imports this file."""

from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal

FILTER_OPTIONS = ("temperature", "top_k", "top_p", "min_p")
SAMPLING_OPTIONS = (*FILTER_OPTIONS, "seed")
BEAM_OPTIONS = ("length_penalty", "early_stopping")
MAX_TEXTS = 10_000  # maximum number of beams, or of texts for one prompt: all are in memory at once

_INTEGER, _NUMBER = (Integral, "an integer"), (Real, "a number")
TYPES: dict[Any, tuple[Any, str]] = {  # of a value, by its annotation
    int: _INTEGER, int | None: _INTEGER, float: _NUMBER, float | None: _NUMBER, bool: (bool, "true or false"),
    list[str] | None: (list | tuple | str, "a list of texts"),
}  # fmt: skip


@dataclass(frozen=True)
class GenerationOptions:
    """Options of one call.

    Raises:
        ValueError: a number out of range, or options that exclude each other.
    """

    max_new_tokens: int | None = None
    """Maximum number of new tokens. Default: the task's longest answer or a longer question; 200 for running text."""
    min_new_tokens: int = 0
    """Minimum number of new tokens."""
    do_sample: bool = False
    """Sample tokens instead of taking the most likely."""
    temperature: float | None = None
    """With do_sample: below 1 sharper, above 1 flatter."""
    top_k: int | None = None
    """With do_sample: the k most likely tokens only."""
    top_p: float | None = None
    """With do_sample: the smallest set of tokens with at least this probability (nucleus sampling)."""
    min_p: float | None = None
    """With do_sample: only tokens with at least this fraction of the most likely token's probability."""
    seed: int | None = None
    """With do_sample: makes a text repeatable, in any batch."""
    repetition_penalty: float = 1.0
    """Above 1: tokens that occur already become less likely."""
    no_repeat_ngram_size: int = 0
    """No n-gram of this size occurs twice; 0 disables it."""
    num_beams: int = 1
    """Number of beams of beam search; 1 is greedy search."""
    length_penalty: float | None = None
    """With num_beams: rank by log-probability / length^length_penalty. Default: 1."""
    early_stopping: bool | Literal["never"] | None = None
    """With num_beams: stop as soon as num_beams texts have ended (true), when no running beam has a better score at its
    current length (false, the default), or when none can reach a better one ("never")."""
    num_return_sequences: int = 1
    """Number of texts for each prompt: samples with do_sample, the best beams with num_beams."""
    stop: list[str] | None = None
    """Tokens that end a text like `<eos>`; they are not part of it."""
    compile: bool = False
    """Compile the step of one token: many seconds at first, faster afterwards."""

    def __post_init__(self) -> None:
        for field in fields(self):
            (kind, expected), value = TYPES.get(field.type, (object, "")), getattr(self, field.name)
            other = not isinstance(value, kind) or (isinstance(value, bool) and kind in (Integral, Real))
            if other and value is not field.default:
                raise ValueError(f"{field.name} must be {expected}, got {value!r}")
        is_bool = isinstance(self.early_stopping, bool)  # 1 is not True to beam search
        for name, valid, expected in (
            ("max_new_tokens", self.max_new_tokens is None or self.max_new_tokens >= 1, "at least 1"),
            ("min_new_tokens", self.min_new_tokens >= 0, "at least 0"),
            ("no_repeat_ngram_size", self.no_repeat_ngram_size >= 0, "at least 0"),
            ("num_beams", 1 <= self.num_beams <= MAX_TEXTS, f"between 1 and {MAX_TEXTS}"),
            ("num_return_sequences", 1 <= self.num_return_sequences <= MAX_TEXTS, f"between 1 and {MAX_TEXTS}"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1"),
            ("temperature", self.temperature is None or self.temperature > 0, "larger than 0"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", self.min_p is None or 0 <= self.min_p <= 1, "in [0, 1]"),
            ("length_penalty", self.length_penalty is None or abs(self.length_penalty) <= 5, "between -5 and 5"),
            ("repetition_penalty", self.repetition_penalty > 0, "larger than 0"),
            ("stop", all(isinstance(text, str) for text in self.stop or ()), "a list of texts"),
            ("early_stopping", self.early_stopping in (None, "never") or is_bool, "true, false or never"),
        ):
            if not valid:
                raise ValueError(f"{name} must be {expected}, got {getattr(self, name)}")
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            got = f"got {self.min_new_tokens} and {self.max_new_tokens}"
            raise ValueError(f"min_new_tokens must be at most max_new_tokens, {got}")
        if self.do_sample and self.num_beams > 1:
            reason = f"beam search does not sample, got num_beams {self.num_beams}"
            raise ValueError(f"do_sample and num_beams exclude each other: {reason}")
        for name in SAMPLING_OPTIONS:
            if getattr(self, name) is not None and not self.do_sample:
                raise ValueError(f"{name} needs do_sample: without it the most likely token is always taken")
        for name in BEAM_OPTIONS:
            if getattr(self, name) is not None and self.num_beams == 1:
                raise ValueError(f"{name} needs num_beams above 1")
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            got = f"got {self.num_return_sequences} and {self.num_beams}"
            raise ValueError(f"num_return_sequences must be at most num_beams without do_sample, {got}")
