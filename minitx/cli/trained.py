"""Commands that take a checkpoint: `evaluate`, `generate`, `attend`, `lens`, `patch`, `ablate`, `circuit`, `play`."""

import dataclasses
import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from minitx.cli.arguments import add_checkpoint, add_json, add_options, output, writable_folder, write_json
from minitx.cli.config_parser import Parser
from minitx.config.errors import ConfigError, counted
from minitx.generation.options import GenerationOptions
from minitx.plotting import FORMATS

if TYPE_CHECKING:
    from minitx.inference.predictor import Predictor

OPTIONS = tuple(field.name for field in dataclasses.fields(GenerationOptions))
EVALUATE_OPTIONS = ("num_beams", "length_penalty", "early_stopping")
"""The options of generation that `evaluate` takes, for tasks with text metrics."""


def _options(parsed: Namespace, names: Iterable[str]) -> GenerationOptions:
    try:
        return GenerationOptions(**{name: getattr(parsed, name) for name in names})
    except ValueError as error:  # generation does not import ConfigError
        raise ConfigError(str(error)) from None


def _load(parsed: Namespace) -> "Predictor":
    """Load the model of a command, on the data of --path; print a note if data or an imported file has changed."""
    import minitx
    from minitx.evaluation.report import data_has_changed, on_file

    predictor = minitx.load(parsed.checkpoint, parsed.device)
    recorded = predictor.config.imports if isinstance(predictor.config.imports, dict) else {}
    names = {Path(each).name for each in recorded}
    for path, digest in parsed.imports.items():
        if recorded and digest not in recorded.values():
            how = "has changed since" if Path(path).name in names else "was not imported when"
            print(f"minitx: {path} {how} this model was trained", file=sys.stderr)
    if "path" in parsed and parsed.path is not None:
        return on_file(predictor, parsed.path)
    if "split" in parsed and data_has_changed(predictor):
        risk = "its held-out examples may have been trained on"
        print(f"minitx: the data has changed since this model was trained: {risk}", file=sys.stderr)
    return predictor


def _beyond_training(predictor: "Predictor", text: str) -> bool:
    """Whether a prompt that is read whole is longer than any in training; prints a note if so."""
    from minitx.data.batch import IGNORE

    ids, (question, whole) = predictor.encode(text), predictor.task.longest
    longest = whole if predictor.task.kind == "stream" else question
    tokens = len(ids) - sum(token != IGNORE for token in predictor.task.divide(ids)[1])  # those come in the answer
    if tokens > longest:
        note = f"this prompt has {tokens} tokens, and the longest in training had {longest}: expect mistakes"
        print(f"minitx: {note}", file=sys.stderr)
    return tokens > longest


def _add_held_out(parser: Parser, sampled: bool = False) -> None:
    add_checkpoint(parser)
    parser.add_argument("--split", help="test or validation; default: test, if the task has one")
    parser.add_argument("--path", help="evaluate on this text, or on these pairs (.tsv) instead")
    add_json(parser, "metrics")
    if sampled:
        parser.add_argument("--examples", type=int, default=500, help="maximum number of held-out examples")


def evaluate_arguments(parser: Parser) -> None:
    _add_held_out(parser)
    parser.add_argument("--lengths", help="for example 1:60: also by length of the question")
    parser.add_argument("--stride", type=int, help="evaluate a text in overlapping windows that start N tokens apart")
    add_options(parser, GenerationOptions, EVALUATE_OPTIONS)
    text = "with --lengths: plot the accuracy to this .png, .pdf or .svg file"
    parser.add_argument("--plot", type=output(*FORMATS), help=text)


def evaluate(parsed: Namespace) -> None:
    """Evaluate a trained model on held-out data."""
    options = _options(parsed, EVALUATE_OPTIONS)
    if parsed.plot and not parsed.lengths:
        raise ConfigError("--plot needs --lengths FROM:TO")
    from minitx.evaluation.report import draw_lengths, evaluation_report, table

    predictor = _load(parsed)
    report = evaluation_report(predictor, parsed.split, parsed.lengths, parsed.stride, options)
    print(table(report))
    write_json(parsed.json, report)
    if parsed.plot:
        if not report["by_length"]:
            raise ConfigError(f"--plot: there is no question of a length in {parsed.lengths}")
        draw_lengths(report, predictor, parsed.plot)


