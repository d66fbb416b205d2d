"""Evidence about labels before anybody has checked them: held-out labels predicted by the others.

The model's own predictions come from its fit: labels are left out fold by fold, with self-training
on the other folds alone, or one at a time where there is no self-training. Its hyper-parameters and
class shares stay those of all labels. Other methods, classifiers of scikit-learn, are fitted on the
other folds. Rows of D >= 128 numbers are taken for embeddings and scaled to unit length for them,
since features of a network are compared by angle; narrower rows are taken for columns of a table
and standardised, by mean and deviation over the labelled and unlabelled rows together.

Held-out labels stand for the unlabelled rows, among which classes may have other shares than among
the labels. So where precision, coverage and reliability are measured, a label of class c has the
weight

    w_c = (estimated share of c among the unlabelled rows) / (share of c among the held-out labels)

and intervals are those of (sum w)^2 / sum w^2 labels. Accuracy, recall and confusions are plain
counts. Copies (:class:`semigpc.estimator.Copies`) are held out together, and those with the same
label count once.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

from semigpc.estimator import LeftOutLabels, SemiGPClassifier
from semigpc.estimator.answers import Interval95, wilson
from semigpc.estimator.calibration import label_weights
from semigpc.estimator.copies import counted_once
from semigpc.estimator.fitting import FOLDS, STAYS, assign_folds
from semigpc.gp.certainty import reliability
from semigpc.gp.scales import draw_by_class
from semigpc.report.labeling_summary import (
    Accepted,
    Accuracy,
    ClassEvidence,
    Confusion,
    CopyGroup,
    Evidence,
    Method,
    Suspect,
)

# Labels that other methods are compared on; of more, the same share of every class is drawn.
MOST_COMPARED_LABELS = 2000
# Methods that take about a second; benchmarks/estimator.py has more.
COMPARED = ("knn5", "class_mean", "logistic_balanced")
FEWEST_HELD_OUT = 10  # labels; from fewer nothing useful can be estimated
# Odds of 19 to 1 for another class than the given one. On six data sets with some 400 long-tailed
# labels it lists 1.4% of them if all are right; with 2%, 5% and 10% of them wrong it finds 90%, 84%
# and 70% of these, and 67%, 87% and 94% of what it lists is wrong (the draws of
# benchmarks/suspects.py).
SUSPICION = 0.95
CURVE_POINTS = 50  # of coverage against precision
RELIABILITY_BINS = 10
# Features from which rows are scaled to unit length instead of column by column.
EMBEDDING_WIDTH = 128

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]
Features = NDArray[Any]  # (n, D)
Progress = Callable[[int, int], None]


class Scores(TypedDict):
    """Accuracies with their deviations over the folds; balanced, each class counts the same."""

    accuracy: float
    accuracy_std: float
    balanced_accuracy: float
    balanced_accuracy_std: float


class HeldOut(NamedTuple):
    """Predictions (m,) for m labels by models that did not see them.

    Attributes:
        rows: their row numbers. codes: the given classes.
        predicted: the predicted classes. confidence: of these.
        open: whether it would get no label whatever the threshold: it is an outlier.
        folds: in which each was held out. weights: w_c of its class, with mean 1.
    """

    rows: Codes
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


class CrossValidation(NamedTuple):
    """What holding labels out has shown.

    Attributes:
        evidence: for summary.json; suspects are named by the model's row numbers.
        confused: for each pair of classes, given and predicted, the row where the model was most
            confident of it.
    """

    evidence: Evidence
    confused: dict[tuple[str, str], int]


def too_few(labels: NDArray[Any]) -> str:
    """Return why evidence cannot be gathered from these labels (n,); empty if it can."""
    counts = np.unique(labels, return_counts=True)[1]
    usable = int(counts[counts > 1].sum())
    if len(counts) < 2:
        return "All labels are of one class, so every label would be right: nothing to measure."
    if usable < FEWEST_HELD_OUT:
        return (
            f"Only {usable} of the {len(labels)} given labels could be held out, as each class "
            f"must keep one; it takes {FEWEST_HELD_OUT} to estimate the precision of new labels."
        )
    return ""


def cross_validate(
    model: SemiGPClassifier,
    features: Features,
    labels: NDArray[Any],
    unlabeled: Features,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> CrossValidation:
    """Cross-validate a fitted model and its peers on the given labels.

    Args:
        model: fitted on all the labels.
        features: (n, D) labelled rows, in the order of their row numbers.
        labels: (n,) text, for which :func:`too_few` returned no reason.
        unlabeled: (u, D) sample of the other rows, u may be 0.
        seed: decides which labels are held out in which of the FOLDS.
        progress: called with (steps done, steps in all); a step is one fold of one method.
    """
    start = time.perf_counter()
    names = model.classes_.astype(str)
    codes = np.searchsorted(names, labels.astype(str)).astype(np.int64)
    groups = model.copy_groups_
    fold_of = assign_folds(codes, groups, FOLDS, model.get_params()["random_state"] or 0)
    held = _hold_out(model, len(unlabeled), fold_of)
    scores = score(held.codes, held.predicted, held.folds)
    own = _own_method(scores, seconds=time.perf_counter() - start)
    drawn = _draw(codes, seed)
    drawn_folds = assign_folds(codes[drawn], groups[drawn], FOLDS, seed)
    tick = _ticker(drawn_folds, progress)
    counted = counted_once(groups[drawn], codes[drawn])
    peers = compare_peers(
        features[drawn], codes[drawn], unlabeled, drawn_folds, counted=counted, tick=tick
    )
    plain = wilson(float(held.right.sum()), len(held.codes))
    bins, ece = reliability(
        held.confidence, held.right, bins=RELIABILITY_BINS, weights=held.weights
    )
    evidence = Evidence(
        folds=len(np.unique(held.folds)),
        seed=seed,
        labels=len(labels),
        used=len(drawn),
        held_out=len(held.codes),
        never_held_out=names[np.setdiff1d(codes, held.codes)].tolist(),
        hyper_parameters="of all labels",
        weighted=len(unlabeled) > 0,
        accuracy=_accuracy(plain, scores["accuracy_std"]),
        balanced_accuracy=_accuracy(balanced_recall(held), scores["balanced_accuracy_std"]),
        per_class=list(per_class(held, codes, names)),
        curve=[accepted(held, np.full(len(names), at)) for at in thresholds(held)],
        chosen=accepted(held, model.threshold_),
        reliability=bins,
        ece=ece,
        confusions=confusions(held, names),
        suspects=find_suspects(model),
        preparation=preparation(features.shape[1]),
        peers=[own, *peers],
        seconds=time.perf_counter() - start,
    )
    return CrossValidation(evidence, confused_rows(held, names))


def _own_method(scores: Scores, seconds: float) -> Method:
    """Return the model's own line among the methods."""
    return Method(
        name="semigpc",
        title="SemiGPC",
        uses_unlabeled=True,
        **scores,
        seconds=seconds,
        failed=None,
        remarks=[],
    )


