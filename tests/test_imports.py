"""The house rules on who may know whom, read from the source with ast."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import minitx

PACKAGE = Path(minitx.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
OURS = "minitx"


def module_name(file: Path) -> str:
    parts = (OURS, *file.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(file): file for file in FILES}


def imports(file: Path) -> set[str]:
    """Every module that a file imports, wherever in it; of our own, the module itself and not the names in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in full}
    return found


def below(folder: str) -> list[Path]:
    path = PACKAGE / folder
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


def top(name: str) -> str:
    return name.split(".")[0]


def in_part(name: str, part: str) -> bool:
    return name == f"{OURS}.{part}" or name.startswith(f"{OURS}.{part}.")


@pytest.mark.parametrize("file", below("nn"), ids=str)
def test_nn_knows_torch_and_itself(file: Path) -> None:
    for name in imports(file):
        assert top(name) in {"torch", *sys.stdlib_module_names} or in_part(name, "nn"), name


@pytest.mark.parametrize("file", below("generation"), ids=str)
def test_generation_knows_torch_the_devices_and_itself(file: Path) -> None:
    for name in imports(file):
        ours = in_part(name, "generation") or name == f"{OURS}.hardware"
        assert top(name) in {"torch", *sys.stdlib_module_names} or ours, name


def test_the_devices_know_nothing_of_ours() -> None:
    assert not [name for name in imports(MODULES[f"{OURS}.hardware"]) if top(name) == OURS]


@pytest.mark.parametrize("file", below("data"), ids=str)
def test_data_knows_no_model(file: Path) -> None:
    for name in imports(file):
        assert not any(
            in_part(name, part) for part in ("nn", "models", "training", "predictor", "inspection", "huggingface")
        ), name


@pytest.mark.parametrize("file", [*below("config.py"), *below("options.py"), *below("tensorboard")], ids=str)
def test_light_parts_import_no_torch(file: Path) -> None:
    assert not {top(name) for name in imports(file)} & {"torch", "lightning", "datasets", "tokenizers", "transformers"}


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("datasets", ["data/corpora.py"]),
        ("tokenizers", ["data/tokenizers.py"]),
        ("lightning", ["training", "cli.py"]),
        ("safetensors", ["huggingface/reading.py", "huggingface/exporting.py"]),
        ("huggingface_hub", ["huggingface/reading.py"]),
    ],
)
def test_libraries_live_in_one_room(library: str, allowed: list[str]) -> None:
    users = {file for file in FILES if library in {top(name) for name in imports(file)}}
    rooms = {file for part in allowed for file in below(part)}
    assert users, f"nobody imports {library}: the rule is out of date"
    assert users <= rooms


@pytest.mark.parametrize("file", FILES, ids=str)
def test_hugging_face_formats_are_known_to_the_command_line_only(file: Path) -> None:
    inside = file in below("huggingface")
    assert inside or {name for name in imports(file) if in_part(name, "huggingface")} <= {OURS + ".huggingface.command"}


@pytest.mark.parametrize("file", [*below("huggingface/families"), *below("huggingface/links.py")], ids=str)
def test_families_know_configs_and_tensors_only(file: Path) -> None:
    for name in imports(file):
        known = {f"{OURS}.config", f"{OURS}.huggingface.links"}
        assert top(name) != OURS or name in known or in_part(name, "huggingface.families"), name


def test_nothing_of_ours_imports_transformers() -> None:
    assert not [file for file in FILES if "transformers" in {top(name) for name in imports(file)}]


def test_no_import_circle() -> None:
    graph = {name: {other for other in imports(file) if other in MODULES} for name, file in MODULES.items()}
    graph[OURS] = set()  # names the public API, and imports it when asked
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


ROOM = [f"minitx.tensorboard.{file.stem}" for file in below("tensorboard") if file.stem != "__init__"]
LIGHT = ["minitx", "minitx.config", "minitx.options", "minitx.cli", "minitx.huggingface.command", *ROOM]


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_no_torch(module: str) -> None:
    heavy = {"torch", "lightning", "datasets", "safetensors", "huggingface_hub"}
    code = f"import sys, {module}; sys.exit(' '.join({heavy} & set(sys.modules)) or 0)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


def test_public_names_are_there() -> None:
    for name in minitx.__all__:
        assert getattr(minitx, name).__doc__, name
    assert set(minitx.__all__) <= set(dir(minitx))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = minitx.nonsense


def test_files_stay_small() -> None:
    long = {str(file.relative_to(PACKAGE)): lines for file in FILES if (lines := file.read_text().count("\n")) > 350}
    assert not long, f"past 350 lines a file is about two things: {long}"
