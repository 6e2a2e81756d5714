"""Shared by the suite: small models whose every weight counts, and torch's own modules with our weights in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache, partial
from typing import Any, TypeVar

import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from chromium import CHROMIUM, QUIET
from minitx.config.schema import ModelConfig
from minitx.models.builder import build_model
from minitx.models.transformers import Transformer
from minitx.nn import POSITIONS, DecoderLayer, EncoderLayer, FeedForward, MultiHeadAttention, NoPositions

# Tensors here are tiny: on a shared machine threads spend their time waiting for each other. In what tests start, too.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")

Module = TypeVar("Module", bound=nn.Module)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device", default="cpu", help="where tests of nn, models and generation make their tensors: cuda"
    )


class OnDevice(TorchFunctionMode):
    """Tensors are made on a device unless the call names another one; random ones from a CPU generator are moved."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function not in _device_constructors() or kwargs.get("device") is not None:
            return function(*args, **kwargs)
        if kwargs.get("generator") is not None:
            return function(*args, **kwargs).to(self.device)
        return function(*args, **{**kwargs, "device": self.device})


@pytest.fixture(autouse=True)
def on_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """What --device asks for. Training finds a GPU by itself, and draws its batches on the CPU."""
    device = request.config.getoption("--device")
    if device == "cpu" or "training" in request.path.parts:
        yield
        return
    with OnDevice(device):
        yield


def roughen_weights(module: Module) -> Module:
    """Move every parameter, so that biases are not zero and norms are not the identity; and no dropout: eval()."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module.eval()


class AllHooks(NoPositions):
    """A scheme that uses every hook, each with its own use of the ids, so that no hook may be forgotten or misfed."""

    absolute = True

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool) -> None:
        super().__init__(d_model, n_heads, d_head, causal)
        self.slopes = nn.Parameter(torch.zeros(n_heads))

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        return x + torch.sin(pos[..., None] * torch.arange(1, x.size(-1) + 1, device=x.device, dtype=x.dtype))

    def prepare(self, q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, Tensor]:
        turns = 1 + 0.5 * torch.sin(q_pos.float())
        return turns[:, None, :, None], (q_pos[:, :, None] - k_pos[:, None, :]).abs()[:, None]  # [B or 1, 1, T, S]

    def rotate(self, x: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        return x * prepared[0].to(x.dtype)

    def bias(self, q: Tensor | None, k: Tensor | None, prepared: tuple[Tensor, Tensor]) -> Tensor:
        return self.slopes[:, None, None] * prepared[1]


SMALL_IDS: dict[str, dict[str, Any]] = {"randomized": {"range": 64, "longest": 40}, "coupled": {"after": (3, 5)}}
"""Options under which a way to number shows itself in short sequences of few tokens."""


def build_tiny(
    architecture: str, position: str = "none", position_ids: str = "consecutive", **changes: Any
) -> Transformer:
    return deepcopy(_build_once(architecture, position, position_ids, tuple(changes.items())))


@cache
def _build_once(
    architecture: Any, position: str, position_ids: str, changes: tuple[tuple[str, Any], ...]
) -> Transformer:
    """A copy is 50 times cheaper than a model."""
    sizes = {"d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 24, "vocab_size": 11}
    numbering = {"name": position_ids, **SMALL_IDS.get(position_ids, {})}
    config = ModelConfig(
        architecture=architecture, position={"name": position}, position_ids=numbering, **{**sizes, **dict(changes)}
    )
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.setitem(POSITIONS, "all_hooks", AllHooks)
        torch.manual_seed(0)  # apart, so that a test draws the same numbers whoever built the model first
        return roughen_weights(build_model(config))


@pytest.fixture
def roughen() -> Callable[[Module], Module]:
    return roughen_weights


@pytest.fixture
def tiny() -> Callable[..., Transformer]:
    """tiny(architecture, position name, position_ids name, **other keys of ModelConfig): a small model in eval()."""
    return build_tiny


@pytest.fixture
def all_hooks() -> type[NoPositions]:
    """The scheme that tiny knows as "all_hooks"."""
    return AllHooks


@pytest.fixture
def twin() -> Callable[[nn.Module], nn.Module]:
    """twin(our attention, layer or stack): torch's module of the same kind with the same weights, in train()."""
    return torch_twin


def torch_twin(ours: nn.Module) -> nn.Module:
    if isinstance(ours, MultiHeadAttention):
        theirs: nn.Module = nn.MultiheadAttention(ours.q_proj.in_features, ours.n_heads, batch_first=True)
        _copy_attention(ours, theirs)
    elif isinstance(ours, EncoderLayer):
        theirs = _make_layer(nn.TransformerEncoderLayer, ours, ours.add_norm_attn.norm_first)
        _copy_attention(ours.self_attn, theirs.self_attn)
        _copy_ffn(ours.ffn, theirs)
        theirs.norm1.load_state_dict(ours.add_norm_attn.norm.state_dict())
        theirs.norm2.load_state_dict(ours.add_norm_ffn.norm.state_dict())
    elif isinstance(ours, DecoderLayer):
        theirs = _make_layer(nn.TransformerDecoderLayer, ours, ours.add_norm_self.norm_first)
        _copy_attention(ours.self_attn, theirs.self_attn)
        _copy_attention(ours.cross_attn, theirs.multihead_attn)
        _copy_ffn(ours.ffn, theirs)
        theirs.norm1.load_state_dict(ours.add_norm_self.norm.state_dict())
        theirs.norm2.load_state_dict(ours.add_norm_cross.norm.state_dict())
        theirs.norm3.load_state_dict(ours.add_norm_ffn.norm.state_dict())
    else:
        raise TypeError(type(ours))
    return theirs.train()  # in eval torch may take a fast path that zeroes padding; there is no dropout anyhow


def _make_layer(kind: Any, ours: Any, norm_first: bool) -> Any:
    activation = {nn.ReLU: "relu", nn.GELU: "gelu"}[type(ours.ffn.activation)]
    make = partial(kind, dropout=0.0, activation=activation, batch_first=True, norm_first=norm_first)
    return make(ours.self_attn.q_proj.in_features, ours.self_attn.n_heads, ours.ffn.up_proj.out_features)


@torch.no_grad()
def _copy_attention(ours: Any, theirs: Any) -> None:
    for kind in ("weight", "bias"):
        projections = (ours.q_proj, ours.k_proj, ours.v_proj)
        getattr(theirs, f"in_proj_{kind}").copy_(torch.cat([getattr(part, kind) for part in projections]))
        getattr(theirs.out_proj, kind).copy_(getattr(ours.o_proj, kind))


def _copy_ffn(ours: FeedForward, theirs: Any) -> None:
    theirs.linear1.load_state_dict(ours.up_proj.state_dict())
    theirs.linear2.load_state_dict(ours.down_proj.state_dict())


@pytest.fixture
def saved_figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that are saved."""
    figures: list[Figure] = []
    save = Figure.savefig

    def remember(self: Figure, *args: object, **kwargs: object) -> None:
        figures.append(self)
        save(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Figure, "savefig", remember)
    return figures


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A chromium without a window."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield running
        running.close()
