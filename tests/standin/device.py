"""A simulated GPU that computes on the CPU, raises an error for tensors on different devices and logs synchronizations.

It simulates neither kernels nor streams. As `meta`, a device that every build of torch has, it replaces an Apple GPU
and can generate; as `cuda` it can also train, once cuda.cpp is loaded, before torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

aten = torch.ops.aten
WAIT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""Tags of operators that need a number from the device, most of them for a size."""
INDEX = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
WITHOUT_BOOL = {aten.scatter_reduce.two, aten.scatter_reduce_.two}
"""Operators that CUDA has for numbers only."""
LOG: list[tuple[str, str, int]] = []
"""Each synchronization: the operator, the line of the project, and the step."""


class WrongDevice(RuntimeError):
    """Tensors on different devices, which CUDA refuses."""


class OnDevice(Tensor):
    """A tensor with the device of a GPU and its numbers on the CPU."""

    numbers: Tensor

    @staticmethod
    def __new__(cls, numbers: Tensor, device: str) -> OnDevice:
        size, strides = numbers.size(), numbers.stride()
        made = Tensor._make_wrapper_subclass(cls, size, strides, dtype=numbers.dtype, device=torch.device(device, 0))
        made.numbers = numbers
        return made

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.numbers.__reduce_ex__(protocol)  # saved without its device

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, given: Any = (), options: Any = None) -> Any:
        return GPU.active.__torch_dispatch__(function, types, given, options)


class GPU(TorchDispatchMode):
    """A context in which a device of this kind, cuda or meta, exists, with or without float64."""

    active: GPU

    def __init__(self, kind: str, float64: bool = True) -> None:
        super().__init__()
        self.kind, self.float64, self.step = kind, float64, 0
        GPU.active = self

    def waits(self, what: Any) -> None:
        """Log a synchronization with the line that causes it."""
        frame: Any = sys._getframe(1)
        while frame is not None and not frame.f_globals.get("__name__", "").startswith("minitx"):
            frame = frame.f_back
        place = "" if frame is None else f"{frame.f_globals['__name__']}:{frame.f_lineno}"
        LOG.append((str(what), place, self.step))

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), options: Any = None) -> Any:
        """Run an operator on the device of its arguments, or of its result."""
        options = options or {}
        flat, shape = tree_flatten((given, options))
        here = any(isinstance(part, OnDevice) for part in flat)
        elsewhere = [part for part in flat if isinstance(part, Tensor) and not isinstance(part, OnDevice)]
        wanted = options.get("device")
        makes = here if wanted is None else torch.device(wanted).type == self.kind
        if "pin_memory" in function.name():
            return given[0].clone()
        if not here and not makes:
            return function(*given, **options)
        if here and function not in INDEX and WAIT & {*function.tags}:
            self.waits(function)
        if here and function in WITHOUT_BOOL and given[0].dtype == torch.bool:
            raise TypeError(f"{self.kind} has no {function} of bool")
        if function in (aten._to_copy.default, aten.copy_.default):
            leaves = isinstance(given[-1], OnDevice)
            arrives = isinstance(given[0], OnDevice) if function is aten.copy_.default else makes
            if leaves != arrives and not options.get("non_blocking"):
                self.waits("copy from the device" if leaves else "copy to the device")
        elif function in INDEX:
            indices = [index for index in given[1] if index is not None]
            if any(index.dtype == torch.bool or not isinstance(index, OnDevice) for index in indices):
                self.waits(function)
        elif wrong := [p for p in elsewhere if p.dim() or torch.Tag.pointwise not in function.tags]:
            raise WrongDevice(f"{function}: {self.kind} and cpu {[tuple(part.shape) for part in wrong]}")
        if options.get("generator") is not None and options["generator"].device.type != self.kind:
            raise WrongDevice(f"{function}: {self.kind} and a generator of the CPU")
        numbers, more = tree_unflatten([part.numbers if isinstance(part, OnDevice) else part for part in flat], shape)
        if wanted is not None:
            more["device"] = "cpu"
        out = function(*numbers, **more)
        if function._schema.is_mutable:
            return options.get("out", given[0]) if len(function._schema.returns) == 1 else None
        return tree_map_only(Tensor, self._placed, out) if makes else out

    def _placed(self, numbers: Tensor) -> Tensor:
        if numbers.dtype == torch.float64 and not self.float64:
            raise TypeError(f"{self.kind} has no float64")
        return numbers if isinstance(numbers, OnDevice) else OnDevice(numbers, self.kind)


@contextmanager
def simulated(kind: str, float64: bool = True) -> Iterator[GPU]:
    """A device of this kind, with an empty log."""
    LOG.clear()
    with pytest.MonkeyPatch.context() as patch:
        # Inference mode does not support tensor subclasses.
        patch.setattr(torch, "inference_mode", lambda mode=True: torch.no_grad() if mode else nullcontext())
        if kind == "cuda":
            _cuda(patch)
        with GPU(kind, float64) as gpu:
            yield gpu


def _cuda(patch: pytest.MonkeyPatch) -> None:
    """Answer the questions of torch and Lightning about CUDA."""
    answers: dict[str, Any] = {
        "is_available": True, "device_count": 1, "current_device": 0, "get_device_capability": (9, 0),
        "is_bf16_supported": True, "get_device_name": "a simulated GPU", "_lazy_init": None, "set_device": None,
        "manual_seed_all": None, "empty_cache": None, "is_current_stream_capturing": False, "_is_in_bad_fork": False,
        "get_device_properties": SimpleNamespace(total_memory=2**34),
    }  # fmt: skip
    for name, answer in answers.items():
        patch.setattr(torch.cuda, name, lambda *given, answer=answer, **options: answer)
    for name, module in list(sys.modules.items()):
        for asked, answer in (("num_cuda_devices", 1), ("is_cuda_available", True)):
            if name.startswith("lightning") and hasattr(module, asked):
                patch.setattr(module, asked, lambda answer=answer: answer)
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_swap_module_params_on_conversion(True)
