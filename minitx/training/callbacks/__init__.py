"""What a run logs and tries beyond its losses, as callbacks."""
