"""MNIST out of generated files: an .npz file and idx files, whole and damaged."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from semigpc.data import MnistConfig, SplitConfig, Splits
from semigpc.data.mnist import IDX_FILES, load
from semigpc.io.errors import DataError, SettingsError
from semigpc.training.presets import mnist, mnist_balanced
from tests.cli.calls import refused, semigpc

PER_CLASS = {"train": 30, "test": 6}
SPLIT = SplitConfig(labeled_head=5, labeled_ratio=5, unlabeled_head=20, unlabeled_ratio=10)


@pytest.fixture(scope="module")
def arrays() -> dict[str, NDArray[Any]]:
    rng, made = np.random.default_rng(0), {}
    for part, count in PER_CLASS.items():
        labels = rng.permutation(np.repeat(np.arange(10), count))
        made[f"y_{part}"] = labels.astype(np.uint8)
        pixels = rng.integers(0, 80, (len(labels), 28, 28), dtype=np.uint8)
        pixels[np.arange(len(labels)), 2 * labels] = 255  # a white row that tells the class
        made[f"x_{part}"] = pixels
    return made


@pytest.fixture
def npz(arrays: dict[str, NDArray[Any]], tmp_path: Path) -> Path:
    np.savez_compressed(tmp_path / "mnist.npz", allow_pickle=False, **arrays)
    return tmp_path / "mnist.npz"


def idx(array: NDArray[Any]) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


@pytest.fixture
def folder(arrays: dict[str, NDArray[Any]], tmp_path: Path) -> Path:
    """Images are packed, labels are not."""
    for name, file in IDX_FILES.items():
        content = idx(arrays[name])
        if name.startswith("x"):
            (tmp_path / f"{file}.gz").write_bytes(gzip.compress(content))
        else:
            (tmp_path / file).write_bytes(content)
    return tmp_path


def class_rows(splits: Splits) -> None:
    """Every labelled image has the white row of its class."""
    for images in (splits.labeled, splits.test):
        assert images is not None
        for i in range(len(images)):
            pixels = np.asarray(images[i])
            assert pixels.shape == (28, 28, 3)
            assert (pixels[2 * images.labels[i]] == 255).all()


def test_both_kinds_of_files_give_the_same_splits(npz: Path, folder: Path) -> None:
    first, second = (
        load(MnistConfig(root=str(path), split=SPLIT, validation_per_class=3), 1)
        for path in (npz, folder)
    )
    assert first.sha256 == second.sha256
    for splits in (first, second):
        class_rows(splits)
    assert np.bincount(first.labeled.labels).tolist() == SPLIT.counts(10)[0]
    assert np.bincount(first.unlabeled_truth).tolist() == SPLIT.counts(10)[1]
    assert (first.unlabeled.labels == -1).all()
    assert first.validation is not None
    assert not set(first.validation.names) & {*first.labeled.names, *first.unlabeled.names}
    assert (np.bincount(first.validation.labels) == 3).all()


def test_test_images_are_all_or_equally_many_of_each_class(npz: Path) -> None:
    config = MnistConfig(root=str(npz), split=SPLIT)
    whole, some = load(config, 0).test, load(replace(config, test_per_class=2), 0).test
    assert whole is not None
    assert some is not None
    assert len(whole) == 60
    assert (np.bincount(some.labels) == 2).all()
    assert set(some.names) < set(whole.names)


def test_a_damaged_idx_file_is_named(folder: Path) -> None:
    config, file = MnistConfig(root=str(folder), split=SPLIT), folder / IDX_FILES["y_train"]
    whole = file.read_bytes()
    headers = (b"\0\0\x0d\1", b"\0\0\x08\xff")
    for content in (whole[:-1], whole[:3], b"", *(header + whole[4:] for header in headers)):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"train-labels-idx1-ubyte.*of bytes, or was cut short"):
            load(config, 0)
    file.unlink()
    with pytest.raises(DataError, match="there is no train-labels-idx1-ubyte"):
        load(config, 0)
    packed = folder / f"{IDX_FILES['x_train']}.gz"
    packed.write_bytes(packed.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz cannot be read"):
        load(config, 0)


def test_arrays_that_are_not_mnist_are_an_error(npz: Path, arrays: dict[str, NDArray[Any]]) -> None:
    config = MnistConfig(root=str(npz), split=SPLIT)
    incomplete = {name: array for name, array in arrays.items() if name != "x_test"}
    np.savez(npz, allow_pickle=False, **incomplete)
    with pytest.raises(DataError, match="missing: x_test"):
        load(config, 0)
    for labels in (arrays["y_train"][:-1], arrays["y_train"] % 9, arrays["y_train"] / 2):
        np.savez(npz, allow_pickle=False, **(arrays | {"y_train": labels}))
        with pytest.raises(DataError, match=r"The train.*must be one digit for each of 300 images"):
            load(config, 0)
    with pytest.raises(DataError, match=r"MNIST is not at .*root="):
        load(replace(config, root="nowhere.npz"), 0)
    with pytest.raises(SettingsError, match="test_per_class must be 0 or more; got -1"):
        replace(config, test_per_class=-1)


def test_settings_are_long_tailed_or_balanced_labels() -> None:
    long = mnist(imbalance_ratio=100).data.split
    few = mnist_balanced(labels_per_class=10, imbalance_ratio=20).data.split
    names = ("labeled_head", "labeled_ratio", "unlabeled_ratio", "overlap")
    assert [getattr(long, name) for name in names] == [100, 100, 100, "nested"]
    assert [getattr(few, name) for name in names] == [10, 1, 20, "disjoint"]
    with pytest.raises(SettingsError, match=r"setting must be 'A' .* got 'C'"):
        mnist(setting="C")  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_recipe_trains_on_the_files_of_root(npz: Path, tmp_path: Path) -> None:
    heads = "--set data.split.labeled_head=5 --set data.split.unlabeled_head=20"
    small = f"{heads} --set data.test_per_class=2 --set refiner.warmup_steps=2".split()
    options = ["--ratio", "5", "--steps", "4", "--json", *small]
    done = semigpc("train", "mnist", "--root", npz, *options, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["results"]["last"]["n"] == 20
    refused("train", tmp_path, "--root", npz, code=2, words="Leave it out")
