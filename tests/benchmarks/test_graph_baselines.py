"""Graph baselines against a dense solve written from the equation, and against scikit-learn."""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier
from sklearn.semi_supervised import LabelSpreading

from benchmarks.peers import GRAPH_BASELINES, Diffusion, Rows

CLASSES = 3


def clouds(seed: int = 0, width: int = 160) -> tuple[Rows, NDArray[np.int64], Rows, Rows, NDArray[np.int64]]:
    """Labelled rows and their codes, 12, 5 and 2 of a class; unlabelled rows; test rows and their truth."""
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(CLASSES, width))

    def draw(counts: list[int]) -> tuple[Rows, NDArray[np.int64]]:
        codes = np.repeat(np.arange(CLASSES), counts)
        return means[codes] + 0.9 * rng.normal(size=(len(codes), width)), codes

    labeled, codes = draw([12, 5, 2])
    return labeled, codes, draw([30, 15, 6])[0], *draw([20, 20, 20])


def slow_diffusion(labeled: Rows, codes: NDArray[np.int64], unlabeled: Rows, test: Rows, k: int) -> NDArray[np.int64]:
    """The equation of the docstring, entry by entry."""
    rows = np.concatenate([labeled, unlabeled])
    rows = rows / np.sqrt((rows**2).sum(axis=1, keepdims=True))
    n = len(rows)
    one_way = np.zeros((n, n))
    for i in range(n):
        cosines = rows @ rows[i]
        cosines[i] = -2
        for j in np.argsort(-cosines)[:k]:
            one_way[i, j] = max(0, cosines[j]) ** 3
    W = one_way + one_way.T
    degrees = W.sum(axis=1)
    S = np.array([[W[i, j] / np.sqrt(degrees[i] * degrees[j]) for j in range(n)] for i in range(n)])
    Y = np.zeros((n, CLASSES))
    for i, c in enumerate(codes):
        Y[i, c] = 1 / (codes == c).sum()
    Z = np.linalg.inv(np.eye(n) - 0.99 * S) @ Y
    Z /= Z.sum(axis=1, keepdims=True)
    answers = []
    for row in test:
        cosines = rows @ (row / np.sqrt((row**2).sum()))
        nearest = np.argsort(-cosines)[:k]
        answers.append(int(sum(max(0, cosines[j]) ** 3 * Z[j] for j in nearest).argmax()))
    return np.array(answers)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_diffusion_is_the_dense_solve(seed: int) -> None:
    labeled, codes, unlabeled, test, _ = clouds(seed)
    found = Diffusion(labeled, codes, unlabeled, CLASSES, neighbours=6)(test)
    assert (found == slow_diffusion(labeled, codes, unlabeled, test, 6)).all()


def test_few_rows_are_all_neighbours() -> None:
    labeled, codes, unlabeled, test, truth = clouds()
    found = Diffusion(labeled, codes, unlabeled[:4], CLASSES)(test)
    assert (found == truth).mean() > 0.5


def test_peers_are_scikit_learns_on_unit_rows() -> None:
    labeled, codes, unlabeled, test, _ = clouds()
    lengths = [np.linalg.norm(rows, axis=1, keepdims=True) for rows in (labeled, unlabeled, test)]
    x, u, t = labeled / lengths[0], unlabeled / lengths[1], test / lengths[2]
    neighbours = KNeighborsClassifier(n_neighbors=5).fit(x, codes).predict(t)
    assert (GRAPH_BASELINES["knn"].fit(labeled, codes, unlabeled, CLASSES)(test) == neighbours).all()
    both = np.concatenate([codes, np.full(len(u), -1)])
    spread = LabelSpreading(kernel="knn", n_neighbors=7, max_iter=100).fit(np.concatenate([x, u]), both).predict(t)
    assert (GRAPH_BASELINES["label_spreading"].fit(labeled, codes, unlabeled, CLASSES)(test) == spread).all()
