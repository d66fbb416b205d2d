"""Arrays in memory and in files."""

from pathlib import Path

import numpy as np
import pytest

from semigpc.data import ArraysConfig, splits_from_arrays
from semigpc.data.arrays import load
from semigpc.io.errors import DataError, SettingsError

RNG = np.random.default_rng(0)
X = RNG.integers(0, 256, (30, 4, 5, 3), dtype=np.uint8)
Y = np.arange(30) % 3


def test_arrays_become_splits_without_being_copied() -> None:
    data = splits_from_arrays(
        X[:12], Y[:12], X[12:20], x_val=X[20:24], y_val=Y[20:24], x_test=X[24:], y_test=Y[24:]
    )
    assert data.class_names == ("0", "1", "2")
    assert data.class_counts.tolist() == [4, 4, 4]
    assert np.asarray(data.unlabeled[3]).tolist() == X[15].tolist()
    assert data.unlabeled_truth.tolist() == [-1] * 8
    assert data.unlabeled.names[3] == "x_unlabeled/3"
    assert data.validation is not None
    assert data.validation.labels.tolist() == Y[20:24].tolist()
    assert np.shares_memory(data.labeled.images.pixels, X)  # type: ignore[attr-defined]


def test_minus_one_means_unlabelled() -> None:
    y = np.where(np.arange(30) < 12, Y, -1)
    data = splits_from_arrays(X, y, y_unlabeled_truth=Y[12:], class_names=("ant", "bee", "cat"))
    assert len(data.labeled) == 12
    assert len(data.unlabeled) == 18
    assert np.asarray(data.unlabeled[0]).tolist() == X[12].tolist()
    assert data.unlabeled_truth.tolist() == Y[12:].tolist()
    with pytest.raises(DataError, match=r"18 rows of y_labeled are -1.*x_unlabeled has 30 more"):
        splits_from_arrays(X, y, X)


def test_labels_alone_are_enough_and_some_may_be_held_out() -> None:
    data = splits_from_arrays(X, Y, validation=0.2)
    assert len(data.unlabeled) == 0
    assert data.validation is not None
    assert len(data.validation) == 6
    assert not set(data.validation.positions) & set(data.labeled.positions)


def test_grey_images_are_repeated_in_all_channels() -> None:
    data = splits_from_arrays(X[..., 0], Y)
    pixels = np.asarray(data.labeled[2])
    assert pixels.shape == (4, 5, 3)
    assert (pixels == X[2, :, :, :1]).all()


@pytest.mark.parametrize("grey", [False, True])
def test_a_file_holds_the_same(tmp_path: Path, grey: bool) -> None:
    x = X[..., 0] if grey else X
    path = tmp_path / "data.npz"
    np.savez(path, x_labeled=x[:12], y_labeled=Y[:12], x_unlabeled=x[12:], y_unlabeled_truth=Y[12:])
    data = load(ArraysConfig(path=str(path)), seed=0)
    assert data.sha256 == splits_from_arrays(x[:12], Y[:12], x[12:]).sha256
    assert data.unlabeled_truth.tolist() == Y[12:].tolist()
    assert (
        np.asarray(data.unlabeled[1]).tolist()
        == np.broadcast_to(x[13].reshape(4, 5, -1), (4, 5, 3)).tolist()
    )


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with pytest.raises(DataError, match=r"There is no file .*data.npz"):
        load(ArraysConfig(path=str(path)), seed=0)
    path.write_bytes(b"PK no zip at all")
    with pytest.raises(DataError, match="cannot be read"):
        load(ArraysConfig(path=str(path)), seed=0)
    np.savez(path, x_labeled=X, y_labeled=Y, x_test2=X)
    with pytest.raises(DataError, match="missing: 'x_unlabeled', unknown: 'x_test2'"):
        load(ArraysConfig(path=str(path)), seed=0)
    np.savez(path, x_labeled=np.array([{}], dtype=object), y_labeled=Y, x_unlabeled=X)
    with pytest.raises(DataError, match=r"x_labeled\.npy holds Python objects"):
        load(ArraysConfig(path=str(path)), seed=0)
    np.save(tmp_path / "one.npy", X)
    with pytest.raises(DataError, match="cannot be read"):
        load(ArraysConfig(path=str(tmp_path / "one.npy")), seed=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x_labeled": X / 255.0}, "must be uint8.*got float64.*Scale values to 0..255"),
        (
            {"x_labeled": X.transpose(0, 3, 1, 2)},
            r"got uint8 of shape \(30, 3, 4, 5\).*channels last",
        ),
        ({"y_labeled": Y[:-1]}, "equally long; got 30 and 29"),
        ({"y_labeled": Y * 1.0}, "vector of integers.*got float64"),
        ({"y_labeled": np.eye(3, dtype=int)[Y]}, r"shape \(30, 3\)"),
        ({"y_labeled": Y - 2}, "-1 for unlabelled; got -2"),
        ({"x_test": X}, "x_test and y_test must be given together.*30 and no array"),
        ({"y_labeled": Y * 2}, "there is none of '1', '3'"),
        ({"y_labeled": Y, "class_names": ("ant", "bee")}, r"labeled part must lie in \[0, 2\)"),
        ({"x_unlabeled": X, "y_unlabeled_truth": Y[:3]}, r"each of the 30.*got 3"),
        ({"y_labeled": np.full(30, -1)}, "at least two classes"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arguments: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(DataError, match=message):
        splits_from_arrays(**({"x_labeled": X, "y_labeled": Y} | arguments))  # type: ignore[arg-type]


def test_the_fraction_is_checked() -> None:
    with pytest.raises(SettingsError, match=r"\[0, 1\) of the labels; got 1.5"):
        ArraysConfig(path="x.npz", validation=1.5)


def test_images_of_no_class_are_marked_and_have_no_truth(tmp_path: Path) -> None:
    outside = np.arange(10) >= 6
    truth = np.where(outside, -1, Y[12:22])
    data = splits_from_arrays(
        X[:12], Y[:12], X[12:22], y_unlabeled_truth=truth, unlabeled_out=outside
    )
    assert data.unlabeled_out is not None
    assert data.unlabeled_out.tolist() == outside.tolist()
    assert (data.unlabeled.labels == -1).all()
    path = tmp_path / "data.npz"
    np.savez(path, x_labeled=X[:12], y_labeled=Y[:12], x_unlabeled=X[12:22], unlabeled_out=outside)
    assert load(ArraysConfig(path=str(path)), seed=0).unlabeled_out is not None
    with pytest.raises(DataError, match=r"unlabeled_out must be booleans.*10.*images; got int64"):
        splits_from_arrays(X[:12], Y[:12], X[12:22], unlabeled_out=outside.astype(np.int64))
    with pytest.raises(DataError, match=r"has no true class; unlabeled_truth.*for 4.*Put -1 there"):
        splits_from_arrays(
            X[:12], Y[:12], X[12:22], y_unlabeled_truth=Y[12:22], unlabeled_out=outside
        )
