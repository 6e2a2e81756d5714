"""The look of all plots: fonts, colours, legends, colour bars and files.

Sizes are those of print: inches, and points of text that stay legible. pyplot, which has global state, is not used.
"""

import logging
import re
import sys
import warnings
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import IO, Any

from cycler import cycler
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager
from matplotlib.image import AxesImage

from minitx.checkpoints.atomic_files import written_whole
from minitx.config.errors import ConfigError
from minitx.plotting import FORMATS
from minitx.tensorboard.map_format import escaped

# Okabe and Ito's colours, distinguishable for the colour-blind.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D1F")
INK, QUIET, SHADE, MISSING = "#222222", "#666666", "#EEF1F4", "#D8D8D8"

CJK_FONTS = [f"Noto Sans CJK {language}" for language in ("JP", "SC", "KR")]  # of Linux
CJK_FONTS += ["Hiragino Sans", "PingFang SC", "Apple SD Gothic Neo", "Yu Gothic", "Microsoft YaHei", "Malgun Gothic"]
OTHER_FONTS = ("Noto Sans", *CJK_FONTS, "WenQuanYi Zen Hei", "IPAexGothic")
"""For the characters that DejaVu Sans lacks, if they are installed."""

logging.getLogger("matplotlib.font_manager").addFilter(lambda record: "font weight" not in record.msg)  # none is bold
_INSTALLED = {font.name for font in fontManager.ttflist}  # found by matplotlib when it is imported
STYLE: Any = {
    "figure.dpi": 160,
    "figure.constrained_layout.use": True,
    "figure.titlesize": 11,
    "figure.titleweight": "bold",
    "font.family": ["DejaVu Sans", *filter(_INSTALLED.__contains__, OTHER_FONTS)],
    "font.size": 8.5,
    "text.color": INK,
    "text.parse_math": False,  # a token may be a dollar sign
    "axes.axisbelow": True,
    "axes.edgecolor": "#999999",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": QUIET,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.7,
    "image.interpolation": "nearest",
    "legend.borderaxespad": 0.0,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "legend.title_fontsize": 8,
    "lines.linewidth": 1.6,
    "lines.markersize": 3.5,
    "xtick.labelcolor": INK,
    "xtick.major.size": 0,
    "ytick.labelcolor": INK,
    "ytick.major.size": 0,
    "pdf.fonttype": 42,  # embedded TrueType, which keeps text editable
    "svg.hashsalt": "minitx",  # the same plot is the same file
}
MISSING_GLYPH = "Glyph .* missing from font"  # of a token: shown as a box; save prints one note for all of them
styled = partial(rc_context, STYLE)
"""Decorator of functions that draw: @styled()."""


def new_figure(width: float, height: float, title: str | None = None) -> Figure:
    """An empty figure of this size in inches."""
    figure = Figure(figsize=(width, height))
    if title is not None:
        figure.suptitle(escaped(title, "\n"), x=0.01, ha="left", wrap=True)
    return figure


def widest(texts: Iterable[str], points: float) -> float:
    """The width in inches of the widest of texts of this size."""
    figure, width = Figure(), 0.0
    label = figure.text(0, 0, "", fontsize=points)  # one for all texts: each has a renderer, which takes 10 ms to make
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", MISSING_GLYPH)
        for text in {*texts}:
            label.set_text(text)
            width = max(width, label.get_window_extent().width)
    return width / figure.dpi


def legend_beside(axes: Axes, title: str = "", columns: int = 1) -> None:
    """A legend to the right of the axes, where it covers no data."""
    axes.legend(title=title or None, loc="upper left", bbox_to_anchor=(1.02, 1.0), alignment="left", ncols=columns)


def style_heat(axes: Axes) -> None:
    """Remove grid and frame, as suits a heat map; cells without a value are grey."""
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_facecolor(MISSING)


def colour_bar(figure: Figure, image: AxesImage, axes: Any, label: str = "", **options: Any) -> None:
    """The scale of a heat map."""
    figure.colorbar(image, ax=axes, label=label, **options).outline.set_visible(False)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure as PNG, PDF or SVG, by the ending of the path, which is returned.

    Raises:
        ConfigError: another ending.
    """
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise ConfigError(f"the name of a plot must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}, got {path}")
    with written_whole(path) as file:
        if render(figure, file, ending[1:]):
            note = "some characters have no glyph in the installed fonts; an .html page shows them"
            print(f"minitx: {path}: {note}", file=sys.stderr)
    return path


@styled()
def render(figure: Figure, file: IO[bytes], ending: str) -> bool:
    """Write the figure as png, pdf or svg; whether a character has no glyph."""
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(ending)
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", MISSING_GLYPH)
        figure.savefig(file, format=ending, metadata=undated)
    others = [each for each in caught if not re.match(MISSING_GLYPH, str(each.message))]
    for each in others:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    return len(others) < len(caught)
