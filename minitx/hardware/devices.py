"""The devices: which there are, what each can do, and how to copy to one."""

import torch
from torch import Tensor

WITHOUT_FLOAT64 = ("mps",)
"""Types of devices without float64: Apple's GPUs."""
MIXED_DTYPES = {"bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}
"""Type of matrix products in Lightning's mixed precisions, whose weights are fp32."""
TRUE_DTYPES = {"bf16-true": torch.bfloat16, "64-true": torch.float64}
"""Type of weights in the precisions where it is not fp32."""


def best_device() -> str:
    """The type of device that `auto` means: cuda, else mps (an Apple GPU), else cpu."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def training_device(accelerator: str) -> str:
    """The type of device that trainer.accelerator means."""
    return "cpu" if accelerator == "cpu" else best_device()


def resolve_precision(setting: str, accelerator: str) -> str:
    """Resolve trainer.precision without a measurement: auto is bf16-mixed on a GPU with native bf16, else 32-true."""
    device = training_device(accelerator)
    if setting != "auto":
        return "bf16-mixed" if (setting, device) == ("16-mixed", "cpu") else setting  # Lightning would replace it
    return "bf16-mixed" if device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "32-true"


def widest_float(device: torch.device | str) -> torch.dtype:
    """The widest floating-point type of a device: float64 if it has that."""
    return torch.float32 if torch.device(device).type in WITHOUT_FLOAT64 else torch.float64


def moved(tensor: Tensor, device: torch.device | str) -> Tensor:
    """A tensor on a device. Copies from the CPU to a CUDA device use page-locked memory and are asynchronous."""
    cuda = torch.device(device).type == "cuda"
    if cuda and tensor.device.type == "cpu":
        tensor = tensor.contiguous().pin_memory()
    return tensor.to(device, non_blocking=cuda)
