"""What is known of labels before anybody has checked them: given ones, held out and judged by a model that did not see them."""

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from semigpc.estimator import STATUSES, LeftOutLabels, SemiGPClassifier
from semigpc.estimator.peers import EMBEDDING_WIDTH, PEERS, Peer, fit_peer

MOST_LABELS = 10_000  # that take part; of more, as many of each class as its share allows are drawn
FEWEST = 10  # labels to hold out, below which nothing worth saying comes out
# By so much another class must be more probable than the given one. On long-tailed digits with 2% of the labels wrong it finds
# 90% of these, but only 59% of what it finds is wrong (with 5%: 78% and 79%); of labels that are all right it lists about 1%.
SUSPICION = 0.5
Progress = Callable[[int, int], None]
Codes = NDArray[np.int64]
Floats = NDArray[np.float64]
STAYS = -1  # the fold of a label that is never held out
Z95 = 1.959964  # of a 95% interval
POINTS, BINS = 50, 10  # of the curve of coverage against precision, of reliability
MOST_UNLABELED = (
    5000  # rows that peers which use them are given: LabelSpreading's graph and SelfTraining's rounds grow with them
)
Rows = NDArray[Any]  # (n, D)


def too_few(labels: NDArray[Any]) -> str:
    """Why evidence cannot be gathered from these labels (n,), in a sentence; empty if it can."""
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
    features: Rows,
    labels: NDArray[Any],
    unlabeled: Rows,
    *,
    folds: int = 5,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any] | None:
    """Cross-validate a fitted model and its peers on the given labels.

    Each fold fits a fresh copy of the model on the other labels and the unlabelled sample and chooses hyper-parameters anew,
    which adds seconds a fold however many labels there are, as the estimator tunes on a thousand at most. The threshold is
    the model's own.

    Args:
        model: fitted on all the labels.
        features: (n, D) labelled rows. labels: (n,) text. unlabeled: (u, D) sample of the other rows, u may be 0.
        folds, seed: how labels are held out.
        progress: told (steps done, steps in all); a step is one fold of one method.

    Returns:
        What ``semigpc.report.labeling_page`` draws, as plain numbers, text and lists; ``suspects`` are named by the model's row
        numbers. None if there are too few labels: :func:`too_few` says why.
    """
    if too_few(labels):
        return None
    start, given = time.perf_counter(), len(labels)
    drawn = _draw(labels, seed)
    features, labels = features[drawn], labels[drawn].astype(str)
    names = np.unique(labels)
    codes = np.searchsorted(names, labels).astype(np.int64)
    fold_of = assign_folds(codes, folds, seed)
    tick = _ticker(progress, len(np.unique(fold_of[fold_of != STAYS])))
    held = _hold_out(model, features, codes, names, unlabeled, fold_of, tick)
    own_seconds = time.perf_counter() - start
    held = held._replace(weights=_weights(model, held.codes, names, len(unlabeled)))
    peers = compare_peers(features, codes, unlabeled, fold_of, seed=seed, tick=tick)
    found = score(held.codes, held.predicted, held.folds)
    own = {"name": "semigpc", "title": "SemiGPC", "uses_unlabeled": True, **found._asdict(), "seconds": own_seconds}
    return {
        "folds": len(np.unique(held.folds)),
        "seed": seed,
        "labels": given,
        "used": len(labels),
        "held_out": len(held.codes),
        "never_held_out": names[np.unique(codes[fold_of == STAYS])].tolist(),
        "hyper_parameters": "per fold",
        "weighted": len(unlabeled) > 0,
        "accuracy": {**wilson(float(held.right.sum()), len(held.codes))._asdict(), "std": found.accuracy_std},
        "balanced_accuracy": {**balanced_recall(held)._asdict(), "std": found.balanced_accuracy_std},
        "per_class": list(per_class(held, codes, names)),
        "curve": [accepted(held, float(at)) for at in thresholds(held)],
        "chosen": accepted(held, float(model.threshold_)),
        **reliability(held),
        "confusions": confusions(held, names),
        "suspects": find_suspects(model),
        "preparation": preparation(features.shape[1]),
        "peer_unlabeled": min(MOST_UNLABELED, len(unlabeled)),
        "peers": [{**own, "failed": None, "remarks": []}, *peers],
        "seconds": time.perf_counter() - start,
    }


