"""Leaving a capture of a CUDA graph that failed."""

import torch


def abandon_capture(device: torch.device) -> None:
    """Return to the default stream, with a new state for the random generator, which the capture has left unusable."""
    torch.cuda.set_stream(torch.cuda.default_stream(device))
    torch.cuda.default_generators[device.index].graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
