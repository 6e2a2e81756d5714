"""Heat map of an ablation of heads: layers down, heads across; darker is a larger loss without the head."""

from pathlib import Path

import numpy as np

from minitx.interpret.ablation import Ablated, Ablation
from minitx.plotting.style import INK, colour_bar, new_figure, save, style_heat, styled

MAX_ANNOTATED_HEADS = 8  # up to this many in a layer, each cell has its number and pattern
MAX_WIDTH = 10.0  # inches; grids that would be wider are below one another
TITLES = {"loss": "loss gained,\nnats per token", "exact_match": "exact match lost,\npercentage points"}


@styled()
def draw_ablation(ablation: Ablation, title: str, path: Path) -> None:
    """Plot the damage without each head into a PNG, PDF or SVG file, a grid for each kind of attention and metric."""
    single = [row for row in ablation.parts if not row.parts[0].ffn]
    kinds: dict[str, list[Ablated]] = {}
    for row in single:
        kinds.setdefault(row.parts[0].kind, []).append(row)
    layers, heads = np.max([row.parts[0][1:3] for row in single], axis=0).tolist()
    metrics = [metric for metric in TITLES if metric in ablation.baseline]
    annotated = heads <= MAX_ANNOTATED_HEADS
    side = 0.85 if annotated else 0.3
    width, height = heads * side + 0.6, layers * side * 0.75 + 0.6
    down, across = (len(metrics), len(kinds)) if len(kinds) * width < MAX_WIDTH else (len(kinds), len(metrics))
    figure = new_figure(max(4.0, across * width + down * 0.9), down * height + 0.4, title=title)
    grid = figure.subplots(down, across, squeeze=False)
    for line, metric in zip(grid if down == len(metrics) else grid.T, metrics, strict=True):
        scale, digits = (1, 2) if metric == "loss" else (100, 1)
        largest = max(scale * ablation.damage(row, metric) for row in single)
        largest = largest if largest > 0 else 1.0
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
            for axis, name, count in ((axes.xaxis, "head", heads), (axes.yaxis, "layer", layers)):
                axis.set_ticks(range(count), [str(number + 1) for number in range(count)])
                axis.set_label_text(name)
            axes.set_title(kind)
            style_heat(axes)
        colour_bar(figure, image, line, TITLES[metric], shrink=0.9, pad=0.02)
    save(figure, path)
