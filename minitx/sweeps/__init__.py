"""Experiments over many runs: a grid of settings, several seeds each, and tables of the results."""
