"""run.init_from: a new run that begins with the weights of another, and for text with its tokenizer."""

from __future__ import annotations

import dataclasses

from minitx.config.registry import resolve
from minitx.config.schema import Config, ModelConfig, changes
from minitx.data.batch import IGNORE
from minitx.data.tasks import Task, generator
from minitx.inference.predictor import Predictor, load
from minitx.nn import POSITION_IDS, POSITIONS
from minitx.nn.positions import GIVEN

MAY_CHANGE = ("dropout", "attention_dropout", "window", "softcap", "prefix_lm", "position_ids", "position.base")
"""Keys of `model` that need not be those of the weights: they shape no weight, and training adapts to them."""


def resolved_model(model: ModelConfig) -> ModelConfig:
    """The same with every option of its open sections.

    Raises:
        ValueError: an option that is unknown or does not fit.
    """
    return dataclasses.replace(
        model,
        position=resolve(POSITIONS, model.position, "model.position", GIVEN),
        position_ids=resolve(POSITION_IDS, model.position_ids, "model.position_ids", GIVEN),
    )


def source(path: str) -> Predictor:
    """The trained model that a run begins with.

    Args:
        path: a checkpoint file, or a run folder (its newest version's best).

    Raises:
        ValueError: nothing there, or not a checkpoint that can be used.
    """
    try:
        found = load(path, device="cpu")
        found.config = dataclasses.replace(found.config, model=resolved_model(found.config.model))
    except ValueError as error:
        raise ValueError(f"--init_from: {error}") from None
    return found


def fitted(config: Config, begun: Predictor) -> Config:
    """A config whose model has room for as many tokens as the weights; and, for text, their way to make tokens of it.

    Args:
        config: of the new run, its `data` resolved.
        begun: what it begins with.
    """
    model, data = config.model, config.data
    if model.vocab_size is None:
        model = dataclasses.replace(model, vocab_size=begun.model.embedding.table.num_embeddings)
    if "tokenizer" in data and "tokenizer" in begun.config.data:
        data = {**data, "tokenizer": begun.config.data["tokenizer"]}
    return dataclasses.replace(config, model=model, data=data)


def check(model: ModelConfig, begun: Predictor) -> dict[str, tuple[object, object]]:
    """The keys of the model that are not those of the weights, but may differ.

    Args:
        model: of the new run, resolved.
        begun: what it begins with.

    Raises:
        ValueError: a key with which the weights do not fit.
    """
    room = begun.model.embedding.table.num_embeddings
    before = dataclasses.replace(begun.config.model, vocab_size=room)
    found = changes(Config(model=before).to_dict(), Config(model=model).to_dict())
    for key, (old, new) in found.items():
        if not key.removeprefix("model.").startswith(MAY_CHANGE):
            raise ValueError(
                f"--init_from: {key} is {old!r} in the checkpoint and {new!r} here; leave the key out of the config "
                "to take the checkpoint's"
            )
    return found


def notes(config: Config, task: Task, begun: Predictor) -> list[str]:
    """What whoever trains should know about the beginning.

    Args:
        config: of the new run, resolved.
        task: the config's.
        begun: what it begins with.
    """
    lines = [f"--init_from: the weights of {config.run.init_from} ({begun.config.run.name})"]
    for key, (old, new) in check(config.model, begun).items():
        lines.append(f"--init_from: {key} {old} -> {new}")
    if task.vocabulary.to_dict() != begun.tokenizer.to_dict():
        lines.append("--init_from: tokens mean something else than in the checkpoint: this task has its own")
    elif unknown := _unknown(config, task):
        lines.append(f"--init_from: {unknown:.1%} of its training tokens are <unk>, which the tokenizer does not know")
    return lines


def _unknown(config: Config, task: Task) -> float:
    """The share of <unk> among what is to be predicted, in one batch."""
    special = task.vocabulary.special
    labels = task.batch(generator(0), task.batch_size).frame(config.model.architecture, special).labels
    return float((labels == special.unk).sum() / (labels != IGNORE).sum())
