"""MNIST, cut to a long tail: an ``.npz`` file with its four arrays, or the official idx files."""

import gzip
import math
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semigpc.data.arrays import read_npz
from semigpc.data.dataset import ImageSet, Splits
from semigpc.data.splits import SplitConfig, long_tailed_splits, put_aside
from semigpc.io.errors import DataError, SettingsError
from semigpc.io.images import ArrayImages
from semigpc.io.paths import checked

CLASS_NAMES = tuple("0123456789")
PARTS = ("train", "test")
IDX_FILES = {  # the name of an array in an .npz file -> the official file
    "x_train": "train-images-idx3-ubyte",
    "y_train": "train-labels-idx1-ubyte",
    "x_test": "t10k-images-idx3-ubyte",
    "y_test": "t10k-labels-idx1-ubyte",
}
BYTES = 8  # the code of unsigned bytes in the header of an idx file


@dataclass(frozen=True, kw_only=True)
class MnistConfig:
    """Class 0, the digit zero, is the head. Images are grey, 28 x 28.

    Args:
        root: an ``.npz`` file with ``x_train``, ``y_train``, ``x_test`` and ``y_test``, or a folder
            with the official idx files, plain or ``.gz``.
        split: of the training images; the default gives 100 labels of the largest class and 2 of
            the rarest.
        validation_per_class: training images of each class put aside before the split, by the run's
            seed, for validation.
        test_per_class: official test images of each class that are used, drawn by the run's seed; 0
            for all 10 000.
    """

    root: str
    split: SplitConfig = field(
        default_factory=lambda: SplitConfig(
            labeled_head=100, labeled_ratio=50, unlabeled_head=1000, unlabeled_ratio=50
        )
    )
    validation_per_class: int = 0
    test_per_class: int = 0

    def __post_init__(self) -> None:
        for name in ("validation_per_class", "test_per_class"):
            if getattr(self, name) < 0:
                raise SettingsError(f"{name} must be 0 or more; got {getattr(self, name)}.")


def load(config: MnistConfig, seed: int) -> Splits:
    """Read the images and draw the validation, labelled, unlabelled and test ones."""
    arrays = _read(Path(config.root).expanduser())
    train, test = (
        _image_set(part, arrays[f"x_{part}"], arrays[f"y_{part}"], config.root) for part in PARTS
    )
    if config.test_per_class:
        test = test.subset(put_aside(test.labels, (config.test_per_class,), seed)[0])
    parts = put_aside(train.labels, (config.validation_per_class,), seed)
    validation, rest = (train.subset(part) for part in parts)
    return long_tailed_splits(
        rest, CLASS_NAMES, config.split, seed, validation=validation, test=test
    )


def _read(root: Path) -> dict[str, NDArray[Any]]:
    """Return the four arrays by the names of ``IDX_FILES``."""
    if not root.exists():
        raise DataError(
            f"MNIST is not at {root}. Pass its .npz file, or the folder of the four official "
            "files, as root=..."
        )
    if root.is_dir():
        return {name: _read_idx(root, file) for name, file in IDX_FILES.items()}
    arrays = read_npz(root, only=IDX_FILES)
    if missing := [name for name in IDX_FILES if name not in arrays]:
        raise DataError(
            f"{root} must have the arrays {', '.join(IDX_FILES)} of MNIST; missing: "
            f"{', '.join(missing)}."
        )
    return arrays


def _read_idx(folder: Path, name: str) -> NDArray[np.uint8]:
    """Read an idx file of bytes.

    It has two zeros, the type, the number of dimensions, each dimension as a big-endian int32, and
    then the values.
    """
    paths = [path for path in (folder / name, folder / f"{name}.gz") if path.is_file()]
    if not paths:
        raise DataError(
            f"MNIST is not in {folder}: there is no {name}, plain or .gz. Put the four official "
            "files there."
        )
    try:
        content = checked(paths[0]).read_bytes()
        content = gzip.decompress(content) if paths[0].suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{paths[0]} cannot be read: {error}. Fetch it again.") from error
    header = 4 + 4 * content[3] if len(content) > 3 and content[:3] == bytes((0, 0, BYTES)) else 0
    shape = np.frombuffer(content[4:header], ">i4").tolist() if 0 < header <= len(content) else []
    if not shape or min(shape) < 0 or len(content) != header + math.prod(shape):
        raise DataError(
            f"{paths[0]} is not an idx file of bytes, or was cut short. Fetch it again."
        )
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _image_set(part: str, pixels: NDArray[Any], labels: NDArray[Any], root: str) -> ImageSet:
    are_integers = labels.shape == pixels.shape[:1] and labels.dtype.kind in "iu"
    digits = set(np.unique(labels).tolist()) if are_integers else set()
    if digits != set(range(len(CLASS_NAMES))):
        raise DataError(
            f"The {part} labels of MNIST must be one digit for each of {len(pixels)} images, and "
            f"every digit must occur; {root} has {labels.dtype} labels of shape {labels.shape}, "
            f"{len(digits)} of them different."
        )
    names = [f"{part}/{i:05d}" for i in range(len(labels))]
    return ImageSet(ArrayImages(pixels), labels.astype(np.int64), names)
