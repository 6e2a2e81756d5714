"""What all layers of a stack have in common is computed once per forward, before the first layer."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from minitx.nn import Stack
from minitx.nn.layers import Layer
from small_models import ARCHITECTURES, SCHEMES, build_tiny, draw, keep_of, pairwise, run

LENGTH, LAYERS = 7, 3
BY_LAYER = {"window": (3, None)}  # three layers: 3, all, 3
REBUILDING = {"cos", "sin", "arange", "le", "lt", "ge", "gt", "eq", "ne", "logical_and", "where", "embedding"}
"""Operations that make angles, indices, masks and bias tables."""


class Operations(TorchDispatchMode):
    """Counts the operations that run while layers compute, and how often each stack's schemes are prepared."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inside, self.counts, self.prepared = 0, Counter[str](), Counter[str]()
        for name, part in model.named_modules():
            if isinstance(part, Layer):
                part.register_forward_pre_hook(lambda *_: self.enter(1))
                part.register_forward_hook(lambda *_: self.enter(-1))
            if isinstance(part, Stack):
                for scheme in {layer.self_attn.position for layer in part.layers}:
                    scheme.prepare = partial(self.prepare, name, scheme.prepare)

    def enter(self, layers: int) -> None:
        self.inside += layers

    def prepare(self, stack: str, own: Callable[..., Any], *args: Any) -> Any:
        self.prepared[stack] += 1
        return own(*args)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.inside:
            self.counts[function.__name__.split(".")[0]] += 1
        return function(*args, **(kwargs or {}))


OPTIONS: list[dict[str, Any]] = [{}, {"window": 3, "n_kv_heads": 1, "qk_norm": True}, {"softcap": 5.0}, BY_LAYER]


@pairwise({"options": OPTIONS, "name": SCHEMES, "architecture": [*ARCHITECTURES]})
def test_a_forward_and_a_step_prepare_once_per_stack_and_window(options: dict, name: str, architecture: str) -> None:
    """A step does so for the new tokens and all keys."""
    model, ids = build_tiny(architecture, name, n_layers=LAYERS, **options), draw(2, LENGTH)
    keep = None if "softcap" in options else keep_of(LENGTH, LENGTH - 2, left=True)
    operations = Operations(model)
    rebuilding = REBUILDING - ({"where"} if name == "transformer_xl" else set())
    times = 2 if options is BY_LAYER else 1
    with operations:
        run(model, ids, ids, keep, keep)
    assert operations.prepared == dict.fromkeys({"encoder", "decoder"} & {*dir(model)}, times)
    assert not rebuilding & {*operations.counts}
    if architecture == "encoder_only":
        return
    cache = model.start(*([ids] if architecture == "encoder_decoder" else []))
    with torch.no_grad():
        model.step(ids, cache)
        for tokens in (1, 2):
            operations.prepared.clear()
            operations.counts.clear()
            with operations:
                model.step(ids[:, :tokens], cache)
            assert operations.prepared == {"decoder": times}
            assert not rebuilding & {*operations.counts}
