"""How to write: the options of `generate`, named as Hugging Face names them. No torch: the command line reads this."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed")
BEAMS = ("length_penalty", "early_stopping")


@dataclass(frozen=True)
class GenerationOptions:
    """Options of one call; None leaves a thing out.

    Raises:
        ValueError: a number out of its range, or options that contradict each other.
    """

    max_new_tokens: int | None = None
    """The most tokens to write. Default: as many as the task's longest answer; 200 for running text."""
    min_new_tokens: int = 0
    """Do not end before so many tokens."""
    do_sample: bool = False
    """Draw tokens instead of taking the most likely."""
    temperature: float | None = None
    """With do_sample: below 1 sharper, above 1 flatter."""
    top_k: int | None = None
    """With do_sample: the k most likely tokens only."""
    top_p: float | None = None
    """With do_sample: the smallest set of tokens with at least this probability (nucleus sampling)."""
    min_p: float | None = None
    """With do_sample: tokens at least this share as likely as the most likely one."""
    seed: int | None = None
    """With do_sample: makes the text repeatable, whatever the batch that it is written in."""
    repetition_penalty: float = 1.0
    """Above 1: what stands already becomes less likely."""
    no_repeat_ngram_size: int = 0
    """Never write the same n tokens twice; 0 does not care."""
    num_beams: int = 1
    """Beginnings that beam search keeps; 1 takes the most likely token each time."""
    length_penalty: float | None = None
    """With num_beams: rank by log-probability / length^length_penalty. Default: 1."""
    early_stopping: bool | Literal["never"] | None = None
    """With num_beams: stop as soon as num_beams texts have ended (true), when no other looks better at its present
    length (false, the default), or when none could become better ("never")."""
    num_return_sequences: int = 1
    """Texts for each prompt: with do_sample so many draws, with num_beams the best so many."""
    stop: list[str] | None = None
    """Tokens at which to stop besides the end; they are not part of the text."""

    compile: bool = False
    """Compile the step that writes a token: many seconds at first, faster after. Not with num_beams."""

    def __post_init__(self) -> None:
        for name, least in (
            ("max_new_tokens", 1),
            ("min_new_tokens", 0),
            ("no_repeat_ngram_size", 0),
            ("num_beams", 1),
            ("num_return_sequences", 1),
            ("top_k", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        for name, good, expected in (
            ("temperature", self.temperature is None or self.temperature > 0, "larger than 0"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", self.min_p is None or 0 <= self.min_p <= 1, "in [0, 1]"),
            ("repetition_penalty", self.repetition_penalty > 0, "larger than 0"),
            ("early_stopping", self.early_stopping in (None, True, False, "never"), "true, false or never"),
        ):
            if not good:
                raise ValueError(f"{name} must be {expected}, got {getattr(self, name)}")
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise ValueError(
                f"min_new_tokens must be at most max_new_tokens, got {self.min_new_tokens} and {self.max_new_tokens}"
            )
        self._fit_together()

    def _fit_together(self) -> None:
        if self.compile and self.num_beams > 1:
            told = f"beams change places in the cache, got num_beams {self.num_beams}"
            raise ValueError(f"compile and num_beams exclude each other: {told}")
        if self.do_sample and self.num_beams > 1:
            told = f"beam search does not draw, got num_beams {self.num_beams}"
            raise ValueError(f"do_sample and num_beams exclude each other: {told}")
        for names, needed, there in (
            (SAMPLING, "do_sample", self.do_sample),
            (BEAMS, "num_beams above 1", self.num_beams > 1),
        ):
            given = [name for name in names if getattr(self, name) is not None]
            if given and not there:
                why = ": without it the most likely token is always taken" if names is SAMPLING else ""
                raise ValueError(f"{given[0]} needs {needed}{why}")
        if not self.do_sample and self.num_return_sequences > self.num_beams:
            raise ValueError(
                f"num_return_sequences must be at most num_beams without do_sample, got {self.num_return_sequences} "
                f"and {self.num_beams}"
            )

    @classmethod
    def of(cls, given: dict[str, Any]) -> GenerationOptions:
        """The options of a call.

        Raises:
            TypeError: one that is not known.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        for name in given:
            if name not in known:
                raise TypeError(f"generate() got an unexpected argument {name!r}")
        return cls(**given)

    def filters(self) -> dict[str, Any]:
        """What sampling.sampler takes."""
        given = {name: getattr(self, name) for name in SAMPLING[:-1]}
        return {name: value for name, value in given.items() if value is not None}
