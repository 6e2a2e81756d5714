"""The three Transformers, built from the parts in nn/. Knows shapes and configs; nothing of text, tasks or training.

Legend: B batch, T target tokens, S source tokens, D d_model, V vocabulary.
`keep` marks real tokens (True) among padding; None says that all are real.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from minitx.config import ModelConfig
from minitx.nn import (
    POSITIONS,
    Cache,
    DecoderLayer,
    DecoderStack,
    EncoderLayer,
    EncoderStack,
    FeedForward,
    Head,
    MultiHeadAttention,
    NoPositions,
    TokenEmbedding,
    build_norm,
    masks,
)
from minitx.nn.position_ids import consecutive
from minitx.options import build


class EncoderDecoder(nn.Module):
    """The Transformer of "Attention Is All You Need" (Vaswani et al. 2017); source and target share one embedding."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(_vocab_size(config), config.d_model)
        self.encoder = _encoder(config)
        self.decoder = _decoder(config, cross=True)
        self.head = _head(config, self.embedding)

    def forward(
        self, src_ids: Tensor, tgt_ids: Tensor, src_keep: Tensor | None = None, tgt_keep: Tensor | None = None
    ) -> Tensor:
        """Scores of the token after each target token: src_ids [B, S], tgt_ids [B, T] to logits [B, T, V]."""
        return self.decode(tgt_ids, self.encode(src_ids, src_keep), src_keep, tgt_keep)

    def encode(self, src_ids: Tensor, src_keep: Tensor | None = None) -> Tensor:
        """src_ids [B, S] to the memory [B, S, D]."""
        return self.encoder(self.embedding(src_ids), src_keep)

    def decode(
        self,
        tgt_ids: Tensor,
        memory: Tensor,
        src_keep: Tensor | None = None,
        tgt_keep: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """tgt_ids [B, T] and the memory [B, S, D] to logits [B, T, V]; with a cache, tgt_ids are the new tokens."""
        return _decode(self, tgt_ids, tgt_keep, memory, src_keep, cache)

    def start(self, src_ids: Tensor, src_keep: Tensor | None = None) -> Cache:
        """Read the source once; the cache is then handed to step."""
        return Cache(self.encode(src_ids, src_keep), src_keep)

    def step(self, ids: Tensor, cache: Cache, keep: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] after the new target tokens ids [B, T]."""
        assert cache.memory is not None  # start put it there
        return self.decode(ids, cache.memory, cache.memory_keep, keep, cache)


class DecoderOnly(nn.Module):
    """A causal language model (GPT; Radford et al. 2018)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(_vocab_size(config), config.d_model)
        self.decoder = _decoder(config, cross=False)
        self.head = _head(config, self.embedding)

    def forward(self, ids: Tensor, keep: Tensor | None = None, cache: Cache | None = None) -> Tensor:
        """Scores of the token after each token: ids [B, T] to logits [B, T, V]; a cache makes them new tokens."""
        return _decode(self, ids, keep, cache=cache)

    def start(self) -> Cache:
        """An empty cache; the prompt is the first thing handed to step."""
        return Cache()

    def step(self, ids: Tensor, cache: Cache, keep: Tensor | None = None) -> Tensor:
        """Logits [B, T, V] after the new tokens ids [B, T]; keep [B, T] marks padding on the left of prompts."""
        return self(ids, keep, cache)


class EncoderOnly(nn.Module):
    """A bidirectional encoder with an output at each position (BERT; Devlin et al. 2019)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embedding = TokenEmbedding(_vocab_size(config), config.d_model)
        self.encoder = _encoder(config)
        self.head = _head(config, self.embedding)

    def forward(self, ids: Tensor, keep: Tensor | None = None) -> Tensor:
        """Scores for each position: ids [B, T] to logits [B, T, V]."""
        return self.head(self.encoder(self.embedding(ids), keep))


Transformer = EncoderDecoder | DecoderOnly | EncoderOnly
ARCHITECTURES: dict[str, type[EncoderDecoder] | type[DecoderOnly] | type[EncoderOnly]] = {
    "encoder_decoder": EncoderDecoder,
    "decoder_only": DecoderOnly,
    "encoder_only": EncoderOnly,
}
"""Models by model.architecture."""


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
    if config.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ValueError(f"model.architecture must be one of {known}, got {config.architecture!r}")
    model = ARCHITECTURES[config.architecture](config)
    init_weights(model, config)
    return model


def max_positions(model: nn.Module) -> int | None:
    """The longest sequence that the model's position schemes can tell apart; None for any length."""
    limits = [part.max_len for part in model.modules() if isinstance(part, NoPositions) and part.max_len is not None]
    return min(limits, default=None)


def init_weights(model: nn.Module, config: ModelConfig) -> None:
    """Draw the first weights.

    | what                       | how                         | why                                                |
    |----------------------------|-----------------------------|----------------------------------------------------|
    | token embedding, tied head | normal, std 1 / sqrt(D)     | unit variance once scaled; logits of size one      |
    | head with its own table    | normal, std 1 / sqrt(D)     | logits of size one                                 |
    | tables of positions        | normal, std 0.02            | small beside the tokens until trained              |
    | linear maps                | Xavier uniform              | variance kept (Glorot and Bengio 2010)             |
    | o_proj, down_proj          | the same / sqrt(2 n_layers) | the residual sum keeps its size with depth (GPT-2) |
    | biases                     | 0                           |                                                    |
    | norms                      | weight 1, bias 0            | the identity                                       |
    """
    for name, part in model.named_modules():
        if isinstance(part, Head):
            nn.init.normal_(part.weight, std=part.in_features**-0.5)
        elif isinstance(part, nn.Linear):
            into_residual = name.endswith(("o_proj", "down_proj"))
            layers = _decoder_layers(config) if name.startswith("decoder.") else config.n_layers
            nn.init.xavier_uniform_(part.weight, gain=(2 * layers) ** -0.5 if into_residual else 1.0)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, TokenEmbedding):
            nn.init.normal_(part.table.weight, std=part.table.embedding_dim**-0.5)
        elif isinstance(part, NoPositions):
            for table in part.parameters():
                nn.init.normal_(table, std=0.02)  # linear maps among them come later in this walk, as any other


