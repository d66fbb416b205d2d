"""The predicted label of every row, updated with every answer of the reviewer.

A new label changes the classifier at once, and with it the rows on the screen. All others follow in
the background, where then a new classifier is fitted to all labels that hold and takes the place
of the first. So what is shown in the end depends on the answers and not on the way to them: a page
that is opened again, or an answer that is undone, shows the same labels.

``generation`` counts the changes of the classifier, so that rows that are out of date can be found;
``clock`` counts the changes of what the page shows, so that a page can request what has changed
since. There is no classifier, and no row has a guess, before labels of two classes are known.
"""

import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from semigpc.estimator import STATUSES, Answers, LeftOutLabels, SemiGPClassifier, Status
from semigpc.estimator.answers import Decisions, highest_grade
from semigpc.estimator.promise import Promise
from semigpc.estimator.watched import WatchedRows
from semigpc.io.errors import DataError
from semigpc.io.tables import label_text
from semigpc.io.text import printable
from semigpc.labeling.project import Project

Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
Floats = NDArray[np.float32]
REASONS_SHOWN = 3  # labelled rows listed per row
READ_AHEAD_ROWS = 16_384  # embeddings read at once, since seeking is slow
CACHED_EMBEDDINGS = 50_000  # rows: those that were on the screen lately
INCREMENTAL_LABELS = 256  # labels at once, beyond which variances are computed anew
VARIANCE_BLOCK = 64  # rows whose variance is computed at once
FEW_LABELS = 2048  # up to this many, the variance of all rows is updated with each answer
MULTIPLICATIONS_AT_ONCE = 4e9  # before the next request is served, about a tenth of a second
SMALLEST_BLOCK = 64  # rows scored at once, however many labels there are
NAME_CHARACTERS = 100  # of the name of a class

Reasons = list[tuple[int, float]]  # labelled rows, and what each adds to the score
Job = Callable[[], Callable[[], None]]  # work without the lock; what it returns stores the result