def generate_arguments(parser: Parser) -> None:
    add_checkpoint(parser)
    parser.add_argument("texts", nargs="*", default=[], help="prompts; without any, lines from stdin")
    add_options(parser, GenerationOptions, OPTIONS)
    parser.add_argument("--stream", action="store_true", help="print text as it is generated")
    line = "a line of JSON for each text: ids, log-probability, why it ended"
    parser.add_argument("--json", action="store_true", help=line)


def generate(parsed: Namespace) -> None:
    """Generate with a trained model."""
    options = _options(parsed, OPTIONS)
    if parsed.stream and (parsed.json or options.num_return_sequences > 1 or options.num_beams > 1):
        raise ConfigError("--stream shows one text: it excludes --json, --num_beams and --num_return_sequences")
    predictor = _load(parsed)
    if parsed.stream:
        predictor.text_generator()  # raises an error for an encoder alone
    interactive = not parsed.texts and sys.stdin.isatty()
    parsed.stream = parsed.stream or interactive
    texts = parsed.texts or (_prompts() if interactive else (line.rstrip("\n") for line in sys.stdin))
    pairs, warned = predictor.task.kind == "pairs", predictor.task.kind == "stream"  # a stream reads the end alone
    for number, text in enumerate(texts, start=1):  # each line of a pipe is answered before the next one is read
        try:
            blank = not (parsed.texts or interactive or (text.strip() if pairs else text))
            _answer(predictor, text, options, parsed, blank)
            warned = warned or (not blank and _beyond_training(predictor, text))
        except ConfigError as error:
            if not interactive:
                raise error if parsed.texts else ConfigError(f"line {number} of standard input: {error}") from None
            print(f"minitx: {error}", file=sys.stderr)


def _prompts() -> Iterator[str]:
    """Prompts from a terminal, until the end of input."""
    end = "Ctrl-Z and Enter" if sys.platform == "win32" else "Ctrl-D"
    print(f"a prompt for the model ({end} ends):", file=sys.stderr)
    while True:
        try:
            yield input("> ")
        except EOFError:
            print(file=sys.stderr)
            return


def _answer(predictor: "Predictor", text: str, options: GenerationOptions, parsed: Namespace, blank: bool) -> None:
    """Print the generations of one prompt; a blank line has empty ones, so that input and output match line by line."""
    prefix = text + predictor.task.separator if predictor.task.kind == "stream" else ""  # before a continuation
    single = options.num_return_sequences == options.num_beams == 1
    if parsed.stream and single and not (parsed.json or blank) and predictor.architecture != "encoder_only":
        pieces = predictor.text_generator().stream(predictor.encode(text), options)
        print(prefix, end="", flush=True)
        try:
            for piece in pieces:
                print(piece, end="", flush=True)
        finally:
            print(flush=True)  # after Ctrl-C too, the text ends with a newline
        return
    empty = [{"text": "", "ids": [], "log_probability": 0.0, "stopped": "end"}] * options.num_return_sequences
    generations = empty if blank else [each._asdict() for each in predictor.generations([text], options)[0]]
    escaped = getattr(sys.stdout, "errors", None) == "backslashreplace"  # set by main.py; JSON has other escapes
    for generation in generations:
        line = {"prompt": text, **generation}
        print(json.dumps(line, ensure_ascii=escaped) if parsed.json else f"{prefix}{line['text']}", flush=True)


def _add_out(parser: Parser, default: str) -> None:
    text = f"an interactive .html page, or a .png, .pdf or .svg image; default {default}"
    parser.add_argument("--out", type=output(".html", *FORMATS), default=default, help=text)


