"""TensorBoard in process, from event files to HTTP answers: its own application and readers, with our plugin."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.application import TensorBoardWSGIApp
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from werkzeug.test import Client, TestResponse

from decoded_maps import decode
from minitx.tensorboard.map_format import Statistic, encode
from minitx.tensorboard.plugin_loader import AttentionLoader


def layers(seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.random((2, 3, 4)), rng.random((1, 3, 4))]


def items(seed: int = 1, **labels: list[str | None]) -> list[bytes]:
    """A header, these layers, and the rollout."""
    statistic = Statistic("diagonal", "meaning", True, [[0.5, None], [1.0]])
    sides = {"queries": ["<b>\0", "\ud800\u202eשלום", None], "keys": ["w", "x", "y", "z"], **labels}
    return encode("cross", *sides.values(), layers(seed), [statistic], {"rollout": np.full((3, 4), 0.25)})


def with_header(**changed: Any) -> bytes:
    """The header with other values; None removes a key."""
    header = {**json.loads(items()[0]), **changed}
    return json.dumps({key: value for key, value in header.items() if value is not None or key == "version"}).encode()


class Board:
    """A TensorBoard on a folder of runs."""

    def __init__(self, folder: Path) -> None:
        flags = Namespace(logdir=str(folder), samples_per_plugin={}, window_title="", path_prefix="")
        loader = AttentionLoader()
        loader.fix_flags(flags)
        self.events = EventMultiplexer(tensor_size_guidance=flags.samples_per_plugin)
        self.folder = folder
        self.client = Client(TensorBoardWSGIApp(flags, [loader], MultiplexerDataProvider(self.events, str(folder))))
        self.reload()

    def reload(self) -> None:
        self.events.AddRunsFromDirectory(str(self.folder))
        self.events.Reload()

    def get(self, route: str, gzipped: bool = True, **query: Any) -> TestResponse:
        headers = {"Accept-Encoding": "gzip"} if gzipped else {}
        return self.client.get(f"/data/plugin/minitx{route}", query_string=query, headers=headers)

    def json(self, route: str, **query: Any) -> Any:
        answer = self.get(route, gzipped=False, **query)
        assert answer.status_code == 200, answer.text
        return json.loads(answer.data)

    def refusal(self, route: str, **query: Any) -> str:
        answer = self.get(route, gzipped=False, **query)
        assert 400 <= answer.status_code < 500, answer.text
        body = json.loads(answer.data)
        assert (answer.content_type, {*body}, "\n" in body["error"]) == ("application/json", {"error"}, False)
        assert 10 < len(body["error"]) < 300
        return str(body["error"])

    @property
    def runs(self) -> dict[str, dict[str, list[int]]]:
        return dict(self.json("/index")["runs"])

    def maps(self, **place: Any) -> Any:
        header = self.json("/header", **place)
        count = len(header["heads"]) + len(header["extras"])
        return decode([json.dumps(header).encode(), *(self.get("/map", **place, item=n).data for n in range(count))])
