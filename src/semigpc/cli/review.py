"""``semigpc review``: check labels by hand, on a page served by this machine."""

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from semigpc.cli.failures import reported
from semigpc.cli.options import AsJson, LabelledFolder
from semigpc.cli.tables import say

if TYPE_CHECKING:
    from semigpc.review.session import Session

SERVER = ("starlette", "uvicorn")


@reported("review")
def review(
    folder: LabelledFolder,
    images: Annotated[
        Path | None,
        typer.Option(
            "--images",
            metavar="FOLDER",
            help="Folder of the images, if they have been moved.",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of 127.0.0.1; 0 for a free one.")
    ] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser.")
    ] = True,
    export: Annotated[
        bool,
        typer.Option(
            "--export", help="Write the reviewed tables and exit; also while a page is open."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check labels by hand, on a page that learns from every answer.

    Opens a local page in the browser, with the rows that most need a check
    first. Accept, correct or skip them with the keyboard (? shows the keys);
    the model is updated at once. Every answer is saved in OUT/reviews.jsonl
    as it is given, and the same command continues later. Ctrl-C ends it.

    For example:

      semigpc label photos --labels labels.csv --out out
      semigpc review out
      semigpc review out --export
      semigpc label photos --labels out/reviewed_labels.csv --out again
    """
    if not export and not all(importlib.util.find_spec(name) for name in SERVER):
        raise ImportError("The page needs an extra: pip install 'semigpc[review]'.")
    from semigpc.review.session import open_session

    with Console(stderr=True).status("Opening the labels and fitting the model"):
        session = open_session(folder, images=images, read_only=export)
    for note in session.project.notes:
        say(f"note: {note}", err=True)
    try:
        if session.journal.torn is not None:
            line = "The last line of reviews.jsonl was cut off by a crash; all others are intact."
            say(line, err=True)
        if export:
            _export(session, as_json)
        else:
            _serve(session, port, browser)
    finally:
        session.close()


def _export(session: "Session", as_json: bool) -> None:
    with Console(stderr=True).status("Scoring all rows"):
        written = session.export()
    if as_json:
        typer.echo(json.dumps(written, indent=2))
        return
    for file in written["files"]:
        say(f"wrote {file}")
    labels = f"{written['labels']} of {written['rows']} rows are labelled by a human"
    say(f"{session.summary()}; {labels}")


def _serve(session: "Session", port: int, browser: bool) -> None:
    import webbrowser

    from semigpc.review.app import serve

    def ready(address: str) -> None:
        if session.replayed:
            say(f"continuing after {session.replayed} answers in {session.journal.path}")
        say(f"review at {address}")
        say("Ctrl-C ends it; every answer is saved as you go.")
        if browser:
            webbrowser.open(address)

    serve(session, port=port, ready=ready)
    say(f"{session.summary()}; saved in {session.journal.path}")
