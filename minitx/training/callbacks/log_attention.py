"""Attention maps, head statistics and generated outputs of a run, in TensorBoard."""

import json
import math
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from minitx.config.schema import AttentionLogConfig
from minitx.data.batch import Batch
from minitx.data.example_texts import clipped, decode_masked, example_ids
from minitx.data.examples import Examples, Pairs
from minitx.data.prompts import labels
from minitx.data.tasks.base import Task
from minitx.evaluation.metrics import evaluating
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from minitx.interpret.encoded_maps import encoded, encoded_lens
from minitx.interpret.head_statistics import HeadSums
from minitx.interpret.lens import answer_shares, residual_streams
from minitx.interpret.recording import KINDS
from minitx.interpret.stepwise import record_maps
from minitx.tensorboard.writer import HeadEntry, add_attention, add_heads, add_maps, heads, heads_table, markdown_table

DEFAULT_SHARE = 0.02
"""Share of the run between two logs of maps, by default."""
CANDIDATES = 16
"""Number of validation questions of which the longest are logged."""
MIN_STEPS = 10
"""Minimum number of steps between two logs of maps by default, so that logging is cheap in short runs too."""


def steps_between_maps(config: AttentionLogConfig, max_steps: int) -> int:
    """Optimizer steps from one log of maps to the next; 0 for none."""
    if not (config.examples and config.every_n_validations):  # 0 validations switched all off in earlier versions
        return 0
    if config.every_n_steps is not None:
        return config.every_n_steps
    return max(MIN_STEPS, int(max_steps * DEFAULT_SHARE))


class LogAttention(Callback):
    """Log attention maps, head statistics and generated outputs of fixed validation examples."""

    def __init__(self, config: AttentionLogConfig) -> None:
        self.config = config
        self._heads: list[HeadEntry] = []
        self._batch: Batch | None = None  # of the examples, once maps have been logged
        self._step = 0  # of the latest maps
        self._every = 0  # steps from one log of maps to the next; 0 for none

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Log the maps of the initial weights; a resumed run already has them."""
        self._step, self._every = trainer.global_step, steps_between_maps(self.config, trainer.max_steps)
        if self._every and self._step == 0:
            self._log_maps(trainer, module)

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log the maps after every n-th optimizer step."""
        step = trainer.global_step
        if self._every and step != self._step and step % self._every == 0:
            self._log_maps(trainer, module)

    def _log_maps(self, trainer: pl.Trainer, module: Any) -> None:
        """Log maps, head statistics, lenses and pictures of the examples with their expected answers."""
        config, vocabulary, self._step = self.config, module.task.vocabulary, trainer.global_step
        if self._batch is None:
            examples = clipped(logged_examples(module.task, config.examples), config.max_tokens).to(module.device)
            self._batch = examples.frame(module.config.model.architecture, vocabulary.special)
        # In every process, because the weights may be sharded; compiling for a few forwards saves no time.
        inputs = self._batch.model_inputs()
        with evaluating(module.model), torch.no_grad(), torch.compiler.set_stance("force_eager"):
            with record_maps(module.model) as maps:
                streams = residual_streams(module.model, inputs)
            lenses = answer_shares(module.model, inputs, streams, self._batch.labels)
        maps.tokens, maps.separator = labels(self._batch, vocabulary), vocabulary.separator
        if not trainer.is_global_zero:
            return
        writer, step = module.logger.experiment, trainer.global_step
        sums = {kind: HeadSums() for kind in KINDS}
        for row in range(len(self._batch)):
            for kind, items in encoded(maps, row, lambda layers: sums[layers[0].kind].add(layers)).items():
                add_maps(writer, f"{kind}/example_{row + 1}", items, step)
            tokens = (maps.tokens.get("target") or maps.tokens["source"])[row]
            shares = {name: layers[:, row, : len(tokens)].T.cpu().numpy() for name, layers in lenses.items()}
            add_maps(writer, f"lens/example_{row + 1}", encoded_lens(tokens, shares, maps.separator), step)
            if config.pictures:
                from minitx.interpret.images import pictures

                add_attention(writer, pictures(maps, row), f"example_{row + 1}", step)
        statistics = {kind: added.statistics() for kind, added in sums.items()}
        self._heads = heads(statistics)
        add_heads(writer, statistics, step)

    def on_validation_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Log the generated outputs of the first validation and every n-th after it, in the first process."""
        every = self.config.every_n_validations
        if not trainer.is_global_zero or every < 1 or not self.config.examples:
            return
        number = trainer.global_step * trainer.accumulate_grad_batches // int(trainer.val_check_interval)
        if (number - 1) % every and trainer.global_step < trainer.max_steps:
            return
        if math.isnan(module.validated["loss"]):  # such a model generates no text
            return
        vocabulary, special = module.task.vocabulary, module.task.vocabulary.special
        examples = logged_examples(module.task, self.config.examples)
        prompts, answers = example_ids(examples, special, self.config.max_tokens)
        special_ids = {*special, *vocabulary.special_tokens.question(())} - {special.mask}
        prompts = [[token for token in ids if token not in special_ids] for ids in prompts]
        header, options = ["input", "expected", "generated"], GenerationOptions()
        if answers is None:
            prompts, header = [ids[: max(1, len(ids) // 2)] for ids in prompts], ["prompt", "continuation, sampled"]
            options = GenerationOptions(max_new_tokens=100, do_sample=True, temperature=0.8, seed=0)
        if not (rows := [row for row, ids in enumerate(prompts) if ids]):
            return
        with evaluating(module.model):
            predictor = Predictor(module.model, vocabulary, module.config, module.task)
            questions = [vocabulary.special_tokens.question(prompts[row]) for row in rows]
            generated = [several[0].text for several in predictor.generations(questions, options)]
        texts = [[decode_masked(part[row], vocabulary) for row in rows] for part in (prompts, answers) if part]
        table = markdown_table(header, zip(*texts, generated, strict=True))
        module.logger.experiment.add_text("answers", table, trainer.global_step)

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Log the maps after the last step, and the statistics of the heads as a table and as heads.json."""
        # All processes or none, because the weights may be sharded. _batch is None if resumed after the last step.
        if self._every and (trainer.global_step != self._step or self._batch is None):
            self._log_maps(trainer, module)
        if not self._heads:
            return
        module.logger.experiment.add_text("heads", heads_table(self._heads), trainer.global_step)
        files, table = module.logger.files, json.dumps(self._heads, indent=2)
        with files.writing("heads.json", "TensorBoard's TEXT tab has it"):
            files.write("heads.json", f"{table}\n".encode())


def logged_examples(task: Task, count: int) -> Examples:
    """The longest of the first validation questions, in which a pattern is clearest; the first blocks of a text."""
    examples = task.examples("validation", max(count, CANDIDATES))
    if isinstance(examples, Pairs):
        order = examples.source_keep.sum(dim=1).argsort(descending=True, stable=True)
        examples = examples.map(lambda part: part[order])
    return examples.slice(0, count)
