"""Images in NumPy arrays, in memory or in an ``.npz`` file."""

import lzma
import math
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from semigpc.data.dataset import ImageSet, Splits, integers
from semigpc.data.splits import carve_validation, no_validation
from semigpc.io.errors import DataError, SettingsError
from semigpc.io.images import ArrayImages
from semigpc.io.paths import checked
from semigpc.io.text import listed

REQUIRED = ("x_labeled", "y_labeled", "x_unlabeled")
OPTIONAL = ("y_unlabeled_truth", "unlabeled_out", "x_val", "y_val", "x_test", "y_test")
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# Exceptions of zipfile and NumPy for a file that was cut short, changed or encrypted.
NPZ_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    RuntimeError,
    SyntaxError,
    MemoryError,
    tokenize.TokenError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


@dataclass(frozen=True, kw_only=True)
class ArraysConfig:
    """A file of ``numpy.savez`` with the arrays of :func:`splits_from_arrays`, named as there.

    Args:
        path: the ``.npz`` file.
        class_names: in label order; the numbers themselves if left out.
        validation: fraction of the labels to hold out, if the file has no ``x_val``.
    """

    path: str
    class_names: tuple[str, ...] = ()
    validation: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 1:
            raise SettingsError(
                f"validation must be a fraction in [0, 1) of the labels; got {self.validation}."
            )


def load(config: ArraysConfig, seed: int) -> Splits:
    """Read the file; objects that would need unpickling are an error."""
    path = Path(config.path).expanduser()
    arrays = read_npz(path)
    missing = [name for name in REQUIRED if name not in arrays]
    unknown = [name for name in arrays if name not in (*REQUIRED, *OPTIONAL)]
    if missing or unknown:
        raise DataError(
            f"{path} must have {', '.join(REQUIRED)} and may have {', '.join(OPTIONAL)}; missing: "
            f"{listed(missing) or 'none'}, unknown: {listed(unknown) or 'none'}. Rename the "
            "arrays; without unlabelled images, add an empty x_unlabeled."
        )
    return splits_from_arrays(
        **arrays, class_names=config.class_names, validation=config.validation, seed=seed
    )


