"""What the words after `minitx` do: their arguments first, torch only when there is work."""
