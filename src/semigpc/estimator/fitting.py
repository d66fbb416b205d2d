"""What ``fit`` does: scale rows, choose hyper-parameters, self-train, leave labels out, promise."""

import math
import warnings
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import f as f_distribution
from sklearn import config_context
from sklearn.preprocessing import StandardScaler
from sklearn.utils import gen_batches
from torch import Tensor

from semigpc.estimator.answers import (
    KNOTS,
    SCALINGS,
    WEIGHTED,
    WHITENED,
    GaussianRanks,
    Integers,
    LeftOutLabels,
    Probabilities,
    Scaling,
    Steps,
    UnitRows,
    WeightedColumns,
    WhitenedColumns,
    left_out_scores,
    sharpened,
)
from semigpc.estimator.calibration import (
    best_logit_scale,
    choose_sharpness,
    doubted_sharpness,
    estimate_shares,
    label_weights,
)
from semigpc.estimator.copies import CONSTANT_RATIO, Copies, counted_once, sums_of
from semigpc.estimator.memory import Memory
from semigpc.estimator.promise import Promise, make_promise
from semigpc.gp import Kernel
from semigpc.gp.certainty import auto_logit_scale
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
FOLDS = 5  # of the labels that are left out together where there is self-training
STAYS = -1  # the fold of a label that is never left out
FOLD_POOL_ROWS = 1500  # unlabelled rows that take part while labels are left out ...
FOLD_JOINED = 500  # ... and of these, that join at most
STATISTICS_ROWS = 8192  # whose statistics are taken at a time, to bound memory
RANK_ROWS = 20_000  # rows from which quantiles and correlations are estimated
ENOUGH_LABELS = 200  # to choose among all scalings
WIDE_ROWS = (
    128  # columns from which rows are embeddings, whose columns have no meaning of their own
)
COLUMN_POWER = 0.25  # of 1 + F in the weight of a column (docs/results.md)
CHANCE = 0.05  # that a column gets a weight though none tells anything
# Added to each variance before whitening: one direction may count up to 1 / sqrt of it. Of 0.001 to
# 0.4 the best on tables, seeds 100 to 102.
WHITENING_RIDGE = 0.1
CORRELATED_SHARE = 0.25  # of effective directions among the columns, below which whitening is tried
STEPPED_COLUMNS = 64  # at most: steps are as many times more columns
ALIKE_SHARE = 0.45  # of effective columns, from which columns count as one kind of quantity


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The parameters of :class:`SemiGPClassifier`, checked; None in place of "auto"."""

    kernel: str
    length_scale: float | None
    noise_std: float | None
    logit_scale: float | None
    sharpness: float | None
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
            "scaling": ("auto", *SCALINGS, WHITENED, *WEIGHTED),
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
            "sharpness": _positive("sharpness", parameters["sharpness"]),
            "self_training": None if rounds == "auto" else rounds,
            "random_state": _whole("random_state", parameters["random_state"] or 0),
        }
        return cls(**(parameters | numbers))

    @property
    def promised(self) -> float | None:
        """Return the precision to guarantee; None if a threshold is set, or none is asked for."""
        return None if self.abstain is not None else self.target_precision


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
    None if none did. ``copies`` are those among the labelled rows. ``held_out`` is what the others
    predict for labels that were left out; None if it was not needed.
    """

    memory: Memory
    helped: Memory | None
    copies: Copies
    scaling: Scaling
    length_scale: float
    probabilities: Probabilities
    rounds: int
    promise: Promise
    held_out: LeftOutLabels | None
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

    def memory(self, kernel: Kernel, noise_std: float, *, seed: int = 0) -> Memory:
        """Return the GP over the labelled points."""
        codes = self.codes.numpy()
        contents = (self.points, self.targets, self.numbers, codes)
        return Memory(kernel, noise_std, *contents, seed=seed)

    def labelled(self, chosen: NDArray[np.bool_]) -> "TrainingRows":
        """Return these with some of the labelled points (n,) only."""
        places = torch.from_numpy(np.flatnonzero(chosen))
        return self._replace(
            points=self.points[places],
            codes=self.codes[places],
            targets=self.targets[places],
            numbers=self.numbers[chosen],
            groups=self.groups[chosen],
        )

    def fewer_unlabeled(self, most: int, rng: np.random.Generator) -> "TrainingRows":
        """Return these with at most so many unlabelled points, drawn at random."""
        if len(self.unlabeled) <= most:
            return self
        drawn = np.sort(rng.choice(len(self.unlabeled), most, replace=False))
        return self._replace(
            unlabeled=self.unlabeled[torch.from_numpy(drawn)],
            unlabeled_numbers=self.unlabeled_numbers[drawn],
        )


