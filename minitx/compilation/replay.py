"""A decoding step as a flat list of torch calls: recorded from the model's own step, replayed for each further token.

With few rows a step spends most of its time in Python: modules, attribute lookups, and choices that come out the same
for each token. A replayed step has the calls that compute and nothing else; views of views are one view, and small
linear maps of one input are one map. Two consecutive steps are recorded. An integer that grows by as much as a length
of the cache follows that length in further steps; if anything else differs, the step is not replayed.
"""

import operator
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from minitx.nn import MultiHeadAttention, scaled_dot_product_attention
from minitx.nn.cache import BeamCache, Cache
from minitx.nn.multi_head import uses_autocast

READS = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__contains__"}
"""Functions that read the numbers in a tensor. Code may decide by these, so what it did once proves nothing."""
UNWRAPPED: dict[Any, Callable[..., Any]] = {F.layer_norm: torch.layer_norm, F.rms_norm: torch.rms_norm}
"""The functions that Python functions of torch call with the same arguments."""
MIN_STEPS = 5
"""Steps alike from which recording some of them pays."""
MAX_FUSED_WEIGHT = 2**18
"""Numbers in a weight of which a copy is kept to fuse it with others. A larger product takes longer than its call."""
MAX_PROGRAMS = 64
"""Programs kept for one model."""

Program = Callable[..., tuple[Any, ...]]
"""From a cache's lengths, new ids, the cache's state and its tensors to logits and the cache's new state."""


class Programs:
    """The programs of a model, and its fused linear maps."""

    def __init__(self) -> None:
        self.by_key: dict[Hashable, Program | None] = {}
        self.fused: list[FusedLinear] | None = None  # until a first step has been searched for them


class Call(NamedTuple):
    """A call of a torch function."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


class FusedLinear:
    """Linear maps of one input as one map, with copies of their weights [out, in] and biases [out] or None."""

    def __init__(self, maps: Sequence[Sequence[Any]]) -> None:
        self.weights = [weight for weight, _ in maps]
        self.parts = [parts for parts in zip(*maps, strict=True) if parts[0] is not None]
        self.copies = [torch.cat(parts) for parts in self.parts]

    def update(self) -> None:
        """Copy the weights, which may have changed in place."""
        for copy, parts in zip(self.copies, self.parts, strict=True):
            torch.cat(parts, out=copy)


def fusible(calls: Sequence[Call]) -> list[FusedLinear]:
    """Linear maps of one input among the calls of a step."""
    maps: dict[Any, dict[int, Any]] = defaultdict(dict)  # by input, without the same weight twice
    for function, args, *_ in calls:
        if function is F.linear and len(args) == 3 and args[1].numel() <= MAX_FUSED_WEIGHT:
            maps[id(args[0]), args[2] is None][id(args[1])] = args[1:]
    return [FusedLinear([*several.values()]) for several in maps.values() if len(several) > 1]


class Recorder(TorchFunctionMode):
    """Records the calls within its block that make a tensor or change one; fuses linear maps."""

    def __init__(self, fused: Sequence[FusedLinear]) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.reads = False
        self.fused = {id(each.weights[0]): each for each in fused}
        self.parts: dict[tuple[int, int], Tensor] = {}  # results of fused maps by input and weight

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function and record it."""
        if function is F.linear:
            x, weight, *_ = args
            if (fused := self.fused.get(id(weight))) is not None:
                product = self.__torch_function__(F.linear, types, (x, *fused.copies))
                sizes = [len(part) for part in fused.weights]
                parts = self.__torch_function__(Tensor.split, types, (product, sizes, -1))
                self.parts |= {(id(x), id(own)): part for own, part in zip(fused.weights, parts, strict=True)}
            if (part := self.parts.get((id(x), id(weight)))) is not None:
                return part
        result = function(*args, **(kwargs or {}))
        self.reads |= function.__name__ in READS
        parts = result if isinstance(result, list | tuple) else [result]
        made = any(isinstance(part, Tensor) and not any(part is arg for arg in args) for part in parts)
        if made or _in_place(function):
            self.calls.append(Call(function, args, kwargs or {}, result))
        return result


def _in_place(function: Any) -> bool:
    name: str = function.__name__
    return name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))


class Recording:
    """One step of a model for one new token per text, with its calls."""

    def __init__(self, model: Any, cache: Any, ids: Tensor, fused: Sequence[FusedLinear]) -> None:
        self.lengths = lengths(cache)
        self.inputs = [ids, *state(cache), *tensors(cache)]
        self.source = None if cache.memory is None else cache.memory.size(1)  # tokens; other sources have others
        with Recorder(fused) as recorder:
            self.logits: Tensor = model.compute_step(ids, cache)
        self.calls, self.reads = recorder.calls, recorder.reads
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


