"""Which rows wait for review, in what order, and how far the review is."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from semigpc.estimator import STATUSES
from semigpc.estimator import Status as RowStatus
from semigpc.io.text import no_new_labels
from semigpc.labeling.evidence import SUSPICION, left_out_probs, suspicion, wilson
from semigpc.review.journal import Answer
from semigpc.review.model import REASONS, Beliefs, Reasons

Status = Literal[
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
Text = Annotated[
    str, Field(max_length=4096)
]  # a label or a part of an id: as long as the longest path
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
RAREST, COMMONEST = 3.0, 0.5  # bounds of the weight of a class
UNASKED, ACCEPTED, CORRECTED, SKIPPED = range(4)  # the answer to a row
KINDS = (None, "accepted", "corrected", "skipped")
BINS = 20  # of the histogram of confidences
DEALT = 240  # rows, among which classes in need have their share


class Filters(BaseModel):
    """Which cards to show: the name of a class, a range of confidences in [0, 1], text that ids
    contain; and their order.
    """

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)
    status: Status = "unreviewed"
    label: Text | None = None
    least: float = 0.0
    most: float = 1.0
    text: Text = ""
    sort: Sort = "need"

    @model_validator(mode="after")
    def _check_range(self) -> Self:
        if not 0 <= self.least <= self.most <= 1:
            raise ValueError(
                f"confidences run from 0 to 1, the smaller first; got {self.least:g} to {self.most:g}"
            )
        return self


class Side(NamedTuple):
    """One of two classes that a row may have: its probability, and the labelled rows that speak for
    it.
    """

    label: str
    share: float
    reasons: Reasons


class Waiting:
    """The order in which n rows need review, and rows for which two classes compete.

        need = doubt * rarity * (1 + suspicious)

    doubt: 1 - confidence * (1 - variance); for a given label 1 - its probability by all other
    labels (leave-one-out).
    rarity: sqrt(mean number of labels of a class / number of labels of this class), within [0.5,
    3].
    suspicious: 1 for an outlier, for a row whose label has changed since it was written, and for a
    given label that the others contradict; 0 for the rest.

    Args:
        beliefs: of all rows.
        kinds: (n,) the answer to each row, an index into KINDS; changed by the session.
    """

    def __init__(self, beliefs: Beliefs, kinds: NDArray[np.uint8]) -> None:
        self.beliefs, self.kinds = beliefs, kinds
        n = len(beliefs)
        self.given = beliefs.taught >= 0  # labelled in the table, before the review
        self.supported = np.ones(n, np.float32)  # probability of a given label by the others
        self.rivals = np.full(
            n, -1, np.int32
        )  # the class that the others say; -1 if the label was not given
        self.rival_supported = np.zeros(n, np.float32)  # its probability by the others
        self.suspected = np.zeros(n, bool)
        self._sides: dict[
            int, tuple[int, tuple[Side, Side]]
        ] = {}  # of rows shown, with the generation of the model
        self.random = np.random.default_rng(0).permutation(n)
        self.judge_given()

    def judge_given(self) -> None:
        """Compare each given label with what the others predict for its row."""
        left_out = self.beliefs.model.leave_one_out()
        before = self._suspicions()
        self.supported[:], self.rivals[:], self.rival_supported[:], self.suspected[:] = (
            1,
            -1,
            0,
            False,
        )
        rows, probs = left_out.rows, left_out_probs(left_out)
        self.supported[rows] = probs[np.arange(len(rows)), left_out.codes]
        names = [self.beliefs.code(str(name)) for name in self.beliefs.model.classes_]
        self.rivals[rows] = np.array(names, np.int32)[probs.argmax(axis=1)]
        self.rival_supported[rows] = probs.max(axis=1)
        self.suspected[rows] = suspicion(left_out) >= SUSPICION
        self.suspected &= self.given
        self._sides.clear()
        self.beliefs.touch(np.flatnonzero((self._suspicions() != before).any(axis=0)))

    def _suspicions(self) -> Integers:
        """Return (3, n) what the page shows of suspected rows: the other class and both
        percentages; -1 for other rows.
        """
        shown = np.stack(
            [self.rivals, np.rint(100 * self.supported), np.rint(100 * self.rival_supported)]
        ).astype(np.int64)
        return np.where(self.suspected, shown, -1)

    def sides(self, row: int) -> tuple[Side, Side] | None:
        """Return the two classes of a row that :meth:`weigh` found to compete, the one that is its
        label first.
        """
        weighed = self._sides.get(row)
        return weighed[1] if weighed is not None and self.kinds[row] == UNASKED else None

    def weigh(self, rows: Sequence[int] | Integers) -> None:
        """Find the reasons for both classes of rows for which two compete.

        A given label that is suspected competes with the class that the other labels say, each with
        its probability by the others and the reasons among them. A row whose decided class is not
        its likeliest one has both, each with its probability.
        """
        beliefs, model = self.beliefs, self.beliefs.model
        unasked = [int(row) for row in rows if self.kinds[row] == UNASKED]
        late = [row for row in unasked if self._sides.get(row, (-1,))[0] != beliefs.generation]
        for row in late:
            self._sides.pop(row, None)
        has_labels = np.append(
            beliefs.label_counts() > 0, False
        )  # a rival may be a new class that was undone
        suspected = [row for row in late if self.suspected[row] and has_labels[self.rivals[row]]]
        if suspected:
            codes = np.stack([beliefs.codes[suspected], self.rivals[suspected]])  # (2, M)
            shares = np.stack([self.supported[suspected], self.rival_supported[suspected]])
            found = [
                model.explain_left_out(suspected, [beliefs.names[code] for code in each], REASONS)[
                    :2
                ]
                for each in codes
            ]
            self._keep(suspected, codes, shares, [_pairs(*each) for each in found])
        split = [
            row
            for row in late
            if beliefs.status[row] != RowStatus.LABELLED
            and beliefs.likeliest[row] != beliefs.codes[row] >= 0
        ]
        if split:
            codes = np.stack([beliefs.codes[split], beliefs.likeliest[split]])
            shares = np.stack([beliefs.confidence[split], beliefs.likeliest_confidence[split]])
            features = beliefs.embeddings(split)
            why = [
                model.explain(features, REASONS, [beliefs.names[code] for code in each])
                for each in codes
            ]
            self._keep(split, codes, shares, [_pairs(each.rows, each.weights) for each in why])

    def _keep(
        self,
        rows: Sequence[int],
        codes: NDArray[np.int32],
        shares: NDArray[np.float32],
        reasons: Sequence[Sequence[Reasons]],
    ) -> None:
        for i, row in enumerate(rows):
            first, second = (
                Side(
                    self.beliefs.names[codes[side, i]],
                    round(float(shares[side, i]), 4),
                    reasons[side][i],
                )
                for side in (0, 1)
            )
            self._sides[row] = self.beliefs.generation, (first, second)

    @property
    def changed(self) -> Mask:
        """(n,) whether the label is another one than ``semigpc label`` wrote."""
        return np.asarray(
            (self.beliefs.codes != self.beliefs.first_codes) & (self.beliefs.first_codes >= 0)
        )

    @property
    def asked(self) -> Mask:
        """(n,) whether a row should be reviewed, or has been."""
        return np.asarray(~self.given | self.suspected | (self.kinds != UNASKED))

    def need(self) -> NDArray[np.float32]:
        """Return the need (n,), see the equation above."""
        beliefs = self.beliefs
        doubt = np.where(
            self.given, 1 - self.supported, 1 - beliefs.confidence * (1 - beliefs.variance)
        )
        counts = np.maximum(beliefs.label_counts(), 1)
        rarity = np.clip(np.sqrt(counts.mean() / counts), COMMONEST, RAREST)
        suspicious = (beliefs.status == RowStatus.OUTLIER) | self.changed | self.suspected
        return np.asarray(
            doubt * np.append(rarity, 1.0)[beliefs.codes] * (1 + suspicious), np.float32
        )

    def confidence(self, rows: int | Integers | slice) -> NDArray[np.float32]:
        """Return the confidence of rows as the page shows it: of a suspected label, its probability
        by the other labels.
        """
        suspected = self.suspected[rows] & (self.kinds[rows] == UNASKED)
        return np.where(suspected, self.supported[rows], self.beliefs.confidence[rows])

    def pseudo_counts(self) -> Integers:
        """Return how many rows have each class as their pseudo-label, (C,)."""
        codes = self.beliefs.codes[self.mask("pseudo")]
        return np.bincount(codes[codes >= 0], minlength=len(self.beliefs.names))

    def mask(self, status: Status) -> Mask:
        """Return (n,) which rows a filter by status shows."""
        masks: dict[str, Callable[[], Any]] = {
            "all": lambda: np.ones(len(self.kinds), bool),
            "unreviewed": lambda: self.asked & (self.kinds == UNASKED),
            "suspected": lambda: self.suspected & (self.kinds == UNASKED),
            "changed": lambda: self.changed,
            "reviewed": lambda: (self.kinds == ACCEPTED) | (self.kinds == CORRECTED),
            "skipped": lambda: self.kinds == SKIPPED,
        }
        return np.asarray(
            masks[status]() if status in masks else self.beliefs.status == STATUSES.index(status)
        )

    def rows(self, filters: Filters, matching: Mask | None) -> Integers:
        """Return the numbers of the rows that the filters show, in their order.

        Args:
            filters: what to show.
            matching: (n,) which ids contain the text; None if there is no text to search for.
        """
        beliefs = self.beliefs
        mask = self.mask(filters.status)
        if filters.label is not None:
            mask = mask & (
                beliefs.codes == beliefs.codes_by_name.get(filters.label, -2)
            )  # -2, which no row has
        confidence = self.confidence(slice(None))
        if filters.least > 0 or filters.most < 1:
            mask = mask & (confidence >= filters.least) & (confidence <= filters.most)
        if matching is not None:
            mask = mask & matching
        rows = np.flatnonzero(mask)
        keys: dict[Sort, Callable[[], NDArray[Any]]] = {
            "need": lambda: (
                -self.need()[rows] + 10 * (self.kinds[rows] != UNASKED)
            ),  # answered rows come last
            "least sure": lambda: confidence[rows],
            "most sure": lambda: -confidence[rows],
            "random": lambda: self.random[rows],
            "table": lambda: rows,
        }
        rows = rows[np.argsort(keys[filters.sort](), kind="stable")]
        return self._dealt(rows) if filters.sort == "need" else rows

    def _dealt(self, rows: Integers) -> Integers:
        """Return the rows with every second one of the first DEALT for a class in need, in turn, as
        long as there are some.

        In need is a class that no pseudo-label names, or with less than half as many labels as a
        class has on average.
        """
        beliefs, labels = self.beliefs, self.beliefs.label_counts()
        pseudo = self.pseudo_counts()
        needy = np.flatnonzero(
            (labels > 0) & ((pseudo == 0) | (2 * labels < labels[labels > 0].mean()))
        )
        needy = needy[np.lexsort((labels[needy], pseudo[needy] > 0))][:DEALT]
        unasked = rows[self.kinds[rows] == UNASKED]
        of = [
            unasked[(beliefs.codes[unasked] == c) | (beliefs.likeliest[unasked] == c)]
            for c in needy
        ]
        general, queues = iter(unasked.tolist()), [iter(queue[:DEALT].tolist()) for queue in of]
        first: dict[int, None] = {}
        while queues and len(first) < DEALT:
            for queue in (general, queues[0]):
                row = next((row for row in queue if row not in first), None)
                first |= {} if row is None else {row: None}
            queues = queues[1:] + ([] if row is None else queues[:1])
        head = np.array(list(first), np.int64)
        return np.concatenate([head, rows[~np.isin(rows, head)]])


def _pairs(rows: Integers, weights: NDArray[np.float32]) -> list[Reasons]:
    """Return reasons for each of M rows, from row numbers (M, top), -1 where there are fewer, and
    weights (M, top).
    """
    every = zip(rows.tolist(), weights.tolist(), strict=True)
    return [
        [(row, round(weight, 2)) for row, weight in zip(*each, strict=True) if row >= 0]
        for each in every
    ]


def progress(waiting: Waiting, answers: dict[int, Answer]) -> dict[str, Any]:
    """Return everything that the page shows about the review as a whole, for JSON."""
    beliefs = waiting.beliefs
    free = (beliefs.status != RowStatus.LABELLED) & (waiting.kinds == UNASKED)
    bins = np.minimum((beliefs.confidence[free] * BINS).astype(int), BINS - 1)
    return {
        "reviewed": len(answers),
        "total": int(waiting.asked.sum()),
        "stale": int((beliefs.scored < beliefs.generation).sum()),
        "counts": {status: int(waiting.mask(status).sum()) for status in get_args(Status)},
        "histogram": np.bincount(bins, minlength=BINS).tolist(),
        "classes": _classes(waiting, answers),
        "nothing": _nothing(waiting),
    }


def _nothing(waiting: Waiting) -> str:
    """Return the sentence on classes that no row without a label gets as its pseudo-label."""
    beliefs = waiting.beliefs
    pseudo = waiting.pseudo_counts()
    if not (beliefs.status != RowStatus.LABELLED).any():
        return ""
    labels, given = beliefs.label_counts(), Counter(beliefs.project.given.values())
    needed = beliefs.project.needed
    without = [
        (code, name) for code, name in enumerate(beliefs.names) if labels[code] and not pseudo[code]
    ]
    added = {name: int(labels[code]) - given[name] for code, name in without}
    return no_new_labels(
        {
            name: max(1, needed[name] - more) if name in needed else None
            for name, more in added.items()
        }
    )


def _classes(waiting: Waiting, answers: dict[int, Answer]) -> list[dict[str, Any]]:
    """Return for each class its labels, the rows predicted to be of it, and the precision of its
    pseudo-labels.

    Where some were reviewed, precision is the share of pseudo-labels of the class that were
    accepted, with an interval. It is biased low, since the cards that most need review come first.
    Elsewhere it is the mean confidence of the model.
    """
    beliefs = waiting.beliefs
    n_classes = len(beliefs.names)
    checked, right = np.zeros(n_classes, int), np.zeros(n_classes, int)
    for answer in answers.values():
        if answer.status == "pseudo" and answer.believed is not None and answer.label is not None:
            code = beliefs.code(answer.believed)
            checked[code] += 1
            right[code] += answer.label == answer.believed
    labels = beliefs.label_counts()
    pseudo = waiting.mask("pseudo") & (beliefs.codes >= 0)
    n_pseudo = np.bincount(beliefs.codes[pseudo], minlength=n_classes)
    confidence = np.bincount(beliefs.codes[pseudo], beliefs.confidence[pseudo], minlength=n_classes)
    believed = np.bincount(
        beliefs.codes[(beliefs.status != RowStatus.LABELLED) & (beliefs.codes >= 0)],
        minlength=n_classes,
    )
    rows = []
    for code, name in enumerate(beliefs.names):
        if not (labels[code] or believed[code] or name in beliefs.project.classes):
            continue  # a new class that was undone
        _, low, high = wilson(int(right[code]), int(checked[code]))
        row: dict[str, Any] = {
            "name": name,
            "code": code,
            "labels": int(labels[code]),
            "believed": int(believed[code]),
        }
        row |= {
            "checked": int(checked[code]),
            "right": int(right[code]),
            "low": round(low or 0.0, 3),
        }
        row["high"] = 1.0 if high is None else round(high, 3)
        row["confidence"] = (
            round(float(confidence[code] / n_pseudo[code]), 3) if n_pseudo[code] else None
        )
        rows.append(row)
    return rows