class LeftOutScores(NamedTuple):
    """Labelled rows without their own labels: scores (n, C) with and without equal evidence.

    Copies of a row are left out with it, and of several copies with the same label one is here.
    ``places`` (n,) are those among the labelled rows, ``codes`` (n,) the given classes, ``others``
    (n, C) the labels of each class that are not left out, and ``variance`` (n,) is the posterior
    variance.
    """

    places: Integers
    codes: Tensor
    even: Tensor
    plain: Tensor
    others: Tensor
    variance: Tensor


def fit_memory(
    X: NDArray[np.float32],
    codes: Integers,
    numbers: Integers,
    drawn: NDArray[np.bool_],
    n_classes: int,
    options: FitOptions,
) -> Fitted:
    """Fit rows (n, D) with numbers (n,) and codes (n,), -1 if unlabelled; ``drawn`` (n,) vouch."""
    rng = np.random.default_rng(options.random_state)
    labelled = np.flatnonzero(codes >= 0)
    copies = Copies(X[labelled], numbers[labelled])
    groups = copies.groups(numbers[labelled])
    scaling, setting = _choose_setting(X, codes, labelled, groups, options, rng)
    rows = _training_rows(X, codes, numbers, groups, scaling, rng, n_classes)
    kernel = make_kernel(options.kernel, setting.length_scale)
    memory = rows.memory(kernel, setting.noise_std, seed=options.random_state)
    left_out = _leave_out(memory, rows)
    outlier_variance = float(left_out.variance.quantile(options.outlier_quantile))
    scores = memory.score(rows.unlabeled).mean
    probabilities = _choose_probabilities(left_out, rows, scores, options)
    rounds = _rounds(left_out, rows, options, memory)
    helped, even = self_train(memory, rows, scores, probabilities.logit_scale, rounds=rounds)
    promise = Promise(np.full(n_classes, options.abstain or 0.0))
    held_out = None
    counted = drawn[labelled]
    if options.promised is not None or options.sharpness is None:
        if rounds:
            few = rows.fewer_unlabeled(FOLD_POOL_ROWS, rng)
            scale = probabilities.logit_scale
            left_out = _leave_folds_out(memory, few, scale, rounds, options.random_state)
        chosen = options.sharpness
        probabilities, held_out = _held_out(left_out, rows, counted, probabilities, chosen)
    if options.promised is not None and held_out is not None:
        plain = scores.double() / memory.scales().clamp_min(1e-9)
        pool = probabilities.decide(probabilities.of(plain, even.double()))
        settings = (probabilities.shares, probabilities.counts, options.promised)
        chosen_share = float(1 - counted.mean())
        promise = make_promise(
            held_out, pool, *settings, per_class=options.per_class, chosen=chosen_share
        )
    return Fitted(
        memory=memory,
        helped=helped,
        copies=copies,
        scaling=scaling,
        length_scale=setting.length_scale,
        probabilities=probabilities,
        rounds=rounds,
        promise=promise,
        held_out=held_out,
        outlier_variance=outlier_variance,
    )


