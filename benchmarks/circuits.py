"""Two circuits by activation patching, three seeds each: the mirrored heads of reversal, and induction.

python -m benchmarks.circuits [JOBS]     trains configs/reverse.yaml and configs/induction.yaml, then patches them
"""

import sys
import timeit
from collections.abc import Callable, Iterator
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

import minitx
from benchmarks.common import record, table, trained
from minitx.data.batch import IGNORE
from minitx.data.examples import Pairs
from minitx.data.tasks.base import generator
from minitx.inference.predictor import Predictor
from minitx.interpret.intervene import intervene
from minitx.interpret.lens import decoder_lens, layer_names, lens
from minitx.interpret.patching import Patch, head_patches, part_patch, patched_inputs, patched_logits, path_values
from minitx.interpret.task_statistics import task_statistics
from minitx.interpret.trace import trace

SEEDS, EXAMPLES, SHORTEST = 3, 200, 5
Texts = tuple[list[str], list[str]]
"""The symbols of a clean and of a corrupted question."""


def questions(predictor: Predictor) -> Iterator[list[str]]:
    """Held-out questions, as symbols."""
    pairs = predictor.task.examples("test", 4 * EXAMPLES)
    assert isinstance(pairs, Pairs)
    for row, keep in zip(pairs.source, pairs.source_keep, strict=True):
        if keep.sum() >= SHORTEST:
            yield predictor.tokenizer.tokens(row[keep].tolist())


def one_symbol_changed(predictor: Predictor) -> Iterator[Texts]:
    """For reversal: replace the symbol at a random position."""
    random = generator(26)
    for question in questions(predictor):
        place, step = (int(torch.randint(size, (), generator=random)) for size in (len(question), 9))
        changed = [*question]
        changed[place] = str((int(question[place]) + 1 + step) % 10)
        yield question, changed


def two_symbols_swapped(predictor: Predictor) -> Iterator[Texts]:
    """For induction: swap the earlier occurrence of the last symbol with a symbol that is not beside it."""
    random = generator(26)
    for question in questions(predictor):
        *before, last = question
        first = before.index(last)
        others = [place for place in range(len(before) - 1) if abs(place - first) > 1]
        if others:
            place = others[int(torch.randint(len(others), (), generator=random))]
            changed = [*question]
            changed[first], changed[place] = question[place], last
            yield question, changed


def restored(
    predictor: Predictor, pairs: Iterator[Texts],
    patched: Callable[[dict[str, Tensor], dict[str, Tensor]], dict[str, tuple[dict[str, Tensor], list[Patch]]]],
) -> dict[str, float]:  # fmt: skip
    """The share of the mean logit difference that each named group of patches restores.

    `patched` returns the values and the patches of each group, by name, for clean and corrupted inputs.
    """
    model, totals = predictor.model, dict[str, float]()
    for _, (one, other) in zip(range(EXAMPLES), pairs, strict=False):
        inputs = patched_inputs(predictor, " ".join(one), " ".join(other))
        right, wrong = inputs.answers
        groups = patched(inputs.clean, inputs.corrupted)
        values = {name: value for each, _ in groups.values() for name, value in each.items()}
        logits = {"clean": patched_logits(model, inputs.clean, {}, [[]], inputs.position)[0]}
        logits["corrupted"] = patched_logits(model, inputs.corrupted, {}, [[]], inputs.position)[0]
        for name, (own, patches) in groups.items():
            logits[name] = patched_logits(model, inputs.corrupted, {**values, **own}, [patches], inputs.position)[0]
        for name, each in logits.items():
            totals[name] = totals.get(name, 0.0) + float(each[right] - each[wrong])
    clean, corrupted = totals.pop("clean"), totals.pop("corrupted")
    return {name: (total - corrupted) / (clean - corrupted) for name, total in totals.items()}


@torch.no_grad()
def reversal(predictor: Predictor) -> dict[str, float]:
    """The heads of the last cross-attention together and alone, and each other head."""
    model, heads = predictor.model, head_patches(predictor.model)
    last = max(name.rpartition(".")[0] for name in heads if name.startswith("cross"))
    mirrored = [name for name in heads if name.startswith(f"{last}.")]

    def patched(clean: dict[str, Tensor], _: dict[str, Tensor]) -> dict[str, Any]:
        with trace(model, only="*attn.z") as values:
            model(**clean)
        groups = {"both": mirrored, **{name: [name] for name in heads}}
        return {name: (dict(values), [heads[each] for each in group]) for name, group in groups.items()}

    found = restored(predictor, one_symbol_changed(predictor), patched)
    others = [found[name] for name in heads if name not in mirrored]
    one, two = sorted((found[name] for name in mirrored), reverse=True)
    return {
        "both mirrored heads": found["both"],
        "the stronger of them": one,
        "the weaker of them": two,
        "another head, mean": mean(others),
        "another head, largest": max(others),
    }


