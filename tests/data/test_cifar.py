"""CIFAR: official files and copies as images, found, checked, split, and what is said when
something is wrong.
"""

import gzip
import hashlib
import io
import pickle
import shutil
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from semigpc.data import DATASETS, Augment, AugmentConfig, BatchStream, CifarConfig, SplitConfig
from semigpc.data.cifar import FORMS, Archive, RecordImages, find, load
from semigpc.io.errors import DataError, SettingsError
from tests.data.samples import STREAM, same_batch, write_images

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FEW = SplitConfig(labeled_head=6, labeled_ratio=3, unlabeled_head=12, unlabeled_ratio=3)
FEW_COUNTS = [6, 5, 4, 4, 3, 3, 2, 2, 2, 2], [12, 10, 9, 8, 7, 6, 5, 5, 4, 4]


def random_pixels(count: int, seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)


def write_binary(
    folder: Path, n_classes: int, labels: NDArray[Any], pixels: NDArray[np.uint8]
) -> None:
    """Official files of as many images as the form says; ``pixels`` of the first ones, and black
    ones after them.
    """
    form = FORMS[n_classes]
    folder.mkdir(parents=True)
    records = np.zeros((sum(form.files.values()), form.record_bytes), dtype=np.uint8)
    records[:, 0] = 19  # a coarse label of CIFAR-100; in CIFAR-10 the next line overwrites it
    records[:, form.label_bytes - 1] = labels
    planes = pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)
    records[: len(pixels), form.label_bytes :] = planes
    first = 0
    for name, count in form.files.items():
        records[first : first + count].tofile(folder / name)
        first += count
    names = CIFAR10 if n_classes == 10 else tuple(f"class_{c}" for c in range(n_classes))
    (folder / form.class_names).write_text("\n".join(names) + "\n\n")


