"""The server of minitx play: what it refuses, and that no request harms another."""

import http.client
import json
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from werkzeug.test import Client

from minitx.checkpoints import format as checkpoint
from minitx.config.errors import ConfigError
from minitx.playground.play_requests import Session
from minitx.playground.server import LOOPBACK, MAX_WAITING, Playground, serve
from predictors import built, trained

ASK = json.dumps({"prompt": "1 2 3"}).encode()
JSON = {"Content-Type": "application/json"}
BAD_INPUT: list[dict[str, Any]] = [
    {"prompt": "☃"}, {"prompt": ""}, {"forced": {"0": 99}}, {"forced": {"-1": 7}}, {"off": ["cross.9.9"]},
    {"options": {"max_new_tokens": 100_000}},
]  # fmt: skip


@pytest.fixture(scope="module")
def address() -> Iterator[Any]:
    server, address = serve(built("encoder_decoder", ends=False))
    threading.Thread(target=server.serve_forever, args=(0.05,)).start()
    yield urlsplit(address)
    server.shutdown()  # which waits for its end


def send(address: Any, path: str, body: bytes | None = None, headers: Any = JSON) -> tuple[int, dict[str, str], Any]:
    """Status, headers and the JSON lines of an answer; `path` is below the token unless it starts with a slash."""
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    target = path if path.startswith("/") else address.path + path
    connection.request("POST" if body is not None else "GET", target, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    lines = [json.loads(line) for line in text.splitlines()] if "json" in answer.headers["Content-Type"] else text
    return answer.status, dict(answer.headers), lines


@pytest.mark.parametrize(("status", "path", "body", "headers"), [
    (403, "/", None, {}), (403, "/wrong/model", None, {}), (403, "model", None, {"Host": "example.com"}),
    (403, "model", None, {"Origin": "http://example.com"}), (403, "write", ASK, {**JSON, "Origin": "null"}),
    (405, "write", None, {}), (405, "model", ASK, JSON), (404, "static/../server.py", None, {}),
    (405, "write", ASK, {"Content-Type": "text/plain"}),  # which another page may send without asking first
    (413, "write", json.dumps({"prompt": "1 " * 5_000_000}).encode(), JSON), (400, "write", b"{", JSON),
    (400, "write", b"[]", JSON), (400, "write", b"[" * 200_000, JSON),
    (400, "write", b'{"prompt": "1", "cmd": "x"}', JSON),
    (400, "look", b'{"prompt": "1", "source": [6], "target": [1], "prompt_tokens": 1e30}', JSON),
    (400, "look", b'{"prompt": "1", "source": [6], "target": [1], "prompt_tokens": %d}' % 10**30, JSON),
    (400, "write", b'{"prompt": "1", "options": {"temperature": -1, "do_sample": true}}', JSON),
    (200, "look", b'{"prompt": "1", "source": [6], "target": [-1], "prompt_tokens": 1}', JSON),
    (200, "explain", b'{"prompt": "1", "source": [6], "target": [1], "prompt_tokens": 1, "index": 0, "token": %d}'
     % 10**30, JSON),
    *((200, "write", json.dumps({"prompt": "1 2", **options}).encode(), JSON) for options in BAD_INPUT),
])  # fmt: skip
def test_what_is_not_the_pages_own_is_refused_in_a_sentence(
    address: Any, status: int, path: str, body: bytes | None, headers: dict[str, str], capfd: Any
) -> None:
    found, _, lines = send(address, path, body, headers)
    assert (found, [*lines[-1]]) == (status, ["error"])
    assert status == 200 or len(lines) == 1
    assert "\n" not in lines[-1]["error"]
    assert "Traceback" not in "".join([lines[-1]["error"], *capfd.readouterr()])


def test_only_this_machine_is_served_and_the_page_runs_its_own_code_alone(address: Any) -> None:
    assert (address.hostname, send(address, address.path[:-1])[1].get("Location")) == (LOOPBACK, address.path)
    for path in ("", "model", "static/play.js", "static/page.css"):
        status, headers, _ = send(address, path)
        assert status == 200
        policy, kept = headers["Content-Security-Policy"], headers["X-Content-Type-Options"]
        assert ("default-src 'none'" in policy, "unsafe" in policy, kept) == (True, False, "nosniff")
    assert send(address, "write", ASK, {**JSON, "Origin": f"http://{address.netloc}"})[0] == 200


def test_a_port_in_use_is_one_sentence(address: Any) -> None:
    for port in (address.port, 99_999):
        with pytest.raises(ConfigError, match=f"--port {port} cannot be used"):
            serve(built("encoder_decoder"), port)


def test_many_requests_at_once_do_not_change_one_another(address: Any) -> None:
    """Each is answered as if alone, or refused; some switch heads off while others write."""
    bodies = [ASK, json.dumps({"prompt": "1 2 3", "off": ["decoder.1.1", "cross.2.1"]}).encode()]
    alone = [send(address, "write", body)[2] for body in bodies]
    assert alone[0] != alone[1]
    with ThreadPoolExecutor(100) as pool:
        found = [*pool.map(lambda turn: (turn % 2, *send(address, "write", bodies[turn % 2])), range(100))]
    answered = [(which, lines) for which, status, _, lines in found if status == 200]
    assert len(answered) >= MAX_WAITING
    assert [lines for which, lines in answered if lines != alone[which]] == []
    assert all("waiting" in lines[0]["error"] for _, status, _, lines in found if status != 200)


def test_a_page_that_goes_away_frees_the_model_and_the_end_of_the_server_takes_it() -> None:
    app = Playground(Session(built("encoder_decoder")))
    app.hosts, client = {"localhost"}, Client(app)
    for _ in range(2 * MAX_WAITING):
        response = client.post(f"/{app.token}/write", data=ASK, headers=JSON, buffered=False)
        next(iter(response.response))
        assert app._model.locked()
        response.close()
        assert not app._model.locked()
    [line] = app._lines(lambda _: iter([{"share": math.nan}]))
    assert b"this model computes NaN" in line
    next(lines := iter(client.post(f"/{app.token}/write", data=ASK, headers=JSON, buffered=False).response))
    (ending := threading.Thread(target=app.end)).start()
    ending.join(0.5)
    assert b"has been ended" in [*lines][-1]


@pytest.mark.slow
def test_the_command_prints_an_address_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    checkpoint.write(trained("encoder_decoder"), tmp_path / "model.ckpt")
    command = [sys.executable, "-m", "minitx", "play", str(tmp_path / "model.ckpt"), "--no-browser"]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else ignored, and by children, in the background
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert send(urlsplit(process.stdout.readline().strip()), "write", ASK)[0] == 200
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")
