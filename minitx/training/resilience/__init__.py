"""Protection of a run: signals, divergence, full disks, memory."""
