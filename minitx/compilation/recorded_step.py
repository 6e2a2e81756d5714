"""Recording a model's decoding step: its torch calls, some of them replaced by faster ones.

Small linear maps of the same input are fused, and RMSNorm takes fewer kernels. The results differ by rounding.
"""

import functools
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from minitx.compilation.batched_attention import batched_attention
from minitx.compilation.packed_linear import PackedLinears
from minitx.nn import MultiHeadAttention, scaled_dot_product_attention
from minitx.nn.cache import Cache

READS = {
    "item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__contains__",
    "equal", "allclose", "nonzero", "unique",
}  # fmt: skip
"""Functions that read the numbers in a tensor. Code may branch on them, so a recording is not valid for other steps."""
GRAPH_DEVICES = ("cuda",)
"""Devices whose steps are captured as CUDA graphs."""
MAX_FUSED_WEIGHT = 2**18
"""Elements of the largest weight that is copied to fuse it with others. A larger product takes longer than its call."""


class Call(NamedTuple):
    """A call of a torch function."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


class FusedLinear:
    """Linear maps of one input as one map, with copies of their weights [out, in] and biases [out] or None.

    The copies are parameters like the weights, and may be packed like them.
    """

    def __init__(self, maps: Sequence[Sequence[Any]]) -> None:
        self.maps = maps
        self.parts = [parts for parts in zip(*maps, strict=True) if parts[0] is not None]
        self.copies = [nn.Parameter(torch.cat(parts), requires_grad=False) for parts in self.parts]

    def update(self) -> None:
        """Copy the weights, which may have changed in place."""
        for copy, parts in zip(self.copies, self.parts, strict=True):
            torch.cat(parts, out=copy)


def hooks_and_attentions(parts: Sequence[nn.Module]) -> tuple[list[dict[int, Any]], list[MultiHeadAttention]]:
    """Forward hooks of modules and global ones, in dictionaries that torch adds later ones to; and the attentions."""
    hooks = [own for part in parts for own in (part._forward_hooks, part._forward_pre_hooks)]
    hooks += [torch_module._global_forward_hooks, torch_module._global_forward_pre_hooks]
    return hooks, [part for part in parts if isinstance(part, MultiHeadAttention)]


def have_own_function(attentions: Iterable[MultiHeadAttention]) -> bool:
    """Whether the function of every attention is minitx's, and not replaced by one that records."""
    return all(part.attention is scaled_dot_product_attention for part in attentions)


def can_capture(cache: Any) -> bool:
    """Whether the steps into a cache are fixed kernels on a GPU; not with beams, whose tensors change addresses."""
    return type(cache) is Cache and cache.layers[0].buffers[0].device.type in GRAPH_DEVICES


def fusible(calls: Sequence[Call]) -> list[FusedLinear]:
    """Linear maps of one input among the calls of a step."""
    maps: dict[Any, dict[Any, Any]] = defaultdict(dict)  # by input, without the same map twice
    for function, args, *_ in calls:
        plain = function is F.linear and all(isinstance(arg, nn.Parameter | None) for arg in args[1:])  # not computed
        if plain and len(args) == 3 and args[1].numel() <= MAX_FUSED_WEIGHT:
            maps[id(args[0]), args[2] is None][_ids(args[1:])] = args[1:]
    return [FusedLinear([*several.values()]) for several in maps.values() if len(several) > 1]


def _ids(parts: Iterable[Any]) -> tuple[int, ...]:
    return tuple(map(id, parts))


def rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """F.rms_norm of fp32 numbers in five kernels; on a CPU, torch's takes eight."""
    norm = torch.linalg.vector_norm(x, dim=[*range(-len(shape), 0)], keepdim=True)
    epsilon = _constant(torch.finfo(x.dtype).eps if eps is None else eps)
    out = x * torch.addcmul(epsilon, norm, norm, value=1 / math.prod(shape)).rsqrt_()
    return out if weight is None else out.mul_(weight)


@functools.cache
def _constant(value: float) -> Tensor:
    return nn.Parameter(torch.tensor(value, device="cpu"), requires_grad=False)  # like a weight


