"""Position schemes that add a bias to attention scores: from the distance, or from the content as well.

Legend: B batch, T queries, S keys, H heads, G key-value heads, K d_head, D d_model, W hidden units.
"""

import math

import torch
from torch import Tensor, nn

from minitx.nn.errors import require
from minitx.nn.positions import NoPositions, SinusoidBase, register


class PreparedBias(NoPositions):
    """Base of schemes whose bias [B, H, T, S] depends on position ids alone: prepare computes it."""

    def bias(self, q: Tensor | None, k: Tensor | None, prepared: Tensor) -> Tensor:
        return prepared


@register("alibi")
class AlibiPositions(PreparedBias):
    """A penalty that grows with distance, with a slope for each head (ALiBi; Press et al. 2022).

    The absolute distance serves causal stacks too, where the mask hides the future.
    """

    def __init__(self, d_model: int, n_heads: int, d_head: int, causal: bool) -> None:
        super().__init__(d_model, n_heads, d_head, causal)
        device = "cpu" if torch.empty(0).is_meta else None  # as in SinusoidBase
        self.slopes = nn.Buffer(torch.tensor(_slopes(n_heads), dtype=torch.float32, device=device), persistent=False)

    def prepare(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return -self.slopes.to(q_pos.device)[:, None, None] * _distance(q_pos, k_pos).abs()[:, None]  # [B, H, T, S]


@register("t5")
class T5Positions(PreparedBias):
    """A trained bias for each head and bucket of distances: exact up to a limit, then logarithmic (Raffel et al. 2020).

    Args:
        buckets: number of buckets; if bidirectional, half of them for each direction.
        max_distance: all distances from this one on are in the last bucket.
        bidirectional: divide buckets by direction in a causal stack too, where coupled ids of the past may be larger.
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
        fits = buckets >= 4 and buckets % 2 == 0 and max_distance > exact
        far = f"model.position.max_distance larger than the {exact} exact ones, got {buckets} and {max_distance}"
        require(fits, f"model.position.buckets must be even and at least 4, and {far}")
        self.table = nn.Embedding(buckets, n_heads)

    def prepare(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        return self.table(self.bucket(_distance(q_pos, k_pos))).permute(0, 3, 1, 2)  # [B, H, T, S]

    def bucket(self, distance: Tensor) -> Tensor:
        """Compute the bucket of query position - key position, any shape."""
        size = self.buckets if self.causal else self.buckets // 2
        ahead = 0 if self.causal else (distance < 0).long() * size
        distance = distance.clamp(min=0) if self.causal else distance.abs()
        exact = size // 2
        ratio = (distance.clamp(min=1).float() / exact).log() / math.log(self.max_distance / exact)
        far = (exact + (ratio * (size - exact)).long()).clamp(max=size - 1)
        return ahead + torch.where(distance < exact, distance, far)


@register("fire")
class FirePositions(PreparedBias):
    """A trained function of the distance as a share of the query's position (FIRE; Li et al. 2024).

    The bias of a head is a network with a hidden layer at log(c d + 1) / log(c max(p, L) + 1), for the distance d and
    the later position p; c and L are trained. At any length the shares are between 0 and 1.

    Args:
        hidden: width of the network.
        threshold: initial L; the divisor is constant up to it. 512 in the paper, a quarter of its training length.
    """

    absolute = True
    score_biases = ("slopes", "offsets", "readout", "shift", "rate", "scale")
    initialized = True

    def __init__(
        self, d_model: int, n_heads: int, d_head: int, causal: bool, hidden: int = 32, threshold: float = 16.0
    ) -> None:
        super().__init__(d_model, n_heads, d_head, causal)
        fits = hidden >= 1 and threshold > 0.0
        require(fits, f"model.position.hidden and threshold must be positive, got {hidden} and {threshold}")
        self.slopes = nn.Parameter(torch.empty(hidden).uniform_(-1.0, 1.0))
        self.offsets = nn.Parameter(torch.empty(hidden).uniform_(-1.0, 1.0))
        self.readout = nn.Parameter(torch.empty(hidden, n_heads).uniform_(-(hidden**-0.5), hidden**-0.5))
        self.shift = nn.Parameter(torch.zeros(n_heads))
        self.rate = nn.Parameter(torch.tensor(0.1))  # c
        self.scale = nn.Parameter(torch.tensor(1.0))  # of L
        self.threshold = threshold

    def prepare(self, q_pos: Tensor, k_pos: Tensor) -> Tensor:
        wide = torch.promote_types(self.rate.dtype, torch.float32)
        slopes, offsets, readout, shift, rate, scale = (part.to(wide) for part in self.parameters())
        rate, threshold = rate.abs(), scale.abs() * self.threshold
        span = torch.maximum(torch.maximum(q_pos[:, :, None], k_pos[:, None, :]), threshold)
        share = torch.log1p(rate * _distance(q_pos, k_pos).abs()) / torch.log1p(rate * span).clamp(min=1e-6)
        hidden = (share[..., None] * slopes + offsets).relu()  # [B, T, S, W]
        return (hidden @ readout + shift).permute(0, 3, 1, 2)  # [B, H, T, S]


@register("transformer_xl")
class TransformerXLPositions(SinusoidBase):
    """Attention to projected sinusoids of the distance, and two trained query biases (Dai et al. 2019).

    The paper's (q + u) k + (q + v) r is q k plus the bias u k + (q + v) r, where r is the projected sinusoid of the
    distance; u and v score keys and distances for any query. Each layer has its own weights. base as in sinusoidal.
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
        distances occur: queries, projected and rotated by their own angles, are multiplied by the keys' sinusoids.
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
    """2^(-8 i / H) if H is a power of two; else those of the next lower one, then every other of the next higher."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    return slopes if power == heads else slopes + _slopes(2 * power)[0::2][: heads - power]


def _distance(q_pos: Tensor, k_pos: Tensor) -> Tensor:
    """Query position - key position: [B, T] and [B, S] to [B, T, S]."""
    return q_pos[:, :, None] - k_pos[:, None, :]
