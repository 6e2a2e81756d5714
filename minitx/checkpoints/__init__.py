"""Checkpoint files: their format, atomic writing, safe loading."""