def steps_alike(cache: Any) -> tuple[int, Hashable]:
    """Count the next single tokens until a buffer is full or a window hides more; returns a key for this state too."""
    (first, *_), ahead = cache.layers[0].buffers, []
    rule = [cache.keep is None, cache.memory_keep is None, first.shape[:2], first.dtype]
    kinds = {(layer.window, layer.buffers[0].size(2)): layer for layer in cache.layers.values()}
    for (window, capacity), layer in kinds.items():
        edges = [window + near for near in (-1, 0, 1)] if window is not None else []
        ahead += [edge - layer.used for edge in (capacity, *edges) if edge >= layer.used]
        rule += [cache.length - layer.used, *(edge <= layer.used for edge in edges)]  # what a window has dropped
    return min(ahead), tuple(rule)


class ReplayedStep:
    """A model's steps of one token per text into one cache. Programs are kept for each model, and serve all caches.

    Args:
        model: has `compute_step`. Its weights and modules do not change while this object is used.
    """

    _programs: ClassVar[WeakKeyDictionary[nn.Module, dict[Hashable, Programs]]] = WeakKeyDictionary()  # and by weights

    def __init__(self, model: Any) -> None:
        self.model = model
        parts = [*model.modules()]
        self._hooks = [hooks for part in parts for hooks in (part._forward_hooks, part._forward_pre_hooks)]
        self._attentions = [part for part in parts if isinstance(part, MultiHeadAttention)]
        self._known: Programs | None = None  # None: the model takes each step itself
        if all(part._compiled_call_impl is None for part in parts):
            own = [each for part in parts for each in (*part._parameters.values(), *part._buffers.values())]
            weights = tuple((id(each), each.dtype, each.device) for each in own if each is not None)
            found = self._programs.setdefault(model, {})
            if weights not in found:
                found.clear()  # programs of weights that were replaced
            self._known = found.setdefault(weights, Programs())
            for fused in self._known.fused or ():
                fused.update()
        # All that follows is valid with these buffers of the first layer, at these lengths of the cache.
        self._buffers: list[Tensor] | None = None
        self._lengths = range(0)
        self._tensors: list[Tensor | None] = []
        self._program: Program | None = None
        self._key: Hashable = None  # of a program to be recorded
        self._first: Recording | None = None

    def is_plain(self) -> bool:
        """Whether a step is its torch calls and nothing else: no hook, recorded attention, dropout or autocast."""
        plain = not self.model.training and not any(self._hooks)
        own = all(part.attention is scaled_dot_product_attention for part in self._attentions)
        return plain and own and not uses_autocast(self.model.embedding.table.weight)

    def __call__(self, ids: Tensor, cache: Any) -> Tensor:
        """Logits [B, 1, V] after one more token for each row, [B, 1]; with W beams, [B, W, V] after [B, W]."""
        if self._known is None or not self.is_plain():
            self._lengths = range(0)
            return self.model.compute_step(ids, cache)
        if cache.length not in self._lengths or cache.layers[0].buffers is not self._buffers:
            self._enter(self._known.by_key, ids, cache)
        self._lengths = self._lengths[ids.size(1) :]  # a shorter cache has dropped tokens
        if self._program is not None:
            logits, *after = self._program(*lengths(cache), ids, *state(cache), *self._tensors)
            for name, tensor in zip(cache.parts, after, strict=True):
                setattr(cache, name, tensor)
            cache.advance(ids.size(1))
            for layer in cache.layers.values():
                layer.used += ids.size(1)
            return logits
        if self._key is None:
            return self.model.compute_step(ids, cache)
        recording = Recording(self.model, cache, ids, self._known.fused or ())
        if self._known.fused is None:
            self._known.fused = fusible(recording.calls)
            return recording.logits
        if self._first is not None:
            if len(self._known.by_key) >= MAX_PROGRAMS:
                self._known.by_key.clear()
            self._known.by_key[self._key] = self._program = program_of(self._first, recording)
            self._key = None
        self._first = recording
        return recording.logits

    def _enter(self, known: dict[Hashable, Program | None], ids: Tensor, cache: Any) -> None:
        """Look up the program for the next steps that are alike, or decide to record it."""
        alike, rule = steps_alike(cache)
        tokens, dropped = ids.size(1), cache.ids.size(-1) - cache.length
        # Both lengths of a single beam grow by one: a program can tell them apart only by their difference.
        key = ids.device, ids.shape, type(cache), rule, dropped if tokens == 1 else None
        self._buffers, self._tensors = cache.layers[0].buffers, tensors(cache)
        self._lengths = range(cache.length, cache.length + alike - tokens + 1)
        self._program = known.get(key) if alike >= tokens else None
        self._key = key if key not in known and alike >= MIN_STEPS * tokens else None
        self._first = None


REPLAYED: WeakKeyDictionary[Cache, ReplayedStep] = WeakKeyDictionary()
"""What takes the further steps into each cache."""


def step(model: Any, ids: Tensor, cache: Any, keep: Tensor | None = None) -> Tensor:
    """A model's step, replayed in inference mode after the prompt if it has one token per text."""
    one = type(cache) is BeamCache or (type(cache) is Cache and ids.size(1) == 1)
    if not (one and keep is None and cache.length and torch.is_inference_mode_enabled()):
        REPLAYED.pop(cache, None)
        return model.compute_step(ids, cache, keep)
    if (own := REPLAYED.get(cache)) is None or own.model is not model:
        own = REPLAYED[cache] = ReplayedStep(model)
    return own(ids, cache)


