"""CIFAR-10 and CIFAR-100, cut to a long tail: the official binary files, or a copy as images.

The official archives are downloaded, checked against the published md5 sum, and unpacked. A copy is
a folder or a zip file.
"""

import hashlib
import http.client
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image

from semigpc.data.dataset import ImageSet, Integers, Splits
from semigpc.data.folder import class_folders
from semigpc.data.splits import SplitConfig, long_tailed_splits, put_aside
from semigpc.io.atomic import replacing
from semigpc.io.errors import DataError, SettingsError
from semigpc.io.images import FileImages, Images, Pixels, ZipImages, to_image, zipped_images
from semigpc.io.text import listed, ordered

PARTS = ("train", "test")
TRAINING = 50_000  # images, equally many of each class
TEST = 10_000  # images, equally many of each class
SIDE = 32  # pixels
IMAGE_BYTES = 3 * SIDE * SIDE  # all red values row by row, then green, then blue
BLOCK_BYTES = 2**18  # read at a time, between two reports of progress
TIMEOUT = 30.0  # seconds without a response
_HOST = "https://www.cs.toronto.edu/~kriz"
_CIFAR10 = "cifar-10-binary.tar.gz"
_CIFAR100 = "cifar-100-binary.tar.gz"

Progress = Callable[[int, int], None]  # bytes received so far, bytes in all


class Pool(NamedTuple):
    """All images, of which the first ``training`` are for training, and the class names."""

    images: ImageSet
    training: int
    class_names: tuple[str, ...]


@dataclass(frozen=True)
class Archive:
    """A published ``.tar.gz``: address, name on disk, md5 sum, bytes, and the folder to unpack."""

    url: str
    file_name: str
    md5: str
    size: int
    folder: str


ARCHIVES: dict[str, Archive] = {
    "cifar10": Archive(
        f"{_HOST}/{_CIFAR10}",
        _CIFAR10,
        "c32a1d4ab5d03f1284b67883e8d87530",
        170_052_171,
        "cifar-10-batches-bin",
    ),
    "cifar100": Archive(
        f"{_HOST}/{_CIFAR100}",
        _CIFAR100,
        "03b5dce01913d631647c71ecec9e9cb8",
        168_513_733,
        "cifar-100-binary",
    ),
}


