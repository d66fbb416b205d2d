"""Label propagation and neighbours on features of a frozen network: what needs no training at all.

Each sees the plain features of labelled and unlabelled images and the labels, and is then asked of test images it has never
met. Options are fixed beforehand, those of the papers or of scikit-learn's users. They live here and not among the algorithms,
as they take no steps; two of them are the estimator's peers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import cg
from sklearn.neighbors import NearestNeighbors

from semigpc.estimator.peers import PEERS, fit_peer

Rows = NDArray[Any]  # (n, D)
Codes = NDArray[np.int64]  # (n,)
Predict = Callable[[Rows], Codes]

NEIGHBOURS, POWER, ALPHA = 50, 3.0, 0.99  # k, gamma and a of label propagation for deep learning (Iscen et al., 2019)
ITERATIONS = 1000  # of conjugate gradients at most


@dataclass(frozen=True)
class GraphBaseline:
    """A method without steps: its name in tables, and how it learns from (labelled rows, codes, unlabelled rows, C)."""

    label: str
    fit: Callable[[Rows, Codes, Rows, int], Predict]


class Diffusion:
    """Z = (I - a S)^-1 Y over labelled and unlabelled rows, with S = D^-1/2 W D^-1/2.

    w_ij = max(0, cos(x_i, x_j))^g between a row and its k nearest, made symmetric by W + W^T. Column c of Y is 1 / n_c at the
    labels of class c, so that every class sends out the same mass whatever its size; rows of Z are then normalised. Solved
    by conjugate gradients, O(k (n + u) C) an iteration; no test row is in the graph: one gets the mean of its k nearest
    rows of Z, weighted by w.

    Args:
        labeled: (n, D). codes: (n,). unlabeled: (u, D). n_classes: C.
        neighbours: k, or as many as there are.
    """

    def __init__(self, labeled: Rows, codes: Codes, unlabeled: Rows, n_classes: int, *, neighbours: int = NEIGHBOURS) -> None:
        rows = unit(np.concatenate([labeled, unlabeled]))
        self.neighbours = min(neighbours, len(rows) - 1)
        self.index = NearestNeighbors(n_neighbors=self.neighbours, algorithm="brute").fit(rows)
        distances, nearest = self.index.kneighbors()  # of each row, without itself
        own = np.repeat(np.arange(len(rows)), self.neighbours)
        W = sparse.csr_matrix((affinity(distances).ravel(), (own, nearest.ravel())), shape=(len(rows), len(rows)))
        W = W + W.T
        scale = sparse.diags(1 / np.sqrt(np.maximum(np.asarray(W.sum(axis=1)).ravel(), 1e-12)))
        system = sparse.identity(len(rows), format="csr") - ALPHA * (scale @ W @ scale)
        sent = np.zeros((len(rows), n_classes))
        sent[np.arange(len(codes)), codes] = 1 / np.bincount(codes, minlength=n_classes)[codes]
        Z = np.stack([_solve(system, column) for column in sent.T], axis=1)
        self.shares = Z / np.maximum(Z.sum(axis=1, keepdims=True), 1e-12)

    def __call__(self, rows: Rows) -> Codes:
        """The class (M,) of rows (M, D)."""
        distances, nearest = self.index.kneighbors(unit(rows))
        said = np.einsum("mk,mkc->mc", affinity(distances), self.shares[nearest])
        return np.asarray(said.argmax(axis=1), dtype=np.int64)


def unit(rows: Rows) -> Rows:
    """Rows of unit length."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def affinity(distances: Rows) -> Rows:
    """max(0, cos)^g from distances between unit rows: cos = 1 - d^2 / 2."""
    return np.asarray(np.maximum(0, 1 - distances**2 / 2) ** POWER)


def _solve(system: Any, column: NDArray[np.float64]) -> NDArray[np.float64]:
    solution, left = cg(system, column, maxiter=ITERATIONS)
    if left:
        raise RuntimeError(f"label propagation did not converge in {ITERATIONS} iterations; are features finite?")
    return np.asarray(solution)


def _peer(name: str) -> Callable[[Rows, Codes, Rows, int], Predict]:
    return lambda labeled, codes, unlabeled, _: fit_peer(PEERS[name], labeled, codes, unlabeled).predict


GRAPH_BASELINES: Mapping[str, GraphBaseline] = {
    "knn": GraphBaseline("5 nearest labels", _peer("knn5")),
    "label_spreading": GraphBaseline("LabelSpreading", _peer("label_spreading")),
    "diffusion": GraphBaseline("diffusion", Diffusion),
}
