"""Copies of CIFAR as image files, in a folder and in a zip file."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from semigpc.data import Augment, AugmentConfig, BatchStream, CifarConfig, SplitConfig
from semigpc.data.cifar import find, load
from semigpc.io.errors import DataError
from tests.data.cifar_samples import CIFAR10, FEW_COUNTS, config, counts, zipped
from tests.data.samples import write_images

JPEG_COPY = Path(__file__).parents[3] / "shared" / "data" / "cifar10-jpeg.zip"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy as images: twenty of each class to train on, two to test on."""
    write_images(tmp_path / "copy" / "train", dict.fromkeys(CIFAR10, 20), size=(8, 8))
    write_images(tmp_path / "copy" / "test", dict.fromkeys(CIFAR10, 2), size=(8, 8))
    return tmp_path / "copy"


def test_a_copy_is_the_same_in_a_folder_and_in_a_zip_file(copy: Path, tmp_path: Path) -> None:
    (copy / "train" / "cat" / ".hidden.png").touch()
    (copy / "train" / "cat" / "notes.txt").touch()
    archive = zipped(copy, tmp_path / "copy.zip")
    folder, packed = load(config(copy), seed=0), load(config(archive), seed=0)
    assert folder.sha256 == packed.sha256
    assert folder.class_names == CIFAR10
    assert (counts(folder.labeled.labels), counts(folder.unlabeled_truth)) == FEW_COUNTS
    assert packed.test is not None
    assert packed.test.names[:3] == (
        "test/airplane/0.png",
        "test/airplane/1.png",
        "test/automobile/0.png",
    )
    assert packed.test.positions.tolist() == list(range(200, 220))
    assert [name.split("/")[1] for name in packed.labeled.names] == [
        CIFAR10[c] for c in packed.labeled.labels
    ]
    for data in (folder, packed):
        assert all(
            data.labeled[i].tobytes() == folder.labeled[i].tobytes()
            for i in range(len(data.labeled))
        )
    assert load(config(copy.rename(tmp_path / "cifar10").parent), seed=0).sha256 == folder.sha256


@pytest.mark.skipif(
    not JPEG_COPY.is_file(), reason=f"the copy of CIFAR-10 as JPEG files is not there: {JPEG_COPY}"
)
def test_the_jpeg_copy_of_cifar10_is_complete() -> None:
    images, training, _ = find(JPEG_COPY, 10, download=False)
    assert counts(images.labels[:training]) == [5000] * 10
    assert images.names[0] == "train/airplane/0000.jpg"
    data = load(CifarConfig(root=str(JPEG_COPY)), seed=0)
    assert (len(data.labeled), len(data.unlabeled)) == (3720, 12406)
    assert data.class_names == CIFAR10
    assert data.notes == ()
    assert data.test is not None
    assert counts(data.test.labels) == [1000] * 10
    assert all(part[len(part) // 2].size == (32, 32) for _, part in data.parts())
    assert data.sha256.startswith("e3a8c770a5a10e6b")


@pytest.mark.slow
def test_a_zip_file_is_read_in_worker_processes(copy: Path, tmp_path: Path) -> None:
    data = load(config(zipped(copy, tmp_path / "copy.zip")), seed=0)
    assert data.labeled[0].size == (8, 8)  # so that the file is open here too

    def batches(workers: int) -> list[list[Any]]:
        settings: dict[str, Any] = {
            "labeled_batch": 4,
            "unlabeled_batch": 8,
            "seed": 0,
            "epoch_steps": 5,
            "views": ("weak",),
        }
        augment = Augment(AugmentConfig(image_size=8))
        loader = BatchStream(data, augment, total_steps=3, **settings).batches(
            first_step=0, workers=workers
        )
        return [[batch.x.tolist(), batch.views["weak"].tolist()] for batch in loader]

    assert batches(1) == batches(0)


def test_folders_that_are_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_images(tmp_path / part, {str(c): 1 for c in range(100)})
    split = SplitConfig(labeled_head=1, unlabeled_head=1)
    assert load(config(tmp_path, n_classes=100, split=split), seed=0).class_names == tuple(
        str(c) for c in range(100)
    )


def test_copies_that_are_no_cifar_are_refused(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"CIFAR-100 must have 100.*its top; .* has 10: 'airplane'"):
        load(config(copy, n_classes=100), seed=0)
    (copy / "test" / "truck").rename(copy / "test" / "lorry")
    with pytest.raises(DataError, match=r"must have the same class.*only one has 'lorry', 'truck'"):
        load(config(copy), seed=0)
    shutil.rmtree(copy / "test" / "lorry")
    with pytest.raises(DataError, match=r"10 class folders with images in test/ .*has 9"):
        load(config(zipped(copy, tmp_path / "nine.zip")), seed=0)
    with pytest.raises(DataError, match=r"in train/ at its top; .*deep.zip has 0: none"):
        load(config(zipped(tmp_path, tmp_path.parent / "deep.zip")), seed=0)
    (tmp_path / "cifar.tar").touch()
    with pytest.raises(DataError, match=r"cifar.tar is another.*official archive, pass its folder"):
        load(config(tmp_path / "cifar.tar"), seed=0)
