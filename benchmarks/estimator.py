"""How good are the labels of SemiGPClassifier beside those of scikit-learn, and which way to handle many labels is best?"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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
from sklearn.metrics import recall_score
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that the script can be started as a file too

from benchmarks.problems import PROBLEMS, Pool, Problem, Task, cut, read_arrays
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
from semigpc.estimator import STATUSES, SemiGPClassifier
from semigpc.estimator.confidence import best_logit_scale, class_scales
from semigpc.estimator.fitting import TUNED, balanced_subset, make_kernel, tune
from semigpc.estimator.memory import deal
from semigpc.estimator.peers import PEERS, fit_peer
from semigpc.estimator.scaling import fit_scalings
from semigpc.files import write_json
from semigpc.gp import Kernel, LowRankGP

OURS = "semigpc"
TARGET = 0.95  # the precision that is promised
KEPT = 16_384 / 40_000  # the share of many labels that thinning keeps
CHUNK = 1000  # queries at a time
Record = dict[str, Any]


def compare_on(problem: Problem, pool: Pool, seed: int) -> Record:
    """Return the figures of every method on one problem and seed, all with their defaults.

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
    """Return the mean over the classes of the share of their rows that is found."""
    return float(recall_score(truth, found, labels=np.unique(truth), average="macro"))


def summarise(records: Sequence[Record]) -> Record:
    """Return means over seeds for each problem and method, their spread, and what they come to over all problems."""
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


# More labels than one exact GP holds ---------------------------------------------------------------------------------


class ManyLabels(NamedTuple):
    """Labelled points (n, D) with one-hot targets (n, C), queries (M, D) with codes (M,), and the GP's settings."""

    points: Tensor
    targets: Tensor
    queries: Tensor
    codes: Tensor
    kernel: Kernel
    noise_std: float


Posterior = tuple[Tensor, Tensor, Tensor]  # mean (M, C) of centred targets, variance (M,), labels of each class (C,) in use
Candidate = Callable[[ManyLabels, int, int], Posterior]  # of a task, the number of rows that one GP may hold, and a seed


