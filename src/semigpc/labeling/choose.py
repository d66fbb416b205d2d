"""Which rows to ask people about next, and why: one chooser for the page and for ``suggest``.

A row i teaches much if little is known of it, its class is in doubt, and many rows are like it:

    worth_i = u_i sum_j w_j C_ij^2 / (C_ii + sigma^2)

C is the posterior covariance of the GP, so that the sum is what an answer for row i takes from the
variance of all rows j, whatever the answer is. Rows are chosen one by one, each of them lowers C as
if it were answered:

    C <- C - C_i C_i^T / (C_ii + sigma^2)

so no two are alike. u_i is the doubt about the class, and w_j weighs rows of rare classes more.
While fewer than two classes are known there is no model: C is then the prior covariance after the
labelled rows, u_i = 1, and the rows chosen spread over the data, the most typical ones first.

Between these rows come others: the next row of a random order, on which the guarantee rests; rows
that may be of a class in need, or of a class that nobody has named yet; labels that the others
contradict, and copies with different labels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semigpc.estimator import SemiGPClassifier, Status

ChoiceKind = Literal["random", "spread", "unseen", "need", "teach", "suspected", "copies"]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

RANDOM_EVERY = 4  # cards, of which one is the next row of the random order
CHECK_EVERY = 4  # of the others, one is a label to check, while there are such
UNSEEN_EVERY = 4  # of the others, one may be of a class without labels, while there are such rows
NEED_EVERY = 2  # of the others, one is for a class in need, while there are such
POOL_ROWS = 1500  # rows that are chosen among
COLD_NOISE = 0.1  # sigma^2 of the prior covariance, before there is a model
COLD_SCALE = 0.5  # its length-scale, in median distances
FAR_VARIANCE = 0.7  # posterior over prior variance from which a row may be of another class
TIE_RATIO = 0.5  # second over first probability, from which both classes are named
SMALLEST = 1e-12


class Choice(NamedTuple):
    """A row to ask about.

    Attributes:
        row: its number. kind: what it was chosen for.
        for_class: the class that it is sought for; empty if for none.
        why: the reason in a few words, for people.
    """

    row: int
    kind: ChoiceKind
    for_class: str
    why: str


class Predictions(NamedTuple):
    """What was last predicted for all n rows.

    Attributes:
        codes, second: (n,) the most probable and the next class, as places in ``Pool.names``; any
            value where a row has none. confidence: (n,) probability of the first.
        variance: (n,) posterior over prior variance. status: (n,) a :class:`Status`.
    """

    codes: Integers
    second: Integers
    confidence: NDArray[np.float32]
    variance: NDArray[np.float32]
    status: NDArray[np.uint8]


@dataclass(frozen=True)
class Pool:
    """All that a choice depends on, for n rows.

    Args:
        rows: returns the embeddings (M, D), float32, of rows (M,).
        known: (n,) class of each row labelled by people, as a place in ``names``; -1 without.
        is_open: (n,) rows that may be asked: no label, no answer, and an embedding.
        order: (n,) place of each row in a fixed random order.
        names: of the classes, those of the model among them.
        model: None until there are labels of two classes.
        answers: what the model last predicted; None if unknown, which only costs the time to
            predict the rows that are chosen among.
        suspected: (n,) labelled rows whose label the others contradict, to be asked again; None for
            none.
        unchecked: (n,) labelled rows that may be asked again if a copy has another label: those
            whose label is from a table. None for none.
    """

    rows: Callable[[Integers], NDArray[np.float32]]
    known: Integers
    is_open: Mask
    order: Integers
    names: Sequence[str]
    model: SemiGPClassifier | None = None
    answers: Predictions | None = None
    suspected: Mask | None = None
    unchecked: Mask | None = None


def choose(
    pool: Pool, count: int, *, seed: int = 0, random_every: int = RANDOM_EVERY
) -> list[Choice]:
    """Return the rows to ask next, in this order; fewer than ``count`` if no more are open.

    Equal input gives equal choices. Every ``random_every``-th card, counted over all answers, is
    the next row of the random order.

    Cost for P <= 1500 rows to choose among and l labels: O(P l^2 + P^2 (l + D)) for their
    covariance, then O(count P^2).

    Args:
        pool: the rows. count: choices wanted.
        seed: of the rows to choose among, where there are more of them.
        random_every: cards of which one is drawn at random; 0 for none.
    """
    is_open = pool.is_open.copy()
    drawn = np.flatnonzero(is_open)[np.argsort(pool.order[is_open], kind="stable")].tolist()
    checks = _checks(pool)
    lessons = _Lessons(pool, count, seed)
    chosen: list[Choice] = []
    done = int((~pool.is_open).sum())
    others = 0
    while len(chosen) < count:
        turn = done + len(chosen) + 1
        choice = None
        if random_every and turn % random_every == 0:
            row = next((row for row in drawn if is_open[row]), None)
            choice = None if row is None else Choice(row, "random", "", "drawn at random")
        if choice is None:
            others += 1
            if checks and others % CHECK_EVERY == 0:
                choice = checks.pop(0)
            else:
                choice = lessons.next(is_open) or (checks.pop(0) if checks else None)
        if choice is None:
            break
        is_open[choice.row] = False
        lessons.answered(choice.row)
        chosen.append(choice)
    return chosen


def codes_in_need(labels: Integers, pseudo: Integers) -> Integers:
    """Return the codes of the classes that rows are sought for, most in need first.

    First those without a pseudo-label, then those with fewer than half as many labels as a class
    has on average; within both, those with the fewest labels. Classes without labels are not known
    to the model, and are left out.

    Args:
        labels, pseudo: (C,) given labels and pseudo-labels of each class.
    """
    known = labels > 0
    if not known.any():
        return np.empty(0, np.int64)
    few = 2 * labels < labels[known].mean()
    codes = np.flatnonzero(known & ((pseudo == 0) | few))
    return codes[np.lexsort((labels[codes], pseudo[codes] > 0))]


# Labels to check ----------------------------------------------------------------------------------


def _checks(pool: Pool) -> list[Choice]:
    """Return labelled rows to ask again: copies with different labels, then suspected ones."""
    found = [Choice(row, "copies", "", "a copy has another label") for row in _odd_copies(pool)]
    seen = {choice.row for choice in found}
    if pool.suspected is not None:
        rows = np.flatnonzero(pool.suspected)
        for row in rows[np.argsort(pool.order[rows], kind="stable")].tolist():
            if row not in seen:
                found.append(Choice(row, "suspected", "", "other labels contradict this one"))
    return found


def _odd_copies(pool: Pool) -> list[int]:
    """Return rows with an unchecked label of which a copy has another label."""
    if pool.model is None or pool.unchecked is None:
        return []
    rows = np.asarray(pool.model.labeled_rows_)
    groups = pool.model.copy_groups_
    codes = pool.known[rows]
    lowest: dict[int, int] = {}
    odd: set[int] = set()
    for group, code in zip(groups.tolist(), codes.tolist(), strict=True):
        if lowest.setdefault(group, code) != code:
            odd.add(group)
    found = rows[np.isin(groups, list(odd)) & pool.unchecked[rows]]
    return [int(row) for row in found]


# Rows that teach ----------------------------------------------------------------------------------


class _Lessons:
    """The rows that teach most, one by one.

    Attributes:
        rows: (P,) open rows to choose among, sorted. probs: (P, C) by the model, C = 0 without one.
        covariance: (P, P) given all labels and the rows chosen so far.
    """

    def __init__(self, pool: Pool, count: int, seed: int) -> None:
        self.pool = pool
        self.rows = _candidates(pool, max(POOL_ROWS, 2 * count), seed)
        x = pool.rows(self.rows)
        model = pool.model
        self.needs: list[tuple[int, str]] = []
        self.turns = 0
        self.probs = np.empty((len(x), 0))
        if model is None or not len(x):
            self.noise = COLD_NOISE
            self.covariance = _cold_covariance(x, pool.rows(np.flatnonzero(pool.known >= 0)))
        else:
            self.noise = model.noise_std_**2
            self.covariance = model.covariance(x, x).astype(np.float64)
            self.probs = model.predict_proba(x).astype(np.float64)
            self.classes = [str(name) for name in model.classes_]
            self.needs = _needs(pool, self.classes)
        self.prior = self.covariance.diagonal().copy()

    def next(self, is_open: Mask) -> Choice | None:
        """Return the best of the rows (n,) that are open; None if there is none."""
        free = is_open[self.rows]
        if not free.any():
            return None
        self.turns += 1
        worth = self._worth()
        if not self.probs.shape[1]:
            place = int(np.where(free, worth, -1.0).argmax())
            return Choice(int(self.rows[place]), "spread", "", "unlike what was shown before")
        if self.turns % UNSEEN_EVERY == 0:
            unseen = free & (self.covariance.diagonal() > FAR_VARIANCE)
            if unseen.any():
                place = int(np.where(unseen, self._gain(), -1.0).argmax())
                return Choice(int(self.rows[place]), "unseen", "", "unlike what is labelled")
        if self.needs and self.turns % NEED_EVERY == 0:
            code, reason = self.needs.pop(0)
            self.needs.append((code, reason))
            likely = worth * self.probs[:, code] * free
            place = int(likely.argmax())
            if self.probs[place, code] >= self.probs[place].max() * TIE_RATIO:
                name = self.classes[code]
                return Choice(int(self.rows[place]), "need", name, f"may be {name}, {reason}")
        place = int(np.where(free, worth, -1.0).argmax())
        return Choice(int(self.rows[place]), "teach", "", self._why(place))

    def answered(self, row: int) -> None:
        """Lower the covariance as if a row were labelled. O(P^2)."""
        place = int(np.searchsorted(self.rows, row))
        if place == len(self.rows) or self.rows[place] != row:
            return
        column = self.covariance[place]
        self.covariance -= np.outer(column, column / (column[place] + self.noise))

    def _gain(self) -> Floats:
        """Return (P,) what an answer for each row takes from the variance of all."""
        variance = self.covariance.diagonal()
        total: Floats = np.einsum("ij,ij->i", self.covariance, self.covariance)
        return total / (variance + self.noise)

    def _worth(self) -> Floats:
        gain = self._gain()
        if not self.probs.shape[1]:
            return gain
        first_two = np.partition(self.probs, -2, axis=1)[:, -2:]
        doubt: Floats = 1 - (first_two[:, 1] - first_two[:, 0])
        return gain**0.5 * doubt

    def _why(self, place: int) -> str:
        first, second = (int(c) for c in (-self.probs[place]).argsort(kind="stable")[:2])
        if self.probs[place, second] > TIE_RATIO * self.probs[place, first]:
            return f"{self.classes[first]} or {self.classes[second]}"
        if self.prior[place] > FAR_VARIANCE:
            return "unlike what is labelled"
        return f"not surely {self.classes[first]}"


def _candidates(pool: Pool, most: int, seed: int) -> Integers:
    """Return the open rows to choose among, sorted: of too many, half at random, half in doubt."""
    rows = np.flatnonzero(pool.is_open)
    if len(rows) <= most:
        return rows
    drawn = np.random.default_rng(seed).choice(len(rows), most, replace=False)
    if pool.answers is not None and pool.model is not None:
        about = pool.answers
        doubt = 1 - about.confidence[rows] * (1 - about.variance[rows])
        drawn = drawn[: most // 2]
        best = np.argsort(-doubt, kind="stable")
        drawn = np.concatenate([drawn, best[~np.isin(best, drawn)][: most - len(drawn)]])
    return rows[np.sort(drawn)]


def _needs(pool: Pool, classes: Sequence[str]) -> list[tuple[int, str]]:
    """Return the classes in need as places in ``classes``, each with the reason."""
    place_of = {name: place for place, name in enumerate(pool.names)}
    ours = np.array([place_of[name] for name in classes])
    labels = np.bincount(pool.known[pool.known >= 0], minlength=len(pool.names))[ours]
    pseudo = np.ones(len(ours), np.int64)
    if pool.answers is not None:
        given = pool.answers.codes[pool.answers.status == Status.PSEUDO]
        pseudo = np.bincount(given, minlength=len(pool.names))[ours]
    found = []
    for code in codes_in_need(labels, pseudo).tolist():
        number = "1 label" if labels[code] == 1 else f"{labels[code]} labels"
        nothing = "" if pseudo[code] else " and gets no new ones"
        found.append((code, f"which has {number}{nothing}"))
    return found


def _cold_covariance(x: NDArray[np.float32], labelled: NDArray[np.float32]) -> Floats:
    """Return the covariance (P, P) of rows (P, D) given labelled rows (l, D), before any model."""
    if not len(x):
        return np.empty((0, 0))
    rows = np.concatenate([x, labelled]).astype(np.float64)
    rows -= rows.mean(axis=0)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), SMALLEST)
    squares = np.maximum(2 - 2 * rows @ rows.T, 0.0)
    length = COLD_SCALE * max(float(np.median(squares)), SMALLEST) ** 0.5
    K = np.exp(squares / (-2 * length**2))
    P = len(x)
    covariance: Floats = K[:P, :P].copy()
    if len(labelled):
        noisy = K[P:, P:] + COLD_NOISE * np.eye(len(labelled))
        covariance -= K[:P, P:] @ np.linalg.solve(noisy, K[P:, :P])
    return covariance
