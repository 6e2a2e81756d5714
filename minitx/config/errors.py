"""What ends a run that was asked for rightly; what was asked for wrongly is a ValueError."""

from __future__ import annotations

import traceback
from pathlib import Path


class RunFailed(Exception):
    """A run that cannot go on, or whose outcome could not be written: one sentence, exit code 1."""


def is_ours(error: ValueError) -> bool:
    """Whether a ValueError was raised by our own code, on purpose; any other is a bug and keeps its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return Path(frames[-1].filename).resolve().is_relative_to(Path(__file__).resolve().parents[1])
