"""Recording changes no output and no gradient, masks scale heads, and both restore the model."""

from contextlib import suppress

import pytest
import torch

from minitx import record_attention
from minitx.config.errors import ConfigError
from minitx.interpret.intervene import head_mask
from minitx.interpret.recording import attention_modules
from small_models import build_tiny, close, draw, every_architecture, ragged_inputs, untouched

HEADS = 4


def test_nested_blocks_end_one_by_one_after_an_exception_too_and_the_last_call_stays() -> None:
    model = build_tiny("decoder_only")
    with record_attention(model) as outer:
        with suppress(RuntimeError), record_attention(model) as inner:
            model(draw(1, 3))
            model(draw(1, 5))
            raise RuntimeError("on the way")
        both = dict(outer)
        model(draw(1, 2))
    model(draw(1, 7))
    assert [{weights.size(-1) for weights in maps.values()} for maps in (inner, both, outer)] == [{5}, {5}, {2}]
    assert untouched(model)


@every_architecture
@pytest.mark.parametrize("binary", [True, False])
def test_factors_scale_the_input_of_the_output_projection(architecture: str, binary: bool) -> None:
    """Row by row, with any factor, also its gradient, or with 0 and 1; a mask for all rows is a mask for each."""
    model, arguments = build_tiny(architecture, "rope", n_kv_heads=2), ragged_inputs(architecture)
    *_, path = attention_modules(model)
    before, factors = model(*arguments), torch.rand(3, HEADS) * 2
    factors = (factors > 1).int() if binary else factors.requires_grad_()
    with head_mask(model, {path: factors}):
        masked = model(*arguments)
    part = model.get_submodule(path)
    columns = factors.repeat_interleave(part.d_head, dim=-1)[:, None]
    handle = part.o_proj.register_forward_pre_hook(lambda _module, args: (args[0] * columns,))
    close(masked, by_hand := model(*arguments))
    handle.remove()
    if not binary:
        close(*[torch.autograd.grad(out.square().sum(), factors)[0] for out in (masked, by_hand)], 1e-4)
    assert not torch.allclose(masked, before, atol=1e-3)
    for row in range(3):
        with head_mask(model, {path: factors[row].tolist()}):
            close(model(*arguments)[row], masked[row])


def test_unknown_paths_and_other_numbers_of_heads_and_rows_are_refused() -> None:
    model, path = build_tiny("decoder_only"), "decoder.layers.0.self_attn"
    for changes, sentence in (
        ({"decoder.layers.9.self_attn": [1] * HEADS}, r"layers\.9\.self_attn .* decoder\.layers\.1\.self_attn"),
        *(({path: mask}, rf"{path} has 4 heads, got") for mask in ([1, 1, 0], torch.ones(3, 5), 1.0)),
        ({path: torch.ones(3, HEADS)}, "got factors of 3 rows for a batch of 2"),
    ):
        with pytest.raises(ConfigError, match=sentence), head_mask(model, changes):
            model(draw(2, 5))
    assert untouched(model)