class Form(NamedTuple):
    """Names and layout of the official files of one CIFAR.

    A record is ``label_bytes``, the last of which is the class, and an image. ``files`` maps names
    to numbers of records; the last file is the test set. ``pickles`` are the folder and the archive
    of the pickled form, which is not read.
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
        return self.label_bytes + IMAGE_BYTES


FORMS: dict[int, Form] = {
    10: Form(
        name="cifar10",
        archive=ARCHIVES["cifar10"],
        files={
            **{f"data_batch_{i}.bin": TRAINING // 5 for i in range(1, 6)},
            "test_batch.bin": TEST,
        },
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
    """CIFAR with a long tail, whose head is class 0 (airplane, apple), and with all test images.

    Args:
        root: the folder with ``cifar10/`` or ``cifar100/``, where the official archive lies or is
            unpacked; or a copy as images, a folder or a ``.zip`` with ``train/<class>/`` and
            ``test/<class>/``, decoded when they are first used.
        n_classes: 10 or 100, which selects the CIFAR.
        split: of the training images; the default is the paper's setting A for CIFAR-10 with a
            ratio of 100: 3720 labels, all of them among 12 406 unlabelled images. The heads for
            CIFAR-100 are 150 and 500.
        validation_per_class: training images of each class put aside before the split, by the run's
            seed, for validation.
        download: fetch the official archive into root if nothing is there.
    """

    root: str
    n_classes: Literal[10, 100] = 10
    split: SplitConfig = field(
        default_factory=lambda: SplitConfig(
            labeled_head=1500, labeled_ratio=100, unlabeled_head=5000, unlabeled_ratio=100
        )
    )
    validation_per_class: int = 0
    download: bool = False

    def __post_init__(self) -> None:
        if self.n_classes not in FORMS:
            raise SettingsError(
                f"n_classes must be 10 or 100, for CIFAR-10 or CIFAR-100; got {self.n_classes}."
            )
        if self.validation_per_class < 0:
            raise SettingsError(
                f"validation_per_class must be 0 or more; got {self.validation_per_class}."
            )
        per_class = TRAINING // self.n_classes
        if self.validation_per_class + self.split.labeled_head > per_class:
            raise SettingsError(
                f"A class of CIFAR-{self.n_classes} has {per_class} training images for validation "
                f"and the head of the labels; got {self.validation_per_class} and "
                f"{self.split.labeled_head}. Lower one of them; the paper's heads are "
                f"{per_class * 3 // 10} labelled and {per_class} unlabelled images."
            )


def load(config: CifarConfig, seed: int) -> Splits:
    """Find the images, or unpack or download them, and draw validation, labelled and unlabelled."""
    root = Path(config.root).expanduser()
    pool = find(root, config.n_classes, download=config.download)
    images, training, class_names = pool
    parts = put_aside(images.labels[:training], (config.validation_per_class,), seed)
    validation, rest = (images.subset(part) for part in parts)
    test = images.subset(np.arange(training, len(images)))
    splits = long_tailed_splits(
        rest, class_names, config.split, seed, validation=validation, test=test
    )
    return replace(splits, notes=tuple(_notes(config, pool, splits.unlabeled_truth)))


def _notes(config: CifarConfig, pool: Pool, unlabeled: Integers) -> Iterator[str]:
    """Yield notes on a copy with fewer images, and on classes with too few unlabelled ones."""
    test = len(pool.images) - pool.training
    if (pool.training, test) != (TRAINING, TEST):
        yield (
            f"The copy of CIFAR-{config.n_classes} has {pool.training} training and {test} test "
            f"images, and not {TRAINING} and {TEST}."
        )
    if config.split.overlap != "nested":
        return
    # U takes the images that there are, and its ratio is then not the one requested.
    _, requested = config.split.counts(config.n_classes)
    drawn = np.bincount(unlabeled, minlength=config.n_classes)
    counts = zip(pool.class_names, drawn, requested, strict=True)
    short = [f"{name} ({n} of {u})" for name, n, u in counts if n < u]
    if short:
        yield (
            "Classes with fewer unlabelled images than requested, since no more are left: "
            f"{listed(short)}."
        )


def find(root: Path, n_classes: int, *, download: bool) -> Pool:
    """Look below ``root`` for binary files, a copy as images, the archive; or download it."""
    form = FORMS[n_classes]
    archive = form.archive
    places = (root, root / form.name)
    if root.is_file() or (root.suffix.lower() == ".zip" and not root.is_dir()):
        return _copy_in_zip(root, n_classes)
    for place in (root, *(place / archive.folder for place in places)):
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
    raise DataError(_not_found(root, n_classes))


def _not_found(root: Path, n_classes: int) -> str:
    form = FORMS[n_classes]
    remedy = (
        f"Download the binary archive with `semigpc data download {form.name} {root}`, or set "
        "download=true."
    )
    folders = (root.parent, root, root / form.name)
    pickles = [folder / name for folder in folders for name in form.pickles]
    pickled = [path for path in pickles if path.exists() and path.is_relative_to(root)]
    if pickled:
        return (
            f"CIFAR-{n_classes} is in {root} as Python pickles only: {pickled[0]}. Pickles are not "
            f"opened, since they can run any code. {remedy}"
        )
    return (
        f"CIFAR-{n_classes} is not in {root}: there is no folder {form.archive.folder} with "
        f"{next(iter(form.files))}, no archive {form.archive.file_name}, and no copy as images in "
        f"train/<class>/ and test/<class>/. {remedy}"
    )


def _binary(folder: Path, n_classes: int) -> Pool:
    """Map the official files, in their order."""
    form = FORMS[n_classes]
    missing = [name for name in (*form.files, form.class_names) if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{folder} lacks {listed(missing)} of CIFAR-{n_classes}. {_again(folder)}")
    files = {folder / name: count for name, count in form.files.items()}
    images = RecordImages(files, form.record_bytes)
    labels = [records[:, form.label_bytes - 1].astype(np.int64) for records in images.records]
    for name, own in zip(form.files, labels, strict=True):
        if own.max() >= n_classes:
            record = int(np.argmax(own >= n_classes))
            raise DataError(
                f"Labels of CIFAR-{n_classes} lie in [0, {n_classes}); record {record} of "
                f"{folder / name} has {own[record]}. The file is damaged. {_again(folder)}"
            )
    text = (folder / form.class_names).read_text(encoding="utf-8", errors="replace")
    class_names = tuple(text.split())
    if len(class_names) != n_classes:
        raise DataError(
            f"{folder / form.class_names} must name {n_classes} classes; it names "
            f"{len(class_names)}. {_again(folder)}"
        )
    test = len(labels[-1])
    training = len(images) - test
    names = [f"train/{i:05d}" for i in range(training)] + [f"test/{i:05d}" for i in range(test)]
    return Pool(ImageSet(images, np.concatenate(labels), names), training, class_names)


def _again(folder: Path) -> str:
    return f"Delete {folder} and fetch the official archive again."


def _copy_in_folder(place: Path, n_classes: int) -> Pool:
    members = []
    for part in PARTS:
        names = sorted(class_folders(place / part, follow_links=True).labels)
        members += [f"{part}/{name}" for name in names]
    return _copy(place, FileImages([place / name for name in members]), members, n_classes)


def _copy_in_zip(archive: Path, n_classes: int) -> Pool:
    if archive.suffix.lower() != ".zip":
        raise DataError(
            f"root must be the folder that holds CIFAR-{n_classes}, or a .zip with train/<class>/ "
            f"and test/<class>/; {archive} is another file. If it is the official archive, pass "
            "its folder."
        )
    names = [name for name in zipped_images(archive) if name.count("/") > 1]
    members = [name for part in PARTS for name in names if name.startswith(f"{part}/")]
    return _copy(archive, ZipImages(archive, members), members, n_classes)


def _copy(place: Path, images: Images, names: Sequence[str], n_classes: int) -> Pool:
    """Return a copy as images, with one class per folder, in the order of names or numbers."""
    classes_of = {
        part: {name.split("/")[1] for name in names if name.startswith(f"{part}/")}
        for part in PARTS
    }
    for part, classes in classes_of.items():
        if len(classes) != n_classes:
            raise DataError(
                f"A copy of CIFAR-{n_classes} must have {n_classes} class folders with images in "
                f"{part}/ at its top; {place} has {len(classes)}: "
                f"{listed(sorted(classes)) or 'none'}. Correct the copy, or set n_classes to "
                f"{len(classes)}."
            )
    odd = sorted(classes_of["train"] ^ classes_of["test"])
    if odd:
        raise DataError(
            f"train/ and test/ of {place} must have the same class folders; only one has "
            f"{listed(odd)}. Rename them."
        )
    class_names = ordered(classes_of["train"])
    numbers = {name: number for number, name in enumerate(class_names)}
    labels = np.array([numbers[name.split("/")[1]] for name in names], dtype=np.int64)
    training = sum(name.startswith("train/") for name in names)
    return Pool(ImageSet(images, labels, names), training, class_names)


class RecordImages(Images):
    """Images in binary files of equally long records, mapped into memory that processes share.

    Args:
        files: paths, each with its number of records.
        record_bytes: of a record, which ends with 3 x 32 x 32 bytes.
    """

    def __init__(self, files: dict[Path, int], record_bytes: int) -> None:
        self.files = files
        self.record_bytes = record_bytes
        self.first = np.cumsum([0, *files.values()])  # record of each file, and one past the last

    def __len__(self) -> int:
        return int(self.first[-1])

    def __getitem__(self, position: int) -> Image.Image:
        number = int(np.searchsorted(self.first, position, side="right")) - 1
        record = self.records[number][position - self.first[number]]
        return to_image(record[-IMAGE_BYTES:].reshape(3, SIDE, SIDE).transpose(1, 2, 0))

    @cached_property
    def records(self) -> list[Pixels]:
        """Arrays (records, record_bytes), one per file; the size of each file is checked."""
        return [self._map(path, count) for path, count in self.files.items()]

    def _map(self, path: Path, count: int) -> Pixels:
        expected = count * self.record_bytes
        try:
            size = path.stat().st_size
            if size == expected:
                return np.asarray(np.memmap(path, np.uint8, "r", shape=(count, self.record_bytes)))
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error}. {_again(path.parent)}") from error
        raise DataError(
            f"{path} must have {expected} bytes, {count} records of {self.record_bytes}; it has "
            f"{size}. It is truncated or another file. {_again(path.parent)}"
        )

    def __getstate__(self) -> dict[str, object]:
        """Send the paths to a worker process, and not the bytes."""
        return {name: value for name, value in self.__dict__.items() if name != "records"}


def fetch(source: Archive, folder: Path, progress: Progress | None = None) -> Path:
    """Download an archive into ``folder`` if necessary, unpack it there, and return the result."""
    return extract(source, download(source, folder, progress), folder)


def download(source: Archive, folder: Path, progress: Progress | None = None) -> Path:
    """Return the path of the archive in ``folder``, complete and with the right checksum.

    A file under its name has the right checksum. One that exists already is checked and not
    downloaded again.

    Args:
        source: the archive.
        folder: where to put it; created if necessary.
        progress: called after each block.
    """
    target = folder / source.file_name
    if target.exists():
        check(source, target)
        return target
    with replacing(target) as draft:
        received = 0
        with draft.open("wb") as file:
            for block in _blocks(source, folder):
                received += file.write(block)
                if progress is not None:
                    progress(received, source.size)
        if md5_of(draft) != source.md5:
            raise DataError(
                f"{source.url} sent {received} bytes without the published md5 sum {source.md5} "
                f"of {source.size} bytes. Nothing was kept; try again. {_elsewhere(source, folder)}"
            )
    return target


def _blocks(source: Archive, folder: Path) -> Iterator[bytes]:
    """Yield what the server sends; raise a DataError if it cannot be reached."""
    try:
        with urllib.request.urlopen(source.url, timeout=TIMEOUT) as response:
            while block := response.read(BLOCK_BYTES):
                yield block
    except (OSError, http.client.HTTPException) as error:
        raise DataError(
            f"{source.url} could not be downloaded: {error}. Check the connection and try again. "
            f"{_elsewhere(source, folder)}"
        ) from error


def _elsewhere(source: Archive, folder: Path) -> str:
    return f"Or put {source.file_name} from elsewhere into {folder}; its md5 is {source.md5}."


def check(source: Archive, path: Path) -> None:
    """Raise a DataError if a file is not the archive, byte for byte."""
    if (md5 := md5_of(path)) != source.md5:
        raise DataError(
            f"{path} must have the md5 sum {source.md5} and has {md5}: it is truncated or another "
            "file. Delete it and fetch it again."
        )


def md5_of(path: Path) -> str:
    """Return the md5 sum of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def extract(source: Archive, path: Path, folder: Path) -> Path:
    """Unpack the data folder of a checked archive into ``folder`` and return its path.

    The standard library's ``data`` filter rejects entries that could write elsewhere, links that
    lead out, and devices. A hidden folder is filled first and then renamed, so an existing folder
    is complete and is not unpacked again.
    """
    target = folder / source.folder
    if target.exists():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{source.folder}-", dir=folder) as draft:
            with tarfile.open(path, "r:gz") as tar:
                tar.extractall(draft, filter="data")
            Path(draft, source.folder).rename(target)
    except (OSError, tarfile.TarError) as error:
        if not target.is_dir():  # another process may have been faster
            raise DataError(
                f"{path} cannot be unpacked into {folder}: {error}. Make room or choose another "
                "folder; if it is damaged or another archive, delete it and fetch it again."
            ) from error
    return target
