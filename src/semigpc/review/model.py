"""The predicted label of every row, updated with every answer of the reviewer.

What is shown depends on the answers that hold and not on the way to them: a review that is opened
again, or undone, shows the same labels, up to rounding.

A new label changes the model at once, and with it the rows on the screen; all others are scored
again when they are shown or when no request is waiting. ``generation`` counts the changes of the
model, so that it is known which rows are out of date; ``clock`` counts the changes of what the page
shows, so that a page can request what is new to it.
"""

import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semigpc.estimator import STATUSES, SemiGPClassifier, Status
from semigpc.io.errors import DataError
from semigpc.io.text import label_text, printable
from semigpc.labeling.project import Project

Rows = NDArray[np.int64]
Floats = NDArray[np.float32]
REASONS = 3  # shown per row
READ_AHEAD = 16_384  # embeddings read at once
KEPT_ROWS = 50_000  # embeddings kept in memory: those on the screen lately
MANY = 256  # labels at once, beyond which variances are computed anew rather than updated
BLOCK = 64  # rows whose variance is computed at once
FEW_LABELS = 2048  # up to which the variance of all rows is updated with each answer
CHUNK_PRODUCTS = 4e9  # multiplications before the next request is served, about a tenth of a second
LONGEST = 100  # characters of the name of a class

Reasons = list[tuple[int, float]]  # labelled rows, and what each adds to the score


