"""Shell completion: shtab writes a script from the parsers of all commands."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import shtab

from minitx.cli.listing import OPEN, own_options
from minitx.config import bundled
from minitx.config.errors import ConfigError
from minitx.config.parser import Parser

SHELLS = tuple(shtab.SUPPORTED_SHELLS)
"""The supported shells."""

FILES = ("checkpoint", "out", "json", "plot", "logdir", "path")
"""Arguments that name a file or a folder."""


def script(shell: str, parsers: Mapping[str, tuple[str, Parser]]) -> str:
    """The completion script of a shell.

    Args:
        shell: one of SHELLS.
        parsers: for each command its help and its parser.

    Raises:
        ConfigError: another shell.
    """
    if shell not in SHELLS:
        raise ConfigError(f"shell must be one of {', '.join(SHELLS)}, got {shell!r}")
    tree = argparse.ArgumentParser(prog="minitx", description="mini-transformers")
    commands = tree.add_subparsers(metavar="COMMAND", parser_class=argparse.ArgumentParser)
    for name, (text, parser) in parsers.items():
        if parser.configured:
            _add_open_sections(parser)
        for action in parser._actions:
            if action.dest in FILES and action.nargs != 0:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            if action.dest == "config":  # a bundled name or a file; other shells offer files
                action.complete = {**shtab.FILE, "bash": "_minitx_config", "zsh": "_minitx_config"}  # type: ignore[attr-defined]
        commands.add_parser(name, help=text, parents=[parser], add_help=False, allow_abbrev=False)
    names = " ".join(bundled.configs())
    functions = {
        "bash": f'_minitx_config() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}',
        "zsh": f"_minitx_config() {{ _alternative 'configs:config:({names})' 'files:file:_files' }}",
    }
    return shtab.complete(tree, shell, preamble=functions.get(shell, ""))


def _add_open_sections(parser: Parser) -> None:
    """Add the options of every registered class; only for completion, the config is checked elsewhere."""
    for section, registry in OPEN.items():
        options = {option for kind in registry.values() for option in own_options(kind)}
        for option in sorted(["name", *options]):
            parser.add_argument(f"--{section}.{option}", choices=[*registry] if option == "name" else None)
