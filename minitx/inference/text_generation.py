"""Text generation: prompts as ids to texts, in batches in which no prompt changes another's output, or as a stream.

Legend: B rows, P prompt tokens, T generated tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.data.examples import Prompt, question_prompt, right_aligned
from minitx.data.prompts import padded
from minitx.data.tasks.base import Task, generator, hash_seed
from minitx.data.tokenizers import Tokenizer
from minitx.generation import decode
from minitx.generation.beam import beam_search
from minitx.generation.decode import DecodeStep
from minitx.generation.logits_processors import combine_processors
from minitx.generation.options import GenerationOptions
from minitx.generation.sampling import greedy, sampler
from minitx.models.transformers import DecoderOnly, EncoderDecoder, EncoderOnly, max_positions

DEFAULT_NEW_TOKENS = 200
"""Default of max_new_tokens for running text."""

Generators = Sequence[torch.Generator]


class Generation(NamedTuple):
    """One generated text."""

    text: str
    """The continuation of the prompt, without the end token."""
    ids: list[int]
    """The generated tokens, the end token included."""
    log_probability: float
    """Natural logarithm of the probability of these tokens under the model."""
    stopped: Literal["end", "stop", "length"]
    """The reason for the end: the model's end token, a stop token, or max_new_tokens."""


