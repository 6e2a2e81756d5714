"""The import rules of the two rings, read from the source: the core, which a reader must understand, and the extras.

A folder here is a package directly under minitx/. Where one holds core and extras, each counts as a folder of its own,
and so do data/text, training/callbacks and training/resilience. Imports under `if TYPE_CHECKING` do not count.
"""

import ast
import shutil
import subprocess
import sys
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import minitx
from minitx.data import tasks
from minitx.data.tasks import TASKS
from minitx.data.tasks.base import MODULES as MODULES_OF_TASKS

PACKAGE = Path(minitx.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
OURS = "minitx"

CORE = {
    "checkpoints": {"atomic_files", "format", "model_weights", "safe_load"},
    "config": {"errors", "registry", "schema", "training_sections", "validation"},
    "data": {"batch", "examples", "loader", "prompts", "splits", "tokenizers"},
    "data/tasks": {"base", "question_tasks", "sequences"},
    "evaluation": {"metrics"},
    "generation": None,
    "hardware": {"devices"},
    "inference": None,
    "interpret": {"attention_maps", "recording"},
    "models": None,
    "nn": None,
    "training": {"checkpointing", "folder", "losses", "module", "optim", "progress", "resolve", "run", "start"},
}
"""Folders of the core and their files; None for all of them."""

OPENS_EXTRAS = {"Predictor", "AttentionMaps", "Lens", "PatchMap", "Tokenizer", "TextGenerator"}
"""Classes whose methods may open an extra: what minitx.load returns, what its attend, lens and patch return, a
tokenizer, whose rules are checked unless they are those of a toy task, and text generation, whose step may be
compiled."""

CORE_LINES = 7_000
"""Lines of Python in the core, at most. The target is 7,000: lower this number whenever the core gets smaller."""
CLOSURE_FILES = 57
"""Files that minitx.training.run imports, directly or not, inside functions too, at most."""


def module_name(file: Path) -> str:
    parts = (OURS, *file.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in FILES}


def relative(file: Path) -> str:
    return file.relative_to(PACKAGE).as_posix()


def is_core(file: Path) -> bool:
    folder = relative(file.parent)
    return folder in CORE and (file.stem == "__init__" or file.stem in (CORE[folder] or {file.stem}))


def part_of(file: Path) -> str:
    """The folder that a file belongs to; the core and the extras of one folder are two."""
    folder = relative(file.parent)
    top = folder.split("/")[0]
    if is_core(file):
        return top
    return f"{top} (extras)" if folder in CORE else folder if top in CORE else top


@cache
def nodes(file: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(file.read_bytes()))]


def imported(code: list[ast.AST]) -> set[str]:
    """Every module that code imports, inside functions too; of ours, the module and not the names in it."""
    blocks = [node for node in code if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"]
    found: set[str] = set()
    for node in {*code} - {part for block in blocks for part in ast.walk(block)}:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in full}
    return found


@cache
def read(file: Path) -> tuple[set[str], set[str]]:
    """What a file imports: outside of the methods that may open extras, and in them."""
    openers = [node for node in nodes(file) if isinstance(node, ast.ClassDef) and node.name in OPENS_EXTRAS]
    methods = [part for node in openers for part in node.body if isinstance(part, ast.FunctionDef)]
    inside = {part for method in methods for part in ast.walk(method)}
    return imported([node for node in nodes(file) if node not in inside]), imported([*inside])


def imports(file: Path) -> set[str]:
    """Without those by methods that may open extras."""
    return read(file)[0]


def below(folder: str) -> list[Path]:
    path = PACKAGE / folder
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def in_part(name: str, part: str) -> bool:
    return name == f"{OURS}.{part}" or name.startswith(f"{OURS}.{part}.")


def test_no_circle_of_files_or_folders() -> None:
    files = {name: set().union(*read(file)) & {*MODULES} for name, file in MODULES.items()}
    TopologicalSorter(files | {OURS: set()}).prepare()  # minitx imports its public API when it is used
    folders: dict[str, set[str]] = {part_of(file): set() for file in FILES}
    for file in FILES:
        if file.parent != PACKAGE:
            folders[part_of(file)] |= {part_of(MODULES[name]) for name in imports(file) & {*MODULES} - {OURS}}
    TopologicalSorter({part: others - {part} for part, others in folders.items()}).prepare()