class Beliefs:
    """Label, confidence, variance and status of n rows.

    Args:
        project: what ``semigpc label`` wrote.
        model: fitted on the given labels.
    """

    def __init__(self, project: Project, model: SemiGPClassifier) -> None:
        self.project, self.model = project, model
        self.names: list[
            str
        ] = []  # of classes; only ever extended, so that codes keep their meaning
        self.codes_by_name: dict[str, int] = {}
        table = project.table
        for name in project.classes:
            self.code(name)
        self.codes = encoded(table["label"], self.code)
        self.first_codes = self.codes.copy()
        self.confidence = table["confidence"].to_numpy().astype(np.float32)
        self.likeliest = encoded(table["likeliest"], self.code)
        self.likeliest_confidence = table["likeliest_confidence"].to_numpy().astype(np.float32)
        self.variance = table["variance"].to_numpy().astype(np.float32)
        self.first_variance = self.variance.copy()
        self.status = encoded(table["status"], STATUSES.index).astype(np.uint8)
        n = len(self.codes)
        self.taught = np.full(
            n, -1, np.int32
        )  # the label in the table or from the reviewer, which the model learned
        for row, label in project.given.items():
            self.taught[row] = self.code(label)
        self.sound = np.ones(
            n, bool
        )  # rows that have an embedding; the model says nothing about the others
        self.sound[list(project.bad)] = False
        self.generation = self.clock = 0
        self.scored = np.zeros(n, np.int64)  # generation of the model at which a row was scored
        self.varied = np.zeros(n, np.int64)  # the same for its variance
        self.moved = np.zeros(n, np.int64)  # tick of the clock at which a row last changed
        self.reasons: dict[int, Reasons] = {}  # of rows shown
        self._first = (
            deepcopy(model) if model.self_training_ or not self.many_labels else None
        )  # before any answer
        self._embeddings: dict[int, Floats] = {}
        self._read_ahead: tuple[Rows, Floats] = np.zeros(0, np.int64), np.zeros((0, 0), np.float32)

    def __len__(self) -> int:
        return len(self.codes)

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

    def label_counts(self) -> NDArray[np.int64]:
        """Return how many rows of each class are labelled in the table or on the page, (C,)."""
        return np.bincount(self.taught[self.taught >= 0], minlength=len(self.names))

    def embeddings(self, rows: Sequence[int] | Rows) -> Floats:
        """Return the embeddings (M, D) of rows, from memory where they were used lately."""
        missing = [int(row) for row in rows if int(row) not in self._embeddings]
        if missing:
            if len(self._embeddings) + len(missing) > KEPT_ROWS:
                self._embeddings.clear()
                missing = [int(row) for row in rows]
            read = self.project.embeddings(np.array(missing, np.int64))
            self._embeddings.update(zip(missing, read, strict=True))
        return np.stack([self._embeddings[int(row)] for row in rows])

    def teach(self, labels: Mapping[int, str | None], visible: Iterable[int]) -> None:
        """Add labels of rows to the model, None to remove one, and score ``visible`` and those rows
        again.

        The posterior variance of visible rows is updated, with C (M, B) the covariance between M
        visible and B new rows and V (B, B) among the new ones, both before they are added:

            v -= diag(C (V + sigma^2 I)^-1 C^T)

        and with the opposite sign, both taken afterwards, for rows that are removed: exact for one
        GP, and an estimate for an ensemble, whose covariance is an average. A label that replaces
        another changes no variance. O(N^2 B + N M (D + B)) for N labels. With many labels, new ones
        lower the variance of outliers at once, as that may change their status; that of other rows
        stays an upper bound until they are next shown.
        """
        rows = [row for row, label in labels.items() if self.code(label) != self.taught[row]]
        if not rows:
            return
        learned = [row for row in rows if self.sound[row]]
        forgotten = [row for row in learned if labels[row] is None]
        seen = np.array(sorted({*visible, *(rows if len(rows) <= MANY else forgotten)}), np.int64)
        fresh = seen[
            (self.varied[seen] == self.generation) & self.sound[seen] & (len(rows) <= MANY)
        ]
        if self.many_labels and not forgotten:
            fresh = fresh[self.status[fresh] == Status.OUTLIER]
        if learned:
            change = -self._covered(fresh, [row for row in learned if self.taught[row] < 0])
            self._learn({row: labels[row] for row in learned})
            self.generation += 1
            change += self._covered(fresh, forgotten)
            updated = np.clip(self.variance[fresh] + change, 0, 1)
            if forgotten and self.many_labels:
                self.variance = self.first_variance.copy()  # an upper bound
            self.variance[fresh], self.varied[fresh] = updated, self.generation
        for row in rows:  # one whose label is removed is scored when it is next shown
            code = self.taught[row] = self.code(labels[row])
            self.reasons.pop(row, None)
            if code >= 0:
                self.codes[row], self.confidence[row], self.status[row] = code, 1, Status.LABELLED
                self.likeliest[row], self.likeliest_confidence[row] = code, 1
                self.scored[row] = self.generation
            elif not self.sound[row]:
                self.codes[row], self.confidence[row], self.status[row] = -1, 0, Status.ABSTAINED
        self.score(seen, variance=not self.many_labels)

    def _learn(self, labels: Mapping[int, str | None]) -> None:
        """Add labels of rows to the model, None to remove one.

        Removing a label does not bring back what self-training had in its place, and the shares of
        the classes depend on when a new one came. In both cases the model starts again as it was
        before the review, with all labels that hold.
        """
        given, known = self.project.given, {*self.model.classes_.tolist(), None}
        now = {
            int(row): self.names[self.taught[row]] for row in np.flatnonzero(self.taught >= 0)
        } | dict(labels)
        if self._first is not None and (
            None in labels.values() or {*now.values(), *self.project.classes, None} != known
        ):
            self.model = deepcopy(self._first)
            labels = {
                row: label
                for row, label in now.items()
                if label is not None and label != given.get(row)
            }
        rows = sorted(row for row in labels if self.sound[row])
        if rows:
            targets = np.array([labels[row] for row in rows], object)
            self.model.partial_fit(self.embeddings(rows), targets, rows=np.array(rows))

    def _covered(self, rows: Rows, others: Sequence[int]) -> Floats:
        """Return by how much the variance of ``rows`` falls when ``others`` are labelled, (M,)."""
        if len(rows) == 0 or len(others) == 0:
            return np.zeros(len(rows), np.float32)
        new = self.embeddings(others)
        both = self.model.covariance(np.concatenate([self.embeddings(rows), new]), new).astype(
            np.float64
        )
        cross, among = both[: len(rows)], both[len(rows) :]  # (M, B), (B, B)
        solved = np.linalg.solve(
            among + self.model.noise_std_**2 * np.eye(len(others)), cross.T
        )  # (B, M)
        covered: Floats = np.einsum("mb,bm->m", cross, solved).astype(np.float32)
        return covered

    @property
    def many_labels(self) -> bool:
        """Whether computing the variance of all rows would take too long."""
        return len(self.model.labeled_rows_) > FEW_LABELS

    def score(self, rows: Rows, *, variance: bool = True) -> None:
        """Bring rows up to date, with their reasons and optionally their variance; those of this
        generation cost nothing.
        """
        sound = [row for row in rows.tolist() if self.sound[row]]
        stale = [
            row for row in sound if self.scored[row] < self.generation or row not in self.reasons
        ]
        if not stale:
            return
        features = self.embeddings(stale)
        late = self.varied[stale] < self.generation
        if variance and late.any():
            self.variance[np.array(stale)[late]] = self._variances(features[late])
            self.varied[stale] = self.generation
        self._take(np.array(stale), features, top=REASONS + 1)

    def _variances(self, features: Floats) -> Floats:
        """Return (M,) in O(M N^2) from the inverse of the model; for many rows in O(N^3 + M N^2 /
        2) by a new factor.
        """
        if len(features) > len(self.model.labeled_rows_) / 2:
            return self.model.predict_variance(features)
        blocks = (features[start : start + BLOCK] for start in range(0, len(features), BLOCK))
        return np.concatenate(
            [np.clip(self.model.covariance(block, block).diagonal(), 0, 1) for block in blocks]
        )

    def touch(self, rows: Sequence[int] | Rows) -> None:
        """Record that what the page shows of rows has changed."""
        self.clock += 1
        self.moved[list(rows)] = self.clock

    def catch_up(self) -> bool:
        """Bring some rows that are not on the screen up to date; return whether there are more of
        them.

        With many labels only the variance of outliers is computed, which may be none any more. That
        of other rows stays as it
        was until they are shown: more labels can only have lowered it.
        """
        stale = (self.scored < self.generation) & self.sound
        more, variance = int(stale.sum()), True
        if self.many_labels:
            outlying = stale & (self.variance > self.model.outlier_variance_)
            variance = bool(outlying.any())
            stale = outlying if variance else stale
        coming, n_labels = np.flatnonzero(stale), len(self.model.labeled_rows_)
        width = self.model.n_features_in_ + (n_labels if variance else 0)
        some = coming[: max(64, int(CHUNK_PRODUCTS / n_labels / width))]
        if len(some):
            features = self._ahead(some, coming)
            if variance:
                self.variance[some], self.varied[some] = (
                    self.model.predict_variance(features),
                    self.generation,
                )
            self._take(some, features, top=1)
            for row in some.tolist():
                self.reasons.pop(row, None)
        return len(some) < more

    def _ahead(self, rows: Rows, coming: Rows) -> Floats:
        """Return embeddings of ``rows``, the first of the ``coming`` ones; many are read at once,
        since seeking is slow.
        """
        ready, features = self._read_ahead
        if not np.isin(rows, ready).all():
            ready = coming[: max(READ_AHEAD, len(rows))]
            features = self.project.embeddings(ready)
            self._read_ahead = ready, features
        return np.asarray(features[np.searchsorted(ready, rows)])

    def _take(self, rows: Rows, features: Floats, *, top: int) -> None:
        answers = self.model.answer(features, variance=False, top=top)
        own = np.array([self.code(str(name)) for name in self.model.classes_], np.int32)
        free = self.taught[rows] < 0
        variance = self.variance[rows]
        status = np.where(variance > self.model.outlier_variance_, Status.OUTLIER, answers.status)
        codes, likeliest = (
            np.where(free, own[each], self.taught[rows])
            for each in (answers.codes, answers.likeliest)
        )
        confidence, largest = (
            np.where(free, each, np.float32(1))
            for each in (answers.confidence, answers.likeliest_confidence)
        )
        status = np.where(free, status, Status.LABELLED)
        differs = (
            (codes != self.codes[rows])
            | (status != self.status[rows])
            | (likeliest != self.likeliest[rows])
        )
        differs |= np.rint(100 * confidence) != np.rint(
            100 * self.confidence[rows]
        )  # as the page shows it
        if top > 1:
            for i, row in enumerate(rows):
                pairs = zip(answers.rows[i].tolist(), answers.weights[i].tolist(), strict=True)
                reasons = [(r, round(w, 2)) for r, w in pairs if r not in (-1, int(row))][:REASONS]
                differs[i] |= reasons != self.reasons.get(int(row))
                self.reasons[int(row)] = reasons
        self.codes[rows], self.confidence[rows], self.status[rows] = codes, confidence, status
        self.likeliest[rows], self.likeliest_confidence[rows] = likeliest, largest
        self.scored[rows] = self.generation
        if differs.any():
            self.touch(rows[differs])


