"""The induction circuit of a model: a previous-token head, an induction head, and their connection.

The induction head attends to a token whose predecessor equals the current token. This works because an earlier head has
copied each token's predecessor into the input of the keys (Elhage et al. 2021, Olsson et al. 2022).
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from minitx.config.errors import ConfigError
from minitx.data.batch import Batch
from minitx.data.example_texts import counted_examples, held_out_split
from minitx.data.splits import Split
from minitx.evaluation.metrics import Scores, evaluating, rows_at_once, teacher_forced
from minitx.inference.predictor import Predictor
from minitx.interpret.composition import Composition, compositions
from minitx.interpret.intervene import at, intervene
from minitx.interpret.parts import Part, in_place_of
from minitx.interpret.task_statistics import task_statistics
from minitx.interpret.trace import trace
from minitx.models.transformers import EncoderOnly
from minitx.tensorboard.map_format import PATTERN_FROM, Statistic

LISTED_COMPOSITIONS = 5
"""Number of pairs of heads that the text lists, those with the largest scores."""


@dataclass(frozen=True)
class InductionCircuit:
    """Two heads, how strongly the second reads the first, and the metrics without parts of their connection."""

    previous_token: Part
    induction: Part
    values: dict[str, float]  # by statistic: the share of that head's attention weight on the pattern
    examples: int
    split: Split
    metrics: dict[str, dict[str, float]]
    """loss and token_accuracy: whole; no_induction, no_previous_token: without a head; no_keys: the first head removed
    from the keys of the second alone; only_keys: the first head removed from everything but these keys."""
    compositions: list[Composition]  # of all pairs of heads, the largest score first
    random: float  # the score of random matrices
    path: str | None  # of the file that the examples are from, if not that of training

    @property
    def link(self) -> Composition:
        """From the previous-token head to the keys of the induction head."""
        return next(found for found in self.compositions if found[:3] == (self.previous_token, self.induction, "k"))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        pairs = [{"pair": str(pair), "score": pair.score} for pair in self.compositions]
        heads = {"previous_token": str(self.previous_token), "induction": str(self.induction)}
        return {**asdict(self), **heads, "compositions": pairs}

    def __str__(self) -> str:
        """The circuit as a graph of text."""
        keys = [found for found in self.compositions if found.reader == self.induction and found.through == "k"]
        rank = keys.index(self.link) + 1

        def line(name: str) -> str:
            metrics = self.metrics[name]
            return f"loss {metrics['loss']:.4f}, token accuracy {100 * metrics['token_accuracy']:.2f} %"

        unclear = " or ".join(name for name, value in self.values.items() if value < PATTERN_FROM)
        lines = [
            *([f"no clear circuit: no head reaches {PATTERN_FROM} in {unclear}"] if unclear else []),
            f"induction circuit, on {counted_examples(self.examples, self.split, self.path)}:",
            line("whole"),
            "",
            f"  {self.previous_token}  previous_token {self.values['previous_token']:.2f}",
            f"      |     without this head:            {line('no_previous_token')}",
            "      |",
            f"      |     K-composition {self.link.score:.2f}, {rank} of {len(keys)} by size; random {self.random:.2f}",
            f"      |     removed from these keys:      {line('no_keys')}",
            f"      |     removed from all but these:   {line('only_keys')}",
            "      v",
            f"  {self.induction}  induction {self.values['induction']:.2f}",
            f"      |     without this head:            {line('no_induction')}",
            "      v",
            "  prediction",
            "",
            "largest compositions of two heads:",
        ]
        lines += [f"  {pair}  {pair.score:.2f}" for pair in self.compositions[:LISTED_COMPOSITIONS]]
        return "\n".join(lines)


def induction_circuit(predictor: Predictor, split: Split | None = None, examples: int = 500) -> InductionCircuit:
    """Test the head with the largest induction statistic and, of earlier layers, that with the largest previous_token.

    Metrics are teacher-forced. A removed output is zero.

    Args:
        split: of the examples; the task's final split by default.
        examples: at most this many, for the statistics and the metrics.

    Raises:
        ConfigError: fewer than two layers of causal self-attention; an unknown split; no token that is read again.
    """
    model = predictor.model
    layers = 0 if isinstance(model, EncoderOnly) else len(model.decoder.layers)
    if layers < 2:
        raise ConfigError(f"an induction circuit needs a decoder of at least 2 layers, and this model has {layers}")
    split = held_out_split(predictor.task, split)
    statistics = {found.name: found for found in task_statistics(predictor, examples, split).get("decoder", [])}
    if "induction" not in statistics or "previous_token" not in statistics:
        raise ConfigError("no example predicts a token right after one that occurred at least two tokens before")
    values: dict[str, float] = {}
    induction, values["induction"] = _largest(statistics["induction"], range(2, layers + 1))
    previous, values["previous_token"] = _largest(statistics["previous_token"], range(1, induction.layer))
    pairs = sorted(compositions(model), key=lambda found: -found.score)
    held_out = predictor.task.examples(split, examples)
    whole = held_out.frame(predictor.architecture, predictor.tokenizer.special).to(predictor.device)
    rows = rows_at_once(model, held_out.width)
    sums: dict[str, Scores] = defaultdict(Scores)
    with torch.inference_mode(), evaluating(model):
        for start in range(0, len(held_out), rows):
            for name, scores in _without_parts(model, previous, induction, whole.slice(start, start + rows)):
                sums[name] += scores
    metrics = {name: {key: found.means()[key] for key in ("loss", "token_accuracy")} for name, found in sums.items()}
    random = predictor.config.model.d_model**-0.5
    file = predictor.task.evaluated_file or None
    return InductionCircuit(previous, induction, values, len(held_out), split, metrics, pairs, random, file)


def _largest(statistic: Statistic, layers: range) -> tuple[Part, float]:
    """The head with the largest value in some layers, counted from 1."""
    heads = {
        Part("decoder", layer, head): value or 0.0
        for layer in layers
        for head, value in enumerate(statistic.values[layer - 1], start=1)
    }
    return max(heads.items(), key=lambda head: head[1])


def _without_parts(model: Any, previous: Part, induction: Part, batch: Batch) -> Iterator[tuple[str, Scores]]:
    """Scores of one batch, by the names of InductionCircuit.metrics."""
    key_site, score_site = (f"{induction.site.removesuffix('.z')}.{kind}" for kind in ("k", "scores"))
    removed = in_place_of([previous], "zero")
    with trace(model, key_site) as own:
        yield "whole", teacher_forced(model, batch)
    with intervene(model, removed), trace(model, key_site) as without:
        yield "no_previous_token", teacher_forced(model, batch)
    with intervene(model, in_place_of([induction], "zero")):
        yield "no_induction", teacher_forced(model, batch)
    for name, others, replaced in (("no_keys", {}, without), ("only_keys", removed, own)):
        with intervene(model, {**others, key_site: replaced[key_site]}), trace(model, score_site) as t:
            model(**batch.model_inputs())
        # Other heads may share these keys, so only this head's scores are replaced.
        with intervene(model, {**others, score_site: at(t[score_site], heads=induction.number - 1)}):
            yield name, teacher_forced(model, batch)
