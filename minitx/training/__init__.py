"""Training with Lightning, which no other folder imports."""