def _ticker(fold_of: Codes, progress: Progress | None) -> Callable[[], None]:
    """Return a function that reports one more fold of one method."""
    steps = count(1)
    total = len(np.unique(fold_of[fold_of != STAYS])) * len(COMPARED)

    def tick() -> None:
        if progress is not None:
            progress(next(steps), total)

    return tick


def _accuracy(share: Interval95, std: float) -> Accuracy:
    return Accuracy(value=share.value, low=share.low, high=share.high, std=std)


def _draw(codes: Codes, seed: int) -> Codes:
    """Return the places of the labels that peers are compared on, sorted."""
    if len(codes) <= MOST_COMPARED_LABELS:
        return np.arange(len(codes))
    wanted = np.maximum(2, np.bincount(codes) * MOST_COMPARED_LABELS // len(codes))
    return draw_by_class(codes, wanted, np.random.default_rng(seed))


# Holding labels out -------------------------------------------------------------------------------


def _hold_out(model: SemiGPClassifier, unlabeled: int, fold_of: Codes) -> HeldOut:
    """Return the labels that the fit left out, as the others predicted them."""
    left = model.held_out_
    assert left is not None  # the model has chosen its sharpness by it
    folds = fold_of[np.searchsorted(model.labeled_rows_, left.rows)]
    confidence = left.confidence
    return HeldOut(
        rows=left.rows,
        codes=left.codes,
        predicted=left.decided,
        confidence=confidence.astype(np.float64),
        open=model.is_outlier(left.variance, confidence),
        folds=folds,
        weights=_weights(model, left.codes, unlabeled),
    )


def _weights(model: SemiGPClassifier, codes: Codes, unlabeled: int) -> Floats:
    """Return w_c (m,) of held-out labels (m,), with mean 1; all 1 without unlabelled rows."""
    if not unlabeled:
        return np.ones(len(codes))
    shares = torch.from_numpy(model.class_shares_)
    weights: Floats = label_weights(torch.from_numpy(codes), shares).numpy()
    return weights / weights.mean() if weights.sum() > 0 else np.ones(len(codes))


# Figures ------------------------------------------------------------------------------------------


def weighted_share(right: NDArray[np.bool_], weights: Floats) -> Interval95:
    """Return the share of the weights (n,) that is ``right`` (n,).

    The interval is that of (sum w)^2 / sum w^2 trials (Kish).
    """
    total = float(weights.sum())
    if total <= 0:
        return Interval95(None, None, None)
    trials = total**2 / float(np.square(weights).sum())
    return wilson(float(weights[right].sum()) / total * trials, trials)


def score(codes: Codes, predicted: Codes, fold_of: Codes) -> Scores:
    """Return accuracies of predictions (n,) for held-out labels (n,)."""
    right = codes == predicted
    by_fold = [fold_of == fold for fold in np.unique(fold_of)]
    return {
        "accuracy": float(right.mean()),
        "accuracy_std": float(np.std([float(right[out].mean()) for out in by_fold])),
        "balanced_accuracy": _balanced(codes, right),
        "balanced_accuracy_std": float(
            np.std([_balanced(codes[out], right[out]) for out in by_fold])
        ),
    }


def _balanced(codes: Codes, right: NDArray[np.bool_]) -> float:
    counts = np.bincount(codes)
    hits = np.bincount(codes, weights=right)
    return float((hits[counts > 0] / counts[counts > 0]).mean())


def balanced_recall(held: HeldOut) -> Interval95:
    """Return the mean recall of the classes.

    Half-widths of the classes' intervals, which are independent, add in squares.
    """
    members = [held.codes == c for c in np.unique(held.codes)]
    recalls = [wilson(float(held.right[own].sum()), float(own.sum())) for own in members]
    value, low, high = (np.array(ends, dtype=np.float64) for ends in zip(*recalls, strict=True))
    down = float(np.sqrt(np.square(value - low).sum())) / len(value)
    up = float(np.sqrt(np.square(high - value).sum())) / len(value)
    mean = float(value.mean())
    return Interval95(mean, max(0.0, mean - down), min(1.0, mean + up))


def per_class(held: HeldOut, codes: Codes, names: NDArray[np.str_]) -> Iterator[ClassEvidence]:
    """Yield recall and precision of each class; None for a class that was never held out."""
    for c, name in enumerate(names.tolist()):
        own = held.codes == c
        predicted = held.predicted == c
        recall = wilson(float(held.right[own].sum()), float(own.sum()))
        precision = Interval95(None, None, None)
        if own.any():
            precision = weighted_share(held.right[predicted], held.weights[predicted])
        yield {
            "class": name,
            "given": int((codes == c).sum()),
            "held_out": int(own.sum()),
            "believed": int(predicted.sum()),
            "recall": recall.value,
            "recall_low": recall.low,
            "recall_high": recall.high,
            "precision": precision.value,
            "precision_low": precision.low,
            "precision_high": precision.high,
        }


def thresholds(held: HeldOut) -> Floats:
    """Return confidences, rising, that accept about CURVE_POINTS evenly spaced shares."""
    usable = held.confidence[~held.open]
    if not len(usable):
        return np.zeros(1)
    return np.unique(np.quantile(usable, np.linspace(0, 0.98, CURVE_POINTS), method="lower"))


def accepted(held: HeldOut, threshold: Floats) -> Accepted:
    """Return coverage and precision of labels that reach the threshold (C,) of their class."""
    taken = (held.confidence >= threshold[held.predicted]) & ~held.open
    precision = weighted_share(held.right[taken], held.weights[taken])
    return {
        "threshold": float(threshold.min()),
        "accepted": int(taken.sum()),
        "coverage": float(held.weights[taken].sum() / held.weights.sum()),
        "precision": precision.value,
        "low": precision.low,
        "high": precision.high,
    }


def confusions(held: HeldOut, names: NDArray[np.str_]) -> list[Confusion]:
    """Return pairs of different classes, given and predicted, the most frequent first."""
    wrong = ~held.right
    both = np.stack([held.codes[wrong], held.predicted[wrong]], axis=1)
    pairs, counts = np.unique(both, axis=0, return_counts=True)
    of_class = np.bincount(held.codes, minlength=len(names))
    entries: list[Confusion] = [
        {
            "true": str(names[a]),
            "believed": str(names[b]),
            "count": int(n),
            "share": float(n / of_class[a]),
        }
        for (a, b), n in zip(pairs.tolist(), counts.tolist(), strict=True)
    ]
    return sorted(entries, key=lambda pair: (-pair["count"], -pair["share"]))


def confused_rows(held: HeldOut, names: NDArray[np.str_]) -> dict[tuple[str, str], int]:
    """Return for each pair of different classes the row where the prediction is most confident."""
    wrong = np.flatnonzero(~held.right)
    wrong = wrong[np.argsort(held.confidence[wrong], kind="stable")]  # the last of a pair stays
    return {
        (str(names[held.codes[i]]), str(names[held.predicted[i]])): int(held.rows[i]) for i in wrong
    }


# Suspicious labels --------------------------------------------------------------------------------


def suspicion(left: LeftOutLabels) -> Floats:
    """Return how much more the other labels support another class than the given one g, (n,).

        q_c / (q_c + q_g)        c the most probable class but g        q_c ~ n_c p_c

    with n_c the labels of class c. Where any label may be wrong, a larger share is wrong among the
    labels of a small class, so q, under the frequencies of the labels, finds wrong ones better than
    p, under equal ones. -1 for the only label of a class but for copies, which no other label can
    check. O(n C).
    """
    probs = left_out_probs(left)
    own = np.arange(len(left.codes))
    p_given = probs[own, left.codes]
    probs[own, left.codes] = 0.0
    p_other = probs.max(axis=1)
    distinct = left.codes[counted_once(left.groups, left.codes)]
    is_only = np.bincount(distinct, minlength=probs.shape[1])[left.codes] < 2
    suspicions: Floats = np.where(is_only, -1.0, p_other / np.maximum(p_other + p_given, 1e-300))
    return suspicions


def left_out_probs(left: LeftOutLabels) -> Floats:
    """Return q (n, C): left-out probabilities under the frequencies of the labels."""
    counts = np.bincount(left.codes, minlength=left.proba.shape[1])
    weighted = left.proba.astype(np.float64) * counts
    return np.asarray(weighted / np.maximum(weighted.sum(axis=1, keepdims=True), 1e-300))


def find_suspects(model: SemiGPClassifier) -> list[Suspect]:
    """Return given labels with :func:`suspicion` >= SUSPICION, the most suspicious first.

    Probabilities are those by the other labels, under the frequencies of the labels.
    """
    left = model.leave_one_out()
    suspicions = suspicion(left)
    probs = left_out_probs(left)
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


# Copies -------------------------------------------------------------------------------------------


def labels_once(model: SemiGPClassifier, labels: Sequence[str]) -> NDArray[Any]:
    """Return the given labels (n,), of copies with the same label one."""
    _, codes = np.unique(labels, return_inverse=True)
    return np.array(labels, dtype=object)[counted_once(model.copy_groups_, codes)]


def copy_groups(
    model: SemiGPClassifier, ids: Sequence[str], labels: Sequence[str]
) -> list[CopyGroup]:
    """Return the groups of copies among the labelled rows, those with different labels first.

    Args:
        model: fitted on the rows. ids, labels: n each, in the order of the row numbers.
    """
    members: dict[int, CopyGroup] = {}
    for group, name, label in zip(model.copy_groups_.tolist(), ids, labels, strict=True):
        entry = members.setdefault(group, {"ids": [], "labels": []})
        entry["ids"].append(name)
        entry["labels"].append(label)
    several = [entry for entry in members.values() if len(entry["ids"]) > 1]
    return sorted(several, key=lambda entry: len(set(entry["labels"])) == 1)


# Other methods ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Peer:
    """A classifier to compare with.

    Args:
        name: for programs. title: for people.
        build: returns the scikit-learn classifier, not yet fitted, for n_l labelled rows, of unit
            length or standardised.
        uses_unlabeled: whether it is fitted on unlabelled rows too.
    """

    name: str
    title: str
    build: Callable[[int, bool], Any]
    uses_unlabeled: bool = False


@dataclass
class FittedPeer:
    """A fitted peer; ``remarks`` are the warnings of scikit-learn, each once, one line each."""

    scaler: Any
    classifier: Any
    remarks: tuple[str, ...]

    def predict(self, X: Features) -> Codes:
        """Return the classes (M,) of rows (M, D) by scikit-learn's own ``predict``.

        LabelSpreading returns the first class for rows that no label reaches; how many there are is
        added to ``remarks``.
        """
        scaled = self.scaler.transform(X)
        with warnings.catch_warnings(record=True), np.errstate(all="ignore"):
            warnings.simplefilter("always")
            codes = np.asarray(self.classifier.predict(scaled), dtype=np.int64)
            if isinstance(self.classifier, LabelSpreading):
                is_known = np.isfinite(self.classifier.predict_proba(scaled)).all(axis=1)
                unreached = int((~is_known).sum())
                if unreached:
                    rows = f"{unreached} of {len(codes)} rows"
                    self.remarks += (f"no label reaches {rows}: they get the first class",)
        return codes


def fit_peer(peer: Peer, X: Features, codes: Codes, unlabeled: Features) -> FittedPeer:
    """Fit a peer as its users would.

    Args:
        peer: one of PEERS.
        X: (n_l, D) labelled rows. codes: (n_l,) their classes, integers >= 0.
        unlabeled: (u, D) rows without labels, u may be 0. They also count in the means and
            deviations of the columns.

    Raises:
        Exception: from scikit-learn; a comparison catches it and reports the peer as failed.
    """
    unit = X.shape[1] >= EMBEDDING_WIDTH
    scaler = Normalizer() if unit else StandardScaler()
    scaler.fit(np.concatenate([X, unlabeled]))
    if not peer.uses_unlabeled and X.shape[1] > len(X):
        # A rotation to fewer columns changes no prediction, only the time.
        scaler = make_pipeline(scaler, PCA().fit(scaler.transform(X)))
    rows = scaler.transform(X)
    known = np.asarray(codes, dtype=np.int64)
    if peer.uses_unlabeled and len(unlabeled):
        rows = np.concatenate([rows, scaler.transform(unlabeled)])
        known = np.concatenate([known, np.full(len(unlabeled), -1, dtype=np.int64)])
    classifier = peer.build(len(X), unit)
    with warnings.catch_warnings(record=True) as caught, np.errstate(all="ignore"):
        warnings.simplefilter("always")
        # Only shrunken centroids would use it.
        warnings.filterwarnings("ignore", message="self.within_class_std_dev_")
        classifier.fit(rows, known)
    remarks = (str(warning.message).strip().split("\n")[0].strip() for warning in caught)
    return FittedPeer(scaler, classifier, tuple(dict.fromkeys(remarks)))


def _logistic(unit: bool, *, balanced: bool) -> Any:
    """Return a classifier, with less regularisation for unit vectors.

    Their coordinates are small, so weights are large.
    """
    weight = "balanced" if balanced else None
    return LogisticRegression(C=10.0 if unit else 1.0, max_iter=2000, class_weight=weight)


PEERS: dict[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("knn1", "Nearest neighbour", lambda *_: KNeighborsClassifier(n_neighbors=1)),
        Peer(
            "knn5",
            "5 nearest neighbours",
            lambda labeled, _: KNeighborsClassifier(n_neighbors=min(5, labeled)),
        ),
        Peer("class_mean", "Nearest class mean", lambda *_: NearestCentroid()),
        Peer("logistic", "Logistic regression", lambda _, unit: _logistic(unit, balanced=False)),
        Peer(
            "logistic_balanced",
            "Logistic regression, balanced",
            lambda _, unit: _logistic(unit, balanced=True),
        ),
        Peer(
            "label_spreading",
            "LabelSpreading",
            lambda *_: LabelSpreading(kernel="knn", n_neighbors=7, max_iter=100),
            uses_unlabeled=True,
        ),
        Peer(
            "self_training",
            "SelfTraining (balanced logistic)",
            lambda _, unit: SelfTrainingClassifier(_logistic(unit, balanced=True), threshold=0.75),
            uses_unlabeled=True,
        ),
    )
}


