"""Which rows are worth asking people about? Answers from zero labels on, a simulated person giving
the true class of every row that is chosen.

The rows to choose among have a long tail; the test rows have the same number of each class, and
nobody chooses from them. Every way to choose is judged by the mean balanced accuracy over the first
200 answers, with SemiGPClassifier and with tuned logistic regression as the learner; a class that
has no label yet counts as missed.
"""

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import NearestNeighbors

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.peers import TUNED_PEERS, balanced_accuracy, fit_tuned
from benchmarks.problems import TESTED, Pool
from benchmarks.tables import (
    COLOURS,
    DataNames,
    Embeddings,
    Jobs,
    Json,
    Plot,
    Seeds,
    StudyFile,
    dress,
    new_table,
    script,
    show,
    study,
)
from semigpc.estimator import SemiGPClassifier
from semigpc.estimator.fitting import fit_scalings
from semigpc.labeling.choose import Choice, choose
from semigpc.labeling.choose import Pool as Askable

OURS = "semigpc"
NO_RANDOM = "semigpc, no random cards"
AT_RANDOM = "random, 100 orders"
ORDERS = 100  # random ones of the rows, over which answers until every class was met are averaged
ROUND = 20  # answers between two fits
ANSWERS = 200  # that are judged
LATE_ROUND = 50  # answers between two fits after these, until every class has been met
TUNED_AT = (20, 60)  # answers after which C of logistic regression is tuned
COLUMNS = 256  # principal components of the rows, with which fits are 2 to 5 times faster
GRADE = 0.9  # precision that is guaranteed
CHECKED = (100, 150, 200)  # answers after which the guarantee is looked at
FIRST_ROWS = 1200  # photographs of a first sitting ...
FIRST_ANSWERS = 150  # ... the answers in it ...
FIRST_ROUND = 10  # ... and those between two fits
FREQUENCIES = (2, 3, 4, 6, 10)  # cards of which one is drawn at random
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
QUICK = {"sharpness": 1.0, "target_precision": None, "self_training": 0, "scaling": "centered"}
GUARANTEED = {"target_precision": GRADE, "self_training": 0, "scaling": "centered"}


def fit_gp(X: Rows, labels: Codes, seed: int, **options: Any) -> SemiGPClassifier:
    """Return SemiGPClassifier for labels (n,), -1 without.

    QUICK leaves out the guarantee, which does not change the classes, and self-training. Rows are
    scaled as embeddings are, since principal components are no columns of a table.

    Args:
        options: of the classifier, and ``drawn`` (n,) of its fit.
    """
    drawn = options.pop("drawn", None)
    model = SemiGPClassifier(random_state=seed, **options)
    return model.fit(X, labels, drawn=drawn, transduce=False)


def predict_gp(model: SemiGPClassifier, classes: int) -> Predictor:
    """Return how to predict probabilities (M, classes)."""

    def predict(rows: Rows) -> Probs:
        probs = np.zeros((len(rows), classes))
        probs[:, model.classes_] = model.predict_proba(rows)
        return probs

    return predict


class Logistic:
    """Balanced logistic regression of centred unit rows, with C by cross-validation of the labels.

    C is chosen again after TUNED_AT answers.
    """

    def __init__(self, session: Session, seed: int) -> None:
        self.session = session
        self.seed = seed
        self.classes = int(session.truth.max()) + 1
        self.scaling = fit_scalings(session.X, "centered")["centered"]
        self.C = 1.0

    def fit(self, labels: Codes) -> Predictor:
        """Return how to predict probabilities (M, classes)."""
        X = self.session.X
        known = np.flatnonzero(labels >= 0)
        if len(known) in TUNED_AT:
            _, codes = np.unique(labels[known], return_inverse=True)
            _, chosen = fit_tuned(LOGISTIC, X[known], codes, X[labels < 0], seed=self.seed)
            self.C = chosen["parameter"]
        model = LogisticRegression(C=self.C, class_weight="balanced", max_iter=500, tol=1e-3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of iterations that were not enough, as in the tuning
            model.fit(self.scaling(X[known]).numpy(), labels[known])

        def predict(rows: Rows) -> Probs:
            probs = np.zeros((len(rows), self.classes))
            probs[:, model.classes_] = model.predict_proba(self.scaling(rows).numpy())
            return probs

        return predict


LOGISTIC = replace(TUNED_PEERS["logistic"], grid=(10.0, 1.0, 100.0), scalings=("centered",))


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
    rows: Rows, labels: Codes, model: SemiGPClassifier | None, count: int, **options: Any
) -> list[Choice]:
    """Return what our chooser asks next; rows (n, D) are in a random order already."""
    order = np.arange(len(rows))
    names = [str(c) for c in range(int(labels.max(initial=0)) + 1)]
    pool = Askable(lambda wanted: rows[wanted], labels, labels < 0, order, names, model)
    return choose(pool, count, **options)


