"""SemiGPClassifier beside what scikit-learn offers, on long-tailed problems: balanced accuracy, precision kept, seconds."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semigpc.bench.long_tails import Pool, Problem, Task, cut
from semigpc.estimator import STATUSES, SemiGPClassifier
from semigpc.estimator.peers import PEERS, fit_peer

OURS = "semigpc"
TARGET = 0.95
Record = dict[str, Any]


def compare_on(problem: Problem, pool: Pool, seed: int) -> Record:
    """Every method on one problem and seed, all with their defaults.

    ``methods`` has the balanced accuracy on rows that nobody saw, and the seconds of fitting and predicting. ``promise``
    has what came of ``target_precision``: the share of unlabelled rows that got a label, and how many of these are right.
    """
    task = cut(problem, pool, seed)
    methods = {OURS: _timed(_ours, task, seed), **{name: _timed(_theirs, task, name) for name in PEERS}}
    return {"problem": problem.name, "seed": seed, "methods": methods, "promise": _promise(task, seed)}


def _ours(task: Task, seed: int) -> NDArray[Any]:
    return SemiGPClassifier(random_state=seed).fit(task.X, task.codes).predict(task.X_test)


def _theirs(task: Task, name: str) -> NDArray[Any]:
    known = task.codes >= 0
    return fit_peer(PEERS[name], task.X[known], task.codes[known], task.X[~known]).predict(task.X_test)


def _timed(method: Callable[[Task, Any], NDArray[Any]], task: Task, which: Any) -> dict[str, float]:
    began = time.perf_counter()
    found = method(task, which)
    seconds = time.perf_counter() - began
    return {"balanced_accuracy": balanced_accuracy(task.truth_test, found), "seconds": seconds}


def _promise(task: Task, seed: int) -> dict[str, float | None]:
    model = SemiGPClassifier(target_precision=TARGET, random_state=seed).fit(task.X, task.codes)
    pool = task.codes < 0
    answers = model.answer(task.X[pool], top=0)
    given = answers.status == STATUSES.index("pseudo")
    right = answers.codes == task.truth[pool]
    return {
        "target": TARGET,
        "coverage": float(given.mean()),
        "precision": float(right[given].mean()) if given.any() else None,
        "precision_of_all": float(right.mean()),
    }


def balanced_accuracy(truth: NDArray[np.int64], found: NDArray[Any]) -> float:
    """Mean over classes of the share of their rows that is found."""
    return float(np.mean([np.mean(found[truth == c] == c) for c in np.unique(truth)]))


def summarise(records: Sequence[Record]) -> Record:
    """Means over seeds for each problem and method, their spread, and what they come to over all problems."""
    problems: dict[str, Record] = {}
    for name in dict.fromkeys(record["problem"] for record in records):
        mine = [record for record in records if record["problem"] == name]
        found = {method: [record["methods"][method]["balanced_accuracy"] for record in mine] for method in mine[0]["methods"]}
        kept = [record["promise"]["precision"] for record in mine if record["promise"]["precision"] is not None]
        problems[name] = {
            "seeds": len(mine),
            "mean": {method: float(np.mean(values)) for method, values in found.items()},
            "std": {method: float(np.std(values)) for method, values in found.items()},
            "precision": float(np.mean(kept)) if kept else None,
            "silent": len(mine) - len(kept),
            "coverage": float(np.mean([record["promise"]["coverage"] for record in mine])),
        }
    methods = next(iter(problems.values()))["mean"]
    overall = {method: float(np.mean([problem["mean"][method] for problem in problems.values()])) for method in methods}
    best = max((method for method in overall if method != OURS), key=overall.__getitem__)
    behind = {
        name: problem["mean"][OURS] - max(value for method, value in problem["mean"].items() if method != OURS)
        for name, problem in problems.items()
    }
    precisions = [problem["precision"] for problem in problems.values() if problem["precision"] is not None]
    return {
        "problems": problems,
        "overall": overall,
        "best_peer": best,
        "ahead_of_best_peer": overall[OURS] - overall[best],
        "least_ahead_on_one": min(behind.values()),
        "precision": float(np.mean(precisions)) if precisions else None,
        "coverage": float(np.mean([problem["coverage"] for problem in problems.values()])),
    }
