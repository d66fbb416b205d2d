"""Does the GP's variance find rows of no known class, and wrong labels, better than other scores?

Half of the classes of a data set are known by a few labels each; the unlabelled rows are of all
classes. A score is judged by its AUROC, the chance that a row of a known class has more of it than
one of an unknown class, and those of the GP also by
their risk: how many labels are wrong among the share of rows that they are surest of.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import LocalOutlierFactor, NearestNeighbors

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.problems import Pool
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
    name_rows,
    new_table,
    script,
    show,
    study,
)
from semigpc.estimator import SemiGPClassifier
from semigpc.estimator.fitting import fit_scalings

ROWS = ("known", "all")  # that a risk is of
SHORT = {"probability": "prob."}  # as tables have it
MARKERS = "Dsv^"  # of the scores in the figure
EACH = 200  # unlabelled rows of a class at most
NEIGHBOURS = 20  # of the local outlier factor, if there are so many labels: scikit-learn's default
CONFIDENCES = ("variance", "probability")  # the scores of the GP
SCORES = {
    "variance": "GP: variance explained",
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
    """Rows (n, D) with codes (n,), -1 where unlabelled, and what they are (n,): -1 if of no known
    class.
    """

    X: NDArray[np.float32]
    codes: NDArray[np.int64]
    truth: NDArray[np.int64]


def draw(problem: Screening, pool: Pool, seed: int) -> Strangers:
    """Which classes are known, which rows are labelled, and which are there at all, by the seed."""
    rng = np.random.default_rng([seed, 29])
    classes = rng.permutation(int(pool.codes.max()) + 1)
    known = len(classes) // 2
    rows = []
    codes = []
    truth = []
    for code, c in enumerate(classes):
        members = rng.permutation(np.flatnonzero(pool.codes == c))
        labels = problem.labels if code < known else 0
        members = members[: labels + EACH]
        rows.append(members)
        truth.append(np.full(len(members), code if code < known else -1))
        codes.append(np.where(np.arange(len(members)) < labels, code, -1))
    return Strangers(pool.X[np.concatenate(rows)], np.concatenate(codes), np.concatenate(truth))


def screen(problem: Screening, pool: Pool, seed: int) -> Record:
    """Every score on one problem and seed: ``auroc`` of each, and ``risk`` of those of the GP.

    Risks are of labels given to rows of known classes (``known``), and to all rows, of which those
    of unknown classes are wrong whatever the label (``all``): at half coverage, and on average over
    all coverages.
    """
    task = draw(problem, pool, seed)
    model = SemiGPClassifier(random_state=seed).fit(task.X, task.codes)
    free = task.codes < 0
    truth = task.truth[free]
    answers = model.answer(task.X[free], top=0)
    scores: dict[str, NDArray[Any]] = {
        "variance": 1 - model.predict_variance(task.X[free]),
        "probability": answers.confidence,
    }
    points = fit_scalings(task.X, model.scaling_)[model.scaling_](
        task.X
    ).numpy()  # as the GP sees them
    given = points[~free]
    scores["nearest"] = (
        -NearestNeighbors(n_neighbors=1).fit(given).kneighbors(points[free])[0][:, 0]
    )
    factor = LocalOutlierFactor(n_neighbors=min(NEIGHBOURS, len(given) - 1), novelty=True).fit(
        given
    )
    scores["lof"] = factor.score_samples(points[free])
    right = answers.codes == truth
    known = truth >= 0
    return {
        "problem": problem.name,
        "seed": seed,
        "rows": {"known": int(known.sum()), "unknown": int((~known).sum())},
        "accuracy": float(right[known].mean()),
        "auroc": {name: float(roc_auc_score(known, scores[name])) for name in SCORES},
        "risk": {
            kind: {
                "known": risk(scores[kind][known], right[known]),
                "all": risk(scores[kind], right),
            }
            for kind in CONFIDENCES
        },
    }


def risk(confidence: NDArray[Any], right: NDArray[np.bool_]) -> dict[str, float]:
    """Share of wrong labels among the surer half (``half``), and the mean over all coverages 1/n ..
    1 (``area``).

    Args:
        confidence: (n,); equal ones count as if in random order. right: (n,).
    """
    order = np.argsort(-confidence, kind="stable")
    levels, places = np.unique(-confidence[order], return_inverse=True)
    wrong = np.bincount(places, weights=~right[order], minlength=len(levels)) / np.bincount(
        places, minlength=len(levels)
    )
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
            "risk": {
                kind: _mean_risk([record["risk"][kind] for record in mine]) for kind in CONFIDENCES
            },
        }
    overall = {
        score: float(np.mean([problem["auroc"][score] for problem in problems.values()]))
        for score in SCORES
    }
    risks = {
        kind: _mean_risk([problem["risk"][kind] for problem in problems.values()])
        for kind in CONFIDENCES
    }
    return {"problems": problems, "auroc": overall, "risk": risks}


def _mean_risk(risks: Sequence[Record]) -> Record:
    return {
        rows: {key: float(np.mean([one[rows][key] for one in risks])) for key in ("half", "area")}
        for rows in ROWS
    }


def screening(
    out: StudyFile,
    embeddings: Embeddings = None,
    data: DataNames = None,
    seeds: Seeds = "0:10",
    jobs: Jobs = 1,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Screen rows of unknown classes by the variance, beside other scores.

    Half of the classes are known by a few labels each; unlabelled rows are of
    all. The AUROC says how well a score tells the known from the unknown, the
    risk how many labels are wrong among the half it is surest of. Peers: the
    distance to the nearest label, and scikit-learn's LocalOutlierFactor.

    Digits come with scikit-learn, segments with river (semigpc[study]); for
    CIFAR-10 give embeddings:

      python benchmarks/screening.py --data digits --seeds 5 --out screening.json
      python benchmarks/screening.py --embeddings cifar10=cifar10.parquet --out s.json
    """
    summary = study(
        PROBLEMS,
        screen,
        summarise,
        out=out,
        plot=plot,
        embeddings=embeddings,
        data=data,
        seeds=seeds,
        jobs=jobs,
    )
    if plot is not None:
        draw_screening(summary, SCORES, plot)
    show(summary, lambda: _tables(summary), as_json=as_json)


