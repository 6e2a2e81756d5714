"""Traced activations add up to each other and to the logits, and change nothing; steps equal rows of a forward."""

import re
from functools import partial
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from minitx import head_mask, record_attention, trace
from minitx.config.errors import ConfigError
from minitx.interpret.intervene import intervene
from minitx.nn import scaled_dot_product_attention
from small_models import SCHEMES, build_tiny, close, draw, every_architecture, every_decoder, ragged_inputs, untouched

OPTIONS: list[dict[str, Any]] = [
    {"norm_first": False}, {"norm_first": False, "norm": "rmsnorm", "n_kv_heads": 2, "qk_norm": True},
    {"n_kv_heads": 1, "window": 3, "softcap": 2.0, "activation": "swiglu"}, {"d_ff": 0, "bias": False},
    {"parallel_residual": True}, {"sandwich_norm": True},
    {"sandwich_norm": True, "parallel_residual": True, "window": (3, None)},
]  # fmt: skip
CASES = [*((name, {}) for name in SCHEMES), *zip(cycle(("rope", "t5")), OPTIONS, strict=False)]


@every_architecture
@pytest.mark.parametrize(("position", "options"), CASES, ids=str)
def test_activations_add_up(architecture: str, position: str, options: dict[str, Any]) -> None:
    model, arguments = build_tiny(architecture, position, **options), ragged_inputs(architecture)
    with torch.no_grad():
        before = model(*arguments)
        with record_attention(model):
            assert (model(*arguments) - before).abs().max() <= 1e-6 * before.abs().max()
        with trace(model) as t, record_attention(model) as maps:
            model(*arguments)
        with trace(model) as t:
            assert torch.equal(model(*arguments), before)
        with intervene(model, t):
            assert torch.equal(model(*arguments), before), "its own values change no bit"
    assert [*t] == t.names
    assert untouched(model)
    for stack in (name for name in ("encoder", "decoder") if hasattr(model, name)):
        layers = getattr(model, stack).layers
        for index, layer in enumerate(layers):
            path = f"{stack}.layers.{index}"
            x = t[f"{path}.resid_pre"]
            sublayers = [("self_attn", getattr(layer, layer.first_norm))]
            sublayers += [("cross_attn", layer.add_norm_cross)] if stack == "decoder" and layer.cross_attn else []
            sublayers += [("ffn", layer.add_norm_ffn)] if layer.ffn else []
            mids = [*["resid_mid", "resid_mid_cross"][: len(sublayers) - 1], "resid_post"]
            for (name, add_norm), after in zip(sublayers, mids, strict=True):
                total, x = x + (add_norm.output_norm or nn.Identity())(t[f"{path}.{name}.out"]), t[f"{path}.{after}"]
                close(x, total if add_norm.norm_first else add_norm.norm(total))
            for name, part in (("self_attn", layer.self_attn), ("cross_attn", getattr(layer, "cross_attn", None))):
                if part is not None:
                    check_attention(f"{path}.{name}", part, t, maps)
            if layer.ffn:
                close(layer.ffn.down_proj(t[f"{path}.ffn.hidden"]), t[f"{path}.ffn.out"])
            if index + 1 < len(layers):
                assert t[f"{stack}.layers.{index + 1}.resid_pre"] is x
        close(t[f"{stack}.out"], getattr(model, stack).norm(x))
    close(model.head(t[f"{stack}.out"]), before)


def check_attention(path: str, part: Any, t: dict[str, Tensor], maps: dict[str, Tensor]) -> None:
    bias = 0.0 if part.o_proj.bias is None else part.o_proj.bias
    close(t[f"{path}.result"].sum(dim=2) + bias, t[f"{path}.out"])
    weights, v = t[f"{path}.weights"], t[f"{path}.v"].repeat_interleave(part.n_heads // part.n_kv_heads, dim=2)
    close(torch.einsum("bhts,bshk->bthk", weights, v), t[f"{path}.z"])
    close(weights, maps[path])
    close(t[f"{path}.scores"].softmax(dim=-1).nan_to_num(0.0), weights)
    assert t[f"{path}.q"].shape[:3] == t[f"{path}.z"].shape[:3]


@every_architecture
@pytest.mark.parametrize("half", [False, True])
@torch.no_grad()
def test_each_own_value_changes_nothing_bit_for_bit(architecture: str, half: bool) -> None:
    model, arguments = build_tiny(architecture, "rope"), ragged_inputs(architecture)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        before = model(*arguments)
        with trace(model) as t:
            assert torch.equal(model(*arguments), before)
        for name in t:
            with intervene(model, {name: t[name].double()}):
                assert torch.equal(model(*arguments), before), name
    assert next(value for name, value in t.items() if name.endswith(".z")).dtype == before.dtype


@every_decoder
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("window", "rows"), [(None, 2), (3, 2), (3, 1)])
def test_a_step_has_the_last_row_of_a_forward(architecture: str, name: str, window: int | None, rows: int) -> None:
    """Of texts padded on the left; also where their own values are put back, and for beams."""
    model, ids, keep = build_tiny(architecture, name, window=window), draw(rows, 6), torch.ones(2, 6).triu()[-rows:] > 0
    source = (draw(rows, 4),) if architecture == "encoder_decoder" else ()
    names = [f"decoder.layers.*.{last}" for last in ("resid_*", "*_attn.z", "*_attn.out", "*.q", "ffn.*")]
    with torch.no_grad():
        with trace(model, ["decoder.*"]) as whole:
            model(*source, ids, *[None for _ in source], keep)
        own = {key: value for key, value in whole.items() if not key.endswith(("scores", "weights"))}
        for changes in (own, {}):
            cache = model.start(*source)
            with intervene(model, changes):
                model.step(ids[:, :3], cache, keep[:, :3])
                for t, beams in ((3, 1), (4, 1), (5, 2 if changes else 1)):
                    with trace(model, names) as step:
                        model.step(ids[:, t : t + 1].expand(-1, beams), cache if beams == 1 else cache.branch(beams))
                    close({key: value[:, -1] for key, value in step.items()}, {key: whole[key][:, t] for key in step})
        with trace(model, ["*.self_attn.k", "*.self_attn.weights"]) as step:
            model.step(draw(rows, 1), cache)
        for key, value in step.items():
            if key.endswith("k"):
                close(value[:, :-1], whole[key][:, -value.size(1) + 1 :])
                before = value.clone()
                [buffer.zero_() for layer in cache.layers.values() for buffer in layer.buffers]
                assert torch.equal(value, before)
            else:
                close(value.sum(-1), torch.ones(rows, 4, 1))


