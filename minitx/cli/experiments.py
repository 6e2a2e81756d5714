"""`minitx train`, `describe` and `sweep`: commands that take a config, which is checked before torch is imported."""

import os
import sys
import time
from argparse import Namespace
from pathlib import Path

import yaml

from minitx.cli.arguments import output, writable_folder
from minitx.cli.config_parser import Parser
from minitx.cli.source_options import check_config
from minitx.config.errors import ConfigError, RunFailed
from minitx.config.schema import Config
from minitx.config.yaml_files import Dumper
from minitx.plotting import FORMATS
from minitx.sweeps import grid


def train_arguments(parser: Parser) -> None:
    parser.add_argument("--resume", action="store_true", help="continue the newest run of this name")
    text = "a checkpoint file or run folder: start a new run with its weights, its model and, for text, its tokenizer; "
    text += "keys of model that the config leaves out are the checkpoint's"
    parser.add_argument("--init_from", metavar="CHECKPOINT", help=text)


def train(parsed: Namespace) -> None:
    """Train a model: --config FILE, and --section.key value to change a key."""
    began = time.perf_counter()
    run = _check(parsed).run
    from minitx.data.text.work_progress import DELAY_SECONDS
    from minitx.training.api import train_config
    from minitx.training.folder import is_first_process, print_line

    if time.perf_counter() - began > DELAY_SECONDS and is_first_process():  # torch has been imported
        print_line("preparing data and model", to_errors=True)
    train_config(parsed.values, parsed.resume, parsed.init_from)
    _report_unwritten(f"the run in {run.folder}/{run.name} is trained and saved: minitx evaluate prints its figures")


def _report_unwritten(outcome: str) -> None:
    """Raise RunFailed if a line of print_line could not be written."""
    from minitx.training.folder import unwritten

    if unwritten and not isinstance(error := unwritten.pop(), BrokenPipeError):
        raise RunFailed(f"standard output cannot be written ({error.strerror}); {outcome}")


def describe_arguments(parser: Parser) -> None:
    text = "plot positions and learning rate into this .png, .pdf or .svg file"
    parser.add_argument("--plot", metavar="FILE", type=output(*FORMATS), help=text)


def describe(parsed: Namespace) -> None:
    """Print a config's size, cost and learning rate, without training."""
    _check(parsed)
    from minitx.training.api import resolved
    from minitx.training.describe import describe

    run = resolved(parsed.values)
    print(describe(run))
    if parsed.plot:
        from minitx.plotting.config_pictures import draw

        print(f"\n{draw(run, parsed.plot)}")


def sweep_arguments(parser: Parser) -> None:
    parser.add_argument("--set", action="append", help="KEY=VALUE,VALUE,... or KEY=LOW..HIGH: what to try of each key")
    text = "how settings are chosen; default grid"
    parser.add_argument("--search", choices=("grid", "random", "tpe"), default="grid", help=text)
    parser.add_argument("--trials", type=int, help="settings to try, for --search random or tpe")
    parser.add_argument("--prune", action="store_true", help="stop trials that are worse than the median of the others")
    text = "Optuna's journal file or database, which several processes may share; default: in the sweep's own folder"
    parser.add_argument("--study", type=os.path.expanduser, metavar="FILE|URL", help=text)
    parser.add_argument("--seeds", type=int, default=3, help="train each setting with the seeds 1 to N; default 3")
    parser.add_argument("--lengths", help="for example 1:40: also by length of the question")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time; on GPUs one on each; default 1")
    parser.add_argument("--out", type=Path, help="folder of table and plot; default: the sweep's own")


def sweep(parsed: Namespace) -> None:
    """Train many settings, each with several seeds: --set KEY=A,B."""
    _check(parsed)
    space = grid.parse(parsed.set or [])
    from minitx.sweeps.plan import SearchOptions, plan
    from minitx.sweeps.sweep import sweep

    search = SearchOptions(parsed.search, parsed.trials, parsed.prune)
    planned = plan(parsed.values, space, parsed.seeds, parsed.lengths, search=search)
    if parsed.out:
        writable_folder(parsed.out)
    _, failed = sweep(planned, parsed.jobs, parsed.out, parsed.study)
    _report_unwritten(f"the tables of the sweep are in {parsed.out or planned.folder}")
    if failed:
        print("\n".join([f"{len(failed)} failed:", *failed]), file=sys.stderr)
        raise SystemExit(1)


def _check(parsed: Namespace) -> Config:
    """Refuse a missing or mistyped config before torch is imported; print it if that is all the user wants."""
    config = check_config(parsed.values)
    for sentence in parsed.dropped:
        print(f"minitx: {sentence}", file=sys.stderr)
    if not parsed.values.get("data"):
        raise ConfigError("there is nothing to train on: give --config FILE (see configs/), or --data.name NAME")
    if parsed.print_config:
        letters = getattr(sys.stdout, "errors", None) != "backslashreplace"  # set by main.py: a file may lack some
        text = yaml.dump(config.to_dict(), Dumper=Dumper, sort_keys=False, allow_unicode=letters)
        print(text, end="", flush=True)
        raise SystemExit
    return config
