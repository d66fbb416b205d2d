"""CIFAR-10 and CIFAR-100, cut to a long tail: the official binary files, or a copy as image files, in a folder or a zip."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from PIL import Image

from semigpc.data.archives import ARCHIVES, Archive, check, extract, fetch
from semigpc.data.dataset import DataError, Images, ImageSet, Splits, listed
from semigpc.data.folder import class_folders, ordered
from semigpc.data.images import FileImages, Pixels, ZipImages, to_image, zipped_images
from semigpc.data.splits import SplitConfig, long_tail_split, put_aside

PARTS = ("train", "test")
TRAINING, TEST = 50_000, 10_000  # images, equally many of each class
SIDE = 32
PIXELS = 3 * SIDE * SIDE  # bytes of an image: its red, green and blue, each row by row


class Form(NamedTuple):
    """The names and the content of the official files of one CIFAR.

    A record is ``label_bytes``, the last of which is the class, and an image. ``files`` maps names to numbers of records; the
    last is the test set. ``pickles`` are the folder and the archive of the pickled form, which is not read.
    """

    name: str
    archive: Archive
    files: dict[str, int]
    label_bytes: int
    class_names: str
    pickles: tuple[str, str]

    @property
    def record_bytes(self) -> int:
        """Bytes of labels and image."""
        return self.label_bytes + PIXELS


FORMS: dict[int, Form] = {
    10: Form(
        name="cifar10",
        archive=ARCHIVES["cifar10"],
        files={f"data_batch_{i}.bin": TRAINING // 5 for i in range(1, 6)} | {"test_batch.bin": TEST},
        label_bytes=1,
        class_names="batches.meta.txt",
        pickles=("cifar-10-batches-py", "cifar-10-python.tar.gz"),
    ),
    100: Form(
        name="cifar100",
        archive=ARCHIVES["cifar100"],
        files={"train.bin": TRAINING, "test.bin": TEST},
        label_bytes=2,  # coarse, fine
        class_names="fine_label_names.txt",
        pickles=("cifar-100-python", "cifar-100-python.tar.gz"),
    ),
}


@dataclass(frozen=True, kw_only=True)
class CifarConfig:
    """Class 0, airplane or apple, is the head. All test images are used, 10 000 in the official files.

    Args:
        root: the folder with ``cifar10/`` or ``cifar100/``, where the official archive lies or is unpacked; or a copy as
            images, a folder or a ``.zip`` with ``train/<class>/`` and ``test/<class>/``, decoded
            when they are first used.
        n_classes: 10 or 100, which selects the CIFAR.
        split: of the training images; the default is the paper's setting A for CIFAR-10 with a ratio of 100: 3720 labels,
            all of them among 12 406 unlabelled images. The heads for CIFAR-100 are 150 and 500.
        validation_per_class: training images of each class put aside before the split, by the run's seed, for validation.
        download: fetch the official archive into root if nothing is there.
    """

    root: str
    n_classes: Literal[10, 100] = 10
    split: SplitConfig = field(
        default_factory=lambda: SplitConfig(labeled_head=1500, labeled_ratio=100, unlabeled_head=5000, unlabeled_ratio=100)
    )
    validation_per_class: int = 0
    download: bool = False

    def __post_init__(self) -> None:
        if self.n_classes not in FORMS:
            raise DataError(f"n_classes must be 10 or 100, the CIFARs there are; got {self.n_classes}.")
        if self.validation_per_class < 0:
            raise DataError(f"validation_per_class must be 0 or more; got {self.validation_per_class}.")
        per_class = TRAINING // self.n_classes
        if self.validation_per_class + self.split.labeled_head > per_class:
            raise DataError(
                f"A class of CIFAR-{self.n_classes} has {per_class} training images, which must do for validation and the "
                f"head of the labels; got {self.validation_per_class} and {self.split.labeled_head}. Lower one of them; the "
                f"paper's heads are {per_class * 3 // 10} labelled and {per_class} unlabelled images."
            )


def load(config: CifarConfig, seed: int) -> Splits:
    """Find the images, unpacking or downloading them if necessary, and draw the validation, labelled and unlabelled ones."""
    images, training, class_names = find(Path(config.root).expanduser(), config.n_classes, download=config.download)
    validation, rest = put_aside(images.labels[:training], (config.validation_per_class,), seed)
    split = long_tail_split(images.labels[rest], config.n_classes, config.split, seed)
    unlabeled = images.subset(rest[split.unlabeled])
    notes = []
    sizes = training, len(images) - training
    if sizes != (TRAINING, TEST):
        copy = f"The copy of CIFAR-{config.n_classes} has {sizes[0]} training and {sizes[1]} test images"
        notes.append(f"{copy}, and not {TRAINING} and {TEST}.")
    if config.split.overlap == "nested":  # U then takes what there is, and its ratio is not the one requested
        wanted, drawn = config.split.counts(config.n_classes)[1], np.bincount(unlabeled.labels, minlength=config.n_classes)
        short = [f"{name} ({n} of {u})" for name, n, u in zip(class_names, drawn, wanted, strict=True) if n < u]
        if short:
            notes.append(f"Classes with fewer unlabelled images than asked for, since no more are left: {listed(short)}.")
    return Splits(
        labeled=images.subset(rest[split.labeled]),
        unlabeled=unlabeled.without_labels(),
        unlabeled_truth=unlabeled.labels,
        validation=images.subset(validation) if len(validation) else None,
        test=images.subset(np.arange(training, len(images))),
        class_names=class_names,
        notes=tuple(notes),
    )


class Pool(NamedTuple):
    """Every image with its class and name: the ``training`` ones first, then the test images."""

    images: ImageSet
    training: int
    class_names: tuple[str, ...]


def find(root: Path, n_classes: int, *, download: bool) -> Pool:
    """Look below ``root`` for binary files, a copy as images, the official archive; then download it, if that is allowed."""
    form = FORMS[n_classes]
    archive, places = form.archive, (root, root / form.name)
    if root.is_file() or (root.suffix.lower() == ".zip" and not root.is_dir()):
        return _copy_in_zip(root, n_classes)
    for place in (root, *(place / form.archive.folder for place in places)):
        if any((place / name).is_file() for name in form.files):
            return _binary(place, n_classes)
    for place in places:
        if all((place / part).is_dir() for part in PARTS):
            return _copy_in_folder(place, n_classes)
    for place in places:
        if (place / archive.file_name).is_file():
            check(archive, place / archive.file_name)
            return _binary(extract(archive, place / archive.file_name, root / form.name), n_classes)
    if download:
        return _binary(fetch(archive, root / form.name), n_classes)
    raise _absent(root, n_classes)


def _absent(root: Path, n_classes: int) -> DataError:
    form = FORMS[n_classes]
    way_out = f"Fetch the binary archive with `semigpc data download {form.name} {root}`, or set download=true."
    pickles = [place / name for place in (root.parent, root, root / form.name) for name in form.pickles]
    pickled = [path for path in pickles if path.exists() and path.is_relative_to(root)]
    if pickled:
        return DataError(
            f"CIFAR-{n_classes} is in {root} as Python pickles only: {pickled[0]}. No pickle is ever opened here, "
            f"since that can run any code it holds. {way_out}"
        )
    return DataError(
        f"CIFAR-{n_classes} is not in {root}: there is no folder {form.archive.folder} with {next(iter(form.files))}, no "
        f"archive {form.archive.file_name}, and no copy as images in train/<class>/ and test/<class>/. {way_out}"
    )


def _binary(folder: Path, n_classes: int) -> Pool:
    """Map the official files, in their order."""
    form = FORMS[n_classes]
    missing = [name for name in (*form.files, form.class_names) if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{folder} lacks {listed(missing)} of CIFAR-{n_classes}. {_again(folder)}")
    images = RecordImages({folder / name: count for name, count in form.files.items()}, form.record_bytes)
    labels = [records[:, form.label_bytes - 1].astype(np.int64) for records in images.records()]
    for name, own in zip(form.files, labels, strict=True):
        if own.max() >= n_classes:
            record = int(np.argmax(own >= n_classes))
            raise DataError(
                f"Labels of CIFAR-{n_classes} lie in [0, {n_classes}); record {record} of {folder / name} has {own[record]}. "
                f"The file is damaged. {_again(folder)}"
            )
    class_names = tuple((folder / form.class_names).read_text(encoding="utf-8", errors="replace").split())
    if len(class_names) != n_classes:
        raise DataError(
            f"{folder / form.class_names} must name {n_classes} classes; it names {len(class_names)}. {_again(folder)}"
        )
    sizes = len(images) - len(labels[-1]), len(labels[-1])
    names = [f"{part}/{i:05d}" for part, size in zip(PARTS, sizes, strict=True) for i in range(size)]
    return Pool(ImageSet(images, np.concatenate(labels), names), sizes[0], class_names)


def _again(folder: Path) -> str:
    return f"Delete {folder} and fetch the official archive again."


def _copy_in_folder(folder: Path, n_classes: int) -> Pool:
    names = {
        part: sorted(f"{part}/{name}" for name in class_folders(folder / part, follow_links=True).labels) for part in PARTS
    }
    members = [*names["train"], *names["test"]]
    return _copy(folder, FileImages([folder / name for name in members]), members, n_classes)


def _copy_in_zip(archive: Path, n_classes: int) -> Pool:
    if archive.suffix.lower() != ".zip":
        raise DataError(
            f"root must be the folder that holds CIFAR-{n_classes}, or a .zip with train/<class>/ and test/<class>/; "
            f"{archive} is another file. If it is the official archive, give the folder it lies in."
        )
    names = [name for name in zipped_images(archive) if name.count("/") > 1]
    members = [name for part in PARTS for name in names if name.startswith(f"{part}/")]
    return _copy(archive, ZipImages(archive, members), members, n_classes)


def _copy(place: Path, images: Images, names: Sequence[str], n_classes: int) -> Pool:
    """A copy as images: classes are its folders in the order of their names, or of their values if all are numbers."""
    classes_of = {part: {name.split("/")[1] for name in names if name.startswith(f"{part}/")} for part in PARTS}
    for part, classes in classes_of.items():
        if len(classes) != n_classes:
            raise DataError(
                f"A copy of CIFAR-{n_classes} must have {n_classes} class folders with images in {part}/ at its top; {place} "
                f"has {len(classes)}: {listed(sorted(classes)) or 'none'}. Mend the copy, or set n_classes to what it is."
            )
    odd = sorted(classes_of["train"] ^ classes_of["test"])
    if odd:
        raise DataError(
            f"train/ and test/ of {place} must have the same class folders; only one has {listed(odd)}. Rename them."
        )
    class_names = ordered(classes_of["train"])
    numbers = {name: number for number, name in enumerate(class_names)}
    labels = np.array([numbers[name.split("/")[1]] for name in names], dtype=np.int64)
    training = sum(name.startswith("train/") for name in names)
    return Pool(ImageSet(images, labels, names), training, class_names)


class RecordImages:
    """Images in binary files of equally long records, mapped into memory, so that processes share them.

    Args:
        files: paths, each with its number of records.
        record_bytes: of a record, which ends with 3 x 32 x 32 bytes.
    """

    def __init__(self, files: dict[Path, int], record_bytes: int) -> None:
        self.files = files
        self.record_bytes = record_bytes
        self.first = np.cumsum([0, *files.values()])  # record of each file, and one past the last
        self._maps: list[Pixels] = []

    def __len__(self) -> int:
        return int(self.first[-1])

    def __getitem__(self, position: int) -> Image.Image:
        number = int(np.searchsorted(self.first, position, side="right")) - 1
        record = self.records()[number][position - self.first[number]]
        return to_image(record[-PIXELS:].reshape(3, SIDE, SIDE).transpose(1, 2, 0))

    def records(self) -> list[Pixels]:
        """(records, record_bytes) of each file; its size must be right to the byte."""
        if not self._maps:
            self._maps = [self._map(path, count) for path, count in self.files.items()]
        return self._maps

    def _map(self, path: Path, count: int) -> Pixels:
        expected = count * self.record_bytes
        try:
            size = path.stat().st_size
            if size == expected:
                return np.asarray(np.memmap(path, np.uint8, "r", shape=(count, self.record_bytes)))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}. {_again(path.parent)}") from error
        raise DataError(
            f"{path} must have {expected} bytes, {count} records of {self.record_bytes}; it has {size}. It is cut short or "
            f"another file. {_again(path.parent)}"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Send the paths to a worker process, and not the bytes."""
        return self.__dict__ | {"_maps": []}
