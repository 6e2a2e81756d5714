"""The parts of a model as a config asks for them: the one place that knows config and nn/ together.

The three models in transformers.py are put together from these.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torch import nn

from minitx.config.registry import build
from minitx.config.schema import ModelConfig
from minitx.models.initialization import init_weights
from minitx.models.transformers import ARCHITECTURES, DecoderOnly, EncoderDecoder, EncoderOnly, Transformer
from minitx.nn import (
    POSITION_IDS,
    POSITIONS,
    ConsecutiveIds,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
    FeedForward,
    Head,
    HeadTransform,
    MultiHeadAttention,
    NoPositions,
    TokenEmbedding,
    build_norm,
    masks,
)


def vocab_size(config: ModelConfig) -> int:
    """The number of tokens, which must be known by now."""
    if config.vocab_size is None:
        raise ValueError("model.vocab_size is missing: the tokenizer usually tells it")
    return config.vocab_size


def _position(config: ModelConfig, causal: bool) -> NoPositions:
    d_head = config.d_model // config.n_heads if config.d_head is None else config.d_head
    return build(
        POSITIONS, config.position, "model.position",
        d_model=config.d_model, n_heads=config.n_heads, d_head=d_head, causal=causal,
    )  # fmt: skip


def _positions(config: ModelConfig, causal: bool, layers: int) -> tuple[NoPositions, list[NoPositions]]:
    """The scheme of a stack and of each of its layers: one for all, or one for each layer and none for the stack."""
    first, *others = (_position(config, causal) for _ in range(layers))
    if first.shared:
        return first, [first] * layers
    return NoPositions(config.d_model, config.n_heads, 0, causal), [first, *others]


def _attention(config: ModelConfig, position: NoPositions | None) -> MultiHeadAttention:
    """Self-attention with a position scheme; cross-attention, which has neither positions nor a window, without."""
    return MultiHeadAttention(
        config.d_model,
        config.n_heads,
        config.n_kv_heads,
        config.d_head,
        position=position,
        window=config.window if position is not None else None,
        dropout=config.attention_dropout,
        qk_norm=config.qk_norm,
        bias=config.bias,
        softcap=config.softcap,
        qkv_bias=config.qkv_bias,
    )


def _norm(config: ModelConfig) -> nn.Module:
    return build_norm(config.norm, config.d_model, config.norm_eps)


def _ffn(config: ModelConfig) -> FeedForward | None:
    if config.d_ff == 0:
        return None
    d_ff = 4 * config.d_model if config.d_ff is None else config.d_ff
    return FeedForward(config.d_model, d_ff, config.activation, config.dropout, config.bias)


def _around(config: ModelConfig, position: NoPositions, causal: bool) -> dict[str, Any]:
    """What a stack has below and above its layers; pre-norm layers leave their sum unnormalised."""
    position_ids: ConsecutiveIds = build(POSITION_IDS, config.position_ids, "model.position_ids", causal=causal)
    if position.max_len is not None and position_ids.room(position.max_len) < 1:
        raise ValueError(
            f"model.position.max_len must be larger for model.position_ids.name {config.position_ids['name']}, whose "
            f"ids go past it, got {position.max_len}"
        )
    return {
        "position_ids": position_ids,
        "norm": _norm(config) if config.norm_first else None,
        "dropout": config.dropout,
        "embedding_norm": _norm(config) if config.embedding_norm else None,
    }


def encoder(config: ModelConfig) -> EncoderStack:
    """n_layers bidirectional layers."""
    if config.window is not None:
        masks.window(config.window, causal=False)  # refuses a size that has no middle
    position, of_layers = _positions(config, False, config.n_layers)
    layers = (
        EncoderLayer(
            _attention(config, own),
            _ffn(config),
            config.d_model,
            config.norm_first,
            config.dropout,
            config.norm,
            config.norm_eps,
        )
        for own in of_layers
    )
    return EncoderStack(layers, position, **_around(config, position, causal=False))


def decoder(config: ModelConfig, cross: bool) -> DecoderStack:
    """Causal layers, with cross-attention to an encoder's output or without."""
    position, of_layers = _positions(config, True, config.decoder_layers)
    layers = (
        DecoderLayer(
            _attention(config, own),
            _ffn(config),
            config.d_model,
            _attention(config, None) if cross else None,
            config.norm_first,
            config.dropout,
            config.norm,
            config.norm_eps,
        )
        for own in of_layers
    )
    return DecoderStack(layers, position, **_around(config, position, causal=True))


def embedding(config: ModelConfig) -> TokenEmbedding:
    """Vectors of tokens."""
    return TokenEmbedding(vocab_size(config), config.d_model, config.scale_embeddings)


def head(config: ModelConfig, embedding: TokenEmbedding) -> Head:
    """Scores over the vocabulary, from the embedding's table or from one of their own."""
    transform = HeadTransform(config.d_model, config.activation, _norm(config)) if config.head_transform else None
    tied = embedding if config.tie_embeddings else None
    return Head(vocab_size(config), config.d_model, tied, config.head_bias, transform)


def _encoder_decoder(config: ModelConfig) -> EncoderDecoder:
    table = embedding(config)
    return EncoderDecoder(table, encoder(config), decoder(config, cross=True), head(config, table), config.window)


def _decoder_only(config: ModelConfig) -> DecoderOnly:
    table = embedding(config)
    return DecoderOnly(table, decoder(config, cross=False), head(config, table), config.window, config.prefix_lm)


def _encoder_only(config: ModelConfig) -> EncoderOnly:
    table = embedding(config)
    return EncoderOnly(table, encoder(config), head(config, table))


_BUILDERS: dict[str, Callable[[ModelConfig], Transformer]] = {
    "encoder_decoder": _encoder_decoder,
    "decoder_only": _decoder_only,
    "encoder_only": _encoder_only,
}


def build_model(config: ModelConfig, vocab_size: int | None = None) -> Transformer:
    """Build and initialise the model that a config describes.

    Args:
        config: what to build.
        vocab_size: number of tokens V, where config.vocab_size leaves it open.

    Raises:
        ValueError: numbers that do not fit together, naming the key to change.
    """
    if config.vocab_size is None and vocab_size is not None:
        config = dataclasses.replace(config, vocab_size=vocab_size)
    if not 0.0 <= config.dropout < 1.0:
        raise ValueError(f"model.dropout must lie in [0, 1), got {config.dropout}")
    for name in ("d_model", "n_heads", "n_layers"):
        if getattr(config, name) < 1:
            raise ValueError(f"model.{name} must be at least 1, got {getattr(config, name)}")
    if config.n_decoder_layers is not None:
        if config.architecture != "encoder_decoder":
            raise ValueError(f"model.n_decoder_layers is for encoder_decoder; {config.architecture} has n_layers only")
        if config.n_decoder_layers < 1:
            raise ValueError(f"model.n_decoder_layers must be at least 1, got {config.n_decoder_layers}")
    if config.prefix_lm and (config.architecture != "decoder_only" or config.window is not None):
        told = f"got {config.architecture} with model.window {config.window}"
        raise ValueError(f"model.prefix_lm is for decoder_only without model.window, {told}")
    if config.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"model.architecture must be one of {known}, got {config.architecture!r}")
    model = _BUILDERS[config.architecture](config)
    init_weights(model, config)
    return model
