"""The result of activation patching: a map of what restores an answer, as an image and as a page.

Legend: R rows of a map, T positions.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from minitx.interpret import html
from minitx.tensorboard.map_format import visible


class _All(str):
    """A label compared by identity, in a pickled map too, because a token may have the same text."""

    def __reduce__(self) -> str:
        return "ALL"


ALL = _All("all")
"""Label of a column in which all positions are patched together."""


@dataclass(frozen=True)
class PatchMap(html.Tables):
    """The share of the clean answer that each patch restores: 0 as in the corrupted text, 1 as in the clean one.

    values, rows and columns have an entry for each stack or kind of attention.
    """

    title: str
    metric: str
    answers: tuple[str, str]
    """The tokens of the clean and of the corrupted answer that are compared."""
    clean: float
    """The metric without a patch, of the clean text."""
    corrupted: float
    """The same of the corrupted one."""
    rows: dict[str, list[str]]
    """Layers or heads."""
    columns: dict[str, list[str]]
    """Tokens, clean/corrupted where they differ; then, except for the residual stream, `all` together."""
    values: dict[str, Tensor]
    """[R, T]."""
    sender: str | None = None
    """The head whose direct paths to later heads are patched; columns are then their queries, keys and values."""

    def save_image(self, path: str | Path) -> None:
        """Save the maps as PNG, PDF or SVG: red restores, blue does the opposite."""
        from minitx.plotting.heatmaps import draw_tables

        panels = [
            (kind, self.rows[kind], self.columns[kind], values.numpy(), self.texts(kind))
            for kind, values in self.values.items()
        ]
        draw_tables(Path(path), self.heading, panels, "restored", signed=True, note=self.note)

    save_png = save_image

    @property
    def heading(self) -> str:
        """What is patched: the model, both texts and the sender."""
        return f"{'patching' if self.sender is None else f'paths from {self.sender}'} of {self.title}"

    @property
    def note(self) -> str:
        """The answers and the metric without patches, as a sentence."""
        metric = self.metric.replace("_", " ")
        clean, corrupted = map(visible, self.answers)
        answer = f"{clean} against {corrupted}" if metric == "logit difference" else clean
        values = f"{self.clean:#.3g} for the clean text, {self.corrupted:#.3g} for the corrupted one"
        return f"{metric} of {answer}: {values}"

    def strongest(self, count: int = 5) -> list[tuple[float, str, int, int]]:
        """The largest shares at single positions: share, the stack or kind, and the indices of row and column."""
        found = [
            (value, kind, row, column)
            for kind, values in self.values.items()
            for row, line in enumerate(values.tolist())
            for column, value in enumerate(line)
            if self.columns[kind][column] is not ALL
        ]
        return sorted(found, reverse=True)[:count]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types."""
        return {**vars(self), "values": {kind: values.tolist() for kind, values in self.values.items()}}

    def texts(self, kind: str) -> list[list[str]]:
        """The values with two digits, without the sign of -0.0."""
        return [[f"{round(value, 2) + 0.0:.2f}" for value in row] for row in self.values[kind].tolist()]

    def page(self) -> str:
        """The page as text; at first it shows what restores most."""
        tables = [html.table(kind, "", self.rows[kind], self.columns[kind], self._cells(kind)) for kind in self.values]
        _, kind, row, column = self.strongest(1)[0]
        start = [[*self.rows].index(kind), row, column]
        modes = [["restored", "signed", "restored share of the clean answer"]]
        cell = "in which the activation of the row, at the token of the column, is that of the clean text. Columns are "
        cell += "tokens, clean/corrupted where they differ, or all: at every token together."
        if self.sender is not None:
            cell = "in which the head of the row reads queries, keys or values computed with "
            cell += f"{self.sender} of the clean text."
        note = f"{self.note}. Each cell is a run of the corrupted text, {cell}"
        data = {"title": self.heading, "note": note, "start": start, "modes": modes, "tables": tables}
        return html.document("Activation patching", "tables.js", data)

    def _cells(self, kind: str) -> list[list[dict[str, Any]]]:
        def cell(row: str, column: str, text: str, value: float) -> dict[str, Any]:
            metric = self.corrupted + value * (self.clean - self.corrupted)
            note = f"{self.metric.replace('_', ' ')} {metric:#.3g}: {text} of the clean answer restored"
            title = f"{kind}, {row}, at {visible(column)}"
            return {"shown": [[text, value]], "title": title, "note": note, "lists": []}

        lines = zip(self.rows[kind], self.texts(kind), self.values[kind].tolist(), strict=True)
        return [[cell(row, *each) for each in zip(self.columns[kind], *line, strict=True)] for row, *line in lines]
