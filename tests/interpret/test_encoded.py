"""The encoded maps of the Attention tab are the softmax of the model's queries and keys, for every architecture."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from decoded_maps import decode
from minitx.inference.predictor import Predictor
from minitx.interpret.attention_maps import attention_maps, kind_of
from minitx.interpret.head_statistics import head_statistics
from minitx.interpret.recording import KINDS, wrapped_attention
from minitx.nn import POSITIONS
from predictors import EVERY, built

OPTIONS: dict[str, dict[str, Any]] = {"learned": {"max_len": 32}}
TEXTS = ["3 1 4 1", "5", "0 2"]
ANSWERS = ["1 4", "5 5 6", "2"]
VARIANTS: list[dict[str, Any]] = [
    {"window": 3, "qk_norm": True, "n_kv_heads": 1},
    {"softcap": 1.5},
    {"n_decoder_layers": 1},
    {"prefix_lm": True},
]


def predictor(architecture: str, scheme: str = "sinusoidal", **model: Any) -> Predictor:
    return built(architecture, position={"name": scheme, **OPTIONS.get(scheme, {})}, **model)


def by_hand(q: Any, k: Any, mask: Any, bias: Any, causal: bool, window: int | None, softcap: float | None) -> Any:
    """softmax(q k / sqrt(K) + bias) over the keys that may be seen, one number after another, in double precision."""
    batch, heads, queries, width = q.shape
    keys = k.shape[2]
    if mask is not None and mask.is_floating_point():  # what fused kernels read: the bias, -inf where a key is hidden
        mask, bias = mask > -math.inf, mask.masked_fill(mask == -math.inf, 0.0)
    seen = torch.ones(1, 1, 1, 1, dtype=torch.bool) if mask is None else mask
    seen = seen.expand(batch, heads, queries, keys).numpy()
    added = np.zeros((batch, heads, queries, keys)) if bias is None else bias.expand(seen.shape).double().numpy()
    q, k = q.double().numpy(), k.double().numpy()
    weights = np.zeros(seen.shape)
    for b, h, t in np.ndindex(batch, heads, queries):
        latest = t + keys - queries
        scores = {}
        for s in range(keys):
            reach = None if window is None else window - 1 if causal else window // 2
            hidden = (causal and s > latest) or (reach is not None and abs(s - latest) > reach)
            if seen[b, h, t, s] and not hidden:
                score = q[b, h, t] @ k[b, h * k.shape[1] // heads, s] / math.sqrt(width)
                scores[s] = (score if softcap is None else softcap * math.tanh(score / softcap)) + added[b, h, t, s]
        total = sum(math.exp(score) for score in scores.values())
        for s, score in scores.items():
            weights[b, h, t, s] = math.exp(score) / total
    return weights


def check(of: Predictor) -> None:
    found: dict[str, list[np.ndarray]] = {}

    def spy(path: str, inner: Any, q: Any, k: Any, v: Any, **options: Any) -> Any:
        rule = {key: options[key] for key in ("mask", "bias", "causal", "window", "softcap")}
        found.setdefault(kind_of(path), []).append(by_hand(q, k, **rule))
        return inner(q, k, v, **options)

    with torch.no_grad(), wrapped_attention(of.model, spy):
        maps = of.attend(TEXTS, None if of.architecture == "encoder_only" else ANSWERS)
    for example in range(len(TEXTS)):
        encoded = maps.encoded(example)
        assert list(encoded) == [kind for kind in KINDS if kind in found]
        for kind, items in encoded.items():
            header, shown = decode(items)
            assert len(header["heads"]) == len(found[kind])
            for one, exact in zip(shown, found[kind], strict=False):
                assert np.abs(one - exact[example]).max() <= 1 / 255 + 1e-5
            statistics = head_statistics(maps.layers(kind, example))
            assert header["statistics"] == [statistic._asdict() for statistic in statistics]
            queries, keys = ([label is not None for label in header[side]] for side in ("queries", "keys"))
            assert keys == sorted(keys, reverse=True), "padding is on the right"
            assert sum(keys) == len(maps.tokens[KINDS[kind][1]][example])
            for one in shown[: len(header["heads"])]:
                real = one[:, queries]  # [H, T, S]
                assert (real[:, :, np.logical_not(keys)] == 0).all(), "padding has weight"
                # A byte of the root is off by half a step at most, which adds up over the keys.
                assert np.abs(real.sum(-1) - 1).max() <= sum(keys) / 255


@pytest.mark.parametrize("scheme", POSITIONS)
@pytest.mark.parametrize("architecture", EVERY)
def test_encoded_weights_are_the_softmax_of_queries_and_keys(architecture: str, scheme: str) -> None:
    check(predictor(architecture, scheme))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("architecture", EVERY)
def test_variants_of_masks_heads_and_depth_are_encoded_likewise(architecture: str, variant: dict[str, Any]) -> None:
    needed = {"n_decoder_layers": "encoder_decoder", "prefix_lm": "decoder_only"}
    if needed.get(next(iter(variant)), architecture) == architecture:
        check(predictor(architecture, "rope", **variant))


@pytest.mark.parametrize("architecture", EVERY)
def test_weights_are_taken_before_dropout(architecture: str) -> None:
    """In training with dropout, the first layer has the probabilities without dropout."""
    dropping = predictor(architecture, "rope", attention_dropout=0.7)
    source, target = torch.tensor([[7, 8, 9, 10]]), torch.tensor([[8, 9, 7]])
    inputs = {"src_ids": source, "tgt_ids": target} if architecture == "encoder_decoder" else {"ids": source}
    tokens = {"source": [["a"] * 4], "target": [["b"] * (3 if architecture == "encoder_decoder" else 4)]}
    with torch.random.fork_rng():
        dropping.model.train()
        try:
            trained = attention_maps(dropping.model, inputs, tokens).encoded()
        finally:
            dropping.model.eval()
    evaluated = attention_maps(dropping.model, inputs, tokens).encoded()
    for kind, items in trained.items():
        shown, exact = decode(items)[1], decode(evaluated[kind])[1]
        if kind != "cross":  # whose queries have been through the dropout of the layer's self-attention
            assert np.abs(shown[0] - exact[0]).max() <= 1 / 255 + 1e-6
        for one in shown:
            assert np.abs(one.sum(-1) - 1).max() <= 4 / 255
    last = [decode(of[max(of)])[1][-1] for of in (trained, evaluated)]
    assert np.abs(last[0] - last[1]).max() > 1 / 255, "dropout was inactive"
