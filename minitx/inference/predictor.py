"""A trained model with its tokenizer: text in, text out. The checkpoint file holds everything it needs.

Legend: B batch, S source tokens, T target tokens, H heads.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, overload

import torch

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.memory_checks import check_weights
from minitx.config.errors import ConfigError
from minitx.config.registry import build
from minitx.config.schema import Config, config_from_dict
from minitx.data.batch import IGNORE, Batch
from minitx.data.prompts import framed, labels
from minitx.data.tasks import TASKS, Task
from minitx.data.tokenizers import Tokenizer
from minitx.generation.options import GenerationOptions
from minitx.hardware.devices import best_device
from minitx.inference.text_generation import Generation, PositionwiseGenerator, TextGenerator
from minitx.interpret.attention_maps import AttentionMaps, attention_maps, record_steps, stepwise_maps
from minitx.models.builder import build_model
from minitx.models.transformers import EncoderOnly, Transformer


class Predictor:
    """A model with its tokenizer, config and task.

    Args:
        model: in evaluation mode.
        tokenizer: of the model.
        config: of the run that trained it.
    """

    def __init__(self, model: Transformer, tokenizer: Tokenizer, config: Config) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.task: Task = build(TASKS, config.data, "data")
        self.task.vocabulary = tokenizer

    @property
    def device(self) -> torch.device:
        """Device of the model."""
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
        """The answer to a question, or the continuation of a text (without the prompt itself).

        Args:
            prompt: a text, or several.
            stream: return an iterator over pieces of text, as they become final (one prompt only).
            return_attention: return the text and the AttentionMaps of its generation (one prompt only).
            options: of GenerationOptions: max_new_tokens, do_sample, temperature, top_k, top_p, min_p, seed,
                repetition_penalty, no_repeat_ngram_size, min_new_tokens, num_beams, length_penalty, early_stopping,
                num_return_sequences, stop.

        Returns:
            A text for a text, a list for a list; lists of texts instead of texts with num_return_sequences above 1.

        Raises:
            ConfigError: an empty prompt, a symbol outside the tokenizer's vocabulary, a sequence longer than the
                model's positions, options that do not fit.
            TypeError: an unknown option.
        """
        chosen = GenerationOptions.of(options)
        single = isinstance(prompt, str)
        if (stream or return_attention) and not single:
            raise ConfigError(f"{'stream' if stream else 'return_attention'}=True takes one prompt, got a list")
        prompts = [self._encode(text) for text in ([prompt] if isinstance(prompt, str) else prompt)]
        generator = self._generator()
        if stream:
            return generator.stream(prompts[0], chosen)
        if return_attention:
            with record_steps(self.model) as steps:
                generation = generator.follow(prompts[0], chosen)
            return generation.text, stepwise_maps(steps, generator.labels(prompts[0], generation))
        texts = [[generation.text for generation in several] for several in generator.generate(prompts, chosen)]
        answers = texts if chosen.num_return_sequences > 1 else [several[0] for several in texts]
        return answers[0] if single else answers

    def generations(self, prompts: list[str] | list[list[int]], options: GenerationOptions) -> list[list[Generation]]:
        """The results of generate with token ids, log-probability and the reason for the end.

        Args:
            prompts: texts, or the ids of texts, which may contain `<unk>`.
            options: of generation.
        """
        ids = [self._encode(prompt) if isinstance(prompt, str) else prompt for prompt in prompts]
        return self._generator().generate(ids, options)

    def _generator(self) -> Any:
        """The generator for the model's architecture."""
        if isinstance(self.model, EncoderOnly):
            return PositionwiseGenerator(self.model, self.tokenizer, self.task)
        return TextGenerator(self.model, self.tokenizer, self.task, self.config.model)

    def attend(self, text: str | list[str], target: str | list[str] | None = None) -> AttentionMaps:
        """The attention maps of one forward over a question and its answer, or over a text.

        Args:
            text: the question or the text; several make a batch.
            target: the answer; by default the model's own.
        """
        texts = [text] if isinstance(text, str) else list(text)
        if not texts:
            raise ConfigError("there is no text to attend to")
        if self.task.kind == "stream" and target is not None:
            raise ConfigError("a language model has no separate target: put all into the text")
        if target is None and self.task.kind == "pairs" and not isinstance(self.model, EncoderOnly):
            target = self.generate(texts)
        targets = [target] if isinstance(target, str) else None if target is None else list(target)
        batch = self._batch(texts, targets)
        return attention_maps(self.model, batch.model_inputs(), labels(batch, self.tokenizer))

    @overload
    def score(self, text: str, target: str) -> float: ...
    @overload
    def score(self, text: list[str], target: list[str]) -> list[float]: ...

    def score(self, text: str | list[str], target: str | list[str]) -> float | list[float]:
        """The log-probability (natural logarithm) of a target under the model.

        Args:
            text: the question, the beginning of a text, or a text with `<mask>` in it.
            target: the answer, which includes its end; the continuation; or the whole text, scored at each `<mask>`.
        """
        texts = [text] if isinstance(text, str) else list(text)
        targets = [target] if isinstance(target, str) else list(target)
        if not texts and not targets:
            return []
        batch = self._batch(texts, targets)
        if self.task.kind == "masked" and bool((batch.labels == IGNORE).all(dim=1).any()):
            raise ConfigError("there is nothing to score: put <mask> into the text where the target is to be scored")
        with torch.inference_mode():
            logs = self.model(**batch.model_inputs()).float().log_softmax(dim=-1)  # [B, T, V]
        chosen = logs.gather(-1, batch.labels.clamp(min=0)[..., None])[..., 0]
        totals = chosen.masked_fill(batch.labels == IGNORE, 0.0).sum(dim=1).tolist()
        return totals[0] if isinstance(text, str) else totals

    def _encode(self, text: str) -> list[int]:
        tokenizer, masked = self.tokenizer, self.task.kind == "masked"
        ids = tokenizer.encode_masked(text) if masked else tokenizer.encode_question(text)
        if not ids:
            raise ConfigError("the prompt is empty: give at least one token")
        return ids

    def _batch(self, texts: list[str], targets: list[str] | None) -> Batch:
        """Texts, and their targets if there are any, as a batch for the model's architecture."""
        if targets is not None and len(targets) != len(texts):
            raise ConfigError(f"as many targets as texts are needed, got {len(targets)} and {len(texts)}")
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
        ConfigError: a missing or damaged file, another or a newer format, or weights that do not fit the config.
    """
    if device == "auto":
        device = best_device()
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device {device} cannot be used here: {reason}") from None
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
        raise ConfigError(f"{file} is damaged, or its parts do not fit together: {first}") from None
