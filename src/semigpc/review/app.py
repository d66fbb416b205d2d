"""The server of the review page: its routes, its images, and the check of every request.

It is one process that serves this machine only. Rows are identified by number alone, so no request
can name a file.
"""

import json
import logging
import os
import secrets
import signal
import socket
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypedDict

import uvicorn
from h11 import LocalProtocolError
from pydantic import FailFast, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semigpc.io.atomic import writing
from semigpc.io.errors import DataError, ImageError, SettingsError
from semigpc.io.images import thumbnail as make_thumbnail
from semigpc.labeling.formats import FORMATS
from semigpc.labeling.project import Project
from semigpc.review.queue import Filters, Text
from semigpc.review.session import (
    MOST_VISIBLE,
    Mode,
    Number,
    Numbers,
    Reply,
    Session,
    StaleError,
    View,
)

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost", "[::1]")  # all by which a browser of this machine may know it
HTTP_PORT = 80  # which browsers leave out
IDLE_SECONDS = 4.0  # without an answer, before a new model is fitted for few new labels
POLL_SECONDS = 0.1  # while there is nothing to do in the background
PAUSE_SECONDS = 0.01  # between two pieces of work there, so that requests are served meanwhile
SHUTDOWN_SECONDS = 2
ADDRESS = "page.json"  # port and secret, so that an open page finds the server when it is back
TOKEN_CHARACTERS = 32
STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
MOST_BYTES = 2**20  # of a request
MOST_CARDS = 200  # in a response
MOST_SEEN = 100_000  # rows that a page has shown already
MOST_DIGITS = 18  # of a number in a path: less than 2**63
THUMBNAIL_SIZES = (96, 384, 1600)  # pixels: beside a card, on it, and enlarged
DECODERS = 2  # images decoded at the same time, as a large one takes 700 MB
THUMBNAIL_CACHE_BYTES = 128 * 2**20
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
WRONG_TOKEN = (
    "This address does not open the review: its secret part is missing, or belongs to a server "
    "that has ended.\n\nCopy the whole address that `semigpc review` printed, or start it again. "
    "Nothing that you reviewed is lost.\n"
)
WRONG_HOST = (
    "This server is only for its own page, at 127.0.0.1:{port} or localhost:{port}. A tunnel must "
    "have the same port at both ends.\n"
)

# Serving ------------------------------------------------------------------------------------------


class PageAddress(TypedDict):
    """Where a page was last served: the port, and the secret part of the address."""

    port: int
    token: str


def _earlier_address(path: Path) -> PageAddress | None:
    """Return the address that is stored, if nobody else can have read or written it."""
    try:
        facts = path.stat()
        own = not hasattr(os, "getuid") or facts.st_uid == os.getuid()
        if not own or facts.st_mode & 0o077:
            return None
        stored = json.loads(path.read_text())
        port = stored["port"]
        token = stored["token"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_sound = isinstance(port, int) and 0 < port < 2**16 and isinstance(token, str)
    is_sound = is_sound and len(token) == TOKEN_CHARACTERS and token.isascii()
    return {"port": port, "token": token} if is_sound else None


def page_address(folder: Path) -> str | None:
    """Return the address at which the page of a folder is served now, if it is."""
    stored = _earlier_address(folder / ADDRESS)
    if stored is None:
        return None
    try:
        socket.create_connection((HOST, stored["port"]), timeout=1).close()
    except OSError:
        return None
    return _address(stored)


def _address(page: PageAddress) -> str:
    return f"http://{HOST}:{page['port']}/{page['token']}/"


def _server_config(app: ASGIApp) -> uvicorn.Config:
    """Return a server with the same parser on every machine, whatever else is installed there.

    It is silent: a request that is not HTTP gets a response of 400, and the application prints its
    own errors.
    """
    return uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="critical",
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )


def _keep_address(path: Path, address: PageAddress) -> None:
    """Write where the page is served, for nobody else to read. A damaged file is not used."""
    with writing(path):
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(json.dumps(address))


def _listen(port: int, earlier: PageAddress | None) -> socket.socket:
    """Return a socket that listens at a port; 0 is the earlier one if it is free, or any."""
    if port == 0 and earlier is not None:
        with suppress(OSError):
            return socket.create_server((HOST, earlier["port"]), backlog=128)
    try:
        return socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise DataError(
            f"port={port} of {HOST} cannot be used: {reason}. Choose another, or port=0 for any."
        ) from error


