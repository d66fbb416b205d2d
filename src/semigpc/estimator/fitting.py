"""What ``fit`` does: choose hyper-parameters, let sure rows join, and calibrate what is said."""

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semigpc.estimator.confidence import (
    NEVER,
    Confidence,
    Decisions,
    Integers,
    best_logit_scale,
    class_scales,
    estimate_shares,
    left_out_scores,
    precision_threshold,
)
from semigpc.estimator.memory import Memory
from semigpc.estimator.scaling import SCALINGS, Scaling, fit_scalings
from semigpc.gp import KERNELS, Kernel, LeftOut
from semigpc.gp.certainty import auto_logit_scale
from semigpc.gp.kernels import squared_distances
from semigpc.threads import suited_to

TUNED = 600  # labelled rows that hyper-parameters are tuned on: an eigendecomposition takes a tenth of a second
POOL = 20_000  # unlabelled rows that class shares are estimated from
TRAINED = 2000  # labelled rows up to which self-training is worth its cost ...
FOUND = 2 / 3  # ... and share of the labels, by class, that must be found without themselves
UNIT_KERNELS = ("rbf", "laplace", "cosine")  # k(h, h) = 1: variances are shares of the prior variance
MOST_ROUNDS = 100  # of self-training, each of which is O(N^3)
LENGTHS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0)  # in median distances between labelled points
NOISES = (0.2, 0.32, 0.55, 1.0)  # sigma, beside an output scale of 1; with less, rows of one class have weights that cancel
SURE = 0.9  # probability from which a row joins
MOST = 1500  # rows that join, shared evenly by the classes
CHUNK = 4096


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What :class:`SemiGPClassifier` was asked for; None where something is to be found out."""

    kernel: str
    length_scale: float | None
    noise_std: float | None
    logit_scale: float | None
    scaling: str
    class_prior: Literal["balanced", "estimated"]
    rounds: int | None
    confidence: Confidence
    abstain: float | None
    target_precision: float | None
    outlier_quantile: float
    seed: int

    @classmethod
    def of(cls, parameters: dict[str, Any]) -> Self:
        """From ``get_params()``; refuses what makes no sense."""
        _require("kernel", parameters["kernel"], UNIT_KERNELS)
        _require("scaling", parameters["scaling"], ("auto", *SCALINGS))
        _require("class_prior", parameters["class_prior"], ("balanced", "estimated"))
        _require("confidence", parameters["confidence"], get_args(Confidence))
        for name in ("abstain", "target_precision", "outlier_quantile"):
            value = parameters[name]
            most = 2 if name == "abstain" else 1  # a threshold above 1 gives out no label at all
            sound = isinstance(value, Real) and 0 <= float(value) <= most
            if not sound and (value is not None or name == "outlier_quantile"):
                raise ValueError(f"{name} must lie in [0, 1]; got {value!r}.")
        if parameters["abstain"] is not None and parameters["target_precision"] is not None:
            raise ValueError("abstain is a threshold and target_precision finds one; give one of the two.")
        return cls(
            kernel=parameters["kernel"],
            length_scale=_positive("length_scale", parameters["length_scale"]),
            noise_std=_positive("noise_std", parameters["noise_std"]),
            logit_scale=_positive("logit_scale", parameters["logit_scale"]),
            scaling=parameters["scaling"],
            class_prior=parameters["class_prior"],
            rounds=None
            if parameters["self_training"] == "auto"
            else _whole("self_training", parameters["self_training"], 0, MOST_ROUNDS),
            confidence=parameters["confidence"],
            abstain=parameters["abstain"],
            target_precision=parameters["target_precision"],
            outlier_quantile=parameters["outlier_quantile"],
            seed=_whole("random_state", parameters["random_state"] or 0, 0),
        )


@dataclass(frozen=True)
class Setting:
    """Kernel, noise and scaling, and the class-balanced squared leave-one-out error that they were chosen for."""

    scaling: str
    length_scale: float
    noise_std: float
    error: float


class Joined(NamedTuple):
    """Positions (P,) among the unlabelled rows of those that joined, and their soft labels (P, C)."""

    positions: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Solver:
    """The GP of a few thousand rows, solved afresh: kernel, sigma and lambda."""

    kernel: Kernel
    noise_std: float
    logit_scale: float

    def weights(self, points: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """a = K^-1 (Y - 1 pi^T) diag(sqrt(nbar / n_c)), (N, C), and the leave-one-out scores (N, C). O(N^3).

        Args:
            points: (N, D). targets: (N, C) rows that sum to 1.
        """
        counts = targets.sum(dim=0)
        with suited_to(len(points) ** 3):
            K = self.kernel(points.double(), points.double())
            K.diagonal().copy_(self.kernel.diagonal(points.double()) + self.noise_std**2)
            K_inv = torch.cholesky_inverse(torch.linalg.cholesky(K))
        wanted = targets.double() - counts / counts.sum()
        alpha = K_inv @ wanted
        scales = class_scales(counts)
        return alpha * scales, (wanted - alpha / K_inv.diagonal().unsqueeze(1)) * scales

    def scores(self, queries: Tensor, points: Tensor, weights: Tensor) -> Tensor:
        """k(h, h_Q) a, (M, C), in float32 a chunk at a time. O(M N (D + C))."""
        thin = weights.float()
        with suited_to(min(len(queries), CHUNK) * len(points) * (points.shape[1] + thin.shape[1])):
            return torch.cat([self.kernel(chunk, points) @ thin for chunk in queries.split(CHUNK)])


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
class TrainingRows:
    """Labelled points (n, D) with codes (n,), and unlabelled points (u, D)."""

    points: Tensor
    codes: Tensor
    unlabeled: Tensor
    n_classes: int

    @property
    def targets(self) -> Tensor:
        """(n, C) one-hot."""
        return torch.nn.functional.one_hot(self.codes, self.n_classes).double()


def fit_memory(X: NDArray[np.float32], codes: Integers, numbers: Integers, n_classes: int, options: FitOptions) -> Fitted:
    """Everything from rows (n, D) and codes (n,), -1 for unlabelled, with their numbers (n,)."""
    rng = np.random.default_rng(options.seed)
    labelled = np.flatnonzero(codes >= 0)
    scaling, setting = _choose_setting(X, codes, labelled, options, rng)
    pool = np.flatnonzero(codes < 0)
    pool = pool if len(pool) <= POOL else np.sort(rng.choice(pool, POOL, replace=False))
    rows = TrainingRows(scaling(X[labelled]), torch.from_numpy(codes[labelled]), scaling(X[pool]), n_classes)

    kernel, balanced = make_kernel(options.kernel, setting.length_scale), options.class_prior == "balanced"
    known = (rows.points, rows.targets, numbers[labelled], codes[labelled])
    memory = Memory(kernel, setting.noise_std, *known, equalised=balanced, seed=options.seed)
    places = torch.from_numpy(numbers[labelled].argsort().argsort())  # a memory has its rows by ascending number
    left_out = LeftOut(*(values[places] for values in memory.left_out()))
    about = (left_out.mean, left_out.ones, rows.codes, memory.counts(), memory.held_shares()[places])
    equalised, plain = left_out_scores(*about), left_out_scores(*about, equalised=False)
    default = auto_logit_scale(n_classes)
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
        found = Decisions(logits, (equalised if balanced else logits).argmax(dim=1), left_out.variance)
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
    options: FitOptions,
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


def _rounds(scores: Tensor, rows: TrainingRows, options: FitOptions, memory: Memory) -> int:
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


def _with(memory: Memory, rows: TrainingRows, joined: Joined, numbers: Integers, pool: Integers) -> Memory:
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


def _shares(memory: Memory, rows: TrainingRows, scale: float, *, variance: bool) -> tuple[Tensor, Decisions]:
    """Class shares (C,) of the unlabelled rows, and what the labels alone decide of these."""
    present = memory.counts() > 0
    if not len(rows.unlabeled):
        counts = torch.bincount(rows.codes, minlength=rows.n_classes).double()
        nothing = counts[:0]
        return counts / counts.sum(), Decisions(nothing.view(0, rows.n_classes), nothing.long(), nothing)
    scored = memory.score(rows.unlabeled, variance=variance)
    scores = scored.mean.double()
    logits = (scale * scores / memory.scales().clamp_min(1e-9)).masked_fill(~present, -math.inf)
    shares = estimate_shares(torch.softmax(logits, dim=1), present)
    pooled = logits + shares.log()
    judged = scores.masked_fill(~present, -math.inf) if memory.equalised else pooled
    return shares, Decisions(pooled, judged.argmax(dim=1), None if scored.variance is None else scored.variance.double())


def _require(name: str, value: Any, known: Collection[str]) -> None:
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}.")


def _positive(name: str, value: Any) -> float | None:
    if isinstance(value, str) and value == "auto":
        return None
    if not (isinstance(value, Real) and 0 < float(value) < math.inf):
        raise ValueError(f"{name} must be 'auto' or a positive number; got {value!r}.")
    return float(value)


def _whole(name: str, value: Any, least: int, most: float = math.inf) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or not least <= int(value) <= most:
        limit = f"at least {least}" if most == math.inf else f"from {least} to {most}"
        raise ValueError(f"{name} must be a whole number, {limit}; got {value!r}.")
    return int(value)


def make_kernel(name: str, length_scale: float) -> Kernel:
    """The kernel of this name with output scale 1, so that variances are shares of the prior variance."""
    kind: Any = KERNELS[name]
    made: Kernel = kind() if name == "cosine" else kind(length_scale=length_scale)
    return made


def balanced_subset(codes: NDArray[np.int64], size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Positions of at most ``size`` rows, sorted: as many of every class as fit, so that large classes give way first."""
    if len(codes) <= size:
        return np.arange(len(codes))
    counts = np.bincount(codes)
    caps = np.arange(1, counts.max() + 1)
    fitting = [cap for cap in caps if np.minimum(counts, cap).sum() <= size]
    cap = fitting[-1] if fitting else 1
    kept = [rng.permutation(np.flatnonzero(codes == c))[:cap] for c in np.flatnonzero(counts)]
    return np.sort(np.concatenate(kept))