def _choose_probabilities(
    left_out: LeftOutScores, rows: TrainingRows, scores: Tensor, options: FitOptions
) -> Probabilities:
    """Return the probabilities for both scales and the shares, of sharpness 1 if it is to choose.

    Args:
        scores: (u, C) of the unlabelled rows by the given labels.
    """
    counts = rows.targets.sum(dim=0)
    default = auto_logit_scale(len(counts))
    scale = options.logit_scale or best_logit_scale(left_out.even, left_out.codes, default)
    return Probabilities(
        logit_scale=scale,
        confidence_scale=best_logit_scale(left_out.plain, left_out.codes, default),
        sharpness=options.sharpness or 1.0,
        shares=estimate_shares(scores, scale, counts),
        counts=counts,
        balanced=options.class_prior == "balanced",
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
    counted = np.flatnonzero(counted_once(rows.groups[order], rows.codes.numpy()[order]))
    places = torch.from_numpy(counted)
    held = rows.targets[torch.from_numpy(order)] * memory.held_shares().unsqueeze(1)
    removed = sums_of(held, rows.groups[order])[places]
    means = (left_out.mean[places], left_out.ones[places])
    return LeftOutScores(
        places=order[counted],
        codes=rows.codes[torch.from_numpy(order)][places],
        even=left_out_scores(*means, memory.counts(), removed),
        plain=left_out_scores(*means, memory.counts(), removed, equalised=False),
        others=memory.counts() - removed,
        variance=left_out.variance[places],
    )


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
    right = (left_out.even.argmax(dim=1) == left_out.codes).double()
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
    once = labelled[counted_once(groups, codes[labelled])]
    scalings = _scalings_to_try(X, codes, once, len(np.unique(groups)), options.scaling)
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


def _scalings_to_try(
    X: NDArray[np.float32], codes: Integers, labelled: Integers, labels: int, name: str
) -> dict[str, Scaling]:
    """Return the scaling of this name, or those that ``auto`` chooses from, weighted ones too.

    Whitening is tried where the columns vary in few directions: (sum_j r_j)^2 / sum_j r_j^2, with
    r_j the eigenvalues of their correlations, is less than a quarter of their number. Elsewhere it
    would be one more chance that left-out labels of random classes look predictable.

    Args:
        labelled: positions without copies, which would make any column seem to tell classes apart.
        labels: how many are not copies.
    """
    known = (X[labelled], codes[labelled])
    if name in WEIGHTED:
        plain = fit_scalings(X, WEIGHTED[name])
        return {name: weighted_scalings(plain, *known)[name]}
    scalings = fit_scalings(X, name, labels=labels)
    if name != "auto" or X.shape[1] >= WIDE_ROWS:
        return scalings
    weighted = weighted_scalings(scalings, *known)
    if "rank" not in scalings:
        weighted = weighted_scalings(fit_scalings(X, "rank"), *known)
        del weighted["weighted_rank"]
    if X.shape[1] > STEPPED_COLUMNS:
        del weighted["weighted_steps"]
    standard = fit_scalings(X, "standard")["standard"]
    R = _correlations(X, standard)
    if np.trace(R) ** 2 / max(np.square(R).sum(), 1e-300) < CORRELATED_SHARE * len(R):
        weighted[WHITENED] = Scaling(WHITENED, (*standard.steps, _fit_whitening(R)))
    return scalings | weighted


# Self-training ------------------------------------------------------------------------------------


def self_train(
    memory: Memory,
    rows: TrainingRows,
    scores: Tensor,
    logit_scale: float,
    *,
    rounds: int,
    most: int = MOST_JOINED,
) -> tuple[Memory | None, Tensor]:
    """Let confident rows join for some rounds; each round chooses anew among all unlabelled rows.

    Confidence is taken under the class shares of the unlabelled rows, estimated each round, so that
    the rows of a large class do not join a small one. That of a row which has joined is computed
    without itself. O(rounds N^3).

    Args:
        memory: over the labelled rows. scores: (u, C) of the unlabelled rows by it.
        logit_scale: lambda. rounds: 0 or more. most: rows that may join.

    Returns:
        The GP over labelled rows and those that joined, with their probabilities as soft labels, or
        None if none did; and the scores (u, C) of all unlabelled rows.
    """
    counts = rows.targets.sum(dim=0)
    present = counts > 0
    most = min(most, max(FEWEST_JOINED, MOST_TOGETHER - len(rows.points)))
    quota = max(1, most // int(present.sum()))
    first = scores.float()
    scores = first
    helped = None
    for _ in range(rounds):
        logits = (logit_scale * scores).masked_fill(~present, -torch.inf)
        probs = torch.softmax(logits, dim=1) * estimate_shares(scores, logit_scale, counts)
        probs = probs / probs.sum(dim=1, keepdim=True)
        joined = _most_confident(probs, quota)
        if not len(joined):
            return None, first
        helped = _joined_memory(memory, rows, joined, probs[joined].double())
        scores = helped.score_unjoined(rows.unlabeled).float()
    return helped, scores


def _joined_memory(memory: Memory, rows: TrainingRows, joined: Tensor, soft: Tensor) -> Memory:
    """Return the GP over labelled rows and joined ones (P,) with soft labels (P, C)."""
    return Memory(
        memory.kernel,
        memory.noise_std,
        torch.cat([rows.points, rows.unlabeled[joined]]),
        torch.cat([rows.targets, soft]),
        np.concatenate([rows.numbers, rows.unlabeled_numbers[joined.numpy()]]),
        np.concatenate([rows.codes.numpy(), np.full(len(joined), -1)]),
    )


def _most_confident(probs: Tensor, quota: int) -> Tensor:
    """Return positions (P,) of the most confident rows of every class, at most ``quota`` each."""
    confidence, codes = probs.max(dim=1)
    chosen = []
    for c in range(probs.shape[1]):
        confident = ((codes == c) & (confidence >= JOINING_CONFIDENCE)).nonzero().squeeze(1)
        order = confidence[confident].argsort(descending=True, stable=True)
        chosen.append(confident[order[:quota]])
    return torch.cat(chosen)


# Labels that are left out -----------------------------------------------------------------------


def assign_folds(codes: Integers, groups: Integers, folds: int, seed: int) -> Integers:
    """Return the fold (n,) in which each label is held out, or STAYS for the only one of a class.

    Every class is spread over the folds as evenly as possible, one class continuing where the last
    ended, so that folds are equally large and a class with two labels or more always keeps one to
    learn from. A class with a single label is not held out, since the model would not know the
    class then. Copies are in one fold; a group of them counts as one label, of its first class.

    Args:
        codes: (n,) classes. groups: (n,) of copies. folds: how many.
        seed: decides which label goes where.
    """
    rng = np.random.default_rng(seed)
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    fold_of = np.full(len(first), STAYS, dtype=np.int64)
    next_fold = 0
    classes, appeared = np.unique(codes, return_index=True)
    for c in classes[np.argsort(appeared)]:  # whatever the classes are called
        members = group[rng.permutation(np.sort(first[codes[first] == c]))]
        if len(members) > 1:
            fold_of[members] = (next_fold + np.arange(len(members))) % folds
            next_fold = (next_fold + len(members)) % folds
    for c in classes:  # copies may have other classes than the first of them
        if len(np.unique(fold_of[group[codes == c]])) == 1:
            fold_of[group[codes == c]] = STAYS
    return fold_of[group]


def _leave_folds_out(
    memory: Memory, rows: TrainingRows, logit_scale: float, rounds: int, seed: int
) -> LeftOutScores:
    """Return scores at labelled rows by the labels of other folds, with self-training on those.

    Rows that join by a left-out label would repeat it. O(FOLDS rounds (n + FOLD_JOINED)^3).
    """
    folds = assign_folds(rows.codes.numpy(), rows.groups, FOLDS, seed)
    counted = counted_once(rows.groups, rows.codes.numpy())
    parts = []
    for fold in np.unique(folds[folds != STAYS]):
        stay = rows.labelled(folds != fold)
        places = np.flatnonzero((folds == fold) & counted)
        points = rows.points[torch.from_numpy(places)]
        given = stay.memory(memory.kernel, memory.noise_std)
        scores = given.score(rows.unlabeled).mean
        helped, _ = self_train(given, stay, scores, logit_scale, rounds=rounds, most=FOLD_JOINED)
        others = stay.targets.sum(dim=0)
        absent = others <= 0
        scored = given.score(points, variance=True)
        plain = scored.mean.double() / given.scales().clamp_min(1e-9)
        even = (helped or given).score(points).mean.double()
        assert scored.variance is not None
        part = LeftOutScores(
            places=places,
            codes=rows.codes[torch.from_numpy(places)],
            even=even.masked_fill(absent, -math.inf),
            plain=plain.masked_fill(absent, -math.inf),
            others=others.expand(len(places), -1),
            variance=scored.variance.double(),
        )
        parts.append(part)
    if not parts:
        return _leave_out(memory, rows)
    columns: Any = list(zip(*parts, strict=True))
    return LeftOutScores(np.concatenate(columns[0]), *(torch.cat(each) for each in columns[1:]))


def _held_out(
    left_out: LeftOutScores,
    rows: TrainingRows,
    drawn: NDArray[np.bool_],
    probabilities: Probabilities,
    sharpness: float | None,
) -> tuple[Probabilities, LeftOutLabels]:
    """Return the probabilities with their sharpness chosen, and left-out labels by these.

    Args:
        drawn: (n,) labelled rows that count. sharpness: None to choose it.
    """
    own = left_out.others.gather(1, left_out.codes.unsqueeze(1)).squeeze(1)
    counts = (own > 0.5) & torch.from_numpy(drawn[left_out.places])
    checked = counts.nonzero().squeeze(1)  # the only label of a class cannot be left out
    codes = left_out.codes[checked]
    others = left_out.others[checked]
    average = probabilities.average(left_out.plain[checked], left_out.even[checked])
    if sharpness is None:
        weights = (label_weights(codes, probabilities.shares) + 1) / 2
        sharpness = choose_sharpness(average, codes, others, weights)
        shares = probabilities.shares.double().numpy()
        sharpness = doubted_sharpness(sharpness, shares, probabilities.counts.double().numpy())
        probabilities = replace(probabilities, sharpness=sharpness)
    probs = sharpened(average, probabilities.sharpness, others)
    places = left_out.places[checked.numpy()]
    order = np.argsort(rows.numbers[places])
    decided = probabilities.decide(probs).classes
    return probabilities, LeftOutLabels(
        rows=rows.numbers[places][order],
        codes=codes.numpy()[order],
        groups=rows.groups[places][order],
        proba=probs.float().numpy()[order],
        decided=decided.numpy()[order],
        variance=left_out.variance[checked].clamp(0, 1).float().numpy()[order],
    )


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
    steps: dict[str, tuple[Any, ...]] = {
        "none": (),
        "unit": (UnitRows(),),
        "centered": (centering, UnitRows()),
        "standard": (standard,),
    }
    if "rank" in names:
        steps["rank"] = (_fit_ranks(X),)
    if WHITENED in names:
        R = _correlations(X, Scaling("standard", (standard,)))
        steps[WHITENED] = (standard, _fit_whitening(R))
    return {one: Scaling(one, steps[one]) for one in names}


def weighted_scalings(
    scalings: Mapping[str, Scaling], X: NDArray[np.float32], codes: Integers
) -> dict[str, Scaling]:
    """Return those of WEIGHTED that are made of some scalings, by name. O(n D).

        w_j ~ (1 + max(0, F_j - F0))^(1/4)

    with F_j the variance of column j between the classes over that within them, as in an analysis
    of variance, and a mean of 1 over columns inside of the power. F0 is what the largest F of D
    columns that tell nothing exceeds with a probability of 5 %: such columns keep equal weights,
    since weights that follow the labels by chance make left-out labels look predictable.

    Args:
        X: (n, D) labelled rows. codes: (n,) their classes.
    """
    found = {}
    for name, plain in WEIGHTED.items():
        if plain in scalings:
            F = variance_ratios(scalings[plain](X).double().numpy(), codes)
            excess = 1 + np.maximum(0, F - chance_ratio(codes, X.shape[1]))
            weights = (excess / excess.mean()) ** COLUMN_POWER
            last = Steps if name == "weighted_steps" else WeightedColumns
            steps = (*scalings[plain].steps, last(weights.astype(np.float32)))
            found[name] = Scaling(name, steps)
    return found


def variance_ratios(points: NDArray[np.float64], codes: Integers) -> NDArray[np.float64]:
    """Return F (D,) of points (n, D): the variance between classes (n,) over that within them.

    The latter is at least a thousandth of the whole, so that F is finite.
    """
    _, dense, counts = np.unique(codes, return_inverse=True, return_counts=True)
    means = np.stack([np.bincount(dense, column) for column in points.T], axis=1) / counts[:, None]
    between = counts @ np.square(means - points.mean(axis=0)) / max(len(counts) - 1, 1)
    within = np.square(points - means[dense]).sum(axis=0) / max(len(points) - len(counts), 1)
    least = 1e-3 * points.var(axis=0) + 1e-9
    return np.asarray(between / np.maximum(within, least))


def chance_ratio(codes: Integers, columns: int) -> float:
    """Return what the largest F of columns that tell nothing exceeds with a probability of 5 %.

    By Bonferroni's bound. Infinite where no class (n,) has two rows.
    """
    classes = len(np.unique(codes))
    if not 1 < classes < len(codes):
        return math.inf
    return float(f_distribution.isf(CHANCE / columns, classes - 1, len(codes) - classes))


def _fit_ranks(X: NDArray[Any]) -> GaussianRanks:
    sample = X[:: -(-len(X) // RANK_ROWS)]
    quantiles = np.quantile(sample, np.linspace(0, 1, KNOTS), axis=0).T
    return GaussianRanks(np.ascontiguousarray(quantiles, np.float32))


def _correlations(X: NDArray[Any], standard: Scaling) -> NDArray[np.float64]:
    """Return the correlations R (D, D) of the columns; those of a constant one are 0. O(n D^2)."""
    rows = standard(X[:: -(-len(X) // RANK_ROWS)]).double().numpy()
    return np.asarray(rows.T @ rows / len(rows))


def _fit_whitening(R: NDArray[np.float64]) -> WhitenedColumns:
    """Return (R + 0.1 I)^-1/2. O(D^3)."""
    values, vectors = np.linalg.eigh(R)
    return WhitenedColumns((vectors / np.sqrt(values + WHITENING_RIDGE)) @ vectors.T)
