"""The program of a decoding step: a graph of torch.fx that computes what two recorded steps have in common."""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from minitx.compilation.recorded_step import Call, Recording, in_place

UNWRAPPED: dict[Any, Callable[..., Any]] = {
    F.layer_norm: torch.layer_norm,
    Tensor.__pow__: Tensor.pow,  # torch.fx does not find these two by their names
    Tensor.__ipow__: Tensor.pow_,
}
"""The functions that Python functions of torch call with the same arguments."""
BY_HEAD = {Tensor.mul, Tensor.roll, torch.addcmul}
"""Functions that treat the heads of [B, heads, T, K] separately, if their other arguments are the same for all."""
PLAIN = (int, float, str, bool, torch.dtype, torch.device, type(None), type(...))
"""Types of arguments that a graph takes as constants."""
Program = Callable[..., tuple[Any, ...]]
"""From a cache's lengths, new ids, the cache's state and its tensors to logits and the cache's new state."""


def program_of(first: Recording, second: Recording) -> Program | None:
    """The function of which both recordings are instances; None if they differ in more than lengths."""
    if first.varies or second.varies or len(first.calls) != len(second.calls):
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
        self.counterparts: dict[int, int] = {}  # the id in the second recording
        self.constants: list[Tensor] = []
        self.values: dict[fx.Node, Tensor] = {}  # the first recording's
        self.views: dict[Any, fx.Node] = {}  # by root and layout
        self.source, self.buffers = first.source, first.buffers
        self.roots: dict[int, tuple[fx.Node, torch.dtype]] = {}  # the first tensor of each storage
        self.changed: set[fx.Node] = set()  # those of them that are changed in place
        for index, pair in enumerate(zip(first.inputs, second.inputs, strict=True)):
            self.name(*pair, self.graph.placeholder(f"input{index}"))

    def name(self, one: Any, two: Any, node: fx.Node) -> None:
        """Map a result of the two recordings to a node, and its parts to nodes of their own."""
        if isinstance(one, Tensor):
            self.nodes[id(one)], self.counterparts[id(one)] = self.direct(one, two, node), id(two)
            self.values[self.nodes[id(one)]] = one
        elif isinstance(one, list | tuple):
            for index, pair in enumerate(zip(one, two, strict=True)):
                self.name(*pair, self.graph.call_function(operator.getitem, (node, index)))

    def direct(self, one: Tensor, two: Tensor, node: fx.Node) -> fx.Node:
        """For a view of a tensor that the step computes: the same view as one call; otherwise the node.

        A view whose layout varies, for example with the length of the source, keeps its node.
        """
        layout, other = ((tuple(part.shape), part.stride(), part.storage_offset()) for part in (one, two))
        root, dtype = self.roots.setdefault(one.untyped_storage()._cdata, (node, one.dtype))
        varying = layout != other or self.source in one.shape
        if root is node or root.op == "placeholder" or varying or one.dtype != dtype:
            return node
        return self.view(root, one)

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
        if in_place(function):
            changed = [one.args[0]] if isinstance(one.args[0], Tensor) else one.args[0]
            self.changed |= {self.roots[each.untyped_storage()._cdata][0] for each in changed}
        else:
            self.name(one.result, two.result, node)

    def argument(self, one: Any, two: Any) -> Any:
        """The node or the constant for an argument of both recordings."""
        if isinstance(one, list | tuple) and isinstance(two, list | tuple) and len(one) == len(two):
            parts = [self.argument(*pair) for pair in zip(one, two, strict=True)]
            return parts if isinstance(one, list) else tuple(parts)
        if isinstance(one, slice) and isinstance(two, slice):
            return slice(*self.argument([one.start, one.stop, one.step], [two.start, two.stop, two.step]))
        if isinstance(one, Tensor):
            is_weight = isinstance(one, nn.Parameter) or id(one) in self.buffers  # others may have been computed
            if one is two and is_weight and id(one) not in self.nodes:
                with self.graph.inserting_before(self.lengths[0][0]):
                    self.name(one, two, self.graph.placeholder(f"constant{len(self.constants)}"))
                self.constants.append(one)
            if self.counterparts.get(id(one)) == id(two):
                return self.nodes[id(one)]
        elif (isinstance(one, float) or type(one) in PLAIN) and one == two:
            return float(one) if isinstance(one, float) else one  # torch.fx cannot print NumPy's floats
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
        self.join_heads()
        self.graph.eliminate_dead_code(lambda node: node.op != "call_function" or in_place(node.target))
        return partial(fx.GraphModule(nn.Module(), self.graph).forward, *self.constants)

    def join_heads(self) -> None:
        """Call a function once for the heads of queries and keys, if one projection has computed both side by side."""
        alone: list[Any] = []
        for node in [each for each in self.graph.nodes if each.target in BY_HEAD]:
            if not any(self.join(other, node) for other in alone):
                alone.append(node)

    def join(self, one: Any, two: Any) -> bool:
        """Replace two calls by one for the heads of both, if they differ in nothing but their heads."""
        viewed = any(user.target is torch.as_strided for user in (*one.users, *two.users))
        same = one.target == two.target and one.kwargs == two.kwargs and len(one.args) == len(two.args)
        if viewed or not same or one.args == two.args:  # the same call twice: nothing to join
            return False
        args = [a if a == b else self.both(a, b) for a, b in zip(one.args, two.args, strict=True)]
        shared = [self.values.get(each) for each in one.all_input_nodes if each in two.all_input_nodes]
        each_head = any(value is None or (value.dim() > 2 and value.size(-3) > 1) for value in shared)
        if None in args or each_head:
            return False
        given, options = fx.map_arg((args, one.kwargs), self.values.__getitem__)
        value = one.target(*given, **options)
        parts = value.split([self.values[node].size(1) for node in (one, two)], dim=1)
        if not all(torch.equal(self.values[node], part) for node, part in zip((one, two), parts, strict=True)):
            return False
        with self.graph.inserting_before(one):
            whole = self.graph.call_function(one.target, tuple(args), one.kwargs)
        self.values[whole] = value
        for node, part in zip((one, two), parts, strict=True):
            node.replace_all_uses_with(self.view(whole, part))
        return True

    def both(self, one: Any, two: Any) -> fx.Node | None:
        """The view [B, heads, T, K] of the heads of two views, if these are adjacent in one tensor."""
        if not all(isinstance(arg, fx.Node) and arg.target is torch.as_strided for arg in (one, two)):
            return None
        (root, shape, stride, start), (other, (_, heads, *_), _, following) = one.args, two.args
        left = self.values[one]
        if root is not other or root in self.changed or left.dim() != 4 or following != start + shape[1] * stride[1]:
            return None
        return self.view(root, left.as_strided((shape[0], shape[1] + heads, *shape[2:]), stride, start))

    def view(self, root: fx.Node, tensor: Tensor) -> fx.Node:
        """The node of a tensor that shares the root's storage: the root, or a view of it."""
        layout = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        whole = self.values[root]
        if layout == (tuple(whole.shape), whole.stride(), whole.storage_offset()):
            return root
        if (node := self.views.get((root, layout))) is None:
            with self.graph.inserting_after(root):
                node = self.views[root, layout] = self.graph.call_function(torch.as_strided, (root, *layout))
            self.values[node] = tensor
        return node
