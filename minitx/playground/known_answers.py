"""Test questions of a task as examples, and right answers where the task computes them."""

import inspect
from functools import cached_property
from itertools import repeat
from typing import Any

import torch

from minitx.config.errors import ConfigError
from minitx.data.example_texts import example_texts
from minitx.data.prompts import padded
from minitx.data.tasks import LengthTask
from minitx.inference.predictor import Predictor

EXAMPLES = 3
MAX_TOKENS = 40
"""Of running text as an example; the model continues it."""
WITHOUT_EXAMPLES = (ConfigError, OSError, NotImplementedError)
"""Errors of a task without its data: an imported model, a corpus that is no longer there."""


class Questions:
    """The questions of a predictor's task."""

    def __init__(self, predictor: Predictor) -> None:
        self.task, self.tokenizer = predictor.task, predictor.tokenizer

    @property
    def form(self) -> str:
        """The first sentence of the task's description."""
        return (inspect.getdoc(type(self.task)) or "").split("\n\n")[0].replace("\n", " ")

    @cached_property
    def examples(self) -> list[dict[str, str | None]]:
        """Prompts with their answers; reading a corpus may take seconds."""
        try:
            found = self.task.examples(self.task.final_split, 8 * EXAMPLES)
            prompts, answers = example_texts(found, self.tokenizer, MAX_TOKENS)
        except WITHOUT_EXAMPLES:
            return []
        pairs: Any = zip(prompts, answers or repeat(None), strict=False)
        if answers is None:  # running text, from the start of a line where there is one
            pairs = [(prompt.partition("\n")[2] or prompt, None) for prompt in prompts]
        usable = [(prompt, answer) for prompt, answer in pairs if prompt.strip() and "\ufffd" not in prompt]
        longest = sorted(usable, key=lambda pair: -len(pair[0]))[::EXAMPLES][:EXAMPLES]  # of different lengths
        return [{"prompt": prompt, "answer": answer} for prompt, answer in longest]

    def right_answer(self, prompt: str, ids: list[int]) -> list[int] | None:
        """The ids of the answer, of a masked text all of its ids; None where they are unknown."""
        known = {each["prompt"]: each["answer"] for each in vars(self).get("examples", [])}
        if (answer := known.get(prompt)) is not None:
            return self.tokenizer.encode_answer(answer, self.task.kind)
        if not isinstance(self.task, LengthTask) or len(ids) < self.task.shortest or self.task.divide(ids)[1]:
            return None
        target, keep = self.task.answer(*padded([ids], self.tokenizer.special.pad, torch.device("cpu")))
        return target[keep].tolist() or None
