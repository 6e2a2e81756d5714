"""What ends a run that was asked for rightly; what was asked for wrongly is a ValueError."""

from __future__ import annotations


class RunFailed(Exception):
    """A run that cannot go on, or whose outcome could not be written: one sentence, exit code 1."""
