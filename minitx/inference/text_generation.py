"""Generate texts from encoded prompts: in batches, where no prompt affects another, or as a stream.

Legend: B rows, P prompt tokens, T generated tokens.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.schema import ModelConfig
from minitx.data.batch import IGNORE
from minitx.data.examples import Prompt, question_prompt, right_aligned
from minitx.data.prompts import padded
from minitx.data.tasks.base import Task, generator, hash_seed
from minitx.generation import decode
from minitx.generation.beam import beam_search
from minitx.generation.decode import DecodeStep
from minitx.generation.logits_processors import combine_processors
from minitx.generation.options import BEAM_OPTIONS, FILTER_OPTIONS, GenerationOptions
from minitx.generation.sampling import greedy, sampler
from minitx.models.transformers import DecoderOnly, EncoderDecoder, EncoderOnly, max_positions

DEFAULT_NEW_TOKENS = 200  # max_new_tokens of running text
MAX_ROWS = 500  # generated in one batch, beams included
IMPOSSIBLE = (
    "no text is possible: no_repeat_ngram_size, min_new_tokens and the tokens that are never generated forbid every "
    "token, or the model computes NaN"
)


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
    """Generates text with a decoder in evaluation mode, its task, which has its tokenizer, and its config."""

    def __init__(self, model: EncoderDecoder | DecoderOnly, task: Task, config: ModelConfig) -> None:
        self.model, self.tokenizer, self.task, self.config = model, task.vocabulary, task, config
        self.device = next(model.parameters()).device
        own = self.tokenizer.special_tokens
        self.own_ends = [token for token in (own.special.eos, *own.other_ends) if token >= 0]
        self.positions = max_positions(model.decoder)
        self.source_positions = max_positions(model.encoder) if isinstance(model, EncoderDecoder) else None
        # Running text attends to at most the context of training; answers attend to everything.
        self.context = min(task.longest[1], self.positions or sys.maxsize) if task.kind == "stream" else None

    def generate(self, prompts: list[list[int]], options: GenerationOptions) -> list[list[Generation]]:
        """num_return_sequences texts for each prompt; other prompts in the list do not change them."""
        generators = random_generators(prompts, options)
        batches: dict[tuple[int, int], list[int]] = {}
        for row, prompt in sorted(enumerate(prompts), key=lambda each: len(each[1])):  # similar lengths share a batch
            # Rows of a batch have one limit and, in running text, one length: they fill the context at the same step.
            batches.setdefault((self.limit(prompt, options), len(prompt) if self.context else 0), []).append(row)
        size = max(MAX_ROWS // max(options.num_beams, options.num_return_sequences), 1)
        parts = ((limit, rows[n : n + size]) for (limit, _), rows in batches.items() for n in range(0, len(rows), size))
        found: dict[int, list[Generation]] = {}  # by row
        for limit, rows in parts:
            batch = [prompts[row] for row in rows], [generators[row] for row in rows]
            found |= zip(rows, self._generate_batch(*batch, limit, options), strict=True)
        return [found[row] for row in range(len(prompts))]

    def stream(self, prompt: list[int], options: GenerationOptions) -> Iterator[str]:
        """Pieces of one text as soon as they are final, in whole characters."""
        limit, generators = self.limit(prompt, options), random_generators([prompt], options)
        tensors, arguments = self.arguments([prompt], generators, limit, options)
        ends, arguments["eos"] = arguments["eos"], ()  # _pieces stops at an end
        return self._pieces(prompt, decode.steps(self.model, *tensors, scores=True, **arguments), ends)

    def ends(self, options: GenerationOptions) -> list[int]:
        """Ids that end a text, the tokenizer's own first, if any; a ConfigError unless a stop is one known token.

        A stop is one token at the beginning of a text, within it, or both: with Llama's tokenizer these may differ.
        """
        ends, unknown = [*self.own_ends], {self.tokenizer.special.unk} - {*self.own_ends}  # GPT-2's unk is its eos
        for text in [options.stop] if isinstance(options.stop, str) else options.stop or []:
            found = [each.encode(text) for each in (self.tokenizer, self.tokenizer.continuing)]
            if not any(single := [ids for ids in found if len(ids) == 1 and not unknown & {*ids}]):
                which = f"{len(found[0])} tokens: {self.tokenizer.tokens(found[0])!s:.80}"
                raise ConfigError(f"stop must name single tokens, got {text!r}, which is {which}")
            ends += [token for (token,) in single]
        return [*dict.fromkeys(ends)]

    def limit(self, prompt: list[int], options: GenerationOptions) -> int:
        """Maximum number of new tokens for a prompt.

        Raises:
            ConfigError: the prompt or max_new_tokens exceeds the model's positions.
        """
        context, requested, positions = self.context, options.max_new_tokens, self.positions
        prompt, given = self.task.divide(prompt)
        check_positions(len(prompt), self.source_positions, self.config)
        capacity, why = None, ""
        if context is not None and options.num_beams > 1:
            capacity = context - len(prompt) + 1  # the last token is not read
            why = f"beam search needs the whole text in its context of {context} tokens, and {len(prompt)} are given"
        elif positions is not None and context is None:
            first = self._read_before(prompt)
            why = check_positions(first, positions, self.config)
            capacity = positions - first + 1
        if capacity is not None and capacity < 1:
            raise ConfigError(f"no token can be generated: {why}")
        if requested is None:
            longest = max(self.task.longest[1], 0 if self.task.capped else max(len(prompt), len(given)))
            default = DEFAULT_NEW_TOKENS if context else longest + 1
            requested = max(default if capacity is None else min(default, capacity), options.min_new_tokens)
        if capacity is not None and requested > capacity:
            name = "max_new_tokens" if options.max_new_tokens is not None else "min_new_tokens"
            raise ConfigError(f"{name} must be at most {capacity} after this prompt, got {requested}: {why}")
        return requested

    def _read_before(self, source: list[int]) -> int:
        """Tokens that a decoder reads before an answer: <bos>, or the question and <sep>."""
        return 1 if isinstance(self.model, EncoderDecoder) else len(source) + 1

    def prompt_tensors(self, prompts: list[list[int]]) -> Prompt:
        """Prompts as tensors; of running text the last tokens, as many as the context has."""
        read, given = zip(*map(self.task.divide, prompts), strict=True)
        source, keep = padded([ids[-(self.context or 0) :] for ids in read], self.tokenizer.special.pad, self.device)
        if self.context is None:
            if not any(read) and self.config.architecture == "decoder_only":
                source, keep = source[:, :0], keep[:, :0]  # only an encoder needs a column of padding
            prompt = question_prompt(source, keep, self.config.architecture, self.tokenizer.special)
            return prompt._replace(given=padded(given, IGNORE, self.device)[0]) if any(given) else prompt
        return Prompt(*right_aligned(source, keep, self.tokenizer.special))

    def arguments(
        self, prompts: list[list[int]], generators: list[list[torch.Generator]], limit: int, options: GenerationOptions
    ) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """Arguments of beam_search with num_beams, else of decode.steps, where texts of a prompt are adjacent rows."""
        special_tokens, ends = self.tokenizer.special_tokens, self.ends(options)
        if options.num_beams > 1:
            names = ("num_beams", *BEAM_OPTIONS)
            own: dict[str, Any] = {name: value for name in names if (value := getattr(options, name)) is not None}
        else:
            prompts = [prompt for prompt in prompts for _ in range(options.num_return_sequences)]
            flat = [each for several in generators for each in several]
            filters = {name: getattr(options, name) for name in FILTER_OPTIONS}
            choose = sampler(flat, self.device, **filters) if options.do_sample else greedy
            own = {"sampler": choose, "context": self.context}
        if options.compile:
            from minitx.compilation.compiled_step import CompiledStep

            own["stepper"] = CompiledStep
        start = self.prompt_tensors(prompts)
        if start.given is not None and options.num_beams > 1:
            raise ConfigError("num_beams must be 1: the answers of this task have tokens that are given")
        own |= {} if start.given is None else {"given": start.given}
        first_and_last = (0, special_tokens.forced_first), (limit - 1, special_tokens.forced_last)
        forced = {step: token for step, token in first_and_last if token is not None}
        penalties = options.repetition_penalty, options.no_repeat_ngram_size, options.min_new_tokens
        processor = combine_processors(ends, *penalties, never=special_tokens.never, forced=forced)
        own |= {"max_new_tokens": limit, "eos": ends, "pad": self.tokenizer.special.pad}
        return (start.ids, *start.source), {**own, "keep": start.keep, "logits_processor": processor}

    def _generate_batch(
        self, prompts: list[list[int]], generators: list[list[torch.Generator]], limit: int, options: GenerationOptions
    ) -> list[list[Generation]]:
        """The texts of prompts that share a limit."""
        tensors, arguments = self.arguments(prompts, generators, limit, options)
        count = options.num_return_sequences
        if options.num_beams > 1:
            ids, _, logs, lengths = (part[:, :count] for part in beam_search(self.model, *tensors, **arguments))
            if not bool(lengths[:, 0].all()):
                raise ConfigError(IMPOSSIBLE)
        else:
            decoded = decode.generate(self.model, *tensors, scores=True, **arguments)
            assert decoded.log_probabilities is not None  # scores were requested
            ids, logs = decoded.ids.unflatten(0, (-1, count)), decoded.log_probabilities.unflatten(0, (-1, count))
            lengths = torch.ones_like(logs)
        result = []
        for prompt, *parts in zip(prompts, ids.tolist(), logs.tolist(), lengths.tolist(), strict=True):
            found = [(row, log) for row, log, length in zip(*parts, strict=True) if length]  # maybe fewer than beams
            result.append([self.generation(prompt, row, log, arguments["eos"]) for row, log in found])
        return result

    def generation(self, prompt: list[int], ids: list[int], log_probability: float, ends: list[int]) -> Generation:
        """A row up to its end token."""
        if math.isnan(log_probability):
            raise ConfigError(IMPOSSIBLE)
        for index, token in self._predicted(prompt, ids):
            if token in ends:
                text = self._text(prompt, ids[:index])
                return Generation(text, ids[: index + 1], log_probability, "end" if token in self.own_ends else "stop")
        return Generation(self._text(prompt, ids), ids, log_probability, "length")

    def _text(self, prompt: list[int], ids: list[int]) -> str:
        """The text of generated ids, as an answer or as a continuation."""
        if self.context is not None:
            return self.tokenizer.decode_after(prompt, ids)
        return self.tokenizer.decode(token for _, token in self._predicted(prompt, ids))

    def _predicted(self, prompt: list[int], ids: list[int]) -> list[tuple[int, int]]:
        """Indices and ids of generated tokens, without those that were given, which end no text."""
        given = self.task.divide(prompt)[1]
        return [(index, token) for index, token in enumerate(ids) if given[index : index + 1] in ([], [IGNORE])]

    def own_answers(self, prompts: list[list[int]]) -> list[list[int]]:
        """The ids of the model's answers to questions, without the end, and without a last one past its positions."""
        answers = []
        for prompt, (best, *_) in zip(prompts, self.generate(prompts, GenerationOptions()), strict=True):
            ids = best.ids if best.stopped == "length" else best.ids[:-1]
            capacity = (self.positions or sys.maxsize) - self._read_before(self.task.divide(prompt)[0])
            answers.append([token for _, token in self._predicted(prompt, ids[:capacity])])
        return answers

    def _pieces(self, prompt: list[int], steps: Iterator[DecodeStep], ends: list[int]) -> Iterator[str]:
        ids: list[int] = []
        final = text = ""
        for step in steps:
            assert step.log_probability is not None  # scores were requested
            token = int(step.ids.masked_fill(step.log_probability.isnan(), -1)[0])
            if token < 0:
                raise ConfigError(IMPOSSIBLE)
            if token in ends and (len(ids), token) in self._predicted(prompt, [*ids, token]):
                break
            ids.append(token)
            text = self._text(prompt, ids)
            if len(text) > len(final) and not text.endswith("\ufffd"):  # Llama: � for each byte of an unfinished run
                yield text[len(final) :]
                final = text
        if len(text) > len(final):  # the text ends in bytes that never became a character
            yield text[len(final) :]


