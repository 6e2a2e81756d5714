"""A trained model with its tokenizer: text in, text out. The checkpoint file holds everything it needs.

Legend: B batch, S source tokens, T target tokens, H heads.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import torch

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.model_weights import load_model
from minitx.config.errors import ConfigError, UnknownName, first_line
from minitx.config.registry import build
from minitx.config.schema import Config, config_from_dict
from minitx.config.validation import shown
from minitx.data.batch import IGNORE, Batch
from minitx.data.prompts import framed, labels
from minitx.data.tasks import TASKS, Task
from minitx.data.tokenizers import Tokenizer
from minitx.generation.options import GenerationOptions
from minitx.hardware.devices import best_device
from minitx.inference.text_generation import Generation, TextGenerator, check_positions, encoder_generations
from minitx.interpret.attention_maps import AttentionMaps, attention_maps
from minitx.models.transformers import EncoderOnly, Transformer, max_positions

if TYPE_CHECKING:
    from minitx.interpret.lens import Lens
    from minitx.interpret.patch_map import PatchMap


class Predictor:
    """A model in evaluation mode with its tokenizer, the config of its run and a task, by default the config's."""

    data_digest = ""
    """Hash of the training data (start.data_digest), if the checkpoint has one."""

    def __init__(self, model: Transformer, tokenizer: Tokenizer, config: Config, task: Task | None = None) -> None:
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.task: Task = build(TASKS, config.data, "data") if task is None else task
        self.task.vocabulary = tokenizer
        tokenizer.accepts_unknown |= bool(self.task.metrics)  # as in evaluation

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"a Predictor has no {name}; its network, a torch module, is predictor.model")

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
            options: the fields of GenerationOptions.

        Returns:
            A text for a text, a list for a list; lists of texts instead of texts with num_return_sequences above 1.

        Raises:
            ConfigError: an empty prompt, a symbol outside the tokenizer's vocabulary, a sequence longer than the
                model's positions, options that do not fit the model.
            ValueError: an option out of range, or options that exclude each other.
            TypeError: an unknown option.
        """
        chosen = GenerationOptions(**options)
        if stream or return_attention:
            if not isinstance(prompt, str):
                raise ConfigError(f"{'stream' if stream else 'return_attention'}=True takes one prompt, got a list")
            if (stream and return_attention) or chosen.num_beams > 1 or chosen.num_return_sequences > 1:
                raise ConfigError("stream excludes return_attention; both exclude num_beams and num_return_sequences")
            if stream:
                return self.text_generator().stream(self.encode(prompt), chosen)
            from minitx.interpret.stepwise import generation_maps

            return generation_maps(self, prompt, chosen)
        texts = [[each.text for each in several] for several in self.generations(_listed(prompt), chosen)]
        answers = texts if chosen.num_return_sequences > 1 else [several[0] for several in texts]
        return answers[0] if isinstance(prompt, str) else answers

    def generations(self, prompts: list[str] | list[list[int]], options: GenerationOptions) -> list[list[Generation]]:
        """The results of generate with their ids, log-probability and the reason for the end. Prompts are texts, or the
        ids of texts (of Python, NumPy or torch), which may contain `<unk>`."""
        ids = [*map(self.encode, prompts)]
        if isinstance(self.model, EncoderOnly) and options == GenerationOptions():
            check_positions(max(map(len, ids), default=0), max_positions(self.model), self.config.model)
            return encoder_generations(self.model, self.task, ids)
        return self.text_generator().generate(ids, options)

    def text_generator(self) -> TextGenerator:
        """Generation from ids; a ConfigError for an encoder_only model."""
        if isinstance(self.model, EncoderOnly):
            raise ConfigError("an encoder_only model predicts all positions at once: it takes no options and no stream")
        return TextGenerator(self.model, self.task, self.config.model)

    def save(self, path: str | Path) -> None:
        """Write the model as it is now as a checkpoint, without training state; raises as checkpoint.write does."""
        parts = self.config.to_dict(), self.tokenizer.to_dict(), self.model.state_dict()
        checkpoint.write(checkpoint.contents_of(*parts) | {"data_digest": self.data_digest}, path)

    def attend(self, text: str | list[str], target: str | list[str] | None = None) -> AttentionMaps:
        """The attention maps of one forward over a question and its answer, or over a text.

        Args:
            text: the question or the text; several make a batch.
            target: the answer; by default the model's own.
        """
        batch = self.batch(text, target)
        maps = attention_maps(self.model, batch.model_inputs(), labels(batch, self.tokenizer))
        maps.name, maps.separator = self.config.run.name, self.tokenizer.separator
        return maps

    def lens(self, text: str, target: str | None = None) -> "Lens":
        """The tokens that the model would predict from each of its layers; arguments as for attend."""
        from minitx.interpret.lens import lens_of_text

        return lens_of_text(self, text, target)

    def patch(self, clean: str, corrupted: str, **options: Any) -> "PatchMap":
        """The activations of a clean text that restore its answer in a corrupted one; options as for patch_texts."""
        from minitx.interpret.patching import patch_texts

        return patch_texts(self, clean, corrupted, **options)

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
        texts, targets = _listed(text), _listed(target)
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

    def batch(self, text: str | list[str], target: str | list[str] | None = None) -> Batch:
        """Texts and their targets, by default the model's own answers, as inputs and labels of the model."""
        texts = _listed(text)
        if not texts:
            raise ConfigError("there is no text")
        if self.task.kind == "stream" and target is not None:
            raise ConfigError("a language model has no separate target: put all into the text")
        if target is not None:
            return self._batch(texts, _listed(target))
        prompts = [*map(self.encode, texts)]
        answers = self.task.kind == "pairs" and not isinstance(self.model, EncoderOnly)
        return self.frame(prompts, self.text_generator().own_answers(prompts) if answers else None)

    def encode(self, text: str | list[int]) -> list[int]:
        """Ids of a text, or those given; a ConfigError for an empty prompt, or an unknown symbol or character."""
        given: Any = text.tolist() if hasattr(text, "tolist") else text
        masked = self.task.kind == "masked" and isinstance(given, str)  # others are refused
        encode = self.tokenizer.encode_masked if masked else self.tokenizer.encode_question
        ids = given if isinstance(given, list) else encode(given)
        if not ids:
            raise ConfigError("the prompt is empty: give at least one token")
        ids, size = [each.tolist() if hasattr(each, "tolist") else each for each in ids], self.model.head.out_features
        if strange := [token for token in ids if type(token) is not int or token not in range(size)]:
            raise ConfigError(f"the ids of a prompt must be integers in [0, {size}), got {strange[0]!r:.80}")
        return ids

    def _batch(self, texts: list[str], targets: list[str]) -> Batch:
        """Texts and their targets as a batch for the model's architecture."""
        if len(targets) != len(texts):
            raise ConfigError(f"as many targets as texts are needed, got {len(targets)} and {len(texts)}")
        answers = [self.tokenizer.encode_answer(target, self.task.kind) for target in targets]
        return self.frame([*map(self.encode, texts)], answers)

    def frame(self, prompts: list[list[int]], answers: list[list[int]] | None) -> Batch:
        """A batch of encoded prompts and their answers, if there are any; raises as `framed` and `checked` do."""
        return self.checked(framed(prompts, answers, self.task, self.architecture, self.device))

    def checked(self, batch: Batch) -> Batch:
        """The same batch; a ConfigError if a row is longer than the model's positions."""
        for stack, part in (("encoder", batch.src), ("decoder", batch.tgt)):
            if part is not None:
                check_positions(part.size(1), max_positions(getattr(self.model, stack)), self.config.model)
        return batch


