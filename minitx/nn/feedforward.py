"""The position-wise feed-forward network.

Legend: B batch, T tokens, D d_model, F d_ff.
"""

from __future__ import annotations

from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}
"""Non-linearities by their name in the YAML."""


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between, applied to each token alone (Vaswani et al. 2017, section 3.3).

    Args:
        d_model: width D of input and output.
        d_ff: width F between.
        activation: a name in ACTIVATIONS.
        dropout: dropped share of the inner activations in training.
        bias: whether the maps have biases.
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: str = "gelu", dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise ValueError(f"model.activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        if d_ff < 1:
            raise ValueError(f"model.d_ff must be positive, got {d_ff}")
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.activation = ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] to [B, T, D]."""
        return self.down_proj(self.dropout(self.activation(self.up_proj(x))))
