"""Batched products over whole buffers are torch's attention to their tokens, and are used where they are faster."""

import math
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minitx.compilation import batched_attention as batched
from minitx.compilation import recorded_step
from minitx.compilation.recorded_step import Recorder
from minitx.hardware import races
from minitx.nn import cache as nn_cache
from small_models import build_tiny, draw, pairwise
from tests.compilation.test_replay import check_equal, programs

IS_FASTER = batched.is_faster
CPU: Any = {"device": "cpu"}


def buffers(rows: int = 3, groups: int = 2, capacity: int = 9, width: int = 8) -> tuple[Tensor, Tensor]:
    """Keys and values; the heads of values are wider."""
    return torch.randn(rows, groups, capacity, width, **CPU), torch.randn(rows, groups, capacity, width + 2, **CPU)


@pairwise({"heads": [2, 6], "queries": [1, 4], "masks": ["none", "rows", "all"], "used": [1, 7, 9, None]})
def test_the_same_attention(heads: int, queries: int, masks: str, used: int | None) -> None:
    keys, values = buffers()
    q, tokens = torch.randn(3, heads, queries, 8, **CPU), 9 if used is None else used
    shape = (1, 1) if masks == "rows" else (heads, queries)
    mask = None if masks == "none" else torch.randn(3, *shape, tokens, **CPU)
    if mask is not None and tokens > 1:
        mask[1, ..., 0] = -math.inf
    expected = F.scaled_dot_product_attention(q, keys[:, :, :tokens], values[:, :, :tokens], mask, enable_gqa=True)
    torch.testing.assert_close(batched.batched_attention(q, keys, values, mask, used), expected)


OTHERS: list[dict[str, Any]] = [
    {"dropout_p": 0.5}, {"is_causal": True}, {"scale": 2.0}, {"attn_mask": torch.ones(1, 5, dtype=torch.bool, **CPU)},
    {"key": lambda part: part[:, :, 1:6]}, {"key": lambda part: part[:, :, ::2]},
    {"value": lambda part: part[:, :, :5] * 2}, {"value": lambda part: part[:, :, :5, :4]},
    {"query": lambda q: q[..., :4], "key": lambda k: k[:, :, :5, :4]}, {},
]  # fmt: skip


@pytest.mark.parametrize("change", OTHERS)
def test_what_else_a_user_asks_of_torchs_function_is_left_to_it(change: dict[str, Any]) -> None:
    keys, values = buffers()
    given = {"query": torch.randn(3, 2, 1, 8, **CPU), "key": keys[:, :, :5], "value": values[:, :, :5]}
    whole = {**given, "key": keys, "value": values}
    given |= {name: part(whole[name]) if name in given else part for name, part in change.items()}
    with Recorder((), None, [(keys, True), (values, True)]) as recorder:
        F.scaled_dot_product_attention(**given)
    own = F.scaled_dot_product_attention if change else batched.batched_attention
    assert recorder.calls[-1].function == own


@pytest.mark.parametrize(("seconds", "faster"), [(0.9, True), (0.96, False)])
def test_products_are_batched_where_that_is_faster(seconds, faster, tmp_path, monkeypatch) -> None:
    """Measured once for powers of two of rows and capacity (32), on all layers, and read by the next process."""
    monkeypatch.setenv("MINITX_CACHE", str(tmp_path))
    monkeypatch.setattr(batched, "MIN_NUMBERS", 0)
    monkeypatch.setattr(batched, "is_faster", IS_FASTER)
    monkeypatch.setattr(batched, "batched_attention", attend := Mock())
    durations = {"fused": 1.0, "batched": seconds}
    race = Mock(side_effect=lambda racers, limit: [run() for run in racers.values()] and durations)
    monkeypatch.setattr(races, "race", race)
    with torch.device("cpu"), torch.inference_mode():
        model = build_tiny("encoder_decoder", n_heads=4, n_kv_heads=2)
        for agreeing in (3, 1):
            monkeypatch.setattr(races, "AGREEING_MEASUREMENTS", agreeing)
            choices = batched.AttentionChoices()
            for rows, tokens, padded in ((3, 4, False), (4, 4, True), (5, 4, False), (4, 40, False)):
                cache = model.start(draw(rows, 20))
                model.step(draw(rows, tokens), cache, torch.arange(tokens).expand(rows, -1) > 0 if padded else None)
                assert choices.choose(cache, 4, 1) == (faster, faster)
                assert choices.choose(cache, 4, 3) == (faster, faster)
    assert race.call_count == len([*(tmp_path / "races").iterdir()]) == 11
    asked = {(mask if mask is None else mask.shape[2:], used) for *_, mask, used in (c.args for c in attend.mock_calls)}
    own = [(None, 18), ((1, 18), 18), ((3, 19), 19), (None, 52), ((3, 53), 53)]  # halfway to the capacity
    assert asked == {*own, (None, None)}
    assert attend.call_count == 11 * len(model.decoder.layers)


