"""Faster decoding steps: replayed as a list of torch calls, and compiled, for `generate --compile`."""
