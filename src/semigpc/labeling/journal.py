"""``reviews.jsonl``: every answer of the reviewer, one JSON line each.

A line is on the disk before the page reports it as saved. It holds a whole action, also one on many
rows, so that after a crash an action is there or it is not. Lines are only ever added; an undo is a
line that names the step it takes back. The answers that hold follow from the lines alone, not from
the model, so that a restart gives the same answers.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, StringConstraints
from pydantic.dataclasses import dataclass

from semigpc.io.atomic import Positive, Share, parse, shown, validated, writing
from semigpc.io.errors import DataError, FileError
from semigpc.io.paths import checked
from semigpc.io.tables import label_text
from semigpc.io.text import printable

NAME = "reviews.jsonl"
RANDOM_ORDER_SEED = 0
START_OVER = "or move the file away to start over"
Action = Literal["accept", "correct", "skip", "none", "rename", "undo"]
Kind = Literal["accepted", "corrected", "skipped", "none"]
WITHOUT_CLASS = ("skip", "none")  # actions that give a row no class
LINE = ConfigDict(extra="forbid")  # an unknown key in a line is an error


@dataclass(frozen=True, slots=True, config=LINE)
class Change:
    """What an action changes for one row.

    Args:
        id: of the row in the data; row numbers are not stored, so the data may be re-sorted.
        before, after: the label that was shown, and the one that holds from now on; None for none.
        status: labelled, pseudo, abstained or outlier, as shown.
        confidence: as shown.
    """

    id: str
    before: str | None
    after: str | None
    status: Annotated[str, StringConstraints(pattern="^(labelled|pseudo|abstained|outlier)$")]
    confidence: Share


@dataclass(frozen=True, slots=True, config=LINE)
class Entry:
    """One line.

    Args:
        step: 1, 2, 3, ...
        time: in UTC, ISO 8601.
        action: what was done: ``accept`` and ``correct`` give a class, ``skip`` is "cannot tell",
            ``none`` is "none of these classes", and ``rename`` gives all labels of a class another
            name. An ``undo`` has the step it takes back in ``undoes``.
        changes: of one row, or of all rows that were answered at once.
    """

    step: Positive
    time: str
    action: Action
    changes: tuple[Change, ...]
    undoes: Positive | None = None

    def line(self) -> str:
        """Return the line of the file."""
        values = asdict(self)
        if self.undoes is None:
            del values["undoes"]
        return json.dumps(values, ensure_ascii=False) + "\n"


def random_order(rows: int) -> NDArray[np.int64]:
    """Return the place (n,) of each row in a random order, the same one every time. O(n).

    The first rows in this order are a random sample of all rows.
    """
    return np.random.default_rng(RANDOM_ORDER_SEED).permutation(rows)


def first_open(order: NDArray[np.int64], is_open: NDArray[np.bool_]) -> int:
    """Return the place in a random ``order`` (n,) of the first open row. O(n).

    All rows before it have a label or an answer, so they are a random sample of all rows.
    """
    return int(order[is_open].min(initial=len(order)))


def now() -> str:
    """Return the time in the form that the lines hold."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class ReviewJournal:
    """The file: read on opening, then appended to by the process that holds the folder's lock.

    A last line that a crash cut off is removed, since it was never reported as saved; ``torn``
    holds what was left of it.

    Args:
        path: of the file; created if it does not exist.
        read_only: leave the file as it is, also while another process appends to it.

    Raises:
        DataError: a line in the middle is not valid.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = checked(path)
        self.torn: str | None = None
        self._file: IO[bytes] | None = None
        if path.exists() and not path.is_file():
            raise DataError(f"{path} is a folder, a pipe or a device, not a file. Move it away.")
        if not read_only:
            with writing(path):
                self._file = path.open("ab", buffering=0)
        try:
            self.entries = self._read()
        except BaseException:
            self.close()
            raise

    def append(self, entry: Entry) -> None:
        """Write a line and flush it to the disk; after an error the file is as it was."""
        assert self._file is not None, "this journal was opened for reading only"
        line = entry.line().encode()
        end = self._file.seek(0, os.SEEK_END)
        try:
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(end)
            raise
        self.entries.append(entry)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _read(self) -> list[Entry]:
        content = self.path.read_bytes() if self.path.exists() else b""
        complete, _, tail = content.rpartition(b"\n")
        lines = complete.split(b"\n") if complete else []
        entries = [
            self._parse(line, number) for number, line in enumerate(lines, 1) if line.strip()
        ]
        if tail:
            entries += self._repair(tail, len(lines) + 1, len(content))
        return entries

    def _repair(self, tail: bytes, number: int, size: int) -> list[Entry]:
        """Return the last line if only its newline is missing; otherwise cut it off."""
        try:
            json.loads(tail)
        except (ValueError, RecursionError):  # a line that was cut off is not JSON
            self.torn = tail.decode(errors="replace")
            if self._file is not None:
                self._file.truncate(size - len(tail))
            return []
        entry = self._parse(tail, number)
        if self._file is not None:
            self._file.write(b"\n")
        return [entry]

    def _parse(self, line: bytes, number: int) -> Entry:
        where = f"Line {number} of {self.path}"
        try:
            return validated(parse(line, where), Entry, where, _check)
        except FileError as error:
            raise DataError(f"{error}. Correct or delete that line, {START_OVER}.") from error


def _check(entry: Entry) -> None:
    try:
        entry.line().encode()
    except UnicodeEncodeError as error:  # half of a character that takes two
        half = printable(error.object[error.start])
        raise ValueError(f"its texts must be UTF-8, which has no {half}") from error
    for number, change in enumerate(entry.changes):
        if change.after is not None and label_text(change.after) is None:
            raise ValueError(
                f"changes[{number}].after must name a class; "
                f"got {change.after!r}, which means no label"
            )
        has_class = entry.action not in WITHOUT_CLASS
        if entry.action != "undo" and has_class != (change.after is not None):
            raise ValueError(
                "changes.after must be a class, or null for the actions skip and none; "
                f"got {shown(change.after)}"
            )
    if (entry.action == "undo") != (entry.undoes is not None):
        raise ValueError("undoes must be the step that is undone, and is allowed for undo only")
    if len({change.id for change in entry.changes}) < len(entry.changes):
        raise ValueError("changes.id must be different for each change")


class Answer(NamedTuple):
    """The answer to a row.

    Args:
        label: the class; None for "cannot tell" and "none of these classes".
        believed: the label that the row had when it was first answered; None if it had none.
        status: its status then.
        foreign: whether it is of none of the classes.
    """

    label: str | None
    believed: str | None
    status: str
    foreign: bool = False

    @property
    def kind(self) -> Kind:
        """Whether the reviewer agreed."""
        if self.label is None:
            return "none" if self.foreign else "skipped"
        return "accepted" if self.label == self.believed else "corrected"


class ReviewStep(NamedTuple):
    """An action that can be undone: its line, and the previous answer to each of its rows."""

    entry: Entry
    previous: tuple[tuple[int, Answer | None], ...]


class History:
    """The answers that hold, by row number, and the steps that can be undone.

    Args:
        rows: row numbers by id, for the lines of the journal.
    """

    def __init__(self, rows: Mapping[str, int]) -> None:
        self.answers: dict[int, Answer] = {}
        self.versions: dict[int, int] = {}  # how often a row has been answered or restored
        self.done: list[ReviewStep] = []  # the last one is undone first
        self.steps = 0
        self._rows = rows

    def row(self, name: str) -> int:
        """Return the number of the row with an id."""
        return self._rows[name]

    def apply(self, entry: Entry) -> list[int]:
        """Apply a line, and return the rows whose answer it changed.

        Raises:
            DataError: it names an unknown id, or undoes a step that is not the last.
        """
        if entry.step <= self.steps:
            raise DataError(
                f"Step {entry.step} of {NAME} comes after step {self.steps}: lines were moved or "
                f"written twice. Restore their order, {START_OVER}."
            )
        rows = self._undo(entry) if entry.action == "undo" else self._answer(entry)
        self.steps = entry.step
        for row in rows:
            self.versions[row] = self.versions.get(row, 0) + 1
        return rows

    def _answer(self, entry: Entry) -> list[int]:
        unknown = [change.id for change in entry.changes if change.id not in self._rows]
        if unknown:
            raise DataError(
                f"Step {entry.step} of {NAME} is about {unknown[0]!r:.80}, which is not among the "
                "labelled data. If other data were labelled into this folder, label them into "
                f"another one, {START_OVER}."
            )
        rows = [self._rows[change.id] for change in entry.changes]
        self.done.append(ReviewStep(entry, tuple((row, self.answers.get(row)) for row in rows)))
        for row, change in zip(rows, entry.changes, strict=True):
            first = self.answers.get(row) or Answer(None, change.before, change.status)
            if entry.action == "rename" and first.believed == change.before:
                first = first._replace(believed=change.after)
            foreign = entry.action == "none"
            self.answers[row] = first._replace(label=change.after, foreign=foreign)
        return rows

    def _undo(self, entry: Entry) -> list[int]:
        if not self.done or self.done[-1].entry.step != entry.undoes:
            raise DataError(
                f"Step {entry.step} of {NAME} undoes step {entry.undoes}, which is not the last: "
                f"lines were removed or moved. Restore them, {START_OVER}."
            )
        step = self.done.pop()
        for row, answer in step.previous:
            if answer is None:
                self.answers.pop(row, None)
            else:
                self.answers[row] = answer
        return [row for row, _ in step.previous]
