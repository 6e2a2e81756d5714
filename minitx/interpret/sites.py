"""Names for the activations of a model, and functions applied to them wherever they are computed.

Legend: B batch, T queries, S keys, H heads, G key-value heads, K d_head, D d_model, F d_ff.
Values between modules are reached by module hooks, those within attention by its attention function.
"""

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from fnmatch import filter as matching
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minitx.config.errors import ConfigError, did_you_mean
from minitx.nn import MultiHeadAttention, Stack
from minitx.nn.kernels import MaskAndBias, Operands, fold, scaled_dot_product_attention
from minitx.nn.norms import AddNorm

_IN_ATTENTION = {
    "q": "BTHK", "k": "BSGK", "v": "BSGK", "scores": "BHTS", "weights": "BHTS", "z": "BTHK", "result": "BTHD",
}  # fmt: skip
_STREAM_AFTER = {"self_attn": "resid_mid", "cross_attn": "resid_mid_cross", "ffn": ""}
"""By sublayer, the residual stream after it, if another sublayer follows."""

Change = Callable[[Tensor], Tensor]
"""From the value of an activation to the value that the model continues with: the same tensor for no change."""


class Site(NamedTuple):
    """Where an activation is computed, and the meaning of its dimensions."""

    stack: Stack
    module: nn.Module
    kind: str  # input or output of the module, or the last part of the name
    shape: str  # a letter for each dimension, as in the legend

    @property
    def size(self) -> int:
        """Number of heads or of neurons."""
        module: Any = self.module
        return int(module.n_heads if "H" in self.shape else module.in_features)

    def dim(self, letters: str) -> int | None:
        """The dimension that is one of these letters."""
        return next((index for index, letter in enumerate(self.shape) if letter in letters), None)


def sites(model: nn.Module, only: str | Iterable[str] = "*") -> dict[str, Site]:
    """The activations of a model by their names, in the order in which the model computes them.

    only: names, with wildcards as in file names; every activation by default.

    | name                           | shape        | activation                                                   |
    |--------------------------------|--------------|--------------------------------------------------------------|
    | encoder.layers.0.resid_pre     | [B, T, D]    | residual stream, into a layer                                |
    | ... .resid_mid                 | [B, T, D]    | after self-attention, if another sublayer follows            |
    | ... .resid_mid_cross           | [B, T, D]    | after cross-attention, if a feed-forward network follows     |
    | ... .resid_post                | [B, T, D]    | out of a layer                                               |
    | encoder.out                    | [B, T, D]    | out of a stack, after its norm: the memory, the head's input |
    | ... .self_attn.q               | [B, T, H, K] | queries, after their norm and rotation                       |
    | ... .self_attn.k, .v           | [B, S, G, K] | keys and values, cached ones included                        |
    | ... .self_attn.scores          | [B, H, T, S] | before the softmax, bias included, -inf where hidden         |
    | ... .self_attn.weights         | [B, H, T, S] | probabilities, before dropout                                |
    | ... .self_attn.z               | [B, T, H, K] | each head's sum of values                                    |
    | ... .self_attn.result          | [B, T, H, D] | what each head adds: z times its slice of o_proj             |
    | ... .self_attn.out             | [B, T, D]    | the sum of the results and o_proj's bias                     |
    | ... .ffn.hidden                | [B, T, F]    | input of the second linear map: the neurons                  |
    | ... .ffn.out                   | [B, T, D]    | what the feed-forward network adds                           |

    `cross_attn` has the same names as `self_attn`. In post-norm layers the residual stream is that after each norm;
    with sandwich norms, `out` is before the norm of the sublayer's output. A position scheme may widen q and k.

    Raises:
        ConfigError: a pattern that no name matches.
    """
    known = {name: site for prefix, stack in _stacks(model) for name, site in _in_stack(prefix, stack)}
    names: set[str] = set()
    for pattern in (only,) if isinstance(only, str) else only:
        if not (found := matching(known, pattern)):
            raise ConfigError(f"this model has no activation {pattern}: {did_you_mean(pattern, known)}")
        names.update(found)
    return {name: site for name, site in known.items() if name in names}


def _stacks(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, Stack]]:
    """Each stack with the prefix of its names, which compilation does not change."""
    if isinstance(model, Stack):
        yield prefix, model
        return
    for name, part in model.named_children():
        yield from _stacks(part, prefix if name == "_orig_mod" else f"{prefix}{name}.")