class ReviewModel:
    """Label, confidence, variance and status of n rows.

    Args:
        project: the rows and the given labels, and the guesses of its table until :meth:`replace`.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self.maybe_classifier: SemiGPClassifier | None = None
        self.names: list[str] = []  # of classes; only ever extended, so that codes stay valid
        self.codes_by_name: dict[str, int] = {}
        for name in project.classes:
            self.code(name)
        table = project.table
        self.codes = encoded(table["guess"], self.code)
        self.initial_codes = self.codes.copy()
        self.confidence = table["confidence"].to_numpy().astype(np.float32)
        self.second = encoded(table["second"], self.code)  # most probable of the other classes
        self.grade = table["grade"].fill_null(0).to_numpy().astype(np.float32)
        self.variance = table["variance"].to_numpy().astype(np.float32)
        self.initial_variance = self.variance.copy()
        self.status = encoded(table["status"], STATUSES.index).astype(np.uint8)
        n = len(self.codes)
        # Codes of the labels in the table or from the reviewer, which the classifier learned.
        self.known_codes = np.full(n, -1, np.int32)
        for row, label in project.given.items():
            self.known_codes[row] = self.code(label)
        self.has_embedding = np.ones(n, bool)  # nothing can be predicted for the other rows
        self.has_embedding[list(project.bad)] = False
        self.generation = 0
        self.clock = 0
        self.scored_at = np.zeros(n, np.int64)  # generation
        self.variance_at = np.zeros(n, np.int64)  # generation
        self.changed_at = np.zeros(n, np.int64)  # clock
        self.reasons: dict[int, Reasons] = {}  # of rows shown
        self.fitted_codes = np.full(n, -1, np.int32)  # labels that the classifier was fitted on
        # Whether the classifier would be another one if it had learned in another order.
        self.order_matters = False
        self.came_since: list[LeftOutLabels] = []  # labels since then, as predicted before
        self.promise_at = 0  # generation
        self._watched: WatchedRows | None = None
        self._embeddings: dict[int, Floats] = {}
        self._read_ahead: tuple[Rows, Floats] = np.zeros(0, np.int64), np.zeros((0, 0), np.float32)

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def classifier(self) -> SemiGPClassifier:
        """The classifier, where there is one."""
        assert self.maybe_classifier is not None, "labels of two classes come first"
        return self.maybe_classifier

    @property
    def is_cold(self) -> bool:
        """Whether nothing is predicted yet."""
        return self.maybe_classifier is None

    @property
    def many_labels(self) -> bool:
        """Whether computing the variance of all rows would take too long."""
        return not self.is_cold and self.are_many(len(self.classifier.labeled_rows_))

    def are_many(self, labels: int) -> bool:
        """Return whether so many labels are learned one by one only, without a new fit."""
        return labels > FEW_LABELS

    def code(self, name: str | None) -> int:
        """Return the number of a class, which may be new; -1 for None."""
        if name is None:
            return -1
        if name not in self.codes_by_name:
            self.codes_by_name[name] = len(self.names)
            self.names.append(name)
        return self.codes_by_name[name]

    def label(self, row: int) -> str | None:
        """Return the label of a row, given or predicted."""
        code = int(self.codes[row])
        return self.names[code] if code >= 0 else None

    def codes_of(self, labels: Mapping[int, str]) -> NDArray[np.int32]:
        """Return our codes (n,) of some labels by row; -1 for other rows."""
        codes = np.full(len(self), -1, np.int32)
        for row, label in labels.items():
            codes[row] = self.code(label)
        return codes

    def class_codes(self) -> NDArray[np.int32]:
        """Return our code of each class of the classifier, (C,)."""
        return np.array([self.code(str(name)) for name in self.classifier.classes_], np.int32)

    def label_counts(self) -> NDArray[np.int64]:
        """Return how many rows of each class are labelled in the table or on the page, (C,)."""
        return np.bincount(self.known_codes[self.known_codes >= 0], minlength=len(self.names))

    def embeddings(self, rows: Sequence[int] | Rows) -> Floats:
        """Return the embeddings (M, D) of rows, from memory where they were used lately."""
        missing = [int(row) for row in rows if int(row) not in self._embeddings]
        if missing:
            if len(self._embeddings) + len(missing) > CACHED_EMBEDDINGS:
                self._embeddings.clear()
                missing = [int(row) for row in rows]
            read = self.project.embeddings(np.array(missing, np.int64))
            self._embeddings.update(zip(missing, read, strict=True))
        return np.stack([self._embeddings[int(row)] for row in rows])

    # Labels -------------------------------------------------------------------------------------

    def update_labels(self, labels: Mapping[int, str | None], visible: Iterable[int]) -> None:
        """Set labels of rows, None to remove one, and score ``visible`` and those rows again.

        With many labels, new ones lower the variance of outliers at once, as that may change their
        status; that of other rows stays an upper bound until they are next shown.
        """
        changed = [
            row for row, label in labels.items() if self.code(label) != self.known_codes[row]
        ]
        if not changed:
            return
        if self.is_cold:
            for row in changed:
                self._set_label(row, self.code(labels[row]))
            return
        usable = {row: labels[row] for row in changed if self.has_embedding[row]}
        removed = [row for row, label in usable.items() if label is None]
        many_at_once = len(changed) > INCREMENTAL_LABELS
        rescored = np.array(sorted({*visible, *(removed if many_at_once else changed)}), np.int64)
        if usable:
            current = rescored[self.variance_at[rescored] == self.generation]
            current = current[self.has_embedding[current]]
            if self.many_labels and not removed:
                current = current[self.status[current] == Status.OUTLIER]
            self._learn_and_adjust(usable, removed, current[:0] if many_at_once else current)
        for row in changed:
            self._set_label(row, self.code(labels[row]))
        self.score(rescored, variance=not self.many_labels)

    def _learn_and_adjust(
        self, labels: Mapping[int, str | None], removed: Sequence[int], rows: Rows
    ) -> None:
        """Change labels of the classifier, and with them the posterior variance of M ``rows``.

        With C (M, B) the covariance between the M rows and B new ones, and V (B, B) among the new
        ones, both before they are added:

            v -= diag(C (V + sigma^2 I)^-1 C^T)

        and with the opposite sign, both taken afterwards, for rows that are removed: exact for one
        GP, and an estimate for an ensemble, whose covariance is an average. A label that replaces
        another changes no variance. O(N^2 B + N M (D + B)) for N labels.
        """
        added = [row for row in labels if self.known_codes[row] < 0]
        change = -self._variance_explained(rows, added)
        self._learn(labels)
        self.generation += 1
        change += self._variance_explained(rows, removed)
        adjusted = np.clip(self.variance[rows] + change, 0, 1)
        if removed and self.many_labels:
            self.variance = self.initial_variance.copy()  # an upper bound
        self.variance[rows] = adjusted
        self.variance_at[rows] = self.generation

    def _learn(self, labels: Mapping[int, str | None]) -> None:
        """Add labels of rows to the classifier, None to remove one."""
        names = set(self.classifier.classes_.tolist())
        self.order_matters |= not names.issuperset(labels.values())
        rows = sorted(row for row in labels if self.has_embedding[row])
        targets = np.array([labels[row] for row in rows], object)
        self.classifier.partial_fit(self.embeddings(rows), targets, rows=np.array(rows))

    def _variance_explained(self, rows: Rows, others: Sequence[int]) -> Floats:
        """Return by how much the variance of ``rows`` falls when ``others`` are labelled, (M,)."""
        if len(rows) == 0 or len(others) == 0:
            return np.zeros(len(rows), np.float32)
        new = self.embeddings(others)
        both = np.concatenate([self.embeddings(rows), new])
        covariance = self.classifier.covariance(both, new).astype(np.float64)
        cross = covariance[: len(rows)]  # (M, B)
        among = covariance[len(rows) :]  # (B, B)
        noise = self.classifier.noise_std_**2 * np.eye(len(others))
        solved = np.linalg.solve(among + noise, cross.T)  # (B, M)
        explained: Floats = np.einsum("mb,bm->m", cross, solved).astype(np.float32)
        return explained

    def _set_label(self, row: int, code: int) -> None:
        """Record the label of a row; one whose label is removed is scored when it is next shown."""
        self.known_codes[row] = code
        self.reasons.pop(row, None)
        if code >= 0:
            self.codes[row] = code
            self.confidence[row] = 1
            self.status[row] = Status.LABELLED
            self.second[row] = -1
            self.grade[row] = 0
            self.scored_at[row] = self.generation
        elif self.is_cold or not self.has_embedding[row]:
            self.codes[row] = -1
            self.confidence[row] = 0
            self.grade[row] = 0
            self.status[row] = Status.ABSTAINED

    # Scores -------------------------------------------------------------------------------------

    def score(self, rows: Rows, *, variance: bool = True) -> None:
        """Bring rows up to date, with their reasons and optionally their variance.

        Rows that were scored in this generation cost nothing.
        """
        if self.is_cold:
            return
        stale = [
            row
            for row in rows.tolist()
            if self.has_embedding[row]
            and (self.scored_at[row] < self.generation or row not in self.reasons)
        ]
        if not stale:
            return
        features = self.embeddings(stale)
        late = self.variance_at[stale] < self.generation
        if variance and late.any():
            self.variance[np.array(stale)[late]] = self._variances(features[late])
            self.variance_at[stale] = self.generation
        self._store_scores(np.array(stale), features, top=REASONS_SHOWN + 1)

    def _variances(self, features: Floats) -> Floats:
        """Return the variance of M rows, (M,).

        O(M N^2) from the inverse of the model; for many rows O(N^3 + M N^2 / 2) by a new factor.
        """
        if len(features) > len(self.classifier.labeled_rows_) / 2:
            return self.classifier.predict_variance(features)
        starts = range(0, len(features), VARIANCE_BLOCK)
        blocks = [features[start : start + VARIANCE_BLOCK] for start in starts]
        diagonals = [self.classifier.covariance(block, block).diagonal() for block in blocks]
        return np.clip(np.concatenate(diagonals), 0, 1)

    def mark_changed(self, rows: Sequence[int] | Rows) -> None:
        """Record that what the page shows of rows has changed."""
        self.clock += 1
        self.changed_at[list(rows)] = self.clock

    @property
    def stale(self) -> Mask:
        """(n,) rows that are out of date."""
        if self.is_cold:
            return np.zeros(len(self), dtype=bool)
        return np.asarray((self.scored_at < self.generation) & self.has_embedding)

    def catch_up(self) -> Job | None:
        """Return the work that brings rows which are not on the screen up to date, if there is any.

        The work itself needs no lock; it returns what stores the result, which does. Where kernel
        values cannot be kept, a block of rows is computed with the lock instead.
        """
        if not self.stale.any():
            return None
        if not WatchedRows.suits(len(self), self.classifier):
            return lambda: self._score_block
        now = WatchedRows.snapshot(self.classifier)
        generation = self.generation
        if self._watched is None:
            self._watched = WatchedRows(self.project.embeddings(np.arange(len(self))))
        watched = self._watched

        def work() -> Callable[[], None]:
            answers = watched.answers(now)
            return lambda: self._store_all(answers, generation)

        return work

    def _store_all(self, answers: Answers, generation: int) -> None:
        """Store answers for all rows, unless the classifier has changed meanwhile."""
        if generation != self.generation:
            return
        rows = np.flatnonzero(self.has_embedding)
        if answers.variance is not None:
            self.variance[rows] = answers.variance[rows]
            self.variance_at[rows] = generation
        columns: Any = (None if column is None else column[rows] for column in answers)
        self._store(rows, Answers(*columns), np.zeros(len(rows), dtype=bool))

    def _score_block(self) -> None:
        """Bring some rows up to date.

        With many labels only the variance of outliers is computed, which may not be outliers any
        more. That of other rows stays as it was until they are shown: more labels can only have
        lowered it.
        """
        stale = self.stale
        variance = True
        if self.many_labels:
            outlying = stale & (self.status == Status.OUTLIER)
            variance = bool(outlying.any())
            stale = outlying if variance else stale
        waiting = np.flatnonzero(stale)
        n_labels = len(self.classifier.labeled_rows_)
        row_cost = n_labels * (self.classifier.n_features_in_ + (n_labels if variance else 0))
        rows = waiting[: max(SMALLEST_BLOCK, int(MULTIPLICATIONS_AT_ONCE / row_cost))]
        if len(rows):
            features = self._read_in_advance(rows, waiting)
            if variance:
                self.variance[rows] = self.classifier.predict_variance(features)
                self.variance_at[rows] = self.generation
            self._store_scores(rows, features, top=1)
            for row in rows.tolist():
                self.reasons.pop(row, None)

    def _read_in_advance(self, rows: Rows, waiting: Rows) -> Floats:
        """Return embeddings of ``rows``, the first of those ``waiting``, of which many are read."""
        ready, features = self._read_ahead
        if not np.isin(rows, ready).all():
            ready = waiting[: max(READ_AHEAD_ROWS, len(rows))]
            features = self.project.embeddings(ready)
            self._read_ahead = ready, features
        return np.asarray(features[np.searchsorted(ready, rows)])

    def _store_scores(self, rows: Rows, features: Floats, *, top: int) -> None:
        """Predict rows and store the result, with reasons if ``top`` is more than 1."""
        answers = self.classifier.answer(features, variance=False, top=top)
        differs = np.zeros(len(rows), dtype=bool)
        if top > 1:
            for i, row in enumerate(rows.tolist()):
                pairs = zip(answers.rows[i].tolist(), answers.weights[i].tolist(), strict=True)
                others = [
                    (other, round(weight, 2)) for other, weight in pairs if other not in (-1, row)
                ]
                differs[i] = others[:REASONS_SHOWN] != self.reasons.get(row)
                self.reasons[row] = others[:REASONS_SHOWN]
        self._store(rows, answers, differs)

    def _store(self, rows: Rows, answers: Answers, differs: Mask) -> None:
        """Store answers for rows (M,); those that ``differ`` (M,) anyway count as changed."""
        class_codes = self.class_codes()
        known = self.known_codes[rows]
        free = known < 0
        codes = np.where(free, class_codes[answers.codes], known)
        confidence = np.where(free, answers.confidence, np.float32(1))
        outlying = self.classifier.is_outlier(self.variance[rows], answers.confidence)
        status = np.where(outlying, Status.OUTLIER, answers.status)
        status = np.where(free, status, Status.LABELLED)
        grade = np.where(free & ~outlying, answers.grade, np.float32(0))
        differs = (
            differs
            | (codes != self.codes[rows])
            | (status != self.status[rows])
            | (grade != self.grade[rows])
            | (np.rint(100 * confidence) != np.rint(100 * self.confidence[rows]))  # as shown
        )
        self.codes[rows] = codes
        self.confidence[rows] = confidence
        self.status[rows] = status
        self.second[rows] = np.where(free, class_codes[answers.second], -1)
        self.grade[rows] = grade
        self.scored_at[rows] = self.generation
        if differs.any():
            self.mark_changed(rows[differs])

    # The guarantee, and a new classifier ----------------------------------------------------------

    def note_prediction(self, row: int, label: str, *, drawn: bool) -> None:
        """Remember what is predicted for a row that is about to be labelled: a left-out label.

        Args:
            drawn: whether the row is one of a random sample; others do not count.
        """
        if self.is_cold or not drawn or not self.has_embedding[row]:
            return
        names = [str(name) for name in self.classifier.classes_]
        if label not in names or self.known_codes[row] >= 0:
            return
        probs = self.classifier.predict_proba(self.embeddings([row]))
        decided = self.classifier.probabilities().decide(torch.from_numpy(probs)).classes
        found = LeftOutLabels(
            rows=np.array([row]),
            codes=np.array([names.index(label)]),
            groups=np.array([-1 - row]),  # a group of its own
            proba=probs,
            decided=decided.numpy(),
            variance=self.variance[[row]],
        )
        self.came_since.append(found)

    def renew_promise(self) -> Job | None:
        """Return the work that makes the promise again after new labels, if it is due."""
        if self.is_cold or self.promise_at == self.generation or self.stale.any():
            return None
        held_out = self._held_out()
        if held_out is None or self.classifier.promise_.target is None:
            self.promise_at = self.generation
            return None
        generation = self.generation
        snapshot = WatchedRows.snapshot(self.classifier).model
        class_codes = self.class_codes()
        place = np.full(len(self.names), -1, np.int64)
        place[class_codes] = np.arange(len(class_codes))
        free = (self.known_codes < 0) & self.has_embedding
        codes = torch.from_numpy(place[self.codes[free]])
        probs = torch.zeros(len(codes), len(class_codes))
        confidence = torch.from_numpy(self.confidence[free])
        pool = Decisions(probs.scatter_(1, codes.unsqueeze(1), confidence.unsqueeze(1)), codes)

        def work() -> Callable[[], None]:
            snapshot.renew_promise(held_out, pool)
            return lambda: self._store_promise(snapshot.promise_, generation)

        return work

    def _held_out(self) -> LeftOutLabels | None:
        """Return the left-out labels of the last fit, and those that came since."""
        first = self.classifier.held_out_
        if first is None or first.proba.shape[1] != len(self.classifier.classes_):
            return None  # a class is new: its labels count after the next fit
        parts = [first, *(each for each in self.came_since if self._still_holds(each))]
        return LeftOutLabels(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _still_holds(self, label: LeftOutLabels) -> bool:
        code = self.known_codes[label.rows[0]]
        same_classes = label.proba.shape[1] == len(self.classifier.classes_)
        return bool(same_classes and code == self.class_codes()[label.codes[0]])

    def _store_promise(self, promise: Promise, generation: int) -> None:
        if generation != self.generation:
            return
        self.promise_at = generation
        self.classifier.promise_ = promise
        self.classifier.threshold_ = promise.thresholds
        place = np.full(len(self.names) + 1, 0, np.int64)
        place[self.class_codes()] = np.arange(len(self.classifier.classes_))
        codes = place[self.codes]
        free = (self.known_codes < 0) & self.has_embedding & (self.status != Status.OUTLIER)
        confidence = self.confidence
        grade = highest_grade(promise.grades, codes, confidence).astype(np.float32)
        grade = np.where(free, grade, np.float32(0))
        given_out = confidence >= promise.thresholds[codes]
        status = np.where(given_out, Status.PSEUDO, Status.ABSTAINED).astype(np.uint8)
        status = np.where(free, status, self.status)
        differs = (grade != self.grade) | (status != self.status)
        self.grade = grade
        self.status = status
        if differs.any():
            self.mark_changed(np.flatnonzero(differs))

    def forget(self) -> None:
        """Predict nothing any more: labels of two classes are gone."""
        self.maybe_classifier = None
        self.fitted_codes = np.full(len(self), -1, np.int32)
        self.came_since = []
        self.reasons.clear()
        free = self.known_codes < 0
        self.codes[free] = -1
        self.second[free] = -1
        self.confidence[free] = 0
        self.grade[free] = 0
        self.variance[free] = 1
        self.status[free] = Status.ABSTAINED
        self.mark_changed(np.arange(len(self)))

    @property
    def labels_since_fit(self) -> int:
        """How many rows have another label than the classifier was fitted on."""
        return int((self.known_codes != self.fitted_codes).sum())

    def replace(
        self,
        classifier: SemiGPClassifier,
        fitted_codes: NDArray[np.int32],
        *,
        scored: bool = False,
    ) -> None:
        """Take a classifier, and teach it the labels that have changed since it was fitted.

        Args:
            fitted_codes: (n,) labels that it was fitted to.
            scored: whether the guesses that are shown are its own already.
        """
        self.maybe_classifier = classifier
        self.fitted_codes = fitted_codes
        self.generation += 1
        self.promise_at = self.generation
        self.came_since = []
        self.scored_at[self.known_codes >= 0] = self.generation
        if scored:
            self.scored_at[:] = self.generation
            self.variance_at[:] = self.generation
        self.reasons.clear()
        changed = np.flatnonzero((self.known_codes != fitted_codes) & self.has_embedding)
        if len(changed):
            names = [*self.names, None]
            self._learn({int(row): names[self.known_codes[row]] for row in changed})
            self.generation += 1
        self.order_matters = False
        self.mark_changed(np.arange(len(self)))


def encoded(column: Any, code: Callable[[str], int]) -> NDArray[np.int32]:
    """Return numbers (n,) for a column of text; -1 where it is empty."""
    encoding = column.cast("string").combine_chunks().dictionary_encode()
    codes = np.array([*(code(value) for value in encoding.dictionary.to_pylist()), -1], np.int32)
    return np.asarray(codes[encoding.indices.fill_null(-1).to_numpy()])


def checked_name(name: str, known: Collection[str]) -> str:
    """Return the name of a class in the form that is stored; a known one is not changed.

    Raises:
        DataError: it is empty, too long, has control characters or lone surrogates, means "no
            label" in a table, or differs from a known one in case only.
    """
    if name in known:
        return name
    tidy = " ".join(unicodedata.normalize("NFC", name).split())
    if tidy in known:
        return tidy
    if not tidy or len(tidy) > NAME_CHARACTERS or printable(name.strip()) != name.strip():
        raise DataError(
            f"A class name must be one line of 1 to {NAME_CHARACTERS} characters without control "
            f"characters; got {printable(name[: NAME_CHARACTERS + 1])!r}."
        )
    label = label_text(tidy)
    if label is None:
        raise DataError(f"{tidy!r} means no label. Give the class another name.")
    if label in known:
        return label
    for other in known:
        if other.casefold() == label.casefold():
            raise DataError(
                f"{label!r} differs from the class {other!r} in case only. Use that one."
            )
    return label
