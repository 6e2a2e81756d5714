"""Position schemes: how the order of tokens enters a model. One interface, one registry, and the schemes that change
embeddings, queries or keys; those that add a bias to scores are in bias_positions.py.

Legend: B batch, T queries, S keys, H heads, G key-value heads, K d_head, D d_model, W frequencies. Hooks take position
ids (position_ids.py), never lengths, so padding, caches and unusual numberings need no second method. To add a scheme,
subclass NoPositions, override one or two hooks and register the class under its `model.position.name`.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitx.nn.errors import require

POSITIONS: dict[str, type["NoPositions"]] = {}
"""Every scheme by its name in the YAML."""
GIVEN = ("d_model", "n_heads", "d_head", "causal")
"""Constructor arguments that come from the model; all others are options of the config section."""

Kind = TypeVar("Kind", bound=type)


def registration(registry: dict[str, Any]) -> Callable[[str], Callable[[Kind], Kind]]:
    """The decorator register(name), which adds a class; an OptionError if minitx has another one of this name."""

    def register(name: str) -> Callable[[Kind], Kind]:
        def add(kind: Kind) -> Kind:
            module = registry.get(name, kind).__module__
            free = module == kind.__module__ or not module.startswith("minitx.")
            require(free, f"{kind.__name__} cannot be registered as {name}: minitx has a {name} of its own")
            registry[name] = kind
            return kind

        return add

    return register


register = registration(POSITIONS)
"""Decorator that makes a scheme available as model.position.name."""


@register("none")
class NoPositions(nn.Module):
    """No positions at all: the interface, with hooks that do nothing.

    Without positions, attention without a mask cannot distinguish orders of the tokens; a causal decoder can still
    count the tokens before it (Haviv et al. 2022).
    """

    max_len: int | None = None
    """The number of positions that the scheme can distinguish; None for any number."""
    absolute: ClassVar[bool] = False
    """Whether adding a constant to every id changes the result."""
    shared: ClassVar[bool] = True
    """Whether one object serves a whole stack; otherwise each layer has its own, with its own weights."""
    bias_per_layer: ClassVar[bool] = False
    """Whether `bias` reads queries and keys, and `prepare` no weights. Otherwise the stack calls `bias`, with None."""
    score_biases: ClassVar[tuple[str, ...]] = ()
    """Names of parameters that are biases of attention scores, whatever their shape: they get no weight decay."""
    initialized: ClassVar[bool] = False
    """Whether the constructor sets the initial weights; otherwise build_model does, as for position tables."""

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool) -> None:
        super().__init__()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move with the model, but keep the dtype of buffers: in half precision large angles would be far off."""
        buffers = {name: buffer for name, buffer in self._buffers.items() if buffer is not None}
        super()._apply(fn, recurse)
        for name, buffer in buffers.items():
            setattr(self, name, buffer.to(getattr(self, name).device))
        return self

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        """Add positions to token embeddings: x [B, T, D], pos [B, T] or [1, T]; returns [B, T, D]."""
        return x

    def prepare(self, q_pos: Tensor, k_pos: Tensor) -> Any:
        """Compute what rotate and bias need, once per object and forward: angles, distances, a bias table.

        q_pos [B or 1, T] are the ids of the queries and new keys, k_pos [B or 1, S] those of all keys.
        """
        return None

    def rotate(self, x: Tensor, prepared: Any) -> Tensor:
        """Rotate queries or new keys: x [B, H or G, T, K]; returns the same shape, or another width for both."""
        return x

    def bias(self, q: Tensor | None, k: Tensor | None, prepared: Any) -> Tensor | None:
        """Bias of the scaled scores, [B or 1, H, T, S]; q [B, H, T, K] and k [B, G, S, K] if `bias_per_layer`."""
        return None


class SinusoidBase(NoPositions):
    """Base of schemes made of sines and cosines: pair j of `size` dimensions has the frequency base^(-2j / size)."""

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool, base: float, size: int) -> None:
        super().__init__(d_model, n_heads, d_head, causal)
        require(base > 1.0, f"model.position.base must be larger than 1, got {base}")
        require(size % 2 == 0, f"model.d_model must be even for the sines and cosines of model.position, got {size}")
        device = "cpu" if torch.empty(0).is_meta else None  # no state dict has these numbers
        frequencies = torch.exp(-math.log(base) * torch.arange(0, size, 2, dtype=torch.float32, device=device) / size)
        self.frequencies: Tensor = nn.Buffer(frequencies, persistent=False)  # radians per position, fp32 [W]

    def angles(self, pos: Tensor) -> Tensor:
        """Compute the angle of each frequency at each id: pos [...] to fp32 [..., W]."""
        return pos[..., None] * self.frequencies.to(pos.device)


@register("sinusoidal")
class SinusoidalPositions(SinusoidBase):
    """Sines and cosines of geometrically spaced wavelengths, added to the embeddings (Vaswani et al. 2017, 3.5).

    Dimension 2j of position p is sin(p / base^(2j / D)), 2j + 1 its cosine: a shift of the position rotates each pair.

    Args:
        base: wavelengths grow from 2 pi towards 2 pi base.
        halves: all sines first, then all cosines (tensor2tensor, Marian).
    """

    absolute = True

    def __init__(
        self, d_model: int, n_heads: int, d_head: int, causal: bool, base: float = 10000.0, halves: bool = False
    ) -> None:
        super().__init__(d_model, n_heads, d_head, causal, base, d_model)
        self.halves = halves

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        angles = self.angles(pos)
        parts = angles.sin(), angles.cos()
        sinusoids = torch.cat(parts, dim=-1) if self.halves else torch.stack(parts, dim=-1).flatten(-2)
        return x + sinusoids.to(x.dtype)


