"""A review: rows, what the model predicts for them, and the reviewer's answers. It does not depend
on the web page.

Every answer is appended to ``reviews.jsonl`` first and then added to the model; opening the same
folder again replays the file.
"""

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow
import pyarrow.compute as pc
from pyarrow import csv, parquet
from pydantic import BaseModel, ConfigDict, FailFast, Field

from semigpc.estimator import STATUSES
from semigpc.io.atomic import locked, replacing
from semigpc.io.errors import DataError
from semigpc.io.text import spreadsheet_cell
from semigpc.labeling.project import Project
from semigpc.review.journal import NAME, Action, Answer, Change, Entry, History, ReviewJournal, now
from semigpc.review.model import Beliefs, Reasons, checked_name
from semigpc.review.queue import KINDS, Filters, Waiting, progress

MOST_VISIBLE = 1000  # rows on a page
MOST_CHOICES = 32  # rows whose classes are ranked at once
CHOICES = 9  # classes per row, one for each digit key
# pieces of work, of a tenth of a second each, before a review that is opened again is shown
OPENING = 100
VALUES = 32  # of an embedding, for a row without an image
Number = Annotated[int, Field(ge=0, lt=2**63)]  # what a column of whole numbers can hold
Numbers = Annotated[list[Number], Field(max_length=MOST_VISIBLE), FailFast()]
TABLES = ("reviewed.parquet", "reviewed.csv")
LABELS = "reviewed_labels.csv"


class StaleError(Exception):
    """The answer is about something that has changed since it was shown; ``rows`` are those to show
    again.
    """

    def __init__(self, message: str, rows: Sequence[int]) -> None:
        super().__init__(message)
        self.rows = list(rows)


class View(BaseModel):
    """What a page shows: rows on the screen, the tick of the clock up to which it is current, rows
    whose classes to rank.

    It is part of every request. Nothing is converted: "1" and true are not numbers.
    """

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)
    visible: Numbers = []
    since: Number = 0
    choices: Numbers = []


NOTHING = View()


