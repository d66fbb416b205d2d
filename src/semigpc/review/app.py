"""The server of the review page: one process on this machine alone, its routes, and the check of
every request.

Rows are identified by number alone, so no request can name a file.
"""

import json
import logging
import os
import secrets
import signal
import socket
import threading
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

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

from semigpc.io.errors import DataError, ImageError
from semigpc.review.queue import Filters, Text
from semigpc.review.session import MOST_VISIBLE, Number, Numbers, Session, StaleError, View
from semigpc.review.thumbnails import SIZES, Thumbnails

HOST = "127.0.0.1"
HOSTS = (HOST, "localhost")
# The same parser on every machine, whatever else is installed there. It is silent: a request that
# is not HTTP gets a response of 400, and the application prints its own errors.
OPTIONS: dict[str, Any] = {
    "http": "h11",
    "ws": "none",
    "lifespan": "off",
    "log_level": "critical",
    "access_log": False,
}
# seconds without an answer from the user, after which rows that are not on the screen are scored
# again
IDLE = 1.5
PAUSE = 0.02  # seconds between two pieces of that work, so that requests are served meanwhile
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
HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
WRONG_TOKEN = (
    "This address does not open the review: its secret part is missing, or belongs to a server that has ended.\n\n"
    "Copy the whole address that `semigpc review` printed, or start it again. Nothing that you reviewed is lost.\n"
)
WRONG_HOST = "This server answers to 127.0.0.1 and localhost alone.\n"


