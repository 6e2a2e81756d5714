"""Decoding with a compiled step, for `generate --compile`."""
