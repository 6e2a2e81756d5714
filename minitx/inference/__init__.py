"""Trained models in use: text in, text out."""