def serve(
    session: Session,
    *,
    port: int = 0,
    commands: Mapping[str, str] | None = None,
    ready: Callable[[str], None],
) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    The address is that of the last time where possible, so that a page which is still open goes on.

    Args:
        session: what is reviewed.
        port: 0 for that of the last time, or any free one.
        commands: lines for a terminal that the page shows, by what they are for.
        ready: called with the address, which contains the secret, when the server listens.

    Raises:
        DataError: the port is taken.
    """
    # asyncio logs what uvicorn raises on malformed requests.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    path = session.project.folder / ADDRESS
    earlier = _earlier_address(path)
    token = earlier["token"] if earlier else secrets.token_urlsafe(TOKEN_CHARACTERS * 3 // 4)
    listener = _listen(port, earlier)
    own_port = listener.getsockname()[1]
    own: PageAddress = {"port": own_port, "token": token}
    _keep_address(path, own)
    app = make_app(session, token, own_port, commands)
    config = _server_config(app)
    worker = Background(session)
    # The server stops for either signal, and then raises it again.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        worker.start()
        ready(_address(own))
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        worker.stop()
        listener.close()


class Background:
    """Brings everything up to date after answers, piece by piece; new models have a thread of their
    own, so that counts need not wait for one.
    """

    def __init__(self, session: Session) -> None:
        self._threads = [
            _Worker("review-background", session, lambda _: session.keep_current()),
            _Worker("review-fit", session, lambda idle: session.refit(idle=idle)),
        ]

    def start(self) -> None:
        """Begin to work."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop, and wait until the current pieces of work are done."""
        for thread in self._threads:
            thread.stopped.set()
        for thread in self._threads:
            thread.join()


class _Worker(threading.Thread):
    """Calls ``work``, with whether no answer comes at present, again and again until stopped."""

    def __init__(self, name: str, session: Session, work: Callable[[bool], bool]) -> None:
        super().__init__(name=name, daemon=True)
        self.session = session
        self.work = work
        self.stopped = threading.Event()

    def run(self) -> None:
        """Work until stopped."""
        steps = self.session.history.steps
        last = time.monotonic() - IDLE_SECONDS
        pause = PAUSE_SECONDS
        failed = False
        while not self.stopped.wait(pause):
            if steps != self.session.history.steps:
                steps = self.session.history.steps
                last = time.monotonic()
                failed = False
            idle = time.monotonic() - last >= IDLE_SECONDS
            try:
                more = not failed and self.work(idle)
            except Exception as error:  # answers are saved all the same; the next one tries again
                traceback.print_exception(error)
                failed = True
                more = False
            pause = PAUSE_SECONDS if more else POLL_SECONDS


# Requests -----------------------------------------------------------------------------------------


class Cards(View, Filters):
    """Which cards to show next, without the rows ``seen`` already."""

    seen: Annotated[list[Number], Field(default_factory=list, max_length=MOST_SEEN), FailFast()]
    count: Number = 60


class Next(View):
    """Which rows to ask next, without the rows ``seen`` already."""

    mode: Mode = "work"
    seen: Annotated[list[Number], Field(default_factory=list, max_length=MOST_SEEN), FailFast()]
    count: Number = 8


class Accept(View):
    """Rows whose labels are right: each once, with its version and the label that was shown."""

    rows: Numbers
    versions: Numbers
    labels: Annotated[list[Text], Field(max_length=MOST_VISIBLE), FailFast()]


class Skip(View):
    """A row whose class the reviewer cannot tell."""

    row: Number
    version: Number


class Correct(Skip):
    """A row that has another label."""

    label: Text


class Assign(View):
    """Rows that have another label: each once, with its version."""

    rows: Numbers
    versions: Numbers
    label: Text


class Rename(View):
    """A class and its new name; ``merge`` if that is the name of another class."""

    name: Text
    to: Text
    merge: bool = False


class Export(View):
    """The format to write."""

    format: Text


class Undo(View):
    """The last step that the page knows."""

    step: Number


class About(TypedDict):
    """What the page shows before any card."""

    folder: str
    images: bool
    rows: int
    id_name: str
    formats: "list[FormatRecord]"
    commands: dict[str, str]


class ExportedFiles(TypedDict):
    """What an export wrote: its files, rows, and those of them that have a label."""

    files: list[str]
    rows: int
    labels: int
    notes: list[str]


class FormatRecord(TypedDict):
    """A format in which labels can be exported, and the file or folder that it writes."""

    name: str
    title: str
    needs_images: bool
    ends: str


Respond = Callable[[Any], Reply | ExportedFiles]


