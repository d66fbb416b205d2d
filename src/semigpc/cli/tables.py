"""How verbs print: streams, lines, tables, and text from outside.

Names of classes, files and columns may contain anything. They reach the terminal only through
:func:`say` or :func:`verbatim`.

No verb fails because its text cannot be shown. A character that a stream cannot encode is printed
as a question mark, and on standard error, where the exact name of a file matters, as an escape
code. When the reader of a pipe is gone, as after ``| head -1``, the rest is dropped and the verb
continues, so that no work is lost and the exit code is the verb's own. ``--json`` is ASCII.
"""

import io
import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich import box
from rich.table import Table
from rich.text import Text

from semigpc.io.text import printable
from semigpc.report.wording import mean_and_spread, points

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

HEADS = {"linear": "linear", "gp": "GP", "label": "label"}
NUMBER = ">"  # before the heading of a column of numbers


def make_tolerant() -> None:
    """Replace the standard streams by ones on which printing does not fail."""
    sys.stdout = _tolerant(sys.stdout, "replace")
    sys.stderr = _tolerant(sys.stderr, "backslashreplace")


def _tolerant(stream: TextIO | None, errors: str) -> TextIO:
    if stream is None:  # closed by the caller, as by >&-
        return Path(os.devnull).open("w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):  # replaced by a program that calls main()
        return stream
    stream.reconfigure(errors=errors)
    if stream.isatty():  # no pipe
        return stream
    output = io.BufferedWriter(_Output(stream.fileno(), "wb", closefd=False))
    return io.TextIOWrapper(output, stream.encoding, errors, line_buffering=True)


class _Output(io.FileIO):
    """A file descriptor that drops what is written after the reader of its pipe has gone.

    Any other failure, such as a full disk, is raised once, and not again when Python exits.
    """

    failed = False

    def write(self, content: "ReadableBuffer", /) -> int:
        if not self.failed:
            try:
                return super().write(content)
            except OSError as error:
                self.failed = True
                if not isinstance(error, BrokenPipeError):
                    raise
        return memoryview(content).nbytes


def say(line: str, *, err: bool = False) -> None:
    """Print one line; characters that could control the terminal are shown as escape codes."""
    print(printable(line), file=sys.stderr if err else sys.stdout, flush=True)


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


def verbatim(text: object) -> Text:
    """Return text from outside for a Rich console or table, without markup or emoji codes."""
    return Text(printable(text))


def table(title: str | Text, *headings: str, caption: str | None = None, padding: int = 1) -> Table:
    """Return an empty table in the style of all verbs.

    Args:
        title: our own words, or text from outside by :func:`verbatim`; "" for none.
        headings: one per column. After ``>`` the column holds numbers: flush right, and never
            broken into lines.
        caption: below the table. padding: characters on both sides of a column.
    """
    made = Table(
        title=Text(title) if isinstance(title, str) and title else title or None,
        caption=caption,
        title_style="bold",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE,
        padding=(0, padding),
    )
    for heading in headings:
        if heading.startswith(NUMBER):
            made.add_column(verbatim(heading.removeprefix(NUMBER)), justify="right", no_wrap=True)
        else:
            made.add_column(verbatim(heading), overflow="fold")
    return made


def share(mean: float | None, std: float | None = None, *, seeds: int = 1) -> str:
    """Format a share in percent without the sign, with its deviation if there are several seeds."""
    return " ".join(mean_and_spread(mean, std, seeds)).rstrip()


def accuracy_table(
    rows: Iterable[tuple[str, Mapping[str, Any]]], caption: str | None = None
) -> Table:
    """Return one row for each named evaluation: its step, images and head, and accuracy in percent.

    The sentence on what commands use of the run, :func:`used_sentence`, belongs below it.
    """
    from semigpc.training.metrics import CLASS_GROUPS  # imports torch

    numbers = [f">{name}" for name in ("balanced", "top-1", *CLASS_GROUPS)]
    made = table(
        "Accuracy in percent",
        *("", ">step", "images", "head", *numbers),
        caption=caption,
        padding=0,  # so that it fits 80 characters
    )
    for name, entry in rows:
        groups = [entry["groups"].get(group) for group in CLASS_GROUPS]
        figures = [share(value) for value in (entry["balanced_accuracy"], entry["top1"], *groups)]
        head = HEADS[entry["head"]]
        made.add_row(name, str(entry["step"]), verbatim(entry["part"]), head, *figures)
    return made


def comparison_table(comparison: Mapping[str, Any]) -> Table:
    """Return one row per cell: balanced accuracy with its spread, and the class groups."""
    from semigpc.training.metrics import CLASS_GROUPS  # imports torch

    seeds = len(comparison["seeds"])
    cells = comparison["cells"]
    part = cells[0]["runs"][0]["result"]["part"]  # validation, where there are no test images
    spread = ", mean and standard deviation" if seeds > 1 else ""
    title = verbatim(comparison["title"]).append(f"\n{part} accuracy in percent{spread}")
    made = table(title, "", *(f">{name}" for name in ("balanced", *CLASS_GROUPS, "ECE")))
    best = max(cell["mean"]["balanced_accuracy"] for cell in cells)
    for cell in cells:
        names = ("balanced_accuracy", *CLASS_GROUPS, "ece")
        spreads = cell["std"] or {}
        values = [share(cell["mean"][name], spreads.get(name), seeds=seeds) for name in names]
        if cell["mean"]["balanced_accuracy"] == best:
            values[0] = f"[bold]{values[0]}[/bold]"
        made.add_row(verbatim(cell["label"]), *values)
    return made


def pairs_table(comparison: Mapping[str, Any]) -> Table:
    """Return what each refiner adds to its base, seed by seed."""
    title = "What the refiner adds, in points of balanced accuracy"
    return _differences(title, comparison["pairs"])


def untrained_table(comparison: Mapping[str, Any]) -> Table:
    """Return each row that nothing was trained for minus training on the labels, by seed."""
    title = "Without training, minus labels only, in points of balanced accuracy"
    return _differences(title, comparison["untrained_pairs"])


def _differences(title: str, pairs: Iterable[Mapping[str, Any]]) -> Table:
    headings = (">mean", ">std", ">seeds better", ">worse")
    made = table(title, "", *headings)
    for pair in pairs:
        difference = points(pair["mean_difference"])
        counts = (str(pair["wins"]), str(pair["losses"]))
        made.add_row(verbatim(pair["name"]), difference, share(pair["std"]), *counts)
    return made