def read_npz(path: Path, only: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """Read the arrays of a file of ``numpy.savez`` by name, or ``only`` some of them.

    Single values, which have no rows, are left out. Numbers get the byte order of this machine.
    Nothing is unpickled. The size that a header claims is compared with the bytes of the file
    before memory is allocated.

    Raises:
        DataError: it does not exist, is damaged, contains objects, or is larger than the memory of
            this machine.
    """
    try:
        with zipfile.ZipFile(checked(path)) as file:
            members = {name.removesuffix(".npy"): name for name in file.namelist()}
            if only is not None:
                members = {name: members[name] for name in only if name in members}
            needed = sum(file.getinfo(name).file_size for name in members.values())
            memory = math.inf
            if hasattr(os, "sysconf"):
                memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
            if needed > memory:
                raise MemoryError(
                    f"its arrays take {needed / 1e9:.1f} GB, more than the memory of this machine "
                    f"({memory / 1e9:.1f} GB)"
                )
            arrays = {name: _read_array(file, member) for name, member in members.items()}
            return {name: array for name, array in arrays.items() if array.ndim}
    except FileNotFoundError as error:
        raise DataError(f"There is no file {path}. Check the path.") from error
    except NPZ_ERRORS as error:
        if isinstance(error, DataError):
            raise
        reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        raise DataError(
            f"{path} cannot be read: {reason}. Write plain arrays with numpy.savez."
        ) from error


def _read_array(file: zipfile.ZipFile, member: str) -> NDArray[Any]:
    with file.open(member) as stream:
        header = HEADERS.get(npy.read_magic(stream))
        if header is None:
            raise ValueError(f"{member} is not in the format of plain arrays")
        shape, _, dtype = header(stream)
        claimed = math.prod(shape) * dtype.itemsize
        there = file.getinfo(member).file_size - stream.tell()
    if dtype.hasobject:
        raise ValueError(f"{member} holds Python objects, which are not unpickled")
    if claimed != there:
        raise ValueError(
            f"{member} claims {claimed} bytes, {dtype} of shape {shape}, and it has {there}"
        )
    with file.open(member) as stream:
        array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def splits_from_arrays(
    x_labeled: NDArray[Any],
    y_labeled: NDArray[Any],
    x_unlabeled: NDArray[Any] | None = None,
    *,
    y_unlabeled_truth: NDArray[Any] | None = None,
    unlabeled_out: NDArray[Any] | None = None,
    x_val: NDArray[Any] | None = None,
    y_val: NDArray[Any] | None = None,
    x_test: NDArray[Any] | None = None,
    y_test: NDArray[Any] | None = None,
    class_names: tuple[str, ...] = (),
    validation: float = 0.0,
    seed: int = 0,
) -> Splits:
    """Return splits of images that are already in memory; the arrays are shared, not copied.

    Unlabelled images are either ``x_unlabeled`` or the rows of ``x_labeled`` with label -1.

    Args:
        x_labeled: (n, H, W, 3) or (n, H, W) bytes, like every other x.
        y_labeled: (n,) classes 0 .. C - 1, or -1.
        x_unlabeled: u images.
        y_unlabeled_truth: (u,) for diagnostics only.
        unlabeled_out: (u,) booleans, true for images of none of the classes; diagnostics only.
        x_val, y_val, x_test, y_test: for validation and test.
        class_names: C of them; the numbers 0 .. max(y) if left out.
        validation: fraction of the labels to hold out, if there is no ``x_val``.
        seed: decides which.
    """
    labeled, unlabeled = labeled_and_unlabeled(x_labeled, y_labeled, x_unlabeled)
    truth = np.full(len(unlabeled), -1) if y_unlabeled_truth is None else y_unlabeled_truth
    test = _image_set("test", x_test, y_test)
    held_out = _image_set("val", x_val, y_val)
    notes = []
    if held_out is None and validation > 0:
        kept, carved = carve_validation(labeled.labels, validation, seed)
        held_out = labeled.subset(carved) if len(carved) else None
        labeled = labeled.subset(kept)
        notes += [] if len(carved) else [no_validation(validation)]
    return Splits(
        labeled=labeled,
        unlabeled=unlabeled.without_labels(),
        unlabeled_truth=integers(truth, "y_unlabeled_truth"),
        validation=held_out,
        test=test,
        class_names=class_names or _numbers(labeled, held_out, test),
        unlabeled_out=None if unlabeled_out is None else np.asarray(unlabeled_out),
        notes=tuple(notes),
    )


def labeled_and_unlabeled(
    x_labeled: NDArray[Any], y_labeled: NDArray[Any], x_unlabeled: NDArray[Any] | None = None
) -> tuple[ImageSet, ImageSet]:
    """Return images with and without a label, as :func:`splits_from_arrays` takes them.

    Both are named by their array and their row in it.
    """
    labeled = _image_set("labeled", x_labeled, y_labeled)
    if labeled is None:
        raise DataError("x_labeled and y_labeled must be given.")
    if x_unlabeled is None or not len(x_unlabeled):
        x_unlabeled = x_labeled[:0]
    bare = np.flatnonzero(labeled.labels < 0)
    if not len(bare):
        return labeled, unlabeled_images(x_unlabeled)
    if len(x_unlabeled):
        raise DataError(
            f"{len(bare)} rows of y_labeled are -1, unlabelled, and x_unlabeled has "
            f"{len(x_unlabeled)} more images. Pass unlabelled images in one of the two ways."
        )
    return labeled.subset(np.flatnonzero(labeled.labels >= 0)), labeled.subset(bare)


def unlabeled_images(x_unlabeled: NDArray[Any]) -> ImageSet:
    """Return images without labels, named by their array and their row in it."""
    return _named("unlabeled", x_unlabeled, np.full(len(x_unlabeled), -1))


def _numbers(labeled: ImageSet, *others: ImageSet | None) -> tuple[str, ...]:
    """Return class names 0, 1, ... up to the largest label.

    Raises:
        DataError: there are more than labelled images, and each class needs one.
    """
    parts = [part for part in (labeled, *others) if part is not None]
    largest = max(int(part.labels.max(initial=-1)) for part in parts)
    if largest >= len(labeled) > 0:
        raise DataError(
            f"Every class from 0 on needs a labelled image; got the label {largest} and "
            f"{len(labeled)} labelled images. Number the classes without gaps."
        )
    return tuple(str(c) for c in range(largest + 1))


def _image_set(part: str, x: NDArray[Any] | None, y: NDArray[Any] | None) -> ImageSet | None:
    """Return the images of a part with their labels, or None if both are None."""
    if x is None and y is None:
        return None
    if x is None or y is None or len(x) != len(y):
        sizes = ["no array" if array is None else str(len(array)) for array in (x, y)]
        raise DataError(
            f"x_{part} and y_{part} must be given together and equally long; got {sizes[0]} and "
            f"{sizes[1]}."
        )
    labels = np.asarray(y)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise DataError(
            f"y_{part} must be a vector of integers, 0 to classes - 1; got {labels.dtype} of shape "
            f"{labels.shape}. Number the classes with numpy.unique(y, return_inverse=True)."
        )
    if len(labels) and labels.min() < -1:
        raise DataError(
            f"y_{part} must hold classes from 0 on, or -1 for unlabelled; got {labels.min()}."
        )
    return _named(part, x, labels)


def _named(part: str, x: NDArray[Any], labels: NDArray[Any]) -> ImageSet:
    return ImageSet(ArrayImages(x), labels, [f"x_{part}/{i}" for i in range(len(x))])