def tune(
    points: Mapping[str, Tensor],
    codes: Tensor,
    *,
    kernel: str,
    length_scale: float | None,
    noise_std: float | None,
) -> Setting:
    """The setting of least error; None lets a hyper-parameter range over its grid.

    Rows that are alone in their class tell nothing about it when they are left out, and do not count.

    Args:
        points: labelled points (n, D) under each scaling to choose from.
        codes: (n,) classes 0 .. C - 1.
        kernel: its name.
        length_scale, noise_std: fixed, or None.
    """
    counts = torch.bincount(codes).double()
    targets = torch.nn.functional.one_hot(codes, len(counts)).double()
    weights = torch.where(counts[codes] > 1, 1 / counts[codes], 0.0)
    weights = weights / weights.sum() if bool(weights.any()) else torch.full_like(weights, 1 / len(weights))
    best: Setting | None = None
    for name, rough in points.items():
        h = rough.double()
        lengths: Sequence[float] = [length_scale] if length_scale is not None else _lengths(h)
        for length in lengths if kernel != "cosine" else lengths[:1]:
            values, vectors = torch.linalg.eigh(make_kernel(kernel, length)(h, h))
            rotated = vectors.mT @ targets
            for noise in NOISES if noise_std is None else (noise_std,):
                inverse = 1 / (values.clamp_min(0) + noise**2)
                alpha = vectors @ (inverse.unsqueeze(1) * rotated)
                residuals = alpha / (vectors.square() @ inverse).unsqueeze(1)
                error = float(weights @ residuals.square().sum(dim=1))
                if best is None or error < best.error:
                    best = Setting(name, float(length), float(noise), error)
    assert best is not None
    return best