def program_of(first: Recording, second: Recording) -> Program | None:
    """The function of which both recordings are instances; None if they differ in more than lengths."""
    if first.reads or second.reads or len(first.calls) != len(second.calls):
        return None
    writer = _GraphWriter(first, second)
    try:
        for one, two in zip(first.calls, second.calls, strict=True):
            writer.call(one, two)
        return writer.finish(first.outputs, second.outputs)
    except _Different:
        return None


class _Different(Exception):
    """Two recordings are not instances of one function."""


class _GraphWriter:
    """Writes the calls that two recordings share as a graph of torch.fx, in which lengths are variables."""

    def __init__(self, first: Recording, second: Recording) -> None:
        self.graph = fx.Graph()
        self.lengths = [
            (self.graph.placeholder(f"length{index}"), one, two - one)
            for index, (one, two) in enumerate(zip(first.lengths, second.lengths, strict=True))
        ]
        self.nodes: dict[int, fx.Node] = {}  # by the id of the first recording's tensor
        self.twins: dict[int, int] = {}  # its counterpart in the second
        self.constants: list[Tensor] = []
        self.source = first.source
        self.roots: dict[int, tuple[fx.Node, torch.dtype]] = {}  # the first tensor of each storage
        for index, pair in enumerate(zip(first.inputs, second.inputs, strict=True)):
            self.name(*pair, self.graph.placeholder(f"input{index}"))

    def name(self, one: Any, two: Any, node: fx.Node) -> None:
        """Let a node stand for a result of the two recordings, and for its parts."""
        if isinstance(one, Tensor):
            self.nodes[id(one)], self.twins[id(one)] = self.direct(one, two, node), id(two)
        elif isinstance(one, list | tuple):
            for index, pair in enumerate(zip(one, two, strict=True)):
                self.name(*pair, self.graph.call_function(operator.getitem, (node, index)))

    def direct(self, one: Tensor, two: Tensor, node: fx.Node) -> fx.Node:
        """For a view of a tensor that the step computes: the same view as one call; otherwise the node.

        A view along the source stays as it is: its layout differs in other generations.
        """
        layout, other = ((tuple(part.shape), part.stride(), part.storage_offset()) for part in (one, two))
        root, dtype = self.roots.setdefault(one.untyped_storage()._cdata, (node, one.dtype))
        varying = layout != other or self.source in one.shape
        if root is node or root.op == "placeholder" or varying or one.dtype != dtype:
            return node
        return self.graph.call_function(torch.as_strided, (root, *layout))

    def call(self, one: Call, two: Call) -> None:
        """Append a call."""
        if one.function != two.function or one.kwargs.keys() != two.kwargs.keys():
            raise _Different
        args = self.argument(one.args, two.args)
        kwargs = {key: self.argument(value, two.kwargs[key]) for key, value in one.kwargs.items()}
        function = one.function
        if function.__name__ == "__get__":  # of a property
            function, args = getattr, (args[0], one.function.__self__.__name__)  # type: ignore[attr-defined]
        node = self.graph.call_function(UNWRAPPED.get(function, function), args, kwargs)
        if not _in_place(function):
            self.name(one.result, two.result, node)

    def argument(self, one: Any, two: Any) -> Any:
        """The node or the constant for an argument of both recordings."""
        if isinstance(one, list | tuple) and isinstance(two, list | tuple) and len(one) == len(two):
            parts = [self.argument(*pair) for pair in zip(one, two, strict=True)]
            return parts if isinstance(one, list) else tuple(parts)
        if isinstance(one, slice) and isinstance(two, slice):
            return slice(*self.argument([one.start, one.stop, one.step], [two.start, two.stop, two.step]))
        if isinstance(one, Tensor):
            if one is two and id(one) not in self.nodes:  # a weight
                with self.graph.inserting_before(self.lengths[0][0]):
                    self.name(one, two, self.graph.placeholder(f"constant{len(self.constants)}"))
                self.constants.append(one)
            if self.twins.get(id(one)) == id(two):
                return self.nodes[id(one)]
        elif one == two:
            return one
        elif type(one) is type(two) is int:
            for length, start, growth in self.lengths:
                if two - one == growth:
                    return self.graph.call_function(operator.add, (length, one - start))
                if one - two == growth:
                    return self.graph.call_function(operator.sub, (one + start, length))
        raise _Different

    def finish(self, one: Sequence[Any], two: Sequence[Any]) -> Program:
        """The function, which returns these values."""
        self.graph.output(tuple(self.argument(one, two)))
        self.graph.eliminate_dead_code(lambda node: node.op != "call_function" or _in_place(node.target))
        return partial(fx.GraphModule(nn.Module(), self.graph).forward, *self.constants)
