"""Which rows to ask people about next, and why: one chooser for the page and for ``suggest``.

Up to two labels for each class met, probabilities are not worth much, so the rows asked are typical
of large groups: k-means finds as many clusters as there are labels and rows wanted, and the row of
the smallest mean distance to its 10 nearest stands for the largest cluster with the fewest labels
(TypiClust, Hacohen et al. 2022).

Then a row i teaches much if little is known of it, its class is in doubt, and many rows are like
it:

    worth_i = u_i sqrt(C_ii g_i)          g_i = sum_j C_ij^2 / (C_ii + sigma^2)
    u_i = (1 - p_i1 + p_i2) sum_c p_ic nbar / n_c

C is the posterior covariance of the GP, and g_i is what an answer for row i takes from the variance
of all rows together, whatever the answer is. Each row that is chosen lowers C as if it were
answered,

    C <- C - C_i C_i^T / (C_ii + sigma^2)

so no two are alike. p_i1 and p_i2 are the probabilities of its first two classes; a class with few
of the labels, n_c, weighs more.

Between these rows come others: the next row of a random order, on which the guarantee rests, though
not among the first answers, which teach most; rows that may be of a class that gets no label;
labels that the others contradict, and copies with different labels. How the choice was made is in
docs/results.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA

from semigpc.estimator import SemiGPClassifier, Status
from semigpc.io.threads import using

ChoiceKind = Literal["random", "spread", "unseen", "need", "teach", "suspected", "copies"]
Mask = NDArray[np.bool_]
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]

RANDOM_FROM = 40  # labels, given ones among them, from which on ... (docs/results.md)
RANDOM_EVERY = 2  # ... one card of so many is the next row of the random order
CHECK_EVERY = 4  # of the others, one is a label to check, while there are such
NEED_EVERY = 4  # of the others, one is for a class that gets no new label, while there are such
POOL_ROWS = 1000  # rows that are chosen among
SPREAD_LABELS = 2  # labels for each class met, up to which rows asked are typical of clusters
TYPICAL_NEAREST = 10  # rows of its cluster to which a typical row is near
CLUSTERED_COLUMNS = 64  # principal components of the rows that are clustered
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

    @property
    def answered(self) -> int:
        """Return how many rows are closed and need not be checked."""
        closed = int((~self.is_open).sum())
        return closed if self.unchecked is None else closed - int(self.unchecked.sum())


def choose(
    pool: Pool,
    count: int,
    *,
    seed: int = 0,
    random_every: int = RANDOM_EVERY,
    random_from: int = RANDOM_FROM,
) -> list[Choice]:
    """Return the rows to ask next, in this order; fewer than ``count`` if no more are open.

    Equal input gives equal choices. From RANDOM_FROM labels on, every ``random_every``-th card,
    counted over all answers, is the next row of the random order.

    Cost for P <= 1000 rows to choose among and l labels: O(P l^2 + P^2 (l + D)) for their
    covariance, then O(count P^2). While the labels are few, O((P + l) (l + count)) a round of
    k-means in its stead.

    Args:
        pool: the rows. count: choices wanted.
        seed: of the rows to choose among, where there are more of them.
        random_every: cards of which one is drawn at random; 0 for none.
        random_from: labels before which none is.
    """
    is_open = pool.is_open.copy()
    drawn = np.flatnonzero(is_open)[np.argsort(pool.order[is_open], kind="stable")].tolist()
    checks = _checks(pool)
    lessons = _Lessons(pool, count, seed)
    labels = int((pool.known >= 0).sum())
    chosen: list[Choice] = []
    while len(chosen) < count:
        turn = pool.answered + len(chosen) + 1
        draws = random_every > 0 and labels + len(chosen) >= random_from
        is_random = draws and turn % random_every == 0
        other = turn - turn // random_every if draws else turn  # turns that are not random
        choice = None
        if is_random:
            row = next((row for row in drawn if is_open[row]), None)
            choice = None if row is None else Choice(row, "random", "", "drawn at random")
        elif checks and other % CHECK_EVERY == 0:
            choice = checks.pop(0)
        if choice is None:
            choice = lessons.next(is_open, other) or (checks.pop(0) if checks else None)
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
        rows: (P,) open rows to choose among, sorted. classes: of the model; none without one.
        clusters: of the rows, while the labels are few.
        probs: (P, C) by the model; the rest only without clusters. doubt: (P,) u.
        is_far: (P,) unlike all labelled rows, before anything was chosen.
    """

    def __init__(self, pool: Pool, count: int, seed: int) -> None:
        self.rows = _candidates(pool, max(POOL_ROWS, 2 * count), seed)
        x = pool.rows(self.rows)
        model = pool.model if len(x) else None
        labelled = np.flatnonzero(pool.known >= 0)
        self.clusters: _Clusters | None = None
        if model is None or len(labelled) < SPREAD_LABELS * len(model.classes_):
            self.clusters = _Clusters(x, pool.rows(labelled), count, seed)
            return
        self.classes = [str(name) for name in model.classes_]
        self.probs = model.predict_proba(x).astype(np.float64)
        self.lacks, self.sought = _needs(pool, self.classes)
        self.doubt = _doubt(self.probs, model.class_counts_)
        self.coverage = _Coverage(model.covariance(x, x), model.noise_std_**2)
        self.is_far = self.coverage.variance > float(model.outlier_variance_)

    def next(self, is_open: Mask, turn: int) -> Choice | None:
        """Return the best of the rows (n,) that are open; None if there is none. O(P log P).

        In every fourth turn it is the best for a class that gets no new label. Other classes in
        need are left to u, which led to better models than turns of their own.
        """
        free = is_open[self.rows]
        if not free.any():
            return None
        if self.clusters is not None:
            place, why = self.clusters.next(free)
            return Choice(int(self.rows[place]), "spread", "", why)
        gain = self.coverage.gain()
        if self.sought and turn % NEED_EVERY == NEED_EVERY // 2:  # not where labels are checked
            code = self.sought[turn // NEED_EVERY % len(self.sought)]
            worth = self.probs[:, code] * np.sqrt(gain)
            place = int(np.where(free, worth, -1.0).argmax())
            return Choice(int(self.rows[place]), *self._needed(code))
        worth = self.doubt * np.sqrt(gain * self.coverage.variance)
        place = int(np.where(free, worth, -1.0).argmax())
        return Choice(int(self.rows[place]), *self._reason(place))

    def answered(self, row: int) -> None:
        """Learn that a row is answered. O(P^2), or O(1) while the labels are few."""
        place = int(np.searchsorted(self.rows, row))
        if place < len(self.rows) and self.rows[place] == row:
            if self.clusters is not None:
                self.clusters.answered(place)
            else:
                self.coverage.answered(place)

    def _needed(self, code: int) -> tuple[ChoiceKind, str, str]:
        name = self.classes[code]
        return "need", name, f"may be {name}, {self.lacks[code]}"

    def _reason(self, place: int) -> tuple[ChoiceKind, str, str]:
        """Return kind, class and reason of a row."""
        probs = self.probs[place]
        first, second = (int(c) for c in (-probs).argsort(kind="stable")[:2])
        is_tie = probs[second] > TIE_RATIO * probs[first]
        if self.is_far[place]:
            return "unseen", "", "unlike what is labelled"
        for code in (first, second) if is_tie else (first,):
            if code in self.lacks:
                return self._needed(code)
        if is_tie:
            return "teach", "", f"{self.classes[first]} or {self.classes[second]}"
        return "teach", "", f"not surely {self.classes[first]}"


class _Clusters:
    """Clusters of P rows and l labelled ones, and how typical each of the P is of its cluster.

    As many as labels and rows wanted, but two rows each on average. The rows are compared by the
    angles between them minus their mean, and clustered by their first 64 principal components.

    Args:
        x: (P, D). labelled: (l, D). count: of rows wanted. seed: of k-means.

    Attributes:
        code: (P,) cluster of each row. size: (K,) of all rows. labels: (K,) in each cluster.
        distance: (P,) mean to the 10 nearest in the cluster; small where a row is typical.
    """

    def __init__(
        self, x: NDArray[np.float32], labelled: NDArray[np.float32], count: int, seed: int
    ) -> None:
        rows = np.concatenate([x, labelled])
        rows = rows - rows.mean(axis=0, dtype=np.float64).astype(np.float32)
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), SMALLEST)
        if min(rows.shape) > CLUSTERED_COLUMNS:
            narrow = PCA(CLUSTERED_COLUMNS, svd_solver="randomized", random_state=seed)
            rows = narrow.fit_transform(rows)
        clusters = max(1, min(len(labelled) + count, len(rows) // 2))
        code = np.zeros(len(rows), np.int64)
        if clusters > 1:
            # With one thread: another one of the page may set BLAS to several meanwhile, and within
            # a parallel loop of OpenMP that can hang.
            with using(1):
                code = KMeans(clusters, n_init=1, random_state=seed).fit_predict(rows)
        self.code = code[: len(x)]
        self.size = np.bincount(code, minlength=clusters)
        self.labels = np.bincount(code[len(x) :], minlength=clusters)
        self.distance = np.empty(len(x))
        for cluster in np.unique(self.code):
            members = np.flatnonzero(code == cluster)
            own = members[members < len(x)]
            self.distance[own] = _nearness(rows[own], rows[members])

    def next(self, free: Mask) -> tuple[int, str]:
        """Return the place of the next of the free rows (P,), and the reason."""
        places = np.flatnonzero(free)
        code = self.code[places]
        order = np.lexsort((self.distance[places], code, -self.size[code], self.labels[code]))
        place = int(places[order[0]])
        if self.labels[self.code[place]]:
            return place, "typical of a large group"
        return place, "typical of a group without labels"

    def answered(self, place: int) -> None:
        """Learn that a row is answered."""
        self.labels[self.code[place]] += 1


def _nearness(own: NDArray[Any], members: NDArray[Any]) -> Floats:
    """Return the mean distance (m,) of rows (m, D) to their 10 nearest among others (M, D)."""
    squares = (own**2).sum(axis=1)[:, None] - 2 * own @ members.T + (members**2).sum(axis=1)
    nearest = np.sort(np.sqrt(np.maximum(squares, 0)), axis=1)[:, :TYPICAL_NEAREST]
    return np.asarray(nearest.mean(axis=1), dtype=np.float64)


class _Coverage:
    """What is left of the variance of P rows, and what an answer for each would take from it.

    The covariance is that of P rows minus the sum of f f^T over the rows answered since. O(P^2) for
    a row that is answered, as one product of the matrix and a vector.

    Args:
        covariance: (P, P). noise: sigma^2.

    Attributes:
        variance: (P,).
    """

    def __init__(self, covariance: NDArray[Any], noise: float) -> None:
        self.covariance = covariance.astype(np.float32)
        self.noise = noise
        self.variance = covariance.diagonal().astype(np.float64)
        sums = np.einsum("ij,ij->i", self.covariance, self.covariance)
        self.sums = sums.astype(np.float64)  # of C_ij^2 over j
        self.factors: list[NDArray[np.float32]] = []  # f, (P,) each

    def gain(self) -> Floats:
        """Return (P,) sum_j C_ij^2 / (C_ii + sigma^2)."""
        gain: Floats = np.maximum(self.sums, 0.0) / (self.variance + self.noise)
        return gain

    def answered(self, place: int) -> None:
        """Learn that a row is answered. O(P^2)."""
        scale = np.sqrt(max(float(self.variance[place]), 0.0) + self.noise)
        f = self.covariance[place].copy()
        for factor in self.factors:
            f -= factor[place] * factor
        f /= np.float32(scale)
        covered = self.covariance @ f
        for factor in self.factors:
            covered -= (factor @ f) * factor
        self.sums += -2.0 * f * covered + np.float64(f @ f) * f * f
        self.variance = np.maximum(self.variance - f * f, 0.0)
        self.factors.append(f)


def _doubt(probs: Floats, counts: NDArray[np.int64]) -> Floats:
    """Return (P,) u = (1 - p1 + p2) sum_c p_c nbar / n_c, with p1, p2 the largest two.

    Args:
        probs: (P, C). counts: (C,) labels.
    """
    first_two = np.partition(probs, -2, axis=1)[:, -2:]
    rarity = counts.mean() / np.maximum(counts, 1)
    doubt: Floats = (1 - first_two[:, 1] + first_two[:, 0]) * (probs @ rarity)
    return doubt


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


def _needs(pool: Pool, classes: Sequence[str]) -> tuple[dict[int, str], list[int]]:
    """Return the reason for each class in need, by its place in ``classes``, and the places of
    those that get no new label.
    """
    place_of = {name: place for place, name in enumerate(pool.names)}
    ours = np.array([place_of[name] for name in classes])
    labels = np.bincount(pool.known[pool.known >= 0], minlength=len(pool.names))[ours]
    pseudo = np.ones(len(ours), np.int64)
    if pool.answers is not None:
        given = pool.answers.codes[pool.answers.status == Status.PSEUDO]
        pseudo = np.bincount(given, minlength=len(pool.names))[ours]
    found = {}
    for code in codes_in_need(labels, pseudo).tolist():
        number = "1 label" if labels[code] == 1 else f"{labels[code]} labels"
        nothing = "" if pseudo[code] else " and gets no new ones"
        found[code] = f"which has {number}{nothing}"
    return found, [code for code in found if not pseudo[code]]
