"""Heat map of an ablation: layers down, heads across; darker is a larger loss without the head."""

from pathlib import Path

import numpy as np

from minitx.interpret.ablation import AblatedHeads, Ablation
from minitx.plotting.panels import INK, QUIET, new_figure, save, style_axes, style_colorbar

MAX_ANNOTATED_HEADS = 8  # up to this many in a layer, each cell has its number and pattern
TITLES = {"loss": "loss gained, nats per token", "exact_match": "exact match lost, percentage points"}


def draw_ablation(ablation: Ablation, title: str, path: Path) -> None:
    """Plot the damage without each head into a PNG file, a grid for each kind of attention and metric."""
    kinds: dict[str, list[AblatedHeads]] = {}
    for row in ablation.heads:
        kinds.setdefault(row.heads[0].kind, []).append(row)
    heads = max(row.heads[0].head for row in ablation.heads)
    layers = max(row.heads[0].layer for row in ablation.heads)
    metrics = [metric for metric in TITLES if metric in ablation.baseline]
    annotated = heads <= MAX_ANNOTATED_HEADS
    side = 1.15 if annotated else 0.34
    width, height = len(kinds) * (heads * side + 0.9) + 1.2, len(metrics) * (layers * side * 0.75 + 1.1) + 0.6
    figure = new_figure(max(4.5, width), height, title=title)
    grid = figure.subplots(len(metrics), len(kinds), squeeze=False)
    for line, metric in zip(grid, metrics, strict=True):
        scale, digits = (1, 2) if metric == "loss" else (100, 1)
        largest = max(1e-9, *(scale * ablation.damage(row, metric) for row in ablation.heads))
        for axes, (kind, rows) in zip(line, kinds.items(), strict=True):
            damage = np.full((max(row.heads[0].layer for row in rows), max(row.heads[0].head for row in rows)), np.nan)
            for row in rows:
                _, layer, head = row.heads[0]
                value = damage[layer - 1, head - 1] = scale * ablation.damage(row, metric)
                if annotated:
                    text = f"{value:.{digits}f}" + (f"\n{row.named.pattern.replace('_', ' ')}" if row.named else "")
                    colour = "white" if value > 0.55 * largest else INK
                    axes.annotate(text, (head - 1, layer - 1), ha="center", va="center", fontsize=8, color=colour)
            image = axes.imshow(damage, cmap="Reds", vmin=0, vmax=largest, aspect=0.75)
            for axis, name, count in ((axes.xaxis, "head", damage.shape[1]), (axes.yaxis, "layer", damage.shape[0])):
                axis.set_ticks(range(count), [str(number + 1) for number in range(count)])
                axis.set_label_text(name, fontsize=9, color=QUIET)
            axes.tick_params(labelsize=9, labelcolor=INK)
            axes.set_title(kind, fontsize=10, color=INK)
            style_axes(axes, heat=True)
        bar = figure.colorbar(image, ax=line, shrink=0.9, pad=0.02)
        bar.set_label(TITLES[metric], fontsize=8.5, color=QUIET)
        style_colorbar(bar)
    save(figure, path)
