"""Which rows should be reviewed, and in what order."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from semigpc.estimator import STATUSES, Status
from semigpc.labeling.choose import codes_in_need
from semigpc.labeling.evidence import SUSPICION, left_out_probs, suspicion
from semigpc.labeling.journal import random_order
from semigpc.review.model import REASONS_SHOWN, Reasons, ReviewModel

StatusFilter = Literal[
    "unreviewed",
    "labelled",
    "pseudo",
    "abstained",
    "outlier",
    "suspected",
    "changed",
    "reviewed",
    "skipped",
    "all",
]
Sort = Literal["need", "least sure", "most sure", "random", "table"]
Text = Annotated[str, Field(max_length=4096)]  # a label or a part of an id, at most a whole path
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
Floats = NDArray[np.float32]
LARGEST_RARITY = 3.0  # bounds of the weight of a class
SMALLEST_RARITY = 0.5
UNANSWERED, ACCEPTED, CORRECTED, SKIPPED, FOREIGN = range(5)  # the answer to a row
KINDS = (None, "accepted", "corrected", "skipped", "none")
ALTERNATING_ROWS = 240  # at the front of the queue, where every second row is for a class in need
NO_CLASS = -2  # a code that no row has


class Filters(BaseModel):
    """Which cards to show, and in which order.

    Args:
        status: which rows.
        label: the name of a class; None for all.
        least, most: the range of confidences, in [0, 1].
        text: part of the id.
        sort: the order.
    """

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)
    status: StatusFilter = "unreviewed"
    label: Text | None = None
    least: float = 0.0
    most: float = 1.0
    text: Text = ""
    sort: Sort = "need"

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if not 0 <= self.least <= self.most <= 1:
            raise ValueError(
                "least and most must be confidences from 0 to 1, least first; "
                f"got {self.least:g} and {self.most:g}"
            )
        return self


class Side(NamedTuple):
    """One of two classes that a row may have: its probability, and the labelled rows for it."""

    label: str
    share: float
    reasons: Reasons


class ReviewQueue:
    """The order in which n rows need review, and rows for which two classes compete.

        need = doubt * rarity * (1 + suspicious)

    doubt: 1 - confidence * (1 - variance); for a given label 1 - its probability by all other
    labels (leave-one-out).
    rarity: sqrt(mean number of labels per class / number of labels of this class), in [0.5, 3].
    suspicious: 1 for an outlier, for a row whose label has changed since it was written, and for a
    given label that the others contradict; 0 for the rest.

    Args:
        model: the predictions of all rows.
        kinds: (n,) the answer to each row, an index into KINDS; changed by the session.
    """

    def __init__(self, model: ReviewModel, kinds: NDArray[np.uint8]) -> None:
        self.model = model
        self.kinds = kinds
        n = len(model)
        self.given = model.known_codes >= 0  # labelled in the table, before the review
        self.supported = np.ones(n, np.float32)  # probability of a given label by the others
        self.rivals = np.full(n, -1, np.int32)  # class by the other labels; -1 if none was given
        self.rival_supported = np.zeros(n, np.float32)  # its probability by the others
        self.suspected = np.zeros(n, bool)
        # Of rows shown, with the generation of the model.
        self._sides: dict[int, tuple[int, tuple[Side, Side]]] = {}
        self.random = random_order(n)
        self.judge_given()

    def judge_given(self) -> None:
        """Compare each given label with what the others predict for its row."""
        if self.model.is_cold:
            return
        left_out = self.model.classifier.leave_one_out()
        before = self._suspicions()
        rows = left_out.rows
        probs = left_out_probs(left_out)
        self.supported[:] = 1
        self.supported[rows] = probs[np.arange(len(rows)), left_out.codes]
        self.rivals[:] = -1
        self.rivals[rows] = self.model.class_codes()[probs.argmax(axis=1)]
        self.rival_supported[:] = 0
        self.rival_supported[rows] = probs.max(axis=1)
        self.suspected[:] = False
        self.suspected[rows] = suspicion(left_out) >= SUSPICION
        self.suspected &= self.given
        self._sides.clear()
        self.model.mark_changed(np.flatnonzero((self._suspicions() != before).any(axis=0)))

    def _suspicions(self) -> Integers:
        """Return (3, n) what the page shows of suspected rows; -1 for other rows.

        That is the other class and both percentages.
        """
        percents = np.rint(100 * self.supported), np.rint(100 * self.rival_supported)
        return np.where(self.suspected, np.stack([self.rivals, *percents]).astype(np.int64), -1)

    # Two classes that compete -------------------------------------------------------------------

    def sides(self, row: int) -> tuple[Side, Side] | None:
        """Return the two classes of a row that :meth:`weigh` found to compete, its label first."""
        if row not in self._sides or self.kinds[row] != UNANSWERED:
            return None
        return self._sides[row][1]

    def weigh(self, rows: Sequence[int] | Integers) -> None:
        """Find the reasons for both classes of rows for which two compete.

        A given label that is suspected competes with the class that the other labels predict, each
        with its probability by the others and the reasons among them.
        """
        model = self.model
        late = []
        for row in map(int, rows):
            generation = self._sides[row][0] if row in self._sides else None
            if self.kinds[row] == UNANSWERED and generation != model.generation:
                self._sides.pop(row, None)
                late.append(row)
        has_labels = np.append(model.label_counts() > 0, False)  # code -1 has none
        self._weigh_suspected(
            # A rival may be a new class that was undone.
            [row for row in late if self.suspected[row] and has_labels[self.rivals[row]]]
        )

    def _weigh_suspected(self, rows: list[int]) -> None:
        if not rows:
            return
        reasons = []
        codes = np.stack([self.model.codes[rows], self.rivals[rows]])  # (2, M)
        for class_codes in codes:
            names = [self.model.names[code] for code in class_codes]
            found = self.model.classifier.explain_left_out(rows, names, REASONS_SHOWN)
            reasons.append(_reasons_by_row(found[0], found[1]))
        shares = np.stack([self.supported[rows], self.rival_supported[rows]])
        self._keep_sides(rows, codes, shares, reasons)

    def _keep_sides(
        self,
        rows: Sequence[int],
        codes: NDArray[np.int32],
        shares: Floats,
        reasons: Sequence[Sequence[Reasons]],
    ) -> None:
        """Store both sides of M rows, from codes and shares (2, M)."""

        def side(number: int, i: int) -> Side:
            name = self.model.names[codes[number, i]]
            return Side(name, round(float(shares[number, i]), 4), reasons[number][i])

        for i, row in enumerate(rows):
            self._sides[row] = self.model.generation, (side(0, i), side(1, i))

    # Which rows, and in which order -------------------------------------------------------------

    @property
    def changed(self) -> Mask:
        """(n,) whether the label is another one than ``semigpc label`` wrote."""
        initial = self.model.initial_codes
        return np.asarray((self.model.codes != initial) & (initial >= 0))

    @property
    def asked(self) -> Mask:
        """(n,) whether a row should be reviewed, or has been."""
        return np.asarray(~self.given | self.suspected | (self.kinds != UNANSWERED))

    def need(self) -> Floats:
        """Return the need (n,), see the equation above."""
        model = self.model
        unsure = 1 - model.confidence * (1 - model.variance)
        doubt = np.where(self.given, 1 - self.supported, unsure)
        counts = np.maximum(model.label_counts(), 1)
        rarity = np.clip(np.sqrt(counts.mean() / counts), SMALLEST_RARITY, LARGEST_RARITY)
        rarity_of_row = np.append(rarity, 1.0)[model.codes]  # 1 for rows without a class, code -1
        suspicious = (model.status == Status.OUTLIER) | self.changed | self.suspected
        return np.asarray(doubt * rarity_of_row * (1 + suspicious), np.float32)

    def confidence(self, rows: int | Integers | slice) -> Floats:
        """Return the confidence of rows as the page shows it.

        That of a suspected label is its probability by the other labels.
        """
        suspected = self.suspected[rows] & (self.kinds[rows] == UNANSWERED)
        return np.where(suspected, self.supported[rows], self.model.confidence[rows])

    def pseudo_counts(self) -> Integers:
        """Return how many rows have each class as their pseudo-label, (C,)."""
        codes = self.model.codes[self.mask("pseudo")]
        return np.bincount(codes[codes >= 0], minlength=len(self.model.names))

    def mask(self, status: StatusFilter) -> Mask:
        """Return (n,) which rows a filter by status shows."""
        if status == "all":
            return np.ones(len(self.kinds), bool)
        if status == "unreviewed":
            return np.asarray(self.asked & (self.kinds == UNANSWERED))
        if status == "suspected":
            return np.asarray(self.suspected & (self.kinds == UNANSWERED))
        if status == "changed":
            return self.changed
        if status == "reviewed":
            return np.isin(self.kinds, (ACCEPTED, CORRECTED))
        if status == "skipped":
            return np.isin(self.kinds, (SKIPPED, FOREIGN))
        return np.asarray(self.model.status == STATUSES.index(status))

    def rows(self, filters: Filters, matching: Mask | None) -> Integers:
        """Return the numbers of the rows that the filters show, in their order.

        Args:
            filters: what to show.
            matching: (n,) which ids contain the text; None if there is no text to search for.
        """
        mask = self.mask(filters.status)
        if filters.label is not None:
            code = self.model.codes_by_name.get(filters.label, NO_CLASS)
            mask = mask & (self.model.codes == code)
        if filters.least > 0 or filters.most < 1:
            confidence = self.confidence(slice(None))
            mask = mask & (confidence >= filters.least) & (confidence <= filters.most)
        if matching is not None:
            mask = mask & matching
        rows = np.flatnonzero(mask)
        if filters.sort == "table":
            return rows
        if filters.sort == "need":
            return self._by_need(rows)
        if filters.sort == "random":
            return rows[np.argsort(self.random[rows], kind="stable")]
        confidence = self.confidence(rows)
        keys = confidence if filters.sort == "least sure" else -confidence
        return rows[np.argsort(keys, kind="stable")]

    def _by_need(self, rows: Integers) -> Integers:
        """Return rows by need, answered ones last, with rows for classes in need at the front."""
        answered = self.kinds[rows] != UNANSWERED
        rows = rows[np.lexsort((-self.need()[rows], answered))]
        unanswered = rows[self.kinds[rows] == UNANSWERED]
        codes = self.model.codes[unanswered]
        second = self.model.second[unanswered]
        in_need = codes_in_need(self.model.label_counts(), self.pseudo_counts())
        rows_by_class = [
            unanswered[(codes == code) | (second == code)][:ALTERNATING_ROWS].tolist()
            for code in in_need[:ALTERNATING_ROWS]
        ]
        front = alternate(unanswered.tolist(), rows_by_class, ALTERNATING_ROWS)
        rest = rows[~np.isin(rows, front)]
        return np.concatenate([np.array(front, np.int64), rest])


def alternate(rows: Iterable[int], rows_by_class: Sequence[Iterable[int]], count: int) -> list[int]:
    """Return rows of which every second one is for a class in need, each row once.

    The first of ``rows`` is followed by the first row of the first class, the next of ``rows`` by
    the first row of the second class, and so on in turn. A class without further rows drops out.
    It ends with ``count`` rows or one more, or when no class is left.
    """
    chosen: list[int] = []
    used: set[int] = set()

    def take_next(source: Iterator[int]) -> bool:
        """Choose the first row of the source that is not chosen yet; return whether it has one."""
        for row in source:
            if row not in used:
                used.add(row)
                chosen.append(row)
                return True
        return False

    general = iter(rows)
    classes = deque(iter(rows_of_class) for rows_of_class in rows_by_class)
    while classes and len(chosen) < count:
        take_next(general)
        rows_of_class = classes.popleft()
        if take_next(rows_of_class):
            classes.append(rows_of_class)
    return chosen


def _reasons_by_row(rows: Integers, weights: Floats) -> list[Reasons]:
    """Return reasons for each of M rows, from row numbers and weights (M, top); -1 is no row."""
    return [
        [(row, round(weight, 2)) for row, weight in zip(numbers, values, strict=True) if row >= 0]
        for numbers, values in zip(rows.tolist(), weights.tolist(), strict=True)
    ]
