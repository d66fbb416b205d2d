"""What humans have said so far: the answers that hold, and the steps that can be undone.

A pure function of the lines of the journal: the model has no say in it, so that a restart gives the same answers whatever
the model has come to believe.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from semigpc.data import DataError
from semigpc.review.journal import NAME, Entry

Kind = Literal["accepted", "corrected", "skipped"]


class Answer(NamedTuple):
    """What a human said about a row.

    Args:
        label: the class; None for "cannot tell".
        believed: the label that the row had when it was first asked about; None if it had none.
        status: its status then.
    """

    label: str | None
    believed: str | None
    status: str

    @property
    def kind(self) -> Kind:
        """Whether the human agreed."""
        if self.label is None:
            return "skipped"
        return "accepted" if self.label == self.believed else "corrected"


class Step(NamedTuple):
    """An action that can be undone: its line, and what held before for each of its rows."""

    entry: Entry
    previous: tuple[tuple[int, Answer | None], ...]


class History:
    """Answers by row number.

    Args:
        rows: row numbers by id, for the lines of the journal.
    """

    def __init__(self, rows: Mapping[str, int]) -> None:
        self.answers: dict[int, Answer] = {}
        self.versions: dict[int, int] = {}  # how often a row has been answered or restored
        self.done: list[Step] = []  # the last one is undone first
        self.steps = 0
        self._rows = rows

    def apply(self, entry: Entry) -> list[int]:
        """Take a line in; answers with the rows whose answer it touched.

        Raises:
            DataError: it names an id that is not among the data, or undoes what is not the last step.
        """
        if entry.step <= self.steps:
            raise DataError(
                f"Step {entry.step} of {NAME} comes after step {self.steps}. Lines must have been moved or written twice: put "
                "them back, or move the file away to start afresh."
            )
        rows = self._undo(entry) if entry.action == "undo" else self._answer(entry)
        self.steps = entry.step
        for row in rows:
            self.versions[row] = self.versions.get(row, 0) + 1
        return rows

    def _answer(self, entry: Entry) -> list[int]:
        rows = [self._row(change.id, entry) for change in entry.changes]
        self.done.append(Step(entry, tuple((row, self.answers.get(row)) for row in rows)))
        for row, change in zip(rows, entry.changes, strict=True):
            first = self.answers.get(row)
            believed, status = (change.before, change.status) if first is None else (first.believed, first.status)
            self.answers[row] = Answer(change.after, believed, status)
        return rows

    def _undo(self, entry: Entry) -> list[int]:
        if not self.done or self.done[-1].entry.step != entry.undoes:
            raise DataError(
                f"Step {entry.step} of {NAME} undoes step {entry.undoes}, which is not the last one that stands. Lines "
                "must have been removed or moved: put them back, or move the file away to start afresh."
            )
        step = self.done.pop()
        for row, answer in step.previous:
            if answer is None:
                self.answers.pop(row, None)
            else:
                self.answers[row] = answer
        return [row for row, _ in step.previous]

    def _row(self, name: str, entry: Entry) -> int:
        row = self._rows.get(name)
        if row is None:
            raise DataError(
                f"Step {entry.step} of {NAME} is about {name!r:.80}, which is not among the data that were labelled. Were "
                "other data labelled into the same folder? Label them into a folder of their own, or move reviews.jsonl away."
            )
        return row
