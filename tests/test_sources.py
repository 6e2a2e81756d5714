"""Calls in our own source, found with ast: none runs what it reads, and every text is UTF-8."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from minitx.checkpoints import safe_load
from minitx.training.checkpointing import AtomicCheckpointIO
from minitx.training.resilience.disk import TolerantFiles
from test_imports import FILES, PACKAGE, nodes, read, relative

OPENS = {"open", "read_text", "write_text", "fdopen"}
RUNNING = {
    "eval", "exec", "compile", "__import__", "pickle.load", "pickle.loads", "marshal.loads", "os.system", "os.popen",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all", "numpy.load", "np.load", "joblib.load",
    "shelve.open", "torch.hub.load", "importlib.import_module", "jsonargparse.CLI", "subprocess.getoutput",
}  # fmt: skip
"""Calls that run what they read, or may."""


@cache
def calls(file: Path) -> list[tuple[str, ast.Call]]:
    return [(ast.unparse(node.func), node) for node in nodes(file) if isinstance(node, ast.Call)]


def test_nothing_runs_what_it_reads() -> None:
    for file in FILES:
        for name, call in calls(file):
            safe = name == "yaml.load" and file.name == "yaml_files.py" and "Loader" in ast.unparse(call)
            assert safe or name not in RUNNING, f"{file}, line {call.lineno}: {name}"
            shell = [word for word in call.keywords if word.arg == "shell"]
            assert not shell, f"{file}, line {call.lineno}: through a shell"
        assert not set().union(*read(file)) & {"pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}, file


def test_torch_loads_in_one_place_and_weights_only_and_another_one_imports_files() -> None:
    found = [(file, call) for file in FILES for name, call in calls(file) if name in ("torch.load", "torch.jit.load")]
    ((file, call),) = found
    assert file.name == "safe_load.py"
    options = {word.arg: ast.literal_eval(word.value) for word in call.keywords if isinstance(word.value, ast.Constant)}
    assert options["weights_only"] is True
    assert options["mmap"] is True, "an unmapped tensor is read to the size that it declares"
    imports = {relative(file) for file in FILES for name, _ in calls(file) if "exec_module" in name}
    assert imports == {"extensions/python_files.py"}, "an extra, which the core does not import"


def test_lightning_loads_through_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(safe_load, "load", lambda path: asked.append(path) or {})
    (tmp_path / "x.ckpt").touch()
    with pytest.raises(ValueError, match="no minitx section"):
        AtomicCheckpointIO(TolerantFiles(tmp_path), None).load_checkpoint(tmp_path / "x.ckpt", weights_only=False)
    assert asked == [tmp_path / "x.ckpt"]


def test_the_page_takes_no_text_for_markup() -> None:
    pages = sorted(PACKAGE.rglob("static/*.*"))
    assert pages
    markup = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc|setHTML|"
        r"createContextualFragment|setTimeout\(\s*[\"'`]"
    )
    assert not [(page.name, found) for page in pages if (found := re.search(markup, page.read_text()))]


def names_an_encoding(function: str, call: ast.Call) -> bool:
    """Whether a call that opens a file does so in binary mode or with an encoding."""
    if function.rpartition(".")[2] not in OPENS or function in ("os.open", "Image.open", "webbrowser.open"):
        return True
    binary = any(isinstance(word, ast.Constant) and "b" in str(word.value) for word in call.args)
    return binary or any(word.arg == "encoding" for word in call.keywords)


def test_texts_are_read_and_written_as_utf_8() -> None:
    """The default encoding of Windows is another one."""
    found = [(file, *named) for file in FILES for named in calls(file)]
    assert len(found) > 1000
    assert not [f"{file}:{call.lineno}" for file, name, call in found if not names_an_encoding(name, call)]
