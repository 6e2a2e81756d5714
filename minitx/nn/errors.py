"""What a constructor of this folder refuses."""

from __future__ import annotations


class OptionError(ValueError):
    """Arguments that a constructor cannot take; the message names the config key to change."""
