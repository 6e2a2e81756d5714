"""Shared by the suite: the device, the seed, small models (small_models.py), figures and a browser."""

import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from hypothesis import settings
from matplotlib.figure import Figure

from minitx.cli.main import main
from minitx.compilation import batched_attention, packed_linear
from minitx.training.choices import numerics
from small_models import OnDevice

# Tensors here are tiny: on a shared machine threads spend their time waiting for each other. In what tests start, too.
torch.set_num_threads(1)
settings.register_profile("new", deadline=None)  # other examples in every run, for make test-slow
settings.register_profile("same", deadline=None, derandomize=True)  # deadline: an example may wait for other programs
settings.load_profile("same")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.argv[:1] = ["pytest"]  # pytest-xdist's processes have no file either, so that several devices would be refused
gc.freeze()  # looking for garbage among the objects of all modules took a tenth of the time
gc.set_threshold(100_000, 20, 20)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where tests of nn, models and generation make tensors: cuda")


def device_context(node: pytest.Item | pytest.Collector) -> AbstractContextManager[Any]:
    """Tensors are made on the device of --device. Training finds a GPU by itself, and samples on the CPU."""
    device = node.config.getoption("--device")
    return nullcontext() if device == "cpu" or "training" in node.path.parts else OnDevice(device)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    with device_context(collector):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    with device_context(item):
        return (yield)


@pytest.fixture(autouse=True)
def _seed(pytestconfig: pytest.Config) -> None:
    """Of the CPU alone where there is no other device: to seed each takes a millisecond."""
    (torch.default_generator if pytestconfig.getoption("--device") == "cpu" else torch).manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["MINITX_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def _no_races() -> Iterator[None]:
    """Candidates run once at most, and the default wins: no run and no text depends on the clock."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (batched_attention, packed_linear):
            patch.setattr(module, "is_faster", lambda *given: False)
        patch.setattr(numerics, "race", lambda racers: {name: run() or 1.0 for name, run in racers.items()})
        yield


@pytest.fixture
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every update of the progress of long work is shown."""
    for name in ("DELAY_SECONDS", "BAR_SECONDS", "LINE_SECONDS"):
        monkeypatch.setattr(f"minitx.data.text.work_progress.{name}", 0.0)


@pytest.fixture
def saved_figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    saved: list[Figure] = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *args, **more: saved.append(self) or save(self, *args, **more))
    return saved


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """refused(*words): the sentence of a command on stderr, the only output, after exit code 2."""

    def ask(*words: str) -> str:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main(list(words))
        captured = capsys.readouterr()
        assert (stopped.value.code, captured.out) == (2, ""), captured
        assert captured.err.startswith("minitx: ")
        assert captured.err.count("\n") == 1, captured.err
        return captured.err

    return ask


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A chromium without a window."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium here (apt-get install chromium)")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as playwright:
        quiet = ["--disable-quic", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
        arguments = ["--no-sandbox", "--disable-gpu", "--no-first-run", *quiet]
        with playwright.chromium.launch(executable_path=chromium, args=arguments) as running:
            yield running