def make_app(
    session: Session, token: str, port: int, commands: Mapping[str, str] | None = None
) -> ASGIApp:
    """Return the whole application, behind its guard; ``port`` is the one that it is served on."""
    thumbnails = Thumbnails(session.project)
    paths = [path for path in STATIC.iterdir() if path.suffix in MEDIA_TYPES]
    files = {path.name: path.read_bytes() for path in paths}

    async def static(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            raise HTTPException(404, "There is no such file.")
        return Response(files[name], media_type=MEDIA_TYPES[Path(name).suffix])

    async def about(_: Request) -> Response:
        return _json(_about(session, commands or {}))

    async def thumbnail(request: Request) -> Response:
        row = _number(request.path_params["row"])
        size = _number(request.path_params["size"])
        if not 0 <= row < len(session) or size not in THUMBNAIL_SIZES:
            raise HTTPException(404, "There is no such image.")
        try:
            content = await run_in_threadpool(thumbnails.get, row, size)
        except ImageError as error:
            raise HTTPException(415, str(error)) from error
        cached = {"cache-control": "private, max-age=600"}
        return Response(content, media_type="image/jpeg", headers=cached)

    routes = [
        Route("/", static),
        Route("/static/{name}", static),
        Route("/api/about", about),
        Route("/images/{size}/{row}", thumbnail),
    ]
    for name, (form, respond) in _questions(session).items():
        routes.append(Route(f"/api/{name}", _endpoint(session, form, respond), methods=["POST"]))
    return Guard(Starlette(routes=routes, exception_handlers=HANDLERS), token, port)


def _about(session: Session, commands: Mapping[str, str]) -> About:
    project = session.project
    return {
        "folder": project.folder.resolve().name,
        "images": project.images is not None,
        "rows": len(session),
        "id_name": project.id_name,
        "formats": [
            {
                "name": each.name,
                "title": each.title,
                "needs_images": each.needs_images,
                "ends": each.file,
            }
            for each in FORMATS.values()
        ],
        "commands": dict(commands),
    }


def _questions(session: Session) -> dict[str, tuple[type[View], Respond]]:
    """Return, for each question of the page, the form of its request and what responds to it."""

    def accept(q: Accept) -> Reply:
        _check_once(q.rows, q.versions, q.labels)
        return session.accept(q.rows, labels=q.labels, versions=q.versions, view=q)

    def assign(q: Assign) -> Reply:
        _check_once(q.rows, q.versions)
        return session.assign(q.rows, q.label, versions=q.versions, view=q)

    def cards(q: Cards) -> Reply:
        return session.page(q, seen=q.seen, count=min(q.count, MOST_CARDS))

    def following(q: Next) -> Reply:
        return session.next(q.mode, seen=q.seen, count=min(q.count, MOST_CARDS))

    def correct(q: Correct) -> Reply:
        return session.correct(q.row, q.label, version=q.version, view=q)

    def rename(q: Rename) -> Reply:
        return session.rename(q.name, q.to, merge=q.merge, view=q)

    return {
        "cards": (Cards, cards),
        "next": (Next, following),
        "accept": (Accept, accept),
        "assign": (Assign, assign),
        "correct": (Correct, correct),
        "skip": (Skip, lambda q: session.skip(q.row, version=q.version, view=q)),
        "none": (Skip, lambda q: session.reject(q.row, version=q.version, view=q)),
        "rename": (Rename, rename),
        "undo": (Undo, lambda q: session.undo(q.step, view=q)),
        "refresh": (View, session.refresh),
        "export": (Export, lambda q: _export(session, q.format)),
    }


def _check_once(rows: Sequence[int], *columns: Sequence[object]) -> None:
    """Raise a DataError unless rows are given once, with one entry of each column for each."""
    if len(set(rows)) < len(rows) or any(len(column) != len(rows) for column in columns):
        raise DataError("Each row must be given once, with its version and the label shown.")


def _export(session: Session, name: str) -> ExportedFiles:
    written = session.export(name)
    return {
        "files": [str(path) for path in written.files],
        "rows": written.rows,
        "labels": written.labels,
        "notes": list(written.notes),
    }


def _endpoint(
    session: Session, form: type[View], respond: Respond
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint for requests of one form; errors become responses with a message."""

    async def endpoint(request: Request) -> Response:
        question = await _read(request, form)
        try:
            return _json(await run_in_threadpool(respond, question))
        except StaleError as error:
            view = question.model_copy(update={"since": -1, "visible": error.rows})
            current = await run_in_threadpool(session.refresh, view)
            return _json({**current, "error": str(error)}, 409)
        except (DataError, SettingsError) as error:
            return _json({"error": str(error)}, 400)
        except OSError as error:
            reason = str(error.strerror or error).rstrip(".")
            message = f"The answer was not saved: {reason}. Nothing has changed; try again."
            return _json({"error": message}, 507)

    return endpoint


async def _read(request: Request, form: type[View]) -> View:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BYTES:
            raise HTTPException(413, f"A request has at most {MOST_BYTES} bytes.")
    try:
        return form.model_validate_json(bytes(content) or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "This request"
        message = first["msg"].removeprefix("Value error, ")
        raise HTTPException(400, f"{where}: {message}.") from error


def _json(content: Mapping[str, object], status: int = 200) -> Response:
    """Return a response in ASCII, since file names that are not UTF-8 have no other form."""
    return Response(json.dumps(content, allow_nan=False), status, media_type="application/json")


def _number(text: str) -> int:
    """Return a number in a path; -1 for other text."""
    is_number = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
    return int(text) if is_number else -1


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)


async def _report(_: Request, error: Exception) -> Response:
    traceback.print_exception(error)
    message = (
        f"Unexpected error: {type(error).__name__}: {error}. What was saved is kept; start semigpc "
        "review again."
    )
    return _json({"error": message}, 500)


async def _give_up(_: Request, error: Exception) -> Response:  # noqa: ARG001
    return Response(status_code=400)  # the client is gone


HANDLERS = {HTTPException: _refuse, ClientDisconnect: _give_up, Exception: _report}


class Guard:
    """Pass a request on if it names this server as its host, comes from no other page, and its path
    begins with the token.

    The host is checked because a page from elsewhere could have its own name point here. It is
    compared as text and never parsed, so that nothing can be read in two ways. The token
    is removed from the path; it is part of every relative address that the page loads.

    Args:
        app: the application behind it.
        token: the secret.
        port: of the server.
    """

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self.app = app
        self.token = token
        self.port = port
        self.hosts = {f"{name}:{port}" for name in HOSTS}
        if port == HTTP_PORT:
            self.hosts.update(HOSTS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "websocket":  # there are none here
            await send({"type": "websocket.close"})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                headers.setdefault("cache-control", "no-store")
            # If the rest of the request was not HTTP, the server has closed the connection.
            with suppress(LocalProtocolError):
                await send(message)

        token, slash, rest = scope["path"].removeprefix("/").partition("/")
        if not self._is_own(Headers(scope=scope)):
            app: ASGIApp = PlainTextResponse(WRONG_HOST.format(port=self.port), 403)
        elif not secrets.compare_digest(token.encode(), self.token.encode()):
            app = PlainTextResponse(WRONG_TOKEN, 403)
        else:
            app = self.app if slash else RedirectResponse(f"/{self.token}/")
        behind = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}
        await app(behind, receive, send_with_headers)

    def _is_own(self, headers: Headers) -> bool:
        """Return whether a request names this server, and no other page as its origin."""
        host = headers.get("host", "").lower()
        origins = {origin.lower() for origin in headers.getlist("origin")}
        return host in self.hosts and origins <= {f"http://{host}"}


# Images -------------------------------------------------------------------------------------------


class Thumbnails:
    """Small JPEG versions of the images, made on request; the latest are kept in memory.

    Args:
        project: of the images.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self._cache: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._free_bytes = THUMBNAIL_CACHE_BYTES
        self._lock = threading.Lock()
        self._decoders = threading.Semaphore(DECODERS)

    def get(self, row: int, size: int) -> bytes:
        """Return the image of a row as JPEG, upright and no larger than ``size`` pixels.

        Raises:
            ImageError: there is none, it cannot be read, it is too large to decode, or it lies
                outside of the folder.
        """
        with self._lock:
            if (row, size) in self._cache:
                self._cache.move_to_end((row, size))
                return self._cache[row, size]
        path = self.project.image(row)  # never outside of the folder of images, also not by a link
        if path is None:
            raise ImageError("There is no image of this row in the folder of images.")
        content = self._make(path, size)
        with self._lock:
            if (row, size) not in self._cache:
                self._cache[row, size] = content
                self._free_bytes -= len(content)
            while self._free_bytes < 0:
                _, oldest = self._cache.popitem(last=False)
                self._free_bytes += len(oldest)
        return content

    def _make(self, path: Path, size: int) -> bytes:
        with self._decoders:
            try:
                return make_thumbnail(path, size)
            except ImageError as error:  # shortened for a card, which does not show the folder
                if error.__cause__ is None:
                    raise ImageError(str(error).replace(str(path), path.name)) from error
                missing = isinstance(error.__cause__, FileNotFoundError)
                reason = "is no longer there" if missing else "cannot be read"
                raise ImageError(f"This image {reason}.") from error