class Session:
    """One review of one labelled folder, safe to call from several threads.

    Args:
        project: what ``semigpc label`` wrote.
        read_only: show and export, but take no answers.

    Raises:
        DataError: ``reviews.jsonl`` does not fit the data. InUseError: another process reviews or
            labels there.
    """

    def __init__(self, project: Project, *, read_only: bool = False) -> None:
        self.project = project
        self._lock = threading.RLock()
        with ExitStack() as closing:
            if not read_only:
                closing.enter_context(locked(project.folder))
            self.journal = ReviewJournal(project.folder / NAME, read_only=read_only)
            closing.callback(self.journal.close)
            self.history = History({name: row for row, name in enumerate(project.ids)})
            for entry in self.journal.entries:
                self.history.apply(entry)
            self.beliefs = Beliefs(project, project.model())
            self.kinds = np.zeros(len(self.beliefs), np.uint8)
            self.waiting = Waiting(self.beliefs, self.kinds)
            self._judged = self.beliefs.generation
            self._update(list(self.history.answers), NOTHING)
            for _ in range(OPENING):
                if not self.catch_up():
                    break
            self._closing = closing.pop_all()
        self.replayed = len(self.journal.entries)

    def __len__(self) -> int:
        return len(self.project.ids)

    def close(self) -> None:
        """Let another process review this folder."""
        self._closing.close()

    def accept(
        self,
        rows: Sequence[int],
        *,
        labels: Sequence[str] | None = None,
        versions: Sequence[int] | None = None,
        view: View = NOTHING,
    ) -> dict[str, Any]:
        """Accept the labels of rows; ``labels`` are those that were shown, if they may have changed
        since.
        """
        with self._lock:
            self._check(rows, versions)
            accepted = (
                [self._predicted(row) for row in rows]
                if labels is None
                else [self._named(label) for label in labels]
            )
            return self._answer("accept", dict(zip(rows, accepted, strict=True)), view)

    def correct(
        self, row: int, label: str, *, version: int | None = None, view: View = NOTHING
    ) -> dict[str, Any]:
        """Give a row another label, which may be a new class."""
        with self._lock:
            self._check([row], None if version is None else [version])
            return self._answer("correct", {row: self._named(label)}, view)

    def skip(self, row: int, *, version: int | None = None, view: View = NOTHING) -> dict[str, Any]:
        """Answer "cannot tell": the row is not shown for review again, and the model learns nothing
        from it.
        """
        with self._lock:
            self._check([row], None if version is None else [version])
            return self._answer("skip", {row: None}, view)

    def undo(self, step: int | None = None, *, view: View = NOTHING) -> dict[str, Any]:
        """Undo the last step; ``step`` is the one that the page believes to be the last."""
        with self._lock:
            last = self.history.done[-1] if self.history.done else None
            if last is None or (step is not None and last.entry.step != step):
                raise StaleError(
                    "There is nothing to undo."
                    if last is None
                    else "Something else was done since.",
                    (),
                )
            changes = [
                self._change(row, None if answer is None else answer.label)
                for row, answer in last.previous
            ]
            return self._record("undo", changes, view, undoes=last.entry.step)

    def page(
        self, filters: Filters, *, seen: Sequence[int] = (), count: int = 60
    ) -> dict[str, Any]:
        """Return the next ``count`` cards that the filters show, without the rows already ``seen``."""
        with self._lock:
            matching = None
            if filters.text:
                column = self.project.table[self.project.id_name].cast("string")
                matching = pc.match_substring(column, filters.text, ignore_case=True).to_numpy(
                    zero_copy_only=False
                )
            rows = self.waiting.rows(filters, matching)
            rest = rows[~np.isin(rows, np.array(seen, np.int64))] if len(seen) else rows
            shown = rest[:count]
            self.beliefs.score(shown)
            self.waiting.weigh(shown)
            cards = [self.card(int(row)) for row in shown]
            return self._status() | {
                "cards": cards,
                "found": len(rows),
                "left": len(rest) - len(cards),
            }

    def refresh(self, view: View) -> dict[str, Any]:
        """Return what has changed in a view since the tick that it names."""
        with self._lock:
            visible = np.array(
                sorted({row for row in view.visible if 0 <= row < len(self)}), np.int64
            )[:MOST_VISIBLE]
            self.beliefs.score(visible, variance=not self.beliefs.many_labels)
            moved = visible[self.beliefs.moved[visible] > view.since]
            self.waiting.weigh(moved)
            answer = self._status() | {"cards": [self.card(int(row)) for row in moved]}
            return answer | ({"choices": self.choices(view.choices)} if view.choices else {})

    def choices(self, rows: Sequence[int]) -> dict[int, list[tuple[str, float]]]:
        """Return for each row its label with its confidence, a class that competes with it, and
        then the most probable others.

        Their probabilities are those that confidence is taken from; those of a suspected label are
        by the other labels.
        """
        with self._lock:
            rows = [row for row in rows if 0 <= row < len(self)][:MOST_CHOICES]
            if not rows:
                return {}
            self.waiting.weigh(rows)
            names = [str(name) for name in self.beliefs.model.classes_]
            has_labels = self.beliefs.label_counts() > 0
            probabilities = self.beliefs.model.pool_proba(self.beliefs.embeddings(rows)).astype(
                np.float64
            )
            ranked: dict[int, list[tuple[str, float]]] = {}
            for row, probs in zip(rows, probabilities, strict=True):
                label, sides = self.beliefs.label(row), self.waiting.sides(row)
                first = (
                    []
                    if label is None
                    else [(label, round(float(self.beliefs.confidence[row]), 4))]
                )
                first = first if sides is None else [(side.label, side.share) for side in sides]
                known = [name for name, _ in first]
                others = [c for c in np.argsort(-probs, kind="stable") if names[c] not in known]
                others = [c for c in others if has_labels[self.beliefs.codes_by_name[names[c]]]]
                rest = max(0.0, 1 - sum(share for _, share in first)) / max(
                    1e-12, float(probs[others].sum())
                )
                ranked[row] = [
                    *first,
                    *((names[c], round(float(probs[c]) * rest, 4)) for c in others),
                ][:CHOICES]
            return ranked

    def card(self, row: int) -> dict[str, Any]:
        """Return everything that is shown of a row, for JSON."""
        beliefs, answer, sides = (
            self.beliefs,
            self.history.answers.get(row),
            self.waiting.sides(row),
        )
        first = int(beliefs.first_codes[row])
        card: dict[str, Any] = {
            "row": row,
            "id": self.project.ids[row],
            "version": self.history.versions.get(row, 0),
            "label": beliefs.label(row),
            "confidence": round(float(self.waiting.confidence(row)), 4),
            "variance": round(float(beliefs.variance[row]), 4),
            "status": STATUSES[beliefs.status[row]],
            "answer": None if answer is None else answer.kind,
            "first": beliefs.names[first] if first >= 0 else None,
            "suspected": bool(self.waiting.suspected[row]) and answer is None,
            "reasons": self._reasons(beliefs.reasons.get(row, [])),
            "sides": sides
            and [side._asdict() | {"reasons": self._reasons(side.reasons)} for side in sides],
        }
        if self.project.images is None:
            card["values"] = [
                round(float(value), 4) for value in beliefs.embeddings([row])[0, :VALUES]
            ]
        return card

    def _reasons(self, reasons: Reasons) -> list[dict[str, Any]]:
        label = self.beliefs.label
        return [
            {"row": row, "id": self.project.ids[row], "label": label(row), "weight": weight}
            for row, weight in reasons
        ]

    def catch_up(self) -> bool:
        """Do some work in the background; return whether there is more."""
        with self._lock:
            more = self.beliefs.catch_up()
            if (
                not more
                and self._judged != self.beliefs.generation
                and not self.beliefs.many_labels
            ):
                self.waiting.judge_given()
                self._judged = self.beliefs.generation
            return more

    def export(self) -> dict[str, Any]:
        """Write the current state beside ``reviews.jsonl``; return the names of the files and what
        is in them.
        """
        while self.catch_up():
            pass
        with self._lock:
            return write_reviewed(self.project, self.beliefs, self.history.answers)

    def summary(self) -> str:
        """Return one line about the review so far."""
        with self._lock:
            kinds: list[str] = [answer.kind for answer in self.history.answers.values()]
            counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in KINDS if kind is not None)
            return f"{len(kinds)} of {int(self.waiting.asked.sum())} reviewed: {counts}"

    def _status(self) -> dict[str, Any]:
        undo = None
        if self.history.done:
            last = self.history.done[-1].entry
            ids = [change.id for change in last.changes]
            undo = {"step": last.step, "action": last.action, "ids": ids[:3], "count": len(ids)}
        state = {"clock": self.beliefs.clock, "steps": self.history.steps, "undo": undo}
        return state | {"progress": progress(self.waiting, self.history.answers)}

    def _check(self, rows: Sequence[int], versions: Sequence[int] | None) -> None:
        if not rows:
            raise DataError("An answer must be about at least one row.")
        outside = [row for row in rows if not 0 <= row < len(self)]
        if outside:
            raise DataError(f"Rows are numbered from 0 to {len(self) - 1}; got {outside[0]}.")
        for row, version in zip(rows, versions or (), strict=versions is not None):
            if version != self.history.versions.get(row, 0):
                raise StaleError(
                    "This row was answered elsewhere in the meantime; it is shown as it stands now.",
                    rows,
                )

    def _predicted(self, row: int) -> str:
        self.beliefs.score(np.array([row]))
        label = self.beliefs.label(row)
        if label is None:
            raise DataError(f"Row {row} has no label that could be accepted.")
        return label

    def _named(self, label: str) -> str:
        return checked_name(label, self.beliefs.names)

    def _change(self, row: int, after: str | None) -> Change:
        self.beliefs.score(np.array([row]))
        confidence = round(float(self.waiting.confidence(row)), 4)
        return Change(
            self.project.ids[row],
            self.beliefs.label(row),
            after,
            STATUSES[self.beliefs.status[row]],
            confidence,
        )

    def _answer(self, action: Action, labels: dict[int, str | None], view: View) -> dict[str, Any]:
        """Record those labels that are new; an answer that holds already is not written twice."""
        answers = self.history.answers
        new = {
            row: label
            for row, label in labels.items()
            if row not in answers or answers[row].label != label
        }
        if not new:
            return self.refresh(view)
        return self._record(action, [self._change(row, label) for row, label in new.items()], view)

    def _record(
        self, action: Action, changes: list[Change], view: View, undoes: int | None = None
    ) -> dict[str, Any]:
        entry = Entry(self.history.steps + 1, now(), action, tuple(changes), undoes)
        self.journal.append(entry)
        rows = self.history.apply(entry)
        self._update(rows, view)
        return self.refresh(view.model_copy(update={"visible": [*rows, *view.visible]}))

    def _update(self, rows: Sequence[int], view: View) -> None:
        labels: dict[int, str | None] = {}
        for row in rows:
            answer = self.history.answers.get(row)
            self.kinds[row] = 0 if answer is None else KINDS.index(answer.kind)
            given = self.project.given.get(row)
            labels[row] = given if answer is None or answer.label is None else answer.label
        visible = [row for row in view.visible if 0 <= row < len(self)][:MOST_VISIBLE]
        self.beliefs.teach(labels, visible)
        self.beliefs.touch(rows)


