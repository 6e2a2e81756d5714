"""The Attention tab in both data servers of TensorBoard, during training."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from browsing import free_port
from torch.utils.tensorboard import SummaryWriter

from minitx.tensorboard.map_format import KINDS, decode
from minitx.tensorboard.writer import add_maps
from predictors import built

MODELS = {"encoder_decoder": "3 1 4", "decoder_only": "5 0", "encoder_only": "0 2 6 6 1"}
LONG = range(0, 3000, 10)
PATIENCE = 90


class Server:
    """A TensorBoard process."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.address = f"http://localhost:{(port := free_port())}/data/plugin/minitx"
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--port", str(port), *options]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen([*command, "--reload_interval", "1"], **quiet)

    def get(self, route: str, **query: Any) -> bytes:
        request = urllib.request.Request(f"{self.address}{route}?{urlencode(query)}")
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())

    def wait(self, ready: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The index, once it is ready."""
        runs: dict[str, Any] = {}
        for _ in range(PATIENCE * 4):
            assert self.process.poll() is None, "tensorboard ended by itself"
            try:
                runs = json.loads(self.get("/index"))["runs"]
            except urllib.error.HTTPError:
                raise
            except OSError:
                runs = {}
            if ready(runs):
                break
            time.sleep(0.25)
        assert ready(runs), runs
        return runs

    def maps(self, **place: Any) -> tuple[dict[str, Any], list[np.ndarray]]:
        first = self.get("/header", **place)
        header = json.loads(first)
        count = len(header["heads"]) + len(header["extras"])
        sizes = [(heads, len(header["queries"]), len(header["keys"])) for heads in [*header["heads"], 1]]
        raw = [np.frombuffer(self.get("/map", **place, item=number), np.uint8) for number in range(count)]
        shown = [(one / 255.0).reshape(sizes[min(n, len(header["heads"]))]) ** 2 for n, one in enumerate(raw)]
        return header, shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The maps of each architecture, a run of 300 steps, and an event that is no attention map."""
    logs = tmp_path_factory.mktemp("servers")
    for architecture, text in MODELS.items():
        with SummaryWriter(str(logs / architecture)) as writer:
            for kind, items in built(architecture).attend(text).encoded().items():
                add_maps(writer, f"{kind}/example_1", items, 5)
    with SummaryWriter(str(logs / "long")) as writer:
        for step in LONG:
            add_maps(writer, "encoder/x", built("encoder_only").attend(str(step // 10 % 7)).encoded()["encoder"], step)
        add_maps(writer, "foreign/x", [b"not ours", b"at all"], 1)
    return logs


@pytest.fixture(scope="module", params=["--load_fast=auto", "--load_fast=false"])
def server(folder: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    running = Server(folder, request.param)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(timeout=20)


def test_the_tab_shows_the_models_own_weights(server: Server) -> None:
    runs = server.wait(lambda runs: runs.keys() >= {*MODELS, "long"})
    for architecture, text in MODELS.items():
        maps = built(architecture).attend(text)
        present = {kind for kind in KINDS if getattr(maps, kind)}
        assert runs[architecture] == {f"{kind}/example_1": [5] for kind in sorted(present)}
        for kind in present:
            header, shown = server.maps(run=architecture, tag=f"{kind}/example_1", step=5)
            layers = maps.layers(kind)
            assert header["queries"] == list(layers[0].queries)
            assert header["keys"] == list(layers[0].keys)
            for one, layer in zip(shown, layers, strict=False):
                assert np.abs(one - layer.weights.numpy()).max() <= 1 / 255


def test_every_step_is_reachable(server: Server) -> None:
    runs = server.wait(lambda runs: len(runs.get("long", {}).get("encoder/x", ())) == len(LONG))
    assert runs["long"]["encoder/x"] == [*LONG]
    for step in (0, 10, 1230, 2990):
        header, _ = server.maps(run="long", tag="encoder/x", step=step)
        assert header["queries"][0] == str(step // 10 % 7)


def test_foreign_data_is_refused(server: Server) -> None:
    server.wait(lambda runs: "foreign/x" in runs.get("long", {}))
    for place in ({"tag": "foreign/x", "step": 1}, {"tag": "encoder/x", "step": 7}, {"tag": "none", "step": 0}):
        with pytest.raises(urllib.error.HTTPError) as caught:
            server.get("/header", run="long", **place)
        assert caught.value.code == 404
        assert "attention map" in json.loads(caught.value.read())["error"]


def test_new_steps_appear(server: Server, folder: Path, request: pytest.FixtureRequest) -> None:
    run = f"live{request.node.callspec.params['server'][-5:]}"
    with SummaryWriter(str(folder / run)) as writer:
        for step in range(3):
            items = built("encoder_only").attend(str(step)).encoded()["encoder"]
            add_maps(writer, "encoder/x", items, step)
            writer.flush()
            server.wait(lambda runs, last=step: runs.get(run, {}).get("encoder/x", [])[-1:] == [last])
            header, shown = server.maps(run=run, tag="encoder/x", step=step)
            assert header["queries"] == [str(step)]
            exact = decode(items)[1]
            assert all(np.abs(one - other).max() < 1e-6 for one, other in zip(shown, exact, strict=True))
