"""Evidence about labels before anybody has checked them: given labels are held out and predicted by
the others.

The model's own predictions are closed forms of one inverse: the labels of a fold are taken out of
the posterior, while its hyper-parameters and class shares stay those of all labels, and rows that
joined in self-training take no part. Other methods are fitted on the other folds.

Held-out labels stand for the unlabelled rows, among which classes may have other shares than among
the labels. So where precision, coverage and reliability are measured, a label of class c has the
weight

    w_c = (estimated share of c among the unlabelled rows) / (share of c among the held-out labels)

and intervals are those of (sum w)^2 / sum w^2 labels. Accuracy, recall and confusions are plain
counts.
"""

import math
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from semigpc.estimator import LeftOutLabels, SemiGPClassifier
from semigpc.estimator.peers import EMBEDDING_WIDTH, PEERS, fit_peer
from semigpc.gp.certainty import reliability
from semigpc.gp.scales import draw_by_class

MOST_LABELS = (
    2000  # that other methods are compared on; of more, a like share of every class is drawn
)
COMPARED = (
    "knn5",
    "class_mean",
    "logistic_balanced",
)  # which take a second; benchmarks/estimator.py has more
FEWEST = 10  # labels to hold out; from fewer nothing useful can be estimated
# Odds of 19 to 1 for another class than the given one. On six data sets with some 400 long-tailed
# labels it lists 1.4% of them if all are right; with 2%, 5% and 10% of them wrong it finds 90%, 84%
# and 70% of these, and 67%, 87% and 94% of what it lists is wrong (the draws of
# benchmarks/suspects.py).
SUSPICION = 0.95
FOLDS = 5  # of the cross-validation
SCORES = (
    "accuracy",
    "accuracy_std",
    "balanced_accuracy",
    "balanced_accuracy_std",
)  # deviations are over the folds
STAYS = -1  # the fold of a label that is never held out
Z95 = 1.959963984540054  # normal quantile of a two-sided 95% interval
POINTS, BINS = 50, 10  # of the curve of coverage against precision, and of the reliability diagram

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]
Features = NDArray[Any]  # (n, D)
Progress = Callable[[int, int], None]


class Interval95(NamedTuple):
    """A share with its 95% interval; all None where nothing was counted."""

    value: float | None
    low: float | None
    high: float | None


class HeldOut(NamedTuple):
    """Predictions (m,) for m labels by models that did not see them.

    Attributes:
        codes: the given classes. predicted: the predicted ones. confidence: of these.
        open: whether it would get no label whatever the threshold: it is an outlier, or another
            class is likelier.
        folds: in which each was held out. weights: w_c of its class, with mean 1.
    """

    codes: Codes
    predicted: Codes
    confidence: Floats
    open: NDArray[np.bool_]
    folds: Codes
    weights: Floats

    @property
    def right(self) -> NDArray[np.bool_]:
        """Return where the given label was predicted."""
        return np.equal(self.codes, self.predicted)


def too_few(labels: NDArray[Any]) -> str:
    """Return why evidence cannot be gathered from these labels (n,), in a sentence; empty if it
    can.
    """
    counts = np.unique(labels, return_counts=True)[1]
    usable = int(counts[counts > 1].sum())
    if len(counts) < 2:
        return "All labels are of one class, so there is nothing to measure: every label would be right."
    if usable < FEWEST:
        return (
            f"Only {usable} of the {len(labels)} given labels could be held out, as each class must keep one; it takes "
            f"{FEWEST} to estimate how many of the new labels are right."
        )
    return ""


