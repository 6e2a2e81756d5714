"""The command line: minitx train | evaluate | generate | attend | ablate | ... (COMMANDS, at the end).

Arguments are parsed before torch is imported, so that help and errors appear at once. User errors are one sentence on
stderr with exit code 2; MINITX_TRACEBACK=1 shows their traceback.
"""

import errno
import os
import re
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import minitx
from minitx.cli import conversion, experiments, trained
from minitx.cli.config_parser import Parser
from minitx.config.errors import ConfigError, RunFailed, did_you_mean
from minitx.extensions.python_files import import_files

DISK_ERRORS = {
    errno.EACCES, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENAMETOOLONG, errno.ENOSPC, errno.EPERM, errno.EROFS,
}  # fmt: skip
"""Errors of a disk or a folder; any other OSError may be a bug."""
TORCH_MEMORY = re.compile("DefaultCPUAllocator|^(CUDA|HIP|XPU|MPS).* out of memory")
"""Messages of torch's allocators; not all are a torch.OutOfMemoryError."""


class Command(NamedTuple):
    """A command of `minitx`; the docstring of `run` is its help."""

    run: Callable[[Namespace], None]
    arguments: Callable[[Parser], None] = lambda parser: None
    configured: bool = False  # whether it takes --config and overrides

    def parser(self, name: str) -> Parser:
        """The parser of the arguments after the command's name."""
        parser = Parser(self.configured, prog=f"minitx {name}", description=self.run.__doc__)
        self.arguments(parser)
        if self.configured:
            text = "print the config with its defaults, except those of tasks and positions (minitx list), and stop"
            parser.add_argument("--print_config", action="store_true", help=text)
        own = "tasks, tokenizers, position schemes or corpora"
        text = f"a Python file of your own, which registers {own}; repeat the option for each file"
        parser.add_argument("--import", dest="imports", action="append", default=[], metavar="FILE", help=text)
        return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; exit with code 2 after bad input, and 1 if the output cannot be written."""
    for stream, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, stream) is None:  # closed: its descriptor would be that of the next file to be opened
            setattr(sys, stream, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif mode == "w" and (getattr(getattr(sys, stream), "encoding", None) or "utf")[:3].lower() != "utf":
            getattr(sys, stream).reconfigure(errors="backslashreplace")  # such as a file on Windows
    if hasattr(sys.stdin, "reconfigure"):
        # As in files of text, every line break is \n, without a byte order mark; the tokenizer refuses invalid bytes.
        encoding = "utf-8-sig" if os.name == "nt" or sys.stdin.encoding.lower() in ("utf-8", "utf8", "ascii") else None
        sys.stdin.reconfigure(encoding=encoding, errors="surrogateescape", newline=None)
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        _run(words)
        sys.stdout.flush()
    except BrokenPipeError:
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except (ConfigError, RunFailed, OSError, MemoryError, RuntimeError) as error:
        sentences = _sentences(error)
        bug = not isinstance(error.__cause__, ConfigError | None)  # perhaps of a file of the user's own
        caused = bug and any(word.startswith("--import") for word in words)
        if sentences is None or caused or os.environ.get("MINITX_TRACEBACK"):
            raise
        with suppress(OSError):
            print(*(f"minitx: {sentence}" for sentence in sentences.split("\n")), sep="\n", file=sys.stderr)
        typed = getattr(error, "errno", None) == errno.ENAMETOOLONG
        raise SystemExit(1 if isinstance(error, RunFailed | OSError) and not typed else 2) from None
    finally:
        for file in (sys.stdout, sys.stderr):
            try:
                file.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), file.fileno())  # no second error at exit


def _run(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage(), flush=True)
        raise SystemExit(0 if arguments else 2)
    if arguments == ["--version"]:
        print(f"minitx {minitx.__version__}")
        return
    name = arguments[0]
    if name not in COMMANDS:
        raise ConfigError(f"unknown command {name}: {did_you_mean(name, COMMANDS)}")
    for word in arguments:
        if "\0" in word or re.search("[\ud800-\udfff]", word):  # Python reads undecodable bytes as surrogates
            encoding = sys.getfilesystemencoding().upper()
            raise ConfigError(f"arguments must be {encoding}, got {word!r:.80}; the locale (LC_ALL) sets the encoding")
        if re.fullmatch("--[^=]+=--", word):  # argparse makes it []
            raise ConfigError(f"{word.partition('=')[0]} must not be --")
    command = COMMANDS[name]
    parsed = command.parser(name).parse_args(arguments[1:])
    if command.configured:  # imported once the config is checked
        listed = parsed.values.get("imports") or []
        if parsed.imports and isinstance(listed, list | dict):
            parsed.values["imports"] = [*listed, *parsed.imports]
    else:
        parsed.imports = import_files(parsed.imports)  # with their hashes
    command.run(parsed)


def _sentences(error: Exception) -> str | None:
    """The message for an error that a user can correct; None for any other, which is raised."""
    if isinstance(error, ConfigError | RunFailed):
        return str(error)
    if isinstance(error, OSError):
        place = f"{error.filename} cannot be read or written" if error.filename else "the output cannot be written"
        return f"{place} ({error.strerror})" if error.errno in DISK_ERRORS else None
    message = str(error).partition("\n")[0]
    if not isinstance(error, MemoryError) and not TORCH_MEMORY.search(message):
        return None
    requested = re.search(r"allocate ([\d.]+ \w+)", message)
    size = f" for {requested[1]} more" if requested else ""
    return f"there is not enough memory{size}: make data.batch_size, the lengths of the data or the model smaller"


def usage() -> str:
    """The text of `minitx --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.run.__doc__}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: minitx COMMAND ...   (minitx COMMAND --help lists its arguments)", "", *lines])


def _list(parsed: Namespace) -> None:
    """List the tasks, corpora, tokenizers, position schemes and configs."""
    from minitx.cli.listing import listing

    print(listing(shutil.get_terminal_size().columns if sys.stdout.isatty() else None))


def _completion_arguments(parser: Parser) -> None:
    import shtab

    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)


def _completion(parsed: Namespace) -> None:
    """Write a shell's completion script: source <(minitx completion bash)."""
    from minitx.cli.completion import script

    parsers = {name: command.parser(name) for name, command in COMMANDS.items()}
    print(script(parsed.shell, parsers, bool(parsed.imports)))


COMMANDS = {
    "train": Command(experiments.train, experiments.train_arguments, configured=True),
    "evaluate": Command(trained.evaluate, trained.evaluate_arguments),
    "generate": Command(trained.generate, trained.generate_arguments),
    "attend": Command(trained.attend, trained.attend_arguments),
    "lens": Command(trained.lens, trained.lens_arguments),
    "patch": Command(trained.patch, trained.patch_arguments),
    "ablate": Command(trained.ablate, trained.ablate_arguments),
    "circuit": Command(trained.circuit, trained.circuit_arguments),
    "play": Command(trained.play, trained.play_arguments),
    "describe": Command(experiments.describe, experiments.describe_arguments, configured=True),
    "sweep": Command(experiments.sweep, experiments.sweep_arguments, configured=True),
    "import": Command(conversion.import_model, conversion.import_arguments),
    "export": Command(conversion.export_model, conversion.export_arguments),
    "average": Command(conversion.average, conversion.average_arguments),
    "list": Command(_list),
    "completion": Command(_completion, _completion_arguments),
}
