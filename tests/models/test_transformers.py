"""The three models as wholes: construction, first weights, and the encoder-decoder against torch.nn.Transformer."""

import math
from copy import deepcopy
from functools import partial
from itertools import combinations

import pytest
import torch
from torch import Tensor, nn

from minitx.config.schema import ModelConfig
from minitx.models.builder import build_model
from minitx.models.transformers import max_positions
from minitx.nn import POSITIONS, AddNorm, FeedForward, MultiHeadAttention, Stack
from small_models import VOCAB, build_tiny, close, draw, every_architecture, keep_of, pairwise, ragged_inputs

D = 16


def fresh(architecture: str = "encoder_decoder", **changes):
    """A model as build_model leaves it."""
    sizes = {"d_model": D, "n_heads": 4, "n_layers": 2, "d_ff": 24, "vocab_size": VOCAB}
    return build_model(ModelConfig(architecture=architecture, **{**sizes, **changes}))  # type: ignore[arg-type]


@pytest.mark.parametrize("architecture", ["decoder_only", "encoder_only"])
def test_models_of_one_sequence_are_called_alike(architecture: str) -> None:
    model, (ids, keep) = fresh(architecture).eval(), (draw(2, 5), keep_of(5, 3))
    assert torch.equal(model(ids, keep, None), model(ids, keep=keep, cache=None))
    with torch.device("cpu"), pytest.raises(ValueError, match=rf"ids must be in \[0, {VOCAB}\), got 1 to {VOCAB}"):
        model.cpu()(torch.tensor([[1, VOCAB]]))  # a GPU checks no id


@every_architecture
@pytest.mark.parametrize("name", POSITIONS)
def test_no_two_layers_start_equal(name: str, architecture: str) -> None:
    model = fresh(architecture, position={"name": name}, n_layers=3)
    matrices = [(path, part) for path, part in model.named_parameters() if part.dim() > 1]
    for (one, first), (other, second) in combinations(matrices, 2):
        if first.shape == second.shape:
            assert not torch.equal(first, second), f"{one} equals {other}"
    for stack in (part for part in (getattr(model, "encoder", None), getattr(model, "decoder", None)) if part):
        assert len({id(layer.self_attn) for layer in stack.layers}) == 3
        assert len({id(layer.self_attn.position) for layer in stack.layers}) == (3 if name == "transformer_xl" else 1)
        assert name != "transformer_xl" or not [*stack.position.parameters()]


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:There is a performance drop")
def test_torchs_other_ways_to_build_and_to_call_a_model(name: str) -> None:
    """Traced; on the meta device, then with weights assigned; with given weights, which it does not keep."""
    model = build_tiny("encoder_decoder", name, parallel_residual=True, shared_norm=True)
    inputs = draw(3, 6), draw(3, 5)
    expected = model(*inputs)
    close(torch.jit.trace(model, inputs, check_trace=False)(*inputs), expected)
    with torch.device("meta"):
        other = fresh(position={"name": name}, parallel_residual=True, shared_norm=True).eval()
    assert other(*(ids.to("meta") for ids in inputs)).is_meta
    other.load_state_dict(model.state_dict(), assign=True)
    close(other(*inputs), expected)
    gradient = torch.func.grad(lambda weights, *ids: torch.func.functional_call(model, weights, ids).sum())
    weights = {path: 2 * weight for path, weight in model.named_parameters()}
    torch.func.vmap(gradient, (None, 0, 0))(weights, *(ids[:, None] for ids in inputs))
    close(deepcopy(model)(*inputs), expected)


def test_vocab_size_comes_from_the_config_or_else_from_the_tokenizer() -> None:
    assert [build_model(ModelConfig(vocab_size=own), 7).head.out_features for own in (9, None)] == [9, 7]


@pytest.mark.parametrize(("changes", "key", "number"), [
    ({"vocab_size": None}, "model.vocab_size", ""),
    ({"window": 10**40}, "model.window", "below 2,147,483,648"),
    ({"window": [3], "window_position": {"name": "learned"}}, "model.window_position", "learned"),
    ({"window_position": {"name": "rope", "base": 0.5}}, "model.window_position.base", "0.5"),
    ({"position": {"name": "sinusoidal", "bas": 2.0}}, "model.position.bas", "model.position.base"),
    *(({"prefix_lm": True, **changes}, "model.prefix_lm", "with") for changes in
      ({"architecture": "encoder_only"}, {}, {"architecture": "decoder_only", "window": 4})),
], ids=str)  # fmt: skip
def test_build_model_refusals_name_the_key_and_the_number(changes: dict, key: str, number: str) -> None:
    with pytest.raises(ValueError, match=key.replace(".", r"\.")) as refusal:
        fresh(**{"architecture": "encoder_decoder", **changes})
    assert number in str(refusal.value)


