"""Heat maps of results: tables of layers or heads by tokens, compositions of heads, and an ablation of heads."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LinearSegmentedColormap

from minitx.interpret.images import token_label
from minitx.plotting.style import COLOURS, INK, QUIET, colour_bar, new_figure, save, style_heat, styled

if TYPE_CHECKING:
    from minitx.interpret.ablation import Ablated, Ablation
    from minitx.interpret.circuit import InductionCircuit

CELL_WIDTH, CELL_HEIGHT = 0.5, 0.27  # inches
MAX_WIDTH = 16.0
MAX_COLUMNS = 32  # beside one another; a table with more is continued below
MAX_HEIGHT = 40.0  # inches; tables that would be higher are not continued, and have no tokens
MAX_LABEL = 8  # letters in a cell
SHARES = LinearSegmentedColormap.from_list("shares", ["#FFFFFF", COLOURS[0]])

MAX_COMPOSED_HEADS = 24  # of more heads, only those with the largest scores are shown

MAX_ANNOTATED_HEADS = 8  # up to this many in a layer, each cell has its number and pattern
MAX_ABLATION_WIDTH = 10.0  # inches; grids that would be wider are below one another
DAMAGE = {"loss": "loss gained,\nnats per token", "exact_match": "exact match lost,\npercentage points"}

Panel = tuple[str, Sequence[str], Sequence[str], np.ndarray, Sequence[Sequence[str]]]
"""Name, rows, columns, values [R, T] and the text of each cell."""


@styled()
def draw_tables(
    path: Path, title: str, panels: Sequence[Panel], label: str, signed: bool = False, note: str = ""
) -> None:
    """Draw panels below one another into a PNG, PDF or SVG file, with one scale: 0 to 1, or -1 to 1 if signed."""
    colours, lowest = ("RdBu_r", -1.0) if signed else (SHARES, 0.0)
    parts = [part for panel in panels for part in _continued(panel)]
    annotated = len(parts) == len(panels) or sum(map(_height, parts)) <= MAX_HEIGHT
    if annotated:
        panels = parts
    else:
        note = f"{note}; the tokens are in the page, --out NAME.html".removeprefix("; ")
    columns = max(len(panel[2]) for panel in panels)
    width = min(MAX_WIDTH, max(6.0, 1.8 + columns * CELL_WIDTH))
    heights = [*map(_height, panels)]
    figure = new_figure(width, max(2.0, sum(heights) + 0.35), title=title)
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, row_names, tokens, values, texts) in zip(grid, panels, strict=True):
        image = axes.imshow(values, cmap=colours, vmin=lowest, vmax=1.0, aspect="auto")
        style_heat(axes)
        for (row, column), value in np.ndenumerate(values) if annotated else ():
            colour = "white" if abs(value) > 0.6 else INK
            text = token_label(texts[row][column], MAX_LABEL)
            axes.annotate(text, (column, row), ha="center", va="center", fontsize=7.5, color=colour)
        if annotated:
            axes.set_xticks(range(len(tokens)), [token_label(token, MAX_LABEL) for token in tokens])
        else:
            axes.xaxis.set_major_formatter(lambda place, _: f"{place + 1:.0f}")
        axes.set_yticks(range(len(row_names)), row_names)
        axes.set(title=name, facecolor="none", xlim=(-0.5, columns - 0.5))  # cells of all panels have one width
    figure.supxlabel(note, fontsize=8, color=QUIET, x=0.01, ha="left")
    colour_bar(figure, image, list(grid), label, pad=0.02)
    save(figure, path)


def _height(panel: Panel) -> float:
    return 0.75 + len(panel[1]) * CELL_HEIGHT


def _continued(panel: Panel) -> Iterator[Panel]:
    """Parts of a panel of at most MAX_COLUMNS columns, as equal as possible, each with its columns in its name."""
    name, rows, columns, values, texts = panel
    size = math.ceil(len(columns) / math.ceil(len(columns) / MAX_COLUMNS))
    for start in range(0, len(columns), size):
        part = slice(start, start + size)
        shown = name if size == len(columns) else f"{name}, {start + 1} to {start + len(columns[part])}"
        yield shown, rows, columns[part], values[:, part], [row[part] for row in texts]


def draw_compositions(circuit: "InductionCircuit", path: Path) -> None:
    """Plot how much each decoder head (columns) reads of what earlier ones (rows) wrote into a PNG, PDF or SVG file."""
    panels, most = [], 0
    for through, name in (("q", "queries"), ("k", "keys"), ("v", "values")):
        score = {
            pair[:2]: pair.score
            for pair in circuit.compositions
            if pair.through == through and pair.writer.kind == pair.reader.kind == "decoder"
        }
        both = [[*dict.fromkeys(heads)] for heads in zip(*score, strict=True)]
        most = max(most, *map(len, both))
        writers, readers = (sorted(heads[:MAX_COMPOSED_HEADS]) for heads in both)
        values = np.array([[score.get((writer, reader), np.nan) for reader in readers] for writer in writers])
        texts = [["" if np.isnan(value) else f"{value:.2f}" for value in row] for row in values]
        rows, columns = ([f"{head.layer}.{head.number}" for head in heads] for heads in (writers, readers))
        panels.append((f"read by {name}", rows, columns, values, texts))
    title = "Composition of heads (layer.head): rows write, columns read"
    note = f"random matrices: {circuit.random:.2f}"
    if most > MAX_COMPOSED_HEADS:
        note += f"; the {MAX_COMPOSED_HEADS} heads with the largest scores of {most}"
    draw_tables(path, title, panels, "composition score", note=note)


@styled()
def draw_ablation(ablation: "Ablation", title: str, path: Path) -> None:
    """Plot the damage without each head into a PNG, PDF or SVG file, a grid for each kind of attention and metric.

    Layers are down, heads across; darker is a larger damage.
    """
    single = [row for row in ablation.parts if not row.parts[0].ffn]
    kinds: dict[str, list[Ablated]] = {}
    for row in single:
        kinds.setdefault(row.parts[0].kind, []).append(row)
    layers, heads = np.max([row.parts[0][1:3] for row in single], axis=0).tolist()
    metrics = [metric for metric in DAMAGE if metric in ablation.baseline]
    annotated = heads <= MAX_ANNOTATED_HEADS
    side = 0.85 if annotated else 0.3
    width, height = heads * side + 0.6, layers * side * 0.75 + 0.6
    wide = len(kinds) * width >= MAX_ABLATION_WIDTH
    down, across = (len(kinds), len(metrics)) if wide else (len(metrics), len(kinds))
    figure = new_figure(across * width + (across if wide else 1) * 0.9, down * height + 0.4, title=title)
    grid = figure.subplots(down, across, squeeze=False)
    for line, metric in zip(grid.T if wide else grid, metrics, strict=True):
        scale, digits = (1, 2) if metric == "loss" else (100, 1)
        largest = max(0.0, *(scale * ablation.damage(row, metric) for row in single)) or 1.0
        for axes, (kind, rows) in zip(line, kinds.items(), strict=True):
            layers, heads = np.max([row.parts[0][1:3] for row in rows], axis=0)
            damage = np.full((layers, heads), np.nan)
            for row in rows:
                _, layer, head, _ = row.parts[0]
                value = damage[layer - 1, head - 1] = scale * ablation.damage(row, metric)
                if annotated:
                    text = f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: without the sign of -0.0
                    text += "\n" + row.named.pattern.replace("_", "\n") if row.named else ""
                    colour = "white" if value > 0.55 * largest else INK
                    axes.annotate(text, (head - 1, layer - 1), ha="center", va="center", fontsize=7.5, color=colour)
            image = axes.imshow(damage, cmap="Reds", vmin=0, vmax=largest, aspect=0.75)
            axes.set_xticks(range(heads), map(str, range(1, heads + 1)))
            axes.set_yticks(range(layers), map(str, range(1, layers + 1)))
            axes.set(title=kind, xlabel="head", ylabel="layer")
            style_heat(axes)
        colour_bar(figure, image, line, DAMAGE[metric], shrink=0.9, pad=0.02)
    save(figure, path)