class Recorder(TorchFunctionMode):
    """Records the calls within its block that make a tensor or change one.

    Args:
        fused: linear maps of one input that are called as one.
        packed: finds the linear maps to call with packed weights; None: do not look for any.
        batched: keys and values that batched products attend to, with whether they have capacity.
    """

    def __init__(
        self, fused: Sequence[FusedLinear], packed: PackedLinears | None, batched: Sequence[tuple[Tensor, bool]]
    ) -> None:
        super().__init__()
        self.packed = packed
        self.batched = {each.data_ptr(): (each, has_capacity) for each, has_capacity in batched}
        self.calls: list[Call] = []
        self.varies = False  # whether the next step may make other calls
        self.fused = {_ids(each.maps[0]): each for each in fused}
        self.parts: dict[tuple[int, ...], Tensor] = {}  # results of fused maps by input, weight and bias

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function and record it."""
        if function is F.rms_norm and args[0].is_cpu and args[0].dtype == torch.float32:
            with self:
                return rms_norm(*args, **(kwargs or {}))
        if function is F.linear and not kwargs:
            x, *weights = args
            if (fused := self.fused.get(_ids(weights))) is not None:
                product = self.__torch_function__(F.linear, types, (x, *fused.copies))
                sizes = [len(weight) for weight, _ in fused.maps]
                parts = self.__torch_function__(Tensor.split, types, (product, sizes, -1))
                self.parts |= {_ids((x, *own)): part for own, part in zip(fused.maps, parts, strict=True)}
            if (part := self.parts.get(_ids(args))) is not None:
                return part
            if self.packed is not None and (own := self.packed.find(*args)) is not None:
                function, args = own, (x, *args[2:])
        if function is F.scaled_dot_product_attention and (read := self.batched_arguments(*args, **(kwargs or {}))):
            function, args, kwargs = batched_attention, read, {}
        result = function(*args, **(kwargs or {}))
        self.varies |= function.__name__ in READS or not _is_called_by_own()
        parts = result if isinstance(result, list | tuple) else [result]
        made = any(isinstance(part, Tensor) and not any(part is arg for arg in args) for part in parts)
        if made or in_place(function):
            self.calls.append(Call(function, args, kwargs or {}, result))
        return result

    def batched_arguments(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, **others: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The arguments of batched_attention for those of torch's function; empty if it does not apply."""
        found = [self.batched.get(part.data_ptr()) for part in (key, value)]
        plain = not (dropout_p or is_causal or others) and scale is None
        if None in found or not plain or (attn_mask is not None and attn_mask.dtype != query.dtype):
            return ()
        (keys, has_capacity), (values, _) = found  # type: ignore[misc]
        for part, own in ((key, keys), (value, values)):
            if part.stride() != own.stride() or part.shape != (*own.shape[:2], key.size(2), own.size(3)):
                return ()
        return (query, keys, values, attn_mask, *([key.size(2)] if has_capacity else []))


def is_own(part: nn.Module) -> bool:
    """Whether the code of a module is minitx's or torch's, and is not compiled."""
    compiled = part._compiled_call_impl is not None or isinstance(part, torch.jit.ScriptModule)  # scripted or traced
    packages = {code.__module__.partition(".")[0] for code in (type(part), part.forward)}
    return packages <= {"minitx", "torch"} and not compiled and not hasattr(part.forward, "__wrapped__")


def _is_called_by_own() -> bool:
    """Whether minitx calls the torch function that is being recorded, directly or through torch."""
    frame: Any = sys._getframe(2)
    while (package := frame.f_globals.get("__name__", "").partition(".")[0]) == "torch":
        frame = frame.f_back
    return package == "minitx"


def in_place(function: Any) -> bool:
    """Whether a torch function changes its first argument."""
    name: str = function.__name__
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


class Recording:
    """One step of a model for one new token per text, with its calls."""

    def __init__(
        self,
        model: Any,
        cache: Any,
        ids: Tensor,
        fused: Sequence[FusedLinear],
        packed: PackedLinears | None,
        batched: tuple[bool, bool],
    ) -> None:
        self.lengths = lengths(cache)
        self.inputs = [ids, *state(cache), *tensors(cache)]
        self.source = None if cache.memory is None else cache.memory.size(1)  # tokens; valid for this number alone
        own, memory = batched  # whether for the tokens, and for the memory
        layers = [*cache.layers.values()]
        read = [(each, True) for layer in layers for each in layer.buffers] if own else []
        read += [(each, False) for layer in layers for each in layer.memory] if memory else []
        with Recorder(fused, packed, read) as recorder:
            self.logits: Tensor = model.compute_step(ids, cache)
        self.calls, self.varies = recorder.calls, recorder.varies
        self.buffers = {id(each) for each in model.buffers()}
        self.outputs = [self.logits, *state(cache)]


def lengths(cache: Any) -> tuple[int, int]:
    """Number of tokens in a cache, and of those in one text: the same without beams."""
    return cache.length, cache.ids.size(-1)


def state(cache: Any) -> list[Tensor | None]:
    """The tensors of a cache that a step replaces."""
    return [getattr(cache, name) for name in cache.parts]


def tensors(cache: Any) -> list[Tensor | None]:
    """The tensors of a cache that a step of one token reads or changes in place."""
    layers = [part for layer in cache.layers.values() for part in (*layer.buffers, *layer.memory)]
    return [cache.memory, cache.memory_keep, *layers]


@contextmanager
def newest_restored(cache: Any, tokens: int) -> Iterator[None]:
    """Restore the keys and values of a cache's last tokens after a `with` block that recomputes them."""
    places = [part[:, :, layer.used - tokens : layer.used] for layer in cache.layers.values() for part in layer.buffers]
    written = [place.clone() for place in places]
    try:
        yield
    finally:
        for place, own in zip(places, written, strict=True):
            place.copy_(own)


def advance(cache: Any, tokens: int) -> None:
    """Count new tokens whose keys and values are in the buffers."""
    cache.advance(tokens)
    for layer in cache.layers.values():
        layer.used += tokens


def equal_but_for_rounding(one: Tensor, two: Tensor) -> bool:
    """Whether logits computed in two ways are the same."""
    tolerance = torch.finfo(one.dtype).eps ** 0.5
    return torch.allclose(one, two, rtol=tolerance, atol=tolerance)
