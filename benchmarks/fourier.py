"""The frequencies that carry a model of modular addition, after Nanda et al. 2023 (ICLR).

    python -m benchmarks.fourier RUN        a run folder or a checkpoint; writes docs/fourier.md and its picture

Legend: p modulus, F frequencies 1 to (p - 1) / 2, D d_model, N neurons of the last layer.
"""

import argparse
from typing import Any

import torch
from torch import Tensor

import minitx
from benchmarks.common import DOCS, record, table
from minitx.data.examples import Pairs
from minitx.data.tasks.arithmetic import ModularAddition
from minitx.data.tasks.base import FIRST_SYMBOL_ID
from minitx.evaluation.metrics import exact_matches
from minitx.inference.predictor import Predictor
from minitx.plotting.panels import Lines, sheet

ONE_FREQUENCY = 0.85  # share of a neuron's variance from which one frequency explains it, as in the paper
LISTED = 0.01  # share from which a frequency is listed


def embedding_shares(embedding: Tensor) -> Tensor:
    """The share of each frequency in the variance of the numbers' embeddings [p, D] over the numbers: [F]."""
    power = torch.fft.rfft(embedding.double(), dim=0).abs().square().sum(dim=1)[1:]
    return power / power.sum()


def neuron_power(neurons: Tensor) -> tuple[Tensor, Tensor]:
    """The variance of neurons [p, p, N] over all sums a + b, by frequency [F, N] and in all [N].

    The terms of a frequency w are cos and sin of w a and of w b, and the products of these.
    """
    power = torch.fft.fft2(neurons.double(), dim=(0, 1)).abs().square()
    w, zero = torch.arange(1, neurons.size(0) // 2 + 1), torch.zeros(neurons.size(0) // 2, dtype=torch.long)
    cells = [(w, zero), (zero, w), (w, w), (w, -w)]
    found = sum((power[a, b] + power[-a, -b] for a, b in cells), torch.zeros(len(w), neurons.size(2)))
    return found, power.sum(dim=(0, 1)) - power[0, 0]


def read(predictor: Predictor) -> tuple[Tensor, Tensor]:
    """The embeddings of the numbers [p, D], and the neurons [p, p, N] that predict the sum of every pair."""
    task = predictor.task
    if not (isinstance(task, ModularAddition) and task.modulus % 2 and predictor.architecture == "decoder_only"):
        raise SystemExit("this needs a decoder_only model of modular_addition with an odd modulus")
    model: Any = predictor.model
    name = f"decoder.layers.{len(model.decoder.layers) - 1}.ffn.hidden"
    p = task.modulus
    pairs = torch.cartesian_prod(torch.arange(p), torch.arange(p)) + FIRST_SYMBOL_ID
    keep = torch.ones_like(pairs, dtype=torch.bool)
    prompt = Pairs(pairs, keep, pairs[:, :1], keep[:, :1]).prompt("decoder_only", predictor.tokenizer.special)
    found: list[Tensor] = []
    for ids in prompt.ids.split(1024):
        with torch.inference_mode(), minitx.trace(model, only=name) as values:
            model(ids)
        found.append(values[name][:, -1])
    weights = model.embedding.table.weight.detach()
    return weights[FIRST_SYMBOL_ID : FIRST_SYMBOL_ID + p], torch.cat(found).unflatten(0, (p, p))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    predictor = minitx.load(parser.parse_args().run, "cpu")
    embedding, neurons = read(predictor)
    in_embedding = embedding_shares(embedding)
    power, total = neuron_power(neurons)
    in_neurons = power.sum(dim=1) / total.sum()
    best, frequency = (power / total).max(dim=0)
    rows = [
        {"frequency": w + 1, "embedding": float(in_embedding[w]), "neurons": float(in_neurons[w]),
         "of_one_frequency": int(((frequency == w) & (best >= ONE_FREQUENCY)).sum())}
        for w in range(len(in_embedding))
    ]  # fmt: skip
    listed = [row for row in rows if max(row["embedding"], row["neurons"]) >= LISTED]
    listed.sort(key=lambda row: -row["neurons"])
    lines = [
        [row["frequency"], f"{row['embedding']:.1%}", f"{row['neurons']:.1%}", row["of_one_frequency"]]
        for row in listed
    ]
    sums = [f"**{sum(row[name] for row in listed):.1%}**" for name in ("embedding", "neurons")]
    lines.append(["together", *sums, sum(row["of_one_frequency"] for row in listed)])
    header = ["frequency", "of the embedding", "of the neurons", f"neurons with >= {ONE_FREQUENCY:.0%} at it"]
    p, special = embedding.size(0), predictor.tokenizer.special
    right = exact_matches(predictor.model, predictor.task.examples("test"), "decoder_only", special)
    assert right is not None  # pairs have answers
    config = predictor.config
    text = (
        f"a + b modulo {p}, {config.data['train_share']:.0%} of all pairs for training, {config.model.n_layers} "
        f"layer(s) of width {config.model.d_model}, {config.trainer.max_steps:,} steps, seed {config.run.seed}: "
        f"{right.float().mean():.2%} of {len(right):,} unseen sums; shares of the variance, of {len(rows)} frequencies "
        f"those with at least {LISTED:.0%}, {neurons.size(2)} neurons:\n\n{table(header, lines)}\n\n"
        "![Shares of the frequencies](images/fourier.png)"
    )
    at = [row["frequency"] for row in rows]
    curves = [(name, [100 * row[name] for row in rows]) for name in ("embedding", "neurons")]
    title = f"a + b modulo {p}: share of the variance, %"
    sheet(DOCS / "images/fourier.png", title, [Lines("", at, curves, "frequency")])
    record("fourier", rows, text, "fourier.md")


if __name__ == "__main__":
    main()
