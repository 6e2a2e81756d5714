"""The notebooks run from top to bottom in their own kernel, and display their figures."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("*.py")))
def test_it_runs(name: str, tmp_path: Path) -> None:
    jupytext = pytest.importorskip("jupytext")
    nbclient = pytest.importorskip("nbclient")
    notebook = jupytext.read(FOLDER / name)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [kind for cell in notebook.cells for out in cell.get("outputs", []) for kind in out.get("data", {})]
    curves, pages = {"reversal_circuit.py": (1, 2)}.get(name, (2, 1))
    assert shown.count("image/png") == curves
    assert shown.count("text/html") == pages  # attention maps, the lens and patching