# A run --------------------------------------------------------------------------------------------

Ask = Callable[[Codes, Any, int], Codes]  # from labels, a fitted learner and a count to rows


def ask_until(
    session: Session,
    ask: Ask,
    fit: Callable[[Codes], Any] | None,
    *,
    most: int,
    late: bool = False,
    step: int = ROUND,
) -> tuple[list[int], list[Codes]]:
    """Return the rows in the order in which they were asked, and the labels (n,) after each round.

    Args:
        ask: chooses rows. fit: a learner, from two classes on; None if it takes none.
        most: answers. late: whether to go on until every class has been met; these labels are not
            returned. step: answers between two fits.
    """
    classes = int(session.truth.max()) + 1
    labels = np.full(len(session.X), -1, np.int64)
    asked: list[int] = []
    rounds = []
    while len(asked) < most or (late and len(np.unique(session.truth[asked])) < classes):
        count = min(step if len(asked) < most else LATE_ROUND, int((labels < 0).sum()))
        if not count:
            break
        has_two = len(np.unique(labels[labels >= 0])) > 1
        model = fit(labels.copy()) if fit is not None and has_two else None
        rows = ask(labels, model, count)
        labels[rows] = session.truth[rows]
        asked += [int(row) for row in rows]
        if len(asked) <= most:
            rounds.append(labels.copy())
    return asked, rounds


def first_met(asked: Sequence[int], truth: Codes) -> int | None:
    """Return after how many answers every class had been met; None if some never were."""
    _, first = np.unique(truth[list(asked)], return_index=True)
    return int(first.max()) + 1 if len(first) == int(truth.max()) + 1 else None


def met_at_random(truth: Codes, seed: int) -> float:
    """Return after how many answers every class has been met on average over ORDERS random orders.

    In a single order it is the first row of the rarest class that decides, so that its mean over
    five seeds is known to a quarter of itself only.
    """
    rng = np.random.default_rng([seed, 61])
    found = [first_met(rng.permutation(len(truth)).tolist(), truth) for _ in range(ORDERS)]
    return float(np.mean([each for each in found if each is not None]))


def accuracies(
    session: Session, rounds: Sequence[Codes], fit: Callable[[Codes], Predictor]
) -> list[float]:
    """Return the balanced accuracy on the test rows after each round; 1 / C without a learner."""
    found = []
    for labels in rounds:
        known = np.unique(labels[labels >= 0])
        codes = np.full(len(session.X_test), known[0])
        if len(known) > 1:
            codes = fit(labels)(session.X_test).argmax(axis=1)
        found.append(balanced_accuracy(session.truth_test, codes))
    return found


def half_guaranteed(session: Session, asked: Sequence[int], seed: int) -> int | None:
    """Return after how many answers half of the other rows are guaranteed; None if never.

    Looked at after CHECKED answers. Rows count as drawn up to the first one in the random order
    that was not asked.
    """
    for count in CHECKED:
        labels = np.full(len(session.X), -1, np.int64)
        labels[list(asked[:count])] = session.truth[list(asked[:count])]
        if len(np.unique(labels)) < 3:
            continue
        if guaranteed_share(session.X, labels, seed)[0] >= 1 / 2:
            return count
    return None


def guaranteed_share(
    X: Rows, labels: Codes, seed: int, **options: Any
) -> tuple[float, SemiGPClassifier]:
    """Return the share of the other rows that is guaranteed at GRADE, and the model."""
    drawn = np.arange(len(X)) < int((labels < 0).argmax())
    model = fit_gp(X, labels, seed, drawn=drawn, **(GUARANTEED | options))
    grade = model.answer(X[labels < 0], top=0).grade
    return float((grade >= np.float32(GRADE)).mean()), model


