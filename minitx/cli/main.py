"""The command line: minitx train | evaluate | generate | attend | ablate | ... (COMMANDS, at the end).

Arguments are parsed before torch is imported, so that help and typos answer at once. User errors are one sentence on
stderr with exit code 2; MINITX_TRACEBACK=1 shows their traceback.
"""

from __future__ import annotations

import os
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import NamedTuple

from minitx.cli import conversion, experiments, trained
from minitx.config.errors import ConfigError, RunFailed, did_you_mean
from minitx.config.parser import Parser, config_parser


class Command(NamedTuple):
    """A command of `minitx`."""

    help: str
    parser: Callable[[Parser], None]
    run: Callable[[Namespace], None]
    configured: bool = False  # whether it takes --config and overrides


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with code 2 after bad input."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(usage(), flush=True)
            raise SystemExit(0 if arguments else 2)
        name = arguments[0]
        if name not in COMMANDS:
            raise ConfigError(f"unknown command {name}: {did_you_mean(name, COMMANDS)}")
        for word in arguments:
            if "\0" in word or re.search("[\ud800-\udfff]", word):  # Python reads undecodable bytes as surrogates
                raise ConfigError(f"minitx {name}: arguments must be UTF-8, got {word!r:.80}")
            if re.fullmatch("--[^=]+=--", word):  # argparse makes it []
                raise ConfigError(f"minitx {name}: {word.partition('=')[0]} must not be --")
        COMMANDS[name].run(_parser(name).parse_args(arguments[1:]))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # no second error at exit
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except RunFailed as error:
        print(f"minitx: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except (ConfigError, MemoryError, RuntimeError) as error:
        sentences = str(error) if isinstance(error, ConfigError) else _memory(error)
        if os.environ.get("MINITX_TRACEBACK") or sentences is None:
            raise
        for sentence in sentences.split("\n"):
            print(f"minitx: {sentence}", file=sys.stderr)
        raise SystemExit(2) from None


def _parser(name: str) -> Parser:
    command = COMMANDS[name]
    make = config_parser if command.configured else Parser
    parser = make(prog=f"minitx {name}", description=command.help)
    command.parser(parser)
    return parser


def _memory(error: Exception) -> str | None:
    """The message for memory that has run out, in Python or torch; None for any other error."""
    message = str(error).partition("\n")[0]
    if not isinstance(error, MemoryError) and not re.search(r"can't allocate memory|out of memory", message):
        return None
    requested = re.search(r"allocate ([\d.]+ \w+)", message)
    size = f" for {requested[1]} more" if requested else ""
    return f"there is not enough memory{size}: make data.batch_size, the lengths of the data or the model smaller"


def usage() -> str:
    """The text of `minitx --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: minitx COMMAND ...   (minitx COMMAND --help lists its arguments)", "", *lines])


def _list(parsed: Namespace) -> None:
    from minitx.cli.listing import listing

    print(listing())


def _completion_arguments(parser: Parser) -> None:
    parser.add_argument("shell", type=str, help="bash, zsh or tcsh")


def _completion(parsed: Namespace) -> None:
    from minitx.cli.completion import script

    print(script(parsed.shell, {name: (command.help, _parser(name)) for name, command in COMMANDS.items()}))


COMMANDS = {
    "train": Command(
        "train a model: --config FILE, and --section.key value to change a key",
        experiments.train_arguments,
        experiments.train,
        True,
    ),
    "evaluate": Command("evaluate a trained model on held-out data", trained.evaluate_arguments, trained.evaluate),
    "generate": Command("generate with a trained model", trained.generate_arguments, trained.generate),
    "attend": Command(
        "save the attention maps of a text, as a page or an image", trained.attend_arguments, trained.attend
    ),
    "ablate": Command("measure a trained model without each head", trained.ablate_arguments, trained.ablate),
    "describe": Command(
        "print a config's size, cost and learning rate, without training",
        experiments.describe_arguments,
        experiments.describe,
        True,
    ),
    "sweep": Command(
        "train a grid of settings, each with several seeds: --set KEY=A,B",
        experiments.sweep_arguments,
        experiments.sweep,
        True,
    ),
    "import": Command(
        "convert a Hugging Face model to a checkpoint: GPT-2, Llama, Mistral, Qwen2, BERT, T5, BART, Marian",
        conversion.import_arguments,
        conversion.run_import,
    ),
    "export": Command(
        "write a trained model for Hugging Face's transformers, or as plain safetensors",
        conversion.export_arguments,
        conversion.run_export,
    ),
    "list": Command("list the tasks, corpora, tokenizers, position schemes and configs", lambda parser: None, _list),
    "completion": Command(
        "write a shell's completion script: source <(minitx completion bash)", _completion_arguments, _completion
    ),
}
