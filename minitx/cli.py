"""The command line: minitx train | evaluate | generate | attend | ablate | describe | sweep |
import | export | list.

Parses first and imports afterwards, so that help and typos answer at once. Whatever a user can get wrong comes out as
one sentence on stderr with exit code 2; MINITX_TRACEBACK=1 shows where it came from.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from jsonargparse import Namespace

from minitx.generation.options import GenerationOptions
from minitx.huggingface import command as huggingface
from minitx.options import Parser, add_options, config_parser, did_you_mean, to_config
from minitx.sweeps import command as sweeps

if TYPE_CHECKING:
    from minitx.predictor import Predictor


class Command(NamedTuple):
    """One word after `minitx`."""

    help: str
    parser: Callable[[Parser], None]
    run: Callable[[Parser, Namespace], None]
    configured: bool = False  # whether it takes --config and overrides


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; leaves the process with code 2 after bad input."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        raise SystemExit(0 if arguments else 2)
    try:
        name = arguments[0]
        if name not in COMMANDS:
            raise ValueError(f"unknown command {name}: {did_you_mean(name, COMMANDS)}")
        command = COMMANDS[name]
        make = config_parser if command.configured else Parser
        parser = make(prog=f"minitx {name}", description=command.help)
        command.parser(parser)
        command.run(parser, parser.parse_args(arguments[1:]))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has gone, and knows why
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except ValueError as error:
        if os.environ.get("MINITX_TRACEBACK") or not _ours(error):
            raise
        print(f"minitx: {error}", file=sys.stderr)
        raise SystemExit(2) from None


def usage() -> str:
    """What `minitx --help` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: minitx COMMAND ...   (minitx COMMAND --help tells its arguments)", "", *lines])


