"""What is known of labels before anybody has checked them: given ones, held out and judged by a model that did not see them."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from semigpc.estimator import STATUSES, LeftOutLabels, SemiGPClassifier
from semigpc.estimator.peers import PEERS
from semigpc.labeling.folds import STAYS, Codes, Floats, assign_folds, score, wilson
from semigpc.labeling.held_out import HeldOut, accepted, balanced_recall, confusions, per_class, reliability, thresholds
from semigpc.labeling.peers import MOST_UNLABELED, Rows, compare_peers, preparation

MOST_LABELS = 10_000  # that take part; of more, as many of each class as its share allows are drawn
FEWEST = 10  # labels to hold out, below which nothing worth saying comes out
# By so much another class must be more probable than the given one. On long-tailed digits with 2% of the labels wrong it finds
# 90% of these, but only 59% of what it finds is wrong (with 5%: 78% and 79%); of labels that are all right it lists about 1%.
SUSPICION = 0.5

Progress = Callable[[int, int], None]


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
