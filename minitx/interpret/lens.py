"""Logit lens and DecoderLens: the tokens that a model would predict from each of its layers.

Legend: L layers, B batch, T positions, S source tokens, D d_model, V vocabulary.
The logit lens (nostalgebraist 2020) applies the final norm and the head to the residual stream after each layer. The
DecoderLens (Langedijk et al. 2024) applies the whole decoder to the encoder's stream after each of its layers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from minitx.config.errors import ConfigError
from minitx.data.batch import IGNORE
from minitx.interpret import html
from minitx.interpret.attribution import attribute, last_stack
from minitx.interpret.sites import stack_output
from minitx.interpret.trace import trace
from minitx.models.transformers import EncoderDecoder, EncoderOnly, Transformer
from minitx.tensorboard.map_format import shortened, visible

if TYPE_CHECKING:
    from minitx.inference.predictor import Predictor

SHOWN = 10
"""Number of likeliest tokens that a page lists for a cell."""
RANKED_AT_ONCE = 64
"""Positions whose probabilities are in memory together."""


def residual_streams(model: Transformer, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stream of each stack before its first layer and after each layer, [L + 1, B, T, D].

    inputs are the keyword arguments of the model's forward.
    """
    with trace(model, only=["*.layers.0.resid_pre", "*.resid_post"]) as streams:
        model(**inputs, head=False)
    stacks = dict.fromkeys(name.partition(".")[0] for name in streams)
    return {stack: torch.stack([streams[name] for name in streams if name.startswith(stack)]) for stack in stacks}


@torch.no_grad()
def lens(model: Transformer, inputs: Mapping[str, Tensor], streams: Mapping[str, Tensor] | None = None) -> Tensor:
    """Logits [L + 1, B, T, V] of the final norm and the head on the embeddings and after each layer of the last stack.

    The last of them are the model's own, within `intervene` those of the changed model. A post-norm stack has no final
    norm: its layers end in one. streams are the residual_streams of these inputs in the same block, if computed before.
    """
    name, stack = last_stack(model)
    stream = (streams or residual_streams(model, inputs))[name]
    return model.head(torch.stack([stack_output(stack, layer) for layer in stream]))


@torch.no_grad()
def decoder_lens(
    model: Transformer, inputs: Mapping[str, Tensor], streams: Mapping[str, Tensor] | None = None
) -> Tensor:
    """Logits [L + 1, B, T, V] of the whole decoder on the encoder's embeddings and after each of its layers.

    The last of them are the model's own, as for lens; teacher-forced, as they depend on the target of the inputs. All
    layers are rows of one batch, so replacements by `intervene` in the decoder must be broadcastable to it. streams as
    for lens.

    Raises:
        ConfigError: a model without an encoder and a decoder.
    """
    if not isinstance(model, EncoderDecoder):
        raise ConfigError("the DecoderLens needs model.architecture encoder_decoder: this model has only one stack")
    stream = (streams or residual_streams(model, inputs))["encoder"]
    memory = torch.cat([stack_output(model.encoder, layer) for layer in stream])  # [(L + 1) B, S, D]
    others: Any = {name: part.repeat(len(stream), 1) for name, part in inputs.items() if name != "src_ids"}
    return model.decode(memory=memory, **others).unflatten(0, (len(stream), -1))


@torch.no_grad()
def answer_shares(
    model: Transformer, inputs: Mapping[str, Tensor], streams: Mapping[str, Tensor], answers: Tensor
) -> dict[str, Tensor]:
    """Probability [L + 1, B, T] of answers [B, T] by the logit lens and the DecoderLens; NaN where they are IGNORE.

    streams are the residual_streams of these inputs.
    """
    name, stack = last_stack(model)
    lenses: dict[str, Iterable[Tensor]] = {"logit lens": (model.head(stack_output(stack, x)) for x in streams[name])}
    if isinstance(model, EncoderDecoder):
        lenses["DecoderLens"] = decoder_lens(model, inputs, streams)
    index, known = answers.clamp(min=0)[..., None], answers != IGNORE

    def share(logits: Tensor) -> Tensor:
        return logits.float().softmax(dim=-1).gather(-1, index)[..., 0].masked_fill(~known, torch.nan)

    return {name: torch.stack([*map(share, layers)]) for name, layers in lenses.items()}


