"""Does semigpc find wrong labels as well as cleanlab does?

Labels of a data set are long-tailed, and a share of them is flipped to another class, each class
being as likely. A score of suspicion is judged by its AUROC, the chance that a flipped label has
more of it than a right one, and by its precision at k: how many of the k most suspicious labels are
wrong, k being the number of flipped ones.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from sklearn.metrics import roc_auc_score

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.peers import TUNED_PEERS, fit_tuned, held_out_probs
from benchmarks.problems import Pool
from benchmarks.tables import (
    DataNames,
    Embeddings,
    Jobs,
    Json,
    Mnist,
    Seeds,
    StudyFile,
    new_table,
    script,
    show,
    study,
)
from semigpc.estimator import SemiGPClassifier
from semigpc.estimator.fitting import fit_scalings
from semigpc.labeling.evidence import suspicion

OURS = "semigpc"
RATIO = 20  # labels of the largest class over those of the smallest
HEADS = {
    "digits": 120,
    "segments": 160,
    "satimage": 200,
    "texture": 120,
    "penbased": 120,
    "cifar10": 150,
    "mnist": 120,
}
FIGURES = ("auroc", "precision_at_k")
CLEANLAB = (
    "self_confidence",
    "normalized_margin",
    "confidence_weighted_entropy",
    "find_label_issues",
)
FED = ("logistic", "semigpc")  # where the probabilities are from
Record = dict[str, Any]
Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


@dataclass(frozen=True)
class Flips:
    """Long-tailed labels of a data set, and the share of them that is wrong."""

    data: str
    noise: float

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.data}, {100 * self.noise:g} % wrong"


PROBLEMS = tuple(Flips(data, noise) for data in HEADS for noise in (0.05, 0.1))


class Flipped(NamedTuple):
    """Labelled rows (n, D) with given codes (n,) and whether each is wrong (n,); unlabelled rows
    (u, D), as long-tailed.
    """

    X: NDArray[np.float32]
    codes: Codes
    wrong: NDArray[np.bool_]
    unlabeled: NDArray[np.float32]


def draw(problem: Flips, pool: Pool, seed: int) -> Flipped:
    """Which rows are there and which labels are wrong, by the seed."""
    rng = np.random.default_rng([seed, 41])
    classes = int(pool.codes.max()) + 1
    labelled = []
    unlabelled = []
    for rank, c in enumerate(rng.permutation(classes)):
        members = rng.permutation(np.flatnonzero(pool.codes == c))
        n = max(
            2, min(int(HEADS[problem.data] * RATIO ** (-rank / (classes - 1))), len(members) // 2)
        )
        labelled.append(members[:n])
        unlabelled.append(members[n : 2 * n])
    rows = np.concatenate(labelled)
    codes = pool.codes[rows].copy()
    wrong = np.zeros(len(rows), dtype=bool)
    wrong[rng.permutation(len(rows))[: round(problem.noise * len(rows))]] = True
    codes[wrong] = (codes[wrong] + rng.integers(1, classes, wrong.sum())) % classes
    return Flipped(pool.X[rows], codes, wrong, pool.X[np.concatenate(unlabelled)])


def find_flips(problem: Flips, pool: Pool, seed: int) -> Record:
    """Return the figures of semigpc's suspicion and of every score of cleanlab, on one problem and
    seed.

    cleanlab is fed with out-of-sample probabilities of balanced logistic regression, tuned like
    every peer, and apart from that with the left-out probabilities of semigpc.
    """
    task = draw(problem, pool, seed)
    y = np.concatenate([task.codes, np.full(len(task.unlabeled), -1)])
    model = SemiGPClassifier(random_state=seed).fit(np.concatenate([task.X, task.unlabeled]), y)
    left = model.leave_one_out()
    scores = {OURS: suspicion(left)}
    for source, probs in (
        ("logistic", logistic_probs(task, seed)),
        ("semigpc", left.proba.astype(np.float64)),
    ):
        scores |= {
            f"{name}, {source}": score for name, score in cleanlab_scores(task.codes, probs).items()
        }
    figures = {name: judge(task.wrong, score) for name, score in scores.items()}
    return {
        "problem": problem.name,
        "seed": seed,
        "labels": len(task.codes),
        "wrong": int(task.wrong.sum()),
        "scores": figures,
    }


def logistic_probs(task: Flipped, seed: int) -> Floats:
    """Return the probabilities (n, C) of each label's classes by balanced logistic regression on
    the other folds.
    """
    _, chosen = fit_tuned(TUNED_PEERS["logistic"], task.X, task.codes, task.unlabeled, seed=seed)
    scaling = fit_scalings(np.concatenate([task.X, task.unlabeled]), chosen["scaling"])[
        chosen["scaling"]
    ]
    return held_out_probs(scaling(task.X).numpy(), task.codes, chosen["parameter"], seed)


def cleanlab_scores(codes: Codes, probs: Floats) -> dict[str, Floats]:
    """Return the suspicion (n,) of given labels by each method of cleanlab, from probabilities (n,
    C).

    ``find_label_issues`` names a set of labels, ranked by their probability; the others follow in
    that order.
    """
    if find_spec("cleanlab") is None:
        raise ImportError("cleanlab is not installed: pip install 'semigpc[study]'.")
    from cleanlab.filter import find_label_issues
    from cleanlab.rank import get_label_quality_scores

    scores = {name: -get_label_quality_scores(codes, probs, method=name) for name in CLEANLAB[:3]}
    return scores | {
        "find_label_issues": find_label_issues(codes, probs, n_jobs=1) + scores["self_confidence"]
    }


def judge(wrong: NDArray[np.bool_], score: Floats) -> dict[str, float]:
    """Return the AUROC of a score (n,) of suspicion, and its precision at k = ``wrong.sum()``."""
    first = np.argsort(-score, kind="stable")[: int(wrong.sum())]
    return {
        "auroc": float(roc_auc_score(wrong, score)),
        "precision_at_k": float(wrong[first].mean()),
    }


def summarise(records: Sequence[Record]) -> Record:
    """Return means over seeds for each problem and score, and on how many problems semigpc is at or
    above cleanlab's best.
    """
    problems: dict[str, Record] = {}
    for name in dict.fromkeys(record["problem"] for record in records):
        mine = [record["scores"] for record in records if record["problem"] == name]
        means = {
            f: {score: float(np.mean([one[score][f] for one in mine])) for score in mine[0]}
            for f in FIGURES
        }
        problems[name] = {
            "seeds": len(mine),
            **means,
            "ahead": {f: _ahead(means[f], "logistic") for f in FIGURES},
        }
    return {
        "problems": problems,
        "at_or_above": {
            f: sum(problem["ahead"][f] >= 0 for problem in problems.values()) for f in FIGURES
        },
        "of": len(problems),
    }


def _ahead(means: Mapping[str, float], source: str) -> float:
    return means[OURS] - max(means[f"{name}, {source}"] for name in CLEANLAB)


def suspects(
    out: StudyFile,
    embeddings: Embeddings = None,
    data: DataNames = None,
    mnist: Mnist = None,
    seeds: Seeds = "0:20",
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """Find flipped labels by semigpc's suspicion, beside cleanlab.

    200 to 600 long-tailed labels of each data set, 5 or 10 % of them wrong.
    cleanlab (semigpc[study]) is fed with out-of-sample probabilities of
    balanced logistic regression, scaling and C chosen by cross-validation,
    and apart from that with semigpc's own.

      python benchmarks/suspects.py --mnist mnist.npz --seeds 0:20 --out suspects.json
    """
    sources: dict[str, Any] = {"embeddings": embeddings, "mnist": mnist, "data": data}
    summary = study(
        PROBLEMS, find_flips, summarise, out=out, plot=None, **sources, seeds=seeds, jobs=jobs
    )
    show(summary, lambda: [_table(summary, figure) for figure in FIGURES], as_json=as_json)


def _table(summary: Record, figure: str) -> Table:
    titles = {
        "auroc": "AUROC of wrong against right labels",
        "precision_at_k": "Share of the k most suspicious that is wrong",
    }
    short = {
        "self_confidence": "self",
        "normalized_margin": "margin",
        "confidence_weighted_entropy": "entropy",
    }
    headings = (f"{short.get(name, 'issues')}\n{source}" for source in FED for name in CLEANLAB)
    table = new_table(titles[figure], "problem", OURS, *headings)
    for name, problem in summary["problems"].items():
        best = max(problem[figure][f"{score}, logistic"] for score in CLEANLAB)
        cells = [
            f"{problem[figure][f'{score}, {source}']:.3f}" for source in FED for score in CLEANLAB
        ]
        own = problem[figure][OURS]
        table.add_row(name, f"[bold]{own:.3f}[/]" if own >= best else f"{own:.3f}", *cells)
    table.caption = (
        "cleanlab's scores, fed with probabilities of logistic regression and of semigpc; at or "
        f"above the best of the former on {summary['at_or_above'][figure]} of {summary['of']}"
    )
    return table


app = script(suspects)
if __name__ == "__main__":
    app()