def _in_stack(prefix: str, stack: Stack) -> Iterator[tuple[str, Site]]:
    """The activations of a stack, in the order in which it computes them."""
    for index, compiled in enumerate(stack.layers):
        layer: Any = compiled._modules.get("_orig_mod") or compiled
        path = f"{prefix}layers.{index}"
        yield f"{path}.resid_pre", Site(stack, layer, "input", "BTD")
        sublayers = [(name, part) for name in _STREAM_AFTER if (part := layer._modules.get(name)) is not None]
        for name, part in sublayers:
            if name == "ffn":
                yield f"{path}.ffn.hidden", Site(stack, part.down_proj, "input", "BTF")
            else:
                _, function = _unwrapped(part)
                formula = function.inner if isinstance(function, _ChangedAttention) else function
                for kind, shape in _IN_ATTENTION.items():
                    # A function of the user's own may compute others.
                    if formula is scaled_dot_product_attention or kind not in ("scores", "weights"):
                        yield f"{path}.{name}.{kind}", Site(stack, part, kind, shape)
            yield f"{path}.{name}.out", Site(stack, part, "output", "BTD")
            if name != sublayers[-1][0]:
                yield f"{path}.{_STREAM_AFTER[name]}", Site(stack, add_norm_of(layer, name), "output", "BTD")
        yield f"{path}.resid_post", Site(stack, layer, "output", "BTD")
    yield f"{prefix}out", Site(stack, stack, "output", "BTD")


def add_norm_of(layer: Any, sublayer: str) -> AddNorm:
    """The AddNorm around self_attn, cross_attn or ffn."""
    name = layer.first_norm if sublayer == "self_attn" else f"add_norm_{sublayer.removesuffix('_attn')}"
    return getattr(layer, name)


@contextmanager
def changed(model: nn.Module, changes: Iterable[tuple[Site, Change]], first: bool = False) -> Iterator[None]:
    """Within this block, apply each function to its activation whenever the model computes it; blocks may nest.

    Functions of one site are applied in the order in which they were given, those of an outer block first; with
    `first`, which is for inputs and outputs of modules, before those of outer blocks. Compiled models and parts run
    without their compiled code, which has no hooks.
    """
    loaded = "torch._dynamo" in sys.modules  # then a module that contains this model may be compiled
    eager: Any = torch.compiler.set_stance("force_eager") if loaded else nullcontext()
    undo: list[Callable[[], Any]] = []  # ExitStack.callback takes three times as long
    with eager:
        try:
            undo.extend(_attach(site, change, first) for site, change in changes)
            yield
        finally:
            for detach in reversed(undo):
                detach()


def _attach(site: Site, change: Change, first: bool) -> Callable[[], Any]:
    """Apply a function at a site; returns a function that undoes it."""
    module: Any = site.module
    if site.kind == "input":
        return module.register_forward_pre_hook(lambda _, args: (change(args[0]), *args[1:]), prepend=first).remove
    if site.kind == "output":
        return module.register_forward_hook(lambda _, args, out: change(out), prepend=first).remove
    if site.kind == "z":
        return module.o_proj.register_forward_pre_hook(
            lambda _, args: (change(args[0].unflatten(-1, (-1, module.d_head))).flatten(-2),)
        ).remove
    return _changed_attention(module).attach(site.kind, change)


def stack_output(stack: Stack, stream: Tensor) -> Tensor:
    """The output of a stack whose last layer has returned stream [B, T, D], changed by the enclosing blocks."""
    out: Tensor = stack.norm(stream)
    for hook in stack._forward_hooks.values():
        if getattr(hook, "__module__", None) == __name__:  # one of _attach
            out = hook(stack, (), out)
    return out


def _unwrapped(module: MultiHeadAttention) -> tuple[list[partial[Any]], Any]:
    """The wrappers of a module's attention function by wrapped_attention, the outermost first, and the function."""
    wrappers: list[partial[Any]] = []
    function = module.attention
    while isinstance(function, partial) and [*map(callable, function.args)] == [False, True]:  # a path, a function
        wrappers.append(function)
        function = function.args[1]
    return wrappers, function


def _changed_attention(module: MultiHeadAttention) -> "_ChangedAttention":
    """The _ChangedAttention of a module, inside its wrappers; a second one outside would change q before the first."""
    wrappers, function = _unwrapped(module)
    if isinstance(function, _ChangedAttention):
        return function
    inner = _ChangedAttention(module, function)
    module.attention = inner
    for wrapper in reversed(wrappers):
        module.attention = partial(wrapper.func, *wrapper.args[:-1], module.attention, **wrapper.keywords)
    return inner


