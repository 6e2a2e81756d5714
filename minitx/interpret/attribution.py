"""Direct logit attribution: how much each part of a model adds to a logit (Elhage et al. 2021).

Legend: B batch, T positions, H heads, D d_model.
The logit is linear in what parts add to the residual stream, once the scales of norms are frozen as in this forward.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from minitx.config.errors import ConfigError
from minitx.interpret.parts import Part
from minitx.interpret.sites import add_norm_of, changed, sites
from minitx.interpret.trace import Trace, trace
from minitx.models.transformers import EncoderOnly, Transformer
from minitx.nn import Stack


def last_stack(model: Transformer) -> tuple[str, Stack]:
    """Name and module of the stack that the head reads."""
    return ("encoder", model.encoder) if isinstance(model, EncoderOnly) else ("decoder", model.decoder)


@torch.no_grad()
def attribute(
    model: Transformer, inputs: Mapping[str, Tensor], tokens: Tensor, against: Tensor | None = None
) -> dict[str, Tensor]:
    """Attribute the logits of tokens [B, T], or their difference to those of others, to the parts of the last stack.

    The parts add up to the logit in every model, before model.logit_softcap. With pre-norm layers, only the scale of
    the final norm is frozen; with sandwich norms also that of the norm of each part's output, and with post-norm layers
    that of each later norm between a part and the head, so what a part adds is approximate.

    Args:
        model: in evaluation mode.
        inputs: keyword arguments of its forward.
        tokens: a token for each position of the logits.
        against: other tokens [B, T], for the difference of two logits.

    Returns:
        [B, T] by part: embeddings (with their positions), the heads and feed-forward networks by their names, counted
        from 1 (decoder.1.2 is a head, cross.2.1 one of cross-attention, decoder.1.ffn), and all biases together. Within
        `intervene`, also the intervention, if it changes a residual stream, the sum of an attention's heads (attn.out)
        or the stack's out: the new value minus the computed one. Other changed parts have their changed values.

    Raises:
        ConfigError: a head with a non-linear transform (BERT).
    """
    if model.head.transform is not None:
        raise ConfigError("attribution needs a linear head: this model was built with model.head_transform")
    if any(bool((each < 0).any()) for each in (tokens, against) if each is not None):
        raise ConfigError("attribution: expected ids of tokens, got negative ones, such as labels without a prediction")
    (name, stack), head = last_stack(model), model.head
    direct = sites(model, [f"{name}.layers.*.{part}" for part in ("resid_*", "*_attn.out")] + [f"{name}.out"])
    before = Trace(direct)
    unchanged = changed(model, ((site, partial(before.record, key, site)) for key, site in direct.items()), first=True)
    with unchanged, trace(model, [*direct, f"{name}.layers.*attn.result", f"{name}.*.out"]) as values:
        model(**inputs, head=False)
    direction = head.weight[tokens] if against is None else head.weight[tokens] - head.weight[against]  # [B, T, D]
    bias = torch.zeros_like(direction[..., 0])
    if head.bias is not None:
        bias += head.bias[tokens] if against is None else head.bias[tokens] - head.bias[against]
    found: list[tuple[str, Tensor]] = []
    directions = {f"{name}.out": direction}  # by site
    direction, added = _through(stack.norm, values[f"{name}.layers.{len(stack.layers) - 1}.resid_post"], direction)
    bias += added
    for index in reversed(range(len(stack.layers))):
        layer: Any = stack.layers[index]
        path = f"{name}.layers.{index}"
        directions[f"{path}.resid_post"] = direction
        present = [part for part in ("self_attn", "cross_attn", "ffn") if f"{path}.{part}.out" in values]
        for part, stream in reversed([*zip(present, ("resid_pre", "resid_mid", "resid_mid_cross"), strict=False)]):
            out, add_norm = values[f"{path}.{part}.out"], add_norm_of(layer, part)
            if not add_norm.norm_first:
                direction, added = _through(add_norm.norm, values[f"{path}.{stream}"] + out, direction)
                bias += added
            own, added = _through(add_norm.output_norm, out, direction)
            bias += added
            directions |= {f"{path}.{part}.out": own, f"{path}.{stream}": direction}
            if part == "ffn":
                found.append((str(Part(name, index + 1, 0, ffn=True)), (out * own).sum(dim=-1)))
                continue
            kind = "cross" if part == "cross_attn" else name
            results = (values[f"{path}.{part}.result"] * own[:, :, None]).sum(dim=-1)  # [B, T, H]
            each = enumerate(results.unbind(dim=-1), start=1)
            found += reversed([(str(Part(kind, index + 1, number)), result) for number, result in each])
            if (constant := layer.get_submodule(part).o_proj.bias) is not None:
                bias += own @ constant
    first = before[f"{name}.layers.0.resid_pre"]
    parts = {"embeddings": (first * direction).sum(dim=-1), **dict(reversed(found)), "biases": bias}
    replaced = [site for site in direct if values[site] is not before[site]]
    if any(not torch.equal(values[site], before[site]) for site in replaced):
        put = [((values[site] - before[site]) * directions[site]).sum(dim=-1) for site in replaced]
        parts["intervention"] = torch.stack(put).sum(dim=0)
    return parts


def _through(norm: Any, x: Tensor, direction: Tensor) -> tuple[Tensor, Tensor | float]:
    """A direction [B, T, D] before a norm whose scale is that of x [B, T, D], and what the norm's bias adds to it."""
    if norm is None or isinstance(norm, nn.Identity):
        return direction, 0.0
    before, centred = direction * norm.weight, isinstance(norm, nn.LayerNorm)
    if centred:
        before, x = before - before.mean(dim=-1, keepdim=True), x - x.mean(dim=-1, keepdim=True)
    eps = torch.finfo(x.dtype).eps if norm.eps is None else norm.eps
    scale = (x.square().mean(dim=-1, keepdim=True) + eps).sqrt()
    return before / scale, direction @ norm.bias if centred else 0.0