def serve(session: Session, *, port: int = 0, ready: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C or SIGTERM.

    Args:
        session: what is reviewed.
        port: 0 for any free one.
        ready: called with the address, which contains the secret, when the server listens.

    Raises:
        DataError: the port is taken.
    """
    logging.getLogger("asyncio").setLevel(
        logging.CRITICAL
    )  # it reports what uvicorn raises on malformed requests
    token = secrets.token_urlsafe(24)
    try:
        listener = socket.create_server((HOST, port), backlog=128)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise DataError(
            f"Port {port} of {HOST} cannot be used: {reason}. Give another --port, or leave it out to have a free one chosen."
        ) from error
    config = uvicorn.Config(make_app(session, token), **OPTIONS, timeout_graceful_shutdown=2)
    worker = Background(session)
    before = signal.signal(
        signal.SIGTERM, signal.default_int_handler
    )  # the server stops for either signal, and then raises it again
    try:
        worker.start()
        ready(f"http://{HOST}:{listener.getsockname()[1]}/{token}/")
        uvicorn.Server(config).run(sockets=[listener])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
        worker.stop()
        listener.close()


class Background(threading.Thread):
    """Scores rows that are not on the screen again, a few at a time, once no answer has come for a
    moment.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(name="review-background", daemon=True)
        self.session = session
        self._stopped = threading.Event()

    def run(self) -> None:
        """Work until stopped."""
        steps, more = -1, True
        while not self._stopped.wait(
            PAUSE if more and steps == self.session.history.steps else IDLE
        ):
            if steps != self.session.history.steps:
                steps, more = (
                    self.session.history.steps,
                    True,
                )  # wait a moment longer for the next answer
            elif more:
                more = self.session.catch_up()

    def stop(self) -> None:
        """Stop, and wait until the current piece of work is done."""
        self._stopped.set()
        self.join()


class Cards(View, Filters):
    """Which cards to show next, without the rows ``seen`` already."""

    seen: Annotated[list[Number], Field(default_factory=list, max_length=MOST_SEEN), FailFast()]
    count: Number = 60


class Accept(View):
    """Rows whose labels are right: each once, with its version and with the label that was shown."""

    rows: Numbers
    versions: Numbers
    labels: Annotated[list[Text], Field(max_length=MOST_VISIBLE), FailFast()]


class Skip(View):
    """A row whose class cannot be told."""

    row: Number
    version: Number


class Correct(Skip):
    """A row that has another label."""

    label: Text


class Undo(View):
    """The step that is believed to be the last."""

    step: Number


def make_app(session: Session, token: str) -> ASGIApp:
    """Return the whole application, behind its guard."""
    questions: dict[str, tuple[type[View], Callable[[Any], dict[str, Any]]]] = {
        "cards": (Cards, lambda q: session.page(q, seen=q.seen, count=min(q.count, MOST_CARDS))),
        "accept": (Accept, lambda q: _accept(session, q)),
        "correct": (Correct, lambda q: session.correct(q.row, q.label, version=q.version, view=q)),
        "skip": (Skip, lambda q: session.skip(q.row, version=q.version, view=q)),
        "undo": (Undo, lambda q: session.undo(q.step, view=q)),
        "refresh": (View, lambda q: session.refresh(q)),
        "export": (View, lambda _: session.export()),
    }
    thumbnails = Thumbnails(session.project)
    files = {
        path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in MEDIA_TYPES
    }

    async def static(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            raise HTTPException(404, "There is no such file.")
        return Response(files[name], media_type=MEDIA_TYPES[Path(name).suffix])

    async def about(_: Request) -> Response:
        project = session.project
        images, folder = project.images is not None, project.folder.resolve().name
        return _json(
            {"folder": folder, "images": images, "rows": len(session), "id_name": project.id_name}
        )

    async def thumbnail(request: Request) -> Response:
        row, size = (_number(request.path_params[name]) for name in ("row", "size"))
        if not 0 <= row < len(session) or size not in SIZES:
            raise HTTPException(404, "There is no such image.")
        try:
            content = await run_in_threadpool(thumbnails.get, row, size)
        except ImageError as error:
            raise HTTPException(415, str(error)) from error
        return Response(
            content, media_type="image/jpeg", headers={"cache-control": "private, max-age=600"}
        )

    routes = [
        Route("/", static),
        Route("/static/{name}", static),
        Route("/api/about", about),
        *(
            Route(f"/api/{name}", _endpoint(session, *question), methods=["POST"])
            for name, question in questions.items()
        ),
        Route("/images/{size}/{row}", thumbnail),
    ]
    return Guard(Starlette(routes=routes, exception_handlers=HANDLERS), token)


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)


async def _report(_: Request, error: Exception) -> Response:
    traceback.print_exception(error)
    message = f"Unexpected error: {type(error).__name__}: {error}. What was saved is kept; start semigpc review again."
    return _json({"error": message}, 500)


async def _give_up(_: Request, error: Exception) -> Response:  # noqa: ARG001
    return Response(status_code=400)  # the client is gone


HANDLERS = {HTTPException: _refuse, ClientDisconnect: _give_up, Exception: _report}


def _json(content: dict[str, Any], status: int = 200) -> Response:
    """Return a response in ASCII, since file names that are not UTF-8 have no other form."""
    return Response(json.dumps(content, allow_nan=False), status, media_type="application/json")


def _number(text: str) -> int:
    """Return a number in a path; -1 for other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else -1


def _endpoint(
    session: Session, form: type[View], respond: Callable[[Any], dict[str, Any]]
) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint for requests of one form; errors become responses with a message."""

    async def endpoint(request: Request) -> Response:
        question = await _read(request, form)
        try:
            return _json(await run_in_threadpool(respond, question))
        except StaleError as error:
            fresh = await run_in_threadpool(
                session.refresh, question.model_copy(update={"since": -1, "visible": error.rows})
            )
            return _json(fresh | {"error": str(error)}, 409)
        except DataError as error:
            return _json({"error": str(error)}, 400)
        except OSError as error:
            reason = str(error.strerror or error).rstrip(".")
            return _json(
                {
                    "error": f"This could not be saved: {reason}. Nothing has changed; correct that and try again."
                },
                507,
            )

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
        raise HTTPException(
            400, f"{where}: {first['msg'].removeprefix('Value error, ')}."
        ) from error


def _accept(session: Session, question: Accept) -> dict[str, Any]:
    rows, versions, labels = question.rows, question.versions, question.labels
    if not len(rows) == len(versions) == len(labels) or len(set(rows)) < len(rows):
        raise DataError("Each row comes once, with its version and with the label that was shown.")
    return session.accept(rows, labels=labels, versions=versions, view=question)


class Guard:
    """Pass a request on if it names this machine as its host and its path begins with the token,
    which is removed.

    The host is checked because a page from elsewhere could have its own name point here. As the
    token is part of the path, it is part of every relative address that the page loads.

    Args:
        app: the application behind it.
        token: the secret.
    """

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app, self.token = app, token

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
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            with suppress(
                LocalProtocolError
            ):  # the rest of the request was not HTTP, so the server has closed meanwhile
                await send(message)

        token, slash, rest = scope["path"].removeprefix("/").partition("/")
        if _host_name(Headers(scope=scope).get("host", "")) not in HOSTS:
            app: ASGIApp = PlainTextResponse(WRONG_HOST, 403)
        elif not secrets.compare_digest(token.encode(), self.token.encode()):
            app = PlainTextResponse(WRONG_TOKEN, 403)
        else:
            app = self.app if slash else RedirectResponse(f"/{self.token}/")
        await app(
            {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()},
            receive,
            send_with_headers,
        )


def _host_name(host: str) -> str | None:
    """Return the host without its port; None if it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:  # a bracket that is not closed, for example
        return None
