"""A decoding step as a flat list of torch calls: recorded from the model's own step, replayed for each further token.

With few rows a step spends most of its time in Python: modules, attribute lookups, and choices that come out the same
for each token. A replayed step has the calls that compute and nothing else. Two consecutive steps are recorded. An
integer that differs between them is a length, which keeps growing; if anything else differs, the step is not replayed.
"""

import operator
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary

from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

READS = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__contains__"}
"""Functions that read the numbers in a tensor. Code may decide by these, so what it did once proves nothing."""
MIN_STEPS = 4
"""Steps alike from which recording two of them pays."""
MAX_PROGRAMS = 64
"""Programs kept for one model."""

Program = Callable[..., tuple[Any, ...]]
"""From a cache's length, new ids, the cache's ids, keep and tensors to logits and the cache's new ids, keep and pos."""

Programs = dict[Hashable, Program | None]


class Call(NamedTuple):
    """A call of a torch function."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


class Recorder(TorchFunctionMode):
    """Records the calls within its block that make a tensor or change one."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []
        self.reads = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function and record it."""
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
    """One step of a model for one new token per row, with its calls."""

    def __init__(self, model: Any, cache: Any, ids: Tensor) -> None:
        self.length = cache.length
        self.inputs = [ids, cache.ids, cache.keep, *cache.tensors()]
        with Recorder() as recorder:
            self.logits: Tensor = model.step(ids, cache)
        self.calls, self.reads = recorder.calls, recorder.reads
        self.outputs = [self.logits, cache.ids, cache.keep, cache.pos]


class ReplayedStep:
    """A model's step of one token per row. Programs are kept for each model, and serve all its generations.

    Args:
        model: has `step`. It is replayed if it has `repeats_itself`, which must not change while this object is used.
        cache: holds the prompt.
    """

    _programs: ClassVar[WeakKeyDictionary[nn.Module, dict[Hashable, Programs]]] = WeakKeyDictionary()  # and by weights

    def __init__(self, model: Any, cache: Any) -> None:
        self._model, self._cache = model, cache
        self._known: Programs | None = None  # None: the model takes each step itself
        if getattr(model, "repeats_itself", False):
            weights = tuple(map(id, (*model.parameters(), *model.buffers())))
            found = self._programs.setdefault(model, {})
            if weights not in found:
                found.clear()  # programs of weights that were replaced
            self._known = found.setdefault(weights, {})
        self._buffers: list[Tensor] | None = None  # of the first layer, while the following hold
        self._until = 0  # length of the cache
        self._tensors: list[Tensor | None] = []
        self._program: Program | None = None
        self._key: Hashable = None  # of a program to be recorded
        self._first: Recording | None = None

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits [B, 1, V] after one more token for each row, [B, 1]."""
        cache = self._cache
        if self._known is None:
            return self._model.step(ids, cache)
        if cache.length >= self._until or cache.layers[0].buffers is not self._buffers:
            self._enter(self._known, ids)
        if self._program is not None:
            logits, *after = self._program(cache.length, ids, cache.ids, cache.keep, *self._tensors)
            cache.follow(*after)
            return logits
        if self._key is None:
            return self._model.step(ids, cache)
        recording = Recording(self._model, cache, ids)
        if self._first is not None:
            if len(self._known) >= MAX_PROGRAMS:
                self._known.clear()
            self._known[self._key] = self._program = written(self._first, recording)
            self._key = None
        self._first = recording
        return recording.logits

    def _enter(self, known: Programs, ids: Tensor) -> None:
        """Look up the program for the next steps that are alike, or decide to record it."""
        cache = self._cache
        alike, rule = cache.steps_alike()
        key = ids.device, ids.size(0), rule
        self._buffers, self._until, self._tensors = cache.layers[0].buffers, cache.length + alike, cache.tensors()
        self._program = known.get(key) if alike else None
        self._key = key if key not in known and alike >= MIN_STEPS else None
        self._first = None


def written(first: Recording, second: Recording) -> Program | None:
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
        self.first_length = first.length
        self.graph = fx.Graph()
        self.length = self.graph.placeholder("length")
        self.nodes: dict[int, fx.Node] = {}  # by the id of the first recording's tensor
        self.twins: dict[int, int] = {}  # its counterpart in the second
        self.constants: list[Tensor] = []
        for index, pair in enumerate(zip(first.inputs, second.inputs, strict=True)):
            self.name(*pair, self.graph.placeholder(f"input{index}"))

    def name(self, one: Any, two: Any, node: fx.Node) -> None:
        """Let a node stand for a result of the two recordings, and for its parts."""
        if isinstance(one, Tensor):
            self.nodes[id(one)], self.twins[id(one)] = node, id(two)
        elif isinstance(one, list | tuple):
            for index, pair in enumerate(zip(one, two, strict=True)):
                self.name(*pair, self.graph.call_function(operator.getitem, (node, index)))

    def call(self, one: Call, two: Call) -> None:
        """Append a call."""
        if one.function != two.function or one.kwargs.keys() != two.kwargs.keys():
            raise _Different
        args = self.argument(one.args, two.args)
        kwargs = {key: self.argument(value, two.kwargs[key]) for key, value in one.kwargs.items()}
        function = one.function
        if function.__name__ == "__get__":  # of a property
            function, args = getattr, (args[0], one.function.__self__.__name__)  # type: ignore[attr-defined]
        node = self.graph.call_function(function, args, kwargs)
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
                with self.graph.inserting_before(self.length):
                    self.name(one, two, self.graph.placeholder(f"constant{len(self.constants)}"))
                self.constants.append(one)
            if self.twins.get(id(one)) == id(two):
                return self.nodes[id(one)]
        elif type(one) is type(two) is int and two == one + 1:
            return self.graph.call_function(operator.add, (self.length, one - self.first_length))
        elif type(one) is type(two) is int and two == one - 1:
            return self.graph.call_function(operator.sub, (one + self.first_length, self.length))
        elif one == two:
            return one
        raise _Different

    def finish(self, one: Sequence[Any], two: Sequence[Any]) -> Program:
        """The function, which returns these values."""
        self.graph.output(tuple(self.argument(one, two)))
        self.graph.eliminate_dead_code(lambda node: node.op != "call_function" or _in_place(node.target))
        return partial(fx.GraphModule(nn.Module(), self.graph).forward, *self.constants)
