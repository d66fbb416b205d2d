"""What ``fit`` does: choose hyper-parameters, let sure rows join, and calibrate what is said."""

import math
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semigpc.estimator.answers import Integers
from semigpc.estimator.calibration import best_logit_scale, estimate_shares, left_out_scores
from semigpc.estimator.confidence import Judged
from semigpc.estimator.memory import Memory
from semigpc.estimator.options import Options
from semigpc.estimator.scaling import Scaling, fit_scalings
from semigpc.estimator.self_training import Joined, Solver, self_train
from semigpc.estimator.thresholds import NEVER, precision_threshold
from semigpc.estimator.tuning import Setting, balanced_subset, make_kernel, tune
from semigpc.gp import LeftOut
from semigpc.threads import suited_to

TUNED = 600  # labelled rows that hyper-parameters are tuned on: an eigendecomposition takes a tenth of a second
POOL = 20_000  # unlabelled rows that class shares are estimated from
TRAINED = 2000  # labelled rows up to which self-training is worth its cost ...
FOUND = 2 / 3  # ... and share of the labels, by class, that must be found without themselves


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """What was found out.

    ``memory`` holds the given labels, ``helped`` these and the rows that joined in self-training, if any did.
    """

    memory: Memory
    helped: Memory | None
    scaling: Scaling
    length_scale: float
    logit_scale: float
    confidence_scale: float
    rounds: int
    shares: NDArray[np.float64]
    threshold: float
    outlier_variance: float


@dataclass(frozen=True)
class Rows:
    """Labelled points (n, D) with codes (n,), and unlabelled points (u, D)."""

    points: Tensor
    codes: Tensor
    unlabeled: Tensor
    n_classes: int

    @property
    def targets(self) -> Tensor:
        """(n, C) one-hot."""
        return torch.nn.functional.one_hot(self.codes, self.n_classes).double()


def fit_memory(X: NDArray[np.float32], codes: Integers, numbers: Integers, n_classes: int, options: Options) -> Fitted:
    """Everything from rows (n, D) and codes (n,), -1 for unlabelled, with their numbers (n,)."""
    rng = np.random.default_rng(options.seed)
    labelled = np.flatnonzero(codes >= 0)
    scaling, setting = _choose_setting(X, codes, labelled, options, rng)
    pool = np.flatnonzero(codes < 0)
    pool = pool if len(pool) <= POOL else np.sort(rng.choice(pool, POOL, replace=False))
    rows = Rows(scaling(X[labelled]), torch.from_numpy(codes[labelled]), scaling(X[pool]), n_classes)

    kernel, balanced = make_kernel(options.kernel, setting.length_scale), options.class_prior == "balanced"
    known = (rows.points, rows.targets, numbers[labelled], codes[labelled])
    memory = Memory(kernel, setting.noise_std, *known, equalised=balanced, seed=options.seed)
    places = torch.from_numpy(numbers[labelled].argsort().argsort())  # a memory has its rows by ascending number
    left_out = LeftOut(*(values[places] for values in memory.left_out()))
    about = (left_out.mean, left_out.ones, rows.codes, memory.counts(), memory.held_shares()[places])
    equalised, plain = left_out_scores(*about), left_out_scores(*about, equalised=False)
    default = _default_scale(n_classes)
    logit_scale = options.logit_scale or best_logit_scale(equalised, rows.codes, default)
    confidence_scale = best_logit_scale(plain, rows.codes, default)
    rounds, helped = _rounds(equalised, rows, options, memory), None
    if rounds:
        solver = Solver(kernel, setting.noise_std, logit_scale)
        joined = self_train(solver, rows.points, rows.targets, rows.unlabeled, rounds=rounds)
        helped = _with(memory, rows, joined, numbers[labelled], numbers[pool]) if len(joined.positions) else None
    shares, pooled = _shares(memory, rows, confidence_scale, variance=options.confidence != "probability")
    threshold = options.abstain or 0.0
    if options.target_precision is not None:
        logits = confidence_scale * plain + shares.log()
        found = Judged(logits, (equalised if balanced else logits).argmax(dim=1), left_out.variance)
        weights = shares[rows.codes] / torch.bincount(rows.codes, minlength=n_classes)[rows.codes]
        threshold = precision_threshold(
            found.confidence(options.confidence, confidence_scale),
            (found.decided == rows.codes).double(),
            weights,
            pooled.confidence(options.confidence, confidence_scale),
            options.target_precision,
            chances=pooled.confidence("probability", confidence_scale),
        )
        if len(rows.codes.unique()) < 2:
            threshold = NEVER  # nothing is known of what is not of this class
    return Fitted(
        memory=memory,
        helped=helped,
        scaling=scaling,
        length_scale=setting.length_scale,
        logit_scale=logit_scale,
        confidence_scale=confidence_scale,
        rounds=rounds,
        shares=shares.numpy(),
        threshold=threshold,
        outlier_variance=float(left_out.variance.quantile(options.outlier_quantile)),
    )


