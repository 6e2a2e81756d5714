"""Tensors on the device of --device. In a module of its own, which torch.compile imports by its name."""

from typing import Any

from torch.utils._device import DeviceContext, _device_constructors


class OnDevice(DeviceContext):
    """Tensors are made on a device unless the call names another one; random ones from a CPU generator are moved."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if function in _device_constructors() and options.get("generator") and not options.get("device"):
            return function(*args, **options).to(self.device)
        return super().__torch_function__(function, types, args, kwargs)
