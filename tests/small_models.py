"""Small models whose every weight counts, and what tests of models have in common."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from itertools import combinations, product
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils._device import DeviceContext, _device_constructors

from minitx.config.schema import ModelConfig
from minitx.models.builder import build_model
from minitx.models.transformers import DecoderOnly, EncoderDecoder, EncoderOnly, Transformer
from minitx.nn import POSITION_IDS, POSITIONS, MultiHeadAttention, NoPositions, scaled_dot_product_attention

Module = TypeVar("Module", bound=nn.Module)
VOCAB = 11
ARCHITECTURES = {"encoder_decoder": EncoderDecoder, "decoder_only": DecoderOnly, "encoder_only": EncoderOnly}
every_architecture = pytest.mark.parametrize("architecture", ARCHITECTURES)
DECODERS = ["decoder_only", "encoder_decoder"]
every_decoder = pytest.mark.parametrize("architecture", DECODERS)
SCHEMES = [*POSITIONS, "all_hooks"]
every_scheme = pytest.mark.parametrize("name", SCHEMES)
PAIRINGS = [(name, "consecutive") for name in SCHEMES]
PAIRINGS += [(name, ids) for name in ("learned", "rope", "all_hooks") for ids in POSITION_IDS if ids != "consecutive"]
every_pairing = pytest.mark.parametrize(("name", "numbering"), PAIRINGS)
"""Every scheme, and every numbering with an absolute scheme, a rotation and all hooks."""
every_direction = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])


def pairwise(axes: Mapping[str, Sequence[Any]]) -> pytest.MarkDecorator:
    """Parametrize a test by few rows, in which every two values of different axes occur together. A key may name
    several arguments, as "name,numbering"; its values are tuples then."""
    rows = [*product(*(range(len(values)) for values in axes.values()))]
    pairs = {row: {*combinations(enumerate(row), 2)} for row in rows}
    missing, arguments = set().union(*pairs.values()), []
    while missing:
        best = max(rows, key=lambda row: len(missing & pairs[row]))
        missing -= pairs[best]
        chosen = [(key, values[index]) for (key, values), index in zip(axes.items(), best, strict=True)]
        arguments.append([part for key, value in chosen for part in (value if "," in key else (value,))])
    return pytest.mark.parametrize(",".join(axes), arguments, ids=str)


class OnDevice(DeviceContext):
    """Tensors are made on a device unless the call names another one; random ones from a CPU generator are moved.
    Not in conftest.py: torch.compile imports the file again, by a name that only one file may have."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if function in _device_constructors() and options.get("generator") and not options.get("device"):
            return function(*args, **options).to(self.device)
        return super().__torch_function__(function, types, args, kwargs)


def close(one: Any, other: Any, tolerance: float = 1e-5) -> None:
    """Compare tensors, or sequences or mappings of tensors."""
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, check_dtype=False)


def draw(*shape: int) -> Tensor:
    """Random tokens."""
    return torch.randint(0, VOCAB, shape)


def keep_of(*lengths: int, width: int | None = None, left: bool = False) -> Tensor:
    """keep [B, T] of rows of these lengths, padded to the longest or to a width."""
    steps = torch.arange(width or max(lengths))
    return (steps.flip(0) if left else steps) < torch.tensor(lengths)[:, None]


def ragged_inputs(architecture: str) -> tuple[Tensor, ...]:
    """Arguments of a model's forward: rows of different lengths, padded."""
    if architecture == "encoder_decoder":
        return draw(3, 6), draw(3, 5), keep_of(6, 3, 5), keep_of(2, 5, 4)
    return draw(3, 5), keep_of(2, 5, 4)


def untouched(model: nn.Module) -> bool:
    """Whether a model has no hooks, and its attentions have their own function."""
    hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())
    attentions = [part for part in model.modules() if isinstance(part, MultiHeadAttention)]
    return hooks == 0 and all(part.attention is scaled_dot_product_attention for part in attentions)


def run(model: Any, source: Tensor, target: Tensor, source_keep: Any = None, keep: Any = None) -> Tensor:
    """Logits; the source is for a model that reads one."""
    return model(source, target, source_keep, keep) if hasattr(model, "encode") else model(target, keep)


def reach(model: Any, *arguments: Tensor, **options: Any) -> list[Tensor]:
    """Which tokens the logits depend on, by gradient: bool [B, T, S] for the last ids embedded, then for a source."""
    seen: list[Tensor] = []
    handle = model.embedding.register_forward_hook(lambda _module, _ids, out: seen.append(out))
    logits = model(*arguments, **options)
    handle.remove()
    towards = torch.randn_like(logits)
    times = range(logits.size(1))
    gradients = [torch.autograd.grad(logits[:, t], seen[::-1], towards[:, t], retain_graph=True) for t in times]
    return [torch.stack([part.abs().sum(-1) > 0 for part in parts], dim=1) for parts in zip(*gradients, strict=True)]


def roughen_weights(module: Module) -> Module:
    """Move every parameter, so that biases are not zero and norms are not the identity; and no dropout: eval()."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return module.eval()


class AllHooks(NoPositions):
    """A scheme with every hook, each with its own use of the ids, so that a hook left out or given other ids shows."""

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
"""Options with which a numbering has an effect in short sequences of few tokens."""


def build_tiny(architecture: str, position: str = "none", position_ids: str = "consecutive", **changes: Any) -> Any:
    return deepcopy(_build_once(architecture, position, position_ids, tuple(changes.items()), torch.empty(0).device))


@cache
def _build_once(architecture: Any, position: str, position_ids: str, changes: tuple[Any, ...], _: Any) -> Transformer:
    """A copy is 50 times cheaper than a model. The last argument is the device that new tensors have."""
    sizes = {"d_model": 16, "n_heads": 4, "n_layers": 2, "d_ff": 24, "vocab_size": VOCAB}
    numbering = {"name": position_ids, **SMALL_IDS.get(position_ids, {})}
    values = {"position": {"name": position}, "position_ids": numbering, **sizes, **dict(changes)}
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.setitem(POSITIONS, "all_hooks", AllHooks)
        torch.manual_seed(0)  # apart, so that a test draws the same numbers whichever test built the model first
        return roughen_weights(build_model(ModelConfig(architecture=architecture, **values)))
