"""Normalisation, and Add & Norm, which wraps every sublayer.

Legend: B batch, T tokens, D d_model.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from minitx.nn.errors import require


class RMSNorm(nn.RMSNorm):
    """Root-mean-square normalisation (Zhang and Sennrich 2019) that keeps the dtype of its input under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        weight = None if self.weight is None else self.weight.to(x.dtype)
        # CUDA's autocast computes rms_norm in fp32 and returns fp32.
        return F.rms_norm(x, self.normalized_shape, weight, self.eps).to(x.dtype)


NORMS: dict[str, type[nn.Module]] = {"layernorm": nn.LayerNorm, "rmsnorm": RMSNorm}
"""Normalisations by their name in the YAML; each takes the width."""


def build_norm(name: str, d_model: int, eps: float | None = None) -> nn.Module:
    """Build a normalisation from its name in NORMS; eps is added before the root, None for torch's default."""
    require(name in NORMS, f"model.norm must be one of {', '.join(NORMS)}, got {name!r}")
    require(eps is None or eps > 0.0, f"model.norm_eps must be positive, got {eps}")
    return NORMS[name](d_model) if eps is None else NORMS[name](d_model, eps=eps)


def dropped(x: Tensor, dropout: float, training: bool) -> Tensor:
    """Apply dropout in training. Otherwise return x itself: a call saved for each sublayer of each decoded token."""
    return F.dropout(x, dropout) if training and dropout else x


class AddNorm(nn.Module):
    """The residual connection with its norm and dropout, around a sublayer that is passed to forward.

    Post-norm, norm(x + f(x)), is the original (Vaswani et al. 2017); pre-norm, x + f(norm(x)), trains without a long
    warm-up (Xiong et al. 2020). norm_first selects pre-norm; dropout applies to f(x) in training; norm and norm_eps are
    those of build_norm. sandwich adds a norm of f's output, x + norm'(f(norm(x))) (Ding et al. 2021; Gemma 2).
    """

    def __init__(
        self,
        d_model: int,
        norm_first: bool,
        dropout: float,
        norm: str = "layernorm",
        norm_eps: float | None = None,
        sandwich: bool = False,
    ) -> None:
        super().__init__()
        self.norm = build_norm(norm, d_model, norm_eps)
        self.output_norm = build_norm(norm, d_model, norm_eps) if sandwich else None
        self.norm_first, self.dropout = norm_first, dropout

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor], residual: Tensor | None = None) -> Tensor:
        """x [B, T, D] to [B, T, D]; the sublayer keeps the shape; its output is added to residual, by default x."""
        out = sublayer(self.norm(x) if self.norm_first else x)
        if self.output_norm is not None:
            out = self.output_norm(out)
        out = (x if residual is None else residual) + dropped(out, self.dropout, self.training)
        return out if self.norm_first else self.norm(out)
