"""Outputs of a translation model whose decoder reads each layer of the encoder in turn, on 200 test sentences.

python -m benchmarks.decoder_lens RUN     a run of configs/multi30k_small.yaml, which needs its files (data/README.md)

Right tokens are teacher-forced. BLEU is that of greedy outputs, with an encoder that ends after the layer.
"""

import sys
from collections import Counter
from typing import Any

import torch
from torch import Tensor

import minitx
from benchmarks.common import record, table
from minitx.data.batch import IGNORE
from minitx.evaluation.bleu import text_scores
from minitx.inference.predictor import Predictor
from minitx.interpret.intervene import intervene
from minitx.interpret.lens import decoder_lens, layer_names

EXAMPLES, FREQUENT = 200, 50
NOTHING = {"decoder.*.cross_attn.out": "zero"}


@torch.no_grad()
def measured(predictor: Predictor) -> list[dict[str, Any]]:
    """Shares of right tokens, and BLEU, when the decoder reads nothing, or each layer of the encoder."""
    model: Any = predictor.model
    batch = predictor.task.examples("test", EXAMPLES).frame(predictor.architecture, predictor.tokenizer.special)
    real = batch.labels != IGNORE
    counts = Counter(batch.labels[real].tolist()).most_common(FREQUENT)
    frequent = torch.isin(batch.labels, torch.tensor([token for token, _ in counts]))

    def row(name: str, logits: Tensor) -> dict[str, Any]:
        right = logits.argmax(dim=-1) == batch.labels
        masks = {"all": real, "frequent": frequent, "others": real & ~frequent}
        return {"read": name, **{kind: float(right[mask].float().mean()) for kind, mask in masks.items()}}

    def bleu() -> float:
        return float(text_scores(predictor, predictor.task.sentences("test", EXAMPLES))["bleu"])

    with intervene(model, NOTHING):
        rows = [row("nothing", model(**batch.model_inputs())) | {"bleu": bleu()}]
    logits, layers = decoder_lens(model, batch.model_inputs()), model.encoder.layers
    for count, name in enumerate(layer_names(len(logits))):
        model.encoder.layers = layers[:count]
        rows.append(row(name, logits[count]) | {"bleu": bleu()})
    return rows


def main(run: str) -> None:
    """Measure, and write the table of the guide."""
    rows = measured(minitx.load(run, device="cpu"))
    lines = [
        [row["read"], *(f"{100 * row[kind]:.1f} %" for kind in ("all", "frequent", "others")), f"{row['bleu']:.1f}"]
        for row in rows
    ]
    header = ["the decoder reads", "right tokens", f"of the {FREQUENT} most frequent", "of the others", "BLEU"]
    record("decoder_lens", rows, table(header, lines), "guide/layers.md")


if __name__ == "__main__":
    main(*sys.argv[1:])