def test_core_imports_no_extras() -> None:
    core = [file for file in FILES if is_core(file)]
    assert not [(file, name) for file in core for name in imports(file) & {*MODULES} if not is_core(MODULES[name])]


def test_training_imports_few_files() -> None:
    found, waiting = set(), ["minitx.training.run"]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports(MODULES[name]) & {*MODULES} - {OURS}
    assert len(found) <= CLOSURE_FILES


def test_names_of_files_and_of_classes_are_unique() -> None:
    classes = [node.name for file in FILES for node in nodes(file) if isinstance(node, ast.ClassDef)]
    names = [file.stem for file in FILES] + classes
    twins = {"errors"}  # of config and of nn: the same role in two folders
    assert not {name for name, count in Counter(names).items() if count > 1 and name[0] != "_"} - twins


def test_core_and_files_stay_small_and_no_file_is_loose() -> None:
    lines = {file: file.read_text().count("\n") for file in FILES}
    assert sum(count for file, count in lines.items() if is_core(file)) <= CORE_LINES
    assert not [file for file, count in lines.items() if count > 350], "past 350 lines a file is about two things"
    assert {file.name for file in PACKAGE.glob("*.py")} == {"__init__.py", "__main__.py"}


LIGHT_CONFIG = ["config.schema", "config.registry", "config.errors"]
"""Config without YAML."""


@pytest.mark.parametrize(("folder", "allowed", "libraries"), [
    ("nn", ["nn"], "torch"),
    ("hardware", ["hardware", "checkpoints.atomic_files", "config.errors"], "torch"),
    ("generation", ["generation", "hardware"], "torch"),
    ("models", ["models", "nn", *LIGHT_CONFIG], "torch"), ("config", ["config"], "pydantic yaml"),
    ("tensorboard", ["tensorboard", "config.errors"], "numpy tensorboard werkzeug"),
    ("data", ["data", "config", "hardware", "checkpoints.atomic_files", "checkpoints.locks"],
     "annotated_types babel datasets num2words numpy tokenizers torch tqdm"),
    ("huggingface/families", ["huggingface.families", "config.schema", "config.errors"], "torch"),
])  # fmt: skip
def test_a_folder_imports_only(folder: str, allowed: list[str], libraries: str) -> None:
    for file in below(folder):
        for name in imports(file):
            known = name.split(".")[0] in {*libraries.split(), *sys.stdlib_module_names}
            assert known or any(in_part(name, part) for part in allowed), (file, name)


@pytest.mark.parametrize(("library", "allowed"), [
    ("datasets", ["data/text/columns.py"]),
    ("tokenizers", ["data/tokenizers.py", "data/text/tokenizer_training.py", "data/text/tokenizer_checks.py",
                    "huggingface/tokenizer_files.py"]),
    ("lightning", ["training"]), ("optuna", ["sweeps"]),
    ("safetensors", ["huggingface/hub_files.py", "huggingface/exporting.py"]),
    ("huggingface_hub", ["huggingface/hub_files.py"]), ("pydantic", ["config"]),
    ("argparse", ["cli", "tensorboard/plugin_loader.py"]), ("shtab", ["cli"]),
    ("matplotlib", ["plotting", "interpret/images.py"]), ("minitx.huggingface", ["huggingface", "cli/conversion.py"]),
    ("transformers", []),
])  # fmt: skip
def test_libraries_live_where_their_name_says(library: str, allowed: list[str]) -> None:
    users = {file for file in FILES if any(f"{name}.".startswith(f"{library}.") for name in imports(file))}
    assert bool(users) == bool(allowed), f"nobody imports {library}: the rule is out of date"
    assert users <= {file for part in allowed for file in below(part)}


