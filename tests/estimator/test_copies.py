"""Copies among the labelled rows: which rows are, and that they are left out together."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits, load_iris, load_wine

from semigpc.estimator import SemiGPClassifier, memory
from semigpc.estimator.copies import Copies, counted_once
from semigpc.gp import exact
from semigpc.gp.scales import LeftTogether, choose_by_grid

Rows = NDArray[np.float32]


def groups_of(X: NDArray[Any]) -> NDArray[np.int64]:
    rows = np.asarray(X, dtype=np.float32)
    return Copies(rows, np.arange(len(rows))).groups(np.arange(len(rows)))


def frames(
    seed: int, *, width: int = 8, noise: float = 0.002, copies: int = 5, scenes: int = 40
) -> tuple[Rows, NDArray[np.int64]]:
    """Some frames of each of many scenes, and 1000 other rows; classes are drawn for each scene."""
    rng = np.random.default_rng(seed)
    centres = np.repeat(rng.standard_normal((scenes, width)), copies, axis=0)
    labelled = centres + noise * rng.standard_normal(centres.shape)
    codes = rng.permutation(np.arange(scenes) % 2)
    rows = np.concatenate([labelled, rng.standard_normal((1000, width))])
    return rows.astype(np.float32), np.append(np.repeat(codes, copies), np.full(1000, -1))


@pytest.mark.parametrize("width", [1, 2, 4, 8, 64])
@pytest.mark.parametrize("noise", [0.0, 1e-5])
def test_equal_and_nearly_equal_rows_are_copies_at_any_width(width: int, noise: float) -> None:
    X, codes = frames(3, width=width, noise=noise, scenes=20)
    groups = groups_of(X[codes >= 0])
    assert (groups == np.repeat(np.arange(20), 5)).mean() > 0.85  # scenes on a line may be close
    assert len(np.unique(groups)) >= 17


@pytest.mark.parametrize("load", [load_iris, load_wine, load_digits])
def test_distinct_rows_of_real_tables_are_no_copies(load: Any) -> None:
    X = np.unique(load().data.astype(np.float32), axis=0)
    assert len(np.unique(groups_of(X))) == len(X)


@pytest.mark.parametrize(("width", "most"), [(1, 0.15), (2, 0.04), (4, 0.0), (16, 0.0)])
def test_dense_rows_of_few_columns_are_not_grouped_wholesale(width: int, most: float) -> None:
    X = np.random.default_rng(0).standard_normal((300, width)) * 10.0 ** np.arange(width)
    sizes = np.bincount(groups_of(X))
    assert sizes[sizes > 1].sum() <= most * len(X)
    assert sizes.max() <= 3


def test_groups_follow_labels_that_come_and_go() -> None:
    X, codes = frames(0)
    labelled = np.flatnonzero(codes >= 0)
    model = SemiGPClassifier(self_training=0).fit(X[labelled[:150]], codes[labelled[:150]])
    model.partial_fit(X[labelled[150:]], codes[labelled[150:]], rows=labelled[150:])
    model.partial_fit(X[:2], [-1, -1], rows=[0, 1])
    whole = SemiGPClassifier(self_training=0).fit(X[labelled], codes[labelled])
    assert (model.copy_groups_ == whole.copy_groups_[2:]).all()
    assert (whole.copy_groups_ == np.repeat(np.arange(40), 5)).all()


def test_copies_with_the_same_label_count_once() -> None:
    groups = np.array([4, 4, 4, 7, 7, 9])
    codes = np.array([0, 1, 0, 2, 2, 0])
    assert counted_once(groups, codes).tolist() == [True, True, False, True, False, True]


@pytest.mark.parametrize("members", [1, 3])
def test_left_out_labels_are_predicted_without_their_copies(
    members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if members > 1:
        monkeypatch.setattr(exact, "EXACT_ROWS", 100)
        monkeypatch.setattr(memory, "SPARE_SLOTS", 8)
    X, codes = frames(1, copies=3)
    settings: dict[str, Any] = {
        "length_scale": 2.0,
        "noise_std": 0.5,
        "logit_scale": 5.0,
        "scaling": "standard",
    }
    model = SemiGPClassifier(**settings, self_training=0, random_state=0).fit(X, codes)
    assert (len(model._memory.members) > 1) == (members > 1)
    left_out = model.leave_one_out()
    for group in (0, 7, 31):
        (rows,) = np.nonzero(left_out.groups == group)
        without = SemiGPClassifier(**settings, self_training=0, random_state=0).fit(X, codes)
        without.partial_fit(X[rows], np.full(len(rows), -1), rows=left_out.rows[rows])
        points = without._scaling(X[left_out.rows[rows]])
        expected = torch.softmax(5.0 * without._memory.score(points).mean, dim=1)
        assert left_out.proba[rows] == pytest.approx(expected.numpy(), abs=2e-4)
        scores = [model.explain_left_out(rows, np.full(len(rows), c))[2] for c in (0, 1)]
        probs = torch.softmax(5.0 * torch.tensor(np.stack(scores, axis=1)), dim=1)
        assert left_out.proba[rows] == pytest.approx(probs.numpy(), abs=2e-4)
        assert not np.isin(model.explain_left_out(rows, [0] * len(rows))[0], rows).any()


def test_the_grid_leaves_copies_out_together() -> None:
    X, codes = frames(2, copies=2, scenes=15)
    h = torch.from_numpy(X[:30]).double()
    y = torch.from_numpy(codes[:30])
    groups = np.repeat(np.arange(15), 2)
    together = LeftTogether(
        torch.from_numpy(groups), torch.from_numpy(counted_once(groups, codes[:30]))
    )
    fixed: dict[str, Any] = {"kernel": "rbf", "length_scale": 1.5, "noise_std": 0.4}
    found = choose_by_grid({"none": h}, y, **fixed, together=together).error
    targets = torch.nn.functional.one_hot(y, 2).double()
    K = torch.exp(-torch.cdist(h, h).square() / (2 * 1.5**2))
    errors = torch.zeros(2, dtype=torch.float64)
    for i in range(0, 30, 2):
        rest = np.flatnonzero(groups != groups[i])
        inside = K[rest][:, rest] + 0.16 * torch.eye(len(rest))
        mean = K[i, rest] @ torch.linalg.solve(inside, targets[rest])
        errors[y[i]] += (targets[i] - mean).square().sum() / (y[::2] == y[i]).sum()
    assert found == pytest.approx(float(errors.mean()), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 8, 32])
def test_random_classes_of_copied_rows_promise_nothing(width: int) -> None:
    promised = []
    for seed in range(20):
        X, codes = frames(seed, width=width)
        model = SemiGPClassifier().fit(X, codes, transduce=False)
        assert (model.threshold_ > 1).all()  # at 95 %, no label is given out
        promised.append(any((each <= 1).any() for each in model.promise_.grades.values()))
    # A promise holds in 90 of 100 cases: by chance, three quarters of 40 left-out labels are right.
    assert sum(promised) <= 4, "at 10 % each, more have a probability of 4 %"
