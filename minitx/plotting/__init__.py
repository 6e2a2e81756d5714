"""Curves and heat maps, plotted by matplotlib."""
