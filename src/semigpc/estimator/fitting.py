"""What ``fit`` does: choose hyper-parameters, self-train on confident rows, and calibrate
probabilities.
"""

import math
import warnings
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semigpc.estimator.confidence import (
    Decisions,
    Integers,
    best_logit_scale,
    estimate_shares,
    left_out_scores,
)
from semigpc.estimator.memory import Memory
from semigpc.estimator.promise import Promise, make_promise
from semigpc.estimator.scaling import SCALINGS, Scaling, fit_scalings
from semigpc.gp import Kernel, LeftOut
from semigpc.gp.certainty import auto_logit_scale, class_scales
from semigpc.gp.kernels import make_kernel
from semigpc.gp.scales import Setting, balanced_subset, choose_by_grid
from semigpc.io.threads import suited_to

TUNED = (
    400  # labelled rows that hyper-parameters are tuned on: 36 eigendecompositions take a second
)
POOL = 20_000  # unlabelled rows that class shares are estimated from
TRAINED = 2000  # labelled rows up to which self-training is worth its cost ...
LEAST_RECALL = 1 / 2  # ... and recall, averaged over classes, that left-out labels must reach
ROUNDS = 3  # of self-training where both hold
MOST_ROUNDS = 100  # of self-training, each of which is O(N^3)
SURE = 0.8  # probability from which a row joins in self-training
MOST_JOINED = 1500  # rows that join, shared evenly by the classes, ...
# ... fewer where there would be more rows than this with the labelled ones, but at least ...
MOST_TOGETHER = 1600
FEWEST_JOINED = 500  # ... these
CHUNK = 4096  # rows scored at a time in self-training
UNIT_KERNELS = (
    "rbf",
    "laplace",
    "cosine",
)  # k(h, h) = 1: variances are shares of the prior variance


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The parameters of :class:`SemiGPClassifier`, checked; None in place of "auto"."""

    kernel: str
    length_scale: float | None
    noise_std: float | None
    logit_scale: float | None
    scaling: str
    class_prior: Literal["balanced", "estimated"]
    self_training: int | None
    abstain: float | None
    target_precision: float | None
    per_class: bool
    outlier_quantile: float
    random_state: int

    @classmethod
    def of(cls, parameters: dict[str, Any]) -> Self:
        """Build them from ``get_params()``.

        Raises:
            ValueError: a parameter has a value that is not allowed.
        """
        names = {
            "kernel": UNIT_KERNELS,
            "scaling": ("auto", *SCALINGS),
            "class_prior": ("balanced", "estimated"),
        }
        for name, known in names.items():
            value = parameters[name]
            if not isinstance(value, str) or value not in known:
                raise ValueError(
                    f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}."
                )
        for name, most in (
            ("abstain", 2),
            ("target_precision", 1),
            ("outlier_quantile", 1),
        ):  # abstain > 1 withholds all
            value = parameters[name]
            optional = name != "outlier_quantile" and value is None
            if not optional and not (isinstance(value, Real) and 0 <= float(value) <= most):
                raise ValueError(f"{name} must lie in [0, 1]; got {value!r}.")
        if not isinstance(parameters["per_class"], bool | np.bool_):
            raise ValueError(f"per_class must be True or False; got {parameters['per_class']!r}.")
        rounds = parameters["self_training"]
        if isinstance(rounds, bool | np.bool_):
            rounds = "auto" if rounds else 0
        numbers = {
            "length_scale": _positive("length_scale", parameters["length_scale"]),
            "noise_std": _positive("noise_std", parameters["noise_std"]),
            "logit_scale": _positive("logit_scale", parameters["logit_scale"]),
            "self_training": None
            if rounds == "auto"
            else _whole("self_training", rounds, MOST_ROUNDS),
            "random_state": _whole("random_state", parameters["random_state"] or 0),
        }
        return cls(**(parameters | numbers))


def _positive(name: str, value: Any) -> float | None:
    if isinstance(value, str) and value == "auto":
        return None
    if not (isinstance(value, Real) and 0 < float(value) < math.inf):
        raise ValueError(f"{name} must be 'auto' or a positive number; got {value!r}.")
    return float(value)


def _whole(name: str, value: Any, most: float = math.inf) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or not 0 <= int(value) <= most:
        limit = "at least 0" if most == math.inf else f"from 0 to {most}"
        raise ValueError(f"{name} must be a whole number, {limit}; got {value!r}.")
    return int(value)


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """The result of a fit.

    ``memory`` holds the given labels; ``helped`` these and the rows that joined in self-training,
    or None if none did.
    """

    memory: Memory
    helped: Memory | None
    scaling: Scaling
    length_scale: float
    logit_scale: float
    confidence_scale: float
    rounds: int
    shares: NDArray[np.float64]
    promise: Promise
    outlier_variance: float


class TrainingRows(NamedTuple):
    """Labelled points (n, D) with codes (n,) and one-hot targets (n, C), and unlabelled points (u,
    D).
    """

    points: Tensor
    codes: Tensor
    targets: Tensor
    unlabeled: Tensor


def fit_memory(
    X: NDArray[np.float32], codes: Integers, numbers: Integers, n_classes: int, options: FitOptions
) -> Fitted:
    """Fit rows (n, D) with codes (n,), -1 for unlabelled ones, and row numbers (n,). O(n^3) for n
    labelled rows.
    """
    rng = np.random.default_rng(options.random_state)
    labelled = np.flatnonzero(codes >= 0)
    scaling, setting = _choose_setting(X, codes, labelled, options, rng)
    pool = np.flatnonzero(codes < 0)
    pool = pool if len(pool) <= POOL else np.sort(rng.choice(pool, POOL, replace=False))
    known = torch.from_numpy(codes[labelled])
    targets = torch.nn.functional.one_hot(known, n_classes).double()
    rows = TrainingRows(scaling(X[labelled]), known, targets, scaling(X[pool]))

    kernel, balanced = (
        make_kernel(options.kernel, setting.length_scale),
        options.class_prior == "balanced",
    )
    contents = (rows.points, rows.targets, numbers[labelled], codes[labelled])
    memory = Memory(
        kernel, setting.noise_std, *contents, equalised=balanced, seed=options.random_state
    )
    places = torch.from_numpy(
        numbers[labelled].argsort().argsort()
    )  # a memory has its rows by ascending number
    left_out = LeftOut(*(values[places] for values in memory.left_out()))
    about = (
        left_out.mean,
        left_out.ones,
        memory.counts(),
        rows.targets * memory.held_shares()[places].unsqueeze(1),
    )
    equalised, plain = left_out_scores(*about), left_out_scores(*about, equalised=False)
    default = auto_logit_scale(n_classes)
    logit_scale = options.logit_scale or best_logit_scale(equalised, rows.codes, default)
    confidence_scale = best_logit_scale(plain, rows.codes, default)
    rounds, helped = _rounds(equalised, rows, options, memory), None
    scores = memory.score(rows.unlabeled).mean
    classes = scores.masked_fill(memory.counts() <= 0, -math.inf).argmax(dim=1)
    if rounds:
        solver = Solver(kernel, setting.noise_std, logit_scale)
        joined, soft, classes = self_train(
            solver, rows.points, rows.targets, rows.unlabeled, rounds=rounds
        )
        if len(joined):
            helped = Memory(
                kernel,
                setting.noise_std,
                torch.cat([rows.points, rows.unlabeled[joined]]),
                torch.cat([rows.targets, soft]),
                np.concatenate([numbers[labelled], numbers[pool][joined.numpy()]]),
                np.concatenate([codes[labelled], np.full(len(joined), -1)]),
                equalised=balanced,
            )
    even = scores * (class_scales(memory.counts()) / memory.scales().clamp_min(1e-9))
    shares = estimate_shares(even, logit_scale, rows.targets.sum(dim=0))
    promise = Promise(np.full(n_classes, options.abstain or 0.0))
    if options.abstain is None and options.target_precision is not None:
        left_probs = torch.softmax(confidence_scale * plain + shares.log(), dim=1)
        probs = torch.softmax(
            confidence_scale * scores / memory.scales().clamp_min(1e-9) + shares.log(), dim=1
        )
        promise = make_promise(
            Decisions(left_probs, (equalised if balanced else left_probs).argmax(dim=1)),
            rows.codes,
            Decisions(probs, classes if balanced else probs.argmax(dim=1)),
            shares,
            options.target_precision,
            per_class=bool(options.per_class),
        )
    return Fitted(
        memory=memory,
        helped=helped,
        scaling=scaling,
        length_scale=setting.length_scale,
        logit_scale=logit_scale,
        confidence_scale=confidence_scale,
        rounds=rounds,
        shares=shares.numpy(),
        promise=promise,
        outlier_variance=float(left_out.variance.quantile(options.outlier_quantile)),
    )


def _rounds(scores: Tensor, rows: TrainingRows, options: FitOptions, memory: Memory) -> int:
    """Return how many rounds of self-training to do, given left-out scores (n, C)."""
    if memory.engine != "exact":
        if options.self_training:
            warnings.warn(
                f"self-training is left out, since {memory.reason}", UserWarning, stacklevel=5
            )
        return 0
    if options.self_training is not None or not len(rows.unlabeled):
        return options.self_training if options.self_training and len(rows.unlabeled) else 0
    right = (scores.argmax(dim=1) == rows.codes).double()
    counts = rows.targets.sum(dim=0)
    recall = float(((rows.targets.mT @ right)[counts > 0] / counts[counts > 0]).mean())
    return ROUNDS if recall >= LEAST_RECALL and len(rows.codes) <= TRAINED else 0


# Hyper-parameters ---------------------------------------------------------------------------------


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
        setting = choose_by_grid(
            {name: scaling(X[tuned]) for name, scaling in scalings.items()},
            torch.from_numpy(dense),
            kernel=options.kernel,
            length_scale=options.length_scale,
            noise_std=options.noise_std,
        )
    return scalings[setting.scaling], setting


# Self-training ------------------------------------------------------------------------------------


class Solver(NamedTuple):
    """The GP of a few thousand rows, solved anew each time."""

    kernel: Kernel
    noise_std: float
    logit_scale: float

    def weights(self, points: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return a = K^-1 (Y - 1 pi^T) diag(sqrt(nbar / n_c)), (N, C), and the leave-one-out scores
        (N, C). O(N^3).

        Args:
            points: (N, D). targets: (N, C) rows that sum to 1.
        """
        counts = targets.sum(dim=0)
        with suited_to(len(points) ** 3):
            K = self.kernel(points.double(), points.double())
            K.diagonal().copy_(self.kernel.diagonal(points.double()) + self.noise_std**2)
            factor = torch.linalg.cholesky(K)
            centered = targets.double() - counts / counts.sum()
            alpha = torch.cholesky_solve(centered, factor)
            root = torch.linalg.solve_triangular(
                factor, torch.eye(len(K), dtype=K.dtype), upper=False
            )  # K^-1 = root^T root
        scales = class_scales(counts)
        return alpha * scales, (centered - alpha / root.square().sum(dim=0).unsqueeze(1)) * scales

    def scores(self, queries: Tensor, points: Tensor, weights: Tensor) -> Tensor:
        """Return k(h, h_Q) a, (M, C), in float32, one chunk at a time. O(M N (D + C))."""
        thin = weights.float()
        with suited_to(min(len(queries), CHUNK) * len(points) * (points.shape[1] + thin.shape[1])):
            return torch.cat([self.kernel(chunk, points) @ thin for chunk in queries.split(CHUNK)])