def gather_evidence(
    model: SemiGPClassifier,
    features: Features,
    labels: NDArray[Any],
    unlabeled: Features,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any] | None:
    """Cross-validate a fitted model and its peers on the given labels.

    Args:
        model: fitted on all the labels.
        features: (n, D) labelled rows, in the order of their row numbers. labels: (n,) text.
        unlabeled: (u, D) sample of the other rows, u may be 0.
        seed: decides which labels are held out in which of the FOLDS.
        progress: called with (steps done, steps in all); a step is one fold of one method.

    Returns:
        What ``semigpc.report.labeling_page`` draws, as plain numbers, text and lists; ``suspects``
        are named by the model's row
        numbers. None if there are too few labels: :func:`too_few` returns why.
    """
    if too_few(labels):
        return None
    start = time.perf_counter()
    names = model.classes_.astype(str)
    codes = np.searchsorted(names, labels.astype(str)).astype(np.int64)
    fold_of = assign_folds(codes, FOLDS, seed)
    held = _hold_out(model, len(unlabeled), fold_of)
    own_seconds = time.perf_counter() - start
    drawn = _draw(codes, seed)
    drawn_folds = assign_folds(codes[drawn], FOLDS, seed) if len(drawn) < len(codes) else fold_of
    steps, total = count(1), len(np.unique(drawn_folds[drawn_folds != STAYS])) * len(COMPARED)

    def tick() -> None:
        if progress is not None:
            progress(next(steps), total)

    peers = compare_peers(features[drawn], codes[drawn], unlabeled, drawn_folds, tick=tick)
    scores = score(held.codes, held.predicted, held.folds)
    bins, error = reliability(held.confidence, held.right, bins=BINS, weights=held.weights)
    own = {
        "name": "semigpc",
        "title": "SemiGPC",
        "uses_unlabeled": True,
        **scores,
        "seconds": own_seconds,
    }
    return {
        "folds": len(np.unique(held.folds)),
        "seed": seed,
        "labels": len(labels),
        "used": len(drawn),
        "held_out": len(held.codes),
        "never_held_out": names[np.unique(codes[fold_of == STAYS])].tolist(),
        "hyper_parameters": "of all labels",
        "weighted": len(unlabeled) > 0,
        "accuracy": {
            **wilson(float(held.right.sum()), len(held.codes))._asdict(),
            "std": scores["accuracy_std"],
        },
        "balanced_accuracy": {
            **balanced_recall(held)._asdict(),
            "std": scores["balanced_accuracy_std"],
        },
        "per_class": list(per_class(held, codes, names)),
        "curve": [accepted(held, np.full(len(names), at)) for at in thresholds(held)],
        "chosen": accepted(held, model.threshold_),
        "reliability": bins,
        "ece": error,
        "confusions": confusions(held, names),
        "suspects": find_suspects(model),
        "preparation": preparation(features.shape[1]),
        "peers": [{**own, "failed": None, "remarks": []}, *peers],
        "seconds": time.perf_counter() - start,
    }