class Ranked(NamedTuple):
    """The likeliest tokens of some distributions, and the ranks of the answers in them; see ranked."""

    likeliest: Tensor  # ids, [..., n]
    shares: Tensor  # their probabilities
    rank: Tensor  # of the answer among all tokens, from 1, [...]
    share: Tensor  # its probability


def ranked(logits: Tensor, answers: Tensor, count: int = SHOWN) -> Ranked:
    """Rank the tokens of logits [..., T, V], some T at a time to save memory; answers are broadcastable to [..., T]."""
    answers = answers.expand(logits.shape[:-1])
    if logits.size(-2) > RANKED_AT_ONCE:
        pieces = zip(logits.split(RANKED_AT_ONCE, -2), answers.split(RANKED_AT_ONCE, -1), strict=True)
        found = zip(*(ranked(*piece, count) for piece in pieces), strict=True)
        return Ranked(*(torch.cat(parts, dim=logits.dim() - 2) for parts in found))
    index = answers[..., None]
    shares, own = logits.float().softmax(dim=-1), logits.gather(-1, index)
    best = shares.topk(min(count, shares.size(-1)))
    return Ranked(best.indices, best.values, (logits > own).sum(dim=-1) + 1, shares.gather(-1, index)[..., 0])


@dataclass(frozen=True)
class Lens(html.Tables):
    """The predictions from each layer of a model on one text: `logits`, and what follows from them.

    logits["decoder"], or logits["encoder"] of an encoder alone, are those of the logit lens, [L + 1, T, V]. In an
    encoder-decoder, logits["encoder"] are those of the DecoderLens, at the decoder's positions.
    """

    title: str
    tokens: list[str]
    """T tokens that the head's stack reads."""
    answers: Tensor
    """The right token after each position, [T]; if it is unknown, the model's own."""
    known: Tensor
    """Whether the right token is known, bool [T]."""
    logits: dict[str, Tensor]
    attribution: dict[str, Tensor]
    """By part, what it adds to the answer's logit before logit_softcap, [T]; empty if the head is not linear."""
    predictor: "Predictor"

    def answer_probabilities(self, stack: str) -> Tensor:
        """Probability of the answers, [L + 1, T]."""
        return ranked(self.logits[stack], self.answers).share

    def ranks(self, stack: str) -> Tensor:
        """Rank of the answers among all tokens, from 1, [L + 1, T]."""
        return ranked(self.logits[stack], self.answers).rank

    def top(self, stack: str, count: int = SHOWN) -> list[list[list[tuple[str, float]]]]:
        """The likeliest tokens with their probabilities, for each layer and position."""
        found, tokens = ranked(self.logits[stack], self.answers, count), self.predictor.tokenizer.tokens
        return [
            [[*zip(tokens(ids), shares, strict=True)] for ids, shares in zip(*row, strict=True)]
            for row in zip(found.likeliest.tolist(), found.shares.tolist(), strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; of each stack, lists of layers with an entry for each position."""
        stacks = {
            stack: {
                "layers": self.layers(stack),
                "rank": self.ranks(stack).tolist(),
                "probability": self.answer_probabilities(stack).tolist(),
                "likeliest": self.top(stack),
            }
            for stack in self.logits
        }
        answers = self.predictor.tokenizer.tokens(self.answers.tolist())
        parts = {name: values.tolist() for name, values in self.attribution.items()}
        texts = {"title": self.title, "tokens": self.tokens, "answers": answers, "known": self.known.tolist()}
        return {**texts, "stacks": stacks, "attribution": parts}

    def save_image(self, path: str | Path) -> None:
        """Save the likeliest token of each layer and position as PNG, PDF or SVG; darker is more probable."""
        from minitx.plotting.heatmaps import draw_tables

        panels = []
        for stack, logits in self.logits.items():
            found = ranked(logits, self.answers, 1)
            tokens = [*map(self.predictor.tokenizer.tokens, found.likeliest[..., 0].tolist())]
            panels.append((self.names[stack], self.layers(stack), self.tokens, found.shares[..., 0].numpy(), tokens))
        draw_tables(Path(path), f"lens of {self.title}", panels, "probability")

    save_png = save_image

    @property
    def names(self) -> dict[str, str]:
        """Titles of the stacks."""
        return {"decoder": "decoder", "encoder": "encoder, read by the decoder" if len(self.logits) > 1 else "encoder"}

    def layers(self, stack: str) -> list[str]:
        """Names of the rows of a stack."""
        return layer_names(len(self.logits[stack]))

    def page(self) -> str:
        """The page as text; at first it shows the last layer."""
        own = last_stack(self.predictor.model)[0]
        tables = []
        for stack in self.logits:
            reader = "the final norm and the head" if stack == own else "the whole decoder"
            note, cells = f"{reader} on the stream after each layer", self._cells(stack)
            tables.append(html.table(self.names[stack], note, self.layers(stack), self.tokens, cells))
        cell = "token at this position" if isinstance(self.predictor.model, EncoderOnly) else "next token"
        note = "Columns are the tokens that were read, rows the layers."
        modes = [
            ["likeliest token", "share", f"probability of the likeliest {cell}, which is in the cell"],
            ["answer: rank and probability", "share", "probability of the answer, whose rank is in the cell"],
        ]
        start = [0, len(self.layers(own)) - 1, 0]
        data = {"title": self.title, "note": note, "start": start, "modes": modes, "tables": tables}
        return html.document("Lens", "tables.js", data)

    def _cells(self, stack: str) -> list[list[dict[str, Any]]]:
        answers = [*map(visible, self.predictor.tokenizer.tokens(self.answers.tolist()))]
        ranks, shares = (part.tolist() for part in ranked(self.logits[stack], self.answers, 1)[2:])
        names, top = self.layers(stack), self.top(stack)
        model = self.predictor.model
        own, before = stack == last_stack(model)[0], ", before logit_softcap" if model.head.softcap else ""
        parts = {name: values.tolist() for name, values in self.attribution.items()} if own else {}

        def cell(layer: int, index: int) -> dict[str, Any]:
            kind = "answer" if self.known[index] else "the model's own answer"
            rank, share = ranks[layer][index], shares[layer][index]
            exact = f"{share:.3f}" if share >= 0.0005 else f"{share:.1e}"
            added = [(name, values[index]) for name, values in parts.items()]
            title = shortened(f"{names[layer]}, position {index + 1}: {visible(self.tokens[index])}", 200)
            note = f"{kind}: {answers[index]}, rank {rank}, probability {exact}"
            lists = [["likeliest tokens", top[layer][index]]]
            lists += [[f"added to the final logit of {answers[index]}{before}", added]] if added else []
            return {"shown": [top[layer][index][0], [f"#{rank}", share]], "title": title, "note": note, "lists": lists}

        return [[cell(layer, index) for index in range(len(self.tokens))] for layer in range(len(names))]


def layer_names(count: int) -> list[str]:
    """Names of the streams of a stack."""
    return ["embeddings", *(f"layer {number}" for number in range(1, count))]


@torch.no_grad()
def lens_of_text(predictor: "Predictor", text: str, target: str | None = None) -> Lens:
    """Apply the lenses to a question and its answer, or to a text; arguments as for Predictor.attend.

    Raises:
        ConfigError: input that does not fit the model, or a model that computes NaN.
    """
    if not isinstance(text, str):
        raise ConfigError(f"lens takes one text, got {text!r:.80}")
    model, batch = predictor.model, predictor.batch(text, target)
    inputs = batch.model_inputs()
    own = last_stack(model)[0]
    streams = residual_streams(model, inputs)
    logits = {own: lens(model, inputs, streams)[:, 0].float().cpu()}
    if isinstance(model, EncoderDecoder):
        logits["encoder"] = decoder_lens(model, inputs, streams)[:, 0].float().cpu()
    if not all(bool(values.isfinite().all()) for values in logits.values()):
        raise ConfigError("this model computes NaN or infinity: there is nothing to show")
    given = batch.labels.cpu()
    known = (given != IGNORE) & (target is not None or predictor.task.kind == "stream")
    answers = torch.where(known, given, logits[own][-1].argmax(dim=-1))
    parts = {} if model.head.transform is not None else attribute(model, inputs, answers)
    title = f"{predictor.config.run.name}: {shortened(text, 80)}"
    tokens = predictor.tokenizer.tokens(inputs["tgt_ids" if "tgt_ids" in inputs else "ids"][0].tolist())
    added = {name: values[0].cpu() for name, values in parts.items()}
    return Lens(title, tokens, answers[0], known[0], logits, added, predictor)
