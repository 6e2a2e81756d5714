"""Which numbers to calculate with: what `trainer.precision: auto` means on this machine."""

from __future__ import annotations

import torch

from minitx.hardware.devices import has_bf16, training_device

MIXED_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""What Lightning's precisions multiply in, where weights stay fp32."""
TRUE_DTYPES = {"bf16-true": torch.bfloat16, "64-true": torch.float64}
"""What weights are kept in, where it is not fp32."""


def resolve_precision(setting: str, accelerator: str) -> str:
    """Lightning's name of a precision.

    Args:
        setting: trainer.precision; anything but auto is returned as it is.
        accelerator: trainer.accelerator.

    Returns:
        For auto, bf16-mixed where the hardware multiplies bf16 natively, else 32-true.
    """
    if setting != "auto":
        return setting
    return "bf16-mixed" if has_bf16(training_device(accelerator)) else "32-true"
