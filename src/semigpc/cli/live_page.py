"""Serving the page of a labelled folder, for the verbs that do."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from semigpc.cli.tables import say, say_use, use_commands

if TYPE_CHECKING:
    from semigpc.review.session import Session


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
