"""Logit lens and DecoderLens: the tokens that a model would predict from each of its layers.

Legend: L layers, B batch, T positions, S source tokens, D d_model, V vocabulary.
The logit lens (nostalgebraist 2020) applies the final norm and the head to the residual stream after each layer. The
DecoderLens (Langedijk et al. 2024) lets the whole decoder read the encoder's stream after each of its layers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitx.checkpoints.atomic_files import written_whole
from minitx.config.errors import ConfigError
from minitx.data.batch import IGNORE
from minitx.inference.predictor import Predictor
from minitx.interpret import html
from minitx.interpret.attribution import attribute, last_stack
from minitx.interpret.trace import trace
from minitx.models.transformers import EncoderDecoder, EncoderOnly, Transformer

SHOWN = 10
"""Likeliest tokens of a cell that a page lists."""


def residual_streams(model: Transformer, inputs: Mapping[str, Tensor], stack: str) -> Tensor:
    """The stream of a stack before its first layer and after each layer, [L + 1, B, T, D].

    inputs are the keyword arguments of the model's forward.
    """
    with trace(model, only=[f"{stack}.layers.0.resid_pre", f"{stack}.layers.*.resid_post"]) as streams:
        model(**inputs, head=False)
    return torch.stack([*streams.values()])


@torch.no_grad()
def lens(model: Transformer, inputs: Mapping[str, Tensor]) -> Tensor:
    """Logits [L + 1, B, T, V] of the final norm and the head on the embeddings and after each layer of the last stack.

    The last of them are the model's own. A post-norm stack has no final norm: its layers end in one.
    """
    name, stack = last_stack(model)
    return torch.stack([model.head(stack.norm(stream)) for stream in residual_streams(model, inputs, name)])


@torch.no_grad()
def decoder_lens(model: Transformer, inputs: Mapping[str, Tensor]) -> Tensor:
    """Logits [L + 1, B, T, V] of the whole decoder on the encoder's embeddings and after each of its layers.

    The last of them are the model's own; teacher-forced, as they depend on the target of the inputs.

    Raises:
        ConfigError: a model without an encoder and a decoder.
    """
    if not isinstance(model, EncoderDecoder):
        raise ConfigError("the DecoderLens needs model.architecture encoder_decoder: this model has one stack alone")
    target, keeps = inputs["tgt_ids"], (inputs.get("src_keep"), inputs.get("tgt_keep"))
    streams = residual_streams(model, inputs, "encoder")
    return torch.stack([model.decode(target, model.encoder.norm(stream), *keeps) for stream in streams])


@dataclass(frozen=True)
class Lens:
    """What a model would predict from each layer on one text: `logits`, and what follows from them.

    logits["decoder"], or of an encoder alone logits["encoder"], are those of the logit lens, [L + 1, T, V]; beside a
    decoder, logits["encoder"] are those of the DecoderLens, at the decoder's positions.
    """

    title: str
    tokens: list[str]
    """T tokens that the head's stack reads."""
    answers: Tensor
    """The right token after each position, [T]; where none is known, the model's own."""
    known: Tensor
    """Whether the right token is known, bool [T]."""
    logits: dict[str, Tensor]
    attribution: dict[str, Tensor]
    """What each part of the model adds to the logit of the answer, [T] by part; empty where the head is not linear."""
    predictor: Predictor

    @cached_property
    def probabilities(self) -> dict[str, Tensor]:
        """The softmax of the logits."""
        return {stack: logits.softmax(dim=-1) for stack, logits in self.logits.items()}

    def answer_probabilities(self, stack: str) -> Tensor:
        """Probability of the answers, [L + 1, T]."""
        return self._of_answers(self.probabilities[stack])

    def ranks(self, stack: str) -> Tensor:
        """Rank of the answers among all tokens, from 1, [L + 1, T]."""
        logits = self.logits[stack]
        return (logits > self._of_answers(logits)[..., None]).sum(dim=-1) + 1

    def top(self, stack: str, count: int = SHOWN) -> list[list[list[tuple[str, float]]]]:
        """The likeliest tokens with their probabilities, for each layer and position."""
        found = self.probabilities[stack].topk(min(count, self.probabilities[stack].size(-1)))
        tokens = self.predictor.tokenizer.tokens
        return [
            [[*zip(tokens(ids), values, strict=True)] for ids, values in zip(*row, strict=True)]
            for row in zip(found.indices.tolist(), found.values.tolist(), strict=True)
        ]

    def _of_answers(self, values: Tensor) -> Tensor:
        """[L + 1, T, V] to [L + 1, T]."""
        return values.gather(-1, self.answers.expand(*values.shape[:2])[..., None])[..., 0]

    def save_image(self, path: str | Path) -> None:
        """Save the likeliest token of each layer and position as PNG, PDF or SVG, by the ending of the path."""
        from minitx.plotting.token_tables import draw_lens

        draw_lens(self, Path(path))

    save_png = save_image

    def save_html(self, path: str | Path) -> None:
        """Save a page with the ten likeliest tokens of each layer and position, usable without a network."""
        with written_whole(path) as file:
            file.write(self.page().encode())

    def _repr_html_(self) -> str:
        """The same page for a notebook."""
        return html.frame(self.page(), "lens")

    def page(self) -> str:
        """The page as text."""
        both = "decoder" in self.logits and "encoder" in self.logits
        notes = {
            "decoder": "the final norm and the head on the decoder's stream after each layer",
            "encoder": "the whole decoder on the encoder's stream after each layer (DecoderLens)"
            if both
            else "the final norm and the head on the stream after each layer",
        }
        names = {"encoder": "encoder, read by the decoder" if both else "encoder", "decoder": "decoder"}
        tables = [
            {
                "name": names[stack],
                "note": notes[stack],
                "corner": "after",
                "rows": layer_names(len(logits)),
                "columns": [token[:200] for token in self.tokens],
                "cells": self._cells(stack),
            }
            for stack, logits in self.logits.items()
        ]
        note = "Columns are the tokens that were read, rows the layers. Each cell is the likeliest next token."
        if isinstance(self.predictor.model, EncoderOnly):
            note = note.replace("next token", "token at this position")
        modes = [["likeliest token", "share"], ["answer: rank and probability", "share"]]
        start = [0, len(tables[0]["rows"]) - 1, 0]
        data = {"title": self.title, "note": note, "start": start, "modes": modes, "tables": tables}
        return html.document("Lens", "tables.js", data)

    def _cells(self, stack: str) -> list[list[dict[str, Any]]]:
        answers = self.predictor.tokenizer.tokens(self.answers.tolist())
        ranks, shares = self.ranks(stack).tolist(), self.answer_probabilities(stack).tolist()
        names, top = layer_names(len(ranks)), self.top(stack)
        parts: list[list[Any]] = [[] for _ in self.tokens]
        if stack == last_stack(self.predictor.model)[0] and self.attribution:
            for index, column in enumerate(
                zip(*(values.tolist() for values in self.attribution.values()), strict=True)
            ):
                heading = f"added to the logit of {answers[index]}"
                parts[index] = [[heading, [*zip(self.attribution, column, strict=True)]]]

        def cell(layer: int, index: int) -> dict[str, Any]:
            kind = "answer" if self.known[index] else "the model's own answer"
            rank, share = ranks[layer][index], shares[layer][index]
            return {
                "shown": [top[layer][index][0], [f"#{rank}", share]],
                "title": f"{names[layer]}, position {index + 1}: {self.tokens[index]}"[:200],
                "note": f"{kind}: {answers[index]}, rank {rank}, probability {share:.3f}",
                "lists": [["likeliest tokens", top[layer][index]], *parts[index]],
            }

        return [[cell(layer, index) for index in range(len(self.tokens))] for layer in range(len(names))]


