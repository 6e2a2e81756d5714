"""Attention maps, head statistics and generated outputs of a run, in TensorBoard."""

import json
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from minitx.config.schema import AttentionLogConfig
from minitx.data.tokenizers import Tokenizer
from minitx.evaluation.metrics import evaluating
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from minitx.interpret.attention_maps import KINDS, AttentionMaps
from minitx.interpret.head_statistics import HeadSums
from minitx.tensorboard.head_figures import HeadFigures, add_heads, heads, heads_table
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
            readable = [index for index, text in enumerate(texts) if _ids(text, vocabulary)]
            if not readable:
                return
            texts = [texts[index] for index in readable]
            attended, answers = list(range(len(texts))), None
            if expected is None:
                prompts = [ids[: max(1, len(ids) // 2)] for ids in map(vocabulary.encode, texts)]
                options = GenerationOptions(max_new_tokens=100, do_sample=True, temperature=0.8, seed=0)
                generations = predictor.generations([*map(vocabulary.special_tokens.question, prompts)], options)
                generated = [several[0].text for several in generations]
                table = {"prompt": [*map(vocabulary.decode, prompts)], "continuation, sampled": generated}
            else:
                generated = predictor.generate(texts)
                table = {"input": texts, "expected": [expected[index] for index in readable], "generated": generated}
                if predictor.architecture != "encoder_only":  # whose input has no answers
                    attended = [index for index, text in enumerate(generated) if _ids(text, vocabulary) is not None]
                    answers = [generated[index] for index in attended]
            maps = predictor.attend([texts[index] for index in attended], answers) if attended else None
        writer, rows = trainer.logger.experiment, list(zip(*table.values(), strict=True))
        writer.add_text("answers", markdown_table(tuple(table), rows), trainer.global_step)
        if maps is not None:
            self._log(writer, maps, attended, trainer.global_step)

    def _log(self, writer: Any, maps: AttentionMaps, examples: list[int], step: int) -> None:
        """Write maps for the Attention tab, statistics of their heads, and pictures; row by row of these examples."""
        sums = {kind: HeadSums() for kind in KINDS}
        for row, example in enumerate(examples):
            for kind, items in maps.encoded(row).items():
                add_maps(writer, f"{kind}/example_{example + 1}", items, step)
                sums[kind].add(maps.layers(kind, row))
            if self.config.pictures:
                add_attention(writer, maps.pictures(row), f"example_{example + 1}", step)
        statistics = {kind: added.statistics() for kind, added in sums.items()}
        self._heads = heads(statistics)
        add_heads(writer, statistics, step)

    def state_dict(self) -> dict[str, Any]:
        """The latest head statistics, for a resumed run without a further validation."""
        return {"heads": self._heads}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._heads = state_dict["heads"]

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Write the latest head statistics as a table in TensorBoard and as heads.json."""
        if not self._heads:
            return
        assert isinstance(trainer.logger, RunLogger)
        trainer.logger.experiment.add_text("heads", heads_table(self._heads), trainer.global_step)
        files, table = trainer.logger.files, json.dumps(self._heads, indent=2)
        with files.writing("heads.json", "TensorBoard's tab TEXT has it"):
            files.write("heads.json", f"{table}\n".encode())


def _ids(text: str, vocabulary: Tokenizer) -> list[int] | None:
    """The ids of a decoded text; None if it cannot be encoded, because a word tokenizer may join two words."""
    try:
        return vocabulary.encode_masked(text)
    except ValueError:
        return None