def _tables(summary: dict[str, Any]) -> list[Table]:
    headings = (SHORT.get(score, score) for score in summary["auroc"])
    auroc = new_table("AUROC of known against unknown classes", "problem", *headings)
    for name, problem in summary["problems"].items():
        best = max(problem["auroc"].values())
        spread = problem["auroc_std"]
        cells = {
            score: f"{value:.3f} ±{spread[score]:.2f}".replace("±0", "±")
            for score, value in problem["auroc"].items()
        }
        auroc.add_row(
            name,
            *(
                f"[bold]{cell}[/]" if problem["auroc"][score] == best else cell
                for score, cell in cells.items()
            ),
        )
    auroc.add_row("all", *(f"{value:.3f}    " for value in summary["auroc"].values()), style="bold")
    auroc.caption = (
        "mean ± deviation over seeds; 0.5 is chance. nearest: distance to a label; "
        "lof: LocalOutlierFactor"
    )
    kinds = list(summary["risk"])
    headings = (f"{SHORT.get(kind, kind)}\n{rows}" for rows in ROWS for kind in kinds)
    risk = new_table("Wrong labels in percent, of the half each is surest of", "problem", *headings)
    for name, problem in {**summary["problems"], "all": summary}.items():
        halves = (
            f"{100 * problem['risk'][kind][key]['half']:.1f}" for key in ROWS for kind in kinds
        )
        risk.add_row(name, *halves, style="bold" if name == "all" else "")
    risk.caption = (
        "known: of rows of known classes; all: of all rows, where labels of unknown classes are "
        "wrong"
    )
    return [auroc, risk]


def draw_screening(summary: Mapping[str, Any], titles: Mapping[str, str], path: Path) -> None:
    """Draw the AUROC of every score, and the risk of the scores of the GP over all coverages, one
    row per problem.

    Args:
        summary: of the study. titles: score -> legend.
    """
    problems = summary["problems"]
    figure = Figure(figsize=(10, 0.5 * len(problems) + 2.4), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for number, ((score, title), marker) in enumerate(zip(titles.items(), MARKERS, strict=True)):
        rows = [
            place + 0.12 * (1.5 - number) for place in name_rows(left, problems)
        ]  # apart, so that bars can be told
        values = [problem["auroc"][score] for problem in problems.values()]
        errors = [
            problem["auroc_std"][score] / problem["seeds"] ** 0.5 for problem in problems.values()
        ]
        look = {
            "fmt": marker,
            "color": COLOURS[(0, 3, 2, 4)[number]],
            "markersize": 6,
            "capsize": 2,
        }
        left.errorbar(values, rows, xerr=errors, label=title, **look)
        if score in summary["risk"]:
            areas = [100 * problem["risk"][score]["known"]["area"] for problem in problems.values()]
            right.plot(areas, rows, marker, color=look["color"], markersize=6)
    left.axvline(0.5, color="#999999", linewidth=1, linestyle="--")
    dress(
        left,
        "Rows of no known class",
        "AUROC, known against unknown classes;\nbars: standard error",
    )
    dress(right, "Abstaining", "wrong labels of known classes in percent,\nmean over all coverages")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path)


app = script(screening)
if __name__ == "__main__":
    app()
