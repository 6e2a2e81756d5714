"""The machine: its devices and their abilities."""