@every_architecture
def test_max_positions_is_the_smallest_table(architecture: str) -> None:
    assert max_positions(fresh(architecture, position={"name": "learned", "max_len": 20})) == 20
    assert max_positions(fresh(architecture, position={"name": "sinusoidal"})) is None
    assert max_positions(nn.Linear(2, 2)) is None
    randomized = fresh(architecture, position_ids={"name": "randomized", "range": 12, "longest": 9})
    assert max_positions(randomized) == (12 if architecture == "encoder_only" else 9), "without a table"
    if architecture == "encoder_decoder":
        model = fresh(architecture, position={"name": "learned", "max_len": 20})
        model.decoder.position.max_len = 9
        assert max_positions(model) == 9


@pytest.mark.parametrize(("position_ids", "max_len", "tokens"), [
    ({"name": "randomized", "range": 30, "longest": 5}, 30, 5),
    ({"name": "offset", "largest": 30}, 31, 1), ({"name": "coupled"}, 2, 1),
], ids=str)  # fmt: skip
def test_a_table_too_small_for_the_ids_is_refused(position_ids: dict, max_len: int, tokens: int) -> None:
    """The smallest that is not serves so many tokens."""
    build = partial(fresh, "decoder_only", position_ids=position_ids)
    assert max_positions(build(position={"name": "learned", "max_len": max_len})) == tokens
    with pytest.raises(ValueError, match=rf"model\.position\.max_len.*model\.position_ids\.name.* {max_len - 1}"):
        build(position={"name": "learned", "max_len": max_len - 1})


def test_a_sequence_past_the_table_is_refused() -> None:
    model = fresh("decoder_only", position={"name": "learned", "max_len": 6})
    model(draw(1, 6))
    model(draw(2, 9), keep_of(6, 2, width=9))  # padding needs no position
    model.decoder.position.table.register_forward_pre_hook(lambda *_: pytest.fail("a GPU ends the process here"))
    with pytest.raises(ValueError, match=r"ids 0 to 6 must fit model\.position\.max_len 6"):
        model(draw(1, 7))


@every_architecture
@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize(("window", "shared"), [(3, True), ((3, None), True), (None, False)])
def test_every_weight_to_be_trained_has_a_gradient(window, shared, name, architecture, monkeypatch) -> None:
    """Also where no layer uses the scheme of those without a window: an optimizer has no state of its weights."""
    monkeypatch.setattr(POSITIONS[name], "shared", name == "learned" or (shared and POSITIONS[name].shared))
    model = fresh(architecture, window=window, position={"name": name}, window_position={"name": "t5"})
    model(*(draw(2, 6) for _ in range(1 + (architecture == "encoder_decoder")))).sum().backward()
    assert [path for path, part in model.named_parameters() if part.requires_grad and part.grad is None] == []


def test_dropout_windows_and_their_positions_reach_every_layer() -> None:
    """Other keys change logits, which are compared with those of other implementations."""
    dropout = {"dropout": 0.1, "attention_dropout": 0.2}
    model = fresh(n_layers=3, d_ff=None, window=(3, None), window_position={"name": "rope"}, **dropout)
    for stack in (model.encoder, model.decoder):
        assert [layer.self_attn.window for layer in stack.layers] == [3, None, 3]
        first, second, third = [layer.self_attn.position for layer in stack.layers]
        assert second is stack.position
        assert first is third
        assert isinstance(first, POSITIONS["rope"])
        assert {layer.ffn.up_proj.out_features for layer in stack.layers} == {4 * D}
    assert {layer.cross_attn.window for layer in model.decoder.layers} == {None}  # source indices are not near target's
    assert {part.dropout for part in model.modules() if isinstance(part, MultiHeadAttention)} == {0.2}
    assert {part.dropout for part in model.modules() if isinstance(part, AddNorm | FeedForward | Stack)} == {0.1}


