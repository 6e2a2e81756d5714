"""Replace activations of a running model: by zeros, a mean, a tensor, a function, or values of another run.

Legend: B batch, T tokens, H heads, K d_head, D d_model.
"""

import inspect
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple, SupportsFloat, SupportsIndex
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from minitx.config.errors import ConfigError, did_you_mean
from minitx.data.batch import IGNORE, Batch
from minitx.hardware.devices import widest_float
from minitx.interpret.recording import attention_modules
from minitx.interpret.sites import Site, changed, sites
from minitx.interpret.trace import trace
from minitx.nn import Cache, EncoderStack, Stack
from minitx.nn.cache import BeamCache

Replacement = Tensor | SupportsFloat | Callable[[Tensor], Tensor] | str
"""A tensor, array or number, a function of the value, "zero" or "mean"."""


class Indices(NamedTuple):
    """The columns of the tokens of a stack's current call in the batch of whole texts."""

    queries: Tensor  # [1 or B, T]
    keys: Tensor  # [1 or B, S], cached ones included; with beams, each token in the text of its beams
    padding: Tensor  # [1 or B, 1], columns before the first token of a text
    cached: bool  # whether the call has a cache
    several: bool  # whether the batch has, or had before some ended, more than one text


class At(NamedTuple):
    """A replacement for some positions, heads or neurons; see `at`."""

    value: Replacement
    positions: Sequence[int] | None
    parts: Sequence[int] | None  # heads or neurons
    dims: str  # the letters of the dimension that `parts` index


def at(
    value: Replacement,
    positions: SupportsIndex | Iterable[SupportsIndex] | None = None,
    heads: SupportsIndex | Iterable[SupportsIndex] | None = None,
    neurons: SupportsIndex | Iterable[SupportsIndex] | None = None,
) -> At:
    """A replacement at some positions, heads or neurons alone; the rest of the activation is unchanged.

        name = "decoder.layers.0.self_attn.z"
        {name: at(clean[name], positions=4, heads=[0, 3])}

    Args:
        value: as for intervene, for the whole activation.
        positions: indices of tokens in their text. Cached tokens and those that have left a full context count; padding
            on the left and tokens cut from a prompt do not. In a beam search, the text is that of each beam. For k and
            v they index keys. Negative ones count from the end of each call; in right-padded rows, -1 may be padding.
        heads: for q, z, result, scores and weights; key-value heads for k and v.
        neurons: for ffn.hidden.

    Indices are whole numbers of Python, NumPy or torch: one, or any sequence, array or tensor of them.

    Raises:
        ConfigError: other indices; heads and neurons together.
    """
    if heads is not None and neurons is not None:
        raise ConfigError("at: expected heads or neurons, got both")
    name, parts, dims = ("heads", heads, "HG") if neurons is None else ("neurons", neurons, "F")
    return At(value, _whole_numbers("positions", positions), _whole_numbers(name, parts), dims)


def _whole_numbers(name: str, given: Any) -> list[int] | None:
    """A whole number, or a sequence, array or tensor of them, as a list; None for None."""
    if given is None:
        return None
    plain = given.tolist() if hasattr(given, "tolist") else given
    items = [*plain] if isinstance(plain, Iterable) else [plain]
    numbers = [item.tolist() if hasattr(item, "tolist") else item for item in items]
    if not all(isinstance(number, SupportsIndex) and not isinstance(number, bool) for number in numbers):
        raise ConfigError(f"at: {name} must be whole numbers, got {plain!r:.80}")
    return [*map(operator.index, numbers)]


@contextmanager
def intervene(
    model: nn.Module, changes: Mapping[str, Replacement | At], means: Mapping[str, Tensor] | None = None
) -> Iterator[None]:
    """Within this block, replace activations wherever the model computes them, in generation and evaluation too.

        changes = {"decoder.layers.1.cross_attn.z": "zero", "*.ffn.out": lambda value: 2 * value}
        with intervene(model, changes):
            logits = model(source, target)

    Blocks nest, also with trace: the result of one replacement is the input of the next. No hook remains after the
    block. With a cache, a call computes only the new tokens; k and v are those of all tokens, unchanged in the cache
    itself. Weights and scores are computed once more, without a fused kernel, and changed; scores hide the same keys.

    Args:
        changes: by name, with wildcards as for trace: a tensor, array or number that broadcasts to the activation, a
            function from a copy of the value to a tensor that fits it, "zero", "mean", or any of these `at` some
            positions and heads. With a cache, a step takes the tensor's entries for its tokens: by their columns, left
            padding included, or, of one tensor for several texts, by their indices in the text. In a generation, which
            drops texts that have ended, B is 1.
        means: for "mean": tensors by name, broadcastable to the activation, such as from mean_activations.

    Raises:
        ConfigError: a name that the model does not have; when the model runs, a shape that does not fit.
    """
    calls: dict[Stack, Indices] = {}
    caches: WeakKeyDictionary[Cache, bool] = WeakKeyDictionary()  # whether they began with several texts
    hooked: list[tuple[Site, Callable[[Tensor], Tensor]]] = []
    for pattern, change in changes.items():
        for name, site in sites(model, pattern).items():
            given = change if isinstance(change, At) else At(change, None, None, "")
            _check(name, site, given, means)
            hooked.append((site, partial(_replaced, name, site, given, means or {}, calls)))
    with ExitStack() as stack:
        for part in {site.stack for site, _ in hooked}:
            stack.callback(part.register_forward_pre_hook(partial(_count, calls, caches), with_kwargs=True).remove)
        stack.enter_context(changed(model, hooked))
        yield


