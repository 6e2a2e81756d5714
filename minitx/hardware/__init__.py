"""The machine: its devices and their abilities, and what was measured on it."""
