"""What to do with more labels than one exact GP holds: keep fewer of them, use landmarks, or several GPs.

    python -m semigpc.bench.many_labels DATA.npz --out docs/results/many_labels_NAME.json

DATA.npz holds ``x_train, y_train, x_test, y_test``. Scaling, length-scale and noise are chosen as
:class:`semigpc.SemiGPClassifier` chooses them, and so is the class: equal evidence for every class. Exact GPs are solved here
in float32 by one Cholesky factor, which the noise of 0.2 or more allows.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semigpc.estimator.confidence import best_logit_scale, class_scales
from semigpc.estimator.fitting import TUNED, balanced_subset, make_kernel, tune
from semigpc.estimator.memory import deal
from semigpc.estimator.scaling import fit_scalings
from semigpc.gp import Kernel, LowRankGP

CHUNK = 1000  # queries at a time

Answer = tuple[
    Tensor, Tensor, Tensor
]  # mean (M, C) of centred targets, variance (M,), labels of each class (C,) that were used


@dataclass(frozen=True)
class Task:
    """Labelled points (n, D) with one-hot targets (n, C), queries (M, D) with codes (M,), and the GP's settings."""

    points: Tensor
    targets: Tensor
    queries: Tensor
    wanted: Tensor
    kernel: Kernel
    noise_std: float

    @property
    def offset(self) -> Tensor:
        """Class frequencies (C,)."""
        return self.targets.mean(dim=0)


