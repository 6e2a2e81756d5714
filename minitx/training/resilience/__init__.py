"""What protects a run: signals, checks on resuming, divergence, full disks, memory."""