LIGHT = ["minitx", "minitx.cli.main", "minitx.cli.conversion"]
LIGHT += [module_name(file) for folder in ("config", "tensorboard") for file in below(folder)]


def test_light_modules_load_no_torch_a_task_no_other_and_a_count_no_compiler() -> None:
    light = f"import sys, {', '.join(LIGHT)}\nprint(*sys.modules)\n"
    task = "from minitx.data.tasks import TASKS\nTASKS['reverse']\nprint(*sys.modules)\n"
    # Each command that loads a checkpoint counts its weights, and torch's compiler takes as long to import as torch.
    count = "from minitx.checkpoints.model_weights import on_meta; from minitx.config.schema import ModelConfig\n"
    parts = 'vocab_size=20, norm="rmsnorm", activation="swiglu", qk_norm=True, position={"name": "rope"}'
    code = f"{light}{task}{count}on_meta(ModelConfig({parts}))\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, loaded, counted = (line.split() for line in result.stdout.splitlines())
    assert "torch._dynamo" not in counted
    assert not {"torch", "lightning", "datasets", "safetensors", "huggingface_hub"} & {*before}
    tasks = {name for name in loaded if in_part(name, "data.tasks")}
    assert tasks == {f"{OURS}.data.tasks{name}" for name in ("", ".base", ".question_tasks", ".sequences")}
    assert not {name for name in loaded if in_part(name, "data.text")}


def test_public_names_are_there() -> None:
    for name in minitx.__all__:
        assert getattr(minitx, name).__doc__, name
    assert set(minitx.__all__) <= set(dir(minitx))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = minitx.nonsense


def test_the_table_of_tasks_and_their_classes_agree() -> None:
    registered = {}
    for file in below("data/tasks"):
        for node in nodes(file):
            for call in node.decorator_list if isinstance(node, ast.ClassDef) else []:
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "register":
                    registered[ast.literal_eval(call.args[0])] = (module_name(file), node.name)
    assert {name: (kind.__module__, kind.__name__) for name, kind in TASKS.items()} == registered
    core = {"minitx.data.tasks.sequences"}  # imported with the package
    table = {name: f"{tasks.__name__}.{module}" for module, names in MODULES_OF_TASKS.items() for name in names.split()}
    assert table == {name: module for name, (module, _) in registered.items() if module not in core}
    assert all(getattr(tasks, kind.__name__) is kind for kind in TASKS.values())


EXTRAS = sorted({part_of(file) for file in FILES if not is_core(file) and file.parent != PACKAGE})

TRAIN = """
import sys
import minitx.training.run
from minitx.config.schema import config_from_dict
from minitx.inference.predictor import load
from minitx.training.resolve import resolve
from minitx.training.run import train

assert minitx.__file__.startswith(sys.argv[1]), minitx.__file__
config = {
    "run": {"folder": "runs"}, "model": {"d_model": 8, "n_heads": 2, "n_layers": 1},
    "data": {"name": "reverse", "symbols": 4, "length": [1, 5], "batch_size": 8, "validation_size": 8, "test_size": 8},
}
for steps in (2, 4):
    trainer = {"max_steps": steps, "precision": "32-true", "accelerator": "cpu"}
    assert train(resolve(config_from_dict({**config, "trainer": trainer}), resume=steps == 4))["steps"] == steps
predictor = load("runs/run")
assert (type(predictor.generate("1 2 3")), len(predictor.attend("1 2 3").encoder)) == (str, 1)
"""


@pytest.mark.slow
@pytest.mark.parametrize("extras", [EXTRAS, *([extra] for extra in EXTRAS)], ids=str)
def test_core_works_without_extras(extras: list[str], tmp_path: Path) -> None:
    """Train, resume and generate with a copy of the package that lacks these extras."""
    shutil.copytree(PACKAGE, tmp_path / OURS)
    for file in FILES:
        if part_of(file) in extras and not is_core(file) and file.parent != PACKAGE:
            (tmp_path / OURS / relative(file)).unlink()
    result = subprocess.run([sys.executable, "-c", TRAIN, tmp_path], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