@torch.no_grad()
def moved(predictor: Predictor, size: int = 10) -> dict[str, float]:
    """How often a step of an answer, patched with the activation of another step, has that step's symbol."""
    model, special, random = predictor.model, predictor.tokenizer.special, generator(27)
    names = {
        "embeddings": "decoder.layers.0.resid_pre",
        "first self-attention": "decoder.layers.0.self_attn.out",
        "first cross-attention": "decoder.layers.0.cross_attn.out",
        "queries of the last cross-attention": "decoder.layers.1.cross_attn.q",
    }
    counts = dict.fromkeys(names, 0)
    for _ in range(EXAMPLES):
        symbols = torch.randperm(size, generator=random)
        source = torch.tensor([predictor.tokenizer.encode(" ".join(map(str, symbols.tolist())))])
        target = torch.cat((torch.tensor([[special.bos]]), source.flip(1)), dim=1)
        here, there = torch.randperm(size, generator=random)[:2].tolist()
        with trace(model, only=names.values()) as values:
            model(source, target)
        for label, name in names.items():
            value = values[name].clone()
            value[:, here] = value[:, there]
            with intervene(model, {name: value}):
                counts[label] += int(model(source, target)[0, here].argmax() == source[0, size - 1 - there])
    return {f"{label} of another step: its symbol": count / EXAMPLES for label, count in counts.items()}


@torch.no_grad()
def lenses(predictor: Predictor) -> dict[str, float]:
    """The share of right tokens by the lens of each layer, teacher-forced, on 1,000 held-out questions."""
    batch = predictor.task.examples("test", 1000).frame(predictor.architecture, predictor.tokenizer.special)
    real, ends = batch.labels != IGNORE, batch.labels == predictor.tokenizer.special.eos
    found = {}
    for name, logits in (("logit lens", lens), ("DecoderLens", decoder_lens)):
        right = [values.argmax(dim=-1) == batch.labels for values in logits(predictor.model, batch.model_inputs())]
        for part, mask in (("tokens", real), ("`<eos>`", ends)):
            for layer, each in zip(layer_names(len(right)), right, strict=True):
                found[f"{name}, {layer}: right {part}"] = float(each[mask].float().mean())
    return found


@torch.no_grad()
def induction(predictor: Predictor) -> dict[str, float]:
    """The direct path from the previous-token head to the keys of the induction head, and other paths."""
    model, heads = predictor.model, head_patches(predictor.model)
    (statistics,) = task_statistics(predictor, 1000, "test").values()
    scores = {each.name: each.values for each in statistics}

    def strongest(pattern: str, layer: int) -> int:
        values = [value or 0.0 for value in scores[pattern][layer]]
        return values.index(max(values))

    sender, receiver = strongest("previous_token", 0), strongest("induction", 1)
    names = {
        (layer, head): f"decoder.{layer + 1}.{head + 1}"
        for layer in range(2)
        for head in range(len(scores["induction"][0]))
    }

    def patched(clean: dict[str, Tensor], corrupted: dict[str, Tensor]) -> dict[str, Any]:
        with trace(model, only="*attn.z") as whole:
            model(**clean)
        own = path_values(model, clean, corrupted, heads[names[0, sender]])
        other = path_values(model, clean, corrupted, heads[names[0, 1 - sender]])
        to = {part: [part_patch(model, heads[names[1, receiver]], part)] for part in "qkv"}
        elsewhere = [part_patch(model, heads[names[1, 1 - receiver]], "k")]
        return {
            "the whole previous-token head": (dict(whole), [heads[names[0, sender]]]),
            "previous-token head to the induction head's keys": (own, to["k"]),
            "to its queries": (own, to["q"]),
            "to its values": (own, to["v"]),
            "to the other head's keys": (own, elsewhere),
            "the other first-layer head to the induction head's keys": (other, to["k"]),
        }

    return restored(predictor, two_symbols_swapped(predictor), patched)


def seconds() -> dict[str, float]:
    """Time of a map of 2 layers x 8 heads x 16 positions, and of one forward, untrained."""
    from minitx import ModelConfig, build_model

    model = build_model(
        ModelConfig(architecture="decoder_only", d_model=128, n_heads=8, n_layers=2, vocab_size=50)
    ).eval()
    clean, corrupted = ({"ids": torch.randint(50, (1, 16))} for _ in range(2))
    patches = [[patch._replace(position=at)] for patch in head_patches(model).values() for at in range(16)]

    def took(work: Callable[[], object]) -> float:
        return min(timeit.repeat(work, number=1, repeat=20))

    with torch.no_grad():
        with trace(model, only="*attn.z") as values:
            model(**clean)
        one = took(lambda: model(**corrupted))
        return {"forward": one, "map": took(lambda: patched_logits(model, corrupted, values, patches))}


MEASURES = {
    "circuits": [("reverse", reversal), ("induction", induction)],
    "lenses": [("reverse", lenses), ("reverse", moved)],
}
"""Tables of the page: configs, and the functions that measure their models."""


def main(jobs: int = 1) -> None:
    """Train what is missing, measure, and write the tables of the guide."""
    rows: list[dict[str, Any]] = [{"seconds": seconds()}]
    texts = []
    for title, measures in MEASURES.items():
        lines = []
        for name, measure in measures:
            found = []
            for row in trained(["--config", name], {}, SEEDS, None, jobs):
                figures = measure(minitx.load(row["folder"], device="cpu"))
                rows.append({"config": name, "seed": row["seed"], **figures})
                found.append(figures)
            for label in found[0]:
                values = [round(100 * figures[label], 1) + 0.0 for figures in found]  # + 0.0: without the sign of -0.0
                each = ", ".join(f"{value:.1f}" for value in values)
                lines.append([f"`{name}`", label, f"{mean(values):.1f} ± {stdev(values):.1f} %", each])
        header = ["model", "patched from the clean text" if title == "circuits" else "measured", "share", "each seed"]
        texts.append(table(header, lines))
    record("circuits", rows, "\n\n".join(texts), "guide/layers.md")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
