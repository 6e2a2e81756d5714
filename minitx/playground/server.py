"""The server of `minitx play`: a page and its requests, for this machine alone.

    GET  /TOKEN/               the page
    GET  /TOKEN/static/FILE    its modules and style, and those of the Attention tab
    GET  /TOKEN/model          what the page shows about the model
    GET  /TOKEN/examples       three test questions with their answers
    POST /TOKEN/NAME           a request of REQUESTS; JSON in, a line of JSON for each item out

It listens on the loopback only. The token of the address is random; Host and Origin must be the server's own, so that
no other page of the browser reaches it. Errors are {"error": sentence}.
"""

import hmac
import json
import os
import secrets
import socket
import sys
import threading
import traceback
import webbrowser
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from werkzeug.exceptions import HTTPException, RequestEntityTooLarge, abort
from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler
from werkzeug.utils import redirect
from werkzeug.wrappers import Request, Response

from minitx.config.errors import ConfigError
from minitx.config.validation import validate
from minitx.inference.predictor import Predictor
from minitx.playground.inspection import Explain, Look
from minitx.playground.play_requests import Ablate, BeamTree, Session, Write
from minitx.tensorboard import STATIC, TYPES, page_files

REQUESTS: dict[str, Any] = {"write": Write, "beams": BeamTree, "look": Look, "explain": Explain, "ablate": Ablate}
"""Requests by the last part of their address."""
LOOPBACK = "127.0.0.1"
MAX_BODY_BYTES = 2**18
MAX_WAITING = 16
"""Maximum number of requests that wait for the model."""
TIMEOUT_SECONDS = 30.0
"""Time after which a connection that accepts no bytes is closed: it may block the model."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Playground:
    """The WSGI application for one model."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.token = secrets.token_urlsafe(16)
        self.hosts: set[str] = set()  # accepted values of the Host header
        self._model = threading.Lock()  # hooks and seeds belong to the whole model: one request at a time
        self._examples = threading.Lock()
        self._waiting = threading.BoundedSemaphore(MAX_WAITING)
        self._files = page_files(STATIC, Path(__file__).parent / "static")

    def warm_up(self) -> None:
        """Prepare for the first text, while the page opens."""
        with self._model:
            self.session.warm_up()

    def end(self) -> None:
        """Stop all computations and start no more: a process that exits while torch computes crashes."""

        def refuse(*call: Any) -> None:
            raise ConfigError("`minitx play` has been ended")

        with ExitStack() as stack:
            for module in self.session.predictor.model.modules():
                stack.enter_context(module.register_forward_pre_hook(refuse))
            self._model.acquire()
        self._examples.acquire()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Answer a request."""
        request = Request(environ)
        request.max_content_length = MAX_BODY_BYTES
        try:
            response = self._answer(request)
        except RequestEntityTooLarge:
            response = _json({"error": f"a request has at most {MAX_BODY_BYTES:,} bytes: shorten the text"}, 413)
        except HTTPException as error:
            response = _json({"error": str(error.description)}, error.code or 400)
        response.headers.update(HEADERS)
        return response(environ, start_response)

    def _answer(self, request: Request) -> Response:
        if request.headers.get("Host") not in self.hosts:
            abort(403, description="this server answers under its own address only")
        if (origin := request.headers.get("Origin")) and origin not in {f"http://{host}" for host in self.hosts}:
            abort(403, description="this server answers its own page only")
        token, slash, path = request.path.removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            abort(403, description="this address lacks the token that `minitx play` has printed")
        if not slash:  # the addresses in the page are relative to this one
            return redirect(f"/{self.token}/")
        if path in REQUESTS:
            return self._run(request, REQUESTS[path])
        if request.method not in ("GET", "HEAD"):
            abort(405, description="expected GET")
        if path == "model":
            return _json(self.session.description())
        if path == "examples":
            with self._examples:  # not the model's lock: reading a corpus takes seconds
                return _json(self.session.examples)
        name = path.removeprefix("static/") if path else "play.html"
        if (file := self._files.get(name)) is None:
            abort(404, description=f"there is no {name[:80]!r} here")
        return Response(file.read_bytes(), mimetype=TYPES[file.suffix])

    def _run(self, request: Request, kind: Any) -> Response:
        """Check a request at once, and answer it line by line."""
        if request.method != "POST" or request.mimetype != "application/json":
            abort(405, description="expected POST with application/json")
        try:
            body = json.loads(request.get_data())
            if not isinstance(body, dict):
                raise ConfigError("the request must be an object of JSON")
            checked = validate(kind, body, "request")
        except (ValueError, RecursionError) as error:  # ConfigError, and what json raises
            abort(400, str(error))
        if not self._waiting.acquire(blocking=False):
            abort(503, f"{MAX_WAITING} requests are waiting for the model: retry later")
        response = Response(self._lines(checked.answer), mimetype="application/x-ndjson")
        response.call_on_close(self._waiting.release)  # also if nothing was sent
        return response

    def _lines(self, answer: Callable[[Session], Iterator[dict[str, Any]]]) -> Iterator[bytes]:
        """The lines of an answer, computed as they are sent.

        The model is freed at the next line after the page is closed; an answer of one line is completed.
        """
        with self._model:
            try:
                for item in answer(self.session):
                    yield _line(item)
            except ConfigError as error:
                yield _line({"error": str(error)})
            except Exception:  # a bug: the page has a sentence, the terminal its traceback
                traceback.print_exc(file=sys.stderr)
                failed = "minitx or a class of your own failed"
                yield _line({"error": f"{failed}; the terminal of `minitx play` has the traceback"})


def _line(item: dict[str, Any]) -> bytes:
    try:
        return json.dumps(item, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    except ValueError:
        raise ConfigError("this model computes NaN or infinity: there is nothing to show") from None


def _json(item: Any, status: int = 200) -> Response:
    return Response(_line(item), status, mimetype="application/json")


class _Handler(WSGIRequestHandler):
    """Logs nothing: addresses contain the token."""

    timeout = TIMEOUT_SECONDS

    def log(self, type: str, message: str, *args: Any) -> None:
        pass


class _Server(ThreadedWSGIServer):
    """A server that ends its application when it stops, so that no thread computes afterwards."""

    app: Playground

    def serve_forever(self, poll_interval: float = 0.5) -> None:
        threading.Thread(target=self.app.warm_up, daemon=True).start()
        try:
            super().serve_forever(poll_interval)
        finally:
            self.app.end()


def serve(predictor: Predictor, port: int = 0, **source: Any) -> tuple[ThreadedWSGIServer, str]:
    """A server on the loopback, to be run by its serve_forever, and the address of its page.

    Args:
        port: 0 is a free one.
        source: checkpoint and imports, see Session.

    Raises:
        ConfigError: the port is taken, or not allowed.
    """
    app = Playground(Session(predictor, **source))
    try:
        listening = socket.create_server((LOOPBACK, port), backlog=128)
    except (OSError, OverflowError) as error:
        text = getattr(error, "strerror", None) or "a port is 0 to 65535"
        reason = text.partition(" (")[0]  # without the address, which create_server appends
        raise ConfigError(f"--port {port} cannot be used ({reason}): choose another, or 0 for a free one") from None
    with listening:
        server = _Server(LOOPBACK, port, app, _Handler, fd=listening.fileno())
    ports = [":80", ""] if server.port == 80 else [f":{server.port}"]  # browsers omit :80
    app.hosts = {name + port for name in (LOOPBACK, "localhost") for port in ports}
    return server, f"http://{LOOPBACK}:{server.port}/{app.token}/"


def open_browser(address: str) -> None:
    """Open a page in a browser if there is a display: a text browser would take over the terminal."""
    if sys.platform != "linux" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
