"""Faster decoding steps: replayed as a list of torch calls or a CUDA graph; compiled, for `generate --compile`."""