def check_positions(tokens: int, positions: int | None, config: ModelConfig) -> str:
    """Refuse a sequence of more tokens than positions, None for any number; returns what limits that number."""
    name = config.position_ids["name"]
    why = f"model.position_ids.name {name} with its options is limited to {positions} tokens"
    if name == "consecutive":
        why = f"the table of learned positions ends at model.position.max_len {positions}"
    if positions is not None and tokens > positions:
        raise ConfigError(f"there are {tokens} tokens, more than the model has positions: {why}")
    return why


def encoder_generations(model: EncoderOnly, task: Task, prompts: list[list[int]]) -> list[list[Generation]]:
    """Generate with an encoder: the most likely token at each position or, in a masked text, at each mask."""
    if not prompts:
        return []
    tokenizer, special, device = task.vocabulary, task.vocabulary.special, next(model.parameters()).device
    source, keep = padded(prompts, special.pad, device)
    with torch.inference_mode():
        logs = model(source, keep).float().log_softmax(dim=-1)  # [B, P, V]
    predicted, best = keep, logs.argmax(dim=-1)
    if task.kind == "masked":
        never = torch.tensor([*{*special} - {-1}], device=device)  # only text
        predicted, best = source == special.mask, logs.index_fill(-1, never, -torch.inf).argmax(dim=-1)
    answers = torch.where(predicted, best, source)
    totals = logs.gather(-1, best[..., None])[..., 0].masked_fill(~predicted, 0.0).sum(dim=1).tolist()
    if any(map(math.isnan, totals)):
        raise ConfigError(IMPOSSIBLE)
    rows = [row[: len(prompt)] for row, prompt in zip(answers.tolist(), prompts, strict=True)]
    return [[Generation(tokenizer.decode(row), row, total, "length")] for row, total in zip(rows, totals, strict=True)]


def random_generators(prompts: list[list[int]], options: GenerationOptions) -> list[list[torch.Generator]]:
    """Generators for each text of each prompt, independent of other prompts; a repeated prompt gets further numbers."""
    if not options.do_sample:
        return [[] for _ in prompts]
    seed = hash_seed(torch.Generator().seed() if options.seed is None else int(options.seed))
    numbers, texts = defaultdict[tuple[int, ...], Iterator[int]](count), range(options.num_return_sequences)
    return [[generator(seed, next(numbers[tuple(prompt)])) for _ in texts] for prompt in prompts]
