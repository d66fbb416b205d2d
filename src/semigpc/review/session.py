"""A review: rows, what the model predicts for them, and the reviewer's answers.

It does not depend on the web page. Every answer is appended to ``reviews.jsonl`` first and then
added to the model; opening the same folder again replays the file. What takes longer than an answer
may is done piece by piece in the background: all rows are scored again, the guarantee is made again
and the rows to ask next are chosen (:meth:`Session.keep_current`), and a new model is fitted
(:meth:`Session.refit`).
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NotRequired, TypedDict

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, FailFast, Field

from semigpc.estimator import STATUSES, SemiGPClassifier
from semigpc.io.atomic import locked
from semigpc.io.errors import DataError
from semigpc.io.text import ordered
from semigpc.labeling.choose import Choice, Pool, Predictions, choose
from semigpc.labeling.formats import Exported, Labels, export_labels
from semigpc.labeling.journal import (
    NAME,
    Action,
    Answer,
    Change,
    Entry,
    History,
    Kind,
    ReviewJournal,
    first_open,
    now,
    random_order,
)
from semigpc.labeling.outputs import GIVEN_OUT
from semigpc.labeling.project import Project
from semigpc.review.model import Job, Reasons, ReviewModel, checked_name
from semigpc.review.queue import KINDS, UNANSWERED, Filters, ReviewQueue
from semigpc.review.reward import Progress, Reward, progress

MOST_VISIBLE = 1000  # rows on a page
MOST_RANKED = 32  # rows whose classes are ranked in one request
RANKED_CLASSES = 9  # per row, one for each digit key
VALUES_SHOWN = 32  # of an embedding, for a row without an image
SMALLEST_SUM = 1e-12  # of probabilities that are divided by
UPCOMING = 24  # rows that are chosen ahead
# Labels that have changed before a new model is fitted, while answers come: at least so many, and
# this share of all. Where no answer comes, one is enough.
LEAST_BEFORE_FIT = 5
SHARE_BEFORE_FIT = 0.1
Number = Annotated[int, Field(ge=0, lt=2**63)]  # what a column of whole numbers can hold
Numbers = Annotated[list[Number], Field(max_length=MOST_VISIBLE), FailFast()]
DRAWN = "drawn at random"
EXPORTS = "exports"  # the folder, beside reviews.jsonl
Mode = Literal["work", "audit"]


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
# Names and probabilities; these are None before there is a model.
RankedClasses = list[tuple[str, float | None]]


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
    label that it had before the first answer. ``kind`` and ``why`` say what the row was chosen for,
    and are empty if it was not.
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
    kind: str
    why: str


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


class Session:
    """One review of one labelled folder, safe to call from several threads.

    Args:
        project: what ``semigpc label`` wrote.
        read_only: show and export, but take no answers.
        fit: whether to fit the model before anything is shown; otherwise :meth:`catch_up` does it.

    Raises:
        DataError: ``reviews.jsonl`` does not fit the data.
        InUseError: another process reviews or labels there.
    """

    def __init__(self, project: Project, *, read_only: bool = False, fit: bool = True) -> None:
        self.project = project
        self._lock = threading.RLock()
        self._working = threading.Lock()  # both are taken before the other one
        self._fitting = threading.Lock()
        with ExitStack() as closing:
            if not read_only:
                closing.enter_context(locked(project.folder))
            project.claim(NAME, EXPORTS)
            self.journal = ReviewJournal(project.folder / NAME, read_only=read_only)
            closing.callback(self.journal.close)
            self.history = History({name: row for row, name in enumerate(project.ids)})
            for entry in self.journal.entries:
                self.history.apply(entry)
            self.model = ReviewModel(project)
            self.kinds = np.full(len(self.model), UNANSWERED, np.uint8)
            self.queue = ReviewQueue(self.model, self.kinds)
            self.reward = Reward()
            self.order = random_order(len(project.ids))
            self._judged = self.model.generation
            self._chosen: dict[int, Choice] = {}  # rows to ask next, in this order
            self._chosen_at = -1  # the clock of the model
            self._recent: dict[str, None] = {}  # classes, the last used one last
            self._set_labels(list(self.history.answers))
            while fit and self.catch_up():
                pass
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

    def assign(
        self,
        rows: Sequence[int],
        label: str,
        *,
        versions: Sequence[int] | None = None,
        view: View = NOTHING_SHOWN,
    ) -> Reply:
        """Give many rows one label, which may be a new class."""
        with self._lock:
            self._check(rows, versions)
            name = self._checked_label(label)
            return self._answer("correct", dict.fromkeys(rows, name), view)

    def skip(self, row: int, *, version: int | None = None, view: View = NOTHING_SHOWN) -> Reply:
        """Answer "cannot tell": the row is not queued again, and the model learns nothing."""
        with self._lock:
            self._check([row], None if version is None else [version])
            return self._answer("skip", {row: None}, view)

    def reject(self, row: int, *, version: int | None = None, view: View = NOTHING_SHOWN) -> Reply:
        """Answer "none of these classes": the row gets no label, and the model learns nothing."""
        with self._lock:
            self._check([row], None if version is None else [version])
            return self._answer("none", {row: None}, view)

    def rename(
        self, name: str, to: str, *, merge: bool = False, view: View = NOTHING_SHOWN
    ) -> Reply:
        """Give all labels by people of a class another name, which is one step.

        Args:
            name: of the class. to: its new name.
            merge: whether ``to`` may be a class that has labels already.

        Raises:
            DataError: no row is labelled ``name``, or ``to`` exists and ``merge`` is not set.
        """
        with self._lock:
            code = self.model.codes_by_name.get(name, -1)
            rows = np.flatnonzero(self.model.known_codes == code).tolist() if code >= 0 else []
            if not rows:
                raise DataError(f"No row is labelled {name!r}, so it cannot be renamed.")
            others = [each for each in self.model.names if each != name]
            target = checked_name(to, others)
            if target == name:
                return self.refresh(view)
            code = self.model.code(target)
            if not merge and self.model.label_counts()[code]:
                raise DataError(
                    f"{target!r} has labels already. Choose another name, or merge the two with "
                    "merge=true."
                )
            changes = [self._change(row, target) for row in rows]
            return self._record("rename", changes, view)

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
        self.model.score(np.array([row]))  # which costs nothing where it was done before
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
        self.model.score(np.array(list(labels), np.int64))
        changes = [
            self._change(row, label)
            for row, label in labels.items()
            if row not in answers or answers[row].label != label or label is None
        ]
        return self._record(action, changes, view) if changes else self.refresh(view)

    def _record(
        self, action: Action, changes: list[Change], view: View, undoes: int | None = None
    ) -> Reply:
        entry = Entry(self.history.steps + 1, now(), action, tuple(changes), undoes)
        self.journal.append(entry)
        self._note_prediction(entry)
        rows = self.history.apply(entry)
        self._set_labels(rows, view)
        for row in rows:
            self._chosen.pop(row, None)
        return self.refresh(view.model_copy(update={"visible": [*rows, *view.visible]}))

    def _note_prediction(self, entry: Entry) -> None:
        """Remember what was predicted for the next row of the random order before its label."""
        if entry.action not in ("accept", "correct") or len(entry.changes) > 1:
            return
        change = entry.changes[0]
        row = self.history.row(change.id)
        drawn = int(self.order[row]) <= self._first_open()
        if change.after is not None:
            self.model.note_prediction(row, change.after, drawn=drawn)

    def _set_labels(self, rows: Sequence[int], view: View = NOTHING_SHOWN) -> None:
        """Pass the current answers of rows on to the model."""
        labels: dict[int, str | None] = {}
        for row in rows:
            answer = self.history.answers.get(row)
            self.kinds[row] = UNANSWERED if answer is None else KINDS.index(answer.kind)
            given = self.project.given.get(row)
            labels[row] = given if answer is None or answer.label is None else answer.label
            if labels[row] is not None:
                self._recent.pop(str(labels[row]), None)
                self._recent[str(labels[row])] = None
        self.model.update_labels(labels, self._existing(view.visible)[:MOST_VISIBLE])
        self.model.mark_changed(rows)
        if not self.model.is_cold and self._known_classes() < 2:
            self.model.forget()

    def _known_classes(self) -> int:
        usable = (self.model.known_codes >= 0) & self.model.has_embedding
        return len(np.unique(self.model.known_codes[usable]))

    # What the page shows ------------------------------------------------------------------------

    def next(self, mode: Mode = "work", *, seen: Sequence[int] = (), count: int = 8) -> Reply:
        """Return the cards to ask next, without rows already ``seen``.

        Args:
            mode: "work" takes the rows that :func:`semigpc.labeling.choose.choose` chose ahead, and
                then those of the random order; "audit" takes only these.
        """
        with self._lock:
            is_open = self._is_open()
            is_open[self._existing(seen)] = False
            rows: list[int] = []
            if mode == "work":
                if not self._chosen:
                    self._choose_now()
                rows = [row for row in self._chosen if self._may_ask(row, seen)][:count]
            drawn = np.flatnonzero(is_open)
            drawn = drawn[np.argsort(self.order[drawn], kind="stable")]
            chosen = len(rows)
            rows += drawn[~np.isin(drawn, rows)][: count - chosen].tolist()
            self.model.score(np.array(rows, np.int64))
            self.queue.weigh(rows)
            reply = self._reply(rows)
            for card in reply["cards"][chosen:]:
                card["kind"] = "random"
                card["why"] = DRAWN
            reply["found"] = int(self._is_open().sum())
            reply["left"] = max(0, int(is_open.sum()) - len(rows))
            return reply

    def _is_open(self) -> NDArray[np.bool_]:
        """Return (n,) the rows that may be asked: no label, no answer, and an embedding."""
        model = self.model
        return np.asarray(
            (model.known_codes < 0) & (self.kinds == UNANSWERED) & model.has_embedding
        )

    def _first_open(self) -> int:
        """Return how many rows of the random order come before the first that is open."""
        is_open = np.ones(len(self), dtype=bool)
        is_open[[*self.history.answers, *self.project.given, *self.project.bad]] = False
        return first_open(self.order, is_open)

    def _drawn(self) -> list[Answer]:
        """Return the answers to rows that were drawn at random: a sample of all rows."""
        first = self._first_open()
        answers = self.history.answers.items()
        return [answer for row, answer in answers if int(self.order[row]) < first]

    def _may_ask(self, row: int, seen: Sequence[int]) -> bool:
        return row not in seen and self.kinds[row] == UNANSWERED

    def _pool(self) -> Pool:
        """Return what the choice of the next rows depends on."""
        model = self.model
        unchecked = (model.known_codes >= 0) & (self.kinds == UNANSWERED)
        predictions = Predictions(
            codes=model.codes.astype(np.int64),
            second=model.second.astype(np.int64),
            confidence=model.confidence.copy(),
            variance=model.variance.copy(),
            status=model.status.copy(),
        )
        return Pool(
            rows=self.project.embeddings,
            known=model.known_codes.astype(np.int64),
            is_open=self._is_open(),
            order=self.order,
            names=list(model.names),
            model=model.maybe_classifier,
            answers=None if model.is_cold or model.stale.any() else predictions,
            suspected=self.queue.suspected & unchecked,
            unchecked=unchecked,
        )

    def _choose_now(self) -> None:
        self._store_choices(choose(self._pool(), UPCOMING), self.model.clock)

    def _store_choices(self, choices: Sequence[Choice], clock: int) -> None:
        self._chosen_at = clock
        self._chosen = {each.row: each for each in choices if self.kinds[each.row] == UNANSWERED}

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
            if self.model.is_cold:
                recent: RankedClasses = [(name, None) for name in reversed(self._recent)]
                return dict.fromkeys(rows, recent[:RANKED_CLASSES])
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
        scaled: RankedClasses = [(name, round(share * scale, 4)) for name, share in others]
        return [*leading, *scaled][:RANKED_CLASSES]

    def _existing(self, rows: Sequence[int]) -> list[int]:
        return [row for row in rows if 0 <= row < len(self)]

    def _leading_classes(self, row: int) -> list[tuple[str, float]]:
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
            "kind": "",
            "why": "",
        }
        choice = self._chosen.get(row)
        if choice is not None:
            card["kind"] = choice.kind
            card["why"] = self._why(choice)
        if sides is not None:
            card["sides"] = [
                {"label": side.label, "share": side.share, "reasons": self._reasons(side.reasons)}
                for side in sides
            ]
        if self.project.images is None:
            values = model.embeddings([row])[0, :VALUES_SHOWN]
            card["values"] = [round(float(value), 4) for value in values]
        return card

    def _why(self, choice: Choice) -> str:
        """Return why a row is asked, in words that stay true while answers come."""
        if choice.kind == "need":
            return f"may be {choice.for_class}, which needs labels"
        if choice.kind == "spread" and not self.history.answers:
            first = next(iter(self._chosen)) == choice.row
            return "a typical one to begin with" if first else choice.why
        return choice.why

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
            "progress": self.refresh_progress(),
            "cards": [self.card(int(row)) for row in rows],
        }

    def refresh_progress(self) -> Progress:
        """Return what the page shows of the labelling as a whole."""
        return progress(self.queue, self.history, self.reward, self._drawn())

    # Work in the background ---------------------------------------------------------------------

    def catch_up(self) -> bool:
        """Do some work of the background; return whether there was any."""
        # A model that the background fitted while we waited for our turn has to be applied, too.
        return self.keep_current() or self.refit() or self.keep_current()

    def keep_current(self) -> bool:
        """Do a piece of the work that follows an answer; return whether there was any.

        All rows are scored again, the promise is made again, given labels are judged, and the next
        rows are chosen. The lock is held only while work is prepared and stored, so that answers
        need not wait.
        """
        return self._work(self._working, self._next_job)

    def refit(self, *, idle: bool = True) -> bool:
        """Fit a new model if labels have changed so much; return whether one was fitted.

        This takes seconds, in which :meth:`keep_current` may be called from another thread.

        Args:
            idle: whether no answer comes at present, so that a new model may be fitted for few new
                labels.
        """
        return self._work(self._fitting, lambda: self._fit() if self._fit_is_due(idle) else None)

    def _work(self, turn: threading.Lock, prepare: Callable[[], Job | None]) -> bool:
        with turn:  # an export does the same work as the background
            with self._lock:
                job = prepare()
            if job is None:
                return False
            store = job()
            with self._lock:
                store()
        return True

    def _next_job(self) -> Job | None:
        model = self.model
        job = model.catch_up() or model.renew_promise()
        if job is not None:
            return job
        if not model.is_cold and not model.many_labels and self._judged != model.generation:
            return lambda: self._judge
        single = sum(len(each.entry.changes) == 1 for each in self.history.done)
        self.reward.record(self.queue, len(self.history.answers), single)
        if self._chosen_at != model.clock:
            return self._choose()
        return None

    def _judge(self) -> None:
        self.queue.judge_given()
        self._judged = self.model.generation

    def _fit_is_due(self, idle: bool) -> bool:
        """Return whether labels have changed so much that a new model is worth its time.

        With many labels there is no self-training, and the model has learned all that a new fit
        would, but for its hyper-parameters, unless labels were withdrawn or a class was new.
        """
        model = self.model
        changed = model.labels_since_fit
        if self._known_classes() < 2 or not changed:
            return False
        if model.many_labels:
            return idle and model.order_matters
        known = int((model.known_codes >= 0).sum())
        return model.is_cold or idle or changed >= max(LEAST_BEFORE_FIT, SHARE_BEFORE_FIT * known)

    def _fit(self) -> Job:
        answers = self.history.answers
        known = self.project.known(answers)
        codes = self.model.known_codes.copy()
        # The guesses in the table are those of the model that was fitted without answers, and with
        # many labels that one learns the answers.
        first = not answers or self.model.are_many(len(known.rows))
        first = first and bool(self.project.settings["fitted"])
        in_table = first and not answers and self.model.is_cold
        if first:
            codes = self.model.codes_of(self.project.given)

        def work() -> Callable[[], None]:
            classifier = self.project.model() if first else self.project.fit(known)
            return lambda: self._store_fit(classifier, codes, in_table)

        return work

    def _store_fit(
        self, classifier: SemiGPClassifier, codes: NDArray[np.int32], in_table: bool
    ) -> None:
        if self._known_classes() > 1:
            self.model.replace(classifier, codes, scored=in_table and not self.history.answers)

    def _choose(self) -> Job:
        if self.model.many_labels:  # whose model is too large to copy
            return lambda: self._choose_now
        pool = self._pool()
        pool = replace(pool, model=deepcopy(pool.model))
        clock = self.model.clock

        def work() -> Callable[[], None]:
            choices = choose(pool, UPCOMING)
            return lambda: self._store_choices(choices, clock)

        return work

    # The rest -----------------------------------------------------------------------------------

    def labels(self) -> Labels:
        """Return all labels as they stand, after all work in the background is done."""
        while self.catch_up():
            pass
        with self._lock:
            model = self.model
            names = [*model.names, None]
            given_out = np.isin(model.status, GIVEN_OUT)
            guess = [names[code] for code in model.codes]
            answers: list[str | None] = [None] * len(model)
            for row, answer in self.history.answers.items():
                answers[row] = answer.kind
                if answer.foreign:
                    given_out[row] = False
            known = self.project.known(self.history.answers)
            chosen = np.zeros(len(model), dtype=bool)
            chosen[known.rows[~known.drawn]] = True
            return Labels(
                id_name=self.project.id_name,
                ids=self.project.ids,
                classes=ordered({name for name in guess if name is not None}),
                label=[name if out else None for name, out in zip(guess, given_out, strict=True)],
                guess=guess,
                confidence=model.confidence.copy(),
                grade=model.grade.copy(),
                variance=model.variance.copy(),
                status=[STATUSES[code] for code in model.status],
                answer=answers,
                chosen=chosen,
                images=self.project.images,
                image_url=self.project.settings["written"]["image_url"],
                follow_links=self.project.settings["follow_links"],
            )

    def export(self, name: str = "csv") -> Exported:
        """Write the labels in a format of :data:`semigpc.labeling.formats.FORMATS`.

        They are written to ``exports``, beside ``reviews.jsonl``, and replace earlier ones there.
        """
        return export_labels(self.labels(), name, self.project.folder / EXPORTS, overwrite=True)

    def summary(self) -> str:
        """Return one line about the review so far."""
        with self._lock:
            kinds: list[str] = [answer.kind for answer in self.history.answers.values()]
            counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in KINDS if kind is not None)
            return f"{len(kinds)} of {int(self.queue.asked.sum())} reviewed: {counts}"


def open_session(
    folder: Path, *, images: Path | None = None, read_only: bool = False, fit: bool = True
) -> Session:
    """Open a folder that ``semigpc label`` or ``semigpc open`` wrote; see :class:`Session`."""
    return Session(Project.open(folder, images=images), read_only=read_only, fit=fit)
