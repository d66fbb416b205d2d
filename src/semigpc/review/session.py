"""A review: rows, what the model predicts for them, and the reviewer's answers.

It does not depend on the web page. Every answer is appended to ``reviews.jsonl`` first and then
added to the model; opening the same folder again replays the file.
"""

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NotRequired, TypedDict

import numpy as np
import pyarrow
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import csv, parquet
from pydantic import BaseModel, ConfigDict, FailFast, Field

from semigpc.estimator import STATUSES
from semigpc.io.atomic import locked, replacing
from semigpc.io.errors import DataError
from semigpc.io.tables import CHOSEN, YES
from semigpc.io.text import spreadsheet_cell
from semigpc.labeling.journal import (
    NAME,
    Action,
    Answer,
    Change,
    Entry,
    History,
    Kind,
    ReviewJournal,
    now,
)
from semigpc.labeling.outputs import GIVEN_OUT
from semigpc.labeling.project import Project
from semigpc.review.model import Reasons, ReviewModel, checked_name
from semigpc.review.queue import KINDS, UNANSWERED, Filters, Progress, ReviewQueue, progress

MOST_VISIBLE = 1000  # rows on a page
MOST_RANKED = 32  # rows whose classes are ranked in one request
RANKED_CLASSES = 9  # per row, one for each digit key
CATCH_UPS_ON_OPENING = 100  # of a tenth of a second each, before a review is shown again
VALUES_SHOWN = 32  # of an embedding, for a row without an image
SMALLEST_SUM = 1e-12  # of probabilities that are divided by
Number = Annotated[int, Field(ge=0, lt=2**63)]  # what a column of whole numbers can hold
Numbers = Annotated[list[Number], Field(max_length=MOST_VISIBLE), FailFast()]
TABLE = "reviewed.parquet"
CSV_TABLE = "reviewed.csv"
LABELS = "reviewed_labels.csv"


class StaleError(Exception):
    """An answer about something that has changed since it was shown.

    Args:
        message: for the reviewer.
        rows: to be shown again.
    """

    def __init__(self, message: str, rows: Sequence[int]) -> None:
        super().__init__(message)
        self.rows = list(rows)


class View(BaseModel):
    """What a page shows, as part of every request. Nothing is converted: "1" is not a number.

    Args:
        visible: rows on the screen.
        since: the tick of the model's clock up to which the page is current.
        choices: rows whose classes to rank.
    """

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)
    visible: Numbers = []
    since: Number = 0
    choices: Numbers = []


NOTHING_SHOWN = View()
RankedClasses = list[tuple[str, float]]  # names and probabilities


class ReasonRecord(TypedDict):
    """A labelled row, and what it adds to the score of a class."""

    row: int
    id: str
    label: str | None
    weight: float


class SideRecord(TypedDict):
    """One of two classes that compete for a row; see :class:`semigpc.review.queue.Side`."""

    label: str
    share: float
    reasons: list[ReasonRecord]


class Card(TypedDict):
    """Everything that is shown of a row.

    ``grade`` is the precision that is guaranteed for its label, 0 if none is; ``first`` is the
    label that ``semigpc label`` wrote.
    """

    row: int
    id: str
    version: int
    label: str | None
    confidence: float
    variance: float
    status: str
    grade: float
    answer: Kind | None
    first: str | None
    suspected: bool
    reasons: list[ReasonRecord]
    sides: list[SideRecord] | None
    values: NotRequired[list[float]]


class UndoRecord(TypedDict):
    """The step that an undo would take back, with the ids of its first rows."""

    step: int
    action: Action
    ids: list[str]
    count: int


class Reply(TypedDict):
    """The state of the review, and the cards that have changed or are shown next.

    ``found`` rows match the filters, and ``left`` of them come after these cards.
    """

    clock: int
    steps: int
    undo: UndoRecord | None
    progress: Progress
    cards: list[Card]
    choices: NotRequired[dict[int, RankedClasses]]
    found: NotRequired[int]
    left: NotRequired[int]


class Exported(TypedDict):
    """The files of an export, and the number of rows, of labels by people, and of reviewed rows."""

    files: list[str]
    rows: int
    labels: int
    reviewed: int