def _vocab_size(config: ModelConfig) -> int:
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
    )


def _ffn(config: ModelConfig) -> FeedForward:
    d_ff = 4 * config.d_model if config.d_ff is None else config.d_ff
    return FeedForward(config.d_model, d_ff, config.activation, config.dropout, config.bias)


def _final_norm(config: ModelConfig) -> nn.Module | None:
    """Pre-norm layers leave their sum unnormalised; post-norm layers do not."""
    return build_norm(config.norm, config.d_model) if config.norm_first else None


def _encoder(config: ModelConfig) -> EncoderStack:
    if config.window is not None:
        masks.window(config.window, causal=False)  # refuses a size that has no middle
    position, of_layers = _positions(config, False, config.n_layers)
    layers = (
        EncoderLayer(
            _attention(config, own), _ffn(config), config.d_model, config.norm_first, config.dropout, config.norm
        )
        for own in of_layers
    )
    return EncoderStack(layers, position, _final_norm(config), config.dropout)


def _decoder_layers(config: ModelConfig) -> int:
    """A decoder alone has n_layers; one beside an encoder may have its own number."""
    own = config.n_decoder_layers if config.architecture == "encoder_decoder" else None
    return config.n_layers if own is None else own


def _decoder(config: ModelConfig, cross: bool) -> DecoderStack:
    position, of_layers = _positions(config, True, _decoder_layers(config))
    layers = (
        DecoderLayer(
            _attention(config, own),
            _ffn(config),
            config.d_model,
            _attention(config, None) if cross else None,
            config.norm_first,
            config.dropout,
            config.norm,
        )
        for own in of_layers
    )
    return DecoderStack(layers, position, _final_norm(config), config.dropout)


def _head(config: ModelConfig, embedding: TokenEmbedding) -> Head:
    return Head(_vocab_size(config), config.d_model, embedding if config.tie_embeddings else None)


def _decode(
    model: EncoderDecoder | DecoderOnly,
    ids: Tensor,
    keep: Tensor | None,
    memory: Tensor | None = None,
    memory_keep: Tensor | None = None,
    cache: Cache | None = None,
) -> Tensor:
    """The decoder's way from ids to logits, the same with and without a memory, with and without a cache."""
    if cache is None:
        pos = consecutive(ids.size(1), keep, device=ids.device)
    else:
        pos = cache.admit(ids, keep)
        keep = cache.keep
    x = model.decoder(model.embedding(ids), pos, keep, memory, memory_keep, cache)
    if cache is not None:
        cache.advance(ids.size(1))
    return model.head(x)
