"""Optimizers beyond AdamW, each imported for the optimizer.name that selects it."""
