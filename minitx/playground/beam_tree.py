"""Beam search as a tree: every beam that was kept at some step, and the finished texts with their scores."""

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.generation.beam import beam_search
from minitx.generation.options import GenerationOptions
from minitx.inference.predictor import Predictor
from minitx.inference.text_generation import IMPOSSIBLE

MAX_BEAMS = 16
MAX_NODES = 5000


def beam_tree(predictor: Predictor, prompt: list[int], options: GenerationOptions) -> Iterator[dict[str, Any]]:
    """Yield the nodes, each after its parent, then the beams of `generate`, best first.

    A node has its `id`, the index of its `parent` (-1: the prompt), and the `log_probability` of its tokens so far. A
    beam has its `ids`, `score`, `log_probability`, and the `text`.
    """
    if not 2 <= options.num_beams <= MAX_BEAMS:
        raise ConfigError(f"num_beams must be 2 to {MAX_BEAMS} here, got {options.num_beams}")
    generator = predictor.text_generator()
    limit = generator.limit(prompt, options)
    if limit * options.num_beams > MAX_NODES:
        advice = f"make max_new_tokens at most {MAX_NODES // options.num_beams}"
        raise ConfigError(f"a tree here has at most {MAX_NODES:,} nodes: {advice}")
    tensors, arguments = generator.arguments([prompt], [[]], limit, options)
    inner, ends = arguments["logits_processor"], arguments["eos"]
    nodes: dict[tuple[int, ...], tuple[int, float]] = {(): (-1, 0.0)}  # by tokens: index, log-probability
    found: list[dict[str, Any]] = []  # in the order of their index
    latest: dict[tuple[int, ...], Tensor] = {}  # log-probabilities [V] after each beam of the step before

    def add(tokens: tuple[int, ...], total: float) -> None:
        nodes[tokens] = len(found), total
        found.append({"id": tokens[-1], "parent": nodes[tokens[:-1]][0], "log_probability": round(total, 6)})

    def observed(logs: Tensor, history: Tensor, keep: Tensor | None, generated: int) -> Tensor:
        rows = dict(zip(map(tuple, history[:, history.size(1) - generated :].tolist()), logs, strict=True))
        for tokens in rows:  # there may be fewer beams than rows; the others continue a text that has ended
            if tokens not in nodes and tokens[:-1] in latest and tokens[-1] not in ends:
                add(tokens, nodes[tokens[:-1]][1] + float(latest[tokens[:-1]][tokens[-1]]))
        latest.clear()
        latest.update({tokens: row for tokens, row in rows.items() if tokens in nodes})
        return logs if inner is None else inner(logs, history, keep, generated)

    beams = beam_search(generator.model, *tensors, **{**arguments, "logits_processor": observed})
    ids, scores, totals, lengths = (part[0].tolist() for part in beams)
    if not lengths[0]:
        raise ConfigError(IMPOSSIBLE)
    rows = []
    for tokens, score, total, length in zip(ids, scores, totals, lengths, strict=True):
        if length:
            path = tuple(tokens[:length])
            if path not in nodes:
                add(path, total)
            text = generator.generation(prompt, [*path], total, ends).text
            rows.append({"ids": path, "score": score, "log_probability": total, "text": text, "node": nodes[path][0]})
    yield {"nodes": found, "beams": rows}
