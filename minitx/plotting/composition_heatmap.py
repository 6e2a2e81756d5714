"""Heat maps of the composition of heads: rows write, columns read."""

from pathlib import Path

import numpy as np

from minitx.interpret.circuit import InductionCircuit
from minitx.plotting.token_tables import draw_tables

MAX_HEADS = 24  # of a larger model, the rows and the columns with the largest scores


def draw_compositions(circuit: InductionCircuit, path: Path) -> None:
    """Plot how much each decoder head reads of what earlier ones wrote into a PNG, PDF or SVG file."""
    panels = []
    for through, name in (("q", "queries"), ("k", "keys"), ("v", "values")):
        score = {
            pair[:2]: pair.score
            for pair in circuit.compositions
            if pair.through == through and pair.writer.kind == pair.reader.kind == "decoder"
        }
        writers, readers = (sorted(list(dict.fromkeys(heads))[:MAX_HEADS]) for heads in zip(*score, strict=True))
        values = np.array([[score.get((writer, reader), np.nan) for reader in readers] for writer in writers])
        texts = [["" if np.isnan(value) else f"{value:.2f}" for value in row] for row in values]
        rows, columns = ([f"{head.layer}.{head.number}" for head in heads] for heads in (writers, readers))
        panels.append((f"read by {name}", rows, columns, values, texts))
    title = "Composition of heads (layer.head): rows write, columns read"
    draw_tables(path, title, panels, "composition score", note=f"random matrices: {circuit.random:.2f}")
