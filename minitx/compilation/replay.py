"""A decoding step as a flat list of torch calls: recorded from the model's own step, replayed for each further token.

With few rows, most of a step's time is spent in Python: modules, attribute lookups, and branches that are the same for
each token. A replayed step has the calls that compute and nothing else; views of views are merged, small linear maps of
the same input are fused, and the heads of queries and keys are rotated together. Two consecutive steps are recorded. An
integer that grows by as much as a length of the cache follows that length in further steps; if anything else differs,
or if the list does not repeat the second step, the step is not replayed. Nor is one with a user's own code, which may
depend on anything. On a GPU, a CUDA graph may take the place of the list (graphed_step.py).
"""

import sys
from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from functools import partial
from operator import is_, itemgetter
from types import FunctionType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from minitx.compilation.batched_attention import AttentionChoices
from minitx.compilation.packed_linear import PackedLinears
from minitx.compilation.recorded_step import (
    FusedLinear,
    Recording,
    advance,
    can_capture,
    equal_but_for_rounding,
    fusible,
    have_own_function,
    hooks_and_attentions,
    is_own,
    lengths,
    newest_restored,
    state,
    tensors,
)
from minitx.compilation.step_graph import PLAIN, Program, program_of
from minitx.models.transformers import max_positions
from minitx.nn.cache import BeamCache, Cache
from minitx.nn.kernels import without_cudnn
from minitx.nn.multi_head import uses_autocast

MIN_STEPS = 5
"""Minimum number of steps alike for which recording saves time."""
STEPS_BEFORE = 16
"""Steps of the same rows before they are captured as a CUDA graph, which takes the time of about six."""
STEPS_AFTER = 32
"""Minimum number of steps for which the buffers must have capacity after a capture."""
MAX_PROGRAMS = 64
"""Maximum number of programs for one model and its settings."""
MAX_STATES = 4
"""Maximum number of settings of one model for which programs are kept."""
IS_TRAINING = itemgetter("training")
"""Reads `training` from a module's `vars`, at each step: in a third of the time of the attribute."""
NO_SETTINGS = {*vars(nn.Module())}
"""Attributes of every module, which are not settings."""
MODULES = [module for name, module in [*sys.modules.items()] if name.startswith(("minitx.nn.", "minitx.models."))]
"""Modules whose functions and classes compute a step."""
CUDNN_DEVICES = ("cuda",)
"""Devices on which torch may choose cuDNN's attention."""


class Programs:
    """The programs of a model, and its linear maps with copied weights."""

    def __init__(self, model: nn.Module) -> None:
        self.positions = max_positions(model) or sys.maxsize  # beyond them, the modules raise an error
        self.by_key: dict[Hashable, Program | None] = {}
        self.ungraphed: set[Hashable] = set()  # shapes of buffers whose graphs are not faster
        self.can_graph = True  # no capture has failed
        self.fused: list[FusedLinear] = []
        self.packed: PackedLinears | None = None  # None until a first step has been searched for maps to fuse
        self.batched = AttentionChoices()

    def update(self) -> None:
        """Copy the weights, which may have changed in place; fused ones first, since these may be packed."""
        for each in (*self.fused, *(self.packed.by_weight.values() if self.packed else ())):
            each.update()


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


def settings(parts: Sequence[nn.Module]) -> Hashable:
    """All that a step depends on besides weights: classes and parts of modules, attributes that they or a user set."""
    found: list[Any] = []
    for part in parts:
        kind, own = type(part), vars(part).items()
        found += [kind, id(getattr(kind, "forward", None))]
        found += [(name, one if isinstance(one, PLAIN) else id(one)) for name, one in own if name not in NO_SETTINGS]
        found += [(name, id(child)) for name, child in part._modules.items()]  # a layer may occur twice
    return tuple(found)


def step_code() -> list[Any]:
    """All that MODULES and their classes define, and the code of functions, which IPython's autoreload replaces."""
    found = [value for each in MODULES for name, value in vars(each).items() if name[:2] != "__"]  # not torch.compile's
    kinds = {each: None for each in found if isinstance(each, type) and each.__module__.startswith("minitx.")}
    found += [value for kind in kinds for value in vars(kind).values()]
    return found + [each.__code__ for each in found if isinstance(each, FunctionType)]


