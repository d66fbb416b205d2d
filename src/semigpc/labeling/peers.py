"""The same folds by other methods: what scikit-learn's classifiers would have made of these labels."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semigpc.estimator.peers import EMBEDDING_WIDTH, PEERS, Peer, fit_peer
from semigpc.labeling.folds import STAYS, Codes, score

MOST_UNLABELED = (
    5000  # rows that peers which use them are given: LabelSpreading's graph and SelfTraining's rounds grow with them
)

Rows = NDArray[Any]  # (n, D)


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
