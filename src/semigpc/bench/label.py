"""How fast a table is labelled, beside the bare matrix products that this takes."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semigpc.bench.clusters import Clusters
from semigpc.bench.label_peers import NAMES, Budget, largest_size
from semigpc.bench.reference import kernel_matrix
from semigpc.bench.resident import peak_resident_bytes
from semigpc.estimator import Answers, SemiGPClassifier
from semigpc.estimator.posterior import CHUNK, Posterior
from semigpc.gp.engine import full_precision
from semigpc.gp.kernels import RBF

TURN = 65_536  # rows that one contender labels before it is the other's turn
COMPARED = 1024  # rows whose numbers are compared
CARDS = 1000  # rows that are scored again after a correction
KERNEL, NOISE_STD = RBF(length_scale=0.7), 0.3
Record = dict[str, Any]
Report = Callable[[str, int, int | None], object]


def bench_label(
    rows: int = 1_000_000,
    *,
    labels: int = 2000,
    width: int = 384,
    classes: int = 20,
    peers: bool = True,
    budget: Budget | None = None,
    correction_labels: int = 16_000,
    corrections: int = 7,
    seed: int = 0,
    report: Report = lambda *_: None,
) -> Record:
    """Time ``SemiGPClassifier.answer`` against the products that it needs, and what a correction takes.

    Ours and the floor take turns of 65 536 rows over the same rows, with the variance and without. Hyper-parameters are
    given and self-training is off: it is the answering that is timed, from checking the rows to the status and the
    reasons.

    Args:
        rows: M. labels: N. width: D. classes: C.
        peers: whether LabelSpreading and SelfTraining are tried, within ``budget`` for each size.
        correction_labels: N of the model that is corrected; 0 leaves this out.
        corrections: of which the median time counts.
        report: told the stage, and how much of how much is done, for a progress display.

    Returns:
        ``rows_per_s`` of ours, ``floor_rows_per_s`` and the ``ratio`` of their times; the same in ``without_variance``.
        ``peak_bytes`` is how far the resident set of the process rises above what it was with the input while all rows are
        answered in one call. ``max_abs_error`` is that of scores and variances against the floor's. ``correction`` and
        ``peers`` are None if left out.
    """
    clusters = Clusters(width, classes, seed)
    record: Record = {"rows": rows, "labels": labels, "width": width, "classes": classes, "seed": seed}
    record |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
    record |= bench_answers(clusters, rows, labels, report)
    record["correction"] = bench_correction(clusters, correction_labels, corrections, report) if correction_labels else None
    record["peers"] = None
    if peers:
        budget = budget or Budget()
        tried = {name: largest_size(name, clusters, labels=labels, rows=rows, budget=budget, report=report) for name in NAMES}
        record["peers"] = tried
    return record


def bench_answers(clusters: Clusters, rows: int, labels: int, report: Report) -> Record:
    """Ours beside the floor: whether the numbers are the same, memory, and rows a second."""
    report("drawing rows", 0, None)
    X, _ = clusters.draw(rows)
    report("fitting", 0, None)
    model = fitted(clusters, labels)
    floor = Floor(model)
    record: Record = {"max_abs_error": floor.difference(X[:COMPARED], model.answer(X[:COMPARED]))}
    report("all rows in one call", 0, None)
    began = time.perf_counter()
    record["peak_bytes"] = peak_resident_bytes(lambda: model.answer(X))
    record["one_call_rows_per_s"] = rows / (time.perf_counter() - began)
    with_variance, without_variance = take_turns(model, floor, X, report)
    return record | with_variance | {"without_variance": without_variance}


def fitted(clusters: Clusters, labels: int) -> SemiGPClassifier:
    """A model of so many labelled rows, with given hyper-parameters."""
    X, codes = clusters.draw(labels, stream=1)
    model = SemiGPClassifier(
        length_scale=KERNEL.length_scale,
        noise_std=NOISE_STD,
        logit_scale=8.0,
        scaling="unit",
        self_training=0,
        abstain=0.5,
        random_state=0,
    )
    return model.fit(X, codes)


class Floor:
    """The products that labelling unit vectors cannot do without, and nothing else: x H^T and exp, k a, L^-1 k.

    Where all rows have length 1, k(h, h_i) = e^(-1/l^2) exp(h.h_i / l^2): the scale of h_Q, of the weights and of L takes up
    all constants, and the products alone give the mean and what the labels explain of the variance. Chunk by chunk as
    ours, into memory that is there already.
    """

    def __init__(self, model: SemiGPClassifier) -> None:
        posterior: Posterior = model._memory.posterior
        scale = KERNEL.length_scale**-2
        factor = torch.linalg.cholesky(kernel_matrix(posterior.features.double(), KERNEL, NOISE_STD))
        self.columns = (posterior.features * scale).mT
        self.weights = posterior.weights * np.exp(-scale)
        self.factor = factor.mul_(np.exp(scale)).float()
        self.mean = self.weights.new_empty(CHUNK, self.weights.shape[1])
        self.k = self.weights.new_empty(CHUNK, len(posterior))

    @full_precision()
    @torch.no_grad()
    def products(self, rows: NDArray[np.float32], *, variance: bool) -> tuple[Tensor, Tensor]:
        """The mean (m, C), and L^-1 k (m, N) or k, of the last chunk of the rows."""
        for chunk in torch.from_numpy(rows).split(CHUNK):
            k, mean = self.k[: len(chunk)], self.mean[: len(chunk)]
            torch.mm(chunk, self.columns, out=k).exp_()
            torch.mm(k, self.weights, out=mean)
            if variance:
                torch.linalg.solve_triangular(self.factor, k.mT, upper=False, out=k.mT)
        return mean, k

    def difference(self, rows: NDArray[np.float32], answers: Answers) -> float:
        """Largest difference of scores and variances of at most CHUNK rows from those of the products."""
        mean, explained = self.products(rows, variance=True)
        scores = mean.gather(1, torch.from_numpy(answers.codes)[:, None]).squeeze(1)
        variance = (1 - explained.double().square().sum(dim=1)).clamp_min(0)
        assert answers.variance is not None
        of_scores = (scores - torch.from_numpy(answers.scores)).abs().max()
        of_variance = (variance - torch.from_numpy(answers.variance)).abs().max()
        return max(float(of_scores), float(of_variance))


def take_turns(model: SemiGPClassifier, floor: Floor, X: NDArray[np.float32], report: Report) -> tuple[Record, Record]:
    """Rows a second of ours and of the floor, with the variance and without it."""
    seconds = {(name, variance): 0.0 for name in ("floor", "ours") for variance in (True, False)}
    for start in range(0, len(X), TURN):
        turn = X[start : start + TURN]
        for variance in (True, False):
            began = time.perf_counter()
            floor.products(turn, variance=variance)
            between = time.perf_counter()
            model.answer(turn, variance=variance)
            seconds["ours", variance] += time.perf_counter() - between
            seconds["floor", variance] += between - began
        report("in turns with the bare products", min(start + TURN, len(X)), len(X))
    records = [
        {
            "rows_per_s": len(X) / seconds["ours", variance],
            "floor_rows_per_s": len(X) / seconds["floor", variance],
            "ratio": seconds["ours", variance] / seconds["floor", variance],
        }
        for variance in (True, False)
    ]
    return records[0], records[1]


def bench_correction(clusters: Clusters, labels: int, corrections: int, report: Report) -> Record:
    """Seconds from a person's correction until 1000 rows are scored again: ``partial_fit`` of one of them, and ``answer``."""
    report(f"building a model of {labels:,} labels", 0, None)
    began = time.perf_counter()
    model = fitted(clusters, labels)
    build_s = time.perf_counter() - began
    cards, codes = clusters.draw(CARDS, stream=2)
    seconds = []
    for row in range(corrections + 1):
        began = time.perf_counter()
        model.partial_fit(cards[row : row + 1], codes[row : row + 1], rows=[labels + row])
        model.answer(cards, variance=False)
        seconds.append(time.perf_counter() - began)
        report("corrections", row, corrections)
    return {"labels": labels, "cards": CARDS, "seconds": median(seconds[1:]), "slowest_s": max(seconds[1:]), "build_s": build_s}
