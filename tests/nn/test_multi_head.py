"""Multi-head attention: its heads written out, against torch, and its projections as one product under autocast."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from minitx.interpret.recording import record_attention
from minitx.nn import POSITIONS, MultiHeadAttention, OptionError, masks
from minitx.nn.norms import RMSNorm
from small_models import close, keep_of, pairwise

shapes = pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"n_kv_heads": 2}, {"n_kv_heads": 1, "d_head": 6, "qk_norm": True}, {"softcap": 1.0}],
    ids=str,
)


def recorded(attention: MultiHeadAttention, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """Output and weights of one call."""
    with record_attention(attention) as maps:
        out = attention(*args, **kwargs)
    return out, maps[""]


def multi_head_by_loop(part: MultiHeadAttention, x: Tensor, allowed: Tensor) -> Tensor:
    """Each head written out from slices of the projections; heads h * H/G ... share key-value head h."""

    def head(projection: nn.Linear, norm: nn.Module, index: int) -> Tensor:
        rows = slice(index * part.d_head, (index + 1) * part.d_head)
        out = x @ projection.weight[rows].T + (projection.bias[rows] if projection.bias is not None else 0.0)
        if isinstance(norm, RMSNorm):
            out = norm.weight * out / (out.square().mean(-1, keepdim=True) + torch.finfo(out.dtype).eps).sqrt()
        return out  # [B, T, K]

    heads = []
    for index in range(part.n_heads):
        shared = index * part.n_kv_heads // part.n_heads
        q, k = head(part.q_proj, part.q_norm, index), head(part.k_proj, part.k_norm, shared)
        scores = q @ k.transpose(1, 2) / math.sqrt(part.d_head)
        if part.softcap is not None:
            scores = part.softcap * torch.tanh(scores / part.softcap)
        heads.append(scores.masked_fill(~allowed, -math.inf).softmax(-1) @ head(part.v_proj, nn.Identity(), shared))
    return part.o_proj(torch.cat(heads, dim=-1))


@pairwise({
    "bias,softcap": [(True, None), (False, 0.7)], "qk_norm": [False, True], "d_head": [None, 5],
    "n_kv_heads": [None, 4, 2, 1],
})  # fmt: skip
def test_heads_written_out(
    n_kv_heads: int | None, d_head: int | None, qk_norm: bool, bias: bool, softcap: float | None, roughen
) -> None:
    part = roughen(MultiHeadAttention(12, 4, n_kv_heads, d_head, qk_norm=qk_norm, bias=bias, softcap=softcap))
    x = torch.randn(2, 6, 12)
    expected = multi_head_by_loop(part, x, torch.ones(6, 6).tril().bool())
    close(part(x, causal=True), expected)
    out, weights = recorded(part, x, causal=True)
    close(out, expected)
    assert weights.shape == (2, 4, 6, 6)
    assert part.k_proj.out_features == (n_kv_heads or 4) * (d_head or 3)
    assert any(name.endswith("bias") for name, _ in part.named_parameters()) == bias


def test_self_attention_rotates_both_sides_and_biases_the_scaled_scores(roughen, all_hooks) -> None:
    scheme = all_hooks(8, 2, 4, True)
    part = roughen(MultiHeadAttention(8, 2, n_kv_heads=1, position=scheme))
    x, pos = torch.randn(2, 5, 8), torch.tensor([[0, 0, 1, 2, 3], [4, 9, 2, 7, 1]])
    q = part.q_proj(x).unflatten(2, (2, 4)).transpose(1, 2)
    k = part.k_proj(x).unflatten(2, (1, 4)).transpose(1, 2)
    prepared = scheme.prepare(pos, pos)
    scores = scheme.rotate(q, prepared) @ scheme.rotate(k, prepared).transpose(2, 3) / 2.0  # sqrt(d_head)
    scores = scores + scheme.bias(q, k, prepared)
    expected = scores.masked_fill(~torch.ones(5, 5).tril().bool(), -math.inf).softmax(-1)
    _, weights = recorded(part, x, causal=True, pos=pos)
    close(weights, expected)
    close(part(x, causal=True), part(x, causal=True, pos=torch.arange(5)[None]))  # consecutive by default


@pytest.mark.parametrize("name", [*POSITIONS, "all_hooks"])
def test_cross_attention_ignores_positions(name: str, roughen, all_hooks) -> None:
    """Position ids of x and indices of a memory are different things: no hook is called."""
    scheme = {**POSITIONS, "all_hooks": all_hooks}[name](8, 2, 4, False)
    part = roughen(MultiHeadAttention(8, 2, position=scheme))
    x, memory = torch.randn(1, 4, 8), torch.randn(1, 6, 8)
    order, pos, other = torch.randperm(6), torch.tensor([[0, 1, 2, 3]]), torch.tensor([[7, 3, 9, 5]])
    close(part(x, memory[:, order], pos=pos), part(x, memory, pos=other))


@pytest.mark.parametrize("qk_norm", [False, True], ids=["", "qk_norm"])
@pytest.mark.parametrize("name", POSITIONS)
def test_autocast_is_close_to_fp32_with_every_scheme(name: str, qk_norm: bool, roughen) -> None:
    part = roughen(MultiHeadAttention(16, 4, 2, position=POSITIONS[name](16, 4, 4, True), qk_norm=qk_norm))
    x, keep = torch.randn(2, 9, 16), keep_of(9, 8)
    exact = part(x, mask=masks.key_padding(keep), causal=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = part(x, mask=masks.key_padding(keep), causal=True)
        out_recorded, weights = recorded(part, x, mask=masks.key_padding(keep), causal=True)
    assert out.dtype == torch.bfloat16
    close(out, exact, 5e-2)
    close(out_recorded, exact, 5e-2)
    close(weights.float().sum(-1), torch.ones(2, 4, 9), 2e-2)


@pytest.mark.parametrize(
    ("arguments", "key", "numbers"),
    [
        ({"d_model": 10, "n_heads": 3}, "model.n_heads", ("10", "3")),
        ({"d_model": 8, "n_heads": 0}, "model.n_heads", ("0",)),
        ({"d_model": 0, "n_heads": 2}, "model.d_model", ("0",)),
        ({"d_model": 8, "n_heads": 4, "n_kv_heads": 3}, "model.n_kv_heads", ("4", "3")),
        ({"d_model": 8, "n_heads": 4, "n_kv_heads": 0}, "model.n_kv_heads", ("4", "0")),
        ({"d_model": 8, "n_heads": 4, "dropout": 1.0}, "model.attention_dropout", ("1.0",)),
        ({"d_model": 8, "n_heads": 4, "dropout": -0.1}, "model.attention_dropout", ("-0.1",)),
        ({"d_model": 8, "n_heads": 4, "window": 0}, "model.window", ("0",)),
        ({"d_model": 8, "n_heads": 4, "d_head": 0}, "model.d_head", ("0",)),
        ({"d_model": 8, "n_heads": 4, "softcap": 0.0}, "model.softcap", ("0.0",)),
    ],
)  # fmt: skip
def test_refusals_name_the_key_and_the_numbers(arguments: dict, key: str, numbers: tuple[str, ...]) -> None:
    with pytest.raises(OptionError, match=key.replace(".", r"\.")) as refusal:
        MultiHeadAttention(**arguments)
    for number in numbers:
        assert number in str(refusal.value)


@shapes
@pytest.mark.parametrize("memory", [None, torch.randn(2, 7, 12)], ids=["self", "cross"])
def test_gradients_under_autocast_are_those_of_each_map(options: dict, memory: Tensor | None, roughen) -> None:
    """One product, cut in three for self-attention and in two for a memory, brings each map its own gradient."""
    part, x = roughen(MultiHeadAttention(12, 4, **options)), torch.randn(2, 5, 12)

    def gradients(mixed: bool) -> list[Tensor]:
        with torch.enable_grad():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
                out = part(x, memory, causal=memory is None)
            return torch.autograd.grad(out.float().square().mean(), list(part.parameters()))

    for (name, _), one, other in zip(part.named_parameters(), gradients(True), gradients(False), strict=True):
        if name != "k_proj.bias":  # moves all scores of a query alike: nothing but noise
            close(one / other.norm(), other / other.norm(), 5e-2)


class ViewsWithoutDriver(TorchFunctionMode):
    """Indexing of a fake CUDA tensor in builds of torch for CPUs, where it asks for CUDA itself."""

    def __torch_function__(self, function: Any, types: Any, given: Any = (), options: Any = None) -> Any:
        if function is not Tensor.__getitem__:
            return function(*given, **(options or {}))
        x, index = given
        view = torch.empty_strided(x.shape, x.stride(), device="meta")[index]
        return x.as_strided(view.shape, view.stride(), view.storage_offset())


@pytest.mark.parametrize("name", POSITIONS)
def test_queries_keys_and_values_share_a_dtype_under_cuda_autocast(name: str) -> None:
    """Autocast's rules for CUDA, without a GPU: its RMSNorm and softplus return fp32, whatever they are given."""
    attention = MultiHeadAttention(16, 4, n_kv_heads=2, position=POSITIONS[name](16, 4, 4, True), qk_norm=True)
    found = []
    attention.attention = lambda q, k, v, **options: found.append((q.dtype, k.dtype, v.dtype)) or v.repeat(1, 2, 1, 1)
    with FakeTensorMode(), ViewsWithoutDriver():
        x = torch.empty(2, 5, 16, device="cuda")
        state = [*attention.named_parameters(), *attention.named_buffers()]
        weights = {name: torch.empty(weight.shape, device="cuda") for name, weight in state}
        torch.set_autocast_enabled("cuda", True)  # torch.autocast itself insists on a GPU
        torch.set_autocast_dtype("cuda", torch.bfloat16)
        try:
            torch.func.functional_call(attention, weights, (x,), {"pos": torch.arange(5, device="cuda")[None]})
            torch.func.functional_call(attention, weights, (x, x))
        finally:
            torch.set_autocast_enabled("cuda", False)
    assert found == [(torch.bfloat16,) * 3] * 2


def test_three_products_in_full_precision_and_one_under_autocast() -> None:
    """In full precision hooks and adapters on the three maps work; autocast converts x once for all."""
    part, calls = MultiHeadAttention(12, 4), []
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(part, name).register_forward_hook(lambda *_, name=name: calls.append(name))
    part(torch.randn(1, 4, 12))
    assert calls == ["q_proj", "k_proj", "v_proj"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        part(torch.randn(1, 4, 12))
    assert len(calls) == 3
