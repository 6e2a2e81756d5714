"""The same Transformer in other libraries: for each, a function from ids to the mean loss of the next token.

A table names a peer as missing if it is not installed (`pip install x-transformers`) or not given (nanoGPT: --nanogpt
FOLDER, a clone of karpathy/nanoGPT).
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minitx import ModelConfig, build_model
from minitx.training.losses import cross_entropy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Size:
    """The size of a model and its batch."""

    name: str
    layers: int  # of each stack
    d_model: int
    heads: int
    length: int
    batch: int
    vocabulary: int
    encoder: bool = False  # an encoder with as many layers and as many tokens

    @property
    def tokens(self) -> int:
        """Number of tokens predicted in one step."""
        return self.batch * self.length

    def ids(self) -> tuple[Tensor, ...]:
        """Random target ids [batch, length + 1], after source ids of the same shape if there is an encoder."""
        shape = (self.batch, self.length + 1)
        count = 2 if self.encoder else 1
        return tuple(torch.randint(6, self.vocabulary, shape, device=DEVICE) for _ in range(count))


class Missing(Exception):
    """A peer cannot be measured here; the message is the reason."""


Peer = tuple[nn.Module, Callable[..., Tensor]]
"""A model, and a function from the ids of Size.ids to its loss."""


def minitx(size: Size, **changes: Any) -> Peer:
    config = ModelConfig(
        architecture="encoder_decoder" if size.encoder else "decoder_only",
        d_model=size.d_model,
        n_heads=size.heads,
        n_layers=size.layers,
        vocab_size=size.vocabulary,
        position={"name": "learned", "max_len": size.length},
        bias=False,
        **changes,
    )
    model = build_model(config).to(DEVICE)

    def loss(*ids: Tensor) -> Tensor:
        *source, target = ids
        logits = model(*(part[:, :-1] for part in source), target[:, :-1])
        return cross_entropy(logits, target[:, 1:]) / (logits.size(0) * logits.size(1))

    return model, loss


def nanogpt(size: Size, folder: str | None) -> Peer:
    """karpathy/nanoGPT, which has no encoder."""
    if size.encoder:
        raise Missing("has no encoder")
    if folder is None:
        raise Missing("not given: --nanogpt FOLDER")
    spec = importlib.util.spec_from_file_location("nanogpt_model", Path(folder) / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)  # torch.compile looks it up by name
    spec.loader.exec_module(module)
    config = module.GPTConfig(
        block_size=size.length, vocab_size=size.vocabulary, n_layer=size.layers, n_head=size.heads,
        n_embd=size.d_model, dropout=0.0, bias=False,
    )  # fmt: skip
    model = module.GPT(config).to(DEVICE)
    return model, lambda ids: model(ids[:, :-1], ids[:, 1:].contiguous())[1]


def hugging_face(size: Size) -> Peer:
    """GPT-2, or BART."""
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError:
        raise Missing("not installed: pip install transformers") from None
    if size.encoder:
        config = transformers.BartConfig(
            vocab_size=size.vocabulary, d_model=size.d_model, encoder_layers=size.layers, decoder_layers=size.layers,
            encoder_attention_heads=size.heads, decoder_attention_heads=size.heads, dropout=0.0,
            encoder_ffn_dim=4 * size.d_model, decoder_ffn_dim=4 * size.d_model, max_position_embeddings=size.length,
        )  # fmt: skip
        bart = transformers.BartForConditionalGeneration(config).to(DEVICE).train()
        return bart, lambda source, target: _mean(
            bart(input_ids=source[:, :-1], decoder_input_ids=target[:, :-1], use_cache=False).logits, target
        )
    config = transformers.GPT2Config(
        vocab_size=size.vocabulary, n_positions=size.length, n_embd=size.d_model, n_layer=size.layers,
        n_head=size.heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    gpt = transformers.GPT2LMHeadModel(config).to(DEVICE).train()
    return gpt, lambda ids: _mean(gpt(ids[:, :-1], use_cache=False).logits, ids)


def x_transformers(size: Size) -> Peer:
    try:
        from x_transformers import Decoder, Encoder, TransformerWrapper
    except ImportError:
        raise Missing("not installed: pip install x-transformers") from None
    common = {"num_tokens": size.vocabulary, "max_seq_len": size.length}
    layers = {"dim": size.d_model, "depth": size.layers, "heads": size.heads, "attn_flash": True}
    layers["attn_dim_head"] = size.d_model // size.heads
    decoder = TransformerWrapper(
        **common, tie_embedding=True, attn_layers=Decoder(cross_attend=size.encoder, **layers)
    ).to(DEVICE)
    if not size.encoder:
        return decoder, lambda ids: _mean(decoder(ids[:, :-1]), ids)
    encoder = TransformerWrapper(**common, attn_layers=Encoder(**layers)).to(DEVICE)

    def loss(source: Tensor, target: Tensor) -> Tensor:
        memory = encoder(source[:, :-1], return_embeddings=True)
        return _mean(decoder(target[:, :-1], context=memory), target)

    return nn.ModuleList([encoder, decoder]), loss


class TorchTransformer(nn.Module):
    """torch.nn's own layers with learned positions and a tied head."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        options: dict[str, Any] = {"dim_feedforward": 4 * size.d_model, "dropout": 0.0, "activation": "gelu"}
        options |= {"batch_first": True, "norm_first": True}
        self.tokens, self.positions = (nn.Embedding(n, size.d_model) for n in (size.vocabulary, size.length))
        nn.init.normal_(self.tokens.weight, std=size.d_model**-0.5)
        layers = size.layers
        self.inner: nn.Module
        if size.encoder:
            self.inner = nn.Transformer(
                size.d_model, size.heads, num_encoder_layers=layers, num_decoder_layers=layers, **options
            )
        else:
            layer = nn.TransformerEncoderLayer(size.d_model, size.heads, **options)
            norm = nn.LayerNorm(size.d_model)
            self.inner = nn.TransformerEncoder(layer, layers, norm=norm, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(size.length), persistent=False)

    def forward(self, *ids: Tensor) -> Tensor:
        vectors = [self.tokens(part) + self.positions.weight[: part.size(1)] for part in ids]
        name = "tgt_mask" if len(ids) == 2 else "mask"
        causal = {name: self.mask, "tgt_is_causal" if len(ids) == 2 else "is_causal": True}
        return F.linear(self.inner(*vectors, **causal), self.tokens.weight)


def torch_nn(size: Size) -> Peer:
    model = TorchTransformer(size).to(DEVICE)
    return model, lambda *ids: _mean(model(*(part[:, :-1] for part in ids)), ids[-1])


def _mean(logits: Tensor, ids: Tensor) -> Tensor:
    """The mean loss of logits [B, T, V] for the tokens after the first of ids [B, T + 1]."""
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())
