"""Activation patching: which activations of a clean text restore its answer in a corrupted one (Meng et al. 2022).

Legend: B batch, T positions, H heads, K d_head, V vocabulary, N patched forwards, R rows of a map.
Path patching is limited to what one head passes directly to the queries, keys or values of another (Wang et al. 2023).
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from minitx.config.errors import ConfigError, did_you_mean
from minitx.data.batch import IGNORE, Batch
from minitx.interpret.composition import reads
from minitx.interpret.intervene import intervene
from minitx.interpret.lens import layer_names
from minitx.interpret.parts import all_parts
from minitx.interpret.patch_map import ALL, PatchMap
from minitx.interpret.recording import attention_modules
from minitx.interpret.sites import Site, sites
from minitx.interpret.trace import Trace, trace
from minitx.models.transformers import EncoderOnly, Transformer
from minitx.tensorboard.map_format import MAX_LABEL_LENGTH, shortened

if TYPE_CHECKING:
    from minitx.inference.predictor import Predictor

SITES = ("resid", "attn", "ffn", "heads")
METRICS: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "logit_difference": lambda logits, right, wrong: logits[:, right] - logits[:, wrong],
    "logit": lambda logits, right, wrong: logits[:, right],
    "log_probability": lambda logits, right, wrong: logits.log_softmax(dim=-1)[:, right],
    "probability": lambda logits, right, wrong: logits.softmax(dim=-1)[:, right],
}
"""From logits [N, V] and the first different tokens of the clean and the corrupted answer to [N]."""
MAX_PATCHED_TOKENS = 2**14
"""Maximum number of tokens in one batch of patched forwards."""


class Patch(NamedTuple):
    """An activation, or a part of it, whose value comes from another forward."""

    name: str
    """Name of the activation, as in trace."""
    position: int | None = None
    """Of a query, for k and v of a key; None for all."""
    head: int | None = None
    """From 0; None for all. For k and v, a key-value head; without heads, an index into the last dimension."""


class PatchedInputs(NamedTuple):
    """Two different texts as inputs of a model, and the position at which their answers are compared."""

    clean: dict[str, Tensor]
    """Keyword arguments of the model's forward, one row."""
    corrupted: dict[str, Tensor]
    position: int
    """Index of the logits to compare."""
    answers: tuple[int, int]
    """The token of the clean and of the corrupted answer at this position."""