class TextGenerator:
    """Generates text with a decoder.

    Args:
        model: in evaluation mode.
        tokenizer: of the model.
        task: that the model was trained on.
        config: of the model.
    """

    def __init__(
        self, model: EncoderDecoder | DecoderOnly, tokenizer: Tokenizer, task: Task, config: ModelConfig
    ) -> None:
        self.model, self.tokenizer, self.task, self.config = model, tokenizer, task, config

    def generate(self, prompts: list[list[int]], options: GenerationOptions) -> list[list[Generation]]:
        """num_return_sequences texts for each prompt; other prompts in the list do not change them."""
        result: list[list[Generation]] = [[] for _ in prompts]
        limits = [self.limit(prompt, options) for prompt in prompts]
        generators = _generators(prompts, options)
        # Rows of a batch have one limit and, in running text, one length: they exhaust the context at the same step.
        keys = [(limit, len(prompt) if self.context else 0) for limit, prompt in zip(limits, prompts, strict=True)]
        generate = self._search if options.num_beams > 1 else self._sample
        for key in sorted(set(keys)):
            rows = [row for row, own in enumerate(keys) if own == key]
            batch = [prompts[row] for row in rows], [generators[row] for row in rows]
            for row, generations in zip(rows, generate(*batch, key[0], options), strict=True):
                result[row] = generations
        return result

    def stream(self, prompt: list[int], options: GenerationOptions) -> Iterator[str]:
        """Pieces of one text as soon as they are final, in whole characters.

        Raises:
            ConfigError: beam search or several texts, and the errors of limit and ends.
        """
        _check_single("stream", options)
        steps, ends = self._steps(prompt, options, eos=()), self.ends(options)  # _pieces stops at an end
        return self._pieces(prompt, steps, ends)

    def follow(self, prompt: list[int], options: GenerationOptions) -> Generation:
        """Generate one text within one context, a forward for each of its tokens.

        Raises:
            ConfigError: beam search or several texts, or running text that exceeds the context.
        """
        _check_single("return_attention", options)
        limit = self.limit(prompt, options)
        if self.context is not None and len(prompt) + limit > self.context + 1:
            capacity = self.context + 1 - len(prompt)
            advice = f"max_new_tokens must be at most {capacity}" if capacity > 0 else "no token can be generated"
            raise ConfigError(
                f"return_attention is limited to one context: the prompt has {len(prompt)} tokens, so {advice} for "
                f"data.block {self.context}"
            )
        decoded = decode.collect([*self._steps(prompt, options, scores=True)])
        assert decoded.log_probabilities is not None  # scores were requested
        return self._generation(
            prompt, decoded.ids[0].tolist(), float(decoded.log_probabilities[0]), self.ends(options)
        )

    def labels(self, prompt: list[int], generation: Generation) -> dict[str, list[list[str]]]:
        """The tokens that the model has read for a generation, as labels of attention maps."""
        start = self._prompt([prompt])
        labels = {"target": [self.tokenizer.tokens(start.ids[0].tolist() + generation.ids[:-1])]}
        if start.source:
            labels["source"] = [self.tokenizer.tokens(start.source[0][0].tolist())]
        return labels

    @property
    def context(self) -> int | None:
        """Maximum context of running text, that of training; None for answers, which attend to everything."""
        return self.task.longest[1] if self.task.kind == "stream" else None

    def ends(self, options: GenerationOptions) -> list[int]:
        """Ids that end a text, the tokenizer's <eos> first."""
        ends = [self.tokenizer.special.eos, *self.tokenizer.special_tokens.other_ends]
        for text in options.stop or []:
            ids = self.tokenizer.encode(text)
            if len(ids) != 1:
                raise ConfigError(f"stop must name single tokens, got {text!r}, which is {len(ids)} tokens")
            ends += ids
        return ends

    def limit(self, prompt: list[int], options: GenerationOptions) -> int:
        """Maximum number of new tokens for a prompt.

        Raises:
            ConfigError: the prompt or max_new_tokens exceeds the model's positions.
        """
        context, requested = self.context, options.max_new_tokens
        default = DEFAULT_NEW_TOKENS if context else max(self.task.longest[1], len(prompt)) + 1
        positions = max_positions(self.model)
        capacity = None
        if context is not None and options.num_beams > 1:
            capacity, why = context - 1, f"beam search needs the whole text in its context, and data.block is {context}"
        elif positions is not None and (context is None or context > positions):
            first = 1 if self.config.architecture == "encoder_decoder" else len(prompt) + (context is None)
            if max(len(prompt), first) > positions:
                tokens = max(len(prompt), first)
                raise ConfigError(
                    f"the prompt has {tokens} tokens, more than the model has positions: {self._positions}"
                )
            capacity, why = positions - first + 1, self._positions  # the last token is not read
        if capacity == 0:
            raise ConfigError(f"no token can be generated: {why}")
        if requested is None:
            return default if capacity is None else min(default, capacity)
        if capacity is not None and requested > capacity:
            raise ConfigError(f"max_new_tokens must be at most {capacity} after this prompt, got {requested}: {why}")
        return requested

    @property
    def _positions(self) -> str:
        """The number of positions, and the keys that determine it."""
        name, positions = self.config.position_ids["name"], max_positions(self.model)
        if name == "consecutive":
            return f"the table of learned positions ends at model.position.max_len {positions}"
        return f"model.position_ids.name {name} with its options is limited to {positions} tokens"

    def _prompt(self, prompts: list[list[int]], cut: int | None = None) -> Prompt:
        """Prompts as tensors; of running text the last `cut` tokens, by default one context."""
        device = next(self.model.parameters()).device
        cut = self.context if cut is None else cut
        source, keep = padded([ids[-cut:] if cut else ids for ids in prompts], self.tokenizer.special.pad, device)
        if self.context is None:
            return question_prompt(source, keep, self.config.architecture, self.tokenizer.special)
        return Prompt(*right_aligned(source, keep, self.tokenizer.special))

    def _arguments(self, limit: int, options: GenerationOptions) -> dict[str, Any]:
        """Arguments of decoding that greedy search, sampling and beam search share."""
        ends, special_tokens = self.ends(options), self.tokenizer.special_tokens
        penalties = (options.repetition_penalty, options.no_repeat_ngram_size, options.min_new_tokens)
        steps = {0: special_tokens.forced_first, limit - 1: special_tokens.forced_last}
        forced = {step: token for step, token in steps.items() if token is not None}
        processor = combine_processors(ends, *penalties, never=special_tokens.never, forced=forced)
        pad = self.tokenizer.special.pad
        return {"max_new_tokens": limit, "eos": ends, "pad": pad, "logits_processor": processor}

    def _sampling(self, generators: Sequence[Generators], limit: int, options: GenerationOptions) -> dict[str, Any]:
        """Arguments of decoding token by token."""
        flat = [own for several in generators for own in several]
        choose = sampler(flat, **options.filters()) if options.do_sample else greedy
        shared = self._arguments(limit, options)
        return {**shared, "sampler": choose, "context": self.context, "compiled": options.compile}

    def _steps(self, prompt: list[int], options: GenerationOptions, **changes: Any) -> Iterator[DecodeStep]:
        """The tokens of one text."""
        start, limit = self._prompt([prompt]), self.limit(prompt, options)
        arguments = self._sampling(_generators([prompt], options), limit, options)
        return decode.steps(self.model, start.ids, *start.source, keep=start.keep, **(arguments | changes))

    def _sample(
        self, prompts: list[list[int]], generators: Sequence[Generators], limit: int, options: GenerationOptions
    ) -> list[list[Generation]]:
        """Greedy or sampled texts; those of one prompt are neighbouring rows."""
        count, ends = options.num_return_sequences, self.ends(options)
        repeated = [prompt for prompt in prompts for _ in range(count)]
        start, arguments = self._prompt(repeated), self._sampling(generators, limit, options)
        decoded = decode.generate(self.model, start.ids, *start.source, keep=start.keep, scores=True, **arguments)
        assert decoded.log_probabilities is not None  # scores were requested
        rows = zip(repeated, decoded.ids.tolist(), decoded.log_probabilities.tolist(), strict=True)
        generations = [self._generation(*row, ends) for row in rows]
        return [generations[first : first + count] for first in range(0, len(generations), count)]

    def _search(
        self, prompts: list[list[int]], generators: Sequence[Generators], limit: int, options: GenerationOptions
    ) -> list[list[Generation]]:
        """The best texts of beam search."""
        start = self._prompt(prompts, None if self.context is None else self.context - limit)
        beams = beam_search(
            self.model,
            start.ids,
            *start.source,
            keep=start.keep,
            num_beams=options.num_beams,
            length_penalty=1.0 if options.length_penalty is None else options.length_penalty,
            early_stopping=options.early_stopping or False,
            **self._arguments(limit, options),
        )
        if not bool(beams.lengths[:, 0].all()):
            raise ConfigError("no text is possible: no_repeat_ngram_size and min_new_tokens forbid every token")
        count, ends = options.num_return_sequences, self.ends(options)
        rows = zip(beams.ids.tolist(), beams.log_probabilities.tolist(), beams.lengths.tolist(), strict=True)
        return [
            [
                self._generation(prompt, ids, log_probability, ends)
                for ids, log_probability, length in list(zip(*several, strict=True))[:count]
                if length  # there may be fewer texts than beams
            ]
            for prompt, several in zip(prompts, rows, strict=True)
        ]

    def _generation(self, prompt: list[int], ids: list[int], log_probability: float, ends: list[int]) -> Generation:
        """A row up to its end token."""
        length = next((index + 1 for index, token in enumerate(ids) if token in ends), len(ids))
        ids = ids[:length]
        stopped: Literal["end", "stop", "length"] = "length"
        if ids[-1] in ends:
            stopped = "end" if ids[-1] == ends[0] else "stop"
        text = self._text(prompt, ids if stopped == "length" else ids[:-1])
        return Generation(text, ids, log_probability, stopped)

    def _text(self, prompt: list[int], ids: list[int]) -> str:
        """The text of generated ids, as an answer or as a continuation."""
        return self.tokenizer.decode(ids) if self.context is None else self.tokenizer.decode_after(prompt, ids)

    def _pieces(self, prompt: list[int], steps: Iterator[DecodeStep], ends: list[int]) -> Iterator[str]:
        ids: list[int] = []
        final = ""
        for step in steps:
            token = int(step.ids[0])
            if token in ends:
                break
            ids.append(token)
            text = self._text(prompt, ids)
            if text.startswith(final) and not text.endswith("\ufffd") and text != final:
                yield text[len(final) :]
                final = text
        text = self._text(prompt, ids)  # ends in bytes that never became a character
        if text != final and text.startswith(final):
            yield text[len(final) :]


