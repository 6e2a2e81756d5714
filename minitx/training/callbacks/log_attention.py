"""Attention and written answers of a run, in TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from minitx.checkpoints.atomic_files import written_whole
from minitx.config.schema import AttentionLogConfig
from minitx.data.tokenizers import Tokenizer
from minitx.evaluation.metrics import evaluating
from minitx.inference.predictor import Predictor
from minitx.interpret.attention_maps import KINDS, AttentionMaps
from minitx.interpret.head_statistics import HeadSums
from minitx.tensorboard.head_figures import HeadFigures, add_heads, heads, heads_json, heads_table
from minitx.tensorboard.writer import add_attention, add_maps, markdown_table
from minitx.training.callbacks.event_logger import RunLogger
from minitx.training.module import TransformerModule


class LogAttention(Callback):
    """Logs the attention maps of fixed validation examples, what its heads do, and what the model answers.

    Args:
        config: how often, and how many examples.
    """

    state_key = "LookInside"  # its name when checkpoints of format 1 were first written

    def __init__(self, config: AttentionLogConfig) -> None:
        self.config = config
        self._heads: list[HeadFigures] = []

    def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Every n-th validation, in the process that writes the log."""
        every = self.config.every_n_validations
        if not trainer.is_global_zero or trainer.logger is None or trainer.state.fn != "fit" or every < 1:
            return
        number = trainer.global_step * trainer.accumulate_grad_batches // int(trainer.val_check_interval)
        if (number - 1) % every and trainer.global_step < trainer.max_steps:
            return
        assert isinstance(module, TransformerModule)
        writer = trainer.logger.experiment  # type: ignore[attr-defined]
        with evaluating(module.model):
            predictor = Predictor(module.model, module.task.vocabulary, module.config)
            examples = module.task.examples("validation", self.config.examples)
            texts, expected = examples.texts(module.task.vocabulary, self.config.max_tokens)
            readable = [place for place, text in enumerate(texts) if _is_readable(text, module.task.vocabulary)]
            if not readable:
                return
            texts = [texts[place] for place in readable]
            if expected is None:
                header: tuple[str, ...] = ("prompt", "continuation, sampled")
                prompts = [_half(text, module.task.vocabulary) for text in texts]
                written = predictor.generate(prompts, max_new_tokens=100, do_sample=True, temperature=0.8, seed=0)
                table: list[tuple[str, ...]] = list(zip(prompts, written, strict=True))
                maps = predictor.attend(texts)
            else:
                header = ("input", "expected", "generated")
                written = predictor.generate(texts)
                table = list(zip(texts, [expected[place] for place in readable], written, strict=True))
                alone = predictor.architecture == "encoder_only"  # which reads its questions, and no answers
                maps = predictor.attend(texts) if alone else predictor.attend(texts, written)
        writer.add_text("answers", markdown_table(header, table), trainer.global_step)
        self._log(writer, maps, len(texts), trainer.global_step)

    def _log(self, writer: Any, maps: AttentionMaps, examples: int, step: int) -> None:
        """Maps for the Attention tab, figures of their heads, and pictures."""
        sums = {kind: HeadSums() for kind in KINDS}
        for example in range(examples):
            for kind, items in maps.encoded(example).items():
                add_maps(writer, f"{kind}/example_{example + 1}", items, step)
                sums[kind].add(maps.layers(kind, example))
            if self.config.pictures:
                add_attention(writer, maps.pictures(example), f"example_{example + 1}", step)
        statistics = {kind: added.statistics() for kind, added in sums.items()}
        self._heads = heads(statistics)
        add_heads(writer, statistics, step)

    def state_dict(self) -> dict[str, Any]:
        """What each head did, for a run that goes on and has no further validation."""
        return {"heads": [head._asdict() for head in self._heads]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """See state_dict."""
        self._heads = [HeadFigures(**head) for head in state_dict["heads"]]

    def on_train_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """What each head did when it was last looked at, as a table in TensorBoard and as heads.json in the run."""
        if not self._heads:
            return
        assert trainer.logger is not None
        trainer.logger.experiment.add_text("heads", heads_table(self._heads), trainer.global_step)  # type: ignore[attr-defined]
        path = Path(str(trainer.logger.log_dir)) / "heads.json"
        assert isinstance(trainer.logger, RunLogger)
        with trainer.logger.disk.writing(path.name, "TensorBoard's tab TEXT has it"), written_whole(path) as file:
            file.write(f"{json.dumps(heads_json(self._heads), indent=2)}\n".encode())


def _is_readable(text: str, vocabulary: Tokenizer) -> bool:
    """Whether a text that was written out can be read again: not when words have lost what stood between them."""
    try:
        return bool(vocabulary.encode_masked(text))
    except ValueError:
        return False


def _half(text: str, vocabulary: Tokenizer) -> str:
    """The first half of a text, at least one token of it."""
    ids = vocabulary.encode(text)
    return vocabulary.decode(ids[: max(1, len(ids) // 2)])