def zipped(folder: Path, archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*"), reverse=True):
            file.write(path, path.relative_to(folder).as_posix())
    return archive


def config(root: Path, **changes: Any) -> CifarConfig:
    settings: dict[str, Any] = {"root": str(root), "split": FEW}
    return CifarConfig(**settings | changes)


def counts(labels: NDArray[Any], n_classes: int = 10) -> list[int]:
    result: list[int] = np.bincount(labels, minlength=n_classes).tolist()
    return result


# Official files -----------------------------------------------------------------------------------

SMALL_LABELS = np.tile(np.arange(10), 24)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> NDArray[Any]:
    """Labels of a CIFAR-10 with files of 40 images: twenty of each class to train, four to test."""
    form = FORMS[10]
    monkeypatch.setitem(FORMS, 10, form._replace(files=dict.fromkeys(form.files, 40)))
    return SMALL_LABELS


@pytest.fixture
def binary(small: NDArray[Any], tmp_path: Path) -> Path:
    """A root with such files."""
    folder = tmp_path / "root" / "cifar10" / "cifar-10-batches-bin"
    write_binary(folder, 10, small, random_pixels(240))
    return tmp_path / "root"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_classes", "sizes", "labeled", "unlabeled", "first"),
    [
        (10, [30_730_000] * 6, 3720, 12406, ("airplane", "automobile")),
        (100, [153_700_000, 30_740_000], 3218, 10847, ("class_0", "class_1")),
    ],
)
def test_official_files_give_the_counts_of_the_paper(
    tmp_path: Path, n_classes: Any, sizes: list[int], labeled: int, unlabeled: int, first: Any
) -> None:
    form = FORMS[n_classes]
    labels = np.tile(np.arange(n_classes), 60_000 // n_classes)
    pixels = random_pixels(300)
    folder = tmp_path / form.name / form.archive.folder
    write_binary(folder, n_classes, labels, pixels)
    assert [(folder / name).stat().st_size for name in form.files] == sizes
    head = 50_000 // n_classes
    split = SplitConfig(
        labeled_head=head * 3 // 10, labeled_ratio=100, unlabeled_head=head, unlabeled_ratio=100
    )
    try:
        data = load(CifarConfig(root=str(tmp_path), n_classes=n_classes, split=split), seed=0)
        assert (len(data.labeled), len(data.unlabeled)) == (labeled, unlabeled)
        assert data.test is not None
        assert counts(data.test.labels, n_classes) == [10_000 // n_classes] * n_classes
        assert data.test.positions.tolist() == list(range(50_000, 60_000))
        assert data.test.names[7] == "test/00007"
        # fine ones; the coarse are all 19
        assert (labels[data.labeled.positions] == data.labeled.labels).all()
        assert (labels[data.unlabeled.positions] == data.unlabeled_truth).all()
        assert data.labeled.names[0] == f"train/{data.labeled.positions[0]:05d}"
        assert data.class_names[:2] == first
        for i in (0, 299):
            assert np.array_equal(np.asarray(data.labeled.images[i]), pixels[i])
        assert data.validation is None
        # CIFAR-100 has classes of a single label
        assert not [note for note in data.notes if "single" not in note]
    finally:
        shutil.rmtree(tmp_path / form.name)  # 184 MB each, which pytest would keep


def test_the_default_is_setting_a_of_the_paper() -> None:
    split = CifarConfig(root="x").split
    assert [sum(part) for part in split.counts(10)] == [3720, 12406]
    assert split.overlap == "nested"
    assert DATASETS["cifar"] == (CifarConfig, load)


def test_files_are_found_wherever_people_put_them(binary: Path) -> None:
    expected = load(config(binary), seed=0)
    inner = binary / "cifar10" / "cifar-10-batches-bin"
    for place in (inner, inner.parent):
        assert load(config(place), seed=0).sha256 == expected.sha256
    assert (counts(expected.labeled.labels), counts(expected.unlabeled_truth)) == FEW_COUNTS
    (note,) = expected.notes
    assert "200 training and 40 test images" in note
    assert expected.sha256 != load(config(binary), seed=1).sha256


def test_every_record_is_the_image_that_was_written(binary: Path) -> None:
    images = find(binary, 10, download=False)[0].images
    assert isinstance(images, RecordImages)
    assert len(images) == 240
    sent = pickle.dumps(images)
    assert len(sent) < 2000  # paths alone
    for own in (images, pickle.loads(sent)):
        assert (np.stack([np.asarray(own[i]) for i in range(240)]) == random_pixels(240)).all()
    with pytest.raises(IndexError):
        images[240]


def test_a_validation_part_is_put_aside_before_the_split(binary: Path) -> None:
    data = load(config(binary, validation_per_class=8), seed=0)
    assert data.validation is not None
    assert counts(data.validation.labels) == [8] * 10
    assert (SMALL_LABELS[data.validation.positions] == data.validation.labels).all()
    assert data.validation.positions.max() < 200
    trained = {*data.labeled.positions, *data.unlabeled.positions}
    assert not trained & set(data.validation.positions)
    assert (counts(data.labeled.labels), counts(data.unlabeled_truth)) == FEW_COUNTS
    again, other = (load(config(binary, validation_per_class=8), seed) for seed in (0, 1))
    assert data.sha256 == again.sha256
    assert other.validation is not None
    assert set(other.validation.positions) != set(data.validation.positions)


def test_fewer_unlabelled_images_than_asked_for_are_noted(binary: Path) -> None:
    data = load(config(binary, validation_per_class=9), seed=0)
    assert data.unlabeled_truth.tolist().count(0) == 11
    assert data.notes[-1].endswith("than requested, since no more are left: 'airplane (11 of 12)'.")
    # where that is how it is meant
    apart = SplitConfig(labeled_head=3, unlabeled_head=30, overlap="usb")
    assert len(load(config(binary, split=apart), seed=0).notes) == 1


def test_a_validation_part_that_leaves_too_little_is_refused(binary: Path) -> None:
    with pytest.raises(DataError, match="Class 0 has 0 images"):
        load(config(binary, validation_per_class=25), seed=0)


def test_an_archive_that_lies_there_is_checked_and_unpacked(
    binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = load(config(binary), seed=0).sha256
    inner = binary / "cifar10" / "cifar-10-batches-bin"
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        tar.add(inner, inner.name)
    content = gzip.compress(file.getvalue(), 1)
    md5 = hashlib.md5(content).hexdigest()
    archive = Archive("http://127.0.0.1:9/x", "c.tar.gz", md5, len(content), inner.name)
    monkeypatch.setitem(FORMS, 10, FORMS[10]._replace(archive=archive))
    for place in (binary, binary / "cifar10"):
        shutil.rmtree(inner)
        (place / "c.tar.gz").write_bytes(content[:-1] + b"x")
        with pytest.raises(DataError, match=r"c.tar.gz must have the md5 sum.*and has .*Delete it"):
            load(config(binary), seed=0)
        assert not inner.exists()
        (place / "c.tar.gz").write_bytes(content)
        assert load(config(binary), seed=0).sha256 == expected
        assert inner.is_dir()
        (place / "c.tar.gz").unlink()


def test_the_archive_is_fetched_only_if_that_is_allowed(
    small: NDArray[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(_archive: Archive, folder: Path) -> Path:
        write_binary(folder / "cifar-10-batches-bin", 10, small, random_pixels(240))
        return folder / "cifar-10-batches-bin"

    monkeypatch.setattr("semigpc.data.cifar.fetch", fetch)
    root = tmp_path / "new"
    with pytest.raises(DataError, match=r"CIFAR-10 is not in .*new: .*download=true"):
        load(config(root), seed=0)
    assert not root.exists()
    assert len(load(config(root, download=True), seed=0).labeled) == sum(FEW_COUNTS[0])
    assert (root / "cifar10" / "cifar-10-batches-bin").is_dir()


@pytest.mark.parametrize(
    "name",
    ["cifar-10-batches-py/data_batch_1", "cifar10/cifar-10-batches-py/x", "cifar-10-python.tar.gz"],
)
def test_pickles_are_never_opened(tmp_path: Path, name: str) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "exploded",)

    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(pickle.dumps(Bomb()))
    for root in (tmp_path, (tmp_path / name).parent):
        with pytest.raises(DataError, match=r"as Python.*not opened.*data download cifar10"):
            load(config(root), seed=0)
    assert not (tmp_path / "exploded").exists()


def test_a_file_of_the_wrong_size_is_named(tmp_path: Path) -> None:
    for name in FORMS[10].files:
        with (tmp_path / name).open("wb") as file:
            file.truncate(30_730_000 - (name == "data_batch_3.bin"))  # holes, which take no room
    (tmp_path / "batches.meta.txt").touch()
    with pytest.raises(DataError, match=r"data_batch_3.bin must.*it has 30729999.*Delete .* again"):
        load(config(tmp_path), seed=0)
    (tmp_path / "data_batch_3.bin").unlink()
    with pytest.raises(DataError, match=r"lacks 'data_batch_3.bin' of CIFAR-10. Delete"):
        load(config(tmp_path), seed=0)


def test_a_label_out_of_range_is_named(binary: Path) -> None:
    path = binary / "cifar10" / "cifar-10-batches-bin" / "data_batch_2.bin"
    content = bytearray(path.read_bytes())
    content[3 * 3073] = 10
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"lie in \[0, 10\); record 3.*has 10. The file is damaged"):
        load(config(binary), seed=0)


def test_a_list_of_classes_that_is_cut_short_is_named(binary: Path) -> None:
    (binary / "cifar10" / "cifar-10-batches-bin" / "batches.meta.txt").write_text("airplane\n")
    with pytest.raises(DataError, match=r"batches.meta.txt must name 10 classes; it names 1"):
        load(config(binary), seed=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_classes": 20}, "n_classes must be 10 or 100.*got 20"),
        ({"validation_per_class": -1}, "validation_per_class must be 0 or more; got -1"),
        ({"validation_per_class": 3501}, "5000 training images.*got 3501 and 1500"),
        ({"n_classes": 100}, "500 training images.*got 0 and 1500.*150 labelled and 500"),
    ],
)
def test_configs_check_their_ranges(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        CifarConfig(root="x", **changes)


# Copies as image files, in a folder and in a zip file ---------------------------------------------

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
    first = ("airplane/0.png", "airplane/1.png", "automobile/0.png")
    assert packed.test.names[:3] == tuple(f"test/{name}" for name in first)
    assert packed.test.positions.tolist() == list(range(200, 220))
    classes = [CIFAR10[c] for c in packed.labeled.labels]
    assert [name.split("/")[1] for name in packed.labeled.names] == classes
    for i in range(len(packed.labeled)):
        assert packed.labeled[i].tobytes() == folder.labeled[i].tobytes()
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

    stream = BatchStream(data, Augment(AugmentConfig(image_size=8)), total_steps=3, **STREAM)
    here, there = (list(stream.batches(first_step=0, workers=workers)) for workers in (0, 1))
    assert len(there) == 3
    assert all(map(same_batch, here, there))


def test_folders_that_are_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    for part in ("train", "test"):
        write_images(tmp_path / part, {str(c): 1 for c in range(100)})
    split = SplitConfig(labeled_head=1, unlabeled_head=1)
    data = load(config(tmp_path, n_classes=100, split=split), seed=0)
    assert data.class_names == tuple(str(c) for c in range(100))


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
