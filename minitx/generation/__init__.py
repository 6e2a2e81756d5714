"""Autoregressive generation on ids: the decoding loop, samplers, logits processors and beam search."""
