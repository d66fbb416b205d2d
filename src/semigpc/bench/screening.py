"""Which rows belong to no known class, and which labels are wrong: what a GP's variance says of it, beside other scores.

Half of the classes of a data set are known by a few labels each; the unlabelled rows are of all classes. A score is judged by
its AUROC, the chance that a row of a known class has more of it than one of an unknown class, and a confidence also by its
risk: how many labels are wrong among the share of rows that it is surest of.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from semigpc.bench.long_tails import Pool
from semigpc.estimator import SemiGPClassifier
from semigpc.estimator.confidence import Confidence
from semigpc.estimator.scaling import fit_scalings

EACH = 200  # unlabelled rows of a class at most
NEIGHBOURS = 20  # of the local outlier factor, if there are so many labels: scikit-learn's default
CONFIDENCES: tuple[Confidence, ...] = get_args(Confidence)
SCORES = {
    "variance": "GP: variance explained",
    "expected": "GP: expected probability",
    "probability": "GP: probability",
    "nearest": "distance to the nearest label",
    "lof": "LocalOutlierFactor",
}
Record = dict[str, Any]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Screening:
    """Half of the classes of a data set, known by so many labels each."""

    data: str
    labels: int

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.data}, {self.labels} each"


PROBLEMS = tuple(
    Screening(data, labels)
    for data, counts in {"cifar10": (4, 25, 100), "digits": (4, 10), "segments": (4, 10)}.items()
    for labels in counts
)


class Strangers(NamedTuple):
    """Rows (n, D) with codes (n,), -1 where unlabelled, and what they are (n,): -1 if of no known class."""

    X: NDArray[np.float32]
    codes: NDArray[np.int64]
    truth: NDArray[np.int64]


def draw(problem: Screening, pool: Pool, seed: int) -> Strangers:
    """Which classes are known, which rows are labelled, and which are there at all, by the seed."""
    rng = np.random.default_rng([seed, 29])
    classes = rng.permutation(int(pool.codes.max()) + 1)
    known = len(classes) // 2
    rows, codes, truth = [], [], []
    for code, c in enumerate(classes):
        members = rng.permutation(np.flatnonzero(pool.codes == c))
        labels = problem.labels if code < known else 0
        members = members[: labels + EACH]
        rows.append(members)
        truth.append(np.full(len(members), code if code < known else -1))
        codes.append(np.where(np.arange(len(members)) < labels, code, -1))
    return Strangers(pool.X[np.concatenate(rows)], np.concatenate(codes), np.concatenate(truth))


def screen(problem: Screening, pool: Pool, seed: int) -> Record:
    """Every score on one problem and seed: ``auroc`` of each, and ``risk`` of the three confidences.

    Risks are of labels given to rows of known classes (``known``), and to all rows, of which those of unknown classes are
    wrong whatever the label (``all``): at half coverage, and on average over all coverages.
    """
    from sklearn.metrics import roc_auc_score
    from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

    task = draw(problem, pool, seed)
    model = SemiGPClassifier(random_state=seed).fit(task.X, task.codes)
    free = task.codes < 0
    truth = task.truth[free]
    answers = {kind: model.set_params(confidence=kind).answer(task.X[free], top=0) for kind in CONFIDENCES}
    scores: dict[str, NDArray[Any]] = {kind: answer.confidence for kind, answer in answers.items()}
    points = fit_scalings(task.X, model.scaling_)[model.scaling_](task.X).numpy()  # as the GP sees them
    given = points[~free]
    scores["nearest"] = -NearestNeighbors(n_neighbors=1).fit(given).kneighbors(points[free])[0][:, 0]
    factor = LocalOutlierFactor(n_neighbors=min(NEIGHBOURS, len(given) - 1), novelty=True).fit(given)
    scores["lof"] = factor.score_samples(points[free])
    right = answers["probability"].codes == truth
    known = truth >= 0
    return {
        "problem": problem.name,
        "seed": seed,
        "rows": {"known": int(known.sum()), "unknown": int((~known).sum())},
        "accuracy": float(right[known].mean()),
        "auroc": {name: float(roc_auc_score(known, scores[name])) for name in SCORES},
        "risk": {
            kind: {"known": risk(scores[kind][known], right[known]), "all": risk(scores[kind], right)} for kind in CONFIDENCES
        },
    }


def risk(confidence: NDArray[Any], right: NDArray[np.bool_]) -> dict[str, float]:
    """Share of wrong labels among the surer half (``half``), and the mean over all coverages 1/n .. 1 (``area``).

    Args:
        confidence: (n,); equal ones count as if in random order. right: (n,).
    """
    order = np.argsort(-confidence, kind="stable")
    levels, places = np.unique(-confidence[order], return_inverse=True)
    wrong = np.bincount(places, weights=~right[order], minlength=len(levels)) / np.bincount(places, minlength=len(levels))
    curve = np.cumsum(wrong[places]) / np.arange(1, len(order) + 1)
    return {"half": float(curve[(len(curve) - 1) // 2]), "area": float(curve.mean())}


def summarise(records: Sequence[Record]) -> Record:
    """Means over seeds and their spread, for each problem, and means over problems."""
    problems: dict[str, Record] = {}
    for name in dict.fromkeys(record["problem"] for record in records):
        mine = [record for record in records if record["problem"] == name]
        found = {score: np.array([record["auroc"][score] for record in mine]) for score in SCORES}
        problems[name] = {
            "seeds": len(mine),
            "accuracy": float(np.mean([record["accuracy"] for record in mine])),
            "auroc": {score: float(values.mean()) for score, values in found.items()},
            "auroc_std": {score: float(values.std()) for score, values in found.items()},
            "risk": {kind: _mean_risk([record["risk"][kind] for record in mine]) for kind in CONFIDENCES},
        }
    overall = {score: float(np.mean([problem["auroc"][score] for problem in problems.values()])) for score in SCORES}
    risks = {kind: _mean_risk([problem["risk"][kind] for problem in problems.values()]) for kind in CONFIDENCES}
    return {"problems": problems, "auroc": overall, "risk": risks}


def _mean_risk(risks: Sequence[Record]) -> Record:
    return {
        rows: {key: float(np.mean([one[rows][key] for one in risks])) for key in ("half", "area")} for rows in ("known", "all")
    }