@every_architecture
@pytest.mark.parametrize(("tied", "scaled"), [(True, True), (False, True), (True, False)])
def test_first_weights_follow_their_table(tied: bool, scaled: bool, architecture: str) -> None:
    """Spreads over some 10 000 draws each, to 5 %."""
    d_model, decoder_layers = 64, 2 if architecture == "encoder_decoder" else 3
    model = fresh(
        architecture, d_model=d_model, d_ff=128, n_layers=3, n_heads=4, vocab_size=300, qk_norm=True,
        tie_embeddings=tied, position={"name": "learned", "max_len": 200}, scale_residual=scaled,
        n_decoder_layers=decoder_layers if architecture == "encoder_decoder" else None,
    )  # fmt: skip

    def spread(weight: Tensor, expected: float) -> None:
        assert weight.std().item() == pytest.approx(expected, rel=0.05)
        assert abs(weight.mean().item()) < 0.05 * expected

    model.load_state_dict(model.state_dict())
    head, table = model.head.weight, model.embedding.table.weight
    assert (head is table) == torch.equal(head, table) == tied
    spread(table, d_model**-0.5)
    spread(head, d_model**-0.5)
    spread(model.embedding(torch.arange(300)[None]), 1.0)
    residual = 0
    for path, part in model.named_modules():
        if isinstance(part, nn.Linear) and part is not model.head:
            xavier = math.sqrt(2 / (part.in_features + part.out_features))
            if path.endswith(("o_proj", "down_proj")):
                residual += 1
                layers = decoder_layers if path.startswith("decoder.") else 3
                xavier /= math.sqrt(2 * layers) if scaled else 1.0
            spread(part.weight, xavier)
            assert part.weight.abs().max() <= xavier * math.sqrt(3) + 1e-6  # uniform, not normal
            assert (part.bias == 0).all()
        elif isinstance(part, nn.LayerNorm | nn.RMSNorm):
            assert (part.weight == 1).all()
            assert isinstance(part, nn.RMSNorm) or (part.bias == 0).all()
        elif isinstance(part, POSITIONS["learned"]):
            spread(part.table.weight, 0.02)
    assert residual == (3 * 2 + 2 * 3 if architecture == "encoder_decoder" else 3 * 2)


def test_fire_starts_with_its_threshold_and_rate() -> None:
    """The paper's initial weights: its distances are a share of `threshold`, and its network has torch's own range."""
    fire = fresh("decoder_only", position={"name": "fire", "hidden": 400, "threshold": 8.0}).decoder.position
    assert (fire.rate.item(), fire.scale.item(), fire.shift.any().item()) == (pytest.approx(0.1), 1.0, False)
    for weight, limit in ((fire.slopes, 1.0), (fire.offsets, 1.0), (fire.readout, 400**-0.5)):
        assert weight.abs().max() <= limit
        assert weight.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.1)


NAMES = {
    **{f"{part}_proj.": "in_proj_" for part in "qkv"},  # torch's are one map
    "o_proj": "out_proj", "cross_attn": "multihead_attn", "ffn.up_proj": "linear1", "ffn.down_proj": "linear2",
    "add_norm_attn.norm": "norm1", "add_norm_self.norm": "norm1", "add_norm_cross.norm": "norm2",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pairwise({"position": ["none", "sinusoidal", "learned"], "activation": ["relu", "gelu"], "norm_first": [False, True]})
def test_outputs_and_gradients_equal_those_of_torch(norm_first: bool, activation: str, position: str) -> None:
    """With the same weights: every part of the original Transformer."""
    ours = build_tiny("encoder_decoder", position, norm_first=norm_first, activation=activation)
    ours.head, width = nn.Identity(), ours.encoder.layers[0].ffn.up_proj.out_features
    theirs = nn.Transformer(16, 4, 2, 2, width, 0.0, activation, norm_first=norm_first, batch_first=True)
    for stack in () if norm_first else (theirs.encoder, theirs.decoder):
        stack.norm = None  # torch has final norms in post-norm models too
    weights: dict[str, list[Tensor]] = {}
    for name, weight in ours.state_dict().items():
        for own, torchs in {**NAMES, "add_norm_ffn.norm": "norm2" if "encoder" in name else "norm3"}.items():
            name = name.replace(own, torchs)
        if name.startswith(("encoder.", "decoder.")) and "position" not in name:
            weights.setdefault(name, []).append(weight)
    theirs.load_state_dict({name: torch.cat(parts) for name, parts in weights.items()})
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
