"""The Attention tab's half within TensorBoard: which maps there are, and their bytes. No torch here.

    GET /index                             {"runs": {run: {tag: [steps, ascending]}}}
    GET /header?run=&tag=&step=            the header of one event, checked
    GET /map?run=&tag=&step=&item=         one of its maps, from 0: layers first, then extras; gzipped
    GET /static/FILE                       the page

What cannot be given is told as {"error": sentence}: event files may come from anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tensorboard.backend import http_util
from tensorboard.data.provider import BlobReference, BlobSequenceTimeSeries, RunTagFilter
from tensorboard.errors import NotFoundError
from tensorboard.plugin_util import context, experiment_id
from tensorboard.plugins.base_plugin import FrontendMetadata, TBContext, TBPlugin
from tensorboard.util import tb_logging
from werkzeug.wrappers import Request, Response

from minitx.config.errors import ConfigError
from minitx.tensorboard import NAME
from minitx.tensorboard.map_format import read_header, sizes, unpacked

STATIC = Path(__file__).parent / "static"
TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".png": "image/png"}
"""What the page is made of. Not the system's table of types, which on some calls a module plain text."""
ALL = 2**31 - 1
"""More steps than there are: we never ask for fewer than TensorBoard keeps."""
MOST_ITEMS = 4096
"""Of one event. TensorBoard takes the number that a foreign event claims, however large, and makes a key for each."""
REMEMBERED = 16
"""Time series whose steps and blob keys are kept between two requests."""

Answer = TypeVar("Answer")
Key = tuple[str, str, str]  # experiment, run, tag
Series = dict[int, tuple[BlobReference, ...]]  # by step


class AttentionPlugin(TBPlugin):
    """Serves attention maps from event files.

    Args:
        context: TensorBoard's, with the data provider.
    """

    plugin_name = NAME

    def __init__(self, context: TBContext) -> None:
        self._data = context.data_provider
        self._series: dict[Key, Series] = {}
        self._steps: dict[Key, tuple[Any, list[int]]] = {}

    def is_active(self) -> bool:
        """Whether there is something to show without data; where there is data, TensorBoard knows by itself."""
        return False

    def frontend_metadata(self) -> FrontendMetadata:
        """The tab."""
        return FrontendMetadata(es_module_path="/static/index.js", tab_name="Attention", disable_reload=True)

    def get_plugin_apps(self) -> dict[str, Callable[..., Any]]:
        """Routes."""
        return {
            "/index": _served(self._index),
            "/header": _served(self._header),
            "/map": _served(self._map),
            "/static/*": _served(_static),
        }

    def _index(self, request: Request) -> Response:
        """Runs, tags and steps. A series is read again only if it has changed: this is asked every few seconds."""
        experiment = experiment_id(request.environ)
        listed = self._listed(request, None)
        fresh: dict[Key, tuple[Any, list[int]]] = {}
        for run, tags in listed.items():
            for tag, about in tags.items():
                key, state = (experiment, run, tag), (about.max_step, about.max_wall_time, about.max_length)
                known = self._steps.get(key)
                if known is None or known[0] != state:
                    known = state, sorted(self._read(request, run, tag) if _bounded(about) else [about.max_step])
                fresh[key] = known
        self._steps = fresh
        runs = {run: {tag: fresh[experiment, run, tag][1] for tag in sorted(tags)} for run, tags in listed.items()}
        return _json(request, {"runs": dict(sorted(runs.items()))})

    def _header(self, request: Request) -> Response:
        return _json(request, read_header(self._blobs(request, [0])[0]))

    def _map(self, request: Request) -> Response:
        """A map as it stands in the event file, once it is known to unpack to what the header says."""
        number = _number(request, "item")
        if number < 0:
            raise ConfigError(f"item must be 0 or more, got {number}")
        first, packed = self._blobs(request, [0, number + 1])
        shapes = sizes(read_header(first))
        if number >= len(shapes):
            raise ConfigError(f"item must be below {len(shapes)}, the number of maps, got {number}")
        unpacked(packed, shapes[number], number)
        return http_util.Respond(request, packed, "application/octet-stream", content_encoding="gzip")

    def _blobs(self, request: Request, numbers: list[int]) -> list[bytes]:
        """Some of the byte strings of the event that the address names.

        Raises:
            ConfigError: no such event, or not so many in it.
        """
        run, tag, step = _text(request, "run"), _text(request, "tag"), _number(request, "step")
        place = f"attention map {tag[:80]!r} of run {run[:80]!r} at step {step}"
        key = (experiment_id(request.environ), run, tag)
        references = self._series.get(key, {}).get(step, ())
        if len(references) <= max(numbers):  # new since, or it does not exist
            about = self._listed(request, RunTagFilter(runs=[run], tags=[tag])).get(run, {}).get(tag)
            if about is not None and not _bounded(about):
                raise ConfigError(f"there are {about.max_length} items in {place}, at most {MOST_ITEMS} can be shown")
            series = self._read(request, run, tag)
            others = [(other, kept) for other, kept in list(self._series.items()) if other != key]
            self._series = dict([*others, (key, series)][-REMEMBERED:])
            if step not in series:
                raise ConfigError(f"there is no {place}")
            references = series[step]
        if len(references) <= max(numbers):
            raise ConfigError(f"there are {len(references)} items in {place}: number {max(numbers)} is missing")
        blobs = [self._blob(request, references[number].blob_key) for number in numbers]
        if not all(isinstance(blob, bytes) for blob in blobs):
            raise ConfigError(f"there are no bytes in {place}")
        return blobs

    def _listed(self, request: Request, wanted: RunTagFilter | None) -> dict[str, dict[str, BlobSequenceTimeSeries]]:
        """What there is, by run and tag, without its steps."""
        about = {"experiment_id": experiment_id(request.environ), "plugin_name": NAME, "run_tag_filter": wanted}
        return _asked(lambda: self._data.list_blob_sequences(context(request.environ), **about))

    def _blob(self, request: Request, key: str) -> bytes:
        blob: bytes = _asked(lambda: self._data.read_blob(context(request.environ), blob_key=key))
        return blob

    def _read(self, request: Request, run: str, tag: str) -> Series:
        """Every step of one series, with the references of its blobs."""
        read = _asked(
            lambda: self._data.read_blob_sequences(
                context(request.environ),
                experiment_id=experiment_id(request.environ),
                plugin_name=NAME,
                downsample=ALL,
                run_tag_filter=RunTagFilter(runs=[run], tags=[tag]),
            )
        )
        return {datum.step: datum.values for datum in read.get(run, {}).get(tag, [])}


