"""Position schemes: how the order of tokens enters a model. One interface and one registry.

Legend: B batch, T queries, S keys, H heads, G key-value heads, K d_head, D d_model, W frequencies. Hooks take position
ids (position_ids.py), never lengths, so padding, caches and unusual numberings need no second method. To add a scheme,
subclass NoPositions, override one or two hooks and register the class under its `model.position.name`.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from minitx.nn.errors import require

POSITIONS: dict[str, type["NoPositions"]] = {}
"""Every scheme by its name in the YAML."""
GIVEN = ("d_model", "n_heads", "d_head", "causal")
"""Constructor arguments that come from the model; all others are options of the config section."""

Scheme = TypeVar("Scheme", bound="type[NoPositions]")


def register(name: str) -> Callable[[Scheme], Scheme]:
    """Make a scheme available as model.position.name."""

    def add(scheme: Scheme) -> Scheme:
        POSITIONS[name] = scheme
        return scheme

    return add


@register("none")
class NoPositions(nn.Module):
    """No positions at all: the interface, with hooks that do nothing.

    Without positions, attention without a mask cannot tell one order from another; a causal decoder can
    still count the tokens before it (Haviv et al. 2022, "Transformer language models without positional encodings").
    """

    max_len: int | None = None
    """The number of positions that the scheme can tell apart; None for any number."""
    absolute: ClassVar[bool] = False
    """Whether adding a constant to every id changes the result."""
    shared: ClassVar[bool] = True
    """Whether one object serves a whole stack; otherwise each layer has its own, with its own weights."""
    bias_per_layer: ClassVar[bool] = False
    """Whether `bias` reads queries and keys. Otherwise the stack calls it once, with None for both."""
    score_biases: ClassVar[tuple[str, ...]] = ()
    """Names of parameters that are biases of attention scores, whatever their shape: they get no weight decay."""

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
        """Compute what rotate and bias need, once per stack and forward: angles, distances, a bias table.

        q_pos [B or 1, T] are the ids of the queries and new keys, k_pos [B or 1, S] those of all keys.
        """
        return None

    def rotate(self, x: Tensor, prepared: Any) -> Tensor:
        """Apply rotary embeddings to queries or new keys: x [B, H or G, T, K]; returns the same shape."""
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
        frequencies = torch.exp(-math.log(base) * torch.arange(0, size, 2, dtype=torch.float32) / size)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.frequencies: Tensor  # radians per position, fp32 [W]

    def angles(self, pos: Tensor) -> Tensor:
        """Compute the angle of each frequency at each id: pos [...] to fp32 [..., W]."""
        return pos[..., None] * self.frequencies


@register("sinusoidal")
class SinusoidalPositions(SinusoidBase):
    """Sines and cosines of geometrically spaced wavelengths, added to the embeddings (Vaswani et al. 2017, 3.5).

    Dimension 2j of position p is sin(p / base^(2j / D)) and dimension 2j + 1 its cosine: a shift of the position
    is then a rotation of each pair.

    Args:
        base: the longest wavelength is 2 pi base.
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

    max_len is the size of the table. Larger ids raise a ValueError on a CPU.
    """

    absolute = True

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool, max_len: int = 512) -> None:
        super().__init__(d_model, n_heads, d_head, causal)
        require(max_len >= 1, f"model.position.max_len must be at least 1, got {max_len}")
        self.max_len: int = max_len
        self.table = nn.Embedding(max_len, d_model)

    def embed(self, x: Tensor, pos: Tensor) -> Tensor:
        try:
            return x + self.table(pos).to(x.dtype)
        except IndexError:  # raised on a CPU; a GPU ends the process
            raise ValueError(
                f"a sequence of {int(pos.max()) + 1} tokens is longer than the table of learned positions: "
                f"model.position.max_len is {self.max_len}"
            ) from None


@register("rope")
class RotaryPositions(SinusoidBase):
    """Rotation of queries and keys by an angle for each pair of dimensions (RoPE; Su et al. 2021).

    Their product then depends on the difference of positions alone. Pairs are (j, j + R / 2) of the R rotated
    dimensions, as in Llama.

    Args:
        base: the longest wavelength is 2 pi base.
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
        size = int(d_head * fraction)
        fits = 0.0 < fraction <= 1.0 and size >= 2 and size % 2 == 0
        require(
            fits, f"model.position.fraction of d_head {d_head} must be an even number of dimensions, got {fraction}"
        )
        require(factor >= 1.0, f"model.position.factor must be at least 1, got {factor}")
        if scaling == "ntk":
            require(size > 2, f"model.position.scaling ntk needs more than two rotated dimensions, got {size}")
            base = base * factor ** (size / (size - 2))
        super().__init__(d_model, n_heads, d_head, causal, base, size)
        if scaling == "linear":
            self.frequencies /= factor
        if scaling == "llama3":
            require(
                0.0 < low_freq_factor < high_freq_factor,
                "model.position.low_freq_factor must be positive and below model.position.high_freq_factor, got "
                f"{low_freq_factor} and {high_freq_factor}",
            )
            turns = original_max_len * self.frequencies / (2 * math.pi)  # of each pair over the first trained length
            kept = ((turns - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0)
            self.frequencies = (1.0 - kept) * self.frequencies / factor + kept * self.frequencies

    def prepare(self, q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, Tensor]:
        angles = self.angles(q_pos)[:, None]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)  # each fp32 [B, 1, T, R]

    def rotate(self, x: Tensor, prepared: tuple[Tensor, Tensor]) -> Tensor:
        cos, sin = prepared[0].to(x.dtype), prepared[1].to(x.dtype)
        size = cos.size(-1)
        if size == x.size(-1):
            return torch.addcmul(x * cos, x.roll(size // 2, dims=-1), sin)
        return torch.cat((self.rotate(x[..., :size], prepared), x[..., size:]), dim=-1)


@register("alibi")
class AlibiPositions(NoPositions):
    """A penalty that grows with distance, with a slope for each head (ALiBi; Press et al. 2022).

    A causal mask leaves the past only, so the same absolute distance serves both directions.
    """

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool) -> None:
        super().__init__(d_model, n_heads, d_head, causal)
        self.register_buffer("slopes", torch.tensor(_slopes(n_heads)), persistent=False)  # [H]
        self.slopes: Tensor

    def prepare(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return -self.slopes[:, None, None] * _distance(q_pos, k_pos).abs()[:, None]  # [B, H, T, S]

    def bias(self, q: Tensor | None, k: Tensor | None, prepared: Tensor) -> Tensor:
        return prepared


@register("t5")
class T5Positions(NoPositions):
    """A trained bias for each head and bucket of distances: exact up to some, then logarithmic (Raffel et al. 2020).

    Args:
        buckets: number of buckets; without causality half of them for each direction.
        max_distance: where the last bucket begins.
        bidirectional: with causality too half of the buckets for each direction: coupled ids of earlier tokens may be
            larger.
    """

    score_biases = ("table.weight",)

    def __init__(
        self, d_model: int, n_heads: int, d_head: int, causal: bool, buckets: int = 32, max_distance: int = 128,
        bidirectional: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(d_model, n_heads, d_head, causal)
        causal = causal and not bidirectional
        self.causal, self.buckets, self.max_distance = causal, buckets, max_distance
        exact = (buckets if causal else buckets // 2) // 2
        require(
            buckets >= 4 and buckets % 2 == 0 and max_distance > exact,
            "model.position.buckets must be even and at least 4, and model.position.max_distance larger than the "
            f"{exact} exact ones, got {buckets} and {max_distance}",
        )
        self.table = nn.Embedding(buckets, n_heads)

    def prepare(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.table(self.bucket(_distance(q_pos, k_pos))).permute(0, 3, 1, 2)  # [B, H, T, S]

    def bias(self, q: Tensor | None, k: Tensor | None, prepared: Tensor) -> Tensor:
        return prepared

    def bucket(self, distance: Tensor) -> Tensor:
        """Compute the bucket of query position - key position, any shape."""
        size = self.buckets if self.causal else self.buckets // 2
        ahead = 0 if self.causal else (distance < 0).long() * size
        distance = distance.clamp(min=0) if self.causal else distance.abs()
        exact = size // 2
        ratio = (distance.clamp(min=1).float() / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (ratio * (size - exact)).long()).clamp(max=size - 1)
        return ahead + torch.where(distance < exact, distance, far)


@register("transformer_xl")
class TransformerXLPositions(SinusoidBase):
    """Attention to projected sinusoids of the distance, and two trained query biases (Dai et al. 2019).

    The paper's (q + u) k + (q + v) r is q k plus the bias u k + (q + v) r, where r is the projected sinusoid of the
    distance; u and v score keys and distances independently of the query. All weights belong to one layer. base is that
    of SinusoidalPositions.
    """

    shared = False
    bias_per_layer = True
    score_biases = ("content", "distance")

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool, base: float = 10000.0) -> None:
        super().__init__(d_model, n_heads, d_head, causal, base, d_model)
        self.content = nn.Parameter(torch.zeros(n_heads, d_head))  # u
        self.distance = nn.Parameter(torch.zeros(n_heads, d_head))  # v
        self.r_proj = nn.Linear(d_model, n_heads * d_head, bias=False)

    def prepare(self, q_pos: Tensor, k_pos: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q_angles, k_angles = self.angles(q_pos), self.angles(k_pos)  # [B or 1, T, D / 2] and [B or 1, S, D / 2]
        return q_angles.sin(), q_angles.cos(), torch.cat((k_angles.sin(), k_angles.cos()), dim=-1)

    def bias(self, q: Tensor | None, k: Tensor | None, prepared: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Compute (u k + (q + v) r) / sqrt(K).

        The sine and cosine of (p - k) w are expanded into those of p w and k w, so that nothing depends on which
        distances occur: the queries, projected and rotated by their own angles, are multiplied by the sinusoids of the
        keys.
        """
        assert q is not None
        assert k is not None
        heads, d_head = self.content.shape
        q_sin, q_cos, key_sinusoids = (part.to(q.dtype) for part in prepared)
        maps = self.r_proj.weight.to(q.dtype).unflatten(0, (heads, d_head))
        maps = torch.cat((maps[..., 0::2], maps[..., 1::2]), dim=-1)  # [H, K, D], all sines first
        queries = (q + self.distance[:, None].to(q.dtype)).transpose(0, 1)  # [H, B, T, K]
        of_sin, of_cos = (queries.flatten(1, 2) @ maps).unflatten(1, queries.shape[1:3]).chunk(2, dim=-1)
        rotated = torch.cat((of_cos * q_sin - of_sin * q_cos, of_sin * q_sin + of_cos * q_cos), dim=-1)  # [H, B, T, D]
        by_distance = rotated @ (key_sinusoids[0] if len(key_sinusoids) == 1 else key_sinusoids).mT  # [H, B, T, S]
        k = k.repeat_interleave(heads // k.size(1), dim=1)
        return (self.content[:, None].to(k.dtype) @ k.mT + by_distance.transpose(0, 1)) / math.sqrt(d_head)


def _slopes(heads: int) -> list[float]:
    """2^(-8 i / H) for a power of two; else those of the next lower one, and every other of the next higher."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    return slopes if power == heads else slopes + _slopes(2 * power)[0::2][: heads - power]


def _distance(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """Query position - key position: [B, T] and [B, S] to [B, T, S]."""
    return q_pos[:, :, None] - k_pos[:, None, :]
