"""Faster decoding steps: replayed as a list of torch calls or as a CUDA graph, and compiled, for `generate --compile`."""