def encoded(column: Any, code: Callable[[str], int]) -> NDArray[np.int32]:
    """Return numbers (n,) for a column of text; -1 where it is empty."""
    encoding = column.cast("string").combine_chunks().dictionary_encode()
    codes = np.array([*(code(value) for value in encoding.dictionary.to_pylist()), -1], np.int32)
    return np.asarray(codes[encoding.indices.fill_null(-1).to_numpy()])


def checked_name(name: str, known: Collection[str]) -> str:
    """Return the name of a class in the form that is stored; one of the ``known`` ones is not
    changed.

    Raises:
        DataError: it is empty, too long, has control characters or lone surrogates, means "no
            label" in a table, or differs from a known one in case alone.
    """
    if name in known:
        return name
    tidy = " ".join(unicodedata.normalize("NFC", name).split())
    if tidy in known:
        return tidy
    if not tidy or len(tidy) > LONGEST or printable(name.strip()) != name.strip():
        raise DataError(
            f"The name of a class is one line of 1 to {LONGEST} characters without control characters; got "
            f"{printable(name[: LONGEST + 1])!r}."
        )
    if label_text(tidy) is None:
        raise DataError(f"{tidy!r} stands for no label. Give the class another name.")
    alike = [other for other in known if other.casefold() == tidy.casefold()]
    if alike:
        raise DataError(
            f"There is a class {alike[0]!r} already, which differs from {tidy!r} in case alone. Choose that one."
        )
    return tidy