class Session:
    """One review of one labelled folder, safe to call from several threads.

    Args:
        project: what ``semigpc label`` wrote.
        read_only: show and export, but take no answers.

    Raises:
        DataError: ``reviews.jsonl`` does not fit the data.
        InUseError: another process reviews or labels there.
    """

    def __init__(self, project: Project, *, read_only: bool = False) -> None:
        self.project = project
        self._lock = threading.RLock()
        with ExitStack() as closing:
            if not read_only:
                closing.enter_context(locked(project.folder))
            project.claim(NAME, TABLE, CSV_TABLE, LABELS)
            self.journal = ReviewJournal(project.folder / NAME, read_only=read_only)
            closing.callback(self.journal.close)
            self.history = History({name: row for row, name in enumerate(project.ids)})
            for entry in self.journal.entries:
                self.history.apply(entry)
            self.model = ReviewModel(project, project.model())
            self.kinds = np.full(len(self.model), UNANSWERED, np.uint8)
            self.queue = ReviewQueue(self.model, self.kinds)
            self._judged = self.model.generation
            self._update(list(self.history.answers), NOTHING_SHOWN)
            for _ in range(CATCH_UPS_ON_OPENING):
                if not self.catch_up():
                    break
            self._closing = closing.pop_all()
        self.replayed = len(self.journal.entries)

    def __len__(self) -> int:
        return len(self.project.ids)

    def close(self) -> None:
        """Let another process review this folder."""
        self._closing.close()

    # Answers ------------------------------------------------------------------------------------

    def accept(
        self,
        rows: Sequence[int],
        *,
        labels: Sequence[str] | None = None,
        versions: Sequence[int] | None = None,
        view: View = NOTHING_SHOWN,
    ) -> Reply:
        """Accept the labels of rows; ``labels`` are those shown, if they may have changed since."""
        with self._lock:
            self._check(rows, versions)
            if labels is None:
                accepted = [self._predicted(row) for row in rows]
            else:
                accepted = [self._checked_label(label) for label in labels]
            return self._answer("accept", dict(zip(rows, accepted, strict=True)), view)

    def correct(
        self, row: int, label: str, *, version: int | None = None, view: View = NOTHING_SHOWN
    ) -> Reply:
        """Give a row another label, which may be a new class."""
        with self._lock:
            self._check([row], None if version is None else [version])
            return self._answer("correct", {row: self._checked_label(label)}, view)

    def skip(self, row: int, *, version: int | None = None, view: View = NOTHING_SHOWN) -> Reply:
        """Answer "cannot tell": the row is not queued again, and the model learns nothing."""
        with self._lock:
            self._check([row], None if version is None else [version])
            return self._answer("skip", {row: None}, view)

    def undo(self, step: int | None = None, *, view: View = NOTHING_SHOWN) -> Reply:
        """Undo the last step; ``step`` is the last one that the page knows."""
        with self._lock:
            if not self.history.done:
                raise StaleError("There is nothing to undo.", ())
            last = self.history.done[-1]
            if step is not None and last.entry.step != step:
                raise StaleError("Another answer was given in the meantime.", ())
            changes = [
                self._change(row, None if answer is None else answer.label)
                for row, answer in last.previous
            ]
            return self._record("undo", changes, view, undoes=last.entry.step)

    def _check(self, rows: Sequence[int], versions: Sequence[int] | None) -> None:
        if not rows:
            raise DataError("An answer must be about at least one row.")
        outside = [row for row in rows if not 0 <= row < len(self)]
        if outside:
            raise DataError(f"Rows are numbered from 0 to {len(self) - 1}; got {outside[0]}.")
        if versions is None:
            return
        for row, version in zip(rows, versions, strict=True):
            if version != self.history.versions.get(row, 0):
                raise StaleError(
                    "This row was answered elsewhere in the meantime; it is shown as it is now.",
                    rows,
                )

    def _predicted(self, row: int) -> str:
        self.model.score(np.array([row]))
        label = self.model.label(row)
        if label is None:
            raise DataError(f"Row {row} has no label to accept.")
        return label

    def _checked_label(self, label: str) -> str:
        return checked_name(label, self.model.names)

    def _change(self, row: int, after: str | None) -> Change:
        self.model.score(np.array([row]))
        return Change(
            id=self.project.ids[row],
            before=self.model.label(row),
            after=after,
            status=STATUSES[self.model.status[row]],
            confidence=round(float(self.queue.confidence(row)), 4),
        )

    def _answer(self, action: Action, labels: Mapping[int, str | None], view: View) -> Reply:
        """Record those labels that are new; an answer that holds already is not written twice."""
        answers = self.history.answers
        changes = [
            self._change(row, label)
            for row, label in labels.items()
            if row not in answers or answers[row].label != label
        ]
        return self._record(action, changes, view) if changes else self.refresh(view)

    def _record(
        self, action: Action, changes: list[Change], view: View, undoes: int | None = None
    ) -> Reply:
        entry = Entry(self.history.steps + 1, now(), action, tuple(changes), undoes)
        self.journal.append(entry)
        rows = self.history.apply(entry)
        self._update(rows, view)
        return self.refresh(view.model_copy(update={"visible": [*rows, *view.visible]}))

    def _update(self, rows: Sequence[int], view: View) -> None:
        """Pass the current answers of rows on to the model."""
        labels: dict[int, str | None] = {}
        for row in rows:
            answer = self.history.answers.get(row)
            self.kinds[row] = UNANSWERED if answer is None else KINDS.index(answer.kind)
            given = self.project.given.get(row)
            labels[row] = given if answer is None or answer.label is None else answer.label
        self.model.update_labels(labels, self._existing(view.visible)[:MOST_VISIBLE])
        self.model.mark_changed(rows)

    # What the page shows ------------------------------------------------------------------------

    def page(self, filters: Filters, *, seen: Sequence[int] = (), count: int = 60) -> Reply:
        """Return the next ``count`` cards that the filters show, without rows already ``seen``."""
        with self._lock:
            matching = None
            if filters.text:
                ids = self.project.table[self.project.id_name].cast("string")
                matches = pc.match_substring(ids, filters.text, ignore_case=True)
                matching = matches.to_numpy(zero_copy_only=False)
            rows = self.queue.rows(filters, matching)
            unseen = rows[~np.isin(rows, np.array(seen, np.int64))] if len(seen) else rows
            shown = unseen[:count]
            self.model.score(shown)
            self.queue.weigh(shown)
            reply = self._reply(shown)
            reply["found"] = len(rows)
            reply["left"] = len(unseen) - len(shown)
            return reply

    def refresh(self, view: View) -> Reply:
        """Return what has changed in a view since the tick that it names."""
        with self._lock:
            visible = np.array(sorted(set(self._existing(view.visible))), np.int64)[:MOST_VISIBLE]
            self.model.score(visible, variance=not self.model.many_labels)
            changed = visible[self.model.changed_at[visible] > view.since]
            self.queue.weigh(changed)
            reply = self._reply(changed)
            if view.choices:
                reply["choices"] = self.choices(view.choices)
            return reply

    def choices(self, rows: Sequence[int]) -> dict[int, RankedClasses]:
        """Return for each row the classes to choose from, with their probabilities.

        First its label, or the two classes that compete for it; then the most probable others.
        """
        with self._lock:
            rows = self._existing(rows)[:MOST_RANKED]
            if not rows:
                return {}
            self.queue.weigh(rows)
            classifier = self.model.classifier
            probs = classifier.predict_proba(self.model.embeddings(rows)).astype(np.float64)
            has_labels = self.model.label_counts()[self.model.class_codes()] > 0
            names = [str(name) for name in classifier.classes_[has_labels]]
            return {
                row: self._ranked(row, names, probs[i, has_labels]) for i, row in enumerate(rows)
            }

    def _ranked(self, row: int, names: list[str], probs: NDArray[np.float64]) -> RankedClasses:
        """Return the classes of a row to choose from, by their probabilities (C,)."""
        leading = self._leading_classes(row)
        leading_names = {name for name, _ in leading}
        pairs = zip(names, probs.tolist(), strict=True)
        others = [(name, share) for name, share in pairs if name not in leading_names]
        others.sort(key=lambda other: -other[1])
        # The others share what the leading classes leave, so that all add up to 1.
        left = max(0.0, 1 - sum(share for _, share in leading))
        scale = left / max(SMALLEST_SUM, sum(share for _, share in others))
        scaled = [(name, round(share * scale, 4)) for name, share in others]
        return [*leading, *scaled][:RANKED_CLASSES]

    def _existing(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows if 0 <= row < len(self)]

    def _leading_classes(self, row: int) -> RankedClasses:
        """Return the two classes that compete for a row, or its label, or nothing."""
        sides = self.queue.sides(row)
        if sides is not None:
            return [(side.label, side.share) for side in sides]
        label = self.model.label(row)
        if label is None:
            return []
        return [(label, round(float(self.model.confidence[row]), 4))]

    def card(self, row: int) -> Card:
        """Return everything that is shown of a row."""
        model = self.model
        answer = self.history.answers.get(row)
        sides = self.queue.sides(row)
        initial_code = int(model.initial_codes[row])
        card: Card = {
            "row": row,
            "id": self.project.ids[row],
            "version": self.history.versions.get(row, 0),
            "label": model.label(row),
            "confidence": round(float(self.queue.confidence(row)), 4),
            "variance": round(float(model.variance[row]), 4),
            "status": STATUSES[model.status[row]],
            "grade": round(float(model.grade[row]), 6),
            "answer": None if answer is None else answer.kind,
            "first": model.names[initial_code] if initial_code >= 0 else None,
            "suspected": bool(self.queue.suspected[row]) and answer is None,
            "reasons": self._reasons(model.reasons.get(row, [])),
            "sides": None,
        }
        if sides is not None:
            card["sides"] = [
                {"label": side.label, "share": side.share, "reasons": self._reasons(side.reasons)}
                for side in sides
            ]
        if self.project.images is None:
            values = model.embeddings([row])[0, :VALUES_SHOWN]
            card["values"] = [round(float(value), 4) for value in values]
        return card

    def _reasons(self, reasons: Reasons) -> list[ReasonRecord]:
        return [
            {
                "row": row,
                "id": self.project.ids[row],
                "label": self.model.label(row),
                "weight": weight,
            }
            for row, weight in reasons
        ]

    def _reply(self, rows: Sequence[int] | NDArray[np.int64]) -> Reply:
        """Return the state of the review, with the cards of rows."""
        undo: UndoRecord | None = None
        if self.history.done:
            last = self.history.done[-1].entry
            ids = [change.id for change in last.changes]
            undo = {"step": last.step, "action": last.action, "ids": ids[:3], "count": len(ids)}
        return {
            "clock": self.model.clock,
            "steps": self.history.steps,
            "undo": undo,
            "progress": progress(self.queue, self.history.answers),
            "cards": [self.card(int(row)) for row in rows],
        }

    # The rest -----------------------------------------------------------------------------------

    def catch_up(self) -> bool:
        """Do some work in the background; return whether there is more."""
        with self._lock:
            more = self.model.catch_up()
            judged = self._judged == self.model.generation
            if not more and not judged and not self.model.many_labels:
                self.queue.judge_given()
                self._judged = self.model.generation
            return more

    def export(self) -> Exported:
        """Write the current state beside ``reviews.jsonl``, after scoring all rows."""
        while self.catch_up():
            pass
        with self._lock:
            return write_reviewed(self.project, self.model, self.history.answers)

    def summary(self) -> str:
        """Return one line about the review so far."""
        with self._lock:
            kinds: list[str] = [answer.kind for answer in self.history.answers.values()]
            counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in KINDS if kind is not None)
            return f"{len(kinds)} of {int(self.queue.asked.sum())} reviewed: {counts}"


