"""Callbacks that log more than the losses, or speed a run up."""
