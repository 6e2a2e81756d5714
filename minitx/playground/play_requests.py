"""The requests of the page, except those of inspection.py: their fields, and what each computes."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any, ClassVar

import torch
from torch import Tensor

from minitx.config.errors import ConfigError, did_you_mean
from minitx.data.example_texts import example_texts, purpose
from minitx.data.prompts import padded, with_given
from minitx.data.tasks import LengthTask
from minitx.data.tasks.base import MODULES
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from minitx.interpret.ablation import ablate, mean_outputs
from minitx.interpret.intervene import At, intervene
from minitx.interpret.parts import Part, all_parts, in_place_of
from minitx.models.transformers import EncoderOnly
from minitx.playground.beam_tree import beam_tree
from minitx.playground.written_steps import filled, written

EXAMPLES = 3
MAX_TOKENS = 40
"""Maximum number of tokens of an example of running text, which the model continues."""
ABLATION_EXAMPLES = 100
MEAN_EXAMPLES = 64
"""Held-out examples over which means are taken."""


class Session:
    """A model that the page shows, its task's questions, and the means of its activations.

    checkpoint and imports are those of the command line, for the commands on the page.
    """

    def __init__(self, predictor: Predictor, checkpoint: str = "CHECKPOINT", imports: Iterable[str] = ()) -> None:
        self.predictor, self.task, self.tokenizer = predictor, predictor.task, predictor.tokenizer
        self.checkpoint, self.imports = checkpoint, [*imports]

    def description(self) -> dict[str, Any]:
        """The properties of the model that the page shows."""
        predictor, special, task = self.predictor, self.tokenizer.special, self.task
        form = purpose(task).replace("`", '"')
        question, arrow, _ = form.partition(" -> ")
        if quoted := re.search('"(.+?)"', question):  # in a sentence
            question = quoted[1]
        return {
            "name": predictor.config.run.name,
            "checkpoint": self.checkpoint,
            "imports": self.imports,
            "architecture": predictor.architecture,
            "task": predictor.config.data["name"],
            "data": self.has_data,
            "kind": task.kind,
            "form": f"{'Example' if arrow and not quoted else 'Task'}: {form}",
            "example": question if arrow and self._is_readable(question) else "",
            "separator": task.separator,
            "tokens": self.tokenizer.tokens(range(self.tokenizer.vocab_size)),
            "special": [*{*special} - {-1}],
            "mask": special.mask,
            "eos": special.eos,
            "parts": [*self.parts],
        }

    @property
    def has_data(self) -> bool:
        """Whether the task has examples, as far as is known without reading a corpus: imported tasks have none."""
        imported = self.predictor.config.data["name"] in MODULES["imported"].split()
        return not imported or bool(getattr(self.task, "path", ""))

    def warm_up(self) -> None:
        """Import what the first text needs, which takes seconds."""
        ids = [token for token in range(self.tokenizer.vocab_size) if token not in self.tokenizer.special]
        with suppress(ConfigError):
            [*self.steps(ids[:1], GenerationOptions(), {})]

    def steps(self, ids: list[int], options: GenerationOptions, forced: dict[int, int]) -> Iterator[dict[str, Any]]:
        """The text token by token, for any architecture."""
        if isinstance(self.predictor.model, EncoderOnly):
            return filled(self.predictor, ids, forced)
        return written(self.predictor, ids, options, forced)

    @cached_property
    def examples(self) -> list[dict[str, str | None]]:
        """Test questions with their answers; reading a corpus may take seconds."""
        try:
            found = self.task.examples(self.task.final_split, 8 * EXAMPLES)
            most = self.task.longest[1] // (2 if self.task.kind == "stream" else 1)  # beams need the rest of a block
            prompts, answers = example_texts(found, self.tokenizer, min(MAX_TOKENS, max(most, 1)))
        except (ConfigError, OSError, NotImplementedError):  # an imported model; a corpus that was removed
            return []
        if answers is None:  # running text, from the start of a line if there is one
            prompts = [prompt.partition("\n")[2] or prompt for prompt in prompts]
        pairs = zip(prompts, answers or repeat(None), strict=False)
        usable = [pair for pair in pairs if pair[0].strip() and self._is_readable(pair[0])]
        longest = sorted(usable, key=lambda pair: -len(pair[0]))[::EXAMPLES][:EXAMPLES]  # of different lengths
        return [{"prompt": prompt, "answer": answer} for prompt, answer in longest]

    def _is_readable(self, prompt: str) -> bool:
        """Whether a decoded prompt has no cut character and has tokens: words of a word tokenizer may be joined."""
        with suppress(ConfigError):
            return "\ufffd" not in prompt and bool(self.predictor.encode(prompt))
        return False

    def right_answer(self, prompt: str, ids: list[int]) -> list[int] | None:
        """The ids of the answer, of a masked text all of its ids; None if they are unknown."""
        known = {each["prompt"]: each["answer"] for each in vars(self).get("examples", [])}
        if (answer := known.get(prompt)) is not None:
            return self.tokenizer.encode_answer(answer, self.task.kind)
        if not isinstance(self.task, LengthTask) or len(ids) < self.task.shortest or self.task.divide(ids)[1]:
            return None
        target, keep = self.task.answer(*padded([ids], self.tokenizer.special.pad, torch.device("cpu")))
        return target[keep].tolist() or None

    @cached_property
    def parts(self) -> dict[str, Part]:
        """Every head and feed-forward network by its name, such as cross.2.1 and decoder.1.ffn."""
        return {str(part): part for several in all_parts(self.predictor.model).values() for part in several}

    @cached_property
    def means(self) -> dict[str, Tensor]:
        """The mean output of each part over held-out examples.

        Raises:
            ConfigError: the task has no examples, such as that of an imported model.
        """
        examples = self.task.examples(self.task.final_split, MEAN_EXAMPLES)
        return mean_outputs(self.predictor, self.parts.values(), examples)

    def changes(self, names: Sequence[str], value: str) -> dict[str, At]:
        """For intervene: a value in place of the outputs of parts."""
        if unknown := [name for name in names if name not in self.parts]:
            sentence = f"there is no part {unknown[0][:80]!r} in this model"
            raise ConfigError(f"{sentence}: {did_you_mean(unknown[0], self.parts)}")
        return in_place_of([self.parts[name] for name in names], value)


@dataclass(kw_only=True)
class Prompted:
    """A request about one text."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    prompt: str
    off: list[str] = field(default_factory=list)
    """Parts whose output is zero, such as cross.2.1 and decoder.1.ffn."""
    mean: list[str] = field(default_factory=list)
    """Parts whose output is their mean over held-out examples."""

    def compute(self, session: Session, ids: list[int]) -> Iterator[dict[str, Any]]:
        """The lines of the answer, for the ids of the prompt."""
        raise NotImplementedError

    def answer(self, session: Session) -> Iterator[dict[str, Any]]:
        """The lines of the answer, without the parts that are switched off."""
        ids = session.predictor.encode(self.prompt)
        off, mean = session.changes(self.off, "zero"), session.changes(self.mean, "mean")
        model, means = session.predictor.model, session.means if mean else None
        with intervene(model, off), intervene(model, mean, means):
            yield from self.compute(session, ids)


