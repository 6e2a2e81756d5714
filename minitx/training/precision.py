"""Number formats of training, and the meaning of `trainer.precision: auto` on this machine."""

from __future__ import annotations

import torch

from minitx.hardware.devices import has_bf16, training_device

MIXED_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Type of matrix products in Lightning's mixed precisions, whose weights are fp32."""
TRUE_DTYPES = {"bf16-true": torch.bfloat16, "64-true": torch.float64}
"""Type of weights in the precisions where it is not fp32."""


def resolve_precision(setting: str, accelerator: str) -> str:
    """Lightning's name of a precision: for auto, bf16-mixed on hardware with native bf16, else 32-true.

    Args:
        setting: trainer.precision; anything but auto is returned unchanged.
        accelerator: trainer.accelerator.
    """
    if setting != "auto":
        return setting
    return "bf16-mixed" if has_bf16(training_device(accelerator)) else "32-true"
