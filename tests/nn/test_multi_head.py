"""Multi-head attention under autocast: close to full precision, in one dtype, its projections as one product.

In full precision, tests of layers and of whole models against other implementations cover it.
"""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from minitx.interpret.recording import record_attention
from minitx.nn import POSITIONS, MultiHeadAttention, masks
from small_models import close, keep_of, pairwise, roughen_weights

OPTIONS: list[dict[str, Any]] = [
    {}, {"bias": False}, {"n_kv_heads": 2, "qk_norm": True}, {"n_kv_heads": 1, "d_head": 6}, {"softcap": 1.0}
]  # fmt: skip


@pairwise({"options": OPTIONS, "name": [*POSITIONS], "cross": [False, True]})
def test_autocast_is_close_to_fp32_and_cross_attention_ignores_positions(options: dict, name: str, cross: bool) -> None:
    """One product, cut in three for self-attention and in two for a memory, brings each map its own gradient."""
    scheme = POSITIONS[name](16, 4, options.get("d_head", 4), True)
    part = roughen_weights(MultiHeadAttention(16, 4, position=scheme, **options))
    x, keep = torch.randn(2, 9, 16), keep_of(9, 8)
    memory = torch.randn(2, 9, 16) if cross else None
    call = partial(part, x, memory, masks.key_padding(keep), not cross)
    if memory is not None:  # whose indices are no positions of x
        close(part(x, memory.flip(1), pos=torch.randint(99, (1, 9))), part(x, memory))
    outputs, gradients = [], []
    for mixed in (True, False):
        with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=mixed):
            out = call()
            with torch.no_grad(), record_attention(part) as maps:
                close(call(), out, 5e-2)
        assert out.dtype == (torch.bfloat16 if mixed else torch.float32)
        close(maps[""].float().sum(-1), torch.ones(2, 4, 9), 2e-2)
        # The bias of keys moves all scores of a query alike: its gradient is nothing but noise.
        own = [(path, weight) for path, weight in part.named_parameters() if not path.startswith("position.")]
        weights = [weight for path, weight in own if path != "k_proj.bias"]
        outputs.append(out)
        gradients.append(torch.autograd.grad(out.float().square().mean(), weights))
    close(*outputs, 5e-2)
    assert all((one - other).norm() < 0.1 * other.norm() for one, other in zip(*gradients, strict=True))


@pytest.mark.parametrize("shape", [(0, 4, 16), (2, 0, 16)])
def test_nothing_gives_nothing(shape: tuple[int, ...]) -> None:
    assert MultiHeadAttention(16, 4)(torch.randn(shape)).shape == shape


class ViewsWithoutDriver(TorchFunctionMode):
    """Indexing and contiguous of a fake CUDA tensor in builds of torch for CPUs, where both ask for CUDA itself."""

    def __torch_function__(self, function: Any, types: Any, given: Any = (), options: Any = None) -> Any:
        if function is Tensor.contiguous:
            return given[0].clone(memory_format=torch.contiguous_format)
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


def test_autocast_joins_the_products_of_maps_without_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It converts x once for all; hooks and adapters on the three maps work as in full precision."""
    part, x, calls = MultiHeadAttention(12, 4), torch.randn(1, 4, 12, requires_grad=True), []
    assert part.state_dict().keys() >= {"q_proj.bias", "k_proj.bias", "v_proj.bias", "o_proj.bias"}, "by default"
    monkeypatch.setattr(F, "linear", lambda *given, linear=F.linear: calls.append("linear") or linear(*given))
    part(x)
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        part(x)
        assert len(calls) == 4 + 2
        for kind in ("forward", "forward_pre", "full_backward", "full_backward_pre"):
            handle = getattr(part.v_proj, f"register_{kind}_hook")(lambda *_, kind=kind: calls.append(kind))
            part(x).sum().backward()
            handle.remove()
            assert kind in calls
        part.q_proj = nn.Sequential(part.q_proj, nn.Linear(12, 12))  # type: ignore[assignment]
        assert torch.autograd.grad(part(x).sum(), part.q_proj[1].weight)[0].any()
