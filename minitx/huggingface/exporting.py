"""`minitx export`: a checkpoint to a folder that `transformers` loads, or to plain safetensors; with a model card."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
import yaml
from safetensors import SafetensorError
from safetensors.torch import save_file

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.atomic_files import UNFINISHED
from minitx.config.errors import ConfigError, RunFailed
from minitx.config.schema import ModelConfig
from minitx.config.yaml_files import Dumper
from minitx.data.example_texts import counted_examples, purpose
from minitx.data.examples import positions
from minitx.huggingface.families import FAMILIES, Family, resolved
from minitx.huggingface.hub_files import write_json
from minitx.huggingface.rewriting import Weights, rewritten
from minitx.huggingface.tokenizer_files import generation_settings, special_ids, write_tokenizer
from minitx.inference.predictor import Predictor, load
from minitx.models.transformers import max_positions

WEIGHTS = "model.safetensors"
MIN_POSITIONS = 1024  # of a model of questions, which may be longer than those of its training
STREAM_TOKENS = 200  # default max_new_tokens of models of running text
HF_USES = {
    "decoder_only": ("text-generation", "AutoModelForCausalLM"),
    "encoder_only": ("fill-mask", "AutoModelForMaskedLM"),
    "encoder_decoder": ("text2text-generation", "AutoModelForSeq2SeqLM"),
}
"""Pipeline on the hub and class of transformers of each architecture."""
METRICS = ("bleu", "chrf", "exact_match", "token_accuracy", "perplexity", "bits_per_character", "loss")
"""Metrics on a model card, if they were measured."""
USAGE = """
```python
from transformers import {model}, PreTrainedTokenizerFast

tokenizer = PreTrainedTokenizerFast.from_pretrained(".")
model = {model}.from_pretrained(".")
```
"""
"""Not AutoTokenizer: with Qwen2, transformers 5 cuts text by the rules of Qwen2's tokenizer, not the folder's."""


def export(source: str | Path, to: Literal["hf", "safetensors"], folder: str | Path) -> str:
    """Write a checkpoint or the best of a run folder for other libraries, and return the model_type.

    Args:
        to: hf, a folder that transformers loads; safetensors, weights under their minitx names and the config.
    """
    folder = Path(folder)
    if folder.is_file() or (folder.is_dir() and (any(folder.iterdir()) or folder.samefile("."))):
        raise ConfigError(f"expected a new or an empty folder, and not the current one, got {folder}: name another")
    file = checkpoint.find(source)
    predictor = load(file, "cpu")
    architecture, tokenizer, task = predictor.architecture, predictor.tokenizer, predictor.task
    max_length, (read, given) = max_positions(predictor.model), task.divide([tokenizer.special.unk])
    if max_length is None:
        longest = task.longest[0] + len(read) - 1, task.longest[1]  # with <bos> and <eos> of the question
        least = MIN_POSITIONS if task.kind == "pairs" else 1  # import reads blocks of running text of this length
        max_length = max(*positions(architecture, longest).values(), least)
    name = "minitx"
    if to == "hf":
        if given:
            raise ConfigError("transformers cannot give a part of the question within the answer (data.interleaved)")
        name, settings, weights = choose(predictor, max_length)
        settings |= special_ids(tokenizer, architecture)
    else:
        settings = {"minitx": checkpoint.FORMAT, **predictor.config.to_dict()}
        weights = {name: part.detach() for name, part in predictor.model.named_parameters()}
    kinds = (file.with_name(f"{kind}.ckpt") for kind in ("best", "last"))
    measured = file == next(filter(Path.is_file, kinds), None)  # the checkpoint that results.json is of
    card = _card(predictor, file.with_name("results.json") if measured else None, to == "hf")
    with _whole_folder(folder) as part:
        save_file({key: weight.contiguous() for key, weight in weights.items()}, part / WEIGHTS, {"format": "pt"})
        write_json(part / "config.json", settings)
        separator = [tokenizer.special.sep] * (task.kind == "pairs" and architecture == "decoder_only")
        write_tokenizer(tokenizer, part, [] if given else [*read, *separator], architecture, max_length)
        if to == "hf" and architecture != "encoder_only":
            half = max(max_length // 2, 1)  # of its positions: the exported model does not move its context
            max_new_tokens = min(STREAM_TOKENS, half) if task.kind == "stream" else task.longest[1] + 1
            write_json(part / "generation_config.json", generation_settings(tokenizer, architecture, max_new_tokens))
        (part / "README.md").write_text(card, encoding="utf-8")
    return name


@contextmanager
def _whole_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that replaces an empty or missing one at the end of the block; after an error it is removed.

    Raises:
        RunFailed: it cannot be written.
    """
    try:
        target = folder.resolve()  # of a link, its target
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=target.parent, prefix=".export.", suffix=UNFINISHED) as outer:
            inner = Path(outer, "folder")  # with the permissions of any folder, which a temporary one lacks
            inner.mkdir()
            yield inner
            with suppress(FileNotFoundError):
                target.rmdir()  # Windows replaces no folder
            inner.replace(target)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunFailed(f"{folder} cannot be written ({reason})") from None


