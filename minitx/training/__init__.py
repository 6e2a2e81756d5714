"""Training with Lightning: the only place, beside the command line, that knows it."""
