"""Composition of heads, from the weights: how much of what one head writes another one reads (Elhage et al. 2021).

Legend: H heads, K d_head, D d_model.
"""

from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from minitx.interpret.parts import Part, all_parts
from minitx.interpret.recording import attention_modules
from minitx.interpret.sites import add_norm_of
from minitx.models.transformers import Transformer


class Composition(NamedTuple):
    """A head that reads what an earlier one wrote into the residual stream, or into the memory."""

    writer: Part
    reader: Part
    through: str  # q, k or v: what the reader computes from it
    score: float  # from 0 to 1

    def __str__(self) -> str:
        return f"{self.writer} -> {self.reader}.{self.through}"


Maps = dict[str, Tensor]
"""q, k, v and o of one attention, each [H, K, D] and in fp64; o is transposed."""


@torch.no_grad()
def compositions(model: Transformer) -> list[Composition]:
    """The score of every pair of heads whose reader comes after its writer, in the order of the model.

    With W_OV = W_O W_V of the writer, and W_QK = W_Q^T W_K and W_OV' of the reader, the scores are the Frobenius norms
    of W_QK^T W_OV (q), W_QK W_OV (k) and W_OV' W_OV (v), each divided by the norms of its two factors: 1 / sqrt(D) for
    random matrices. Keys and values of cross-attention read the heads of the encoder.

    The gain of a pre-norm layer's norm, and a LayerNorm's subtraction of the mean, count as part of the reader; those
    of the norm of a sublayer's output (sandwich norms) as part of the writer. Position schemes and qk_norm are ignored.
    """
    maps = {path: _maps(model, path, module) for path, module in attention_modules(model).items()}
    heads = {path: [part for part in all_parts(model)["heads"] if part.site == f"{path}.z"] for path in maps}
    found = []
    for index, reader in enumerate(maps):
        for writer, through in product([*maps][:index], "qkv"):
            if reads(model, reader, writer, through):
                scores = _scores(maps[reader], maps[writer], through)
                found += [
                    Composition(one, other, through, float(scores[other.number - 1, one.number - 1]))
                    for one, other in product(heads[writer], heads[reader])
                ]
    return found


def reads(model: Any, reader: str, writer: str, through: str) -> bool:
    """Whether an attention's q, k or v reads what an earlier attention wrote; both by their path."""
    layer, _, sublayer = reader.rpartition(".")
    stack = "encoder" if sublayer == "cross_attn" and through != "q" else layer.partition(".")[0]
    parallel = model.get_submodule(layer).parallel  # if so, all sublayers of a layer read its input
    return writer.startswith(f"{stack}.") and not (parallel and writer.startswith(f"{layer}."))


def _maps(model: Any, path: str, module: Any) -> Maps:
    """The maps of an attention, with the effect of its norms."""
    place, _, sublayer = path.rpartition(".")
    layer, cross = model.get_submodule(place), sublayer == "cross_attn"
    add_norm: Any = add_norm_of(layer, sublayer)
    own = add_norm.norm if add_norm.norm_first else None
    norms = {"q": own, "k": model.encoder.norm if cross else own, "v": model.encoder.norm if cross else own}
    maps = {}
    for name, norm in norms.items():
        weight = getattr(module, f"{name}_proj").weight.cpu().double()
        if isinstance(norm, nn.LayerNorm | nn.RMSNorm):
            weight = weight * norm.weight.cpu().double()
        if isinstance(norm, nn.LayerNorm):
            weight = weight - weight.mean(dim=1, keepdim=True)
        split = weight.unflatten(0, (-1, module.d_head))
        maps[name] = split.repeat_interleave(module.n_heads // len(split), dim=0)  # repeated for grouped heads
    o = module.o_proj.weight.cpu().double()
    if isinstance(add_norm.output_norm, nn.LayerNorm):
        o = o - o.mean(dim=0)
    if add_norm.output_norm is not None:
        o = o * add_norm.output_norm.weight.cpu().double()[:, None]
    return maps | {"o": o.unflatten(1, (-1, module.d_head)).permute(1, 2, 0)}


def _scores(reader: Maps, writer: Maps, through: str) -> Tensor:
    """Scores [H of the reader, H of the writer], from products of K x K matrices."""
    left, right = reader[{"q": "k", "k": "q", "v": "o"}[through]], reader[through]
    inner = torch.einsum("rkd,wld->rwkl", right, writer["o"])  # the norm of left^T inner v is wanted
    outer = (left @ left.mT)[:, None] @ inner @ (writer["v"] @ writer["v"].mT)
    norms = _norm(left, right)[:, None] * _norm(writer["o"], writer["v"])
    return (inner * outer).sum(dim=(-2, -1)).clamp(min=0).sqrt() / norms.clamp(min=torch.finfo(norms.dtype).tiny)


def _norm(a: Tensor, b: Tensor) -> Tensor:
    """The Frobenius norm of a^T b for each head, [H]."""
    return ((a @ a.mT) * (b @ b.mT)).sum(dim=(-2, -1)).sqrt()