def suspicion(left: LeftOutLabels) -> NDArray[np.float64]:
    """p(believed) - p(given) of each given label, (n,); -1 for the only label of a class, of which nothing else can know."""
    p_given = left.proba[np.arange(len(left.codes)), left.codes]
    lonely = np.bincount(left.codes, minlength=left.proba.shape[1])[left.codes] < 2
    return np.where(lonely, -1.0, left.proba.max(axis=1) - p_given)


def find_suspects(model: SemiGPClassifier, *, bar: float = SUSPICION) -> list[dict[str, Any]]:
    """Given labels that the other labels contradict, the most suspicious first: p(believed) - p(given) >= ``bar``.

    The only label of a class is never among them: without it nothing knows the class.

    Returns:
        For each ``row`` (number), ``given, believed`` (text), ``p_given, p_believed, variance``.
    """
    left = model.leave_one_out()
    places = np.arange(len(left.codes))
    believed = left.proba.argmax(axis=1)
    p_given, p_believed = left.proba[places, left.codes], left.proba[places, believed]
    suspicious = suspicion(left) >= bar
    order = np.argsort(p_given - p_believed, kind="stable")
    return [
        {
            "row": int(left.rows[i]),
            "given": str(model.classes_[left.codes[i]]),
            "believed": str(model.classes_[believed[i]]),
            "p_given": float(p_given[i]),
            "p_believed": float(p_believed[i]),
            "variance": float(left.variance[i]),
        }
        for i in order
        if suspicious[i]
    ]