def _add_text(parser: Parser, default: str) -> None:
    add_checkpoint(parser)
    parser.add_argument("text", help="the question, or the text")
    parser.add_argument("--target", help="the answer; default: the model's own")
    _add_out(parser, default)


def attend_arguments(parser: Parser) -> None:
    _add_text(parser, "attention.png")
    parser.add_argument("--logdir", type=Path, help="also write the maps for TensorBoard into this folder")
    parser.add_argument("--step", type=int, help="with --logdir: the step of the maps; default: this text's next, or 0")


def attend(parsed: Namespace) -> None:
    """Save the attention maps of a text, as a page or an image."""
    out: Path = parsed.out
    if parsed.logdir:
        from minitx.tensorboard.writer import example_name

        writable_folder(parsed.logdir)
        name = example_name(parsed.text)
        step = _next_step(parsed.logdir, name, parsed.step)
    elif parsed.step is not None:
        raise ConfigError("--step needs --logdir DIR")

    predictor = _load(parsed)
    maps = predictor.attend(parsed.text, parsed.target)
    _beyond_training(predictor, parsed.text)
    if out.suffix.lower() == ".html":
        maps.save_html(out)
    else:
        maps.save_image(out, title=f"{predictor.config.run.name}: {parsed.text}")
    counts = {"encoder": len(maps.encoder), "decoder": len(maps.decoder), "cross": len(maps.cross)}
    parts = [counted(count, f"{kind} layer") for kind, count in counts.items() if count]
    print(f"{out}: {', '.join(parts)}")
    if parsed.logdir:
        from minitx.interpret.encoded_maps import encoded
        from minitx.interpret.images import pictures
        from minitx.tensorboard.events import EventFile
        from minitx.tensorboard.writer import add_attention, add_maps

        writer = EventFile(parsed.logdir)
        try:
            for kind, items in encoded(maps).items():
                add_maps(writer, f"{kind}/{name}", items, step)
            add_attention(writer, pictures(maps), name, step)
            writer.close()
        except OSError as error:
            writer.path.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(parsed.logdir)) from error
        print(f"tensorboard --logdir {parsed.logdir}")


def _next_step(folder: Path, name: str, wanted: int | None) -> int:
    """The step at which to log more maps of a text: TensorBoard ignores steps up to the latest one."""
    from google.protobuf.message import DecodeError
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    events = (event for file in folder.glob("*tfevents*") for event in EventFileLoader(str(file)).Load())
    tags = ((event.step, value.tag) for event in events for value in event.summary.value)
    try:
        lowest = max((step + 1 for step, tag in tags if tag.partition("/")[2] == name), default=0)
    except DecodeError:
        raise ConfigError(f"--logdir: {folder} holds a damaged event file: name another folder") from None
    step = lowest if wanted is None else wanted
    if not lowest <= step < 2**63:
        expected = f"at least {lowest}, after the maps of {name!r} in {folder}, and below 2**63"
        raise ConfigError(f"--step must be {expected}, got {step}")
    return step


def ablate_arguments(parser: Parser) -> None:
    _add_held_out(parser, sampled=True)
    text = "what to ablate in turn: heads (default), ffn, or names such as cross.2.1,decoder.1.ffn,decoder.1.ffn.37"
    parser.add_argument("--parts", default="heads", help=text)
    parser.add_argument("--together", default="", help="also without all of these at once: cross.2.1,cross.2.2")
    text = "replacement of a part's output: zero (default), its mean over the examples, or resample: another example's"
    parser.add_argument("--by", choices=("zero", "mean", "resample"), default="zero", help=text)
    parser.add_argument("--out", type=output(*FORMATS), help="plot layers and heads to this .png, .pdf or .svg file")


