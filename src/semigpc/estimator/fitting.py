"""What ``fit`` does: scale rows, choose hyper-parameters, self-train, calibrate probabilities."""

import math
import warnings
from copy import copy
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from sklearn import config_context
from sklearn.preprocessing import StandardScaler
from sklearn.utils import gen_batches
from torch import Tensor

from semigpc.estimator.answers import (
    KNOTS,
    SCALINGS,
    Decisions,
    GaussianRanks,
    Integers,
    Scaling,
    UnitRows,
    left_out_scores,
)
from semigpc.estimator.copies import CONSTANT_RATIO, Copies, counted_once, sums_of
from semigpc.estimator.memory import Memory
from semigpc.estimator.promise import Promise, make_promise
from semigpc.gp import Kernel
from semigpc.gp.certainty import auto_logit_scale, class_scales
from semigpc.gp.kernels import KERNELS, has_unit_diagonal, make_kernel
from semigpc.gp.scales import LeftTogether, Setting, balanced_subset, choose_by_grid
from semigpc.io.threads import suited_to

# Rows and rounds; the values were chosen on tuning splits of the estimator's problems
# (docs/results.md).
TUNED_LABELS = 400  # labelled rows of the grid search: 36 eigendecompositions take a second
POOL_ROWS = 20_000  # unlabelled rows that class shares are estimated from
SELF_TRAINED_LABELS = 2000  # labelled rows up to which self-training is worth its cost
LEAST_RECALL = 1 / 2  # mean recall of left-out labels from which self-training helps
AUTO_ROUNDS = 3  # of self-training where both hold
MOST_ROUNDS = 100  # of self-training, each of which is O(N^3)
JOINING_CONFIDENCE = 0.8  # probability from which a row joins in self-training
MOST_JOINED = 1500  # rows that join, shared evenly by the classes
MOST_TOGETHER = 1600  # labelled and joined rows; fewer join where there would be more ...
FEWEST_JOINED = 500  # ... but at least these
LOGIT_SCALES = tuple(float(x) for x in np.geomspace(1.0, 80.0, 40))
EM_ROUNDS = 200  # of expectation-maximisation at most
CONVERGED_CHANGE = 1e-6  # of a share, below which it stops
# Factor of lambda: left-out scores are less confident than those of unlabelled rows, and shares
# estimated from soft scores collapse.
SHARPENING = 2.0
RELIED_SHARE = 0.15  # of the unlabelled rows that counts for the prior: their classes are estimates
STRENGTHS = np.geomspace(1, 1e5, 41)  # tried, of the prior proportional to the labels, in labels
LEAST_SHARE = 0.01  # of an even share: that of the pseudo-rows of a class
# Largest over smallest count of labels up to which they count as chosen evenly by a person, so that
# they contain nothing about shares.
EVEN_RATIO = 1.5
STATISTICS_ROWS = 8192  # whose statistics are taken at a time, to bound memory
RANK_ROWS = 20_000  # rows from which the quantiles are estimated
ENOUGH_LABELS = 200  # to choose among all scalings
ALIKE_SHARE = 0.45  # of effective columns, from which columns count as one kind of quantity


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
            "kernel": tuple(filter(has_unit_diagonal, KERNELS)),
            "scaling": ("auto", *SCALINGS),
            "class_prior": ("balanced", "estimated"),
        }
        for name, known in names.items():
            value = parameters[name]
            if not isinstance(value, str) or value not in known:
                choices = ", ".join(map(repr, known))
                raise ValueError(f"{name} must be one of {choices}; got {value!r}.")
        most = {"abstain": 2, "target_precision": 1, "outlier_quantile": 1}  # abstain > 1: no label
        for name, largest in most.items():
            value = parameters[name]
            if value is None and name != "outlier_quantile":
                continue
            if not (isinstance(value, Real) and 0 <= float(value) <= largest):
                raise ValueError(f"{name} must lie in [0, 1]; got {value!r}.")
        if not isinstance(parameters["per_class"], bool | np.bool_):
            raise ValueError(f"per_class must be True or False; got {parameters['per_class']!r}.")
        rounds = parameters["self_training"]
        if isinstance(rounds, bool | np.bool_):
            rounds = "auto" if rounds else 0
        if rounds != "auto":
            rounds = _whole("self_training", rounds, MOST_ROUNDS)
        numbers = {
            "length_scale": _positive("length_scale", parameters["length_scale"]),
            "noise_std": _positive("noise_std", parameters["noise_std"]),
            "logit_scale": _positive("logit_scale", parameters["logit_scale"]),
            "self_training": None if rounds == "auto" else rounds,
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

    ``memory`` holds the given labels; ``helped`` also the rows that joined in self-training, and is
    None if none did. ``copies`` are those among the labelled rows.
    """

    memory: Memory
    helped: Memory | None
    copies: Copies
    scaling: Scaling
    length_scale: float
    logit_scale: float
    confidence_scale: float
    rounds: int
    shares: NDArray[np.float64]
    promise: Promise
    outlier_variance: float


class TrainingRows(NamedTuple):
    """Labelled and unlabelled points.

    Attributes:
        points: (n, D) labelled. codes: (n,). targets: (n, C) one-hot. numbers: (n,) row numbers.
        groups: (n,) of copies. unlabeled: (u, D). unlabeled_numbers: (u,).
    """

    points: Tensor
    codes: Tensor
    targets: Tensor
    numbers: Integers
    groups: Integers
    unlabeled: Tensor
    unlabeled_numbers: Integers

    def memory(self, kernel: Kernel, noise_std: float, *, equalised: bool, seed: int = 0) -> Memory:
        """Return the GP over the labelled points."""
        codes = self.codes.numpy()
        contents = (self.points, self.targets, self.numbers, codes)
        return Memory(kernel, noise_std, *contents, equalised=equalised, seed=seed)


class LeftOutScores(NamedTuple):
    """Labelled rows without their own labels: scores (n, C) with and without equal evidence.

    Copies of a row are left out with it, and of several copies with the same label one is here.
    ``codes`` (n,) are the given classes, and ``variance`` (n,) is the posterior variance there.
    """

    codes: Tensor
    equalised: Tensor
    plain: Tensor
    variance: Tensor


def fit_memory(
    X: NDArray[np.float32], codes: Integers, numbers: Integers, n_classes: int, options: FitOptions
) -> Fitted:
    """Fit rows (n, D) with numbers (n,) and codes (n,), -1 without a label. O(n^3) for labels."""
    rng = np.random.default_rng(options.random_state)
    labelled = np.flatnonzero(codes >= 0)
    copies = Copies(X[labelled], numbers[labelled])
    groups = copies.groups(numbers[labelled])
    scaling, setting = _choose_setting(X, codes, labelled, groups, options, rng)
    rows = _training_rows(X, codes, numbers, groups, scaling, rng, n_classes)
    balanced = options.class_prior == "balanced"
    kernel = make_kernel(options.kernel, setting.length_scale)
    memory = rows.memory(kernel, setting.noise_std, equalised=balanced, seed=options.random_state)
    left_out = _leave_out(memory, rows)
    default = auto_logit_scale(n_classes)
    truth = left_out.codes
    logit_scale = options.logit_scale or best_logit_scale(left_out.equalised, truth, default)
    confidence_scale = best_logit_scale(left_out.plain, truth, default)
    scores = memory.score(rows.unlabeled).mean
    shares = estimate_shares(_even(scores, memory), logit_scale, rows.targets.sum(dim=0))
    rounds = _rounds(left_out, rows, options, memory)
    helped, classes = self_train(memory, rows, scores, logit_scale, rounds=rounds)
    promise = Promise(np.full(n_classes, options.abstain or 0.0))
    if options.abstain is None and options.target_precision is not None:
        left_probs = torch.softmax(confidence_scale * left_out.plain + shares.log(), dim=1)
        logits = confidence_scale * scores / memory.scales().clamp_min(1e-9)
        probs = torch.softmax(logits + shares.log(), dim=1)
        promise = make_promise(
            Decisions(left_probs, (left_out.equalised if balanced else left_probs).argmax(dim=1)),
            truth,
            Decisions(probs, classes if balanced else probs.argmax(dim=1)),
            shares,
            options.target_precision,
            per_class=bool(options.per_class),
        )
    return Fitted(
        memory=memory,
        helped=helped,
        copies=copies,
        scaling=scaling,
        length_scale=setting.length_scale,
        logit_scale=logit_scale,
        confidence_scale=confidence_scale,
        rounds=rounds,
        shares=shares.numpy(),
        promise=promise,
        outlier_variance=float(left_out.variance.quantile(options.outlier_quantile)),
    )


def _training_rows(
    X: NDArray[np.float32],
    codes: Integers,
    numbers: Integers,
    groups: Integers,
    scaling: Scaling,
    rng: np.random.Generator,
    n_classes: int,
) -> TrainingRows:
    """Return the labelled points, and at most POOL_ROWS of the others, drawn at random."""
    labelled = np.flatnonzero(codes >= 0)
    pool = np.flatnonzero(codes < 0)
    pool = pool if len(pool) <= POOL_ROWS else np.sort(rng.choice(pool, POOL_ROWS, replace=False))
    known = torch.from_numpy(codes[labelled])
    return TrainingRows(
        points=scaling(X[labelled]),
        codes=known,
        targets=torch.nn.functional.one_hot(known, n_classes).double(),
        numbers=numbers[labelled],
        groups=groups,
        unlabeled=scaling(X[pool]),
        unlabeled_numbers=numbers[pool],
    )


def _leave_out(memory: Memory, rows: TrainingRows) -> LeftOutScores:
    """Return scores and variance at labelled rows, each without its own label and its copies."""
    order = np.argsort(rows.numbers)  # the order in which a memory has them
    left_out = memory.left_out(rows.groups[order])
    counted = counted_once(rows.groups[order], rows.codes.numpy()[order])
    places = torch.from_numpy(np.flatnonzero(counted))
    held = rows.targets[torch.from_numpy(order)] * memory.held_shares().unsqueeze(1)
    removed = sums_of(held, rows.groups[order])[places]
    means = (left_out.mean[places], left_out.ones[places])
    return LeftOutScores(
        codes=rows.codes[torch.from_numpy(order)][places],
        equalised=left_out_scores(*means, memory.counts(), removed),
        plain=left_out_scores(*means, memory.counts(), removed, equalised=False),
        variance=left_out.variance[places],
    )


def _even(scores: Tensor, memory: Memory) -> Tensor:
    """Return scores (M, C) of a memory with equal evidence for every class."""
    return scores * (class_scales(memory.counts()) / memory.scales().clamp_min(1e-9))


def _rounds(
    left_out: LeftOutScores, rows: TrainingRows, options: FitOptions, memory: Memory
) -> int:
    """Return how many rounds of self-training to do."""
    if memory.engine != "exact":
        if options.self_training:
            message = f"self-training is left out, since {memory.reason}"
            warnings.warn(message, UserWarning, stacklevel=5)
        return 0
    if not len(rows.unlabeled):
        return 0
    if options.self_training is not None:
        return options.self_training
    right = (left_out.equalised.argmax(dim=1) == left_out.codes).double()
    counts = torch.bincount(left_out.codes)
    hits = torch.bincount(left_out.codes, right)
    recall = float((hits[counts > 0] / counts[counts > 0]).mean())
    is_worth_it = recall >= LEAST_RECALL and len(rows.codes) <= SELF_TRAINED_LABELS
    return AUTO_ROUNDS if is_worth_it else 0


# Hyper-parameters ---------------------------------------------------------------------------------


def _choose_setting(
    X: NDArray[np.float32],
    codes: Integers,
    labelled: Integers,
    groups: Integers,
    options: FitOptions,
    rng: np.random.Generator,
) -> tuple[Scaling, Setting]:
    scalings = fit_scalings(X, options.scaling, labels=len(np.unique(groups)))
    chosen = balanced_subset(codes[labelled], TUNED_LABELS, rng)
    tuned = labelled[chosen]
    _, dense = np.unique(codes[tuned], return_inverse=True)
    counted = counted_once(groups[chosen], dense)
    with suited_to(len(tuned) ** 2):  # eigenvectors are mostly products of a matrix and a vector
        setting = choose_by_grid(
            {name: scaling(X[tuned]) for name, scaling in scalings.items()},
            torch.from_numpy(dense),
            kernel=options.kernel,
            length_scale=options.length_scale,
            noise_std=options.noise_std,
            together=LeftTogether(torch.from_numpy(groups[chosen]), torch.from_numpy(counted)),
        )
    return scalings[setting.scaling], setting


# Self-training ------------------------------------------------------------------------------------


def self_train(
    memory: Memory, rows: TrainingRows, scores: Tensor, logit_scale: float, *, rounds: int
) -> tuple[Memory | None, Tensor]:
    """Let confident rows join for some rounds; each round chooses anew among all unlabelled rows.

    Confidence is taken under the class shares of the unlabelled rows, estimated each round, so that
    the rows of a large class do not join a small one. That of a row which has joined is computed
    without itself. O(rounds N^3).

    Args:
        memory: over the labelled rows. scores: (u, C) of the unlabelled rows by it.
        logit_scale: lambda. rounds: 0 or more.

    Returns:
        The GP over labelled rows and those that joined, with their probabilities as soft labels, or
        None if none did; and the classes (u,) of all unlabelled rows.
    """
    counts = rows.targets.sum(dim=0)
    present = counts > 0
    most = min(MOST_JOINED, max(FEWEST_JOINED, MOST_TOGETHER - len(rows.points)))
    quota = max(1, most // int(present.sum()))
    scores = _even(scores, memory).float()
    helped = None
    for _ in range(rounds):
        logits = (logit_scale * scores).masked_fill(~present, -torch.inf)
        probs = torch.softmax(logits, dim=1) * estimate_shares(scores, logit_scale, counts)
        probs = probs / probs.sum(dim=1, keepdim=True)
        joined = _most_confident(probs, quota)
        if not len(joined):
            helped = None
            break
        helped = _joined_memory(memory, rows, joined, probs[joined].double())
        scores = _even(helped.score(rows.unlabeled).mean, helped).float()
        scores[joined] = _joined_scores(helped, rows.unlabeled_numbers[joined.numpy()])
    return helped, scores.masked_fill(~present, -torch.inf).argmax(dim=1)


def _joined_memory(memory: Memory, rows: TrainingRows, joined: Tensor, soft: Tensor) -> Memory:
    """Return the GP over labelled rows and joined ones (P,) with soft labels (P, C)."""
    return Memory(
        memory.kernel,
        memory.noise_std,
        torch.cat([rows.points, rows.unlabeled[joined]]),
        torch.cat([rows.targets, soft]),
        np.concatenate([rows.numbers, rows.unlabeled_numbers[joined.numpy()]]),
        np.concatenate([rows.codes.numpy(), np.full(len(joined), -1)]),
        equalised=memory.equalised,
    )


def _joined_scores(helped: Memory, numbers: Integers) -> Tensor:
    """Return scores (P, C) of rows that joined, each without its own soft label; float32."""
    places = torch.from_numpy(np.searchsorted(helped.row_numbers(), numbers))
    counts = helped.counts()
    left_out = helped.left_out()
    centred = left_out.mean - left_out.ones.unsqueeze(1) * (counts / counts.sum())
    return (centred * class_scales(counts))[places].float()


def _most_confident(probs: Tensor, quota: int) -> Tensor:
    """Return positions (P,) of the most confident rows of every class, at most ``quota`` each."""
    confidence, codes = probs.max(dim=1)
    chosen = []
    for c in range(probs.shape[1]):
        confident = ((codes == c) & (confidence >= JOINING_CONFIDENCE)).nonzero().squeeze(1)
        order = confidence[confident].argsort(descending=True, stable=True)
        chosen.append(confident[order[:quota]])
    return torch.cat(chosen)


# Scalings --------------------------------------------------------------------------------


def fit_scalings(X: NDArray[Any], name: str = "auto", *, labels: int = 0) -> dict[str, Scaling]:
    """Return the scaling of this name, or those that ``auto`` chooses from, by name. O(n D).

    Statistics are those of all rows (n, D). 200 labels are enough to tell which of all scalings is
    best. With fewer, the effective number of columns decides between two pairs of them:
    (sum_j v_j)^2 / sum_j v_j^2 with v_j the variances of the columns. Where it is small beside D,
    some columns have much larger units than others, so the table is one of unlike quantities.
    """
    standard = StandardScaler()
    with config_context(assume_finite=True):  # which was checked
        for batch in gen_batches(len(X), STATISTICS_ROWS):
            standard.partial_fit(X[batch])
    centering = copy(standard).set_params(with_std=False)
    is_constant = np.sqrt(standard.var_) <= CONSTANT_RATIO * np.abs(standard.mean_)
    standard.scale_ = np.where(is_constant, np.inf, standard.scale_)
    names: tuple[str, ...] = (name,)
    if name == "auto":
        v = standard.var_
        effective = v.sum() ** 2 / max(np.square(v).sum(), 1e-300) / len(v)
        names = ("unit", "centered") if effective >= ALIKE_SHARE else ("standard", "rank")
        names = ("unit", "centered", "standard", "rank") if labels >= ENOUGH_LABELS else names
    steps = {
        "none": (),
        "unit": (UnitRows(),),
        "centered": (centering, UnitRows()),
        "standard": (standard,),
    }
    return {one: Scaling(one, (_fit_ranks(X),) if one == "rank" else steps[one]) for one in names}


def _fit_ranks(X: NDArray[Any]) -> GaussianRanks:
    sample = X[:: -(-len(X) // RANK_ROWS)]
    quantiles = np.quantile(sample, np.linspace(0, 1, KNOTS), axis=0).T
    return GaussianRanks(np.ascontiguousarray(quantiles, np.float32))


# Scale of the logits, and class shares ------------------------------------------------------------


def best_logit_scale(scores: Tensor, codes: Tensor, default: float) -> float:
    """Return the lambda of largest likelihood of softmax(lambda s), classes counting the same.

    One pseudo-observation per class at the default prevents certainty from a handful of labels that
    are all predicted right. O(n C) for each value tried.

    Args:
        scores: (n, C) of rows that did not take part; rows whose own class is -inf are left out.
            codes: (n,).
        default: lambda where nothing can be learned.
    """
    rows = torch.arange(len(codes))
    usable = scores[rows, codes].isfinite()
    scores = scores[usable]
    codes = codes[usable]
    if not len(codes):
        return default
    counts = torch.bincount(codes, minlength=scores.shape[1]).to(scores)
    weights = 1 / counts[codes]
    n_c = float(len(codes)) / float((counts > 0).sum())

    def loss(scale: float) -> float:
        own = torch.log_softmax(scale * scores, dim=1)[rows[: len(codes)], codes]
        return -float(weights @ own / weights.sum()) + math.log(scale / default) ** 2 / n_c

    return min(LOGIT_SCALES, key=loss)


def estimate_shares(scores: Tensor, scale: float, counts: Tensor) -> Tensor:
    """Return class shares of unlabelled rows by expectation-maximisation.

        r_ic ~ pi_c softmax(2 lambda s_i)_c
        pi_c ~ max(1, u / 100 C) + kappa n_c / n + sum_i r_ic

    The prior is proportional to the labels. The first term are pseudo-rows, so that no share
    becomes 0. kappa is chosen each round: it
    maximises the likelihood of the counts sum_i r_ic, of which 15 % are relied on, under a
    Dirichlet-multinomial distribution around n_c / n. Labels that are drawn like the other rows
    thus decide about rare classes, and labels that are not have little weight. Where all classes
    have about as many labels, somebody chose them so, and kappa is 0. O(u C) a round.

    Args:
        scores: (u, C) of the unlabelled rows, with equal evidence for every class. scale: lambda.
        counts: (C,) labels of each class; a class without labels has no share.
    """
    present = counts > 0
    if not len(scores):
        return counts / counts.sum()
    probs = torch.softmax(
        (SHARPENING * scale * scores.double()).masked_fill(~present, -math.inf), dim=1
    )
    likely = (counts / counts.sum()).numpy()
    pseudo = present.double().numpy() * max(1.0, LEAST_SHARE * len(scores) / len(counts))
    even = float(counts.max() / counts[present].min()) <= EVEN_RATIO
    shares = present.double() / present.sum()
    for _ in range(EM_ROUNDS):
        joint = probs * shares
        rows = (joint / joint.sum(dim=1, keepdim=True).clamp_min(1e-30)).sum(dim=0).numpy()
        kappa = (
            0.0
            if even
            else _strength(RELIED_SHARE * rows[pseudo > 0], likely[pseudo > 0]) / RELIED_SHARE
        )
        total = rows + kappa * likely + pseudo
        before = shares
        shares = torch.from_numpy(total / total.sum())
        if float((shares - before).abs().max()) < CONVERGED_CHANGE:
            break
    return shares


def _strength(rows: NDArray[np.float64], likely: NDArray[np.float64]) -> float:
    """Return the kappa of largest Dirichlet-multinomial likelihood of counts (C,)."""
    prior = STRENGTHS[:, None] * likely
    evidence = (
        gammaln(STRENGTHS)
        - gammaln(STRENGTHS + rows.sum())
        + (gammaln(prior + rows) - gammaln(prior)).sum(axis=1)
    )
    return float(STRENGTHS[evidence.argmax()])
