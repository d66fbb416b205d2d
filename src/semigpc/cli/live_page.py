"""Serving the page of a labelled folder, for the verbs that do."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from semigpc.cli.tables import say, say_use, use_commands
from semigpc.io.errors import InUseError

if TYPE_CHECKING:
    from semigpc.review.session import Session


def say_notes(session: "Session") -> None:
    """Print what is to know about an opened folder."""
    for note in session.project.notes:
        say(f"note: {note}", err=True)
    if session.journal.torn is not None:
        line = "The last line of reviews.jsonl was cut off by a crash; all others are intact."
        say(line, err=True)


@contextmanager
def naming_the_page(folder: Path) -> Iterator[None]:
    """Add the page's address to the error raised when a folder is opened a second time."""
    try:
        yield
    except InUseError as error:
        from semigpc.review.app import page_address

        address = page_address(folder)
        if address is None:
            raise
        raise InUseError(f"{error} Its page is {address}") from error


def serve_session(folder: Path, *, images: Path | None, port: int, browser: bool) -> None:
    """Serve the page of a folder until Ctrl-C, then write its labels and say how to use them."""
    import webbrowser

    from semigpc.review.app import serve
    from semigpc.review.session import open_session

    with naming_the_page(folder):
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
            say(_guaranteed(session))
        if not session.model.is_cold:
            say_use(commands)
    finally:
        session.close()


def _guaranteed(session: "Session") -> str:
    """Say how many labels are guaranteed: at first none is at the precision of those written."""
    grades = session.refresh_progress()["grades"]
    counts = [f"{each['labels']} at {each['precision']:.0%}" for each in grades if each["labels"]]
    if not counts:
        return (
            "beside yours, no label is guaranteed yet; the column guess has a class for every row"
        )
    return f"beside yours, guaranteed right: {', '.join(counts)} (its columns guess and grade)"
