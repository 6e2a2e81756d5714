"""Shell completion: shtab writes a script from the parsers of all commands."""

import argparse
from collections.abc import Mapping
from typing import Any

import shtab

from minitx.cli.config_parser import Parser
from minitx.cli.source_options import SOURCES, registered_options
from minitx.config import yaml_files
from minitx.config.registry import parameters

FILES = (
    "checkpoint", "run", "source", "folder", "out", "json", "plot", "logdir", "path", "init_from", "imports", "study",
    "data.path", "run.folder",
)  # fmt: skip
"""Arguments that name a file or a folder."""


def script(shell: str, parsers: Mapping[str, Parser], imported: bool) -> str:
    """The completion script of a shell, one of shtab.SUPPORTED_SHELLS, from the parser of each command; `imported`:
    files of the user's own have registered classes."""
    tree = argparse.ArgumentParser(prog="minitx", description="mini-transformers")
    commands = tree.add_subparsers(metavar="COMMAND", parser_class=argparse.ArgumentParser)
    for name, parser in parsers.items():
        parser.add_keys()
        for section, pattern in SOURCES.items() if parser.configured else ():
            known = _registered(section) if imported else registered_options(pattern)  # which needs no torch
            parser.add_argument(f"--{section}.name", choices=[*known])
            for option in sorted({option for options in known.values() for option in options}):
                parser.add_argument(f"--{section}.{option}")
        for action in parser._actions:
            if action.dest in FILES and action.nargs != 0:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
            if action.dest == "config":  # a bundled name or a file; other shells offer files
                action.complete = {**shtab.FILE, "bash": "_minitx_config", "zsh": "_minitx_config"}  # type: ignore[attr-defined]
        commands.add_parser(name, help=parser.description, parents=[parser], add_help=False, allow_abbrev=False)
    names = " ".join(yaml_files.bundled())
    functions = {
        "bash": f'_minitx_config() {{ compgen -W "{names}" -- "$1"; compgen -f -- "$1"; }}',
        "zsh": f"_minitx_config() {{ _alternative 'configs:config:({names})' 'files:file:_files' }}",
    }
    return shtab.complete(tree, shell, preamble=functions.get(shell, ""))


def _registered(section: str) -> dict[str, dict[str, Any]]:
    """The options of every class that is registered for a section, those of the user's own files included."""
    from minitx.data.tasks import TASKS
    from minitx.nn import POSITION_IDS, POSITIONS
    from minitx.nn.positions import GIVEN

    registry: Mapping[str, Any] = {"data": TASKS, "model.position_ids": POSITION_IDS}.get(section, POSITIONS)
    return {name: parameters(registry[name], frozenset(GIVEN)) for name in registry}
