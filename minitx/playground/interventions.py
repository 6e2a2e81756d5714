"""Switches of single parts of a model: heads and feed-forward networks, off or at their mean."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from minitx.config.errors import ConfigError, did_you_mean
from minitx.inference.predictor import Predictor
from minitx.interpret.intervene import at, intervene, mean_activations
from minitx.interpret.parts import Part, all_parts
from minitx.models.transformers import Transformer

MEAN_EXAMPLES = 64
"""Held-out examples over which means are taken."""


def parts(model: Transformer) -> dict[str, Part]:
    """Every head and feed-forward network by its name, such as cross.2.1 and decoder.1.ffn."""
    return {str(part): part for several in all_parts(model).values() for part in several}


def means(predictor: Predictor) -> dict[str, Tensor]:
    """The mean output of each part over held-out examples.

    Raises:
        ConfigError: the task has no examples, such as that of an imported model.
    """
    examples = predictor.task.examples(predictor.task.final_split, MEAN_EXAMPLES)
    batch = examples.frame(predictor.architecture, predictor.tokenizer.special).to(predictor.device)
    return mean_activations(predictor.model, [batch], predictor.tokenizer.special.pad)


@contextmanager
def switched(
    model: Any, off: Sequence[str], mean: Sequence[str], means: Callable[[], Mapping[str, Tensor]]
) -> Iterator[None]:
    """Within this block, some parts give zeros, others their mean; `means` is called if there are any of these."""
    known = parts(model)
    changes: list[dict[str, Any]] = []
    for value, names in (("zero", off), ("mean", mean)):
        sites: dict[str, list[int]] = {}
        for name in names:
            if name not in known:
                raise ConfigError(f"there is no part {name[:80]!r} in this model: {did_you_mean(name, known)}")
            part = known[name]
            sites.setdefault(part.site, []).extend([] if part.ffn else [part.number - 1])
        changes.append({site: at(value, heads=heads or None) for site, heads in sites.items()})
    with intervene(model, changes[0]), intervene(model, changes[1], means() if changes[1] else None):
        yield
