"""The position-wise feed-forward network.

Legend: B batch, T tokens, D d_model, F d_ff.
"""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from minitx.nn.errors import require
from minitx.nn.norms import dropped


class SquaredReLU(nn.Module):
    """max(x, 0) squared (So et al. 2021, "Primer")."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply to each element."""
        return x.relu().square()


_gelu_tanh = partial(nn.GELU, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "gelu_tanh": _gelu_tanh,
    "silu": nn.SiLU,
    "relu2": SquaredReLU,
    "swiglu": nn.SiLU,
    "geglu": nn.GELU,
    "geglu_tanh": _gelu_tanh,
}
"""Non-linearities by their name in the YAML."""

GATED = ("swiglu", "geglu", "geglu_tanh")
"""Activations whose result multiplies a second linear map of the same input (Shazeer 2020)."""


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between, applied to each token alone (Vaswani et al. 2017, section 3.3).

    A gated activation adds a third map, gate_proj: down(activation(gate(x)) * up(x)). activation is a name in
    ACTIVATIONS; dropout applies to the inner activations [B, T, F] in training.
    """

    def __init__(
        self, d_model: int, d_ff: int, activation: str = "gelu", dropout: float = 0.0, bias: bool = True
    ) -> None:
        super().__init__()
        known = ", ".join(ACTIVATIONS)
        require(activation in ACTIVATIONS, f"model.activation must be one of {known}, got {activation!r}")
        require(d_ff >= 1, f"model.d_ff must be positive (or 0 for attention alone), got {d_ff}")
        self.up_proj = nn.Linear(d_model, d_ff, bias=bias)
        self.gate_proj = nn.Linear(d_model, d_ff, bias=bias) if activation in GATED else None
        self.activation = ACTIVATIONS[activation]()
        self.dropout = dropout
        self.down_proj = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, D] to [B, T, D]."""
        if self.gate_proj is None:
            inner = self.activation(self.up_proj(x))
        else:
            inner = self.activation(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(dropped(inner, self.dropout, self.training))
