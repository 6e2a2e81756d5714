"""Build a model from its config, with its initial weights: the one file that imports both config and nn/."""

from dataclasses import replace
from typing import TypeVar

from torch import nn

from minitx.config.errors import ConfigError, all_results
from minitx.config.registry import build, resolve
from minitx.config.schema import ModelConfig
from minitx.models.transformers import DecoderOnly, EncoderDecoder, EncoderOnly, Transformer
from minitx.nn.embedding import Head, HeadTransform, TokenEmbedding
from minitx.nn.errors import OptionError, require
from minitx.nn.feed_forward import FeedForward
from minitx.nn.layers import DecoderLayer, EncoderLayer, Layer
from minitx.nn.multi_head import MultiHeadAttention
from minitx.nn.norms import build_norm
from minitx.nn.position_ids import POSITION_IDS
from minitx.nn.positions import GIVEN, POSITIONS, NoPositions
from minitx.nn.stacks import DecoderStack, EncoderStack, Stack

AnyStack = TypeVar("AnyStack", bound=Stack)


def resolved_positions(config: ModelConfig) -> ModelConfig:
    """Fill in every option of the open sections of a model; a ConfigError has a line for each mistake."""
    position, position_ids, window_position = all_results(
        lambda: resolve(POSITIONS, config.position, "model.position", GIVEN),
        lambda: resolve(POSITION_IDS, config.position_ids, "model.position_ids", GIVEN),
        lambda: config.window_position and resolve(POSITIONS, config.window_position, "model.window_position", GIVEN),
    )
    if config.prefix_lm and (config.architecture != "decoder_only" or config.window is not None):
        got = f"got {config.architecture} with window {', '.join(map(str, config.windows))}"
        raise ConfigError(f"model.prefix_lm is for decoder_only without model.window, {got}")
    if config.architecture != "decoder_only" and (even := [size for size in config.windows if size and size % 2 == 0]):
        raise ConfigError(f"model.window must be odd where attention is bidirectional, got {even[0]}")
    return replace(config, position=position, position_ids=position_ids, window_position=window_position)


def build_model(config: ModelConfig, vocab_size: int | None = None) -> Transformer:
    """Build and initialise the model that a config describes; vocab_size is used if the config has none.

    Raises:
        ConfigError: numbers that do not fit together, naming the key to change.
    """
    vocab_size = vocab_size if config.vocab_size is None else config.vocab_size
    if vocab_size is None:
        raise ConfigError("model.vocab_size is missing: the tokenizer usually sets it")
    config = resolved_positions(config)
    try:
        embedding = TokenEmbedding(vocab_size, config.d_model, config.scale_embeddings)
        model: Transformer
        if config.architecture == "encoder_only":
            model = EncoderOnly(embedding, _stack(config, EncoderStack, EncoderLayer), _head(config, embedding))
        elif config.architecture == "decoder_only":
            decoder = _stack(config, DecoderStack, DecoderLayer)
            model = DecoderOnly(embedding, decoder, _head(config, embedding), config.prefix_lm)
        else:
            encoder = _stack(config, EncoderStack, EncoderLayer)
            decoder = _stack(config, DecoderStack, DecoderLayer, cross=True)
            model = EncoderDecoder(embedding, encoder, decoder, _head(config, embedding))
    except OptionError as error:
        raise ConfigError(str(error)) from None
    init_weights(model, config)
    return model


def _stack(config: ModelConfig, kind: type[AnyStack], layer: type[Layer], cross: bool = False) -> AnyStack:
    scheme, attentions = _self_attentions(config, kind.causal)
    ffn = (config.d_model, config.inner_width, config.activation, config.dropout, config.bias)
    layers = [
        layer(
            attention, FeedForward(*ffn) if config.inner_width else None, config.d_model,
            _attention(config) if cross else None, config.norm_first, config.dropout, config.parallel_residual,
            config.shared_norm, norm=config.norm, norm_eps=config.norm_eps, sandwich=config.sandwich_norm,
        )
        for attention in attentions
    ]  # fmt: skip
    position_ids = build(POSITION_IDS, config.position_ids, "model.position_ids", causal=kind.causal)
    if scheme.max_len is not None and (tokens := position_ids.max_tokens(scheme.max_len)) < 1:
        must = f"model.position.max_len must be at least {scheme.max_len + 1 - tokens} with model.position_ids.name"
        raise OptionError(f"{must} {config.position_ids['name']} for a single token, got {scheme.max_len}")
    if not scheme.shared:  # its weights belong to the layers
        scheme = NoPositions(config.d_model, config.n_heads, 0, kind.causal)
    last_norm = _norm(config) if config.norm_first else None
    first_norm = _norm(config) if config.embedding_norm else None
    return kind(layers, scheme, last_norm, config.dropout, position_ids, first_norm)


