"""The commands of `minitx`: they parse their arguments first, and import torch only when there is work."""