class Quick:
    """SemiGPClassifier without its guarantee and self-training, fitted once to the same labels."""

    def __init__(self, session: Session, seed: int) -> None:
        self.session = session
        self.seed = seed
        self.fitted: dict[bytes, SemiGPClassifier] = {}

    def fit(self, labels: Codes) -> SemiGPClassifier:
        """Return it for labels (n,), -1 without."""
        mark = labels.tobytes()
        if mark not in self.fitted:
            self.fitted[mark] = fit_gp(self.session.X, labels, self.seed, **QUICK)
        return self.fitted[mark]

    def predicting(self, labels: Codes) -> Predictor:
        """Return how to predict probabilities (M, classes)."""
        return predict_gp(self.fit(labels), int(self.session.truth.max()) + 1)


class Course(NamedTuple):
    """What came of a way to choose: balanced accuracy after each round, the answers until every
    class was met, and the rows asked.
    """

    accuracy: list[float]
    met: int | None
    asked: list[int]


def follow_ours(session: Session, seed: int, **options: Any) -> Course:
    """Return the course of our chooser, which goes on until every class has been met."""
    quick = Quick(session, seed)

    def ask(labels: Codes, model: Any, count: int) -> Codes:
        choices = ask_ours(session.X, labels, model, count, **options)
        return np.array([choice.row for choice in choices])

    asked, rounds = ask_until(session, ask, quick.fit, most=ANSWERS, late=True)
    accuracy = accuracies(session, rounds, quick.predicting)
    return Course(accuracy, first_met(asked, session.truth), asked)


def follow_peer(name: str, session: Session, seed: int) -> dict[str, Course]:
    """Return the course of a peer with each learner, by the name of both."""
    found = {}
    for learner, fit in (
        ("GP", Quick(session, seed).predicting),
        ("logistic", Logistic(session, seed).fit),
    ):
        rng = np.random.default_rng(seed)

        def ask(labels: Codes, predict: Any, count: int, rng: np.random.Generator = rng) -> Codes:
            return PEERS[name](State(session.X, labels, predict, rng), count)

        learn = None if name in WITHOUT_MODEL else fit
        asked, rounds = ask_until(session, ask, learn, most=ANSWERS)
        accuracy = accuracies(session, rounds, fit)
        found[f"{name}, {learner}"] = Course(accuracy, first_met(asked, session.truth), asked)
    return found


def ask_everybody(problem: Asking, pool: Pool, seed: int) -> Record:
    """Return the figures of every way to choose, on one problem and seed.

    ``accuracy`` has the balanced accuracy after each round by way and learner, ``met`` the answers
    until every class was met, for semigpc also beyond ANSWERS, and ``half`` the answers until half
    of the rows are guaranteed; at random, ``met`` is counted over all rows.
    """
    session = draw(problem, pool, seed)
    courses = {
        OURS: follow_ours(session, seed),
        NO_RANDOM: follow_ours(session, seed, random_every=0),
    }
    for name in PEERS:
        courses |= follow_peer(name, session, seed)
    met: dict[str, float | None] = {name: course.met for name, course in courses.items()}
    met["random"] = first_met(range(len(session.X)), session.truth)
    met[AT_RANDOM] = round(met_at_random(session.truth, seed), 1)
    half = {
        OURS: half_guaranteed(session, courses[OURS].asked, seed),
        "random": half_guaranteed(session, range(ANSWERS), seed),
    }
    return {
        "problem": problem.name,
        "seed": seed,
        "rows": len(session.X),
        "classes": int(session.truth.max()) + 1,
        "accuracy": {
            name: [round(each, 4) for each in course.accuracy] for name, course in courses.items()
        },
        "met": met,
        "half": half,
    }


# From nothing -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sitting:
    """A first sitting with photographs of a data set and no label.

    Args:
        data: name of the data set. random_every: cards of which one is drawn at random.
    """

    data: str
    random_every: int

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.data}, one of {self.random_every} at random"


SITTINGS = tuple(
    Sitting(data, every) for data in ("waste", "signs", "cifar10") for every in FREQUENCIES
)


