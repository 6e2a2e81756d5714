"""Attention maps in TensorBoard. No torch and no lightning here, so that TensorBoard starts quickly."""

NAME = "minitx"
"""Of the plugin with the Attention tab: in event files, in URLs, in --samples_per_plugin."""
