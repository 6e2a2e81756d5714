"""The model card: README.md of an exported folder, with task, data, metrics and config."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import yaml

from minitx.inference.predictor import Predictor

HF_USES = {
    "decoder_only": ("text-generation", "AutoModelForCausalLM"),
    "encoder_only": ("fill-mask", "AutoModelForMaskedLM"),
    "encoder_decoder": ("text2text-generation", "AutoModelForSeq2SeqLM"),
}
"""Pipeline on the hub and class of transformers of each architecture."""
METRICS = ("bleu", "chrf", "exact_match", "token_accuracy", "perplexity", "bits_per_character", "loss")
"""Metrics on a card, where they were measured."""
USAGE = """
```python
from transformers import AutoTokenizer, {model}

tokenizer = AutoTokenizer.from_pretrained(".")
model = {model}.from_pretrained(".")
```
"""


def card(predictor: Predictor, checkpoint: Path, for_transformers: bool) -> str:
    """The text of a model card.

    Args:
        predictor: the model.
        checkpoint: its file; metrics are read from the results.json beside it.
        for_transformers: whether transformers loads the folder.
    """
    config, (pipeline, model) = predictor.config, HF_USES[predictor.architecture]
    front: dict[str, Any] = {"tags": ["minitx"]}
    if for_transformers:
        front |= {"library_name": "transformers", "pipeline_tag": pipeline}
    options = ", ".join(f"{name} {value}" for name, value in config.data.items() if name != "name")
    return f"""---
{_yaml(front)}
---

# {config.run.name}

A Transformer ({predictor.architecture}, {sum(part.numel() for part in predictor.model.parameters()):,} parameters) \
trained with minitx.

- **Task**: `{config.data["name"]}`: {(inspect.getdoc(type(predictor.task)) or "").splitlines()[0]}
- **Data**: {options or "the default options"}
- **Metric**: {_metrics(checkpoint.parent / "results.json")}
{USAGE.format(model=model) if for_transformers else ""}
The config of the run:

```yaml
{_yaml(config.to_dict())}
```
"""


def _yaml(value: dict[str, Any]) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True).strip()


def _metrics(path: Path) -> str:
    """The metrics of a run's results."""
    try:
        results = json.loads(path.read_text())
        examples = f"{results['examples']:,} examples held out for {results['split']}"
        values = [f"{name.replace('_', ' ')} {results[name]:.4g}" for name in METRICS if name in results]
    except (OSError, ValueError, KeyError, TypeError):
        return "not measured"
    return f"{', '.join(values)} ({examples})"