def open_session(folder: Path, *, images: Path | None = None, read_only: bool = False) -> Session:
    """Open what ``semigpc label`` wrote into a folder for review."""
    return Session(Project.open(folder, images=images), read_only=read_only)


def write_reviewed(
    project: Project, beliefs: Beliefs, answers: dict[int, Answer]
) -> dict[str, Any]:
    """Write three files into the folder of the project, each atomically.

    ``reviewed.parquet`` and ``reviewed.csv`` hold all rows: id, label, confidence, variance,
    status, reviewed (whether the label was accepted or corrected) and answer (accepted, corrected,
    skipped or nothing). ``reviewed_labels.csv`` holds the rows labelled by people, in the table of
    labels or on the page, for ``semigpc label --labels``.
    """
    labels = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(beliefs.codes, mask=beliefs.codes < 0),
        pyarrow.array(beliefs.names, pyarrow.string()),
    ).cast(pyarrow.string())
    kinds: list[str | None] = [None] * len(beliefs)
    for row, answer in answers.items():
        kinds[row] = answer.kind
    reviewed = np.array([kind in ("accepted", "corrected") for kind in kinds])
    table = pyarrow.table(
        {
            project.id_name: pyarrow.array(project.ids, pyarrow.string()),
            "label": labels,
            "confidence": beliefs.confidence,
            "variance": beliefs.variance,
            "status": pyarrow.array([STATUSES[code] for code in beliefs.status]),
            "reviewed": reviewed,
            "answer": pyarrow.array(kinds, pyarrow.string()),
        }
    )
    known = table.select([project.id_name, "label"]).filter(pyarrow.array(beliefs.taught >= 0))
    files = [project.folder / name for name in (*TABLES, LABELS)]
    with replacing(files[0]) as draft:
        parquet.write_table(table, draft)
    for path, content in zip(files[1:], (table, known), strict=True):
        with replacing(path) as draft:
            csv.write_csv(_for_spreadsheets(content), draft)
    return {
        "files": [str(path) for path in files],
        "rows": len(table),
        "labels": len(known),
        "reviewed": int(reviewed.sum()),
    }


def _for_spreadsheets(table: pyarrow.Table) -> pyarrow.Table:
    """Return the table with names and text that a spreadsheet does not take for formulas."""
    columns = [
        pyarrow.array(
            [value and spreadsheet_cell(value) for value in column.to_pylist()], pyarrow.string()
        )
        if pyarrow.types.is_string(column.type)
        else column
        for column in table.columns
    ]
    return pyarrow.table(columns, names=[spreadsheet_cell(name) for name in table.column_names])