@pytest.mark.parametrize(("window", "layers"), [((None, 4), [1, 2]), ((None, 22), [1, 1]), (4, [2])])
def test_layers_with_a_window_are_measured_for_beams_alone(window: Any, layers: list[int], monkeypatch) -> None:
    """Beams keep all tokens."""
    monkeypatch.setattr(batched, "MIN_NUMBERS", 0)
    monkeypatch.setattr(batched, "is_faster", measured := Mock(side_effect=IS_FASTER))
    with torch.device("cpu"), torch.inference_mode():
        model = build_tiny("decoder_only", window=window)
        for beams in (1, 3):
            model.step(draw(2, 40), cache := model.start(), torch.arange(40).expand(2, -1) > 2)
            model.step(draw(2, beams), cache if beams == 1 else cache.branch(beams))
    assert [len(call.args[1]) for call in measured.mock_calls] == layers


def test_which_keys_and_values_are_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of tokens without a window, and those of the memory; none in another dtype, or that are small."""
    monkeypatch.setattr(batched, "is_faster", lambda *given: True)

    def calls(architecture: str, dtype: torch.dtype = torch.float32, **changes: Any) -> int:
        model = build_tiny(architecture, **changes).to(dtype)
        check_equal(model)
        graph = programs(model)[0].func.__self__.graph
        return sum(node.target is batched.batched_attention for node in graph.nodes)

    with torch.device("cpu"):
        assert calls("decoder_only") == 0
        monkeypatch.setattr(batched, "MIN_NUMBERS", 0)
        assert (layers := calls("decoder_only")) > 1
        assert calls("encoder_decoder") == 2 * layers
        assert calls("decoder_only", torch.float64) == calls("decoder_only", window=2) == 0
        assert calls("decoder_only", window=(None, 2)) == layers // 2
        monkeypatch.setattr(batched, "is_faster", lambda sizes, layers, used, *others: used is None)
        assert (calls("decoder_only"), calls("encoder_decoder")) == (0, layers)
        larger = nn_cache.FIRST_CAPACITY + 1
        monkeypatch.setattr(batched, "is_faster", lambda sizes, layers, *others: layers[0][0].size(2) >= larger)
        check_equal(model := build_tiny("decoder_only"), steps=larger + 8)
        assert len(programs(model)) == 2, "one with batched products once the buffers have grown"


def test_unused_capacity_is_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after they grow, and where their memory held NaN."""
    empty, layer = Tensor.new_empty, nn_cache.LayerCache()
    monkeypatch.setattr(Tensor, "new_empty", lambda own, *size: empty(own, *size).fill_(math.nan))
    for _ in range(3):
        layer.extend(*torch.randn(2, 1, 1, nn_cache.FIRST_CAPACITY - 1, 2))
        for buffer in layer.buffers:
            assert buffer.isfinite().all()
            assert not buffer[:, :, layer.used :].any()
            assert buffer[:, :, : layer.used].all()
    layer.extend(*torch.randn(2, 1, 1, 1000, 2, **CPU))
    assert 1.2 * layer.used < layer.buffers[0].size(2) < 1.3 * layer.used, "it grows by a quarter, not for each unit"


def test_a_model_with_attention_of_its_own_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_step, "MultiHeadAttention", type(None))
    check_equal(model := build_tiny("decoder_only"))
    assert all(programs(model))
