"""Token vectors in TensorBoard's projector: from the embedding table, and in context above each stack."""

import shutil
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from minitx.config.schema import EmbeddingLogConfig
from minitx.data.example_texts import clipped
from minitx.data.prompts import labels
from minitx.evaluation.metrics import evaluating
from minitx.inference.predictor import Predictor
from minitx.interpret.trace import trace
from minitx.tensorboard.map_format import visible

COLUMNS = ["token", "vector", "example", "position"]
"""Labels of a point: vector is table, encoder or decoder; example and position are - for the table."""


class LogEmbeddings(Callback):
    """Write the token vectors of fixed validation examples at the end of training, for each stack.

    Each distinct token has one point from the table, scaled as in the model and without its position, and one point for
    every occurrence from the output of the stack, after its last norm.
    """

    def __init__(self, config: EmbeddingLogConfig) -> None:
        self.config = config

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Write the vectors in the first process; all of them compute, because the weights may be sharded."""
        predictor = Predictor(module.model, module.task.vocabulary, module.config, module.task)
        found, step = [*token_points(predictor, self.config)], trainer.global_step
        if not trainer.is_global_zero:
            return
        with module.logger.files.writing("the projector's files", "the run continues without them"):
            for stack, *points in found:
                shutil.rmtree(module.logger.files.folder / f"{step:05}" / stack, ignore_errors=True)  # if it is resumed
                module.logger.experiment.add_embedding(*points, global_step=step, tag=stack, metadata_header=COLUMNS)


def token_points(predictor: Predictor, config: EmbeddingLogConfig) -> Iterator[tuple[str, Tensor, list[list[str]]]]:
    """Yield the name of each stack (encoder, decoder), vectors [N, D], those of the table first, and their COLUMNS."""
    examples = predictor.task.examples("validation", config.examples).slice(0, config.examples)
    examples = clipped(examples, config.max_tokens).to(predictor.device)
    batch = examples.frame(predictor.architecture, predictor.tokenizer.special)
    model = predictor.model
    stacks = [name for name, _ in model.named_children() if name in ("encoder", "decoder")]
    with torch.no_grad(), evaluating(model), trace(model, [f"{stack}.out" for stack in stacks]) as above:
        model(**batch.model_inputs())
    names = labels(batch, predictor.tokenizer)
    for stack in stacks:
        ids, tokens = (batch.src, names["source"]) if stack == "encoder" else (batch.tgt, names["target"])
        places = [(row, place) for row in range(len(examples)) for place in range(len(tokens[row]))]
        places = places[: config.max_points]
        first = {tokens[row][place]: (row, place) for row, place in reversed(places)}
        with torch.no_grad():
            table = model.embedding(ids)
        static = [table[row, place] for row, place in first.values()]
        contextual = [above[f"{stack}.out"][row, place] for row, place in places]
        rows = [[visible(token), "table", "-", "-"] for token in first]
        rows += [[visible(tokens[row][place]), stack, str(row + 1), str(place + 1)] for row, place in places]
        yield stack, torch.stack([*static, *contextual]).float().cpu(), rows
