"""Shell completion: the command line as a plain argparse tree, from which shtab writes a script."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

import shtab

from minitx.cli.listing import OPEN, own_options
from minitx.config import bundled
from minitx.config.messages import keys
from minitx.config.parser import Parser
from minitx.config.schema import Config

SHELLS = tuple(shtab.SUPPORTED_SHELLS)
"""The shells that a script can be written for."""

FILES = ("checkpoint", "out", "json", "plot", "logdir", "path")
"""Arguments that name a file or a folder."""


def script(shell: str, parsers: Mapping[str, tuple[str, Parser]]) -> str:
    """What the shell is to read.

    Args:
        shell: one of SHELLS.
        parsers: for each command its help and its parser.

    Raises:
        ValueError: another shell.
    """
    if shell not in SHELLS:
        raise ValueError(f"shell must be one of {', '.join(SHELLS)}, got {shell!r}")
    tree = argparse.ArgumentParser(prog="minitx", description="mini-transformers")
    commands = tree.add_subparsers(metavar="COMMAND")
    for name, (told, parser) in parsers.items():
        _add_command(commands.add_parser(name, help=told, allow_abbrev=False), parser)
    names = " ".join(bundled.configs())
    either = {
        "bash": f'_minitx_config() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}',
        "zsh": f"_minitx_config() {{ _alternative 'configs:config:({names})' 'files:file:_files' }}",
    }
    return shtab.complete(tree, shell, preamble=either.get(shell, ""))


def _add_command(plain: argparse.ArgumentParser, parser: Parser) -> None:
    choices = _choices()
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        given: dict[str, Any] = {"help": " ".join(str(action.help or "").split()).replace("%", "%%")}
        if action.nargs == 0:
            given["action"] = "store_true"
        else:
            given |= {"nargs": action.nargs, "choices": choices.get(action.dest, action.choices)}
        names = action.option_strings or [action.dest]
        added = plain.add_argument(*names, **given)
        if action.dest == "config":  # a bundled name or a file, by the functions above; other shells offer files
            both = {"bash": "_minitx_config", "zsh": "_minitx_config"}
            added.complete = {**shtab.FILE, **both}  # type: ignore[attr-defined]
        elif action.dest in FILES:
            added.complete = shtab.FILE  # type: ignore[attr-defined]
    known = keys(parser)
    for section, registry in OPEN.items():
        if section not in known:
            continue
        options = {option for kind in registry.values() for option in own_options(kind)}
        for option in sorted(["name", *options]):
            if f"{section}.{option}" not in known:
                plain.add_argument(f"--{section}.{option}", choices=registry if option == "name" else None)


def _choices() -> dict[str, list[str]]:
    """The values of keys that have few."""
    found: dict[str, list[str]] = {}
    for section, kind in get_type_hints(Config).items():
        if dataclasses.is_dataclass(kind):
            for name, hint in get_type_hints(kind).items():
                if get_origin(hint) is Literal:
                    found[f"{section}.{name}"] = [str(value) for value in get_args(hint)]
    return found