def _listed(texts: str | Iterable[str]) -> list[str]:
    return [texts] if isinstance(texts, str) or not isinstance(texts, Iterable) else list(texts)


def load(path: str | Path, device: str = "auto") -> Predictor:
    """Load a trained model, in fp32 whatever the precision of its training.

    Args:
        path: a checkpoint file, or a run folder (its newest version's best).
        device: auto (a GPU when there is one), cpu, cuda, mps, ...

    Raises:
        ConfigError: a missing or damaged file, another or a newer format, or weights that do not fit the config.
    """
    device = best_device() if device == "auto" else device
    try:
        torch.zeros(1, device=device).tolist()  # meta has no data
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ConfigError(f"device {device} cannot be used here ({first_line(error)}); choose auto or cpu") from None
    file = checkpoint.find(path)
    return from_contents(checkpoint.read(file), file, device)


def from_contents(contents: dict[str, Any], file: Path, device: str = "cpu") -> Predictor:
    """Build the model of a checkpoint that has been read from `file`.

    Raises:
        ConfigError: the parts of the checkpoint do not fit together.
    """
    config: Config | None = None
    try:
        config = config_from_dict(contents["minitx"]["config"])
        tokenizer = Tokenizer.from_dict(contents["minitx"]["tokenizer"])
        model = load_model(config.model, checkpoint.weights(contents), tokenizer.vocab_size)
        tokenizer.check_fits(model.head.out_features)
        predictor = Predictor(model.to(device).eval(), tokenizer, config)
        predictor.data_digest = str(contents.get("data_digest", ""))
        return predictor
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:  # the contents may be arbitrary
        if names := [each.args[0] for each in (error, *error.args) if isinstance(each, UnknownName)]:
            files = " ".join(f"--import {shown(path)}" for path in (config.imports if config else ()))
            advice = f"if you trust the code, add {files or '--import FILE, the file that registers it'}"
            raise ConfigError(f"{file}: {', '.join(names)}, which is not minitx's own; {advice}") from None
        raise ConfigError(f"{file} {checkpoint.MISFIT}: {first_line(error)}") from error