@torch.no_grad()
def patched_logits(
    model: Transformer,
    inputs: Mapping[str, Tensor],
    values: Mapping[str, Tensor],
    patches: Sequence[Sequence[Patch]],
    position: int = -1,
) -> Tensor:
    """Logits [N, V] at a position, of N forwards, each with its own patches from the values of another forward.

    Args:
        model: in evaluation mode.
        inputs: keyword arguments of its forward, one row.
        values: activations of a forward over the same number of tokens, from trace.
        patches: for each of the N forwards, what is replaced.
    """
    if any(len(part) != 1 for part in inputs.values()):
        raise ConfigError(f"patched_logits: expected inputs of one row, got {max(map(len, inputs.values()))} rows")
    size = max(1, MAX_PATCHED_TOKENS // sum(part.size(1) for part in inputs.values() if part.dim() > 1))
    known, found = sites(model, {patch.name for several in patches for patch in several}), []
    for start in range(0, len(patches), size):
        chunk = patches[start : start + size]
        rows: dict[str, list[tuple[int, Patch]]] = defaultdict(list)
        for row, several in enumerate(chunk):
            for patch in several:
                rows[patch.name].append((row, patch))
        changes = {name: partial(_replaced, values[name], known[name], several) for name, several in rows.items()}
        with intervene(model, changes):
            out = model(**{name: part.expand(len(chunk), *part.shape[1:]) for name, part in inputs.items()}, head=False)
        found.append(model.head(out[:, position]))
    return torch.cat(found).float()


def _replaced(source: Tensor, site: Site, rows: Sequence[tuple[int, Patch]], value: Tensor) -> Tensor:
    """Replace, in place, parts of rows of an activation by those of a source of one row."""
    dim: Any = site.dim("TS")  # 2 for scores and weights, whose heads come first
    for row, (_, *where) in rows:
        at = [slice(None) if index is None else index for index in where]
        value.movedim(dim, 1)[(row, *at)] = source.movedim(dim, 1)[(0, *at)].to(value)
    return value


@torch.no_grad()
def path_values(
    model: Transformer, clean: Mapping[str, Tensor], corrupted: Mapping[str, Tensor], sender: Patch
) -> Trace:
    """Queries, keys and values of all attentions when only one head is that of the clean inputs.

    All other heads and feed-forward networks are those of the corrupted inputs: only the sender's direct path differs.
    """
    with trace(model, only=[sender.name]) as own:
        model(**clean)
    with trace(model, only={part.site for several in all_parts(model).values() for part in several}) as values:
        model(**corrupted)
    mixed = _replaced(own[sender.name], sites(model)[sender.name], [(0, sender)], values[sender.name].clone())
    with intervene(model, {**values, sender.name: mixed}), trace(model, only=["*attn.[qkv]"]) as received:
        model(**corrupted)
    return received


def head_patches(model: Transformer) -> dict[str, Patch]:
    """Each head as a patch of its z, by its name counted from 1, such as cross.2.1."""
    return {str(part): Patch(part.site, None, part.number - 1) for part in all_parts(model)["heads"]}


@torch.no_grad()
def patch_texts(
    predictor: "Predictor",
    clean: str,
    corrupted: str,
    *,
    sites: str | None = None,
    metric: str = "logit_difference",
    answers: tuple[str, str] | None = None,
    sender: str | None = None,
) -> PatchMap:
    """Run the corrupted text once for each site and position, with the activation there taken from the clean text.

    The answers are compared at the first token in which they differ.

    Args:
        clean: a question, or a text.
        corrupted: another one with the same number of tokens and another answer.
        sites: resid (default; the stream before the first layer and after each one), attn or ffn (what a sublayer
            adds), heads.
        metric: logit_difference (of the two answers), logit, log_probability or probability of the clean answer.
        answers: to both texts; by default the model's own.
        sender: a head, such as decoder.1.1, for path patching: what it passes directly to the queries, keys and values
            of each head, at all positions together (keys and values of all heads that share them); excludes sites.

    Raises:
        ConfigError: texts of two lengths or with one answer; an unknown site, metric or head; both sites and sender.
    """
    if sites is not None and sender is not None:
        raise ConfigError(f"sites and sender exclude each other, got {sites} and {sender}")
    sites = "resid" if sites is None else sites
    for option, value, known in (("sites", sites, SITES), ("metric", metric, METRICS)):
        if value not in known:
            raise ConfigError(f"{option} has no choice {value}: {did_you_mean(value, known)}")
    model, tokens, heads = predictor.model, predictor.tokenizer.tokens, head_patches(predictor.model)
    if sender is not None and sender not in heads:
        raise ConfigError(f"sender: this model has no head {sender}: {did_you_mean(sender, heads)}")
    rows = _rows(model, sites) if sender is None else _receivers(model, heads[sender].name)
    if not rows:
        without_ffn = "sites: this model has no feed-forward networks: expected resid, attn or heads"
        raise ConfigError(without_ffn if sender is None else f"sender: no head follows {sender} in this model")
    inputs = patched_inputs(predictor, clean, corrupted, answers)
    if sender is None:
        with trace(model, only={patch.name for kind in rows.values() for patch in kind.values()}) as values:
            model(**inputs.clean)
        columns = {kind: _columns(predictor, inputs, kind, together=sites != "resid") for kind in rows}
        patches = [
            patch._replace(position=None if label is ALL else position)
            for kind, several in rows.items()
            for patch in several.values()
            for position, label in enumerate(columns[kind])
        ]
    else:
        values = path_values(model, inputs.clean, inputs.corrupted, heads[sender])
        columns = {kind: ["queries", "keys", "values"] for kind in rows}
        heads_of_rows = [patch for several in rows.values() for patch in several.values()]
        patches = [part_patch(model, patch, part) for patch in heads_of_rows for part in "qkv"]
    plain = [patched_logits(model, each, {}, [[]], inputs.position) for each in (inputs.clean, inputs.corrupted)]
    patched = patched_logits(model, inputs.corrupted, values, [[patch] for patch in patches], inputs.position)
    measured = METRICS[metric](torch.cat([*plain, patched]), *inputs.answers).cpu()
    if not bool(measured.isfinite().all()) or measured[0] == measured[1]:
        raise ConfigError(f"metric: {metric} is {measured[0]:.3g} for both texts: there is nothing to restore")
    restored = (measured[2:] - measured[1]) / (measured[0] - measured[1])
    parts = restored.split([len(rows[kind]) * len(columns[kind]) for kind in rows])
    right, wrong = tokens(inputs.answers)
    return PatchMap(
        title=f"{predictor.config.run.name}: {shortened(clean, 60)} → {shortened(corrupted, 60)}",
        metric=metric,
        answers=(right, wrong),
        clean=measured[0].item(),
        corrupted=measured[1].item(),
        rows={kind: [*several] for kind, several in rows.items()},
        columns=columns,
        values={kind: part.view(len(rows[kind]), -1) for kind, part in zip(rows, parts, strict=True)},
        sender=sender,
    )


def _rows(model: Transformer, sites: str) -> dict[str, dict[str, Patch]]:
    """Activations to patch, by stack or kind of attention and by the label of a row."""
    found: dict[str, dict[str, Patch]] = defaultdict(dict)
    if sites == "resid":
        for stack in (name for name in ("encoder", "decoder") if hasattr(model, name)):
            layers: Any = model.get_submodule(f"{stack}.layers")
            names = [f"{stack}.layers.0.resid_pre", *(f"{stack}.layers.{n}.resid_post" for n in range(len(layers)))]
            found[stack] = dict(zip(layer_names(len(names)), map(Patch, names), strict=True))
        return found
    for part in all_parts(model)["ffn" if sites == "ffn" else "heads"]:
        if sites == "heads":
            found[part.kind][f"head {part.layer}.{part.number}"] = Patch(part.site, None, part.number - 1)
        else:
            found[part.kind][f"layer {part.layer}"] = Patch(part.site.replace("attn.z", "attn.out"))
    return found


def _receivers(model: Transformer, sender: str) -> dict[str, dict[str, Patch]]:
    """The heads that can read a sender directly, by kind and label."""
    paths, writer = [*attention_modules(model)], sender.removesuffix(".z")
    later = paths[paths.index(writer) + 1 :]
    readers = [f"{path}.z" for path in later if any(reads(model, path, writer, through) for through in "qkv")]
    rows = {
        kind: {label: patch for label, patch in heads.items() if patch.name in readers}
        for kind, heads in _rows(model, "heads").items()
    }
    return {kind: heads for kind, heads in rows.items() if heads}


def part_patch(model: Transformer, patch: Patch, part: str) -> Patch:
    """The queries, keys or values of a head; heads may share keys and values."""
    module: Any = model.get_submodule(path := patch.name.removesuffix(".z"))
    assert patch.head is not None
    head = patch.head if part == "q" else patch.head * module.n_kv_heads // module.n_heads
    return Patch(f"{path}.{part}", None, head)


def _columns(predictor: "Predictor", inputs: PatchedInputs, kind: str, together: bool) -> list[str]:
    """Labels of the positions of a stack or kind: the clean token, and the corrupted one where it differs; then ALL."""
    name = "src_ids" if kind == "encoder" else "tgt_ids"
    rows = [each[name if name in each else "ids"] for each in (inputs.clean, inputs.corrupted)]
    pairs = zip(*(predictor.tokenizer.tokens(row[0].tolist()) for row in rows), strict=True)
    half = MAX_LABEL_LENGTH // 2 - 1
    labels = [
        shortened(one, MAX_LABEL_LENGTH) if one == other else f"{shortened(one, half)}/{shortened(other, half)}"
        for one, other in pairs
    ]
    return [*labels, ALL] if together and len(labels) > 1 else labels


def patched_inputs(
    predictor: "Predictor", clean: str, corrupted: str, answers: tuple[str, str] | None = None
) -> PatchedInputs:
    """Both texts, with the beginning that their answers have in common, and where the answers differ.

    Raises:
        ConfigError: texts of different lengths, or the same text or answer twice.
    """
    if answers is not None and (isinstance(answers, str) or len(answers) != 2):
        raise ConfigError(f"answers: expected two texts, got {answers!r:.80}")
    task, tokenizer, model = predictor.task, predictor.tokenizer, predictor.model
    questions = [predictor.encode(text) for text in (clean, corrupted)]
    lengths = [*map(len, questions)]
    if lengths[0] != lengths[1]:
        got = f"got {lengths[0]} and {lengths[1]}: activations are exchanged position by position"
        raise ConfigError(f"clean and corrupted must have the same number of tokens, {got}")
    divided = [[*read, IGNORE, *given] for read, given in map(task.divide, questions)]  # given: the rest of a question
    before = [[index for index, token in enumerate(row) if token == IGNORE] for row in divided]
    if before[0] != before[1]:
        got = f"got answers after {before[0]} and after {before[1]} tokens"
        raise ConfigError(f"clean and corrupted must have their queries at the same places: {got}")
    if questions[0] == questions[1]:
        raise ConfigError("clean and corrupted must differ: both are the same tokens")

    def batches(beginning: list[int] | None) -> list[Batch]:
        """Both questions, each with the common beginning of the answers."""
        return [predictor.frame([question], None if beginning is None else [beginning]) for question in questions]

    rows = [tokenizer.encode_answer(text, task.kind) for text in answers or ()]
    if not isinstance(model, EncoderOnly):  # compared at the first token after their common beginning
        if task.kind == "stream":
            rows = rows or [_best(model, batch.model_inputs())[-1:] for batch in batches(None)]
        else:
            rows = rows or predictor.text_generator().own_answers(questions)
            rows = [[*row, tokenizer.special.eos] for row in rows]
        index, chosen = _first_difference(*rows)
        first, second = batches(rows[0][:index])
        return PatchedInputs(first.model_inputs(), second.model_inputs(), first.labels.size(1) - 1, chosen)
    read, also = ([task.kind != "masked" or token == tokenizer.special.mask for token in row] for row in questions)
    if read != also or not any(read):
        raise ConfigError("clean and corrupted must have <mask> at the same places: their answers are compared there")
    for row in rows:
        batches(row)  # raises if it is not as long as its text
    inputs, other = (batch.model_inputs() for batch in batches(None))
    rows = rows or [_best(model, each) for each in (inputs, other)]
    rows = [[token if own else -1 for token, own in zip(row, read, strict=True)] for row in rows]
    return PatchedInputs(inputs, other, *_first_difference(*rows))


@torch.no_grad()
def _best(model: Transformer, inputs: Mapping[str, Tensor]) -> list[int]:
    """The likeliest token at each position."""
    logits: Tensor = model(**inputs)
    return logits[0].argmax(dim=-1).tolist()


def _first_difference(one: Sequence[int], other: Sequence[int]) -> tuple[int, tuple[int, int]]:
    """The index at which two answers differ first, and their tokens there."""
    for index, pair in enumerate(zip(one, other, strict=False)):
        if pair[0] != pair[1]:
            return index, pair
    advice = "change the corrupted text, or give two answers that differ where the model predicts"
    raise ConfigError(f"clean and corrupted have the same answer, so there is nothing to restore: {advice}")
