"""Experiments over many runs: a grid of settings, each with several seeds, and what came of them."""