def layer_names(count: int) -> list[str]:
    """Names of the streams of a stack."""
    return ["embeddings", *(f"layer {number}" for number in range(1, count))]


@torch.no_grad()
def lens_of_text(predictor: Predictor, text: str, target: str | None = None) -> Lens:
    """Apply the lenses to a question and its answer, or to a text; arguments as for Predictor.attend.

    Raises:
        ConfigError: input that does not fit the model, or a model that computes NaN.
    """
    model, batch = predictor.model, predictor.batch(text, target)
    inputs = batch.model_inputs()
    own = last_stack(model)[0]
    logits = {own: lens(model, inputs)[:, 0].float().cpu()}
    if isinstance(model, EncoderDecoder):
        logits["encoder"] = decoder_lens(model, inputs)[:, 0].float().cpu()
    if not all(bool(values.isfinite().all()) for values in logits.values()):
        raise ConfigError("this model computes NaN or infinity: there is nothing to show")
    given = batch.labels.cpu()
    known = (given != IGNORE) if target is not None or not isinstance(model, EncoderOnly) else given < IGNORE
    answers = torch.where(known, given, logits[own][-1].argmax(dim=-1))
    parts = {} if model.head.transform is not None else attribute(model, inputs, answers)
    read = batch.src if isinstance(model, EncoderOnly) else batch.tgt
    assert read is not None  # every architecture reads what it predicts from
    return Lens(
        f"{predictor.config.run.name}: {text:.80}",
        predictor.tokenizer.tokens(read[0].tolist()),
        answers[0],
        known[0],
        logits,
        {name: values[0].cpu() for name, values in parts.items()},
        predictor,
    )
