"""Inspect one step of a text: attention maps, the lens, and what each part added to the logit of its token."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.config.validation import NaturalSize
from minitx.inference.predictor import Predictor
from minitx.interpret.attention_maps import attention_maps
from minitx.interpret.attribution import attribute, last_stack
from minitx.interpret.encoded_maps import encoded
from minitx.interpret.html import embedded
from minitx.interpret.lens import decoder_lens, ranked, residual_streams
from minitx.models.transformers import DecoderOnly, EncoderDecoder, EncoderOnly
from minitx.playground.play_requests import Prompted, Session

MAX_MAP_TOKENS = 128
"""Maximum number of rows and columns of a map; longer texts show the last ones."""
LENS_TOKENS = 5
"""Number of likeliest tokens of each layer."""


@dataclass(kw_only=True)
class TokensRequest(Prompted):
    """A request about the tokens that a model has read."""

    source: list[int]
    """Ids that an encoder reads."""
    target: list[int]
    """Ids that a decoder reads, prompt and generated ones, from the first that is still in its cache."""
    prompt_tokens: NaturalSize

    def forward_inputs(self, predictor: Predictor) -> dict[str, Tensor]:
        """Arguments of the model's forward.

        Raises:
            ConfigError: nothing to read, or ids that the model does not have.
        """
        source, target, model = self.source, self.target, predictor.model
        size = model.head.out_features
        read = {"ids": source if isinstance(model, EncoderOnly) else target}
        if isinstance(model, EncoderDecoder):
            read = {"src_ids": source, "tgt_ids": target}
        if not all(0 <= token < size for token in (*source, *target)) or not all(read.values()):
            raise ConfigError(f"expected ids from 0 to {size - 1}, and at least one, got {[*source, *target][:5]} ...")
        inputs = {name: torch.tensor([ids], device=predictor.device) for name, ids in read.items()}
        if isinstance(model, EncoderDecoder):  # an empty question is read as padding
            inputs["src_keep"] = inputs["src_ids"] != predictor.tokenizer.special.pad
        if isinstance(model, DecoderOnly):
            inputs["prefix"] = torch.tensor([self.prompt_tokens], device=predictor.device)
        return inputs


@dataclass(kw_only=True)
class Look(TokensRequest):
    """The maps of one forward, as for html.embedded, and where their `first` tokens are in source and target."""

    def compute(self, session: Session, ids: list[int]) -> Iterator[dict[str, Any]]:
        """One line."""
        predictor, read = session.predictor, {"source": self.source, "target": self.target}
        inputs = self.forward_inputs(predictor)  # checks the ids
        labels = {side: [predictor.tokenizer.tokens(ids)] for side, ids in read.items()}
        maps = attention_maps(predictor.model, inputs, labels)
        tags = {f"{kind}/text": items for kind, items in encoded(maps, last=MAX_MAP_TOKENS).items()}
        first = {side: max(len(ids) - MAX_MAP_TOKENS, 0) for side, ids in read.items()}
        yield {"runs": embedded({"model": tags}), "first": first}


@dataclass(kw_only=True)
class Explain(TokensRequest):
    """The lens at one position, and what each part of the model adds to the logit of a token there.

    In the answer, `lens` has a row for the embeddings and for each layer: the likeliest tokens as [id, probability],
    and `rank` and `share` of the token. `encoder` is the same for the DecoderLens, null without encoder and decoder.
    `parts` are [name, added to the logit before its `softcap`], null if the head is not linear.
    """

    index: int
    """The position in the sequence that the head reads, from 0; negative from the end."""
    token: int

    @torch.no_grad()
    def compute(self, session: Session, ids: list[int]) -> Iterator[dict[str, Any]]:
        """One line."""
        model, index, token = session.predictor.model, self.index, self.token
        inputs = self.forward_inputs(session.predictor)
        read = inputs["tgt_ids" if "tgt_ids" in inputs else "ids"]
        if not (-read.size(1) <= index < read.size(1) and 0 <= token < model.head.out_features):
            raise ConfigError(f"there is no position {index} or no token {token} in this text")
        tokens = torch.full_like(read, token)
        name, stack = last_stack(model)
        streams = residual_streams(model, inputs)
        across = decoder_lens(model, inputs, streams)[:, 0, index] if isinstance(model, EncoderDecoder) else None
        added = attribute(model, inputs, tokens) if model.head.transform is None else None
        yield {
            "lens": _layers(model.head(stack.norm(streams[name][:, 0, index])), tokens[0, :1]),
            "softcap": model.head.softcap,
            "encoder": None if across is None else _layers(across, tokens[0, :1]),
            "parts": None if added is None else [[part, float(values[0, index])] for part, values in added.items()],
        }


def _layers(logits: Tensor, answer: Tensor) -> list[dict[str, Any]]:
    """Rows of a lens, from logits [L + 1, V]."""
    rows = zip(*(part.tolist() for part in ranked(logits, answer, LENS_TOKENS)), strict=True)
    return [
        {"tokens": [*zip(ids, shares, strict=True)], "rank": rank, "share": share} for ids, shares, rank, share in rows
    ]
