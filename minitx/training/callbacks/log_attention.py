"""Attention maps, head statistics and generated outputs of a run, in TensorBoard."""

from __future__ import annotations

import json
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from minitx.config.schema import AttentionLogConfig
from minitx.data.tokenizers import Tokenizer
from minitx.evaluation.metrics import evaluating
from minitx.inference.predictor import Predictor
from minitx.interpret.attention_maps import KINDS, AttentionMaps
from minitx.interpret.head_statistics import HeadSums
from minitx.tensorboard.head_figures import HeadFigures, add_heads, heads, heads_json, heads_table
from minitx.tensorboard.writer import add_attention, add_maps, markdown_table
from minitx.training.callbacks.event_logger import RunLogger


class LogAttention(Callback):
    """Log attention maps, head statistics and generated outputs of fixed validation examples."""

    state_key = "LookInside"  # the key in checkpoints of format 1

    def __init__(self, config: AttentionLogConfig) -> None:
        self.config = config
        self._heads: list[HeadFigures] = []

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Log every n-th validation, in the first process."""
        every = self.config.every_n_validations
        if not trainer.is_global_zero or every < 1:
            return
        number = trainer.global_step * trainer.accumulate_grad_batches // int(trainer.val_check_interval)
        if (number - 1) % every and trainer.global_step < trainer.max_steps:
            return
        assert isinstance(trainer.logger, RunLogger)
        vocabulary = module.task.vocabulary
        with evaluating(module.model):
            predictor = Predictor(module.model, vocabulary, module.config)
            examples = module.task.examples("validation", self.config.examples)
            texts, expected = examples.texts(vocabulary, self.config.max_tokens)
            readable = [index for index, text in enumerate(texts) if _can_encode(text, vocabulary)]
            if not readable:
                return
            texts = [texts[index] for index in readable]
            answers = None
            if expected is None:
                prompts = [_first_half(text, vocabulary) for text in texts]
                generated = predictor.generate(prompts, max_new_tokens=100, do_sample=True, temperature=0.8, seed=0)
                table = {"prompt": prompts, "continuation, sampled": generated}
            else:
                generated = predictor.generate(texts)
                table = {"input": texts, "expected": [expected[index] for index in readable], "generated": generated}
                if predictor.architecture != "encoder_only":  # whose input has no answers
                    answers = generated
            maps = predictor.attend(texts, answers)
        writer, rows = trainer.logger.experiment, list(zip(*table.values(), strict=True))
        writer.add_text("answers", markdown_table(tuple(table), rows), trainer.global_step)
        self._log(writer, maps, len(texts), trainer.global_step)

    def _log(self, writer: Any, maps: AttentionMaps, examples: int, step: int) -> None:
        """Write maps for the Attention tab, statistics of their heads, and pictures."""
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
        """The latest head statistics, for a resumed run without a further validation."""
        return {"heads": [head._asdict() for head in self._heads]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._heads = [HeadFigures(**head) for head in state_dict["heads"]]

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Write the latest head statistics as a table in TensorBoard and as heads.json."""
        if not self._heads:
            return
        assert isinstance(trainer.logger, RunLogger)
        trainer.logger.experiment.add_text("heads", heads_table(self._heads), trainer.global_step)
        files, table = trainer.logger.files, json.dumps(heads_json(self._heads), indent=2)
        with files.writing("heads.json", "TensorBoard's tab TEXT has it"):
            files.write("heads.json", f"{table}\n".encode())


def _can_encode(text: str, vocabulary: Tokenizer) -> bool:
    """Whether a decoded text can be encoded; a word tokenizer may join two words that it cannot read."""
    try:
        return bool(vocabulary.encode_masked(text))
    except ValueError:
        return False


def _first_half(text: str, vocabulary: Tokenizer) -> str:
    """The first half of a text, at least one token of it."""
    ids = vocabulary.encode(text)
    return vocabulary.decode(ids[: max(1, len(ids) // 2)])
