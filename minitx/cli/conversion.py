"""`minitx import` and `minitx export`. Torch is imported after the checks."""

from __future__ import annotations

from argparse import Namespace

from minitx.checkpoints.atomic_files import writable
from minitx.config.parser import Parser


def import_arguments(parser: Parser) -> None:
    """Add the arguments of `minitx import`."""
    parser.add_argument(
        "source", help="a folder with config.json, *.safetensors and tokenizer.json, or a name on the hub"
    )
    parser.add_argument("--out", required=True, help="the checkpoint to write")


def run_import(parsed: Namespace) -> None:
    """Import a model."""
    out = writable(parsed.out)
    from minitx.huggingface.importing import import_model

    family, model, parameters = import_model(parsed.source, out)
    print(
        f"{out}: {family} as {model.architecture}, {model.n_layers} layers of {model.d_model}, "
        f"{parameters:,} parameters, {model.vocab_size:,} tokens\n"
        f"minitx generate {out} TEXT"
    )


def export_arguments(parser: Parser) -> None:
    """Add the arguments of `minitx export`."""
    parser.add_argument("checkpoint", help="a checkpoint file, or a run folder (its newest version's best)")
    parser.add_argument(
        "--to",
        choices=("hf", "safetensors"),
        default="hf",
        help="hf: a folder that transformers loads; safetensors: weights under the names of minitx, and the config",
    )
    parser.add_argument("folder", help="a new folder")


def run_export(parsed: Namespace) -> None:
    """Export a model."""
    from minitx.huggingface.exporting import export

    name = export(parsed.checkpoint, parsed.to, parsed.folder)
    print(f"{parsed.folder}: {name}; its README.md describes the model")