def choose(predictor: Predictor, max_length: int) -> tuple[str, dict[str, Any], Weights]:
    """The first family that can express a model: its model_type, config.json and tensors."""
    model = predictor.model
    config = resolved(dataclasses.replace(predictor.config.model, vocab_size=model.head.out_features))
    reasons = []
    for family in (each for each in FAMILIES.values() if each.fixed["architecture"] == config.architecture):
        plain, weights = rewritten(model, config, family, max_length)
        try:
            return family.model_type, family.to_hf(plain, max_length), _convert(family, plain, weights)
        except ConfigError as lacking:
            reasons.append(f"{family.model_type} has no {lacking}")
    raise ConfigError(f"no Hugging Face family can express this model: {'; '.join(reasons)}")


def _convert(family: Family, config: ModelConfig, weights: Weights) -> Weights:
    tensors = {
        hf_name: to_hf([weights[name] for name in names])
        for hf_name, names, (_, to_hf) in family.links(weights, config)
    }
    if not config.tie_embeddings:  # otherwise transformers restores the copies
        tensors |= {copy: tensors[original].clone() for copy, original in family.copies.items()}
    return tensors | {name: torch.zeros(2, config.d_model) for name in family.added}


def _card(predictor: Predictor, results: Path | None, for_transformers: bool) -> str:
    """The text of the model card of a folder, which transformers may load; results: results.json of the run."""
    config, (pipeline, model) = predictor.config, HF_USES[predictor.architecture]
    front: dict[str, Any] = {"tags": ["minitx"]}
    if for_transformers:
        front |= {"library_name": "transformers", "pipeline_tag": pipeline}
    # With init_from, data.tokenizer is the checkpoint's; those of imported models and of symbols have no name.
    named = not config.run.init_from or predictor.tokenizer.separator == ""
    data = {name: value for name, value in config.data.items() if name != "tokenizer" or named}
    options = ", ".join(f"{name} {value}" for name, value in data.items() if name != "name")
    return f"""---
{_yaml(front)}
---

# {config.run.name}

A Transformer ({predictor.architecture}, {sum(part.numel() for part in predictor.model.parameters()):,} parameters) \
trained with minitx.

- **Task**: `{config.data["name"]}`: {purpose(predictor.task)}
- **Data**: {options or "the default options"}
- **Metric**: {"not measured" if results is None else _metrics(results)}
{USAGE.format(model=model) if for_transformers else ""}
The config of the run:

```yaml
{_yaml(config.to_dict() | {"data": data})}
```
"""


def _yaml(value: dict[str, Any]) -> str:
    return yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True).strip()


def _metrics(path: Path) -> str:
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        examples = counted_examples(results["examples"], results["split"])
        values = [f"{name.replace('_', ' ')} {results[name]:.4g}" for name in METRICS if name in results]
    except (OSError, ValueError, KeyError, TypeError):
        return "not measured"
    return f"{', '.join(values)} ({examples})"
