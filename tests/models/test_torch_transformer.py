"""The encoder-decoder against torch.nn.Transformer with the same weights: every part of the original Transformer."""

import pytest
import torch
from torch import Tensor, nn

from small_models import build_tiny, close, pairwise, ragged_inputs

NAMES = {
    **{f"{part}_proj.": "in_proj_" for part in "qkv"},  # torch's are one map
    "o_proj": "out_proj", "cross_attn": "multihead_attn", "ffn.up_proj": "linear1", "ffn.down_proj": "linear2",
    "add_norm_attn.norm": "norm1", "add_norm_self.norm": "norm1", "add_norm_cross.norm": "norm2",
}  # fmt: skip


def renamed(model: nn.Module) -> dict[str, Tensor]:
    """The weights of the layers and norms by torch's names."""
    found: dict[str, list[Tensor]] = {}
    for name, weight in model.state_dict().items():
        for ours, theirs in {**NAMES, "add_norm_ffn.norm": "norm2" if "encoder" in name else "norm3"}.items():
            name = name.replace(ours, theirs)
        if name.startswith(("encoder.", "decoder.")) and "position" not in name:
            found.setdefault(name, []).append(weight)
    return {name: torch.cat(parts) for name, parts in found.items()}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pairwise({"position": ["none", "sinusoidal", "learned"], "activation": ["relu", "gelu"], "norm_first": [False, True]})
def test_outputs_and_gradients_equal(norm_first: bool, activation: str, position: str) -> None:
    ours = build_tiny("encoder_decoder", position, norm_first=norm_first, activation=activation)
    ours.head, width = nn.Identity(), ours.encoder.layers[0].ffn.up_proj.out_features
    theirs = nn.Transformer(16, 4, 2, 2, width, 0.0, activation, norm_first=norm_first, batch_first=True)
    for stack in () if norm_first else (theirs.encoder, theirs.decoder):
        stack.norm = None  # torch has final norms in post-norm models too
    theirs.load_state_dict(renamed(ours))
    src, tgt, src_keep, tgt_keep = ragged_inputs("encoder_decoder")
    expected = theirs(
        *(getattr(ours, stack).position.embed(ours.embedding(ids), torch.arange(ids.size(1))[None])
          for stack, ids in (("encoder", src), ("decoder", tgt))),
        tgt_mask=~torch.ones(2 * tgt.shape[1:], dtype=torch.bool).tril(),
        src_key_padding_mask=~src_keep, memory_key_padding_mask=~src_keep, tgt_key_padding_mask=~tgt_keep,
    )  # fmt: skip
    out, table = ours(src, tgt, src_keep, tgt_keep), ours.embedding.table.weight
    close(out[tgt_keep], expected[tgt_keep])
    close(*[torch.autograd.grad(each[tgt_keep].square().sum(), table)[0] for each in (out, expected)], 1e-4)
