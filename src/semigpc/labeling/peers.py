"""Classifiers of scikit-learn to compare with, each on the same rows with the same preparation.

Rows of D >= 128 numbers are taken for embeddings and scaled to unit length, since features of a
network are compared by angle; narrower rows are taken for columns of a table and standardised, by
mean and deviation over the labelled and unlabelled rows together. Codes are integers from 0; -1
marks rows without a label.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier, NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.semi_supervised import LabelSpreading, SelfTrainingClassifier

# Features from which rows are scaled to unit length instead of column by column.
EMBEDDING_WIDTH = 128

Rows = NDArray[Any]  # (n, D)
Codes = NDArray[np.int64]  # (n,)


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

    def predict(self, X: Rows) -> Codes:
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


def fit_peer(peer: Peer, X: Rows, codes: Codes, unlabeled: Rows) -> FittedPeer:
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