def sit(sitting: Sitting, pool: Pool, seed: int) -> Record:
    """Return what FIRST_ANSWERS truthful answers to our chooser bring, from no label on.

    FIRST_ROWS photographs are drawn at random, so that classes keep their shares; the model is
    fitted again after every FIRST_ROUND answers, and for the last time with all its defaults on the
    embeddings as they are.

    Returns:
        ``guaranteed``, the share of the other rows that is guaranteed at GRADE, ``precision``, the
        share of these that is right, ``accuracy`` and ``balanced_accuracy`` on the photographs that
        nobody chose from, ``drawn``, the answers that count for the guarantee, and ``met``.
    """
    rng = np.random.default_rng([seed, 59])
    order = rng.permutation(len(pool.codes))
    rows = order[:FIRST_ROWS]
    X_test, truth_test = pool.X[order[FIRST_ROWS:]], pool.codes[order[FIRST_ROWS:]]
    if pool.X_test is not None and pool.codes_test is not None:
        X_test, truth_test = pool.X_test[:TESTED], pool.codes_test[:TESTED]
    X, _ = components(pool.X[rows], X_test[:1])
    session = Session(X, pool.codes[rows], X_test, truth_test)

    def ask(labels: Codes, model: Any, count: int) -> Codes:
        found = ask_ours(X, labels, model, count, random_every=sitting.random_every)
        return np.array([choice.row for choice in found])

    def quick(labels: Codes) -> SemiGPClassifier:
        return fit_gp(X, labels, seed, **QUICK)

    asked, rounds = ask_until(session, ask, quick, most=FIRST_ANSWERS, step=FIRST_ROUND)
    labels = rounds[-1]
    share, model = guaranteed_share(
        pool.X[rows], labels, seed, self_training="auto", scaling="auto"
    )
    free = labels < 0
    answers = model.answer(pool.X[rows][free], top=0)
    given = answers.grade >= np.float32(GRADE)
    right = model.classes_[answers.codes] == session.truth[free]
    tested = model.predict(X_test)
    return {
        "problem": sitting.name,
        "seed": seed,
        "answers": len(asked),
        "drawn": int((labels[: int(free.argmax())] >= 0).sum()),
        "guaranteed": round(share, 4),
        "precision": round(float(right[given].mean()), 4) if given.any() else None,
        "accuracy": round(float((tested == truth_test).mean()), 4),
        "balanced_accuracy": round(balanced_accuracy(truth_test, tested), 4),
        "met": first_met(asked, session.truth),
    }


# What the records come to -------------------------------------------------------------------------


def summarise(records: Sequence[Record]) -> Record:
    """Return means over seeds by problem, means over problems, and which bars are reached.

    ``best_peer`` is the way and learner with the largest mean over problems. Where a class was not
    met within ANSWERS by a peer, ``met`` counts ANSWERS, so that it is a lower bound.
    """
    problems: dict[str, Record] = {}
    for name in dict.fromkeys(record["problem"] for record in records):
        mine = [record for record in records if record["problem"] == name]
        methods = mine[0]["accuracy"]
        problems[name] = {
            "seeds": len(mine),
            "area": {each: _mean(r["accuracy"][each] for r in mine) for each in methods},
            "curve": {
                each: np.mean([r["accuracy"][each] for r in mine], axis=0).round(4).tolist()
                for each in methods
            },
            "met": {
                each: _mean(r["met"][each] or ANSWERS for r in mine) for each in mine[0]["met"]
            },
            "half": {each: [r["half"][each] for r in mine] for each in mine[0]["half"]},
        }
    every = list(problems.values())
    area = {each: _mean(problem["area"][each] for problem in every) for each in every[0]["area"]}
    met = {each: _mean(problem["met"][each] for problem in every) for each in every[0]["met"]}
    best = max((each for each in area if each not in (OURS, NO_RANDOM)), key=area.__getitem__)
    ratios = {
        f"{own} / {other}": _mean(problem["met"][own] / problem["met"][other] for problem in every)
        for own in (OURS, NO_RANDOM)
        for other in ("random", AT_RANDOM)
    }
    return {
        "problems": problems,
        "area": area,
        "met": met,
        "best_peer": best,
        "ahead": {own: area[own] - area[best] for own in (OURS, NO_RANDOM)},
        "met_of_random": ratios,
    }


def summarise_sittings(records: Sequence[Record]) -> Record:
    """Return the means over seeds of every sitting."""
    found = {}
    for name in dict.fromkeys(record["problem"] for record in records):
        mine = [record for record in records if record["problem"] == name]
        figures = ("guaranteed", "precision", "accuracy", "balanced_accuracy", "drawn", "met")
        found[name] = {"seeds": len(mine)} | {
            figure: _mean(r[figure] for r in mine if r[figure] is not None) for figure in figures
        }
    return {"sittings": found}


