"""The routes of the page. Rows are named by number alone, so no request can name a file."""

import json
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from semigpc.data import DataError
from semigpc.data.images import ImageError
from semigpc.review.guard import Guard
from semigpc.review.session import MOST_VISIBLE, Session, StaleError, View
from semigpc.review.thumbnails import SIZES, Thumbnails
from semigpc.review.waiting import Filters, Sort, Status

STATIC = Path(__file__).parent / "static"
MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
MOST_BYTES = 2**20  # of a request
MOST_TEXT = 4096  # characters of a label or a filter, as long as the longest path
MOST_CARDS = 200  # in an answer
MOST_SEEN = 100_000
MOST_DIGITS = 18  # of a number in a path: less than 2**63

Number = Annotated[int, Field(ge=0, lt=2**63)]  # what a column of whole numbers can hold
Text = Annotated[str, Field(max_length=MOST_TEXT)]
Numbers = Annotated[list[Number], Field(max_length=MOST_VISIBLE), FailFast()]


class Question(BaseModel):
    """What any question of the page may say: what it shows. Nothing is converted: "1" and true are no numbers."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)
    visible: Numbers = []
    since: Number = 0
    choices: Numbers = []

    @property
    def view(self) -> View:
        """As the session takes it."""
        return View(self.visible, self.since, self.choices)


class Cards(Question):
    """Which cards to show next."""

    status: Status = "unreviewed"
    label: Text | None = None
    least: float = 0.0
    most: float = 1.0
    text: Text = ""
    sort: Sort = "need"
    seen: Annotated[list[Number], Field(max_length=MOST_SEEN), FailFast()] = []
    count: Number = 60

    @property
    def filters(self) -> Filters:
        """As the session takes them."""
        return Filters(status=self.status, label=self.label, least=self.least, most=self.most, text=self.text, sort=self.sort)


class Accept(Question):
    """Rows whose labels are right: each once, with its version and with the label that was shown."""

    rows: Numbers
    versions: Numbers
    labels: Annotated[list[Text], Field(max_length=MOST_VISIBLE), FailFast()]


class Skip(Question):
    """A row that nobody can tell."""

    row: Number
    version: Number


class Correct(Skip):
    """A row that has another label."""

    label: Text


class Undo(Question):
    """The step that is thought to be the last."""

    step: Number


class Ask(NamedTuple):
    """What a question looks like, and who answers it."""

    form: type[Question]
    answer: Callable[[Any], dict[str, Any]]


def make_app(session: Session, token: str) -> ASGIApp:
    """The whole application, behind its guard."""
    questions = {
        "cards": Ask(Cards, lambda q: session.page(q.filters, seen=q.seen, count=min(q.count, MOST_CARDS))),
        "accept": Ask(Accept, lambda q: _accept(session, q)),
        "correct": Ask(Correct, lambda q: session.correct(q.row, q.label, version=q.version, view=q.view)),
        "skip": Ask(Skip, lambda q: session.skip(q.row, version=q.version, view=q.view)),
        "undo": Ask(Undo, lambda q: session.undo(q.step, view=q.view)),
        "refresh": Ask(Question, lambda q: session.refresh(q.view)),
        "export": Ask(Question, lambda _: session.export()),
    }
    thumbnails = Thumbnails(session.project)
    files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in MEDIA_TYPES}

    async def static(request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        if name not in files:
            raise HTTPException(404, "There is no such file.")
        return Response(files[name], media_type=MEDIA_TYPES[Path(name).suffix])

    async def about(_: Request) -> Response:
        project = session.project
        told = {"folder": project.folder.resolve().name, "images": project.images is not None, "rows": len(session)}
        return _json(told | {"id_name": project.id_name})

    async def thumbnail(request: Request) -> Response:
        row, size = (_number(request.path_params[name]) for name in ("row", "size"))
        if not 0 <= row < len(session) or size not in SIZES:
            raise HTTPException(404, "There is no such image.")
        try:
            content = await run_in_threadpool(thumbnails.get, row, size)
        except ImageError as error:
            raise HTTPException(415, str(error)) from error
        return Response(content, media_type="image/jpeg", headers={"cache-control": "private, max-age=600"})

    routes = [
        Route("/", static),
        Route("/static/{name}", static),
        Route("/api/about", about),
        *(Route(f"/api/{name}", _endpoint(session, ask), methods=["POST"]) for name, ask in questions.items()),
        Route("/images/{size}/{row}", thumbnail),
    ]
    return Guard(Starlette(routes=routes, exception_handlers=HANDLERS), token)


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code)


async def _report(_: Request, error: Exception) -> Response:
    traceback.print_exception(error)
    told = f"This was not foreseen: {type(error).__name__}: {error}. What was saved is kept; start semigpc review again."
    return _json({"error": told}, 500)


async def _give_up(_: Request, error: Exception) -> Response:  # noqa: ARG001
    return Response(status_code=400)  # which nobody is there to read


HANDLERS = {HTTPException: _refuse, ClientDisconnect: _give_up, Exception: _report}


def _json(content: dict[str, Any], status: int = 200) -> Response:
    """In ASCII, since names of files that are not UTF-8 have no other form."""
    return Response(json.dumps(content, allow_nan=False), status, media_type="application/json")


def _number(text: str) -> int:
    """Of a path; -1 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else -1


def _endpoint(session: Session, ask: Ask) -> Callable[[Request], Awaitable[Response]]:
    """Read the question, put it, and say what stood in its way."""

    async def answer(request: Request) -> Response:
        question = await _read(request, ask.form)
        try:
            return _json(await run_in_threadpool(ask.answer, question))
        except StaleError as error:
            fresh = await run_in_threadpool(session.refresh, question.view._replace(since=-1, visible=error.rows))
            return _json(fresh | {"error": str(error)}, 409)
        except DataError as error:
            return _json({"error": str(error)}, 400)
        except OSError as error:
            reason = str(error.strerror or error).rstrip(".")
            told = f"This could not be saved: {reason}. Nothing has changed; try again when that is mended."
            return _json({"error": told}, 507)

    return answer


async def _read(request: Request, form: type[Question]) -> Question:
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
        raise HTTPException(400, f"{where}: {first['msg']}.") from error


def _accept(session: Session, question: Accept) -> dict[str, Any]:
    rows, versions, labels = question.rows, question.versions, question.labels
    if not len(rows) == len(versions) == len(labels) or len(set(rows)) < len(rows):
        raise DataError("Each row comes once, with its version and with the label that was shown.")
    return session.accept(rows, labels=labels, versions=versions, view=question.view)
