"""Callbacks that log more than the losses."""
