"""Sets of images, and what splits promise and refuse."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from semigpc.data import DATASETS, ImageSet, Splits
from semigpc.io.errors import DataError
from semigpc.io.images import ArrayImages
from semigpc.training.run_folder import split_facts
from tests.data.samples import small_splits

POOL = ArrayImages(np.arange(10 * 2 * 2 * 3, dtype=np.uint8).reshape(10, 2, 2, 3))


def image_set(labels: list[int], first: int = 0) -> ImageSet:
    positions = np.arange(first, first + len(labels))
    names = [f"image/{i}" for i in positions]
    return ImageSet(POOL, np.array(labels, dtype=np.int64), names, positions)


def splits(
    labels: list[int], class_names: tuple[str, ...] = ("ant", "bee", "cat"), **parts: Any
) -> Splits:
    return Splits(
        labeled=image_set(labels),
        unlabeled=image_set([-1, -1], first=6),
        unlabeled_truth=np.array([2, -1]),
        class_names=class_names,
        **parts,
    )


def test_subsets_keep_to_the_pool() -> None:
    part = image_set([0, 1, 2, 0], first=3).subset(np.array([3, 1]))
    assert part.labels.tolist() == [0, 1]
    assert part.positions.tolist() == [6, 4]
    assert part.names == ("image/6", "image/4")
    assert np.asarray(part[0]).tolist() == POOL.pixels[6].tolist()
    deeper = part.subset(np.array([1]))
    assert len(deeper) == 1
    assert np.asarray(deeper[0]).tolist() == POOL.pixels[4].tolist()
    assert deeper.images is POOL
    assert len(part.subset(np.array([], dtype=int))) == 0


def test_sets_that_do_not_fit_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"same length; got \(10, 1, 1\)"):
        ImageSet(POOL, np.array([0]), ["a"])
    with pytest.raises(ValueError, match=r"lie in \[0, 10\).*got 0..10"):
        ImageSet(POOL, np.array([0, 0]), ["a", "b"], np.array([0, 10]))
    with pytest.raises(ValueError, match="labels must be a vector of integers; got float64"):
        ImageSet(POOL, np.array([0.5]), ["a"], np.array([0]))


def test_splits_count_their_images() -> None:
    data = splits([0, 1, 2, 0], validation=image_set([1], first=8), test=image_set([2], first=9))
    assert data.n_classes == 3
    assert data.class_counts.tolist() == [2, 1, 1]
    sizes = {part: len(images) for part, images in data.parts()}
    assert sizes == {"labeled": 4, "unlabeled": 2, "validation": 1, "test": 1}
    told = json.loads(json.dumps(split_facts(data)))
    counts = {name: numbers for name, numbers in told.items() if name.endswith("_counts")}
    assert counts == {
        "labeled_counts": [2, 1, 1],
        "validation_counts": [0, 1, 0],
        "test_counts": [0, 0, 1],
        "unlabeled_counts": [0, 0, 1],
    }
    assert told["class_names"] == ["ant", "bee", "cat"]
    assert told["sha256"] == data.sha256
    arrays = data.indices()
    assert arrays["unlabeled"].tolist() == [6, 7]
    assert arrays["test_names"].tolist() == ["image/9"]


def test_the_hash_is_of_names_positions_and_labels() -> None:
    data = splits([0, 1, 2, 0])
    assert data.sha256 == splits([0, 1, 2, 0]).sha256
    assert data.sha256 == "8aee293351bc265024dd8f300513d836b520a4fee08dbf3b51859f6c89180a66"
    renamed = ImageSet(POOL, data.labeled.labels, ["w", "x", "y", "z"], data.labeled.positions)
    others = [
        splits([0, 1, 2, 1]),
        splits([0, 1, 2, 0], ("ant", "bee", "dog")),
        splits([0, 1, 2, 0], test=image_set([2], first=9)),
        replace(data, labeled=renamed),
    ]
    assert len({data.sha256, *(other.sha256 for other in others)}) == 5
    # what training cannot see
    assert replace(data, unlabeled_truth=np.array([0, 0])).sha256 == data.sha256


def test_a_class_without_labels_is_named() -> None:
    with pytest.raises(DataError, match=r"there is none of 'bee'. Label one"):
        splits([0, 2, 0])


def test_a_single_label_is_worth_a_note_once() -> None:
    data = splits([0, 1, 2, 0])
    assert data.notes == ("Classes with a single labelled image: 'bee', 'cat'.",)
    assert replace(data, test=image_set([2])).notes == data.notes


def test_one_class_is_not_enough() -> None:
    with pytest.raises(DataError, match="at least two classes; the labels name 'ant'"):
        splits([0, 0], ("ant",))


def test_labels_of_unlabelled_images_are_refused() -> None:
    data = splits([0, 1, 2])
    labelled = image_set([-1, 1], first=6)
    with pytest.raises(ValueError, match="must have no labels"):
        replace(data, unlabeled=labelled)
    assert replace(data, unlabeled=labelled.without_labels()).unlabeled.labels.tolist() == [-1, -1]
    with pytest.raises(ValueError, match="one entry for each of the 2"):
        replace(data, unlabeled_truth=np.array([1]))


def test_images_of_no_class_are_booleans_and_have_no_truth() -> None:
    data = replace(splits([0, 1, 2]), unlabeled_truth=np.array([2, -1]))
    marked = replace(data, unlabeled_out=np.array([False, True]))
    assert marked.sha256 == data.sha256, "what training cannot see"
    for wrong in (np.array([True]), np.array([0, 1])):
        with pytest.raises(DataError, match=r"unlabeled_out must.*each of the 2 unlabelled images"):
            replace(data, unlabeled_out=wrong)
    with pytest.raises(DataError, match=r"has no true class; unlabeled_truth.*one for 1 of those"):
        replace(data, unlabeled_out=np.array([True, True]))


def test_labels_out_of_range_and_empty_parts_are_refused() -> None:
    data = splits([0, 1, 2])
    with pytest.raises(DataError, match=r"test part must lie in \[0, 3\).*got 3..3"):
        replace(data, test=image_set([3]))
    with pytest.raises(DataError, match="validation part has no images"):
        replace(data, validation=image_set([]))


def test_every_data_set_has_a_config_and_a_loader() -> None:
    assert set(DATASETS) - {"fgvc"} == {"arrays", "cifar", "digits", "folder", "mnist"}
    for entry in DATASETS.values():
        assert entry.config.__dataclass_params__.frozen
        assert callable(entry.load)


def test_a_image_without_classes_in_the_truth_is_not_counted() -> None:
    assert split_facts(small_splits())["unlabeled_counts"] is None