def self_train(
    solver: Solver, points: Tensor, targets: Tensor, unlabeled: Tensor, *, rounds: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Let confident rows join for some rounds; each round chooses anew among all unlabelled rows.
    O(rounds N^3).

    Confidence is taken under the class shares of the unlabelled rows, estimated each round, so that
    the rows of a large class do not join a small one. That of a row which has joined is computed
    without itself.

    Args:
        solver: the GP. points: (n, D) labelled. targets: (n, C) one-hot. unlabeled: (u, D).
        rounds: at least 1.

    Returns:
        Positions (P,) among the unlabelled rows of those that joined, their probabilities (P, C) as
        soft labels, and the classes (u,) of all unlabelled rows.
    """
    counts = targets.sum(dim=0)
    present = counts > 0
    most = min(MOST_JOINED, max(FEWEST_JOINED, MOST_TOGETHER - len(points)))
    quota = max(1, most // int(present.sum()))
    weights, _ = solver.weights(points, targets)
    scores = solver.scores(unlabeled, points, weights)
    for _ in range(rounds):
        balanced = torch.softmax(
            (solver.logit_scale * scores).masked_fill(~present, -torch.inf), dim=1
        )
        probs = balanced * estimate_shares(scores, solver.logit_scale, counts)
        probs = probs / probs.sum(dim=1, keepdim=True)
        joined = _most_confident(probs, quota)
        soft = probs[joined].double()
        if not len(joined):
            break
        together = torch.cat([points, unlabeled[joined]])
        weights, left_out = solver.weights(together, torch.cat([targets, soft]))
        scores = solver.scores(unlabeled, together, weights)
        scores[joined] = left_out[len(points) :].float()
    return joined, soft, scores.masked_fill(~present, -torch.inf).argmax(dim=1)


def _most_confident(probs: Tensor, quota: int) -> Tensor:
    """Return the positions (P,) of the rows of highest confidence of every class, at most ``quota``
    each.
    """
    confidence, codes = probs.max(dim=1)
    chosen = []
    for c in range(probs.shape[1]):
        sure = ((codes == c) & (confidence >= SURE)).nonzero().squeeze(1)
        chosen.append(sure[confidence[sure].argsort(descending=True, stable=True)[:quota]])
    return torch.cat(chosen)