def _mean(values: Iterable[float]) -> float:
    several = list(values)
    return float(np.mean(several)) if several else math.nan


def answers(
    out: StudyFile,
    embeddings: Embeddings = None,
    data: DataNames = None,
    seeds: Seeds = "0:5",
    jobs: Jobs = 1,
    plot: Plot = None,
    from_nothing: Annotated[
        bool, typer.Option("--from-nothing", help="150 answers to 1 200 photographs, no label.")
    ] = False,
    random_every: Annotated[
        list[int] | None,
        typer.Option(help="With --from-nothing: one random card of so many; repeat for several."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Ask a truthful person about the rows that each method chooses, from zero labels on.

    Ours and random, margin, entropy, k-means++, typical clusters and k-center,
    these six with SemiGPClassifier and with tuned logistic regression. With
    --from-nothing: what the first 150 answers bring, by the share of cards
    that is drawn at random.

      python benchmarks/answers.py --embeddings waste=waste.parquet --out answers.json
    """
    options: dict[str, Any] = {"embeddings": embeddings, "data": data, "seeds": seeds, "jobs": jobs}
    if from_nothing:
        chosen = [each for each in SITTINGS if each.random_every in (random_every or FREQUENCIES)]
        found = study(chosen, sit, summarise_sittings, out=out, plot=None, **options)
        show(found, lambda: [_sittings_table(found)], as_json=as_json)
        return
    summary = study(PROBLEMS, ask_everybody, summarise, out=out, plot=plot, **options)
    if plot is not None:
        draw_curves(summary, plot)
    show(summary, lambda: [_area_table(summary), _met_table(summary)], as_json=as_json)


def draw_curves(summary: Record, path: Path) -> None:
    """Draw the balanced accuracy over the answers, one panel for each problem."""
    problems = summary["problems"]
    figure = Figure(figsize=(4 * len(problems), 3.6), layout="constrained")
    shown = (OURS, NO_RANDOM, *(f"{name}, GP" for name in PEERS))
    for place, (name, problem) in enumerate(problems.items()):
        axes = figure.add_subplot(1, len(problems), place + 1)
        for method, colour in zip(shown, COLOURS, strict=False):
            curve = problem["curve"][method]
            x = np.arange(1, len(curve) + 1) * ROUND
            axes.plot(x, curve, color=colour, label=method, lw=2 if method == OURS else 1)
        dress(axes, name, "answers", "balanced accuracy" if not place else "")
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=120)


def _area_table(summary: Record) -> Table:
    problems = summary["problems"]
    table = new_table(
        f"Mean balanced accuracy over {ANSWERS} answers, %", "method", *problems, "mean"
    )
    for method, mean in sorted(summary["area"].items(), key=lambda pair: -pair[1]):
        cells = [f"{100 * problem['area'][method]:.1f}" for problem in problems.values()]
        table.add_row(method, *cells, f"{100 * mean:.1f}")
    ahead = ", ".join(f"{name} {100 * each:+.1f}" for name, each in summary["ahead"].items())
    table.caption = f"points ahead of {summary['best_peer']}: {ahead}"
    return table


def _met_table(summary: Record) -> Table:
    problems = summary["problems"]
    table = new_table("Answers until every class was met", "method", *problems)
    for method in summary["met"]:
        table.add_row(method, *(f"{problem['met'][method]:.0f}" for problem in problems.values()))
    ratios = ", ".join(f"{name} {each:.2f}" for name, each in summary["met_of_random"].items())
    table.caption = (
        f"of those at random, mean over problems: {ratios}; peers were stopped at {ANSWERS}"
    )
    return table


def _sittings_table(summary: Record) -> Table:
    table = new_table(
        f"{FIRST_ANSWERS} answers to {FIRST_ROWS} photographs without a label, %",
        "data and cards",
        "seeds",
        f"guaranteed\nat {100 * GRADE:.0f} %",
        "of these\nright",
        "accuracy",
        "balanced\naccuracy",
        "answers\ndrawn",
        "all classes\nmet after",
    )
    for name, each in summary["sittings"].items():
        shares = ("guaranteed", "precision", "accuracy", "balanced_accuracy")
        cells = [f"{100 * each[figure]:.1f}" for figure in shares]
        table.add_row(
            name, str(each["seeds"]), *cells, f"{each['drawn']:.0f}", f"{each['met']:.0f}"
        )
    return table


app = script(answers)
if __name__ == "__main__":
    app()
