"""``semigpc review``: check labels by hand, on a page served by this machine."""

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from semigpc.cli.failures import reported
from semigpc.cli.live_page import say_notes, serve_session
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

    The same page as that of semigpc open, for a folder that semigpc label
    wrote. Every answer is saved in OUT/reviews.jsonl as it is given, and the
    same command continues later. Ctrl-C ends it, and writes the labels as
    they are then to OUT/exports.

    For example:

      semigpc label photos --labels labels.csv --out out
      semigpc review out
      semigpc review out --export
    """
    if not export and not all(importlib.util.find_spec(name) for name in SERVER):
        raise ImportError("The page needs an extra: pip install 'semigpc[review]'.")
    if not export:
        serve_session(folder, images=images, port=port, browser=browser)
        return
    from semigpc.review.session import open_session

    with Console(stderr=True).status("Opening the labels and fitting the model"):
        session = open_session(folder, images=images, read_only=True)
    try:
        say_notes(session)
        _export(session, as_json)
    finally:
        session.close()


def _export(session: "Session", as_json: bool) -> None:
    with Console(stderr=True).status("Scoring all rows"):
        tables = [session.export(name) for name in ("csv", "parquet")]
    files = [str(path) for written in tables for path in written.files]
    if as_json:
        counts = {"rows": tables[0].rows, "labels": tables[0].labels}
        typer.echo(json.dumps({"files": files, **counts}, indent=2))
        return
    for file in files:
        say(f"wrote {file}")
    say(f"{session.summary()}; {tables[0].labels} of {tables[0].rows} rows have a label")
