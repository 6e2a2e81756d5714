"""`minitx import`, `minitx export` and `minitx average`. Torch is imported after the arguments are checked."""

from argparse import Namespace
from pathlib import Path

from minitx.cli.arguments import output
from minitx.cli.config_parser import Parser
from minitx.config.errors import counted


def import_arguments(parser: Parser) -> None:
    source = "a folder with config.json, *.safetensors and tokenizer.json, or a name on the hub"
    parser.add_argument("source", help=source)
    parser.add_argument("--out", type=output(), required=True, help="the checkpoint to write")
    parser.add_argument("--revision", help="revision on the hub, such as step1000 of Pythia, or a subfolder")


def import_model(parsed: Namespace) -> None:
    """Convert a Hugging Face model: GPT, Pythia, Llama, Mistral, Qwen, Gemma, Phi, BERT, T5, BART, Marian."""
    from minitx.huggingface.importing import import_model

    family, model, parameters = import_model(parsed.source, parsed.out, parsed.revision)
    layers = f"{counted(model.n_layers, 'layer')} of width {model.d_model}"
    size = f"{layers}, {parameters:,} parameters, {model.vocab_size:,} tokens"
    print(f"{parsed.out}: {family} as {model.architecture}, {size}\nminitx generate {parsed.out} TEXT")


def export_arguments(parser: Parser) -> None:
    parser.add_argument("checkpoint", help="a checkpoint file, or a run folder (its newest version's best)")
    formats = "hf: a folder that transformers loads; safetensors: weights under the names of minitx, and the config"
    parser.add_argument("--to", choices=("hf", "safetensors"), default="hf", help=formats)
    parser.add_argument("folder", type=Path, help="a new folder")


def export_model(parsed: Namespace) -> None:
    """Write a trained model for Hugging Face's transformers, or as plain safetensors."""
    from minitx.huggingface.exporting import export

    name = export(parsed.checkpoint, parsed.to, parsed.folder)
    print(f"{parsed.folder}: {name}; its README.md describes the model")


def average_arguments(parser: Parser) -> None:
    parser.add_argument("run", help="a run folder whose trainer.keep_every_n_steps kept checkpoints")
    text = "average this many of the newest kept checkpoints (default: 5)"
    parser.add_argument("--last", type=int, default=5, metavar="N", help=text)
    parser.add_argument("--out", type=output(), help="the checkpoint to write; default: average.ckpt in the folder")


def average(parsed: Namespace) -> None:
    """Write the mean of the weights of a run's kept checkpoints: --last N."""
    from minitx.training.callbacks.average_weights import average

    out, files = average(parsed.run, parsed.last, parsed.out)
    print(f"{out}: the mean of {files[0].name} to {files[-1].name}, {len(files)} files\nminitx evaluate {out}")