@register("learned")
class LearnedPositions(NoPositions):
    """A trained vector for each position, added to the embeddings (Gehring et al. 2017; GPT-2, BERT).

    max_len is the size of the table. A longer input raises a ValueError; on a CPU, so does any larger id.
    """

    absolute = True

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool, max_len: int = 512) -> None:
        super().__init__(d_model, n_heads, d_head, causal)
        require(max_len >= 1, f"model.position.max_len must be at least 1, got {max_len}")
        self.max_len: int = max_len
        self.table = nn.Embedding(max_len, d_model)

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        try:
            if not torch.compiler.is_compiling() and pos.size(-1) > self.max_len and pos.max() >= self.max_len:
                raise IndexError  # as on a CPU; a GPU would end the process
            return x + self.table(pos).to(x.dtype)
        except IndexError:
            raise ValueError(f"ids {pos.min()} to {pos.max()} must fit model.position.max_len {self.max_len}") from None


@register("rope")
class RotaryPositions(SinusoidBase):
    """Rotation of queries and keys by an angle for each pair of dimensions (RoPE; Su et al. 2021).

    Positions enter their product as a distance alone. Pairs are (j, j + R / 2) of R rotated dimensions, as in Llama.

    Args:
        base: wavelengths grow from 2 pi towards 2 pi base.
        fraction: share of each head's dimensions that is rotated.
        scaling: how to extend beyond the trained length. linear: positions divided by factor (Chen et al. 2023); ntk: a
            base enlarged so that only low frequencies are stretched (bloc97 2023); llama3: wavelengths above
            original_max_len / low_freq_factor stretched in full, below original_max_len / high_freq_factor not at all,
            those between in proportion (Llama 3.1; Dubey et al. 2024).
        factor: by how much to stretch.
        low_freq_factor: for llama3.
        high_freq_factor: for llama3.
        original_max_len: for llama3, the length that the model was first trained with.
    """

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        d_head: int,
        causal: bool,
        base: float = 10000.0,
        fraction: float = 1.0,
        scaling: Literal["none", "linear", "ntk", "llama3"] = "none",
        factor: float = 1.0,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
        original_max_len: int = 8192,
    ) -> None:
        size = int(round(d_head * fraction, 6))  # 100 * 0.58 is slightly less than 58
        fits = 0.0 < fraction <= 1.0 and size >= 2 and size % 2 == 0
        expected = f"of d_head {d_head} must be an even number of dimensions"
        require(fits, f"model.position.fraction {expected}, got {fraction}")
        known = ("none", "linear", "ntk", "llama3")
        require(scaling in known, f"model.position.scaling must be one of {', '.join(known)}, got {scaling!r}")
        require(1.0 <= factor <= 1e6, f"model.position.factor must lie between 1 and 1,000,000, got {factor}")
        if scaling == "ntk":
            require(size > 2, f"model.position.scaling ntk needs more than two rotated dimensions, got {size}")
            base = base * factor ** (size / (size - 2))
        super().__init__(d_model, n_heads, d_head, causal, base, size)
        if scaling == "linear":
            self.frequencies /= factor
        if scaling == "llama3":
            fits, got = 0.0 < low_freq_factor < high_freq_factor, f"got {low_freq_factor} and {high_freq_factor}"
            expected = "must be positive and below model.position.high_freq_factor"
            require(fits, f"model.position.low_freq_factor {expected}, {got}")
            require(original_max_len >= 1, f"model.position.original_max_len must be positive, got {original_max_len}")
            turns = original_max_len * self.frequencies / (2 * math.pi)  # of each pair over the first trained length
            kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
            self.frequencies = (1.0 - kept) * self.frequencies / factor + kept * self.frequencies

    def prepare(self, q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, Tensor]:
        angles = self.angles(q_pos)[:, None]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)  # each fp32 [B, 1, T, R]

    def rotate(self, x: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = prepared[0].to(x.dtype), prepared[1].to(x.dtype)
        if (size := cos.size(-1)) >= x.size(-1):
            return torch.addcmul(x * cos, x.roll(size // 2, dims=-1), sin)
        return torch.cat((self.rotate(x[..., :size], prepared), x[..., size:]), dim=-1)


@register("pope")
class PolarPositions(SinusoidBase):
    """Lengths from the content alone, angles from the position alone (PoPE; Gopalakrishnan et al. 2025).

    Every dimension x of a query or key becomes softplus(x) (cos, sin) of its own frequency, so the score is a sum of
    softplus(q) softplus(k) cos(distance x frequency), and keys are twice as wide. The paper's optional trained offset
    of the keys' angles is left out. base is that of SinusoidalPositions.
    """

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool, base: float = 10000.0) -> None:
        super().__init__(d_model, n_heads, d_head, causal, base, 2 * d_head)

    def prepare(self, q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, Tensor]:
        angles = self.angles(q_pos)[:, None]
        scale = 2.0**0.25  # of queries and of keys: scores are divided by sqrt(2 K)
        return scale * angles.cos(), scale * angles.sin()  # each fp32 [B, 1, T, K]

    def rotate(self, x: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        lengths = F.softplus(x).to(x.dtype)  # CUDA's autocast computes softplus in fp32 and returns fp32
        return torch.cat([lengths * part.to(x.dtype) for part in prepared], dim=-1)  # [B, H or G, T, 2 K]
