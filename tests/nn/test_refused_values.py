"""Numbers out of range, or that do not fit together, are refused with the key to change and with themselves."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from minitx.nn import POSITION_IDS, POSITIONS, FeedForward, MultiHeadAttention, OptionError, TokenEmbedding, masks

HEADS = partial(MultiHeadAttention, d_model=8, n_heads=4)
ROPE, T5, FIRE = (partial(POSITIONS[name], 16, 4, 4, True) for name in ("rope", "t5", "fire"))


@pytest.mark.parametrize(
    ("build", "arguments", "key", "got"),
    [
        (HEADS, {"d_model": 10, "n_heads": 3}, "n_heads", "10.*3"),
        (HEADS, {"n_heads": 0}, "n_heads", "0"),
        (HEADS, {"d_model": 0}, "d_model", "0"),
        (HEADS, {"n_kv_heads": 3}, "n_kv_heads", "4 and 3"),
        (HEADS, {"n_kv_heads": 0}, "n_kv_heads", "4 and 0"),
        (HEADS, {"dropout": 1.0}, "attention_dropout", "1.0"),
        (HEADS, {"dropout": -0.1}, "attention_dropout", "-0.1"),
        (HEADS, {"window": 0}, "window", "0"),
        (HEADS, {"d_head": 0}, "d_head", "0"),
        (HEADS, {"softcap": 0.0}, "softcap", "0.0"),
        (masks.window, {"size": -3, "causal": True}, "window", "-3"),
        (masks.window, {"size": 2**31, "causal": True}, "window", "2147483648"),
        (masks.window, {"size": 6, "causal": False}, "window", "odd.*6"),
        (FeedForward, {"d_model": 8, "d_ff": 0}, "d_ff", "0"),
        (TokenEmbedding, {"vocab_size": 0, "d_model": 8}, "vocab_size", "0"),
        (partial(POSITIONS["sinusoidal"], 16, 4, 4, True), {"base": 1.0}, "position.base", "1.0"),
        (partial(POSITIONS["learned"], 16, 4, 4, True), {"max_len": 0}, "position.max_len", "0"),
        (ROPE, {"base": 1.0}, "position.base", "1.0"),
        (ROPE, {"factor": 0.5}, "position.factor", "0.5"),
        *((ROPE, {"fraction": value}, "position.fraction", str(value)) for value in (0.4, 0.0, 1.5)),
        (ROPE, {"fraction": 0.5, "scaling": "ntk"}, "position.scaling", "ntk"),
        (ROPE, {"scaling": "llama3", "low_freq_factor": 5.0}, "position.low_freq_factor", "5.0"),
        (ROPE, {"scaling": "llama3", "original_max_len": 0}, "position.original_max_len", "0"),
        (T5, {"buckets": 3}, "position.buckets", "3 and 128"),
        (T5, {"buckets": 64, "max_distance": 9}, "position.buckets", "64 and 9"),
        (FIRE, {"hidden": 0}, "position.hidden", "0"),
        (FIRE, {"threshold": 0.0}, "position.hidden and threshold", "0.0"),
        (partial(POSITION_IDS["offset"], True), {"largest": -1}, "position_ids.largest", "-1"),
        *((partial(POSITION_IDS["randomized"], True), {"range": 10, "longest": longest}, "position_ids.longest",
           f"{longest} and 10") for longest in (0, 11)),
    ],
)  # fmt: skip
def test_refusals_name_the_key_and_the_numbers(
    build: Callable[..., Any], arguments: dict[str, Any], key: str, got: str
) -> None:
    with pytest.raises(OptionError, match=rf"model\.{key}.* {got}"):
        build(**arguments)