class _ChangedAttention:
    """An attention function of a module, with functions applied to what it computes and to the heads' results."""

    def __init__(self, module: MultiHeadAttention, inner: Callable[..., Any]) -> None:
        self.module, self.inner, self.replaced = module, inner, module.attention
        self.changes: dict[str, list[Change]] = defaultdict(list)
        self.handle = module.o_proj.register_forward_hook(self._project)
        self.positions: Any = None
        self.reader = module.register_forward_pre_hook(self._read, with_kwargs=True)

    def _read(self, module: MultiHeadAttention, args: Any, kwargs: dict[str, Any]) -> None:
        self.positions = kwargs["prepared"].positions

    def attach(self, kind: str, change: Change) -> Callable[[], None]:
        """Apply a further function; returns one that undoes it, and restores the module after the last."""
        self.changes[kind].append(change)

        def undo() -> None:
            self.changes[kind].remove(change)
            if not any(self.changes.values()):
                self.handle.remove()
                self.reader.remove()
                self.module.attention = self.replaced

        return undo

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, return_weights: bool = False, **options: Any) -> Any:
        """The same arguments and result as scaled_dot_product_attention."""
        q, k, v = (
            self._apply(kind, part.transpose(1, 2)).transpose(1, 2) if self.changes[kind] else part
            for kind, part in (("q", q), ("k", k), ("v", v))
        )
        scheme = self.module.position
        if scheme.bias_per_layer and (self.changes["q"] or self.changes["k"]):
            options["bias"] = scheme.bias(q, k, self.positions)  # of the changed q and k
        result = self.inner(q, k, v, return_weights=return_weights, **options)
        if not self.changes["scores"] and not self.changes["weights"]:
            return result
        before = _scores(q, k, **options)
        scores = self._apply("scores", before)
        before_weights = _weights(before, q.dtype)
        weights = self._apply("weights", before_weights if scores is before else _weights(scores, q.dtype))
        if weights is before_weights:
            return result
        out = result[0] if return_weights else result
        # Differences are added, here and below: values without a change have no effect, whatever the order of a sum.
        # If no weight is left, the sum itself: a norm that follows would amplify the rounding of a difference.
        v = _for_each_head(v, q)
        out = torch.where(weights.any(-1, keepdim=True), out + (weights - before_weights) @ v, weights @ v)
        return (out, weights) if return_weights else out

    def _project(self, o_proj: nn.Linear, args: tuple[Tensor], out: Tensor) -> Tensor:
        """The output [B, T, D] of o_proj as a sum over heads."""
        if not self.changes["result"]:
            return out
        heads = (self.module.n_heads, self.module.d_head)
        before = torch.einsum("bthk,dhk->bthd", args[0].unflatten(-1, heads), o_proj.weight.unflatten(-1, heads))
        after = self._apply("result", before)
        if after is before:
            return out
        bias = 0.0 if o_proj.bias is None else o_proj.bias.to(out.dtype)
        left = after.flatten(2).any(dim=-1, keepdim=True)
        return torch.where(left, out + (after - before).sum(dim=2), after.sum(dim=2) + bias)

    def _apply(self, kind: str, value: Tensor) -> Tensor:
        for change in self.changes[kind]:
            value = change(value)
        return value


def _scores(q: Tensor, k: Tensor, *, dropout: float = 0.0, softcap: float | None = None, **masking: Any) -> Tensor:
    """The scores [B, H, T, S] of explicit_attention, -inf where a key is hidden."""
    operands = Operands(q.size(-2), k.size(-2), q.size(-1), q.dtype, q.device)
    mask, bias, _, _ = fold(operands, MaskAndBias(**masking), "explicit")
    k = _for_each_head(k, q)
    scores = (q / math.sqrt(q.size(-1))) @ k.transpose(-2, -1)
    scores = scores if softcap is None else softcap * (scores / softcap).tanh()
    scores = scores if bias is None else scores + bias
    return scores if mask is None else scores.masked_fill(~mask, -math.inf)


def _for_each_head(keys: Tensor, q: Tensor) -> Tensor:
    """Keys or values [B, G, S, K] as [B, H, S, K]; a copy only if heads share them."""
    return keys if keys.size(1) == q.size(1) else keys.repeat_interleave(q.size(1) // keys.size(1), dim=1)


def _weights(scores: Tensor, dtype: torch.dtype) -> Tensor:
    """The softmax, zero in a row without a key."""
    return scores.softmax(dim=-1).masked_fill(scores == -math.inf, 0.0).to(dtype)
