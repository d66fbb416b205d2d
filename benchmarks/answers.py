"""Which rows are worth asking people about? Answers from zero labels on, a simulated person giving
the true class of every row that is chosen.

The rows to choose among have a long tail; the test rows have the same number of each class, and
nobody chooses from them. Every way to choose is judged by the mean balanced accuracy over the first
200 answers, with SemiGPClassifier and with tuned logistic regression as the learner; a class that
has no label yet counts as missed.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.peers import TUNED_PEERS, fit_tuned
from benchmarks.problems import Pool
from semigpc.estimator import SemiGPClassifier
from semigpc.estimator.fitting import fit_scalings
from semigpc.labeling.choose import Choice, choose
from semigpc.labeling.choose import Pool as Askable

OURS = "semigpc"
ROUND = 20  # answers between two fits
ANSWERS = 200  # that are judged
LATE_ROUND = 50  # answers between two fits after these, until every class has been seen
COLUMNS = (
    256  # principal components that the rows are reduced to, which makes fits 2 to 5 times faster
)
GRADE = 0.9  # precision that is guaranteed
CHECKED = (50, 100, 150, 200)  # answers after which the guarantee is looked at
Record = dict[str, Any]
Rows = NDArray[np.float32]
Codes = NDArray[np.int64]
Probs = NDArray[np.float64]


@dataclass(frozen=True)
class Asking:
    """Rows with a long tail to choose from.

    Args:
        data: name of the data set. ratio: rows of the largest class over those of the smallest.
        head: rows of the largest class at most. tested: rows of each class that are tested.
    """

    data: str
    ratio: float
    head: int
    tested: int

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.data}, ratio {self.ratio:g}"


PROBLEMS = (
    Asking("waste", 10, 400, 40),
    Asking("signs", 10, 150, 50),
    Asking("digits", 10, 130, 45),
    Asking("cifar10", 20, 450, 100),
    Asking("cifar100", 10, 35, 20),
)


class Session(NamedTuple):
    """Rows (n, D) to ask about with their classes (n,), in a random order, and rows to judge by."""

    X: Rows
    truth: Codes
    X_test: Rows
    truth_test: Codes


def draw(problem: Asking, pool: Pool, seed: int) -> Session:
    """Return the rows of a problem for a seed, as their principal components.

    Classes get a random order by the seed, which decides who is frequent.
    """
    rng = np.random.default_rng([seed, 53])
    classes = int(pool.codes.max()) + 1
    asked = []
    tested = []
    apart = pool.X_test is not None and pool.codes_test is not None
    for rank, c in enumerate(rng.permutation(classes)):
        members = rng.permutation(np.flatnonzero(pool.codes == c))
        if apart:
            tested.append(rng.permutation(np.flatnonzero(pool.codes_test == c))[: problem.tested])
        else:
            tested.append(members[: problem.tested])
            members = members[problem.tested :]
        share = problem.ratio ** (-rank / (classes - 1))
        asked.append(members[: max(2, int(problem.head * share))])
    rows = rng.permutation(np.concatenate(asked))
    judged = np.concatenate(tested)
    X_test, codes_test = (pool.X_test, pool.codes_test) if apart else (pool.X, pool.codes)
    assert X_test is not None
    assert codes_test is not None
    X, X_judged = components(pool.X[rows], X_test[judged])
    return Session(X, pool.codes[rows], X_judged, codes_test[judged])


def components(X: Rows, others: Rows) -> tuple[Rows, Rows]:
    """Return rows (n, D) and others (m, D) as principal components of the rows, not centred."""
    if X.shape[1] <= COLUMNS:
        return X, others
    wide = (X - X.mean(axis=0)).astype(np.float64)
    _, vectors = np.linalg.eigh(wide.T @ wide)
    axes = vectors[:, ::-1][:, :COLUMNS].astype(np.float32)
    return X @ axes, others @ axes


# Learners -----------------------------------------------------------------------------------------

Predictor = Callable[[Rows], Probs]


def fit_gp(session: Session, labels: Codes, seed: int, **options: Any) -> SemiGPClassifier:
    """Return SemiGPClassifier for labels (n,), -1 without.

    Without a guarantee its classes are the same, and a fit takes a third of the time.
    """
    options = {"sharpness": 1.0, "target_precision": None} | options
    drawn = options.pop("drawn", None)
    model = SemiGPClassifier(random_state=seed, **options)
    return model.fit(session.X, labels, drawn=drawn, transduce=False)


def predict_gp(model: SemiGPClassifier, classes: int) -> Predictor:
    """Return how to predict probabilities (M, classes)."""

    def predict(rows: Rows) -> Probs:
        probs = np.zeros((len(rows), classes))
        probs[:, model.classes_] = model.predict_proba(rows)
        return probs

    return predict


LOGISTIC = replace(
    TUNED_PEERS["logistic"], grid=(1.0, 0.1, 10.0), scalings=("unit", "centered", "standard")
)


def fit_logistic(session: Session, labels: Codes, classes: int, seed: int) -> Predictor:
    """Return balanced logistic regression with scaling and C by cross-validation of the labels."""
    known = np.flatnonzero(labels >= 0)
    free = session.X[labels < 0]
    _, chosen = fit_tuned(LOGISTIC, session.X[known], labels[known], free, seed=seed)
    scaling = fit_scalings(session.X, chosen["scaling"])[chosen["scaling"]]
    model = LogisticRegression(
        C=chosen["parameter"], class_weight="balanced", max_iter=500, tol=1e-3
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of iterations that were not enough, as in the tuning
        model.fit(scaling(session.X[known]).numpy(), labels[known])

    def predict(rows: Rows) -> Probs:
        probs = np.zeros((len(rows), classes))
        probs[:, model.classes_] = model.predict_proba(scaling(rows).numpy())
        return probs

    return predict


# Ways to choose -----------------------------------------------------------------------------------


class State(NamedTuple):
    """What a way to choose may know: rows (n, D), labels (n,) with -1, and a learner if there is
    one.
    """

    X: Rows
    labels: Codes
    predict: Predictor | None
    rng: np.random.Generator

    @property
    def open(self) -> Codes:
        """Rows without a label."""
        return np.flatnonzero(self.labels < 0)


Chooser = Callable[[State, int], Codes]


def at_random(state: State, count: int) -> Codes:
    """Return open rows at random: the first ones, as rows are in a random order."""
    return state.open[:count]


def by_margin(state: State, count: int) -> Codes:
    """Return the rows of the smallest p of the first over the second class; at random without a
    model.
    """
    if state.predict is None:
        return at_random(state, count)
    best = np.sort(state.predict(state.X[state.open]), axis=1)[:, -2:]
    return state.open[np.argsort(best[:, 1] - best[:, 0], kind="stable")[:count]]


def by_entropy(state: State, count: int) -> Codes:
    """Return the rows of the largest entropy; at random without a model."""
    if state.predict is None:
        return at_random(state, count)
    probs = state.predict(state.X[state.open])
    entropy = -(probs * np.log(np.maximum(probs, 1e-12))).sum(axis=1)
    return state.open[np.argsort(-entropy, kind="stable")[:count]]


def by_coreset(state: State, count: int) -> Codes:
    """Return rows that are each the farthest from all labelled and chosen ones (k-center)."""
    return _spread(state, count, lambda nearest: int(nearest.argmax()))


def by_kmeans_pp(state: State, count: int) -> Codes:
    """Return rows drawn with probabilities in proportion to the squared distance from all labelled
    and chosen ones (k-means++).
    """

    def pick(nearest: Probs) -> int:
        return int(state.rng.choice(len(nearest), p=nearest / nearest.sum()))

    return _spread(state, count, pick)


def _spread(state: State, count: int, pick: Callable[[Probs], int]) -> Codes:
    rows = angles(state.X)
    nearest = np.full(len(rows), 2.0)
    chosen: list[int] = []

    def add(row: int) -> None:
        distances = np.maximum(2 - 2 * rows @ rows[row], 0)
        np.minimum(nearest, distances, out=nearest)
        nearest[row] = 0

    for row in np.flatnonzero(state.labels >= 0).tolist():
        add(row)
    if not nearest.min() < 2:
        chosen.append(0)
        add(0)
    while len(chosen) < count:
        chosen.append(pick(nearest))
        add(chosen[-1])
    return np.array(chosen)


def by_typical(state: State, count: int) -> Codes:
    """Return the most typical row of each of the largest clusters without a label (TypiClust).

    There are as many clusters as labels and rows wanted, at most 500; a row is typical whose 20
    nearest in its cluster are near.
    """
    rows = angles(state.X)
    known = state.labels >= 0
    clusters = min(int(known.sum()) + count, 500)
    code = KMeans(clusters, n_init=1, random_state=int(state.rng.integers(2**31))).fit_predict(rows)
    labelled = np.bincount(code[known], minlength=clusters)
    size = np.bincount(code, minlength=clusters)
    chosen: list[int] = []
    free = ~known
    while len(chosen) < count:
        order = np.lexsort((-size, labelled))
        cluster = next(int(c) for c in order if (free & (code == c)).any())
        members = np.flatnonzero(code == cluster)
        near = NearestNeighbors(n_neighbors=min(20, len(members))).fit(rows[members])
        distance = near.kneighbors(rows[members])[0].mean(axis=1)
        row = int(members[np.where(free[members], distance, np.inf).argmin()])
        chosen.append(row)
        free[row] = False
        labelled[cluster] += 1
    return np.array(chosen)


def angles(X: Rows) -> Probs:
    """Return rows of length 1 after the mean is taken off."""
    rows = X - X.mean(axis=0, dtype=np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.asarray(rows / np.maximum(lengths, 1e-12))


PEERS: Mapping[str, Chooser] = {
    "random": at_random,
    "margin": by_margin,
    "entropy": by_entropy,
    "kmeans++": by_kmeans_pp,
    "typical": by_typical,
    "coreset": by_coreset,
}
WITHOUT_MODEL = ("random", "kmeans++", "typical", "coreset")


def ask_ours(
    session: Session, labels: Codes, model: SemiGPClassifier | None, count: int, **options: Any
) -> list[Choice]:
    """Return what our chooser asks next; rows are in a random order already."""
    classes = int(session.truth.max()) + 1
    rows = session.X
    order = np.arange(len(rows))
    names = [str(c) for c in range(classes)]
    pool = Askable(lambda wanted: rows[wanted], labels, labels < 0, order, names, model)
    return choose(pool, count, **options)
