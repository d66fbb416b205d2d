"""Are learned kernels better than given ones, on rows whose labels nobody saw?

Every variant sees the same points: rows as the estimator scales them, put on the unit sphere as the
refiner does. All are
chosen by the labelled rows alone, and so is lambda, by the same rule for all: the one for which
softmax(lambda mu_-i) makes the labelled rows, each left out, most probable, every class counting
the same, with the estimator's prior around the usual lambda.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table
from torch import Tensor

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.peers import balanced_accuracy
from benchmarks.problems import PROBLEMS, Pool, Problem, Task, cut
from benchmarks.references import kernel_matrix
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
    script,
    show,
    study,
)
from semigpc.estimator.calibration import best_logit_scale
from semigpc.estimator.fitting import fit_scalings
from semigpc.gp import RBF, Kernel
from semigpc.gp.certainty import auto_logit_scale
from semigpc.gp.scales import choose_by_grid, learn_kernel, left_out_residuals

VARIANTS = {
    "default": "paper's kernel",
    "grid": "estimator's grid",
    "leave_one_out": "learned, leave-one-out",
}
PAPER = RBF(length_scale=0.1**0.5), 0.1**0.5
MARKERS = "os"  # of the variants in the figure
VALIDATED = 2000  # unlabelled rows that are judged by at most
Record = dict[str, Any]


class Points(NamedTuple):
    """Labelled points (n, D) with codes (n,), points to judge by (M, D) with the truth (M,); and
    the grid's choice.
    """

    labelled: Tensor
    codes: Tensor
    judged: Tensor
    truth: NDArray[np.int64]
    grid: tuple[Kernel, float]


def study_on(problem: Problem, pool: Pool, seed: int) -> Record:
    """Every variant on one problem and seed: mean negative log-likelihood and balanced accuracy of
    the unlabelled rows.
    """
    points = points_of(cut(problem, pool, seed), seed)
    targets = F.one_hot(points.codes, int(points.truth.max()) + 1).double()
    learned = learn_kernel(points.labelled, targets, *PAPER, seed=seed)
    chosen: dict[str, tuple[Kernel, float]] = {
        "default": PAPER,
        "grid": points.grid,
        "leave_one_out": (learned.kernel, learned.noise_std),
    }
    variants = {name: judge(points, targets, *chosen[name]) for name in VARIANTS}
    return {
        "problem": problem.name,
        "seed": seed,
        "labels": len(targets),
        "rows": len(points.truth),
        "variants": variants,
    }


def points_of(task: Task, seed: int) -> Points:
    """The points of a task. Its scaling, and the grid's l and sigma, are those of least
    leave-one-out error.
    """
    known = task.codes >= 0
    codes = torch.from_numpy(task.codes[known])
    scalings = fit_scalings(task.X, labels=len(codes))
    scaled = {
        name: F.normalize(scaling(task.X[known]), dim=1) for name, scaling in scalings.items()
    }
    setting = choose_by_grid(scaled, codes, kernel="rbf")
    judged = np.sort(
        np.random.default_rng([seed, 31]).permutation(np.flatnonzero(~known))[:VALIDATED]
    )
    queries = F.normalize(scalings[setting.scaling](task.X[judged]), dim=1)
    grid = RBF(length_scale=setting.length_scale), setting.noise_std
    return Points(
        scaled[setting.scaling].double(), codes, queries.double(), task.truth[judged], grid
    )


def judge(points: Points, targets: Tensor, kernel: Kernel, noise_std: float) -> dict[str, Any]:
    """What one choice comes to, with the lambda that suits it best by the labelled rows."""
    mean, left_out = posterior_means(points, targets, kernel, noise_std)
    alone = torch.bincount(points.codes, minlength=targets.shape[1])[points.codes] < 2
    left_out[alone, points.codes[alone]] = -math.inf  # cannot be validated
    logit_scale = best_logit_scale(left_out, points.codes, auto_logit_scale(targets.shape[1]))
    truth = torch.from_numpy(points.truth)
    own = torch.log_softmax(logit_scale * mean, dim=1).gather(1, truth.unsqueeze(1)).squeeze(1)
    by_class = torch.stack([own[truth == c].mean() for c in truth.unique()])
    return {
        "nll": -float(own.mean()),
        "balanced_nll": -float(by_class.mean()),
        "balanced_accuracy": balanced_accuracy(points.truth, mean.argmax(dim=1).numpy()),
        "logit_scale": logit_scale,
        "kernel": repr(kernel),
        "noise_std": noise_std,
    }


def posterior_means(
    points: Points, targets: Tensor, kernel: Kernel, noise_std: float
) -> tuple[Tensor, Tensor]:
    """Return mu of the judged points (M, C), and of the labelled ones without themselves (n, C)."""
    P = torch.linalg.inv(kernel_matrix(points.labelled, kernel, noise_std))
    alpha = P @ targets
    mean = kernel(points.judged, points.labelled) @ alpha
    return mean, targets - left_out_residuals(alpha, P.diagonal())


def summarise(records: Sequence[Record]) -> Record:
    """Means and spreads over seeds for each problem and variant, and on how many problems a variant
    beats the given kernels.
    """
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
                    "gain_error": float(
                        np.std(np.subtract(values, found["default"])) / len(mine) ** 0.5
                    ),
                }
                for variant, values in found.items()
            }
    better = {
        variant: {
            given: sum(
                problem["nll"][variant]["mean"] < problem["nll"][given]["mean"]
                for problem in problems.values()
            )
            for given in ("default", "grid")
        }
        for variant in VARIANTS
    }
    overall = {
        figure: {
            variant: float(np.mean([p[figure][variant]["mean"] for p in problems.values()]))
            for variant in VARIANTS
        }
        for figure in ("nll", "balanced_nll", "balanced_accuracy")
    }
    return {
        "problems": problems,
        "overall": overall,
        "lower_nll_than": better,
        "of_problems": len(problems),
    }


def kernels(
    out: StudyFile,
    embeddings: Embeddings = None,
    data: DataNames = None,
    mnist: Mnist = None,
    seeds: Seeds = "0:5",
    jobs: Jobs = 1,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Compare learned kernels with given ones on the estimator's problems.

    The paper's kernel, the estimator's grid, and l, eta and sigma learned from
    the labelled rows: by leave-one-out. Judged by negative log-likelihood and balanced accuracy of
    unlabelled rows, whose labels none of them has seen.

      python benchmarks/kernels.py --data digits --seeds 10 --out kernels.json

    Digits come with scikit-learn, segments with river (semigpc[study]);
    photographs need embeddings, see python benchmarks/estimator.py --help.
    Problems in which a class may have no label (setting R) are left out.
    """
    summary = study(
        [problem for problem in PROBLEMS if problem.setting != "R"],
        study_on,
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
        draw_kernel_study(summary, VARIANTS, plot)
    show(summary, lambda: _tables(summary), as_json=as_json)


def _tables(summary: dict[str, Any]) -> list[Table]:
    return [
        _table(
            summary,
            "nll",
            "Negative log-likelihood of unlabelled rows in nats, mean and spread over seeds",
            best=min,
        ),
        _table(
            summary,
            "balanced_accuracy",
            "Balanced accuracy in percent, mean and spread over seeds",
            best=max,
            scale=100,
        ),
    ]


def _table(
    summary: dict[str, Any], figure: str, title: str, *, best: Any, scale: float = 1
) -> Table:
    table = new_table(
        title, "problem", *(variant.replace("_", "\n", 1) for variant in summary["overall"][figure])
    )
    digits = 1 if scale > 1 else 3
    for name, problem in summary["problems"].items():
        values = problem[figure].values()
        winner = best(value["mean"] for value in values)
        cells = (
            f"{scale * value['mean']:.{digits}f} ± {scale * value['std']:.{digits}f}"
            for value in values
        )
        marked = (
            f"[bold]{cell}[/]" if value["mean"] == winner else cell
            for cell, value in zip(cells, values, strict=True)
        )
        table.add_row(name, *marked)
    table.add_row(
        "all",
        *(f"{scale * value:.{digits}f}" for value in summary["overall"][figure].values()),
        style="bold",
    )
    if figure == "nll":
        counts = [
            f"{variant}: lower than default on {wins['default']} of {summary['of_problems']}, "
            f"than grid on {wins['grid']}"
            for variant, wins in summary["lower_nll_than"].items()
            if variant not in ("default", "grid")
        ]
        table.caption = "\n".join(counts)
    return table


def draw_kernel_study(summary: Mapping[str, Any], titles: Mapping[str, str], path: Path) -> None:
    """Draw what each kernel changes against the first, one row per problem: likelihood on the left,
    accuracy on the right.

    Args:
        summary: of the study. titles: variant -> legend; the first is what others are compared
            with.
    """
    problems = summary["problems"]
    figure = Figure(figsize=(12, 0.45 * len(problems) + 2.2), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    first, *others = titles
    rows = name_rows(left, problems)
    for axes, name, scale in ((left, "nll", 1.0), (right, "balanced_accuracy", 100.0)):
        axes.axvline(0, color="#1A1A1A", linewidth=1, label=titles[first])
        for number, (variant, marker) in enumerate(zip(others, MARKERS, strict=False)):
            figures = [problem[name][variant] for problem in problems.values()]
            shifted = [row + 0.24 - 0.16 * number for row in rows]
            axes.errorbar(
                [scale * one["gain"] for one in figures],
                shifted,
                xerr=[scale * one["gain_error"] for one in figures],
                fmt=marker,
                color=COLOURS[(2, 4, 0, 6)[number % 4]],
                label=titles[variant],
                markersize=5,
                capsize=2,
            )
    dress(left, "Negative log-likelihood", "change in nats per row: left of 0 is better")
    dress(right, "Balanced accuracy", "change in points: right of 0 is better")
    figure.legend(
        *right.get_legend_handles_labels(),
        loc="outside lower center",
        frameon=False,
        ncols=3,
        fontsize=9,
    )
    figure.savefig(path)


app = script(kernels)
if __name__ == "__main__":
    app()