def ablate(parsed: Namespace) -> None:
    """Measure a trained model without each head, feed-forward network or neuron."""
    from minitx.interpret.ablation import ablate, table
    from minitx.plotting.heatmaps import draw_ablation

    if parsed.out and all("ffn" in word for word in parsed.parts.split(",")):
        raise ConfigError(f"--out plots heads, and --parts {parsed.parts} has none")
    predictor = _load(parsed)
    ablation = ablate(predictor, parsed.split, parsed.examples, parsed.together, parsed.parts, parsed.by)
    print(table(ablation))
    write_json(parsed.json, ablation.to_dict())
    if parsed.out:
        draw_ablation(ablation, f"{predictor.config.run.name}: {parsed.by} ablation of each head", parsed.out)
        print(parsed.out)


def play_arguments(parser: Parser) -> None:
    add_checkpoint(parser)
    parser.add_argument("--port", type=int, default=0, help="of the page; default: a free one")
    parser.add_argument("--no-browser", action="store_true", help="print the address without opening a browser")


def play(parsed: Namespace) -> None:
    """Watch a trained model generate, one token at a time, in a local page."""
    from minitx.playground.server import open_browser, serve

    server, address = serve(_load(parsed), parsed.port, checkpoint=parsed.checkpoint, imports=parsed.imports)
    print(f"{address}\nthe page is served to this machine only; Ctrl-C stops the server", flush=True)
    if not parsed.no_browser:
        open_browser(address)
    server.serve_forever()


def lens_arguments(parser: Parser) -> None:
    _add_text(parser, "lens.html")
    add_json(parser, "predictions")


def lens(parsed: Namespace) -> None:
    """Save what a model would predict from each of its layers (logit lens, DecoderLens)."""
    predictor = _load(parsed)
    found = predictor.lens(parsed.text, parsed.target)
    _beyond_training(predictor, parsed.text)
    found.save(parsed.out)
    write_json(parsed.json, found.to_dict())
    layers = " and ".join(counted(len(logits) - 1, f"{stack} layer") for stack, logits in found.logits.items())
    print(f"{parsed.out}: {layers}, {len(found.tokens)} positions")


def patch_arguments(parser: Parser) -> None:
    add_checkpoint(parser)
    parser.add_argument("clean", help="a question, or a text")
    parser.add_argument("corrupted", help="one with the same number of tokens and another answer")
    parser.add_argument("--sites", help="resid (default), attn, ffn or heads")
    text = "logit_difference (default), logit, log_probability or probability of the clean answer"
    parser.add_argument("--metric", default="logit_difference", help=text)
    text = "the clean and the corrupted answer; default: the model's own"
    parser.add_argument("--answers", nargs=2, metavar=("CLEAN", "CORRUPTED"), help=text)
    parser.add_argument("--sender", help="path patching from this head (decoder.1.2) to later heads; excludes --sites")
    _add_out(parser, "patch.html")
    add_json(parser, "maps")


def patch(parsed: Namespace) -> None:
    """Map which activations of one text restore its answer in another (activation patching)."""
    from minitx.tensorboard.map_format import visible

    predictor = _load(parsed)
    options = {name: getattr(parsed, name) for name in ("sites", "metric", "answers", "sender")}
    found = predictor.patch(parsed.clean, parsed.corrupted, **options)
    found.save(parsed.out)
    write_json(parsed.json, found.to_dict())
    print(f"{found.heading}\n{found.note}")
    for share, kind, row, column in found.strongest():
        print(f"  {share:z6.2f}  {kind}, {found.rows[kind][row]}, at {visible(found.columns[kind][column])}")
    print(parsed.out)


def circuit_arguments(parser: Parser) -> None:
    _add_held_out(parser, sampled=True)
    parser.add_argument("--out", type=output(*FORMATS), help="plot the heads' composition: a .png, .pdf or .svg file")


def circuit(parsed: Namespace) -> None:
    """Find the induction circuit of a trained model and test it."""
    from minitx.interpret.circuit import induction_circuit
    from minitx.plotting.heatmaps import draw_compositions

    found = induction_circuit(_load(parsed), parsed.split, parsed.examples)
    print(found)
    write_json(parsed.json, found.to_dict())
    if parsed.out:
        draw_compositions(found, parsed.out)
        print(parsed.out)
