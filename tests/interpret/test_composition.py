"""Composition scores equal their definition."""

from typing import Any

import pytest
import torch
from torch import Tensor

from minitx.interpret.composition import compositions
from minitx.interpret.parts import Part
from minitx.nn import MultiHeadAttention
from small_models import build_tiny, every_architecture


def maps(model: Any, part: Part) -> tuple[Tensor, Tensor]:
    """W_OV and W_QK [D, D] of a head, its norm included."""
    path, head = part.site.removesuffix(".z"), part.number - 1
    attention: MultiHeadAttention = model.get_submodule(path)
    layer = model.get_submodule(path.rpartition(".")[0])
    add_norm = {"encoder": "add_norm_attn", "decoder": "add_norm_self", "cross": "add_norm_cross"}[part.kind]
    identity = torch.eye(16, dtype=torch.double)

    def read(linear: Any, norm: Any, group: int) -> Tensor:
        centred = identity - 1 / 16 if isinstance(norm, torch.nn.LayerNorm) else identity
        gained = linear.weight.double() @ torch.diag(norm.weight.double()) @ centred
        return gained[group * attention.d_head : (group + 1) * attention.d_head]

    own = getattr(layer, add_norm).norm
    other = model.encoder.norm if part.kind == "cross" else own
    group = head * attention.n_kv_heads // attention.n_heads
    q, k = read(attention.q_proj, own, head), read(attention.k_proj, other, group)
    v = read(attention.v_proj, other, group)
    o = attention.o_proj.weight.double()[:, head * attention.d_head : (head + 1) * attention.d_head]
    if (norm := getattr(layer, add_norm).output_norm) is not None:
        centred = identity - 1 / 16 if isinstance(norm, torch.nn.LayerNorm) else identity
        o = torch.diag(norm.weight.double()) @ centred @ o
    return o @ v, q.T @ k


@pytest.mark.parametrize(("norm", "sandwich"), [("layernorm", False), ("layernorm", True), ("rmsnorm", True)])
@every_architecture
@torch.no_grad()
def test_scores_are_norms_of_products(architecture: str, norm: str, sandwich: bool) -> None:
    model = build_tiny(architecture, n_kv_heads=2, norm=norm, sandwich_norm=sandwich)
    found = compositions(model)
    for writer, reader, through, score in found:
        (ov, _), (reads_v, reads_qk) = maps(model, writer), maps(model, reader)
        left = {"q": reads_qk.T, "k": reads_qk, "v": reads_v}[through]
        assert score == pytest.approx(float((left @ ov).norm() / left.norm() / ov.norm()), rel=1e-5)
    assert len({pair[:3] for pair in found}) == len(found)
    # Self to self in each stack; in the decoder also self to cross (q), cross to self and cross to cross (q); then the
    # memory, through k and v.
    layers = {"encoder_decoder": 3 + 3 + 3 + 3 + 1 + 8}.get(architecture, 3)
    assert len(found) == layers * 4 * 4
    parallel = compositions(build_tiny(architecture, parallel_residual=True))  # no self to cross within a layer
    assert len(parallel) == (layers - (2 if architecture == "encoder_decoder" else 0)) * 4 * 4
