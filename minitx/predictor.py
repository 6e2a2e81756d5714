"""A trained model in use: text in, text out. Everything it needs stands in the checkpoint file.

Legend: B batch, S source tokens, T target tokens, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, overload

import torch

from minitx import checkpoint
from minitx.config import Config
from minitx.data.framing import IGNORE, Batch
from minitx.data.tasks import TASKS, Task
from minitx.data.texts import framed, labels, padded
from minitx.data.tokenizers import Tokenizer
from minitx.generation.options import GenerationOptions
from minitx.hardware import best_device
from minitx.inspection.maps import AttentionMaps, attention_maps
from minitx.models import EncoderOnly, Transformer, build_model
from minitx.options import build, config_from_dict
from minitx.size import check_weights
from minitx.writing import Generation, Writer


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
    def generate(self, prompt: str, *, stream: Literal[False] = False, **options: Any) -> Any: ...
    @overload
    def generate(self, prompt: list[str], *, stream: Literal[False] = False, **options: Any) -> list[Any]: ...
    @overload
    def generate(self, prompt: str, *, stream: Literal[True], **options: Any) -> Iterator[str]: ...

    def generate(
        self, prompt: str | list[str], *, stream: bool = False, return_attention: bool = False, **options: Any
    ) -> Any:
        """What the model writes: the answer to a question, or how a text goes on (without the prompt itself).

        Args:
            prompt: a text, or several.
            stream: return an iterator over pieces of text, as they become final (one prompt only).
            return_attention: return the text and the AttentionMaps with which it was written (one prompt only).
            options: of GenerationOptions: max_new_tokens, do_sample, temperature, top_k, top_p, min_p, seed,
                repetition_penalty, no_repeat_ngram_size, min_new_tokens, num_beams, length_penalty, early_stopping,
                num_return_sequences, stop.

        Returns:
            A text for a text, a list for a list; lists of texts instead of texts with num_return_sequences above 1.

        Raises:
            ValueError: an empty prompt, a symbol that the tokenizer does not know, a sequence longer than the positions
                reach, options that do not fit.
            TypeError: an option that is not known.
        """
        chosen = GenerationOptions.of(options)
        if isinstance(prompt, str) and (stream or return_attention):
            writer = self._writer()
            if stream:
                return writer.stream(self._encode(prompt), chosen)
            generation, maps = writer.write_with_attention(self._encode(prompt), chosen)
            return generation.text, maps
        if stream or return_attention:
            raise ValueError(f"{'stream' if stream else 'return_attention'}=True takes one prompt, got a list")
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        texts = [[generation.text for generation in several] for several in self.generations(prompts, chosen)]
        answers = texts if chosen.num_return_sequences > 1 else [several[0] for several in texts]
        return answers[0] if isinstance(prompt, str) else answers

    def generations(self, prompts: list[str], options: GenerationOptions) -> list[list[Generation]]:
        """What generate returns, with token ids, log-probability and the reason for the end."""
        return self.generations_of([self._encode(text) for text in prompts], options)

    def generations_of(self, ids: list[list[int]], options: GenerationOptions) -> list[list[Generation]]:
        """The same for prompts that are token ids already, none empty; `<unk>` may be among them."""
        if not ids:
            return []
        if isinstance(self.model, EncoderOnly) and options == GenerationOptions():
            return [[generation] for generation in self._fill(ids)]
        return self._writer().write(ids, options)

    def _writer(self) -> Writer:
        """Who writes for this model.

        Raises:
            ValueError: an encoder alone, which does not write.
        """
        if isinstance(self.model, EncoderOnly):
            raise ValueError("an encoder_only model answers in one go: it neither samples, streams nor stops early")
        return Writer(self.model, self.tokenizer, self.task, self.config.model)

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
            text: the question, the beginning of a text, or a text with `<mask>` in it.
            target: the answer, its end included; how the text goes on; or the whole text, judged where `<mask>` stands.
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
        tokenizer, masked = self.tokenizer, self.task.kind == "masked"
        ids = tokenizer.encode_masked(text) if masked else tokenizer.encode_question(text)
        if not ids:
            raise ValueError("the prompt is empty: give at least one token")
        return ids

    def _fill(self, prompts: list[list[int]]) -> list[Generation]:
        """The answers of an encoder, place by place; for a text with <mask> in it, the text with those filled in."""
        special = self.tokenizer.special
        source, keep = padded(prompts, special.pad, self.device)
        with torch.inference_mode():
            logits = self.model(source, keep).float()  # [B, T, V]
        told = keep
        if self.task.kind == "masked":
            told = source == special.mask
            logits = logits.index_fill(-1, torch.tensor(special, device=self.device), -torch.inf)  # text was hidden
        scores, said = logits.log_softmax(dim=-1).max(dim=-1)
        said = torch.where(told, said, source)
        totals = scores.masked_fill(~told, 0.0).sum(dim=1).tolist()
        rows = [row[: len(prompt)] for row, prompt in zip(said.tolist(), prompts, strict=True)]
        decode = self.tokenizer.decode
        return [Generation(decode(row), row, total, "length") for row, total in zip(rows, totals, strict=True)]

    def _batch(self, texts: list[str], targets: list[str] | None) -> Batch:
        """Texts, with their targets if there are any, framed for the model's architecture."""
        if targets is not None and len(targets) != len(texts):
            raise ValueError(f"as many targets as texts are needed, got {len(targets)} and {len(texts)}")
        sources = [self._encode(text) for text in texts]
        tokenizer = self.tokenizer
        by_kind = {"stream": tokenizer.encode, "pairs": tokenizer.encode_answer, "masked": tokenizer.encode_question}
        answers = None if targets is None else [by_kind[self.task.kind](target) for target in targets]
        return framed(sources, answers, self.task.kind, self.architecture, self.tokenizer.special, self.device)


def load(path: str | Path, device: str = "auto") -> Predictor:
    """Load a trained model.

    Args:
        path: a checkpoint file, or a run folder (its newest version's best).
        device: auto (a GPU when there is one), cpu, cuda, mps, ...

    Raises:
        ValueError: not there, damaged, not ours, of a newer format, or with weights that do not fit its config.
    """
    if device == "auto":
        device = best_device()
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
        weights = checkpoint.weights(contents)
        check_weights(weights, config.model, tokenizer.vocab_size)
        model = build_model(config.model, tokenizer.vocab_size)
        model.load_state_dict(weights)
        return Predictor(model.to(device).eval(), tokenizer, config)
    except (ValueError, TypeError, AttributeError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(f"{file} is damaged, or its parts do not fit together: {first}") from None
