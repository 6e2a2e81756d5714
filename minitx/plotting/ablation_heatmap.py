"""The picture of an ablation: layers down, heads across, the darker, the more is lost without the head."""

from __future__ import annotations

from pathlib import Path

from minitx.checkpoints.atomic_files import written_whole
from minitx.interpret.ablation import AblatedHeads, Ablation
from minitx.plotting.curves import INK, QUIET

FEW = 8
"""Up to this many heads in a layer, each says its own number and name."""
TITLES = {"loss": "loss gained, nats per token", "exact_match": "exact match lost, percentage points"}


def draw_ablation(ablation: Ablation, title: str, path: Path) -> None:
    """Draw what is lost without each head, a grid for each kind of attention and figure.

    Args:
        ablation: what to draw.
        title: of the picture.
        path: of a PNG file.
    """
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    kinds: dict[str, list[AblatedHeads]] = {}
    for silenced in ablation.heads:
        kinds.setdefault(silenced.heads[0].kind, []).append(silenced)
    heads = max(row.heads[0].head for row in ablation.heads)
    layers = max(row.heads[0].layer for row in ablation.heads)
    figures = [figure for figure in TITLES if figure in ablation.whole]
    side = 1.15 if heads <= FEW else 0.34
    size = (max(4.5, len(kinds) * (heads * side + 0.9) + 1.2), len(figures) * (layers * side * 0.75 + 1.1) + 0.6)
    figure = Figure(figsize=size, dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold", color=INK)
    grid = figure.subplots(len(figures), len(kinds), squeeze=False)
    for line, name in enumerate(figures):
        factor = 1 if name == "loss" else 100
        most = max(1e-9, *(factor * ablation.lost(row, name) for row in ablation.heads))
        for axes, (kind, rows) in zip(grid[line], kinds.items(), strict=True):
            lost = np.full((max(row.heads[0].layer for row in rows), max(row.heads[0].head for row in rows)), np.nan)
            for row in rows:
                (head,) = row.heads
                value = lost[head.layer - 1, head.head - 1] = factor * ablation.lost(row, name)
                if heads <= FEW:
                    words = f"{value:.2f}" if name == "loss" else f"{value:.1f}"
                    if row.named is not None:
                        words += "\n" + row.named.pattern.replace("_", " ")
                    colour = "white" if value > 0.55 * most else INK
                    place = (head.head - 1, head.layer - 1)
                    axes.annotate(words, place, ha="center", va="center", fontsize=8, color=colour)
            shown = axes.imshow(lost, cmap="Reds", vmin=0, vmax=most, aspect=0.75)
            axes.set_xticks(range(lost.shape[1]), range(1, lost.shape[1] + 1))
            axes.set_yticks(range(lost.shape[0]), range(1, lost.shape[0] + 1))
            axes.tick_params(length=0, labelsize=9, labelcolor=INK)
            axes.set_xlabel("head", fontsize=9, color=QUIET)
            axes.set_ylabel("layer", fontsize=9, color=QUIET)
            axes.set_title(kind, fontsize=10, color=INK)
            for spine in axes.spines.values():
                spine.set_visible(False)
        bar = figure.colorbar(shown, ax=grid[line], shrink=0.9, pad=0.02)
        bar.set_label(TITLES[name], fontsize=8.5, color=QUIET)
        bar.ax.tick_params(labelsize=8, length=0)
        bar.outline.set_visible(False)
    with written_whole(path) as file:
        figure.savefig(file, format="png")