def _choose_setting(
    X: NDArray[np.float32],
    codes: Integers,
    labelled: Integers,
    options: Options,
    rng: np.random.Generator,
) -> tuple[Scaling, Setting]:
    scalings = fit_scalings(X, options.scaling, labels=len(labelled))
    tuned = labelled[balanced_subset(codes[labelled], TUNED, rng)]
    _, dense = np.unique(codes[tuned], return_inverse=True)
    with suited_to(len(tuned) ** 2):  # eigenvectors are mostly products of a matrix and a vector
        setting = tune(
            {name: scaling(X[tuned]) for name, scaling in scalings.items()},
            torch.from_numpy(dense),
            kernel=options.kernel,
            length_scale=options.length_scale,
            noise_std=options.noise_std,
        )
    return scalings[setting.scaling], setting


def _default_scale(n_classes: int) -> float:
    """lambda = ln((C - 1) tau / (1 - tau)) / 0.8 with tau = 0.95 (algorithms 3.6 item 9)."""
    return math.log(max(n_classes - 1, 1) * 19) / 0.8


def _rounds(scores: Tensor, rows: Rows, options: Options, memory: Memory) -> int:
    if memory.engine != "exact":
        if options.rounds:
            warnings.warn(f"self-training is left out, since {memory.reason}", UserWarning, stacklevel=5)
        return 0
    if options.rounds is not None or not len(rows.unlabeled):
        return options.rounds if options.rounds and len(rows.unlabeled) else 0
    counts = torch.bincount(rows.codes, minlength=rows.n_classes)
    found = (scores.argmax(dim=1) == rows.codes).double()
    by_class = torch.zeros(rows.n_classes, dtype=torch.float64).scatter_add_(0, rows.codes, found)
    share = float((by_class[counts > 0] / counts[counts > 0]).mean())
    return 3 if share >= FOUND and len(rows.codes) <= TRAINED else 0


def _with(memory: Memory, rows: Rows, joined: Joined, numbers: Integers, pool: Integers) -> Memory:
    """A memory of the labelled rows and those that joined."""
    return Memory(
        memory.kernel,
        memory.noise_std,
        torch.cat([rows.points, rows.unlabeled[joined.positions]]),
        torch.cat([rows.targets, joined.targets]),
        np.concatenate([numbers, pool[joined.positions.numpy()]]),
        np.concatenate([rows.codes.numpy(), np.full(len(joined.positions), -1, dtype=np.int64)]),
        equalised=memory.equalised,
    )


def _shares(memory: Memory, rows: Rows, scale: float, *, variance: bool) -> tuple[Tensor, Judged]:
    """Class shares (C,) of the unlabelled rows, and what the labels alone decide of these."""
    present = memory.counts() > 0
    if not len(rows.unlabeled):
        counts = torch.bincount(rows.codes, minlength=rows.n_classes).double()
        nothing = counts[:0]
        return counts / counts.sum(), Judged(nothing.view(0, rows.n_classes), nothing.long(), nothing)
    scored = memory.score(rows.unlabeled, variance=variance)
    scores = scored.mean.double()
    logits = (scale * scores / memory.scales().clamp_min(1e-9)).masked_fill(~present, -math.inf)
    shares = estimate_shares(torch.softmax(logits, dim=1), present)
    pooled = logits + shares.log()
    judged = scores.masked_fill(~present, -math.inf) if memory.equalised else pooled
    return shares, Judged(pooled, judged.argmax(dim=1), None if scored.variance is None else scored.variance.double())
