"""The model card: README.md of an exported folder, which says what the model does, learnt from what, and how well."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import yaml

from minitx.inference.predictor import Predictor

PIPELINES = {"decoder_only": "text-generation", "encoder_only": "fill-mask", "encoder_decoder": "text2text-generation"}
"""What the hub calls the use of an architecture."""
METRICS = ("bleu", "chrf", "exact_match", "token_accuracy", "perplexity", "bits_per_character", "loss")
"""Figures that a card tells, where they were measured."""
CLASSES = {
    "decoder_only": "AutoModelForCausalLM", "encoder_only": "AutoModelForMaskedLM",
    "encoder_decoder": "AutoModelForSeq2SeqLM",
}  # fmt: skip


def card(predictor: Predictor, checkpoint: Path, family: str | None) -> str:
    """The text of a card.

    Args:
        predictor: the model.
        checkpoint: its file; figures are taken from the results.json that a finished run leaves beside it.
        family: their model_type; None for weights under our own names.
    """
    config = predictor.config
    front: dict[str, Any] = {"tags": ["minitx"]}
    if family is not None:
        front |= {"library_name": "transformers", "pipeline_tag": PIPELINES[predictor.architecture]}
    data = {name: value for name, value in config.data.items() if name != "name"}
    task = (inspect.getdoc(type(predictor.task)) or "").splitlines()[0]
    parameters = sum(part.numel() for part in predictor.model.parameters())
    lines = [
        "---", yaml.safe_dump(front, sort_keys=False).strip(), "---", "", f"# {config.run.name}", "",
        f"A Transformer ({predictor.architecture}, {parameters:,} parameters) trained with minitx.", "",
        f"- **Task**: `{config.data['name']}`: {task}",
        f"- **Data**: {', '.join(f'{name} {value}' for name, value in data.items()) or 'the usual options'}",
        *_figures(checkpoint.parent / "results.json"),
    ]  # fmt: skip
    if family is not None:
        kind = CLASSES[predictor.architecture]
        lines += [
            "", "```python", f"from transformers import AutoTokenizer, {kind}", "",
            'tokenizer = AutoTokenizer.from_pretrained(".")', f'model = {kind}.from_pretrained(".")', "```",
        ]  # fmt: skip
    settings = yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True).strip()
    return "\n".join([*lines, "", "The whole configuration of the run:", "", "```yaml", settings, "```", ""])


def _figures(path: Path) -> list[str]:
    """Metric and figure, from a run's results."""
    try:
        results = json.loads(path.read_text())
        held_out = f"{results['examples']:,} examples held out for {results['split']}"
        told = [f"{name.replace('_', ' ')} {results[name]:.4g}" for name in METRICS if name in results]
    except (OSError, ValueError, KeyError, TypeError):
        return ["- **Metric**: not measured"]
    return [f"- **Metric**: {', '.join(told)} ({held_out})"]