def test_only_what_is_asked_for_is_kept_or_computed() -> None:
    model, ids = build_tiny("decoder_only", "rope"), draw(2, 5)
    with trace(model, only="*.resid_post") as t:
        assert not any(part._forward_pre_hooks for part in model.modules())
        assert not untouched(model)
        model(ids)
        model(ids[:, :2])
    assert [*t] == t.names == [f"decoder.layers.{index}.resid_post" for index in range(2)]
    assert all(value.shape == (2, 2, 16) for value in t.values())  # the last call


@every_architecture
def test_gradients_of_the_residual_stream(architecture: str) -> None:
    """The derivative by a traced activation is that by an addition to it, and recording changes none."""
    model, arguments = build_tiny(architecture, "rope").double(), ragged_inputs(architecture)
    name = f"{'encoder' if architecture == 'encoder_only' else 'decoder'}.layers.0.resid_mid"
    with trace(model, name) as t, record_attention(model) as maps:
        traced = torch.autograd.grad(model(*arguments).square().sum(), t[name])[0]
    assert not any(weights.requires_grad for weights in maps.values())
    added = torch.zeros_like(t[name], requires_grad=True)
    with intervene(model, {name: lambda value: value + added}):
        close(torch.autograd.grad(model(*arguments).square().sum(), added)[0], traced)


@pytest.mark.parametrize("how", ["in place", "layer", "wrapped", "around"])
def test_compiled_models_have_the_same_names_and_values(how: str) -> None:
    torch.compiler.reset()
    model, ids, heads = build_tiny("decoder_only", "rope"), draw(2, 5), {"decoder.layers.0.self_attn": [0, 1, 1, 0]}
    with trace(model) as expected:
        model(ids)
    with head_mask(model, heads):
        masked = model(ids)
    compiled, backend = model, CompileCounter()
    if how == "in place":
        model.compile(backend=backend)
    elif how == "layer":
        model.decoder.layers[0] = torch.compile(model.decoder.layers[0], backend=backend)
    else:
        compiled = torch.compile(model, backend=backend)
    compiled(ids)
    count = backend.frame_count
    with trace(own := model if how == "around" else compiled) as t, record_attention(own) as maps:
        compiled(ids)
    assert backend.frame_count == count > 0
    assert [*t] == [*expected]
    close(maps, {name[:-8]: value for name, value in expected.items() if name.endswith(".weights")})
    with head_mask(own, heads):
        close(compiled(ids), masked)
    close(t, expected)


def test_unknown_names() -> None:
    model = build_tiny("decoder_only")
    for name, rest in (("decoder.layer.0.resid_post", ": did you mean decoder.layers.0.resid"),
                       ("decoder.layers.7.*", ""), ("encoder.*", "")):  # fmt: skip
        with pytest.raises(ConfigError, match=f"no activation {re.escape(name)}{rest}"), trace(model, ["*.z", name]):
            pass
        assert untouched(model)
    with trace(model, "*.z") as t, pytest.raises(ConfigError, match="has not computed"):
        t["decoder.layers.0.self_attn.z"]
    with pytest.raises(ConfigError, match=r"did you mean decoder\.layers\.1\.self_attn\.z"):
        t["decoder.layers.1.self_attn.zz"]


@pytest.mark.parametrize("given", [(), ("mode",), (scaled_dot_product_attention,)])
def test_an_attention_function_of_ones_own_has_no_weights_here(given: tuple[Any, ...]) -> None:
    model, ids = build_tiny("decoder_only"), torch.tensor([[3, 4, 5]])
    first, second = (layer.self_attn for layer in model.decoder.layers)
    second.attention = own = partial(lambda *args, **options: args[len(given)].neg(), *given)  # of the queries
    with trace(model, "*.q"), trace(model) as t:
        model(ids)
    assert torch.equal(t["decoder.layers.1.self_attn.z"], -t["decoder.layers.1.self_attn.q"])
    assert [name for name in t if name.endswith("weights")] == ["decoder.layers.0.self_attn.weights"]
    assert (first.attention, second.attention) == (scaled_dot_product_attention, own)
