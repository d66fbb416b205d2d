"""Graph baselines against a dense solve written from the equation and scikit-learn, and how peers
are tuned.
"""

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.semi_supervised import LabelSpreading

from benchmarks.peers import (
    TUNED_PEERS,
    Codes,
    Diffusion,
    Learn,
    Points,
    Predict,
    Rows,
    TunedPeer,
    balanced_accuracy,
    fit_tuned,
)

CLASSES = 3


def clouds(
    seed: int = 0, width: int = 160
) -> tuple[Rows, NDArray[np.int64], Rows, Rows, NDArray[np.int64]]:
    """Labelled rows and their codes, 12, 5 and 2 of a class; unlabelled rows; test rows and their
    truth.
    """
    rng = np.random.default_rng(seed)
    means = rng.normal(size=(CLASSES, width))

    def draw(counts: list[int]) -> tuple[Rows, NDArray[np.int64]]:
        codes = np.repeat(np.arange(CLASSES), counts)
        return means[codes] + 0.9 * rng.normal(size=(len(codes), width)), codes

    labeled, codes = draw([12, 5, 2])
    return labeled, codes, draw([30, 15, 6])[0], *draw([20, 20, 20])


def slow_diffusion(
    labeled: Rows, codes: NDArray[np.int64], unlabeled: Rows, test: Rows, k: int
) -> NDArray[np.int64]:
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


@pytest.mark.parametrize("dense", [0, 1000])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_diffusion_is_the_dense_solve(seed: int, dense: int) -> None:
    labeled, codes, unlabeled, test, _ = clouds(seed)
    found = Diffusion(np.concatenate([labeled, unlabeled]), neighbours=6, dense=dense).learn(codes)(
        test
    )
    assert (found == slow_diffusion(labeled, codes, unlabeled, test, 6)).all()


def test_few_rows_are_all_neighbours() -> None:
    labeled, codes, unlabeled, test, truth = clouds()
    found = Diffusion(np.concatenate([labeled, unlabeled[:4]])).learn(codes)(test)
    assert (found == truth).mean() > 0.5


@pytest.mark.parametrize("name", TUNED_PEERS)
def test_a_tuned_peer_finds_classes_under_a_scaling_that_it_chose(name: str) -> None:
    labeled, codes, unlabeled, test, truth = clouds(width=12)
    rng = np.random.default_rng(9)
    rows = [
        np.append(x, 1e4 * rng.normal(size=(len(x), 1)), axis=1) for x in (labeled, unlabeled, test)
    ]
    predict, chosen = fit_tuned(TUNED_PEERS[name], rows[0], codes, rows[1], seed=0)
    assert chosen["scaling"] in ("standard", "rank"), "one column is loud noise"
    assert chosen["parameter"] in TUNED_PEERS[name].grid
    assert balanced_accuracy(truth, predict(rows[2])) > 0.5


def test_a_parameter_is_chosen_by_labels_that_are_held_out() -> None:
    asked: list[tuple[float, int]] = []

    def prepare(_: Points, right: float) -> Learn:
        def learn(codes: Codes) -> Predict:
            asked.append((right, int((codes < 0).sum())))
            return lambda rows: np.where(
                np.arange(len(rows)) < right * len(rows), rows[:, 0] - 2, -1
            ).astype(np.int64)

        return learn

    codes = np.repeat([0, 1], 10)
    X = codes[:, None] + np.float32(2)
    _, chosen = fit_tuned(
        TunedPeer("by the first column", prepare, (0.0, 1.0, 0.5)), X, codes, X[:0], seed=0
    )
    assert (chosen["parameter"], chosen["score"]) == (1.0, 1.0)
    assert chosen["scaling"] == "none", "the only scaling that keeps the column"
    assert {held for _, held in asked[:-1]} == {4}
    assert asked[-1] == (1.0, 0)


def test_label_spreading_without_a_width_is_scikit_learns_knn_kernel() -> None:
    labeled, codes, unlabeled, test, _ = clouds(width=6)
    points = Points(labeled, unlabeled)
    both = np.concatenate([codes, np.full(len(unlabeled), -1)])
    theirs = LabelSpreading(kernel="knn", n_neighbors=7, alpha=0.2, max_iter=100).fit(
        points.all, both
    )
    ours = TUNED_PEERS["label_spreading"].prepare(points, (7, 0.0, 0.2))(codes)
    assert (ours(test) == theirs.predict(test)).mean() > 0.95