def exact(task: Task, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (M, C) of the centred targets and variance (M,), from some rows."""
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


def thinned(task: Task, limit: int, seed: int) -> Answer:
    """The exact GP of at most ``limit`` rows, the largest classes giving way; with the counts (C,) of what it holds."""
    rows = torch.from_numpy(balanced_subset(task.targets.argmax(dim=1).numpy(), limit, np.random.default_rng(seed)))
    return *exact(task, rows), task.targets[rows].sum(dim=0)


def ensemble(task: Task, parts: list[Tensor], *, precision: bool = False) -> Answer:
    """Exact GPs over parts of the rows; averaged, or weighed by their precision."""
    means, variances = (torch.stack(x) for x in zip(*[exact(task, part) for part in parts], strict=True))
    counts = torch.stack([task.targets[part].sum(dim=0) for part in parts]).mean(dim=0)
    weights = (variances + task.noise_std**2).reciprocal() if precision else torch.ones_like(variances)
    weights = weights / weights.sum(dim=0)
    return (weights.unsqueeze(2) * means).sum(dim=0), (weights * variances).sum(dim=0), counts


def apart(task: Task, members: int, seed: int) -> list[Tensor]:
    """The rows of every class dealt out in turn, none of them twice."""
    order = torch.randperm(len(task.points), generator=torch.Generator().manual_seed(seed))
    order = order[task.targets.argmax(dim=1)[order].argsort(stable=True)]
    return [order[member::members] for member in range(members)]


def shared(task: Task, size: int, seed: int) -> list[Tensor]:
    """As the estimator deals them out: small classes to all members."""
    parts = deal(task.targets.argmax(dim=1).numpy(), size, np.random.default_rng(seed))
    return [torch.from_numpy(part) for part in parts]


def low_rank(task: Task, rank: int, seed: int) -> Answer:
    """The GP of ``rank`` landmarks over all rows."""
    (n, width), classes = task.points.shape, task.targets.shape[1]
    engine = LowRankGP(n, width, classes, rank=rank, kernel=task.kernel, noise_std=task.noise_std, seed=seed)
    engine.replace(torch.arange(n), task.points, task.targets)
    mean = engine.mean(task.queries, offset=task.offset)
    return mean, engine.variance(task.queries), task.targets.sum(dim=0)


def _shared(share: float, task: Task, limit: int, seed: int) -> Answer:
    return ensemble(task, shared(task, round(share * limit), seed))


def _apart(members: int, precision: bool, task: Task, _limit: int, seed: int) -> Answer:
    return ensemble(task, apart(task, members, seed), precision=precision)


def _low_rank(rank: int, task: Task, _limit: int, seed: int) -> Answer:
    return low_rank(task, rank, seed)


def judge(task: Task, mean: Tensor, variance: Tensor, counts: Tensor, seed: int) -> dict[str, float]:
    """Balanced accuracy of all queries, and the balanced NLL of one half at the logit scale that the other half wants."""
    scores, wanted = (mean * class_scales(counts)).double(), task.wanted
    right = scores.argmax(dim=1) == wanted
    recalls = [float(right[wanted == c].double().mean()) for c in wanted.unique()]
    first, second = torch.randperm(len(wanted), generator=torch.Generator().manual_seed(seed)).tensor_split(2)
    scale = best_logit_scale(scores[first], wanted[first], math.log(19 * 9) / 0.8)
    own = torch.log_softmax(scale * scores[second], dim=1).gather(1, wanted[second, None]).squeeze(1)
    nll = [-float(own[wanted[second] == c].mean()) for c in wanted.unique()]
    return {"balanced_accuracy": float(np.mean(recalls)), "nll": float(np.mean(nll)), "variance": float(variance.mean())}


def draw(codes: NDArray[Any], labels: int, ratio: float, rng: np.random.Generator) -> NDArray[Any]:
    """Positions of the labelled rows: equally many of every class, or falling by ``ratio`` from the first to the last."""
    classes = rng.permutation(np.unique(codes))
    head = min(int(np.bincount(codes).min()), labels // len(classes))
    counts = (head * ratio ** (-np.arange(len(classes)) / (len(classes) - 1))).round().astype(int)
    drawn = [rng.permutation(np.flatnonzero(codes == c))[:n] for c, n in zip(classes, counts, strict=True)]
    return np.sort(np.concatenate(drawn))


def make_task(data: dict[str, NDArray[Any]], labels: int, ratio: float, queries: int, seed: int) -> tuple[Task, dict[str, Any]]:
    """One draw of labels, with scaling and hyper-parameters chosen on it."""
    rng = np.random.default_rng(seed)
    rows = draw(data["y_train"], labels, ratio, rng)
    X, codes = data["x_train"][rows], data["y_train"][rows]
    tuned = balanced_subset(codes, TUNED, rng)
    scalings = fit_scalings(X, labels=len(X))
    points = {name: scaling(X[tuned]) for name, scaling in scalings.items()}
    setting = tune(points, torch.from_numpy(codes[tuned]), kernel="rbf", length_scale=None, noise_std=None)
    scaling = scalings[setting.scaling]
    asked = rng.permutation(len(data["x_test"]))[:queries]
    task = Task(
        scaling(X),
        torch.nn.functional.one_hot(torch.from_numpy(codes)).float(),
        scaling(data["x_test"][asked]),
        torch.from_numpy(data["y_test"][asked]),
        make_kernel("rbf", setting.length_scale),
        setting.noise_std,
    )
    chosen = {"scaling": setting.scaling, "length_scale": setting.length_scale, "noise_std": setting.noise_std}
    return task, chosen


def read(path: Path) -> dict[str, NDArray[Any]]:
    """Rows as float32, bytes as parts of 255, and classes."""
    with np.load(path) as file:
        flat = {name: file[name].reshape(len(file[name]), -1) for name in ("x_train", "y_train", "x_test", "y_test")}
    unit = 255 if flat["x_train"].dtype == np.uint8 else 1
    return {name: x.astype(np.float32) / unit if name[0] == "x" else x[:, 0].astype(int) for name, x in flat.items()}


def main() -> None:
    """Run all candidates on all draws and write the figures after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--labels", type=int, default=40_000)
    parser.add_argument("--keep", type=float, default=16_384 / 40_000, help="share of the labels that thinning keeps")
    parser.add_argument("--ranks", type=int, nargs="*", default=[1024, 2048, 4096])
    parser.add_argument(
        "--shares", type=float, nargs="*", default=[0.75, 1.0], help="size of a member over what thinning keeps"
    )
    parser.add_argument("--members", type=int, nargs="*", default=[3, 5])
    parser.add_argument("--ratios", type=float, nargs="*", default=[1.0, 100.0])
    parser.add_argument("--queries", type=int, default=4000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1])
    options = parser.parse_args()
    data = read(options.data)
    records: list[dict[str, Any]] = []
    for seed in options.seeds:
        for ratio in options.ratios:
            task, chosen = make_task(data, options.labels, ratio, options.queries, seed)
            n = len(task.points)
            limit = round(options.keep * n)
            candidates: dict[str, Callable[[Task, int, int], Answer]] = {
                "thinned": thinned,
                **{f"shared, {share:g}": partial(_shared, share) for share in options.shares},
                **{f"apart, {m}": partial(_apart, m, False) for m in options.members},
                **{f"apart, {m}, precision": partial(_apart, m, True) for m in options.members},
                **{f"rank {m}": partial(_low_rank, m) for m in options.ranks if m < n},
            }
            for name, candidate in candidates.items():
                began = time.perf_counter()
                found = candidate(task, limit, seed)
                figures = judge(task, *found, seed) | {"seconds": round(time.perf_counter() - began, 1)}
                records.append({"seed": seed, "ratio": ratio, "labels": n, "candidate": name, **chosen, **figures})
                print(json.dumps(records[-1]), flush=True)
                options.out.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
