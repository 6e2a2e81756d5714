"""`minitx import`: a Hugging Face model folder to a checkpoint."""

import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from minitx.checkpoints import format as checkpoint
from minitx.checkpoints.model_weights import check_stored, on_meta
from minitx.config.errors import ConfigError, first_line
from minitx.config.registry import resolve
from minitx.config.schema import Config, ModelConfig, Options, RunConfig, config_from_dict
from minitx.config.validation import check_plain
from minitx.data.tasks import TASKS
from minitx.data.text.work_progress import progress, written
from minitx.data.tokenizers import Tokenizer
from minitx.huggingface.families import FAMILIES, Family, resolved
from minitx.huggingface.hub_files import local_folder, read_json, read_weights
from minitx.huggingface.tokenizer_files import read_tokenizer


def import_model(source: str, out: str | Path, revision: str | None = None) -> tuple[str, ModelConfig, int]:
    """Read a Hugging Face model, from a folder or the hub, and write it as a checkpoint.

    Args:
        revision: of a name on the hub, such as step0 to step143000 of Pythia, or a subfolder of a local source.

    Returns:
        The model_type, the config and the number of parameters.
    """
    folder = local_folder(source, revision)
    try:
        data, family, config, tensors, tokenizer = _read(folder)
    except ConfigError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError) as error:
        reason = first_line(error)[:200]  # the files may hold anything
        raise ConfigError(f"{folder} is damaged, or its files do not fit together: {reason}") from None
    resolve(TASKS, data, "data")  # a length that is not a number, or too large, is refused before anything is written
    name = Path(source).resolve().name if Path(source).is_dir() else source
    run = RunConfig(name=f"{name}@{revision}" if revision else name)
    whole = Config(run=run, data=data, model=config).to_dict()
    parameters = sum({tensor.data_ptr(): tensor.numel() for tensor in tensors.values()}.values())  # tied ones once
    contents = checkpoint.contents_of(whole, tokenizer.to_dict(), tensors)
    checkpoint.write(contents, out, partial(written, total=4 * parameters))
    return family.model_type, config, parameters


def _read(folder: Path) -> tuple[Options, Family, ModelConfig, dict[str, Tensor], Tokenizer]:
    """The contents of a folder: its task as a `data` section, family, config, weights and tokenizer."""
    if not (hf := read_json(folder, "config.json")):
        raise ConfigError(f"{folder} has no config.json: it is not a model folder")
    check_plain(hf, f"{folder}/config.json")
    name = hf.get("model_type")
    if name is None and "minitx" in hf:
        raise ConfigError(f"{folder} holds bare weights: import reads what minitx export writes with --to hf")
    if not isinstance(name, str) or name not in FAMILIES:
        raise ConfigError(f"model_type {name} is not supported; minitx imports {', '.join(FAMILIES)}")
    family = FAMILIES[name]
    config = config_from_dict(Config(model=family.from_hf(hf)).to_dict()).model  # with checked types
    if (rows := config.vocab_size) is None:
        raise ConfigError(f"{folder}/config.json has no vocab_size, the number of rows of its token embeddings")
    weights = read_weights(folder, family.base)
    check_stored(config, weights)
    config, tensors = _convert(family, config, weights)
    family.fold(hf, tensors)
    tokenizer = read_tokenizer(folder, config.architecture, hf)
    if tokenizer.vocab_size > rows:
        raise ConfigError(f"the tokenizer of {folder} has {tokenizer.vocab_size} tokens, more than its model: {rows}")
    tokenizer.check_fits(rows)
    return _task(folder, hf, family), family, config, tensors, tokenizer


def _task(folder: Path, hf: dict[str, Any], family: Family) -> Options:
    """The `data` section of a model: its context, or the maximum length of its answers without <eos>."""
    longest = hf.get(family.length[0]) or family.length[1]
    if family.task != "imported_pairs":
        return {"name": family.task, "block": longest}
    own = read_json(folder, "generation_config.json") or hf  # as transformers reads them
    if own.get("max_new_tokens") or own.get("max_length"):  # which counts the decoder's first token too
        longest = max((own.get("max_new_tokens") or own["max_length"] - 1) - 1, 1)
    return {"name": family.task, "max_tokens": longest}


def _convert(family: Family, config: ModelConfig, weights: dict[str, Tensor]) -> tuple[ModelConfig, dict[str, Tensor]]:
    """Convert the weights; the config returned has an untied head if the weights have one."""
    head, table = (family.hf_name(f"{name}.weight", config) for name in ("head", "embedding.table"))
    tied = {**family.copies, **({head: table} if config.tie_embeddings else {})}
    for copy in (name for name in tied if name in weights):  # a file may have any of the names of a tied tensor
        weights.setdefault(tied[copy], weights[copy])
    if config.tie_embeddings and head in weights:
        # Some configs declare tied tables although the file has two different ones.
        config = dataclasses.replace(config, tie_embeddings=torch.equal(weights[head], weights[table]))
    if not config.tie_embeddings:
        weights |= {family.copies[name]: weights[name] for name in family.separate & weights.keys()}
    parameters = _parameters(config)
    links = family.links(parameters, resolved(config))
    needed = {hf_name for hf_name, *_ in links} | family.added.keys()
    if missing := needed - weights.keys() - family.zeros:
        raise ConfigError(f"the weights have no {_listed(missing)}, which {family.model} has")
    for copy, original in family.copies.items():
        if copy in weights and not torch.equal(weights[copy], weights[original]):
            raise ConfigError(f"{copy} and {original} differ; minitx has one tensor for both")
    ignored = re.compile(f"({re.escape(family.base)})?({family.ignored})")
    if unexpected := {name for name in weights.keys() - needed - tied.keys() if not ignored.fullmatch(name)}:
        raise ConfigError(f"the weights have {_listed(unexpected)}, which {family.model} does not have")
    for name in family.zeros - weights.keys():
        weights[name] = weights[table].new_zeros(1, len(weights[table]))
    for name, other in family.added.items():
        weights[other] = weights[other] + weights[name][0]
    tensors: dict[str, Tensor] = {}
    sizes = {hf_name: weights[hf_name].nbytes for hf_name, *_ in links}
    shown = progress(links, "converting", lambda link: sizes[link[0]], sum(sizes.values()), "B")
    for hf_name, names, (from_hf, _) in shown:
        for name, tensor in zip(names, from_hf(weights[hf_name], len(names)), strict=True):
            shape, aliases = parameters[name]
            if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
                got = "NaN or infinity" if tensor.is_floating_point() else tensor.dtype
                raise ConfigError(f"{hf_name}: expected finite floating-point numbers, got {got}")
            if tensor.shape != shape:
                raise ConfigError(f"{hf_name}: expected {[*shape]} for {name}, got {[*tensor.shape]}")
            tensors |= dict.fromkeys(aliases, tensor.contiguous())
    return config, tensors


def _parameters(config: ModelConfig) -> dict[str, tuple[torch.Size, list[str]]]:
    """Shape and all state dict names of each parameter, by its first name.

    A tied head has the embedding's table, and each attention the position scheme of its stack.
    """
    names: dict[torch.nn.Parameter, list[str]] = {}
    for name, parameter in on_meta(config).state_dict(keep_vars=True).items():
        names.setdefault(parameter, []).append(name)
    return {aliases[0]: (parameter.shape, aliases) for parameter, aliases in names.items()}


def _listed(names: set[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(sorted(names)[:3]) + more
