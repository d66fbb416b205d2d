"""Serving the page of a labelled folder, for the verbs that do."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from semigpc.cli.tables import say

if TYPE_CHECKING:
    from semigpc.review.session import Session


def use_commands(folder: Path, *, of_images: bool) -> dict[str, str]:
    """Return the commands that use a labelled folder as a model."""
    name = shlex.quote(str(folder))
    new = "NEW_PHOTOS" if of_images else "NEW_TABLE"
    return {
        "predict": f"semigpc predict {name} {new} --out new.csv",
        "export": f"semigpc export {name} --out model.onnx",
    }


def say_use(commands: Mapping[str, str]) -> None:
    """Print the commands that use a labelled folder, each on a line of its own."""
    say("use it:")
    for command in commands.values():
        say(f"  {command}")


def say_notes(session: "Session") -> None:
    """Print what is to know about an opened folder."""
    for note in session.project.notes:
        say(f"note: {note}", err=True)
    if session.journal.torn is not None:
        line = "The last line of reviews.jsonl was cut off by a crash; all others are intact."
        say(line, err=True)


def serve_session(folder: Path, *, images: Path | None, port: int, browser: bool) -> None:
    """Serve the page of a folder until Ctrl-C, then write its labels and say how to use them."""
    import webbrowser

    from semigpc.review.app import serve
    from semigpc.review.session import open_session

    session = open_session(folder, images=images, fit=False)
    commands = use_commands(folder, of_images=session.project.images is not None)
    try:
        say_notes(session)

        def ready(address: str) -> None:
            if session.replayed:
                count = len(session.history.answers)
                say(f"continuing with {count} answered rows in {session.journal.path}")
            say(f"open {address}")
            say("Ctrl-C ends it; every answer is saved as you go.")
            if browser:
                webbrowser.open(address)

        serve(session, port=port, commands=commands, ready=ready)
        say(f"{session.summary()}; saved in {session.journal.path}")
        if session.history.answers:
            with Console(stderr=True).status("Writing the labels"):
                written = session.export()
            say(f"wrote {written.files[0]}: {written.labels} labels for {written.rows} rows")
        if not session.model.is_cold:
            say_use(commands)
    finally:
        session.close()
