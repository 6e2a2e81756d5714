"""What TensorBoard sees of us. No torch and no lightning in here, so that TensorBoard stays quick to start."""

NAME = "minitx"
"""Of the plugin behind the Attention tab: in event files, in addresses, in --samples_per_plugin."""
