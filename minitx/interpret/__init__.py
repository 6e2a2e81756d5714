"""Looking inside: attention recorded from the running model, and its pictures."""