def _draw(codes: Codes, seed: int) -> Codes:
    """Return the places of the labels that peers are compared on, sorted: all up to MOST_LABELS,
    else a like share.
    """
    if len(codes) <= MOST_LABELS:
        return np.arange(len(codes))
    wanted = np.maximum(2, np.bincount(codes) * MOST_LABELS // len(codes))
    return draw_by_class(codes, wanted, np.random.default_rng(seed))


# Holding labels out -------------------------------------------------------------------------------


def assign_folds(codes: Codes, folds: int, seed: int) -> Codes:
    """Return the fold (n,) in which each label is held out, :data:`STAYS` for the only label of its
    class.

    Every class is spread over the folds as evenly as possible, one class continuing where the last
    ended, so that folds are equally large and a class with two labels or more always keeps one to
    learn from. A class with a single label is not held out, since the model would not know the
    class then.

    Args:
        codes: (n,) classes. folds: how many. seed: decides which label goes where.
    """
    rng = np.random.default_rng(seed)
    fold_of = np.full(len(codes), STAYS, dtype=np.int64)
    next_fold = 0
    for c in np.unique(codes):
        members = rng.permutation(np.flatnonzero(codes == c))
        if len(members) > 1:
            fold_of[members] = (next_fold + np.arange(len(members))) % folds
            next_fold = (next_fold + len(members)) % folds
    return fold_of


def _hold_out(model: SemiGPClassifier, unlabeled: int, fold_of: Codes) -> HeldOut:
    """Return predictions for the labels of each fold by the others; one at a time where several GPs
    hold them.
    """
    left, held = (
        model.leave_one_out(fold_of if model.engine_ == "exact" else None),
        fold_of != STAYS,
    )
    is_open = (left.variance > model.outlier_variance_) | (left.decided != left.likeliest)
    return HeldOut(
        codes=left.codes[held],
        predicted=left.decided[held],
        confidence=left.confidence[held].astype(np.float64),
        open=is_open[held],
        folds=fold_of[held],
        weights=_weights(model, left.codes[held], unlabeled),
    )


def _weights(model: SemiGPClassifier, codes: Codes, unlabeled: int) -> Floats:
    """Return w_c (m,) for held-out labels (m,), with mean 1; all 1 if there are no unlabelled rows."""
    if not unlabeled:
        return np.ones(len(codes))
    weights = model.class_shares_[codes] / np.bincount(codes)[codes]
    return weights / weights.mean() if weights.sum() > 0 else np.ones(len(codes))


# Figures ------------------------------------------------------------------------------------------


def wilson(successes: float, trials: float) -> Interval95:
    """Return the share of successes with Wilson's 95% interval, which holds for few trials and for
    shares near 0 and 1.

        (p + z^2/2n  -+  z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n)        p = successes / n, n = trials

    Neither need be whole, since weighted counts have an effective number of trials;
    ``scipy.stats.binomtest`` requires it.
    """
    if trials <= 0:
        return Interval95(None, None, None)
    p = min(1.0, successes / trials)
    middle, spread = (
        p + Z95**2 / (2 * trials),
        Z95 * math.sqrt(p * (1 - p) / trials + (Z95 / (2 * trials)) ** 2),
    )
    scale = 1 + Z95**2 / trials
    return Interval95(p, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def weighted_share(right: NDArray[np.bool_], weights: Floats) -> Interval95:
    """Return the share of the weight (n,) that is ``right`` (n,), with the interval of (sum w)^2 /
    sum w^2 trials (Kish).
    """
    total = float(weights.sum())
    if total <= 0:
        return Interval95(None, None, None)
    trials = total**2 / float(np.square(weights).sum())
    return wilson(float(weights[right].sum()) / total * trials, trials)


def score(codes: Codes, predicted: Codes, fold_of: Codes) -> dict[str, float]:
    """Return the SCORES of predictions (n,) for held-out labels (n,); balanced, each class counts
    the same.
    """
    right = codes == predicted
    by_fold = [fold_of == fold for fold in np.unique(fold_of)]
    plain = [float(right[out].mean()) for out in by_fold]
    balanced = [_balanced(codes[out], right[out]) for out in by_fold]
    values = (
        float(right.mean()),
        float(np.std(plain)),
        _balanced(codes, right),
        float(np.std(balanced)),
    )
    return dict(zip(SCORES, values, strict=True))


def _balanced(codes: Codes, right: NDArray[np.bool_]) -> float:
    counts, hits = np.bincount(codes), np.bincount(codes, weights=right)
    return float((hits[counts > 0] / counts[counts > 0]).mean())


def balanced_recall(held: HeldOut) -> Interval95:
    """Return the mean recall; the half-widths of the classes' intervals, which are independent, add
    in squares.
    """
    of_classes = [held.codes == c for c in np.unique(held.codes)]
    shares = [
        wilson(float(held.right[of_class].sum()), float(of_class.sum())) for of_class in of_classes
    ]
    value, low, high = (np.array(ends, dtype=np.float64) for ends in zip(*shares, strict=True))
    down, up = (
        float(np.sqrt(np.square(half).sum())) / len(value) for half in (value - low, high - value)
    )
    mean = float(value.mean())
    return Interval95(mean, max(0.0, mean - down), min(1.0, mean + up))


def per_class(held: HeldOut, codes: Codes, names: NDArray[np.str_]) -> Iterator[dict[str, Any]]:
    """Yield recall and precision of each class with their intervals, None for a class that was
    never held out.
    """
    for c, name in enumerate(names.tolist()):
        own, predicted = held.codes == c, held.predicted == c
        recall = wilson(float(held.right[own].sum()), float(own.sum()))
        precision = Interval95(None, None, None)
        if own.any():
            precision = weighted_share(held.right[predicted], held.weights[predicted])
        yield {
            "class": name,
            "given": int((codes == c).sum()),
            "held_out": int(own.sum()),
            "believed": int(predicted.sum()),
            **dict(zip(("recall", "recall_low", "recall_high"), recall, strict=True)),
            **dict(zip(("precision", "precision_low", "precision_high"), precision, strict=True)),
        }


def thresholds(held: HeldOut) -> Floats:
    """Return confidences that accept about POINTS evenly spaced shares of all that could get a
    label, lowest first.
    """
    usable = held.confidence[~held.open]
    return (
        np.unique(np.quantile(usable, np.linspace(0, 0.98, POINTS), method="lower"))
        if len(usable)
        else np.zeros(1)
    )


def accepted(held: HeldOut, threshold: Floats) -> dict[str, float | int | None]:
    """Return coverage and precision of labels with at least the confidence (C,) asked of their
    class.
    """
    taken = (held.confidence >= threshold[held.predicted]) & ~held.open
    precision = weighted_share(held.right[taken], held.weights[taken])
    return {
        "threshold": float(threshold.min()),
        "accepted": int(taken.sum()),
        "coverage": float(held.weights[taken].sum() / held.weights.sum()),
        **dict(zip(("precision", "low", "high"), precision, strict=True)),
    }


def confusions(held: HeldOut, names: NDArray[np.str_]) -> list[dict[str, Any]]:
    """Return pairs (given, predicted) that differ, with their number and share of the given class,
    most frequent first.
    """
    wrong = ~held.right
    pairs, counts = np.unique(
        np.stack([held.codes[wrong], held.predicted[wrong]], axis=1), axis=0, return_counts=True
    )
    of_class = np.bincount(held.codes, minlength=len(names))
    entries = [
        {
            "true": str(names[a]),
            "believed": str(names[b]),
            "count": int(n),
            "share": float(n / of_class[a]),
        }
        for (a, b), n in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]
    return sorted(entries, key=lambda pair: (-pair["count"], -pair["share"]))


# Suspicious labels --------------------------------------------------------------------------------


def suspicion(left: LeftOutLabels) -> NDArray[np.float64]:
    """Return how much more the other labels speak for another class than for the given one g, for
    each label (n,).

        q_c / (q_c + q_g)        c the most probable class but g        q_c ~ n_c p_c

    with n_c the labels of class c. Where any label may be wrong, a larger share is wrong among the
    labels of a small class, so that q, under the frequencies of the labels, finds wrong ones better
    than p, under equal ones. -1 for the only label of a class, which no other label can check. O(n
    C).
    """
    probs, own = left_out_probs(left), np.arange(len(left.codes))
    p_given = probs[own, left.codes]
    probs[own, left.codes] = 0.0
    p_other = probs.max(axis=1)
    is_only = np.bincount(left.codes, minlength=probs.shape[1])[left.codes] < 2
    return np.where(is_only, -1.0, p_other / np.maximum(p_other + p_given, 1e-300))


def left_out_probs(left: LeftOutLabels) -> NDArray[np.float64]:
    """Return q (n, C): the left-out probabilities under the frequencies of the labels in place of
    equal ones.
    """
    weighted = left.proba.astype(np.float64) * np.bincount(
        left.codes, minlength=left.proba.shape[1]
    )
    return np.asarray(weighted / np.maximum(weighted.sum(axis=1, keepdims=True), 1e-300))


def find_suspects(model: SemiGPClassifier) -> list[dict[str, Any]]:
    """Return given labels that the other labels contradict, the most suspicious first:
    :func:`suspicion` >= SUSPICION.

    Returns:
        For each ``row`` (number), ``given, believed`` (text), their probabilities ``p_given,
        p_believed`` by the other labels under the frequencies of the labels, and ``variance``.
    """
    left = model.leave_one_out()
    suspicions, probs = suspicion(left), left_out_probs(left)
    return [
        {
            "row": int(left.rows[i]),
            "given": str(model.classes_[left.codes[i]]),
            "believed": str(model.classes_[probs[i].argmax()]),
            "p_given": float(probs[i, left.codes[i]]),
            "p_believed": float(probs[i].max()),
            "variance": float(left.variance[i]),
        }
        for i in np.argsort(-suspicions, kind="stable")
        if suspicions[i] >= SUSPICION
    ]


# Other methods ------------------------------------------------------------------------------------


def compare_peers(
    features: Features,
    codes: Codes,
    unlabeled: Features,
    fold_of: Codes,
    *,
    tick: Callable[[], None] | None = None,
) -> list[dict[str, Any]]:
    """Predict the labels of each fold by every classifier of COMPARED; one that fails is reported
    as failed.

    Args:
        features: (n, D) labelled rows. codes: (n,) their classes. fold_of: (n,) from
            ``assign_folds``.
        unlabeled: (u, D) rows without labels, which count in means and deviations of the columns.
        tick: called after each fold of each peer.

    Returns:
        For each peer ``name, title, uses_unlabeled, seconds, failed`` (None or why), ``remarks``
        (of scikit-learn), and ``accuracy, balanced_accuracy`` with their ``_std`` over folds, None
        if it failed.
    """
    results = []
    measured = fold_of != STAYS
    for peer in (PEERS[name] for name in COMPARED):
        predicted = np.full(len(codes), -1, dtype=np.int64)
        remarks: dict[str, None] = {}
        failed, start = None, time.perf_counter()
        for fold in np.unique(fold_of[measured]):
            out = fold_of == fold
            try:
                if failed is None:
                    fitted = fit_peer(peer, features[~out], codes[~out], unlabeled)
                    predicted[out] = fitted.predict(features[out])
                    remarks |= dict.fromkeys(fitted.remarks)
            except Exception as error:
                failed = f"{type(error).__name__}: {' '.join(str(error).split())}"
            if tick is not None:
                tick()
        scores = None if failed else score(codes[measured], predicted[measured], fold_of[measured])
        facts = {"name": peer.name, "title": peer.title, "uses_unlabeled": peer.uses_unlabeled}
        facts |= scores or dict.fromkeys(SCORES)
        results.append(
            facts
            | {"seconds": time.perf_counter() - start, "failed": failed, "remarks": list(remarks)}
        )
    return results


def preparation(width: int) -> str:
    """Return how rows of ``width`` numbers are prepared for the peers: "unit" or "standardised"."""
    return "unit" if width >= EMBEDDING_WIDTH else "standardised"