def _count(
    calls: dict[Stack, Indices], caches: WeakKeyDictionary[Cache, bool], stack: Stack, args: Any, kwargs: Any
) -> None:
    """Record the tokens of a stack's call before its layers run."""
    given = inspect.signature(stack.forward).bind(*args, **kwargs).arguments
    cache: Cache | None = given.get("cache")
    keep: Tensor | None = given.get("keep")
    new = given["x"].size(1)
    if isinstance(cache, BeamCache):
        queries, keys = torch.full((1, new), cache.ids.size(2) - 1), cache.places.cpu()
        keep = None if cache.keep is None else cache.keep[:, 0]
    else:
        keys = torch.arange(new + (cache.length if cache is not None else 0))[None]
        queries = keys[:, -new:]
    padding = torch.zeros(1, 1, dtype=torch.long)
    if keep is not None and not bool(keep[:, 0].all()):  # prompts of different lengths, padded on the left
        padding = keep.long().argmax(dim=1, keepdim=True).cpu()
    several, left = len(given["x"]) > 1, None if cache is None else cache.before
    if left is not None:  # tokens that left a full context; of a padded text, fewer
        left = left.cpu()
        queries, keys, padding = queries + left.max(), keys + left.max(), padding + left.max() - left
    if cache is not None:
        several = caches.setdefault(cache, several or left is not None)  # other texts may have ended before
    calls[stack] = Indices(queries, keys, padding, cache is not None, several)


def _check(name: str, site: Site, change: At, means: Mapping[str, Tensor] | None) -> None:
    known = change.value in ("zero", "mean") if isinstance(change.value, str) else callable(change.value)
    if not known and not isinstance(change.value, SupportsFloat):  # an array too
        expected = 'expected a tensor, a function, "zero" or "mean"'
        raise ConfigError(f"intervene: {name}: {expected}, got {change.value!r}")
    if isinstance(change.value, str) and change.value == "mean" and name not in (means or {}):
        reason = "means= is missing" if means is None else f"means has no {name}: {did_you_mean(name, means)}"
        raise ConfigError(f'intervene: {name}: "mean" needs the means over a dataset, and {reason}')
    if change.parts is not None and site.dim(change.dims) is None:
        kind = "neurons" if change.dims == "F" else "heads"
        raise ConfigError(f"intervene: {name} [{', '.join(site.shape)}] has no {kind} to choose")


def _replaced(
    name: str, site: Site, change: At, means: Mapping[str, Tensor], calls: dict[Stack, Indices], old: Tensor
) -> Tensor:
    """The value that replaces `old`."""
    queries, keys, padding, cached, several = calls[site.stack]
    rows: Any = site.dim("TS")  # the first of them
    if name.endswith(("cross_attn.k", "cross_attn.v")):
        tokens = columns = torch.arange(old.size(rows))[None]
    else:
        columns = (queries if "T" in site.shape else keys)[:, -old.size(rows) :]  # a window may have dropped some
        tokens = columns - padding
    chosen = _chosen(name, site, change, rows, tokens, cached, old)
    if chosen is not None and not chosen.any():
        return old
    if callable(change.value):
        new: Any = change.value(old.clone())
    elif isinstance(change.value, str):
        new = torch.zeros_like(old) if change.value == "zero" else means[name]
    else:
        new = torch.as_tensor(change.value)
    if not isinstance(new, Tensor):
        raise ConfigError(f"intervene: the function for {name} returns {type(new).__name__}, expected a tensor")
    if not callable(change.value) and new.dim() == old.dim():
        shared = several and len(new) == 1 and site.kind not in ("scores", "weights")
        index = tokens if shared else columns  # one tensor for all texts: without padding
        if chosen is not None:  # the tensor may lack rows for other tokens
            index = index.where(chosen.movedim(rows, 1).flatten(2).any(dim=2).cpu(), 0)
        fits = new.size(rows) > index.max() if cached else shared and new.size(rows) == old.size(rows)
        if fits:
            index = index.clamp(min=0).to(new.device)
            index = index.view(len(index), *[1] * (rows - 1), -1, *[1] * (new.dim() - rows - 1))
            new = torch.take_along_dim(new, index, dim=rows)
    try:
        new = new.to(old).expand_as(old)
    except RuntimeError:
        found = f"expected [{', '.join(site.shape)}] = {[*old.shape]}, got {[*new.shape]}"
        raise ConfigError(f"intervene: the replacement of {name} does not fit: {found}") from None
    if site.kind == "scores":
        new = new.masked_fill(old == -torch.inf, -torch.inf)  # zeros would unmask the future and padding
    return new if chosen is None else torch.where(chosen, new, old)