def exact(task: ManyLabels, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (M, C) of the centred targets and the variance (M,) from some rows, in float32 by one Cholesky factor.

    The noise of 0.2 or more that is picked for these data allows float32.
    """
    points = task.points[rows]
    K = task.kernel(points, points)
    K.diagonal().fill_(1 + task.noise_std**2)
    factor = torch.linalg.cholesky(K, out=K)
    alpha = torch.cholesky_solve(task.targets[rows] - task.targets[rows].mean(dim=0), factor)
    means, variances = [], []
    for chunk in task.queries.split(CHUNK):
        k = task.kernel(chunk, points)
        means.append(k @ alpha)
        variances.append(1 - torch.linalg.solve_triangular(factor, k.mT, upper=False).square().sum(dim=0))
    return torch.cat(means), torch.cat(variances)


def thinned(task: ManyLabels, limit: int, seed: int) -> Posterior:
    """One exact GP of at most ``limit`` rows, taken from the largest classes last."""
    rows = torch.from_numpy(balanced_subset(task.targets.argmax(dim=1).numpy(), limit, np.random.default_rng(seed)))
    return *exact(task, rows), task.targets[rows].sum(dim=0)


def ensemble(task: ManyLabels, parts: Sequence[Tensor], *, precision: bool = False) -> Posterior:
    """Exact GPs over parts of the rows; averaged, or weighted by their precision."""
    means, variances = (torch.stack(x) for x in zip(*[exact(task, part) for part in parts], strict=True))
    counts = torch.stack([task.targets[part].sum(dim=0) for part in parts]).mean(dim=0)
    weights = (variances + task.noise_std**2).reciprocal() if precision else torch.ones_like(variances)
    weights = weights / weights.sum(dim=0)
    return (weights.unsqueeze(2) * means).sum(dim=0), (weights * variances).sum(dim=0), counts


def shared(task: ManyLabels, limit: int, seed: int, *, share: float) -> Posterior:
    """Members as the estimator makes them: small classes are in all of them."""
    parts = deal(task.targets.argmax(dim=1).numpy(), round(share * limit), np.random.default_rng(seed))
    return ensemble(task, [torch.from_numpy(part) for part in parts])


def apart(task: ManyLabels, _limit: int, seed: int, *, members: int, precision: bool) -> Posterior:
    """Members with an equal share of the rows of every class, none of them twice."""
    order = torch.randperm(len(task.points), generator=torch.Generator().manual_seed(seed))
    order = order[task.targets.argmax(dim=1)[order].argsort(stable=True)]
    return ensemble(task, [order[member::members] for member in range(members)], precision=precision)


def low_rank(task: ManyLabels, _limit: int, seed: int, *, rank: int) -> Posterior:
    """A GP of ``rank`` landmarks over all rows."""
    (n, width), classes = task.points.shape, task.targets.shape[1]
    engine = LowRankGP(n, width, classes, rank=rank, kernel=task.kernel, noise_std=task.noise_std, seed=seed)
    engine.replace(torch.arange(n), task.points, task.targets)
    mean = engine.mean(task.queries, offset=task.targets.mean(dim=0))
    return mean, engine.variance(task.queries), task.targets.sum(dim=0)


CANDIDATES: dict[str, Candidate] = {
    "thinned": thinned,
    **{f"shared, {share:g}": partial(shared, share=share) for share in (0.75, 1.0)},
    **{f"apart, {m}": partial(apart, members=m, precision=False) for m in (3, 5)},
    **{f"apart, {m}, precision": partial(apart, members=m, precision=True) for m in (3, 5)},
    **{f"rank {m}": partial(low_rank, rank=m) for m in (1024, 2048, 4096)},
}


def judge(task: ManyLabels, mean: Tensor, variance: Tensor, counts: Tensor, seed: int) -> dict[str, float]:
    """Return the balanced accuracy of all queries, and the balanced NLL of one half at the logit scale that suits the other."""
    scores, codes = (mean * class_scales(counts)).double(), task.codes
    first, second = torch.randperm(len(codes), generator=torch.Generator().manual_seed(seed)).tensor_split(2)
    scale = best_logit_scale(scores[first], codes[first], math.log(19 * 9) / 0.8)
    own = torch.log_softmax(scale * scores[second], dim=1).gather(1, codes[second, None]).squeeze(1)
    nll = [-float(own[codes[second] == c].mean()) for c in codes.unique()]
    accuracy = balanced_accuracy(codes.numpy(), scores.argmax(dim=1).numpy())
    return {"balanced_accuracy": accuracy, "nll": float(np.mean(nll)), "variance": float(variance.mean())}


def draw_labels(codes: NDArray[Any], labels: int, ratio: float, rng: np.random.Generator) -> NDArray[Any]:
    """Return positions of labelled rows: equally many of every class, or falling by ``ratio`` from the first to the last."""
    classes = rng.permutation(np.unique(codes))
    head = min(int(np.bincount(codes).min()), labels // len(classes))
    counts = (head * ratio ** (-np.arange(len(classes)) / (len(classes) - 1))).round().astype(int)
    drawn = [rng.permutation(np.flatnonzero(codes == c))[:n] for c, n in zip(classes, counts, strict=True)]
    return np.sort(np.concatenate(drawn))


def make_task(
    data: Mapping[str, NDArray[Any]], labels: int, ratio: float, queries: int, seed: int
) -> tuple[ManyLabels, Record]:
    """Return one draw of labels, and the scaling and hyper-parameters that are chosen on it as the estimator chooses them."""
    rng = np.random.default_rng(seed)
    rows = draw_labels(data["y_train"], labels, ratio, rng)
    X, codes = data["x_train"][rows], data["y_train"][rows]
    tuned = balanced_subset(codes, TUNED, rng)
    scalings = fit_scalings(X, labels=len(X))
    points = {name: scaling(X[tuned]) for name, scaling in scalings.items()}
    setting = tune(points, torch.from_numpy(codes[tuned]), kernel="rbf", length_scale=None, noise_std=None)
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
    return task, {"scaling": setting.scaling, "length_scale": setting.length_scale, "noise_std": setting.noise_std}


def many_labels(
    path: Path, out: Path, *, seeds: range, labels: int = 40_000, ratios: Sequence[float] = (1.0, 100.0), queries: int = 4000
) -> list[Record]:
    """Run every candidate on balanced and on long-tailed draws of labels, and write the records after each."""
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
                figures = judge(task, *found, seed) | {"seconds": round(time.perf_counter() - began, 1)}
                records.append({"seed": seed, "ratio": ratio, "labels": n, "candidate": name, **chosen, **figures})
                write_json(out, records)
    return records


def estimator(
    out: StudyFile,
    embeddings: Embeddings = None,
    data: DataNames = None,
    mnist: Mnist = None,
    seeds: Seeds = "0:5",
    jobs: Jobs = 1,
    many: Annotated[
        Path | None,
        typer.Option("--many-labels", metavar="NPZ", exists=True, dir_okay=False, help="x_train, y_train, x_test, y_test."),
    ] = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Compare SemiGPClassifier with scikit-learn on long-tailed problems.

    Balanced accuracy on rows nobody saw, for long-tailed labels (A) and for as
    many labels of every class (B), all methods with their defaults; and what
    came of target_precision=0.95 on the unlabelled rows.

    Digits come with scikit-learn, segments with river (semigpc[study]); for
    CIFAR-10 give embeddings:

      semigpc embed cifar10 --image-size 96 --out cifar10.parquet
      python benchmarks/estimator.py --embeddings cifar10.parquet --out study.json

    With --many-labels it is asked instead what to do with 40 000 labels: keep
    fewer of them, use landmarks, or average several GPs.

      python benchmarks/estimator.py --many-labels mnist.npz --seeds 2 --out many.json
    """
    if many is not None:
        records = many_labels(many, out, seeds=read_seeds(seeds))
        show(records, lambda: [_many_table(records)], as_json=as_json)
        return
    summary = study(
        PROBLEMS,
        compare_on,
        summarise,
        out=out,
        plot=plot,
        embeddings=embeddings,
        mnist=mnist,
        data=data,
        seeds=seeds,
        jobs=jobs,
    )
    if plot is not None:
        titles = {OURS: "SemiGPClassifier", **{name: peer.title for name, peer in PEERS.items()}}
        draw_estimator_study(summary, titles, OURS, plot)
    show(summary, lambda: _tables(summary), as_json=as_json)


def _tables(summary: Record) -> list[Table]:
    methods = (method.replace("_", "\n") for method in summary["overall"])
    accuracy = new_table("Balanced accuracy, mean over seeds", "problem", *methods)
    for name, problem in summary["problems"].items():
        best = max(problem["mean"].values())
        cells = (f"[bold]{100 * value:.1f}[/]" if value == best else f"{100 * value:.1f}" for value in problem["mean"].values())
        accuracy.add_row(name, *cells)
    accuracy.add_row("all", *(f"{100 * value:.1f}" for value in summary["overall"].values()), style="bold")
    accuracy.caption = (
        f"{100 * summary['ahead_of_best_peer']:+.1f} points on average over the best of the others, {summary['best_peer']}; "
        f"on a single problem {100 * summary['least_ahead_on_one']:+.1f} at worst over the best there"
    )
    promise = new_table(f"With target_precision={TARGET}", "problem", "right", "labelled", "silent seeds")
    for name, problem in summary["problems"].items():
        promise.add_row(name, _percent(problem["precision"]), _percent(problem["coverage"]), str(problem["silent"] or ""))
    promise.add_row("all", _percent(summary["precision"]), _percent(summary["coverage"]), "", style="bold")
    return [accuracy, promise]


def _many_table(records: Sequence[Record]) -> Table:
    table = new_table("More labels than one GP holds", "candidate", "labels", "seed", "balanced accuracy", "balanced NLL", "s")
    for record in records:
        figures = (_percent(record["balanced_accuracy"]), f"{record['nll']:.3f}", f"{record['seconds']:.1f}")
        table.add_row(record["candidate"], str(record["labels"]), str(record["seed"]), *figures)
    return table


def _percent(share: float | None) -> str:
    return "none" if share is None else f"{100 * share:.1f} %"


def draw_estimator_study(summary: Mapping[str, Any], titles: Mapping[str, str], ours: str, path: Path) -> None:
    """Draw the balanced accuracy of each method, one row per problem, with the standard error of ours over seeds.

    Args:
        summary: of the study. titles: method -> legend, ours among them.
    """
    problems = summary["problems"]
    figure = Figure(figsize=(9.5, 0.42 * len(problems) + 2.0), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    rows = name_rows(axes, problems)
    others = [method for method in titles if method != ours]
    for (method, marker), colour in zip(zip(others, "ovs^dPX", strict=False), COLOURS[1:], strict=False):
        values = [100 * problem["mean"][method] for problem in problems.values()]
        axes.plot(values, rows, marker, color=colour, label=titles[method], markersize=6, alpha=0.85, zorder=3)
    values = [100 * problem["mean"][ours] for problem in problems.values()]
    errors = [100 * problem["std"][ours] / problem["seeds"] ** 0.5 for problem in problems.values()]
    axes.errorbar(values, rows, xerr=errors, fmt="D", color=COLOURS[0], label=titles[ours], markersize=8, capsize=3, zorder=2)
    label = "balanced accuracy in percent; bars: standard error of SemiGPClassifier"
    dress(axes, "Long-tailed problems, all methods with their defaults", label)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path)


app = script(estimator)
if __name__ == "__main__":
    app()