def _self_attentions(config: ModelConfig, causal: bool) -> tuple[NoPositions, list[MultiHeadAttention]]:
    """The position scheme of a stack, and the self-attention of each layer."""
    layers = config.decoder_layers if causal else config.n_layers
    d_head = config.d_model // config.n_heads if config.d_head is None else config.d_head
    given = {"d_model": config.d_model, "n_heads": config.n_heads, "d_head": d_head, "causal": causal}

    def schemes(key: str) -> list[NoPositions]:
        """The scheme of each layer: one object for all, if it can be shared."""
        try:
            built = [build(POSITIONS, getattr(config, key), f"model.{key}", **given) for _ in range(layers)]
        except OptionError as error:
            raise OptionError(str(error).replace("model.position.", f"model.{key}.")) from None
        return [built[0]] * layers if built[0].shared else built

    usual = schemes("position")
    local = usual if config.window_position is None else schemes("window_position")
    shares = local is usual or type(local[0]).embed is NoPositions.embed
    expected = "a scheme that leaves the embeddings, which all layers share, as they are"
    require(shares, f"model.window_position must be {expected}, got {(config.window_position or {}).get('name')}")
    windows = [config.windows[layer % len(config.windows)] for layer in range(layers)]
    if local is not usual and None not in windows and type(usual[0]).embed is NoPositions.embed:
        usual[0].requires_grad_(False)  # no layer uses its weights: an optimizer would have no state for them
    return usual[0], [
        _attention(config, (usual if window is None else local)[layer], window) for layer, window in enumerate(windows)
    ]


def _attention(config: ModelConfig, scheme: NoPositions | None = None, window: int | None = None) -> MultiHeadAttention:
    """Self-attention with a position scheme, or cross-attention, which has neither positions nor a window."""
    return MultiHeadAttention(
        config.d_model, config.n_heads, config.n_kv_heads, config.d_head, scheme, window, config.attention_dropout,
        config.qk_norm, config.bias, config.softcap, config.qkv_bias, config.norm_eps,
    )  # fmt: skip


def _norm(config: ModelConfig) -> nn.Module:
    return build_norm(config.norm, config.d_model, config.norm_eps)


def _head(config: ModelConfig, embedding: TokenEmbedding) -> Head:
    """Scores over the vocabulary, with the embedding's table or a table of its own."""
    transform = HeadTransform(config.d_model, config.activation, _norm(config)) if config.head_transform else None
    tied = embedding if config.tie_embeddings else None
    return Head(embedding.table.num_embeddings, config.d_model, tied, config.head_bias, transform, config.logit_softcap)


def init_weights(model: nn.Module, config: ModelConfig) -> None:
    """Initialise all weights.

    | what                  | how                                | why                                                |
    |-----------------------|------------------------------------|----------------------------------------------------|
    | token embedding, head | normal, std 1 / sqrt(D)            | unit variance once scaled; logits of size one      |
    | position schemes      | normal, std 0.02; or the scheme's  | small compared with tokens until trained           |
    | linear maps           | Xavier uniform                     | variance kept (Glorot and Bengio 2010)             |
    | o_proj, down_proj     | / sqrt(2 layers) if scale_residual | the residual sum keeps its size with depth (GPT-2) |
    | biases                | 0                                  |                                                    |
    | norms                 | weight 1, bias 0                   | the identity                                       |
    """
    for name, part in model.named_modules():
        if isinstance(part, nn.Linear):
            if isinstance(part, Head):
                nn.init.normal_(part.weight, std=part.in_features**-0.5)
            else:
                into_residual = config.scale_residual and name.endswith(("o_proj", "down_proj"))
                layers = config.decoder_layers if name.startswith("decoder.") else config.n_layers
                nn.init.xavier_uniform_(part.weight, gain=(2 * layers) ** -0.5 if into_residual else 1.0)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, TokenEmbedding):
            nn.init.normal_(part.table.weight, std=part.table.embedding_dim**-0.5)
        elif isinstance(part, NoPositions) and not part.initialized:
            for table in part.parameters():
                nn.init.normal_(table, std=0.02)  # its linear maps are initialized later in this loop