def _lengths(points: Tensor) -> list[float]:
    """The grid around the median distance between different points (n, D); around 1 if all coincide."""
    distances = squared_distances(points, points).flatten()
    apart = distances[distances > 1e-12]
    median = float(apart.median().sqrt()) if len(apart) else 1.0
    return [factor * median for factor in LENGTHS]


def self_train(solver: Solver, points: Tensor, targets: Tensor, unlabeled: Tensor, *, rounds: int) -> Joined:
    """Let sure rows join for some rounds; each round chooses anew among all of them.

    Whether a row is sure is judged under the class shares of the unlabelled rows, estimated each round, so that the rows of
    a large class do not join a small one; and of a row that has joined, by what is said of it without itself. O(rounds N^3).

    Args:
        solver: the GP. points: (n, D) labelled. targets: (n, C) one-hot. unlabeled: (u, D).
        rounds: at least 1.
    """
    counts = targets.sum(dim=0)
    present = counts > 0
    quota = max(1, MOST // int(present.sum()))
    weights, _ = solver.weights(points, targets)
    scores = solver.scores(unlabeled, points, weights)
    joined = Joined(torch.zeros(0, dtype=torch.int64), targets[:0])
    for _ in range(rounds):
        balanced = torch.softmax((solver.logit_scale * scores).masked_fill(~present, -torch.inf), dim=1)
        probs = balanced * estimate_shares(balanced, present)
        probs = probs / probs.sum(dim=1, keepdim=True)
        joined = _choose(probs, quota)
        if not len(joined.positions):
            break
        together = torch.cat([points, unlabeled[joined.positions]])
        weights, left_out = solver.weights(together, torch.cat([targets, joined.targets]))
        scores = solver.scores(unlabeled, together, weights)
        scores[joined.positions] = left_out[len(points) :].float()
    return joined


def _choose(probs: Tensor, quota: int) -> Joined:
    """The surest rows of every class, no more than its quota."""
    confidence, codes = probs.max(dim=1)
    chosen = []
    for c in range(probs.shape[1]):
        sure = ((codes == c) & (confidence >= SURE)).nonzero().squeeze(1)
        chosen.append(sure[confidence[sure].argsort(descending=True, stable=True)[:quota]])
    positions = torch.cat(chosen)
    return Joined(positions, probs[positions].double())
