"""Learned kernels beside given ones, on the estimator's problems: likelihood and accuracy of rows whose labels nobody saw.

Every variant sees the same points: rows as the estimator scales them, put on the unit sphere as the refiner does. All are
chosen by the labelled rows alone, and so is lambda, by the same rule for all: the one for which softmax(lambda mu_-i) makes the
labelled rows, each left out, most probable, every class counting the same, with the estimator's prior around the usual lambda.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from semigpc.bench.estimator import balanced_accuracy
from semigpc.bench.long_tails import Pool, Problem, Task, cut
from semigpc.estimator.confidence import best_logit_scale
from semigpc.estimator.fitting import tune
from semigpc.estimator.scaling import fit_scalings
from semigpc.gp import RBF, Kernel
from semigpc.gp.learning import learn_kernel
from semigpc.refiners import auto_logit_scale

VARIANTS = {
    "default": "paper's kernel",
    "grid": "estimator's grid",
    "marginal": "learned, marginal likelihood",
    "leave_one_out": "learned, leave-one-out",
    "per_class": "learned for each class, leave-one-out",
}
LEARNED: dict[str, dict[str, Any]] = {
    "marginal": {"objective": "marginal"},
    "leave_one_out": {"objective": "leave_one_out"},
    "per_class": {"objective": "leave_one_out", "per_class": True},
}
PAPER = RBF(length_scale=0.1**0.5), 0.1**0.5
VALIDATED = 2000  # unlabelled rows that are judged by at most
Record = dict[str, Any]
Chosen = tuple[Sequence[Kernel], Sequence[float]]


class Points(NamedTuple):
    """Labelled points (n, D) with codes (n,), points to judge by (M, D) with the truth (M,); and the grid's choice."""

    labelled: Tensor
    codes: Tensor
    judged: Tensor
    truth: NDArray[np.int64]
    grid: Chosen


def study_on(problem: Problem, pool: Pool, seed: int) -> Record:
    """Every variant on one problem and seed: mean negative log-likelihood and balanced accuracy of the unlabelled rows."""
    points = points_of(cut(problem, pool, seed), seed)
    targets = F.one_hot(points.codes, int(points.truth.max()) + 1).double()
    chosen: dict[str, Chosen] = {"default": ([PAPER[0]], [PAPER[1]]), "grid": points.grid}
    for name, options in LEARNED.items():
        found = learn_kernel(points.labelled, targets, *PAPER, generator=torch.Generator().manual_seed(seed), **options)
        chosen[name] = found.kernels, found.noise_stds
    variants = {name: judge(points, targets, *chosen[name]) for name in VARIANTS}
    return {"problem": problem.name, "seed": seed, "labels": len(targets), "rows": len(points.truth), "variants": variants}


def points_of(task: Task, seed: int) -> Points:
    """The points of a task. Its scaling, and the grid's l and sigma, are those of least leave-one-out error."""
    known = task.codes >= 0
    codes = torch.from_numpy(task.codes[known])
    scalings = fit_scalings(task.X, labels=len(codes))
    scaled = {name: F.normalize(scaling(task.X[known]), dim=1) for name, scaling in scalings.items()}
    setting = tune(scaled, codes, kernel="rbf", length_scale=None, noise_std=None)
    judged = np.sort(np.random.default_rng([seed, 31]).permutation(np.flatnonzero(~known))[:VALIDATED])
    queries = F.normalize(scalings[setting.scaling](task.X[judged]), dim=1)
    grid = [RBF(length_scale=setting.length_scale)], [setting.noise_std]
    return Points(scaled[setting.scaling].double(), codes, queries.double(), task.truth[judged], grid)


def judge(points: Points, targets: Tensor, kernels: Sequence[Kernel], noise_stds: Sequence[float]) -> dict[str, Any]:
    """What one choice comes to, with the lambda that suits it best by the labelled rows."""
    mean, left_out = posterior_means(points, targets, kernels, noise_stds)
    alone = torch.bincount(points.codes, minlength=targets.shape[1])[points.codes] < 2
    left_out[alone, points.codes[alone]] = -math.inf  # who is alone in a class says nothing of it
    logit_scale = best_logit_scale(left_out, points.codes, auto_logit_scale(targets.shape[1]))
    truth = torch.from_numpy(points.truth)
    own = torch.log_softmax(logit_scale * mean, dim=1).gather(1, truth.unsqueeze(1)).squeeze(1)
    by_class = torch.stack([own[truth == c].mean() for c in truth.unique()])
    return {
        "nll": -float(own.mean()),
        "balanced_nll": -float(by_class.mean()),
        "balanced_accuracy": balanced_accuracy(points.truth, mean.argmax(dim=1).numpy()),
        "logit_scale": logit_scale,
        "length_scale": [getattr(kernel, "length_scale", None) for kernel in kernels],
        "output_scale": [getattr(kernel, "output_scale", None) for kernel in kernels],
        "noise_std": list(noise_stds),
    }


def posterior_means(
    points: Points, targets: Tensor, kernels: Sequence[Kernel], noise_stds: Sequence[float]
) -> tuple[Tensor, Tensor]:
    """mu of the judged points (M, C), and of the labelled ones without themselves (n, C); one kernel, or one a class."""
    parts = targets.split(1, dim=1) if len(kernels) > 1 else (targets,)
    means, left_out = [], []
    for y, kernel, noise_std in zip(parts, kernels, noise_stds, strict=True):
        K = kernel(points.labelled, points.labelled)
        K.diagonal().copy_(kernel.diagonal(points.labelled) + noise_std**2)
        P = torch.linalg.inv(K)
        alpha = P @ y
        means.append(kernel(points.judged, points.labelled) @ alpha)
        left_out.append(y - alpha / P.diagonal().unsqueeze(1))
    return torch.cat(means, dim=1), torch.cat(left_out, dim=1)


def summarise(records: Sequence[Record]) -> Record:
    """Means and spreads over seeds for each problem and variant, and on how many problems a variant beats the given kernels."""
    problems: dict[str, Record] = {}
    for name in dict.fromkeys(record["problem"] for record in records):
        mine = [record["variants"] for record in records if record["problem"] == name]
        problems[name] = {"seeds": len(mine)}
        for figure in ("nll", "balanced_nll", "balanced_accuracy"):
            found = {variant: [record[variant][figure] for record in mine] for variant in VARIANTS}
            problems[name][figure] = {
                variant: {
                    "mean": float(np.mean(values)),
                    "std": float(np.std(values)),
                    "gain": float(np.mean(np.subtract(values, found["default"]))),
                    "gain_error": float(np.std(np.subtract(values, found["default"])) / len(mine) ** 0.5),
                }
                for variant, values in found.items()
            }
    better = {
        variant: {
            given: sum(problem["nll"][variant]["mean"] < problem["nll"][given]["mean"] for problem in problems.values())
            for given in ("default", "grid")
        }
        for variant in VARIANTS
    }
    overall = {
        figure: {variant: float(np.mean([p[figure][variant]["mean"] for p in problems.values()])) for variant in VARIANTS}
        for figure in ("nll", "balanced_nll", "balanced_accuracy")
    }
    return {"problems": problems, "overall": overall, "lower_nll_than": better, "of_problems": len(problems)}
