"""Which code computes an attention, the forms in which a stack prepares its mask, and flex attention's rules."""

import math
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.attention.flex_attention as torch_flex
import torch.nn.functional as F
from functorch.compile import min_cut_rematerialization_partition
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounter
from torch._subclasses.fake_tensor import FakeTensorMode

from minitx.nn import MultiHeadAttention, kernels, masks, scaled_dot_product_attention
from minitx.nn.flex import _block_mask, _score_mod, _torch_flex, flex_attention
from minitx.nn.kernels import FLEX_FROM_TOKENS, FLEX_MIN_D_HEAD, MaskAndBias, Operands, choose_kernel, fold, fused_dtype
from minitx.nn.masks import same_document
from small_models import build_tiny, close, every_architecture, every_direction, every_scheme, pairwise, ragged_inputs

pytestmark = [
    pytest.mark.usefixtures("no_grad"),  # step by step on a CPU, flex attention has no backward
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:.*(lru_cache|boxed arguments)"),
]


def explicit(q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
    return scaled_dot_product_attention(q, k, v, return_weights=True, **options)[0]


@pytest.mark.parametrize(("device", "queries", "keys", "d_head", "options", "kernel"), [
    ("cpu", 1, 1, 1, {"window": 9}, "fused"), ("cpu", 1, 1, 1, {"window": 9, "softcap": 2.0}, "explicit"),
    ("cuda", 1, 1, 1, {"window": 9}, "flex"), ("cuda", 1, 1, 1, {"softcap": 2.0}, "flex"),
    ("cuda", 1, 1, 1, {"causal": True}, "fused"), ("cuda", 1, 1, 1, {"softcap": 2.0, "dropout": 0.1}, "explicit"),
    ("cuda", 1, 1, 1, {"window": 9, "mask": torch.ones(1).bool()}, "fused"),
    ("cuda", 1, 1, 1, {"window": 9, "bias": torch.zeros(1)}, "fused"),
    ("cuda", 0.5, 0.5, 1, {"window": 9}, "fused"), ("cuda", 0.01, 1, 1, {"window": 9}, "fused"),
    ("cuda", 1, 1, 0.5, {"softcap": 2.0}, "explicit"), ("cuda", 1, 2, 1, {"softcap": 2.0}, "explicit"),
])  # fmt: skip
def test_kernels_by_device(device: str, queries: float, keys: float, d_head: float, options: dict, kernel: str) -> None:
    """Sizes as multiples of the least that flex takes; on a CPU, none is generated."""
    sizes = int(queries * FLEX_FROM_TOKENS), int(keys * FLEX_FROM_TOKENS), int(d_head * FLEX_MIN_D_HEAD)
    limits = {name: value for name, value in options.items() if name in MaskAndBias._fields}
    others = {name: value for name, value in options.items() if name not in limits}
    operands = Operands(*sizes, torch.float32, torch.device(device))
    assert choose_kernel(operands, MaskAndBias(**limits), **others) == kernel


@pytest.mark.parametrize("kept", ["compiled", "captured", "no"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_one_query_in_a_program_that_is_kept(device: str, kept: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled, or captured as a CUDA graph, which is simulated."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: kept == "compiled")
    monkeypatch.setattr(kernels, "in_graph", kept == "captured")
    for queries, dtype in product((1, 2), (torch.float32, torch.bfloat16)):
        kernel = choose_kernel(Operands(queries, 9, 16, dtype, torch.device(device)), MaskAndBias())
        explicit = queries == 1 and kept != "no" and (device == "cpu" or dtype == torch.float32)
        assert kernel == ("explicit" if explicit else "fused")


@pytest.mark.parametrize(("dtype", "value_width"), [(torch.float64, 16), (torch.float32, 8)])
def test_what_flex_does_not_take(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, value_width: int) -> None:
    """Its sums are in fp32, and values may be narrower than queries, as those of PoPE are."""
    monkeypatch.setattr(kernels, "flex_attention", lambda *given, **options: pytest.fail("flex"))
    with FakeTensorMode():
        q, k = (torch.empty(1, 2, FLEX_FROM_TOKENS, 16, dtype=dtype, device="cuda") for _ in range(2))
        v = torch.empty(1, 2, FLEX_FROM_TOKENS, value_width, dtype=dtype, device="cuda")
        assert scaled_dot_product_attention(q, k, v, softcap=2.0).shape == v.shape


@pytest.mark.parametrize("selected", kernels.CPU_HALF_KERNELS)
@pytest.mark.parametrize("tokens", [17, 1024])
def test_a_run_selects_what_trains_in_half_precision_on_a_cpu(monkeypatch: Any, tokens: int, selected: str) -> None:
    """Neither inference, nor fp32, nor another device is affected."""
    monkeypatch.setattr(kernels, "training_kernel", selected)
    for dtype, device, trained in product((torch.bfloat16, torch.float32), ("cpu", "cuda"), (True, False)):
        operands = Operands(tokens, tokens, FLEX_MIN_D_HEAD, dtype, torch.device(device), trained)
        expected = selected if dtype == torch.bfloat16 and device == "cpu" and trained else "fused fp32"
        assert choose_kernel(operands, MaskAndBias(causal=True)) == expected.removesuffix(" fp32")
        in_fp32 = dtype == torch.float32 or (device == "cpu" and expected == "fused fp32")
        assert (fused_dtype(operands) == torch.float32) is in_fp32


def test_a_compiled_step_trains_on_any_length() -> None:
    """Lengths are symbols in a compiled program."""
    with torch.enable_grad():
        attend = torch.compile(scaled_dot_product_attention, backend="eager")
        for tokens in (9, 17, 65):
            q = torch.randn(1, 2, tokens, 8, dtype=torch.bfloat16, requires_grad=True)
            assert torch.equal(attend(q, q, q, causal=True), scaled_dot_product_attention(q, q, q, causal=True))


@pytest.mark.parametrize("kernel", ["fused", "explicit"])
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padding"])
@pytest.mark.parametrize("window", [None, 3])
@every_direction
def test_what_is_folded_once_gives_the_same_attention(
    causal: bool, window: int | None, padded: bool, biased: bool, kernel: str
) -> None:
    """Bit for bit, on both paths and whichever path it was folded for; and a second fold finds nothing to do."""
    q, k, v = (torch.randn(2, 4, 7, 8) for _ in range(3))
    mask = (torch.arange(7) < torch.tensor([[7], [0]]))[:, None, None] if padded else None
    bias, documents = torch.randn(1, 4, 7, 7) if biased else None, torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 2)
    operands, masking = Operands(7, 7, 8, q.dtype, q.device), MaskAndBias(mask, bias, causal, window)
    by_rule = documents[:, None, :, None] == documents[:, None, None, :]
    whole = {"mask": by_rule if mask is None else mask & by_rule, "bias": bias, "causal": causal, "window": window}
    for rules, options in (((), masking._asdict()), ((same_document(documents),), whole)):
        folded = fold(operands, masking, kernel, rules)
        assert all(one is other for one, other in zip(fold(operands, folded, kernel), folded, strict=True))
        assert folded.window is None
        assert not (folded.causal and (window or padded or biased or rules or kernel == "explicit"))
        for weights in (False, True):
            attend = partial(scaled_dot_product_attention, q, k, v, return_weights=weights)
            close(attend(**folded._asdict()), attend(**options), 0.0)


@every_scheme
@every_architecture
def test_the_keys_of_a_mask_are_neighbours_in_memory(architecture: str, name: str, monkeypatch: Any) -> None:
    """A GPU has no fused kernel for another layout, such as that of T5's table, where heads are neighbours."""
    attend = Mock(side_effect=F.scaled_dot_product_attention)
    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    build_tiny(architecture, name)(*ragged_inputs(architecture))
    assert attend.called or name == "transformer_xl"
    assert {(q if mask is None else mask).stride(-1) for (q, _, _, mask, *_), _ in attend.call_args_list} <= {1}


@pytest.mark.parametrize("mask", [torch.tensor(True), torch.ones(6, 1) > 0, (torch.arange(54.0).view(9, 6) > 3).mT])
def test_so_are_those_of_any_mask_of_a_user(mask: torch.Tensor) -> None:
    folded = fold(Operands(6, 9, 8, torch.float32, mask.device), MaskAndBias(mask), "fused").mask
    assert folded is not None
    assert (folded.size(-1), folded.stride(-1)) == (9, 1)
    assert torch.equal((folded == 0).expand(6, 9), mask.expand(6, 9).to(folded.device))


@pytest.mark.parametrize("limits", [{"window": 3}, {"softcap": 2.0}])
def test_further_rules_hold_where_a_gpu_would_run_flex(monkeypatch: pytest.MonkeyPatch, limits: dict) -> None:
    """Packed documents and prefixes, which flex attention is not passed."""
    attention, x, documents = MultiHeadAttention(8, 2, **limits), torch.randn(1, 5, 8), torch.tensor([[0, 0, 1, 1, 1]])
    expected = attention(x, mask=documents[:, None, :, None] == documents[:, None, None, :], causal=True)
    monkeypatch.setattr("minitx.nn.multi_head.choose_kernel", lambda *given: "flex")
    assert attention.prepare(x, causal=True).masking == MaskAndBias(None, None, True, limits.get("window"))
    close(attention(x, prepared=attention.prepare(x, causal=True, rules=[same_document(documents)])), expected)


def test_one_query_needs_no_mask_for_what_it_may_attend_to_anyhow() -> None:
    operands = Operands(1, 9, 8, torch.float32, torch.device("cpu"))
    assert fold(operands, MaskAndBias(causal=True), "explicit") == MaskAndBias()
    assert fold(operands, MaskAndBias(causal=True, window=9), "fused") == MaskAndBias()
    (mask, *_) = fold(operands, MaskAndBias(causal=True, window=8), "fused")
    assert mask.tolist() == [[-math.inf, *[0.0] * 8]]
    assert fold(operands._replace(queries=9), MaskAndBias(causal=True, window=9), "fused") == MaskAndBias(causal=True)


@pairwise({"softcap": [None, 0.8], "window,tokens": [(None, 7), (1, 7), (5, 140)], "causal": [True, False]})
def test_flex_attention_equals_the_explicit_formula(
    causal: bool, tokens: int, window: int | None, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minitx.nn.flex._torch_flex", lambda compiled: torch_flex.flex_attention)  # step by step
    q = 3 * torch.randn(2, 4, tokens, 16)
    k, v = torch.randn(2, 2, tokens, 16), torch.randn(2, 2, tokens, 16)
    options = {"causal": causal, "window": window, "softcap": softcap}
    close(flex_attention(q, k, v, **options), explicit(q, k, v, **options))


def test_blocks_and_score_mods_are_made_once() -> None:
    """Another function would be another kernel to compile; a tensor of inference mode is not saved for a backward."""
    assert _score_mod(2.0) is _score_mod(2.0) is not _score_mod(3.0)
    _block_mask.cache_clear()
    with torch.inference_mode():
        blocks = _block_mask(96, True, 3, torch.device("cpu"))
    assert blocks is _block_mask(96, True, 3, torch.device("cpu"))
    assert {part.is_inference() for part in vars(blocks).values() if isinstance(part, Tensor)} == {False}


@every_direction
@pytest.mark.parametrize("window", [None, 1, 127, 129, 257, 999])
@pytest.mark.parametrize("tokens", [5, 128, 129, 700])
def test_blocks_are_those_of_create_block_mask(tokens: int, window: int | None, causal: bool) -> None:
    """Torch's own way, which looks at every pair."""
    blocks, rule = _block_mask(tokens, causal, window, torch.device("cpu")), masks.rules(causal, window)
    if not rule:
        assert blocks is None
        return
    theirs = torch_flex.create_block_mask(lambda b, h, q, k: rule[0](q, k), None, None, tokens, tokens, device="cpu")
    assert (blocks.seq_lengths, blocks.BLOCK_SIZE) == (theirs.seq_lengths, theirs.BLOCK_SIZE)
    for name, part in vars(theirs).items():
        if isinstance(part, Tensor):
            torch.testing.assert_close(getattr(blocks, name), part, rtol=0, atol=0, msg=name)
            assert getattr(blocks, name).is_contiguous(), "a kernel reads the next number of a row next to the last"


@pytest.mark.slow
def test_a_compiled_step_computes_blocks_once_and_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers, two lengths, with gradients; the compiler ignores what is cached."""
    torch.compiler.reset()  # what other tests compiled in this process
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)  # step by step, a CPU can do backward
    forwards: list[torch.fx.GraphModule] = []
    backend = aot_autograd(
        fw_compiler=lambda graph, inputs: forwards.append(graph) or graph.forward,
        bw_compiler=lambda graph, inputs: graph.forward,
        partition_fn=min_cut_rematerialization_partition,
    )

    def layers(attention: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for _ in range(3):
            q = attention(q, k, v, causal=True, window=5, softcap=2.0)
        return q

    compiled = torch.compile(lambda *given: layers(flex_attention, *given), backend=backend, fullgraph=True)
    for tokens in (200, 300):
        with torch.enable_grad():
            given = [torch.randn(1, 2, tokens, 16, requires_grad=True) for _ in range(3)]
            close(compiled(*given), layers(explicit, *given))
    assert len(forwards) == 2
    for graph, tokens in zip(forwards, (200, 300), strict=True):
        nodes = [node for node in graph.graph.nodes if node.op == "call_function"]
        assert sum("sort" in str(node.target) for node in nodes) == 4, "once for all layers"
        shapes = [node.meta["val"].shape for node in nodes if isinstance(node.meta.get("val"), Tensor)]
        assert shapes
        assert not [shape for shape in shapes if [*map(int, shape[-2:])] == [tokens, tokens]]


def test_flex_has_a_kernel_for_each_kind_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch compiles 8 kinds by default, here 2, and computes any other one with all scores in memory."""
    counter = CompileCounter()
    _torch_flex.cache_clear()
    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    with torch._dynamo.config.patch(recompile_limit=2):
        for d_head in (16, 17, 18, 19):
            q = torch.randn(1, 2, 130, d_head)
            expected = explicit(q, q, q, causal=True, window=9)
            close(flex_attention(q, q, q, causal=True, window=9, softcap=None), expected)
    _torch_flex.cache_clear()
    torch.compiler.reset()
    assert counter.frame_count == 4


@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("queries", [1, 64, 1024])
@pytest.mark.parametrize("limit", ["causal", "mask", "bias", "window"])
def test_cudnn_gets_long_sequences_without_a_mask(limit: str, queries: int, compiling: bool, monkeypatch: Any) -> None:
    """Simulated: tensors of a CUDA device without numbers."""
    enabled = []

    def attend(q: Tensor, *given: object, **more: object) -> Tensor:
        enabled.append(torch.backends.cuda.cudnn_sdp_enabled())
        return q

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    monkeypatch.setattr(masks, "build", lambda *rules, queries, keys, device: torch.ones(queries, keys, device=device))
    with FakeTensorMode(allow_non_fake_inputs=True):
        q = torch.empty(1, 2, queries, 8, device="cuda", dtype=torch.bfloat16)
        options: dict[str, dict] = {
            "causal": {"causal": True},
            "mask": {"mask": torch.empty(1, 1, 1, queries, device="cuda", dtype=torch.bool)},
            "bias": {"bias": torch.empty(1, 2, queries, queries, device="cuda")},
            "window": {"causal": True, "window": 5},
        }
        scaled_dot_product_attention(q, q, q, **options[limit])
    assert enabled == [limit == "causal" and queries == 1024]
    assert torch.backends.cuda.cudnn_sdp_enabled(), "as it was before"
