"""Optimizers beyond AdamW, each imported when optimizer.name asks for it."""
