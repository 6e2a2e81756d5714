"""What a model writes, as text: prompts in batches that change nobody's answer, streams, and the attention on the way.

Legend: B rows, H heads, T target tokens, S source tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from minitx.config import ModelConfig
from minitx.data.framing import Prompt, right_aligned
from minitx.data.framing import prompt as prompt_for
from minitx.data.tasks import Task, generator, mixed
from minitx.data.texts import padded
from minitx.data.tokenizers import Tokenizer
from minitx.generation.beam import beam_search
from minitx.generation.decode import Written, steps
from minitx.generation.options import GenerationOptions
from minitx.generation.penalties import adjusted
from minitx.generation.sampling import Chooser, greedy, sampler
from minitx.inspection.maps import AttentionMaps
from minitx.inspection.stepwise import StepwiseMaps
from minitx.models import DecoderOnly, EncoderDecoder, max_positions

DEFAULT_NEW_TOKENS = 200
"""How far running text goes on when nobody says."""


class Generation(NamedTuple):
    """One text that a model wrote."""

    text: str
    """What follows on the prompt, without the end."""
    ids: list[int]
    """The tokens written, the end included."""
    log_probability: float
    """Natural logarithm of the probability that the model itself gives to these tokens."""
    stopped: Literal["end", "stop", "length"]
    """Why it is no longer: the model ended it, a stop token came, or max_new_tokens were written."""


class Writer:
    """Lets a decoder write.

    Args:
        model: in evaluation mode.
        tokenizer: its own.
        task: what it was trained on.
        config: what the model was built from.
    """

    def __init__(
        self, model: EncoderDecoder | DecoderOnly, tokenizer: Tokenizer, task: Task, config: ModelConfig
    ) -> None:
        self.model, self.tokenizer, self.task, self.config = model, tokenizer, task, config

    def write(self, prompts: list[list[int]], options: GenerationOptions) -> list[list[Generation]]:
        """num_return_sequences texts for each prompt, whatever prompts are beside it."""
        result: list[list[Generation]] = [[] for _ in prompts]
        limits = [self.limit(prompt, options) for prompt in prompts]
        streams = _streams(prompts, options)
        # Rows go together that write equally far and, in running text, look back equally far.
        keys = [(limit, len(prompt) if self.context else 0) for limit, prompt in zip(limits, prompts, strict=True)]
        for key in sorted(set(keys)):
            places = [place for place, own in enumerate(keys) if own == key]
            write = self._search if options.num_beams > 1 else self._draw
            together = write(
                [prompts[place] for place in places], [streams[place] for place in places], key[0], options
            )
            for place, written in zip(places, together, strict=True):
                result[place] = written
        return result

    def stream(self, prompt: list[int], options: GenerationOptions) -> Iterator[str]:
        """Pieces of one text, as soon as they are final: never half a character.

        Raises:
            ValueError: beam search or several texts, besides what limit and ends refuse.
        """
        _follow_one_text("stream", options)
        ends = self.ends(options)
        written = self._steps(
            [prompt], _streams([prompt], options), self.limit(prompt, options), options, False, unending=True
        )
        return self._pieces(prompt, written, ends)

    def write_with_attention(self, prompt: list[int], options: GenerationOptions) -> tuple[Generation, AttentionMaps]:
        """One text, and the attention with which each of its tokens was written.

        Raises:
            ValueError: beam search or several texts, or running text that grows past what the model looks back on.
        """
        _follow_one_text("return_attention", options)
        limit = self.limit(prompt, options)
        if self.context is not None and len(prompt) + limit > self.context + 1:
            room = self.context + 1 - len(prompt)
            advice = f"max_new_tokens must be at most {room}" if room > 0 else "no token can be written after it"
            raise ValueError(
                f"return_attention follows what the model sees at once: the prompt has {len(prompt)} tokens, so "
                f"{advice} for data.block {self.context}"
            )
        with StepwiseMaps(self.model) as recorded:
            columns = []
            for written in self._steps([prompt], _streams([prompt], options), limit, options, True):
                recorded.collect()
                columns.append(written)
        generation = self._generation(prompt, *_rows(columns)[0], self.ends(options))
        source, start = self._start([prompt])
        read = start.ids[0].tolist() + generation.ids[:-1]
        labels = {"target": [self.tokenizer.tokens(read)]}
        if start.source:
            labels["source"] = [self.tokenizer.tokens(source[0].tolist())]
        return generation, recorded.maps(labels)

    @property
    def context(self) -> int | None:
        """How far running text may look back: as far as it was trained to. Answers look back on everything."""
        return self.task.longest[1] if self.task.kind == "stream" else None

    def ends(self, options: GenerationOptions) -> list[int]:
        """The ids that end a text, the tokenizer's own first."""
        ends = [self.tokenizer.special.eos, *self.tokenizer.conventions.other_ends]
        for text in options.stop or []:
            ids = self.tokenizer.encode(text)
            if len(ids) != 1:
                raise ValueError(f"stop must name single tokens, got {text!r}, which is {len(ids)} tokens")
            ends += ids
        return ends

    def limit(self, prompt: list[int], options: GenerationOptions) -> int:
        """How many tokens to write after a prompt.

        Raises:
            ValueError: the prompt, or what was asked for, does not fit into the model's positions.
        """
        context, asked = self.context, options.max_new_tokens
        usual = DEFAULT_NEW_TOKENS if context else max(self.task.longest[1], len(prompt)) + 1
        reach = max_positions(self.model)
        room = None
        if context is not None and options.num_beams > 1:
            room, why = context - 1, f"beam search looks back on everything, and data.block is {context}"
        elif reach is not None and (context is None or context > reach):
            first = 1 if self.config.architecture == "encoder_decoder" else len(prompt) + (context is None)
            if max(len(prompt), first) > reach:
                tokens = max(len(prompt), first)
                raise ValueError(f"the prompt has {tokens} tokens, more than can be told apart: {self._reach}")
            room, why = reach - first + 1, self._reach  # the last token written is not read again
        if room == 0:
            raise ValueError(f"there is no room to write: {why}")
        if asked is None:
            return usual if room is None else min(usual, room)
        if room is not None and asked > room:
            raise ValueError(f"max_new_tokens must be at most {room} after this prompt, got {asked}: {why}")
        return asked

    @property
    def _reach(self) -> str:
        """How far the positions go, and which keys said so."""
        name, reach = self.config.position_ids["name"], max_positions(self.model)
        if name == "consecutive":
            return f"the table of learned positions ends at model.position.max_len {reach}"
        return f"model.position_ids.name {name} with its options reaches {reach} tokens"

    def _start(self, prompts: list[list[int]], cut: int | None = None) -> tuple[Tensor, Prompt]:
        """The source, and where to start writing."""
        device = next(self.model.parameters()).device
        cut = self.context if cut is None else cut
        source, keep = padded([ids[-cut:] if cut else ids for ids in prompts], self.tokenizer.special.pad, device)
        if self.context is None:
            return source, prompt_for(source, keep, self.config.architecture, self.tokenizer.special)
        return source, Prompt(*right_aligned(source, keep, self.tokenizer.special))

    def _steps(
        self,
        prompts: list[list[int]],
        streams: Sequence[Sequence[torch.Generator]],
        limit: int,
        options: GenerationOptions,
        scores: bool,
        unending: bool = False,
    ) -> Iterator[Written]:
        """The tokens of every row; the texts of one prompt are neighbours.

        Args:
            unending: the caller looks at each token and stops at an end; a device is then not waited for twice.
        """
        _, start = self._start([prompt for prompt in prompts for _ in range(options.num_return_sequences)])
        choose: Chooser = greedy
        if options.do_sample:
            choose = sampler([own for several in streams for own in several], **options.filters())
        return steps(
            self.model,
            start.ids,
            *start.source,
            keep=start.keep,
            max_new_tokens=limit,
            choose=choose,
            context=self.context,
            scores=scores,
            compiled=options.compile,
            **self._ending(options, limit) | ({"eos": ()} if unending else {}),
        )

    def _ending(self, options: GenerationOptions, limit: int) -> dict[str, Any]:
        ends, conventions = self.ends(options), self.tokenizer.conventions
        penalties = (options.repetition_penalty, options.no_repeat_ngram_size, options.min_new_tokens)
        places = {0: conventions.forced_first, limit - 1: conventions.forced_last}
        forced = {place: token for place, token in places.items() if token is not None}
        adjust = adjusted(ends, *penalties, never=conventions.never, forced=forced)
        return {"eos": ends, "pad": self.tokenizer.special.pad, "adjust": adjust}

    def _draw(
        self,
        prompts: list[list[int]],
        streams: Sequence[Sequence[torch.Generator]],
        limit: int,
        options: GenerationOptions,
    ) -> list[list[Generation]]:
        rows = _rows(list(self._steps(prompts, streams, limit, options, True)))
        ends = self.ends(options)
        size = options.num_return_sequences
        texts = [self._generation(prompts[row // size], *written, ends) for row, written in enumerate(rows)]
        return [texts[start : start + size] for start in range(0, len(texts), size)]

    def _search(
        self, prompts: list[list[int]], streams: Any, limit: int, options: GenerationOptions
    ) -> list[list[Generation]]:
        cut = None if self.context is None else self.context - limit
        _, start = self._start(prompts, cut)
        beams = beam_search(
            self.model,
            start.ids,
            *start.source,
            keep=start.keep,
            num_beams=options.num_beams,
            max_new_tokens=limit,
            length_penalty=1.0 if options.length_penalty is None else options.length_penalty,
            early_stopping=options.early_stopping or False,
            **self._ending(options, limit),
        )
        if not bool(beams.lengths[:, 0].all()):
            raise ValueError("nothing can be written: no_repeat_ngram_size and min_new_tokens forbid every token")
        count, ends = options.num_return_sequences, self.ends(options)
        several = zip(beams.ids.tolist(), beams.log_probabilities.tolist(), beams.lengths.tolist(), strict=True)
        return [
            [
                self._generation(prompt, row, score, ends)
                for row, score, length in list(zip(ids, scores, lengths, strict=True))[:count]
                if length  # there may be fewer texts than beams
            ]
            for prompt, (ids, scores, lengths) in zip(prompts, several, strict=True)
        ]

    def _generation(self, prompt: list[int], ids: list[int], score: float, ends: list[int]) -> Generation:
        """A row up to its end."""
        length = next((place + 1 for place, token in enumerate(ids) if token in ends), len(ids))
        ids = ids[:length]
        stopped: Literal["end", "stop", "length"] = "length"
        if ids[-1] in ends:
            stopped = "end" if ids[-1] == ends[0] else "stop"
        return Generation(self._text(prompt, ids if stopped == "length" else ids[:-1]), ids, score, stopped)

    def _text(self, prompt: list[int], ids: list[int]) -> str:
        """An answer, or how running text goes on."""
        return self.tokenizer.decode(ids) if self.context is None else self.tokenizer.decode_after(prompt, ids)

    def _pieces(self, prompt: list[int], written: Iterator[Written], ends: list[int]) -> Iterator[str]:
        ids: list[int] = []
        said = ""
        for column in written:
            token = int(column.ids[0])
            if token in ends:
                break
            ids.append(token)
            text = self._text(prompt, ids)
            if text.startswith(said) and not text.endswith("\ufffd") and text != said:
                yield text[len(said) :]
                said = text
        text = self._text(prompt, ids)  # what never became a whole character
        if text != said and text.startswith(said):
            yield text[len(said) :]


def _follow_one_text(name: str, options: GenerationOptions) -> None:
    if options.num_beams > 1 or options.num_return_sequences > 1:
        raise ValueError(f"{name} follows one text: leave num_beams and num_return_sequences at 1")


def _rows(columns: list[Written]) -> list[tuple[list[int], float]]:
    """The tokens of each row and their summed log-probability."""
    ids = torch.stack([column.ids for column in columns], dim=1).tolist()
    scores = torch.stack([column.log_probability for column in columns if column.log_probability is not None], dim=1)
    return list(zip(ids, scores.cpu().double().sum(dim=1).tolist(), strict=True))


def _streams(prompts: list[list[int]], options: GenerationOptions) -> list[list[torch.Generator]]:
    """Random numbers for each text of each prompt: the same whether a prompt stands alone or among others.

    The second time that a prompt stands in the list it is given other numbers.
    """
    if not options.do_sample:
        return [[] for _ in prompts]
    seed = torch.Generator().seed() if options.seed is None else options.seed
    seen: Counter[tuple[int, ...]] = Counter()
    streams = []
    for prompt in prompts:
        several = range(options.num_return_sequences)
        first = seen[tuple(prompt)]
        streams.append([generator(mixed(seed), first + number) for number in several])
        seen[tuple(prompt)] += len(several)
    return streams
