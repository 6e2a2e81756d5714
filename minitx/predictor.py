"""A trained model in use: text in, text out. Everything it needs stands in the checkpoint file.

Legend: B batch, S source tokens, T target tokens, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor

from minitx import checkpoint
from minitx.config import Config
from minitx.data.framing import IGNORE, Batch, Prompt, right_aligned
from minitx.data.framing import prompt as prompt_for
from minitx.data.tasks import TASKS, Task, Text
from minitx.data.texts import framed, labels, padded
from minitx.data.tokenizers import Tokenizer
from minitx.generation.decode import stream as write_columns
from minitx.generation.sampling import Chooser, greedy, sampler
from minitx.inspection.maps import AttentionMaps, attention_maps
from minitx.models import EncoderOnly, Transformer, build_model, max_positions
from minitx.options import build, config_from_dict

DEFAULT_NEW_TOKENS = 200
"""How far running text goes on when nobody says."""


class Predictor:
    """A model with its tokenizer, config and task, ready to be used.

    Args:
        model: in evaluation mode.
        tokenizer: its own.
        config: of the run that trained it.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, config: Config) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.task: Task = build(TASKS, config.data, "data")
        self.task.vocabulary = tokenizer

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device

    @property
    def architecture(self) -> str:
        """The config's model.architecture."""
        return self.config.model.architecture

    @overload
    def generate(self, prompt: str, *, stream: Literal[False] = False, **options: Any) -> str: ...
    @overload
    def generate(self, prompt: list[str], *, stream: Literal[False] = False, **options: Any) -> list[str]: ...
    @overload
    def generate(self, prompt: str, *, stream: Literal[True], **options: Any) -> Iterator[str]: ...

    def generate(
        self,
        prompt: str | list[str],
        *,
        stream: bool = False,
        max_new_tokens: int | None = None,
        do_sample: bool = False,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int | None = None,
        **unknown: Any,
    ) -> str | list[str] | Iterator[str]:
        """What the model writes: the answer to a question, or how a text goes on (without the prompt itself).

        Args:
            prompt: a text, or several.
            stream: return an iterator over pieces of text, as they are written (one prompt only).
            max_new_tokens: the most tokens to write. Default: as many as the task's longest answer; 200 for text.
            do_sample: draw tokens at random; without it, always the most likely one.
            temperature, top_k, top_p, min_p: see generation.sampling.sampler; they need do_sample.
            seed: makes sampling repeatable.

        Returns:
            A text for a text, a list for a list, an iterator with stream.

        Raises:
            ValueError: an empty prompt, a symbol that the tokenizer does not know, a sequence longer than a table of
                learned positions, options that do not fit.
        """
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        several = not isinstance(prompt, str)
        if unknown:
            raise TypeError(f"generate() got an unexpected argument {next(iter(unknown))!r}")
        if stream and several:
            raise ValueError("stream=True takes one prompt, got a list")
        choose = _chooser(do_sample, seed, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        if not prompts:
            return []
        ids = [self._encode(text) for text in prompts]
        if isinstance(self.model, EncoderOnly):
            if do_sample or stream or max_new_tokens is not None:
                raise ValueError("an encoder_only model answers in one go: it neither samples, streams nor stops early")
            answers = self._fill(ids)
            return answers if several else answers[0]
        if stream:
            return self._pieces(self._columns(ids, max_new_tokens, choose))
        if self._context is None:
            texts = self._write(ids, max_new_tokens, choose)
        else:
            # Each row must look back on as many tokens as it would alone, so only equal lengths go together.
            texts = [""] * len(ids)
            for length in sorted({len(row) for row in ids}):
                places = [place for place, row in enumerate(ids) if len(row) == length]
                written = self._write([ids[place] for place in places], max_new_tokens, choose)
                for place, text in zip(places, written, strict=True):
                    texts[place] = text
        return texts if several else texts[0]

    def attend(self, text: str | list[str], target: str | list[str] | None = None) -> AttentionMaps:
        """The attention maps of one forward over a question and its answer, or over a text.

        Args:
            text: the question or the text; several make a batch.
            target: the answer to look at; by default what the model itself writes.
        """
        texts = [text] if isinstance(text, str) else list(text)
        if not texts:
            raise ValueError("there is no text to attend to")
        if self.task.kind == "stream" and target is not None:
            raise ValueError("a language model has no separate target: put all into the text")
        if target is None and self.task.kind == "pairs" and not isinstance(self.model, EncoderOnly):
            target = self.generate(texts)
        targets = [target] if isinstance(target, str) else None if target is None else list(target)
        batch = self._batch(texts, targets)
        return attention_maps(self.model, batch.inputs(), labels(batch, self.tokenizer))

    @overload
    def score(self, text: str, target: str) -> float: ...
    @overload
    def score(self, text: list[str], target: list[str]) -> list[float]: ...

    def score(self, text: str | list[str], target: str | list[str]) -> float | list[float]:
        """The log-probability (natural logarithm) that the model gives to a target.

        Args:
            text: the question, the beginning of a text, or a text with <mask> in it.
            target: the answer, its end included; how the text goes on; or the whole text, judged where <mask> stands.
        """
        texts = [text] if isinstance(text, str) else list(text)
        targets = [target] if isinstance(target, str) else list(target)
        if not texts and not targets:
            return []
        batch = self._batch(texts, targets)
        if self.task.kind == "masked" and bool((batch.labels == IGNORE).all(dim=1).any()):
            raise ValueError("there is nothing to score: put <mask> into the text where the target is to be judged")
        with torch.inference_mode():
            logs = self.model(*batch.inputs()).float().log_softmax(dim=-1)  # [B, T, V]
        chosen = logs.gather(-1, batch.labels.clamp(min=0)[..., None])[..., 0]
        totals = chosen.masked_fill(batch.labels == IGNORE, 0.0).sum(dim=1).tolist()
        return totals[0] if isinstance(text, str) else totals

    def _encode(self, text: str) -> list[int]:
        ids = self.tokenizer.encode_masked(text) if self.task.kind == "masked" else self.tokenizer.encode(text)
        if not ids:
            raise ValueError("the prompt is empty: give at least one token")
        return ids

    @property
    def _context(self) -> int | None:
        """How far running text may look back: as far as it was trained to. Answers look back on everything."""
        return self.task.block if isinstance(self.task, Text) and self.task.kind == "stream" else None

    def _usual(self, prompt: list[int]) -> int:
        """How many tokens to write after a prompt when nobody says: the longest answer it may ask for, and <eos>."""
        if self._context is not None:
            return DEFAULT_NEW_TOKENS
        return max(self.task.longest[1], len(prompt)) + 1

    def _write(self, prompts: list[list[int]], max_new_tokens: int | None, choose: Chooser) -> list[str]:
        """What follows on each prompt."""
        rows = torch.stack(list(self._columns(prompts, max_new_tokens, choose)), dim=1).tolist()
        ends = [max_new_tokens or self._usual(prompt) for prompt in prompts]
        return [self._text(row[:end]) for row, end in zip(rows, ends, strict=True)]

    def _columns(self, prompts: list[list[int]], max_new_tokens: int | None, choose: Chooser) -> Iterator[Tensor]:
        """The tokens of all rows, column by column."""
        special = self.tokenizer.special
        context = self._context
        usual = max(map(self._usual, prompts))
        source, keep = padded([ids[-context:] if context else ids for ids in prompts], special.pad, self.device)
        if context is None:
            start = prompt_for(source, keep, self.architecture, special)
        else:
            start = Prompt(*right_aligned(source, keep, special))
        room = self._room(max(map(len, prompts)), start.ids.size(1))
        if max_new_tokens is None:
            max_new_tokens = usual if room is None else min(usual, room)
        elif room is not None and max_new_tokens > room:
            raise ValueError(
                f"max_new_tokens must be at most {room} after this prompt, got {max_new_tokens}: {self._reach}"
            )
        return write_columns(
            self.model,  # type: ignore[arg-type]  # an encoder alone has been answered before
            start.ids,
            *start.source,
            keep=start.keep,
            max_new_tokens=max_new_tokens,
            eos=special.eos,
            pad=special.pad,
            choose=choose,
            context=context,
        )

    def _room(self, prompt: int, first: int) -> int | None:
        """How many tokens fit into a table of learned positions after `first` tokens; None without a table."""
        limit = max_positions(self.model)
        if limit is None or (self._context is not None and self._context <= limit):
            return None  # running text reads the last part of itself anew before it comes to the end of the table
        if max(prompt, first) > limit:
            raise ValueError(
                f"the prompt has {max(prompt, first)} tokens, more than the positions can tell apart: {self._reach}"
            )
        return limit - first + 1  # the last token written is not read again

    @property
    def _reach(self) -> str:
        """How far the positions go, and which keys said so."""
        config = self.config.model
        if config.position_ids["name"] == "consecutive":
            return f"the table of learned positions ends at model.position.max_len {config.position.get('max_len')}"
        name = config.position_ids["name"]
        return f"model.position_ids.name {name} with its options reaches {max_positions(self.model)} tokens"

    def _fill(self, prompts: list[list[int]]) -> list[str]:
        """The answers of an encoder, place by place; for a text with <mask> in it, the text with those filled in."""
        special = self.tokenizer.special
        source, keep = padded(prompts, special.pad, self.device)
        with torch.inference_mode():
            best = self.model(source, keep).argmax(dim=-1)
        if self.task.kind == "masked":
            best = torch.where(source == special.mask, best, source)
        said = best.tolist()
        return [self.tokenizer.decode(row[: len(ids)]) for row, ids in zip(said, prompts, strict=True)]

    def _text(self, ids: list[int]) -> str:
        """The text of a row up to its <eos>."""
        end = self.tokenizer.special.eos
        return self.tokenizer.decode(ids[: ids.index(end)] if end in ids else ids)

    def _pieces(self, columns: Iterator[Tensor]) -> Iterator[str]:
        """Text as it grows."""
        ids: list[int] = []
        said = ""
        for column in columns:
            ids.append(int(column[0]))
            text = self._text(ids)
            if text != said:
                yield text[len(said) :]
            said = text

    def _batch(self, texts: list[str], targets: list[str] | None) -> Batch:
        """Texts, with their targets if there are any, framed for the model's architecture."""
        if targets is not None and len(targets) != len(texts):
            raise ValueError(f"as many targets as texts are needed, got {len(targets)} and {len(texts)}")
        sources = [self._encode(text) for text in texts]
        answers = None if targets is None else [self.tokenizer.encode(target) for target in targets]
        return framed(sources, answers, self.task.kind, self.architecture, self.tokenizer.special, self.device)


def load(path: str | Path, device: str = "auto") -> Predictor:
    """Load a trained model.

    Args:
        path: a checkpoint file, or a run folder (its newest version's best).
        device: auto (a GPU when there is one), cpu, cuda, ...

    Raises:
        ValueError: not there, damaged, not ours, of a newer format, or with weights that do not fit its config.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {device} cannot be used here: {reason}") from None
    file = checkpoint.find(path)
    contents = checkpoint.read(file)
    try:
        config = config_from_dict(contents["minitx"]["config"])
        tokenizer = Tokenizer.from_dict(contents["minitx"]["tokenizer"])
        model = build_model(config.model, tokenizer.vocab_size)
        weights = {name.removeprefix("model."): tensor for name, tensor in contents["state_dict"].items()}
        model.load_state_dict(weights)
        return Predictor(model.to(device).eval(), tokenizer, config)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{file} is damaged, or its parts do not fit together: {first}") from None


def _chooser(do_sample: bool, seed: int | None, **filters: Any) -> Chooser:
    given = {name: value for name, value in filters.items() if value is not None}
    if not do_sample:
        if given:
            raise ValueError(f"{next(iter(given))} needs do_sample: without it the most likely token is always taken")
        return greedy
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return sampler(generator, **given)