class ReplayedStep:
    """A model's steps of one token per text into one cache. Programs are kept for each model, and serve all caches.

    Args:
        model: has `compute_step`. Its weights and modules do not change while this object is used.
    """

    _programs: ClassVar[WeakKeyDictionary[nn.Module, dict[Any, Programs]]] = WeakKeyDictionary()  # and by state
    _code: ClassVar[list[Any]] = []  # from which the programs were recorded

    def __init__(self, model: Any) -> None:
        self.model = model
        parts = [*model.modules()]
        self._weight = next(model.parameters())
        self._vars = [*map(vars, parts)]
        self._hooks, self._attentions = hooks_and_attentions(parts)
        # The model's own step disables cuDNN's attention (nn/kernels.py): a setting, which a program lacks.
        self._setting = without_cudnn if self._weight.device.type in CUDNN_DEVICES else nullcontext
        if len(code := step_code()) != len(self._code) or not all(map(is_, code, self._code)):
            self._programs.clear()
            ReplayedStep._code = code
        own = [each for part in parts for each in (*part._parameters.values(), *part._buffers.values())]
        weights = tuple((id(each), each.shape, each.dtype, each.device) for each in own if each is not None)
        state, found = (weights, settings(parts)), self._programs.setdefault(model, {})
        if state not in found and all(map(is_own, parts)):
            for other in [each for each in found if each[0] != weights or len(found) >= MAX_STATES]:
                del found[other]  # programs of weights that were replaced, or of too many settings
            found[state] = Programs(model)
        self._known = found.get(state)  # None: the model computes each step itself
        # All that follows is valid with these buffers of the first layer, at these lengths of the cache.
        self._buffers: list[Tensor] | None = None
        self._lengths = range(0)
        self._tensors: list[Tensor | None] = []
        self._program: Program | None = None
        self._key: Hashable = None  # of a program to be recorded
        self._first: Recording | None = None
        self._batched = (False, False)
        self._graph: Any = None  # a GraphedStep
        self._updated = False  # whether the copies have the current weights
        self._since = 0  # the length of the cache when it got these rows
        self._may_capture = False

    def is_plain(self) -> bool:
        """Whether a step is its torch calls and nothing else: no hook, recorded attention, dropout or autocast."""
        plain = not any(map(IS_TRAINING, self._vars)) and not any(self._hooks)
        return plain and have_own_function(self._attentions) and not uses_autocast(self._weight)

    def __call__(self, ids: Tensor, cache: Any) -> Tensor:
        """Logits [B, 1, V] after one more token for each row, [B, 1]; with W beams, [B, W, V] after [B, W]."""
        if self._known is None or not self.is_plain():
            self._lengths = range(0)
            return self.model.compute_step(ids, cache)
        if cache.length not in self._lengths[:1] or cache.layers[0].buffers is not self._buffers:
            self._enter(self._known, ids, cache)
        self._lengths = self._lengths[ids.size(1) :]  # a shorter cache has dropped tokens
        if self._graph is not None:
            return self._graph(ids, cache)
        if self._program is not None:
            if self._may_capture and cache.length - self._since >= STEPS_BEFORE and len(self._lengths) >= STEPS_AFTER:
                return self._capture(self._known, self._program, ids, cache)
            return self._run(self._program, ids, cache)
        if self._key is None:
            return self.model.compute_step(ids, cache)
        recording = Recording(self.model, cache, ids, self._known.fused, self._known.packed, self._batched)
        if self._known.packed is None:
            self._known.fused, self._known.packed = fusible(recording.calls), PackedLinears()
            return recording.logits
        if self._first is not None:
            if len(self._known.by_key) >= MAX_PROGRAMS:
                self._known.by_key.clear()
            program = program_of(self._first, recording)
            repeats = program is not None and self._repeats(program, recording, cache, ids.size(1))
            self._known.by_key[self._key] = self._program = program if repeats else None
            self._key = None
        self._first = recording
        return recording.logits

    def _run(self, program: Program, ids: Tensor, cache: Any) -> Tensor:
        """Replay a program for one step."""
        try:
            with self._setting():
                logits, *after = program(*lengths(cache), ids, *state(cache), *self._tensors)
        except IndexError:  # an id that the embedding does not have: the model's own error
            return self.model.compute_step(ids, cache)
        for name, tensor in zip(cache.parts, after, strict=True):
            setattr(cache, name, tensor)
        advance(cache, ids.size(1))
        return logits

    def _capture(self, known: Programs, program: Program, ids: Tensor, cache: Any) -> Tensor:
        """Replay a program for one step, and capture a graph for the next ones if that is faster."""
        from minitx.compilation.graphed_step import graphed, is_alone, timed  # which needs the extras of hardware

        self._may_capture = False
        shape, windows = cache.layers[0].buffers[0].shape, {layer.window for layer in cache.layers.values()}
        run = partial(self._run, program, ids, cache)
        if not known.can_graph or shape in known.ungraphed or windows != {None} or not is_alone():
            return run()
        logits, seconds = timed(run, ids.device)
        try:
            self._graph = graphed(self.model, ids, cache, logits, seconds)
        except Exception:
            known.can_graph = False
        if self._graph is None:
            known.ungraphed.add(shape)
        return logits

    def _repeats(self, program: Program, recording: Recording, cache: Any, tokens: int) -> bool:
        """Whether a program has the logits of a step that has just been recorded.

        It does not if a user's module uses random numbers, or changes a tensor in place by a function whose name
        does not show it. Keys and values remain those of the step.
        """
        with newest_restored(cache, tokens), self._setting():
            logits = program(*recording.lengths, *recording.inputs)[0]
        return equal_but_for_rounding(logits, recording.logits)

    def _enter(self, known: Programs, ids: Tensor, cache: Any) -> None:
        """Look up the program for the next steps that are alike, or decide to record it."""
        self._graph = None  # its memory is free for larger buffers
        for layer in cache.layers.values():
            if layer.used + ids.size(1) > layer.buffers[0].size(2):
                layer.free_capacity(*(buffer[:, :, : ids.size(1)] for buffer in layer.buffers))
        (alike, rule), tokens, text = steps_alike(cache), ids.size(1), cache.ids.size(-1)
        alike, dropped = min(alike, tokens * (known.positions - text)), text - cache.length
        if self._attentions:
            self._batched = known.batched.choose(cache, self._attentions[0].n_heads, tokens)
        # Both lengths of a single beam grow by one: a program can tell them apart only by their difference.
        key = ids.device, ids.shape, type(cache), rule, dropped if tokens == 1 else None, self._batched
        before, self._buffers, self._tensors = self._buffers, cache.layers[0].buffers, tensors(cache)
        self._lengths = range(cache.length, cache.length + alike - tokens + 1)
        self._program = known.by_key.get(key) if alike >= tokens else None
        self._key = key if key not in known.by_key and alike >= MIN_STEPS * tokens else None
        if not self._updated and (self._program or self._key):
            known.update()
            self._updated = True
        self._first = None
        self._may_capture = can_capture(cache)
        rows, _, capacity, _ = self._buffers[0].shape
        if before is None or before[0].size(0) != rows or before[0].size(2) >= capacity:
            self._since = cache.length  # otherwise the same rows have larger buffers


REPLAYED: WeakKeyDictionary[Cache, ReplayedStep] = WeakKeyDictionary()
"""The object that computes the further steps for each cache."""


def step(model: Any, ids: Tensor, cache: Any, keep: Tensor | None = None) -> Tensor:
    """A model's step, replayed in inference mode after the prompt if it has one token per text."""
    one = type(cache) is BeamCache or (type(cache) is Cache and ids.size(1) == 1)
    if not (one and keep is None and cache.length and torch.is_inference_mode_enabled()):
        REPLAYED.pop(cache, None)
        return model.compute_step(ids, cache, keep)
    if (own := REPLAYED.get(cache)) is None or own.model is not model:
        own = REPLAYED[cache] = ReplayedStep(model)
    return own(ids, cache)