def _bounded(about: BlobSequenceTimeSeries) -> bool:
    return bool(about.max_length <= MOST_ITEMS)


def _asked(question: Callable[[], Answer]) -> Answer:
    """What the data provider answers.

    Raises:
        ConfigError: whatever went wrong. There is no common base: errors are gRPC's, numpy's and TensorBoard's own.
    """
    try:
        return question()
    except Exception as error:
        tb_logging.get_logger().info("minitx: the data provider failed", exc_info=True)
        told = "no such event" if isinstance(error, NotFoundError) else type(error).__name__
        raise ConfigError(f"TensorBoard could not read these attention maps ({told})") from None


def _served(route: Callable[[Request], Response]) -> Callable[..., Any]:
    """A route that answers bad input, from the address or from an event file, with a sentence."""

    def answer(request: Request) -> Response:
        try:
            return route(request)
        except (ValueError, RecursionError) as error:  # JSON may be nested deeper than Python likes
            return http_util.Respond(request, {"error": str(error)}, "application/json", code=404)

    return Request.application(answer)


def _json(request: Request, content: dict[str, Any]) -> Response:
    return http_util.Respond(request, content, "application/json")


def _text(request: Request, name: str) -> str:
    if name not in request.args:
        raise ConfigError(f"the parameter {name} is missing")
    return str(request.args[name])


def _number(request: Request, name: str) -> int:
    text = _text(request, name)
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{name} must be a whole number, got {text[:80]!r}") from None


def _static(request: Request) -> Response:
    """A file of the page, and of nothing else: its name is looked up in a list, never opened as a path."""
    name = request.path.rpartition("/static/")[2]
    files = {file.name: file for file in STATIC.glob("*") if file.is_file() and file.suffix in TYPES}
    if name not in files:
        raise ConfigError(f"there is no file {name[:80]!r} in the Attention tab")
    return http_util.Respond(request, files[name].read_bytes(), TYPES[files[name].suffix])
