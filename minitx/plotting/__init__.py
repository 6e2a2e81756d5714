"""Curves and panels, drawn by matplotlib."""
