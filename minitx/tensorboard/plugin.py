"""The server side of the Attention tab in TensorBoard: an index of maps, and their bytes. No torch here.

    GET /index                             {"runs": {run: {tag: [steps, ascending]}}, "order": [run], the newest first,
                                           "began": {run: time of its first maps}}; a new time is that of a new run
    GET /header?run=&tag=&step=            the header of one event, checked
    GET /map?run=&tag=&step=&item=         one of its maps, from 0: layers first, then extras; gzipped
    GET /static/FILE                       the page

Errors are {"error": sentence}; event files are untrusted.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tensorboard.backend import http_util
from tensorboard.data.provider import BlobReference, BlobSequenceDatum, BlobSequenceTimeSeries, RunTagFilter
from tensorboard.errors import NotFoundError
from tensorboard.plugin_util import context, experiment_id
from tensorboard.plugins.base_plugin import FrontendMetadata, TBContext, TBPlugin
from tensorboard.util import tb_logging
from werkzeug.wrappers import Request, Response

from minitx.config.errors import ConfigError
from minitx.tensorboard import NAME, STATIC, TYPES, page_files
from minitx.tensorboard.map_format import MAX_MAP_BYTES, MAX_MAPS, read_header, sizes, unpacked_pieces

ALL = 2**31 - 1
"""Steps to request: as many as TensorBoard keeps."""
MAX_ITEMS = MAX_MAPS + 1
"""Maximum number of items of one event, header and maps: TensorBoard makes a key for each that an event declares."""
MAX_CACHED_SERIES = 16
"""Time series whose blob keys are cached between requests."""
MAX_CHECKED_BYTES = MAX_MAP_BYTES + 2**26
"""Memory for headers and packed maps that have been checked: for the largest map, its header, and others."""
PARSED_BYTES = 16
"""Maximum memory of a parsed header for each byte of its JSON."""
ENTRY_BYTES = 2**10
"""Memory of a cache entry, besides its content."""

Route = Callable[[Request], Response]
Series = dict[int, tuple[BlobReference, ...]]  # by step
Shape = tuple[int, int, int]


class AttentionPlugin(TBPlugin):
    """Serves attention maps from event files."""

    plugin_name = NAME

    def __init__(self, context: TBContext) -> None:
        self._data = context.data_provider
        # By experiment, run, tag and state of the series: its steps, and the time of the first maps.
        self._steps: dict[tuple[Any, ...], tuple[list[int], float]] = {}
        self._series: dict[tuple[str, str, str], Series] = {}  # by experiment, run and tag; the latest read is last
        # By content: memory in bytes, and a valid header, a valid map or an error; the most recently used is last.
        self._kept = OrderedDict[tuple[bytes, Shape | None], tuple[int, Any]]()
        self._kept_bytes = 0
        # Untrusted items are read and checked by one thread: memory does not grow with the number of requests.
        self._reader = ThreadPoolExecutor(max_workers=1)

    def is_active(self) -> bool:
        """Whether the tab is active without data; with data, TensorBoard activates it."""
        return False

    def frontend_metadata(self) -> FrontendMetadata:
        """The tab."""
        return FrontendMetadata(es_module_path="/static/index.js", tab_name="Attention", disable_reload=True)

    def get_plugin_apps(self) -> dict[str, Callable[..., Any]]:
        """The routes."""
        routes = {"/index": self._index, "/header": self._header, "/map": self._map, "/static/*": _static}
        return {path: _served(route) for path, route in routes.items()}

    def _index(self, request: Request) -> Response:
        """Runs, tags and steps. The page polls: only a series that has changed is read again."""
        experiment = experiment_id(request.environ)
        fresh, began = {}, dict[str, float]()

        def steps(run: str, tag: str, about: BlobSequenceTimeSeries) -> list[int]:
            key = (experiment, run, tag, about.max_step, about.max_wall_time, about.max_length)
            found = self._steps.get(key, ([about.max_step], about.max_wall_time))
            if key not in self._steps and about.max_length <= MAX_ITEMS:
                data = self._read(request, run, tag)
                first = min((datum.wall_time for datum in data), default=about.max_wall_time)
                found = sorted({datum.step for datum in data}), first
            fresh[key] = found
            began[run] = min(found[1], began.get(run, found[1]))
            return found[0]

        found = self._ask_series(request, "list_blob_sequences")
        newest = {run: max((about.max_wall_time for about in tags.values()), default=0) for run, tags in found.items()}
        runs = {
            run: {
                tag: steps(run, tag, found[run][tag])  # of kind/example_N: by kind, then by number
                for tag in sorted(found[run], key=lambda tag: (tag.partition("/")[0], len(tag), tag))
            }
            for run in sorted(found, key=lambda run: (-newest[run], run))
        }
        self._steps = fresh
        return http_util.Respond(request, {"runs": runs, "order": [*runs], "began": began}, "application/json")

    def _header(self, request: Request) -> Response:
        return http_util.Respond(request, self._reader.submit(self._item, request, 0).result(), "application/json")

    def _map(self, request: Request) -> Response:
        """A map in its stored bytes, after a check that they unpack to the size in the header."""
        packed = self._reader.submit(self._packed, request, _number(request, "item")).result()
        return http_util.Respond(request, packed, "application/octet-stream", content_encoding="gzip")

    def _packed(self, request: Request, number: int) -> Any:
        shapes = sizes(self._item(request, 0))
        if not 0 <= number < len(shapes):
            raise ConfigError(f"item must be from 0 to below {len(shapes)}, the number of maps, got {number}")
        return self._item(request, number + 1, shapes[number])

    def _item(self, request: Request, number: int, shape: Shape | None = None) -> Any:
        """A header, or a map that unpacks to a shape. Equal bytes are checked and stored once for all requests."""
        blob = self._blob(request, number)
        key = (hashlib.sha256(blob).digest(), shape)
        if key not in self._kept:
            self._kept[key] = _checked(blob, shape)
            self._kept_bytes += self._kept[key][0]
        self._kept.move_to_end(key)
        outcome = self._kept[key][1]
        while self._kept_bytes > MAX_CHECKED_BYTES:
            self._kept_bytes -= self._kept.popitem(last=False)[1][0]
        if isinstance(outcome, str):
            raise ConfigError(outcome)
        return outcome

    def _blob(self, request: Request, number: int) -> bytes:
        """A byte string of the event that the request names; ConfigError if there is none."""
        run, tag, step = _text(request, "run"), _text(request, "tag"), _number(request, "step")
        place = f"attention map {tag[:80]!r} of run {run[:80]!r} at step {step}"
        key = (experiment_id(request.environ), run, tag)
        references = self._series.get(key, {}).get(step, ())
        if len(references) <= number:  # newer than the cache, or nonexistent
            about = self._ask_series(request, "list_blob_sequences", run, tag).get(run, {}).get(tag)
            if about is not None and about.max_length > MAX_ITEMS:
                raise ConfigError(f"there are {about.max_length} items in {place}, at most {MAX_ITEMS} can be shown")
            series = {datum.step: datum.values for datum in self._read(request, run, tag)}
            self._series.pop(key, None)
            self._series = dict([*self._series.items(), (key, series)][-MAX_CACHED_SERIES:])
            if step not in series:
                raise ConfigError(f"there is no {place}")
            references = series[step]
        if len(references) <= number:
            raise ConfigError(f"there are {len(references)} items in {place}: number {number} is missing")
        blob = self._ask(request, "read_blob", blob_key=references[number].blob_key)
        if not isinstance(blob, bytes):
            raise ConfigError(f"there are no bytes in {place}")
        return blob

    def _read(self, request: Request, run: str, tag: str) -> list[BlobSequenceDatum]:
        """Every step of one series, with the references of its blobs."""
        read = self._ask_series(request, "read_blob_sequences", run, tag, downsample=ALL)
        return list(read.get(run, {}).get(tag, []))

    def _ask_series(self, request: Request, method: str, *place: str, **options: Any) -> dict[str, Any]:
        """Descriptions or steps of the series, by run and tag; `place`, a run and a tag, selects one series."""
        wanted = RunTagFilter(*([name] for name in place))
        options |= {"experiment_id": experiment_id(request.environ), "plugin_name": NAME, "run_tag_filter": wanted}
        return dict(self._ask(request, method, **options))

    def _ask(self, request: Request, method: str, **arguments: Any) -> Any:
        """Call the data provider. Its errors, gRPC's, numpy's and TensorBoard's own, become ConfigErrors."""
        try:
            return getattr(self._data, method)(context(request.environ), **arguments)
        except Exception as error:
            tb_logging.get_logger().info("minitx: the data provider failed", exc_info=True)
            message = "no such event" if isinstance(error, NotFoundError) else type(error).__name__
            raise ConfigError(f"TensorBoard could not read these attention maps ({message})") from None


def _checked(blob: bytes, shape: Shape | None) -> tuple[int, Any]:
    """A valid header or map, or the message of an error, after the memory that it takes."""
    try:
        if shape is None:
            return ENTRY_BYTES + PARSED_BYTES * len(blob), read_header(blob)
        for _ in unpacked_pieces(blob, shape):
            pass
        return ENTRY_BYTES + len(blob), blob
    except ConfigError as error:
        return ENTRY_BYTES, str(error)


def _served(route: Route) -> Callable[..., Any]:
    """Answer bad input, from the URL or from an event file, with a sentence."""

    def answer(request: Request) -> Response:
        try:
            return route(request)
        except (ValueError, RecursionError) as error:  # RecursionError: deeply nested JSON
            return http_util.Respond(request, {"error": str(error)}, "application/json", code=404)

    return Request.application(answer)


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
    """A file of the page."""
    name = request.path.rpartition("/static/")[2]
    if (file := page_files(STATIC).get(name)) is None:
        raise ConfigError(f"there is no file {name[:80]!r} in the Attention tab")
    return http_util.Respond(request, file.read_bytes(), TYPES[file.suffix])