@dataclass(kw_only=True)
class Write(Prompted):
    """The text, see written_steps.py; then the right answer, if it is known."""

    options: GenerationOptions = field(default_factory=GenerationOptions)
    forced: dict[int, int] = field(default_factory=dict)

    def compute(self, session: Session, ids: list[int]) -> Iterator[dict[str, Any]]:
        """The steps and the answer, as ids and as text."""
        yield from session.steps(ids, self.options, self.forced)
        if (answer := session.right_answer(self.prompt, ids)) is None:
            yield {"answer": None, "answer_text": None}
        else:  # tokens that the task gives are among the steps, and not in the text
            given = session.task.divide(ids)[1]
            yield {"answer": with_given(given, answer)[0], "answer_text": session.tokenizer.decode(answer)}


@dataclass(kw_only=True)
class BeamTree(Prompted):
    """The tree of beam search, see beam_tree.py."""

    options: GenerationOptions

    def compute(self, session: Session, ids: list[int]) -> Iterator[dict[str, Any]]:
        """One line."""
        return beam_tree(session.predictor, ids, self.options)


@dataclass(kw_only=True)
class Ablate:
    """The metrics without each part."""

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}

    def answer(self, session: Session) -> Iterator[dict[str, Any]]:
        """One line."""
        yield ablate(session.predictor, examples=ABLATION_EXAMPLES, parts="heads,ffn").to_dict()