def _chosen(name: str, site: Site, change: At, rows: int, tokens: Tensor, cached: bool, old: Tensor) -> Tensor | None:
    """The mask of replaced entries, broadcastable to the activation; None for all."""
    chosen, part = None, site.dim(change.dims)
    for wanted, dim in ((change.positions, rows), (change.parts, part)):
        if wanted is None or dim is None:
            continue
        present = tokens if dim == rows else torch.arange(old.size(dim))[None]
        indices, size = torch.tensor([*wanted], dtype=torch.long), present.amax(dim=1, keepdim=True) + 1
        indices = torch.where(indices < 0, indices + size, indices)  # [1 or B, N]
        later = dim == rows and cached  # another call may have the token
        if not later and bool(((indices < 0) | (indices >= size)).any()):
            kind = "positions" if dim == rows else "neurons" if change.dims == "F" else "heads"
            raise ConfigError(f"intervene: {name} has {kind} 0 to {int(size.min()) - 1}, got {[*wanted]}")
        among = (present[:, :, None] == indices[:, None]).any(dim=2).to(old.device)  # [1 or B, tokens or parts]
        among = among.view(len(among), *[1] * (dim - 1), -1, *[1] * (old.dim() - dim - 1))
        chosen = among if chosen is None else chosen & among
    return chosen


@torch.no_grad()
def mean_activations(
    model: nn.Module, batches: Iterable[Batch], pad: int, only: str | Iterable[str] = ("*.z", "*.ffn.out")
) -> dict[str, Tensor]:
    """The mean of activations over all real tokens of batches, for `intervene(..., means=...)`.

    Args:
        model: evaluated in its current mode.
        batches: on the model's device.
        pad: the id of padding.
        only: names, as for trace; of activations with a row for each token, so not scores and weights.

    Returns:
        By name, the activation without its dimensions B and T: [H, K] for z, [D] for out.
    """
    if isinstance(batches, Batch):
        raise ConfigError("mean_activations: batches must be a list of batches, got a single one")
    wanted = sites(model, only)
    if pairs := [name for name, site in wanted.items() if "S" in site.shape and "T" in site.shape]:
        raise ConfigError(f"mean_activations: {pairs[0]} has no mean over tokens, as its size depends on their number")
    sums, counts = dict[str, Tensor](), dict[str, int]()
    for batch in batches:
        with trace(model, wanted) as recorded:
            model(**batch.model_inputs())
        for name, value in recorded.items():
            source = isinstance(wanted[name].stack, EncoderStack) or name.endswith(("cross_attn.k", "cross_attn.v"))
            ids, keep = (batch.src, batch.src_keep) if source else (batch.tgt, batch.tgt_keep)
            assert ids is not None
            if keep is None:  # padding follows the last other id: T5 starts with the same id, texts of GPT-2 contain it
                # After a question, a row's last label is its <eos>, which is an input only in a batch with longer rows.
                real = ids != pad if batch.prefix is None else batch.labels != IGNORE
                keep = real.flip(1).cummax(dim=1).values.flip(1)
                keep[:, 0] = True
            rows = value[keep]
            sums[name] = sums.get(name, 0.0) + rows.to(widest_float(rows.device)).sum(dim=0)
            counts[name] = counts.get(name, 0) + len(rows)
    return {name: (total / max(counts[name], 1)).float() for name, total in sums.items()}


@contextmanager
def head_mask(model: nn.Module, masks: Mapping[str, Sequence[float] | Tensor]) -> Iterator[None]:
    """Within this block, multiply the output of each head by its factor: 0 ablates a head (Michel et al. 2019).

        with head_mask(model, {"decoder.layers.0.self_attn": [1, 0, 1, 1]}):
            model(ids)

    masks maps a module's path to one factor for each head, [H] or, except in generation, which drops ended rows,
    [B, H]; other modules are unchanged. Gradients flow into a tensor: one backward gives each head's importance.

    Raises:
        ConfigError: a path that is not an attention of this model, or another number of heads.
    """
    modules = attention_modules(model)
    factors = {path: torch.atleast_1d(torch.as_tensor(mask)) for path, mask in masks.items()}
    for path, factor in factors.items():
        if path not in modules:
            raise ConfigError(f"head_mask: {path} is not an attention of this model, which has {', '.join(modules)}")
        if factor.size(-1) != modules[path].n_heads:
            raise ConfigError(f"head_mask: {path} has {modules[path].n_heads} heads, got {factor.size(-1)} numbers")

    def scaled(factor: Tensor, z: Tensor) -> Tensor:
        if factor.dim() == 2 and len(factor) not in (1, len(z)):
            got = f"got factors of {len(factor)} rows for a batch of {len(z)}"
            advice = "a generation drops rows that have ended: give one factor for each head"
            raise ConfigError(f"head_mask: {got}; {advice}")
        return z * factor[..., None, :, None].to(z)  # [B, T, H, K]

    with intervene(model, {f"{path}.z": partial(scaled, factor) for path, factor in factors.items()}):
        yield
