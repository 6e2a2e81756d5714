"""Attention recorded from the running model, and its statistics and images."""
