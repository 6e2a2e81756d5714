"""Build a model from its config: the one file that imports both config and nn/."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn

from minitx.config.errors import ConfigError
from minitx.config.registry import build, resolve
from minitx.config.schema import ModelConfig
from minitx.models.initialization import init_weights
from minitx.models.transformers import DecoderOnly, EncoderDecoder, EncoderOnly, Transformer
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
    OptionError,
    TokenEmbedding,
    build_norm,
)
from minitx.nn.positions import GIVEN


def resolved_positions(config: ModelConfig) -> ModelConfig:
    """Fill in every option of the open sections of a model.

    Raises:
        ConfigError: with a line for each option that is unknown or does not fit.
    """
    found: dict[str, Any] = {}
    mistakes: list[str] = []
    for section, registry in (("position", POSITIONS), ("position_ids", POSITION_IDS)):
        try:
            found[section] = resolve(registry, getattr(config, section), f"model.{section}", GIVEN)
        except ConfigError as error:
            mistakes.append(str(error))
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return dataclasses.replace(config, **found)


def build_model(config: ModelConfig, vocab_size: int | None = None) -> Transformer:
    """Build and initialise the model that a config describes.

    Args:
        config: describes the model.
        vocab_size: number of tokens V, if config.vocab_size is None.

    Raises:
        ConfigError: numbers that do not fit together, naming the key to change.
    """
    if config.vocab_size is None and vocab_size is not None:
        config = dataclasses.replace(config, vocab_size=vocab_size)
    try:
        model = _build(config)
    except OptionError as error:
        raise ConfigError(str(error)) from None
    init_weights(model, config)
    return model


def _build(config: ModelConfig) -> Transformer:
    """The model with the default weights of its modules."""
    if config.vocab_size is None:
        raise ConfigError("model.vocab_size is missing: the tokenizer usually sets it")
    embedding = TokenEmbedding(config.vocab_size, config.d_model, config.scale_embeddings)
    if config.architecture == "encoder_only":
        return EncoderOnly(embedding, _encoder(config), _head(config, embedding))
    if config.architecture == "decoder_only":
        return DecoderOnly(embedding, _decoder(config, False), _head(config, embedding), config.prefix_lm)
    return EncoderDecoder(embedding, _encoder(config), _decoder(config, True), _head(config, embedding))


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


def _attention(config: ModelConfig, position: NoPositions | None = None) -> MultiHeadAttention:
    """Self-attention with a position scheme, or cross-attention, which has neither positions nor a window."""
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


def _stack_options(config: ModelConfig, position: NoPositions, causal: bool) -> dict[str, Any]:
    """Everything of a stack but its layers; pre-norm layers need a norm at the end."""
    position_ids: ConsecutiveIds = build(POSITION_IDS, config.position_ids, "model.position_ids", causal=causal)
    if position.max_len is not None and position_ids.max_tokens(position.max_len) < 1:
        raise OptionError(
            f"model.position.max_len must be larger for model.position_ids.name {config.position_ids['name']}, whose "
            f"ids go past it, got {position.max_len}"
        )
    return {
        "position_ids": position_ids,
        "norm": _norm(config) if config.norm_first else None,
        "dropout": config.dropout,
        "embedding_norm": _norm(config) if config.embedding_norm else None,
    }


def _encoder(config: ModelConfig) -> EncoderStack:
    """n_layers bidirectional layers."""
    position, schemes = _positions(config, False, config.n_layers)
    d_model, add_norm = config.d_model, (config.norm_first, config.dropout, config.norm, config.norm_eps)
    layers = (EncoderLayer(_attention(config, own), _ffn(config), d_model, *add_norm) for own in schemes)
    return EncoderStack(layers, position, **_stack_options(config, position, causal=False))


def _decoder(config: ModelConfig, cross: bool) -> DecoderStack:
    """Causal layers, with cross-attention to an encoder's output or without."""
    position, schemes = _positions(config, True, config.decoder_layers)
    d_model, add_norm = config.d_model, (config.norm_first, config.dropout, config.norm, config.norm_eps)
    layers = (
        DecoderLayer(_attention(config, own), _ffn(config), d_model, _attention(config) if cross else None, *add_norm)
        for own in schemes
    )
    return DecoderStack(layers, position, **_stack_options(config, position, causal=True))


def _head(config: ModelConfig, embedding: TokenEmbedding) -> Head:
    """Scores over the vocabulary, with the embedding's table or a table of its own."""
    transform = HeadTransform(config.d_model, config.activation, _norm(config)) if config.head_transform else None
    tied = embedding if config.tie_embeddings else None
    return Head(embedding.table.num_embeddings, config.d_model, tied, config.head_bias, transform)
