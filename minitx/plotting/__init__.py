"""Curves and heat maps, plotted by matplotlib, for the screen and for print."""

FORMATS = (".png", ".pdf", ".svg")
"""Endings of the file names of plots."""