def _draw(labels: NDArray[Any], seed: int) -> Codes:
    """Positions of the labels that take part, sorted: all up to MOST_LABELS, else a like share of every class, two at least."""
    if len(labels) <= MOST_LABELS:
        return np.arange(len(labels))
    rng = np.random.default_rng(seed)
    _, codes, counts = np.unique(labels.astype(str), return_inverse=True, return_counts=True)
    wanted = np.maximum(2, counts * MOST_LABELS // len(labels))
    return np.sort(np.concatenate([rng.permutation(np.flatnonzero(codes == c))[:n] for c, n in enumerate(wanted.tolist())]))


def _ticker(progress: Progress | None, folds: int) -> Callable[[], None]:
    total, done = folds * (1 + len(PEERS)), 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    return tick


class HeldOut(NamedTuple):
    """Answers (m,) for m labels by models that did not see them.

    Attributes:
        codes: given. predicted: believed. confidence: of that. outlier: whether the row would have been called one.
        folds: in which each was held out. weights: w_c of its class, with mean 1.
    """

    codes: Codes
    predicted: Codes
    confidence: Floats
    outlier: NDArray[np.bool_]
    folds: Codes
    weights: Floats

    @property
    def right(self) -> NDArray[np.bool_]:
        """Where the given label was found."""
        return np.equal(self.codes, self.predicted)


def _hold_out(
    model: SemiGPClassifier,
    features: Rows,
    codes: Codes,
    names: NDArray[np.str_],
    unlabeled: Rows,
    fold_of: Codes,
    tick: Callable[[], None],
) -> HeldOut:
    """Answers for the labels of each fold by a model fitted on the others; weights are 1 still."""
    found: list[HeldOut] = []
    template = clone(model).set_params(abstain=None, target_precision=None)  # a fold needs no threshold
    for fold in np.unique(fold_of[fold_of != STAYS]):
        held = fold_of == fold
        given = np.array([*names[codes[~held]].tolist(), *[None] * len(unlabeled)], dtype=object)
        fitted = clone(template).fit(np.concatenate([features[~held], unlabeled]), given)
        answers = fitted.answer(features[held], top=1)
        known = np.searchsorted(names, fitted.classes_.astype(str)).astype(np.int64)
        outlier = answers.status == STATUSES.index("outlier")
        count = int(held.sum())
        confidence = answers.confidence.astype(np.float64)
        found.append(HeldOut(codes[held], known[answers.codes], confidence, outlier, np.full(count, fold), np.ones(count)))
        tick()
    return HeldOut(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _weights(model: SemiGPClassifier, codes: Codes, names: NDArray[np.str_], unlabeled: int) -> Floats:
    """w_c (m,) for held-out labels (m,), with mean 1; all 1 if there is no unlabelled row to stand for."""
    if not unlabeled:
        return np.ones(len(codes))
    believed = np.zeros(len(names))
    believed[np.searchsorted(names, model.classes_.astype(str))] = model.class_shares_
    weights = believed[codes] / np.bincount(codes, minlength=len(names))[codes]
    return weights / weights.mean() if weights.sum() > 0 else np.ones(len(codes))


def assign_folds(codes: Codes, folds: int, seed: int) -> Codes:
    """The fold (n,) in which each label is held out, :data:`STAYS` for the only label of its class.

    Every class is spread over the folds as evenly as can be, one class going on where the last left off, so that folds are
    equally large and a class with two labels or more always keeps one to learn from. A class with a single label stays in
    training: held out, nothing would know the class.

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


class Share(NamedTuple):
    """A share with its 95% interval; all None where nothing was counted."""

    value: float | None
    low: float | None
    high: float | None


def wilson(successes: float, trials: float) -> Share:
    """Share of successes with Wilson's 95% interval, which stays sensible for few trials and for shares near 0 and 1.

        (p + z^2/2n  -+  z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n)        p = successes / n, n = trials

    Neither need be whole: weighted counts come with an effective number of trials.
    """
    if trials <= 0:
        return Share(None, None, None)
    p = min(1.0, successes / trials)
    middle, spread = p + Z95**2 / (2 * trials), Z95 * math.sqrt(p * (1 - p) / trials + (Z95 / (2 * trials)) ** 2)
    scale = 1 + Z95**2 / trials
    return Share(p, max(0.0, (middle - spread) / scale), min(1.0, (middle + spread) / scale))


def weighted_share(right: NDArray[np.bool_], weights: Floats) -> Share:
    """Share of the weight (n,) that lies on ``right`` (n,), with the interval of (sum w)^2 / sum w^2 trials (Kish)."""
    total = float(weights.sum())
    if total <= 0:
        return Share(None, None, None)
    trials = total**2 / float(np.square(weights).sum())
    return wilson(float(weights[right].sum()) / total * trials, trials)


class Scores(NamedTuple):
    """Accuracy and balanced accuracy over all held-out labels, and the deviation of each over the folds."""

    accuracy: float
    accuracy_std: float
    balanced_accuracy: float
    balanced_accuracy_std: float


def score(codes: Codes, predicted: Codes, fold_of: Codes) -> Scores:
    """Judge predictions (n,) of held-out labels (n,), each class that was held out counting the same if balanced."""
    right = codes == predicted
    by_fold = [fold_of == fold for fold in np.unique(fold_of)]
    plain = [float(right[held].mean()) for held in by_fold]
    even = [balanced(codes[held], right[held]) for held in by_fold]
    return Scores(float(right.mean()), float(np.std(plain)), balanced(codes, right), float(np.std(even)))


def balanced(codes: Codes, right: NDArray[np.bool_]) -> float:
    """Mean over classes of the share that is right."""
    counts, hits = np.bincount(codes), np.bincount(codes, weights=right)
    there = counts > 0
    return float((hits[there] / counts[there]).mean())


def balanced_recall(held: HeldOut) -> Share:
    """Mean recall; the half-widths of the classes' intervals, which are independent, add in squares."""
    shares = [wilson(float(held.right[of].sum()), float(of.sum())) for of in (held.codes == c for c in np.unique(held.codes))]
    value, low, high = (np.array(ends, dtype=np.float64) for ends in zip(*shares, strict=True))
    down, up = (float(np.sqrt(np.square(half).sum())) / len(value) for half in (value - low, high - value))
    mean = float(value.mean())
    return Share(mean, max(0.0, mean - down), min(1.0, mean + up))


def per_class(held: HeldOut, codes: Codes, names: NDArray[np.str_]) -> Iterator[dict[str, Any]]:
    """Recall and precision of each class with their intervals, None for a class that was never held out."""
    for c, name in enumerate(names.tolist()):
        own, believed = held.codes == c, held.predicted == c
        recall = wilson(float(held.right[own].sum()), float(own.sum()))
        precision = weighted_share(held.right[believed], held.weights[believed]) if own.any() else Share(None, None, None)
        yield {
            "class": name,
            "given": int((codes == c).sum()),
            "held_out": int(own.sum()),
            "believed": int(believed.sum()),
            "recall": recall.value,
            "recall_low": recall.low,
            "recall_high": recall.high,
            "precision": precision.value,
            "precision_low": precision.low,
            "precision_high": precision.high,
        }


def thresholds(held: HeldOut) -> Floats:
    """Confidences that accept about POINTS evenly spaced shares of what is not an outlier, lowest first."""
    usable = held.confidence[~held.outlier]
    return np.unique(np.quantile(usable, np.linspace(0, 0.98, POINTS), method="lower")) if len(usable) else np.zeros(1)


def accepted(held: HeldOut, threshold: float) -> dict[str, float | int | None]:
    """Coverage and precision of labels with at least this confidence."""
    taken = (held.confidence >= threshold) & ~held.outlier
    precision = weighted_share(held.right[taken], held.weights[taken])
    return {
        "threshold": threshold,
        "accepted": int(taken.sum()),
        "coverage": float(held.weights[taken].sum() / held.weights.sum()),
        "precision": precision.value,
        "low": precision.low,
        "high": precision.high,
    }


def reliability(held: HeldOut) -> dict[str, Any]:
    """Accuracy and mean confidence in bins of confidence, and the expected calibration error."""
    edges = np.linspace(0, 1, BINS + 1)
    place = np.clip(np.digitize(held.confidence, edges[1:-1], right=True), 0, BINS - 1)
    count = np.bincount(place, minlength=BINS)
    weight = np.bincount(place, weights=held.weights, minlength=BINS)
    sums = [np.bincount(place, weights=held.weights * values, minlength=BINS) for values in (held.right, held.confidence)]
    accuracy, confidence = (np.divide(total, weight, out=np.full(BINS, np.nan), where=weight > 0) for total in sums)
    gap = np.nan_to_num(np.abs(accuracy - confidence))

    def plain(values: Floats) -> list[float | None]:
        return [None if np.isnan(value) else float(value) for value in values]

    bins = {"edges": edges.tolist(), "accuracy": plain(accuracy), "confidence": plain(confidence), "count": count.tolist()}
    return {"reliability": bins, "ece": float((weight / weight.sum()) @ gap)}


def confusions(held: HeldOut, names: NDArray[np.str_]) -> list[dict[str, Any]]:
    """Pairs (given, believed) that differ, with their number and share of the given class, commonest first."""
    wrong = ~held.right
    pairs, counts = np.unique(np.stack([held.codes[wrong], held.predicted[wrong]], axis=1), axis=0, return_counts=True)
    of_class = np.bincount(held.codes, minlength=len(names))
    found = [
        {"true": str(names[a]), "believed": str(names[b]), "count": int(n), "share": float(n / of_class[a])}
        for (a, b), n in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]
    return sorted(found, key=lambda pair: (-pair["count"], -pair["share"]))


def compare_peers(
    features: Rows, codes: Codes, unlabeled: Rows, fold_of: Codes, *, seed: int = 0, tick: Callable[[], None] | None = None
) -> list[dict[str, Any]]:
    """Let every peer answer for the labels of each fold; one that fails is reported as failed and stops nothing.

    Args:
        features: (n, D) labelled rows. codes: (n,) their classes. fold_of: (n,) from ``assign_folds``.
        unlabeled: (u, D) rows without labels; peers that use them get at most MOST_UNLABELED.
        tick: called after each fold of each peer.

    Returns:
        For each peer ``name, title, uses_unlabeled, seconds, failed`` (None or why), ``remarks`` (of scikit-learn), and
        ``accuracy, balanced_accuracy`` with their ``_std`` over folds, None if it failed.
    """
    return [_compare(peer, features, codes, unlabeled, fold_of, seed, tick or (lambda: None)) for peer in PEERS.values()]


def preparation(width: int) -> str:
    """How rows of D = ``width`` numbers are prepared for the peers: "unit" or "standardised"."""
    return "unit" if width >= EMBEDDING_WIDTH else "standardised"


def _compare(
    peer: Peer, features: Rows, codes: Codes, unlabeled: Rows, fold_of: Codes, seed: int, tick: Callable[[], None]
) -> dict[str, Any]:
    predicted = np.full(len(codes), -1, dtype=np.int64)
    remarks: dict[str, None] = {}
    failed, start = None, time.perf_counter()
    for fold in np.unique(fold_of[fold_of != STAYS]):
        held = fold_of == fold
        if failed is None:
            try:
                fitted = fit_peer(peer, features[~held], codes[~held], unlabeled, most_unlabeled=MOST_UNLABELED, seed=seed)
                predicted[held] = fitted.predict(features[held])
                remarks |= dict.fromkeys(fitted.remarks)
            except Exception as error:
                failed = f"{type(error).__name__}: {' '.join(str(error).split())}"
        tick()
    measured = fold_of != STAYS
    found = None if failed else score(codes[measured], predicted[measured], fold_of[measured])
    keys = ("accuracy", "accuracy_std", "balanced_accuracy", "balanced_accuracy_std")
    return {
        "name": peer.name,
        "title": peer.title,
        "uses_unlabeled": peer.uses_unlabeled,
        **(found._asdict() if found else dict.fromkeys(keys)),
        "seconds": time.perf_counter() - start,
        "failed": failed,
        "remarks": list(remarks),
    }
