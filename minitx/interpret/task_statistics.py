"""Head statistics of a trained model, averaged over many held-out examples."""

from minitx.config.errors import ConfigError
from minitx.data.example_texts import clipped, held_out_split
from minitx.data.loader import fixed_batches
from minitx.data.prompts import labels
from minitx.data.splits import Split
from minitx.evaluation.metrics import evaluating
from minitx.inference.predictor import Predictor
from minitx.interpret.attention_maps import attention_maps
from minitx.interpret.head_statistics import HeadSums
from minitx.interpret.recording import KINDS, attention_modules
from minitx.tensorboard.map_format import Statistic

MAX_TOKENS = 256
"""Maximum number of tokens that are read of each example of running text."""
MAX_WEIGHTS = 2**26
"""Maximum number of attention weights in memory at a time: 256 MiB."""


def task_statistics(
    predictor: Predictor, examples: int = 256, split: Split | None = None
) -> dict[str, list[Statistic]]:
    """The statistics of every head over at most this many held-out examples, with their reference answers.

    The split is the task's final one by default. Returns means over the counted rows of all examples, as from
    head_statistics, by kind: encoder, decoder, cross.

    Raises:
        ConfigError: fewer than one example, or an unknown split.
    """
    if examples < 1:
        raise ConfigError(f"the number of examples must be at least 1, got {examples}")
    held_out = clipped(predictor.task.examples(held_out_split(predictor.task, split), examples), MAX_TOKENS)
    heads = sum(module.n_heads for module in attention_modules(predictor.model).values())
    batch_size = max(1, MAX_WEIGHTS // (heads * held_out.width**2))
    sums = {kind: HeadSums() for kind in KINDS}
    for part in fixed_batches(held_out, batch_size):
        batch = part.to(predictor.device).frame(predictor.architecture, predictor.tokenizer.special)
        with evaluating(predictor.model):
            maps = attention_maps(predictor.model, batch.model_inputs(), labels(batch, predictor.tokenizer))
        for kind in KINDS:
            for example in range(len(part)):
                sums[kind].add(maps.layers(kind, example))
    return {kind: statistics for kind, added in sums.items() if (statistics := added.statistics())}