def compare_peers(
    features: Features,
    codes: Codes,
    unlabeled: Features,
    fold_of: Codes,
    *,
    counted: NDArray[np.bool_],
    tick: Callable[[], None] | None = None,
) -> list[Method]:
    """Predict the labels of each fold by every classifier of COMPARED.

    Args:
        features: (n, D) labelled rows. codes: (n,) their classes. fold_of: (n,) from
            ``assign_folds``. counted: (n,) from ``counted_once``.
        unlabeled: (u, D) rows without labels, which count in means and deviations of the columns.
        tick: called after each fold of each peer.
    """
    return [
        _measure_peer(PEERS[name], features, codes, unlabeled, fold_of, counted, tick)
        for name in COMPARED
    ]


def _measure_peer(
    peer: Peer,
    features: Features,
    codes: Codes,
    unlabeled: Features,
    fold_of: Codes,
    counted: NDArray[np.bool_],
    tick: Callable[[], None] | None,
) -> Method:
    """Cross-validate one peer; an exception of scikit-learn becomes ``failed``."""
    start = time.perf_counter()
    measured = (fold_of != STAYS) & counted
    predicted = np.full(len(codes), -1, dtype=np.int64)
    remarks: list[str] = []
    failed = None
    for fold in np.unique(fold_of[measured]):
        out = fold_of == fold
        try:
            if failed is None:
                fitted = fit_peer(peer, features[~out], codes[~out], unlabeled)
                predicted[out] = fitted.predict(features[out])
                remarks += [remark for remark in fitted.remarks if remark not in remarks]
        except Exception as error:
            failed = f"{type(error).__name__}: {' '.join(str(error).split())}"
        if tick is not None:
            tick()
    scores: Scores | None = None
    if failed is None:
        scores = score(codes[measured], predicted[measured], fold_of[measured])
    return Method(
        name=peer.name,
        title=peer.title,
        uses_unlabeled=peer.uses_unlabeled,
        accuracy=scores and scores["accuracy"],
        accuracy_std=scores and scores["accuracy_std"],
        balanced_accuracy=scores and scores["balanced_accuracy"],
        balanced_accuracy_std=scores and scores["balanced_accuracy_std"],
        seconds=time.perf_counter() - start,
        failed=failed,
        remarks=remarks,
    )


def preparation(width: int) -> str:
    """Return how rows of ``width`` numbers are prepared for the peers: "unit" or "standardised"."""
    return "unit" if width >= EMBEDDING_WIDTH else "standardised"
