"""Autoregressive generation on ids: how to choose a token, and the loop that writes."""