def open_session(folder: Path, *, images: Path | None = None, read_only: bool = False) -> Session:
    """Open what ``semigpc label`` wrote into a folder for review."""
    return Session(Project.open(folder, images=images), read_only=read_only)


def write_reviewed(project: Project, model: ReviewModel, answers: Mapping[int, Answer]) -> Exported:
    """Write three files into the folder of the project, each atomically.

    ``reviewed.parquet`` and ``reviewed.csv`` hold all rows: id, label and guess as in
    labels.parquet, confidence, variance, status, reviewed (whether the label was accepted or
    corrected) and answer (accepted, corrected, skipped or nothing). ``reviewed_labels.csv`` holds
    the rows labelled by people, in the table of labels or on the page, for
    ``semigpc label --labels``; ``chosen`` is "yes" for those that were answered on the page, which
    chose the cards.
    """
    is_given_out = np.isin(model.status, GIVEN_OUT)
    kinds: list[str | None] = [None] * len(model)
    for row, answer in answers.items():
        kinds[row] = answer.kind
    reviewed = np.array([kind in ("accepted", "corrected") for kind in kinds])
    table = pyarrow.table(
        {
            project.id_name: pyarrow.array(project.ids, pyarrow.string()),
            "label": _classes(model, np.where(is_given_out, model.codes, -1)),
            "guess": _classes(model, model.codes),
            "confidence": model.confidence,
            "variance": model.variance,
            "status": pyarrow.array([STATUSES[code] for code in model.status]),
            "reviewed": reviewed,
            "answer": pyarrow.array(kinds, pyarrow.string()),
        }
    )
    by_people = pyarrow.array(model.known_codes >= 0)
    chosen = pyarrow.array([YES if each else None for each in reviewed], pyarrow.string())
    known = table.select([project.id_name, "label"]).append_column(CHOSEN, chosen)
    known = known.filter(by_people)
    files = [project.folder / name for name in (TABLE, CSV_TABLE, LABELS)]
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


def _classes(model: ReviewModel, codes: NDArray[np.int32]) -> pyarrow.Array:
    """Return classes (n,) as text; empty where the code is -1."""
    indices = pyarrow.array(codes, mask=codes < 0)
    names = pyarrow.array(model.names, pyarrow.string())
    return pyarrow.DictionaryArray.from_arrays(indices, names).cast(pyarrow.string())


def _for_spreadsheets(table: pyarrow.Table) -> pyarrow.Table:
    """Return the table with names and text that a spreadsheet does not take for formulas."""
    columns = []
    for column in table.columns:
        if pyarrow.types.is_string(column.type):
            cells = [value and spreadsheet_cell(value) for value in column.to_pylist()]
            column = pyarrow.array(cells, pyarrow.string())
        columns.append(column)
    return pyarrow.table(columns, names=[spreadsheet_cell(name) for name in table.column_names])