class PositionwiseGenerator:
    """The outputs of an encoder alone: all positions are predicted at once.

    Args:
        model: in evaluation mode.
        tokenizer: of the model.
        task: that the model was trained on.
    """

    def __init__(self, model: EncoderOnly, tokenizer: Tokenizer, task: Task) -> None:
        self.model, self.tokenizer, self.task = model, tokenizer, task

    def generate(self, prompts: list[list[int]], options: GenerationOptions) -> list[list[Generation]]:
        """The most likely answer to each prompt; of a text with <mask> in it, the text with masks filled.

        Raises:
            ConfigError: any option.
        """
        if options != GenerationOptions():
            self.stream()
        if not prompts:
            return []
        special, device = self.tokenizer.special, next(self.model.parameters()).device
        source, keep = padded(prompts, special.pad, device)
        with torch.inference_mode():
            logits = self.model(source, keep).float()  # [B, P, V]
        predicted = keep
        if self.task.kind == "masked":
            predicted = source == special.mask
            logits = logits.index_fill(-1, torch.tensor(special, device=device), -torch.inf)  # only text is masked
        scores, best = logits.log_softmax(dim=-1).max(dim=-1)
        answers = torch.where(predicted, best, source)
        totals = scores.masked_fill(~predicted, 0.0).sum(dim=1).tolist()
        rows = [row[: len(prompt)] for row, prompt in zip(answers.tolist(), prompts, strict=True)]
        decode_ids = self.tokenizer.decode
        return [[Generation(decode_ids(row), row, total, "length")] for row, total in zip(rows, totals, strict=True)]

    def stream(self, *_: Any) -> Any:
        """Refused, as all options are.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("an encoder_only model predicts all positions at once: it takes no options and has no stream")

    follow = stream


def _check_single(name: str, options: GenerationOptions) -> None:
    if options.num_beams > 1 or options.num_return_sequences > 1:
        raise ConfigError(f"{name} is for one text: leave num_beams and num_return_sequences at 1")


def _generators(prompts: list[list[int]], options: GenerationOptions) -> list[list[torch.Generator]]:
    """Random number generators for each text of each prompt, the same alone and among other prompts.

    A prompt that occurs again in the list continues with other numbers.
    """
    if not options.do_sample:
        return [[] for _ in prompts]
    seed = torch.Generator().seed() if options.seed is None else options.seed
    used: Counter[tuple[int, ...]] = Counter()
    generators = []
    for prompt in prompts:
        first = used[tuple(prompt)]
        numbers = range(first, first + options.num_return_sequences)
        generators.append([generator(hash_seed(seed), number) for number in numbers])
        used[tuple(prompt)] += options.num_return_sequences
    return generators
