"""The Attention tab's routes in a TensorBoard process."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from browsing import LONG, MODELS

from minitx.interpret.attention_maps import KINDS
from predictors import built


def get(address: str, route: str, **query: Any) -> bytes:
    with urllib.request.urlopen(f"{address}data/plugin/minitx{route}?{urlencode(query)}") as answer:
        return bytes(answer.read())


@pytest.fixture(scope="module")
def index(address: str) -> dict[str, Any]:
    """The runs, once all of them are read."""
    for _ in range(360):
        runs = dict(json.loads(get(address, "/index"))["runs"])
        if runs.keys() >= {*MODELS, "long", "strange"} and len(runs["long"]["encoder/x"]) == len(LONG):
            break
        time.sleep(0.25)
    return runs


def test_the_tab_has_the_models_own_weights(address: str, index: dict[str, Any]) -> None:
    for architecture, text in MODELS.items():
        maps = built(architecture).attend(text)
        present = {kind for kind in KINDS if getattr(maps, kind)}
        assert index[architecture] == {f"{kind}/example_1": [5] for kind in sorted(present)}
        for kind in present:
            place = {"run": architecture, "tag": f"{kind}/example_1", "step": 5}
            header = json.loads(get(address, "/header", **place))
            for number, (weights, queries, keys, _) in enumerate(maps.layers(kind)):
                assert (header["queries"], header["keys"]) == (list(queries), list(keys))
                levels = np.frombuffer(get(address, "/map", **place, item=number), np.uint8)
                assert np.abs((levels / 255.0).reshape(weights.shape) ** 2 - weights.numpy()).max() <= 1 / 255


def test_every_step_is_reachable(address: str, index: dict[str, Any]) -> None:
    assert index["long"]["encoder/x"] == [*LONG]
    for step in (0, 10, 1230, 2990):
        assert json.loads(get(address, "/header", run="long", tag="encoder/x", step=step))["queries"] == [str(step)]


def test_foreign_data_is_refused(address: str, index: dict[str, Any]) -> None:
    for run, tag, step in (("strange", "foreign/x", 1), ("long", "encoder/x", 7), ("long", "none", 0)):
        with pytest.raises(urllib.error.HTTPError) as caught:
            get(address, "/header", run=run, tag=tag, step=step)
        assert caught.value.code == 404
        assert "attention map" in json.loads(caught.value.read())["error"]
