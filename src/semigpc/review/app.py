"""The routes of the page. Rows are named by number alone, so no request can name a file."""

import json
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from semigpc.data import DataError
from semigpc.data.pictures import PictureError
from semigpc.review.guard import Guard
from semigpc.review.session import MOST_VISIBLE, Session, StaleError, View
from semigpc.review.thumbnails import SIZES, Thumbnails
from semigpc.review.waiting import Filters

STATIC = Path(__file__).parent / "static"
MOST_BYTES = 2**20  # of a request
MOST_CARDS = 200  # in an answer
MOST_SEEN = 100_000

Body = dict[str, Any]
Ask = Callable[[Body], Body]


def make_app(session: Session, token: str) -> ASGIApp:
    """The whole application, behind its guard."""
    questions: dict[str, Ask] = {
        "cards": lambda body: _cards(session, body),
        "accept": lambda body: _accept(session, body),
        "correct": lambda body: session.correct(
            _row(body, "row"), _text(body, "label"), version=_row(body, "version"), view=_view(body)
        ),
        "skip": lambda body: session.skip(_row(body, "row"), version=_row(body, "version"), view=_view(body)),
        "undo": lambda body: session.undo(_row(body, "step"), view=_view(body)),
        "refresh": lambda body: session.refresh(_view(body)),
        "export": lambda body: session.export(),  # noqa: ARG005
    }
    thumbnails = Thumbnails(session.project)

    async def page(_: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-store"})

    async def about(_: Request) -> Response:
        project = session.project
        told = {"folder": project.folder.resolve().name, "pictures": project.images is not None, "rows": len(session)}
        return JSONResponse(told | {"id_name": project.id_name})

    async def thumbnail(request: Request) -> Response:
        row, size = request.path_params["row"], request.path_params["size"]
        if row >= len(session) or size not in SIZES:
            raise HTTPException(404, "There is no such picture.")
        try:
            content = await run_in_threadpool(thumbnails.get, row, size)
        except PictureError as error:
            raise HTTPException(415, str(error)) from error
        return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=600"})

    routes = [
        Route("/", page),
        Route("/api/about", about),
        *(Route(f"/api/{name}", _endpoint(session, ask), methods=["POST"]) for name, ask in questions.items()),
        Route("/pictures/{size:int}/{row:int}", thumbnail),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Guard(Starlette(routes=routes, exception_handlers={HTTPException: _refuse}), token)


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def _endpoint(session: Session, ask: Ask) -> Callable[[Request], Awaitable[Response]]:
    """Read the question, put it, and say what stood in its way."""

    async def answer(request: Request) -> Response:
        body = await _read(request)
        try:
            return JSONResponse(await run_in_threadpool(ask, body))
        except StaleError as error:
            view = _view(body)._replace(since=-1, visible=error.rows)
            fresh = await run_in_threadpool(session.refresh, view)
            return JSONResponse(fresh | {"error": str(error)}, 409)
        except DataError as error:
            return JSONResponse({"error": str(error)}, 400)
        except OSError as error:
            told = f"This could not be saved: {error.strerror or error}. Nothing has changed; try again when that is mended."
            return JSONResponse({"error": told}, 507)
        except Exception as error:
            traceback.print_exc()
            told = (
                f"This was not foreseen: {type(error).__name__}: {error}. What was saved is kept; start semigpc review again."
            )
            return JSONResponse({"error": told}, 500)

    return answer


async def _read(request: Request) -> Body:
    content = b""
    async for chunk in request.stream():
        content += chunk
        if len(content) > MOST_BYTES:
            raise HTTPException(413, "This request is too long.")
    try:
        body = json.loads(content or b"{}")
    except ValueError as error:
        raise HTTPException(400, f"This request is no JSON: {error}.") from error
    if not isinstance(body, dict):
        raise HTTPException(400, "A request is a JSON object.")
    return body


def _cards(session: Session, body: Body) -> Body:
    known = {key: body[key] for key in ("status", "label", "text", "sort") if body.get(key) is not None}
    if not all(isinstance(value, str) for value in known.values()):
        raise DataError("Filters are text.")
    bounds = {key: body.get(key, default) for key, default in (("least", 0.0), ("most", 1.0))}
    if not all(isinstance(bound, int | float) for bound in bounds.values()):
        raise DataError("Confidences are numbers.")
    filters = Filters(**known, **bounds)
    count = min(_row(body, "count"), MOST_CARDS) if "count" in body else 60
    return session.page(filters, seen=_rows(body, "seen", MOST_SEEN), count=count)


def _accept(session: Session, body: Body) -> Body:
    rows, versions = _rows(body, "rows", MOST_VISIBLE), _rows(body, "versions", MOST_VISIBLE)
    labels = body.get("labels", [])
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise DataError("labels is a list of names of classes.")
    if not len(rows) == len(versions) == len(labels) or len(set(rows)) < len(rows):
        raise DataError("Each row comes once, with its version and with the label that was shown.")
    return session.accept(rows, labels=labels, versions=versions, view=_view(body))


def _view(body: Body) -> View:
    since = body.get("since", 0)
    visible, choices = _rows(body, "visible", MOST_VISIBLE), _rows(body, "choices", MOST_VISIBLE)
    return View(visible, since if isinstance(since, int) else 0, choices)


def _row(body: Body, key: str) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise DataError(f"{key} is a number of at least 0; got {value!r}.")
    return value


def _rows(body: Body, key: str, most: int) -> list[int]:
    value = body.get(key, [])
    if not isinstance(value, list) or len(value) > most or not all(type(row) is int and row >= 0 for row in value):
        raise DataError(f"{key} is a list of at most {most} row numbers.")
    return value


def _text(body: Body, key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str):
        raise DataError(f"{key} is text; got {value!r}.")
    return value