def _ours(error: ValueError) -> bool:
    """Whether a ValueError was raised by our own code, on purpose; any other is a bug and keeps its traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    return Path(frames[-1].filename).resolve().is_relative_to(Path(__file__).resolve().parent)


# ---- train and describe: from a config -------------------------------------------------------------------------------


def _train_arguments(parser: Parser) -> None:
    parser.add_argument("--resume", action="store_true", help="go on with the newest run of this name")


def _train(parser: Parser, parsed: Namespace) -> None:
    config = to_config(parser, parsed)
    _need_data(config.data)
    from minitx.training.run import train

    train(config, parsed.resume)


def _describe_arguments(parser: Parser) -> None:
    parser.add_argument("--plot", type=str, default=None, help="draw positions and learning rate into this .png file")


def _describe(parser: Parser, parsed: Namespace) -> None:
    config = to_config(parser, parsed)
    _need_data(config.data)
    if parsed.plot and not parsed.plot.lower().endswith(".png"):
        raise ValueError(f"--plot takes a .png file, got {parsed.plot}")
    picture = _writable(parsed.plot) if parsed.plot else None
    from minitx.training.describe import describe

    print(describe(config))
    if picture is not None:
        from minitx.training.pictures import draw

        print(f"\n{draw(config, picture)}")


def _sweep(parser: Parser, parsed: Namespace) -> None:
    _need_data(parsed.data)
    sweeps.run(parser, parsed)


def _need_data(data: object) -> None:
    """Say what is missing when somebody starts without a config, before torch is loaded."""
    if not data:
        raise ValueError("there is nothing to train on: give --config FILE (see configs/), or --data.name NAME")


# ---- evaluate, generate, attend and ablate: from a checkpoint --------------------------------------------------------


def _checkpoint_argument(parser: Parser) -> None:
    parser.add_argument("checkpoint", type=str, help="a checkpoint file, or a run folder (its newest version's best)")
    parser.add_argument("--device", type=str, default="auto", help="auto, cpu, cuda, ...")


EVALUATED = ("num_beams", "length_penalty", "early_stopping")
"""The options of writing that `evaluate` takes, for tasks whose answers are judged as texts."""


def _evaluate_arguments(parser: Parser) -> None:
    _checkpoint_argument(parser)
    parser.add_argument("--split", type=str, default=None, help="test (default), validation")
    parser.add_argument("--lengths", type=str, default=None, help="for example 1:60: also by length of the question")
    parser.add_argument("--path", type=str, default=None, help="another text to evaluate a language model on")
    parser.add_argument("--stride", type=int, default=None, help="overlapping windows of a text, each N tokens on")
    add_options(parser, GenerationOptions, EVALUATED)
    parser.add_argument("--json", type=str, default=None, help="write the figures to this file as well")
    parser.add_argument("--plot", type=str, default=None, help="with --lengths: draw the accuracy into this .png file")


def _evaluate(parser: Parser, parsed: Namespace) -> None:
    import minitx
    from minitx.report import draw_lengths, evaluation_report, table

    options = GenerationOptions(**{name: parsed[name] for name in EVALUATED})
    out = _writable(parsed.json) if parsed.json else None
    if parsed.plot and not (parsed.lengths and parsed.plot.lower().endswith(".png")):
        raise ValueError(f"--plot takes a .png file, and --lengths FROM:TO beside it, got {parsed.plot}")
    picture = _writable(parsed.plot) if parsed.plot else None
    predictor = minitx.load(parsed.checkpoint, parsed.device)
    report = evaluation_report(predictor, parsed.split, parsed.lengths, parsed.path, parsed.stride, options)
    if out is not None:
        out.write_text(json.dumps(report, indent=2) + "\n")
    print(table(report))
    if picture is not None:
        if not report["by_length"]:
            raise ValueError(f"--plot: there is no question of a length in {parsed.lengths}")
        draw_lengths(report, predictor, picture)


def _generate_arguments(parser: Parser) -> None:
    _checkpoint_argument(parser)
    parser.add_argument("texts", type=str, nargs="*", default=[], help="prompts; without any, lines from stdin")
    add_options(parser, GenerationOptions)
    parser.add_argument("--stream", action="store_true", help="print text as it is written")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each text: ids, log-probability, end")


def _generate(parser: Parser, parsed: Namespace) -> None:
    options = GenerationOptions(**{field.name: parsed[field.name] for field in dataclasses.fields(GenerationOptions)})
    if parsed.stream and (parsed.json or options.num_return_sequences > 1 or options.num_beams > 1):
        raise ValueError(
            "--stream shows one text as it grows: it goes with neither --json, --num_beams nor several texts"
        )
    import minitx

    predictor = minitx.load(parsed.checkpoint, parsed.device)
    asking = not parsed.texts and sys.stdin.isatty()
    texts = parsed.texts or (_asked() if asking else (line.rstrip("\n") for line in sys.stdin))
    for text in texts:  # each line is answered as it comes
        try:
            _answer(predictor, text, options, parsed.stream or asking, parsed.json)
        except ValueError as error:
            if not asking or not _ours(error):
                raise
            print(f"minitx: {error}", file=sys.stderr)  # one bad prompt does not end a conversation


def _asked() -> Iterator[str]:
    """Prompts that somebody types, until the end of input (Ctrl-D)."""
    print("a prompt for the model (Ctrl-D ends):", file=sys.stderr)
    while True:
        try:
            yield input("> ")
        except EOFError:
            print(file=sys.stderr)
            return


def _answer(predictor: Predictor, text: str, options: GenerationOptions, stream: bool, as_json: bool) -> None:
    """Write what the model says to one prompt."""
    # A continuation reads best behind its beginning.
    beginning = text + predictor.task.separator if predictor.task.kind == "stream" else ""
    streams = stream and options.num_return_sequences == options.num_beams == 1 and not as_json
    if streams and predictor.architecture != "encoder_only":
        pieces = predictor.generate(text, stream=True, **vars(options))
        print(beginning, end="", flush=True)
        try:
            for piece in pieces:
                print(piece, end="", flush=True)
        finally:
            print(flush=True)  # also after Ctrl-C: what was written stands on a line of its own
        return
    for generation in predictor.generations([text], options)[0]:
        if as_json:
            told = {"prompt": text, **generation._asdict()}
            print(json.dumps(told, ensure_ascii=False), flush=True)
        else:
            print(beginning + generation.text, flush=True)


def _attend_arguments(parser: Parser) -> None:
    _checkpoint_argument(parser)
    parser.add_argument("text", type=str, help="the question, or the text")
    parser.add_argument("--target", type=str, default=None, help="the answer to look at; default: the model's own")
    parser.add_argument(
        "--out", type=str, default=None, help="a .html page to look into, or a .png picture; default attention.png"
    )
    parser.add_argument("--logdir", type=str, default=None, help="also show the maps in TensorBoard from this folder")


def _attend(parser: Parser, parsed: Namespace) -> None:
    out = Path(parsed.out or "attention.png")
    if out.suffix.lower() not in (".png", ".html"):
        raise ValueError(f"--out must end in .png or .html, got {out}")
    _writable(out)
    import minitx

    predictor = minitx.load(parsed.checkpoint, parsed.device)
    maps = predictor.attend(parsed.text, parsed.target)
    (maps.save_html if out.suffix.lower() == ".html" else maps.save_png)(out)
    print(f"{out}: {len(maps.encoder)} encoder, {len(maps.decoder)} decoder and {len(maps.cross)} cross layers")
    if parsed.logdir:
        from torch.utils.tensorboard import SummaryWriter

        from minitx.tensorboard.writer import add_attention, add_maps

        with SummaryWriter(parsed.logdir) as writer:
            name = parsed.text[:60]  # of a curve and of a picture, not a text of its own
            for kind, items in maps.encoded().items():
                add_maps(writer, f"{kind}/{name}", items, step=0)
            add_attention(writer, maps.pictures(), name, step=0)
        print(f"tensorboard --logdir {parsed.logdir}")


def _ablate_arguments(parser: Parser) -> None:
    _checkpoint_argument(parser)
    parser.add_argument("--split", type=str, default=None, help="test (default), validation")
    parser.add_argument("--path", type=str, default=None, help="another text to look at a language model on")
    parser.add_argument("--examples", type=int, default=500, help="how many held-out examples to evaluate, at most")
    parser.add_argument("--heads", type=str, default=None, help="also these together: cross.2.1,cross.2.2")
    parser.add_argument("--out", type=str, default=None, help="draw layers and heads into this .png file")
    parser.add_argument("--json", type=str, default=None, help="write the figures to this file as well")


def _ablate(parser: Parser, parsed: Namespace) -> None:
    if parsed.out and not parsed.out.lower().endswith(".png"):
        raise ValueError(f"--out must end in .png, got {parsed.out}")
    picture, figures = (_writable(path) if path else None for path in (parsed.out, parsed.json))
    import minitx
    from minitx.inspection.ablation import ablate, parse_heads, table
    from minitx.inspection.heatmap import draw_ablation
    from minitx.report import held_out_split, on_text

    together = parse_heads(parsed.heads) if parsed.heads else []
    predictor = minitx.load(parsed.checkpoint, parsed.device)
    if parsed.path is not None:
        predictor.task = on_text(predictor, parsed.path)
    ablation = ablate(predictor, held_out_split(predictor.task, parsed.split), parsed.examples, together)
    print(table(ablation))
    if figures is not None:
        figures.write_text(json.dumps(ablation.to_dict(), indent=2) + "\n")
    if picture is not None:
        draw_ablation(ablation, f"{predictor.config.run.name}: what is lost without each head", picture)
        print(picture)


def _writable(path: str | Path) -> Path:
    """A path that can be written, known before the work rather than after."""
    path = Path(path)
    existed = path.exists()
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise ValueError(f"{path} cannot be written ({error.strerror})") from None
    if not existed:
        path.unlink()
    return path


def _list(parser: Parser, parsed: Namespace) -> None:
    from minitx.report import listing

    print(listing())


COMMANDS = {
    "train": Command(
        "train a model: --config FILE, and --section.key value to change a key",
        _train_arguments,
        _train,
        True,
    ),
    "evaluate": Command("measure a trained model on held-out examples", _evaluate_arguments, _evaluate),
    "generate": Command("let a trained model write", _generate_arguments, _generate),
    "attend": Command("draw a trained model's attention to a text, as a page or a picture", _attend_arguments, _attend),
    "ablate": Command("tell what each head of a trained model is worth", _ablate_arguments, _ablate),
    "describe": Command(
        "tell a config's size, cost and learning rate, without training", _describe_arguments, _describe, True
    ),
    "sweep": Command(
        "train a grid of settings, each with several seeds: --set KEY=A,B", sweeps.arguments, _sweep, True
    ),
    "import": Command(
        "make a checkpoint of a Hugging Face model: GPT-2, Llama, Mistral, Qwen2, BERT, T5, BART, Marian",
        huggingface.import_arguments,
        lambda parser, parsed: huggingface.run_import(parsed, _writable),
    ),
    "export": Command(
        "write a trained model for Hugging Face's transformers, or as plain safetensors",
        huggingface.export_arguments,
        lambda parser, parsed: huggingface.run_export(parsed),
    ),
    "list": Command("list the tasks, corpora, tokenizers and position schemes", lambda parser: None, _list),
}
