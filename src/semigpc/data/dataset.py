"""Sets of images, and the splits that a run trains and is evaluated on."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semigpc.io.content import MARK_BYTES
from semigpc.io.errors import DataError
from semigpc.io.images import Images
from semigpc.io.text import listed

Integers = NDArray[np.int64]


class ImageSet:
    """Images with their labels and names.

    ``images`` is the whole pool, shared by all sets that are cut from it; ``positions`` are the
    positions in it of this set's images: ``self[i]`` is ``images[positions[i]]``. View sources
    store prepared images in ``kept``, each under a key of its own.

    Args:
        images: the pool, P images.
        labels: (n,) integers, -1 where the class is not known.
        names: (n,) such as paths relative to the root of the data, the same on every machine.
        positions: (n,) in [0, P): all of the pool, in order, if left out. They identify an image
            throughout a run.
    """

    def __init__(
        self,
        images: Images,
        labels: NDArray[Any],
        names: Sequence[str],
        positions: NDArray[Any] | None = None,
    ) -> None:
        self.images = images
        whole = np.arange(len(images))
        self.positions = integers(whole if positions is None else positions, "positions")
        self.labels = integers(labels, "labels")
        self.names = tuple(names)
        self.kept: dict[str, Any] = {}
        lengths = len(self.positions), len(self.labels), len(self.names)
        if len(set(lengths)) > 1:
            raise ValueError(f"images, labels and names must have the same length; got {lengths}.")
        if len(self) and not 0 <= self.positions.min() <= self.positions.max() < len(images):
            raise ValueError(
                f"positions must lie in [0, {len(images)}), the size of the pool; got "
                f"{self.positions.min()}..{self.positions.max()}."
            )

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Image.Image:
        """Return image ``index`` of this set, RGB."""
        return self.images[int(self.positions[index])]

    def read(self, index: int, at_least: int) -> Image.Image:
        """Return image ``index``, smaller if that is faster, but not below ``at_least`` a side."""
        return self.images.read(int(self.positions[index]), at_least=at_least)

    @cached_property
    def marks(self) -> list[bytes]:
        """The mark of each image's content; all of them are read for it, once."""
        return [self.images.mark(position) for position in self.positions.tolist()]

    def subset(self, indices: NDArray[Any]) -> "ImageSet":
        """Return the images at ``indices`` (m,), in that order, from the same pool."""
        chosen = integers(indices, "indices")
        names = [self.names[i] for i in chosen]
        return ImageSet(self.images, self.labels[chosen], names, self.positions[chosen])

    def without_labels(self) -> "ImageSet":
        """Return the same images with every label -1."""
        return ImageSet(self.images, np.full(len(self), -1), self.names, self.positions)


def integers(values: NDArray[Any], name: str) -> Integers:
    """Return a vector as int64, or raise a DataError that says what ``name`` must be."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise DataError(
            f"{name} must be a vector of integers; got {array.dtype} of shape {array.shape}."
        )
    if array.size and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"{name} must be below 2**63; got {array.max()}. Number them from 0.")
    return array.astype(np.int64) if array.size else np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Splits:
    """The parts of a data set that one run uses.

    Args:
        labeled: n images with labels in [0, C), every class at least once.
        unlabeled: u images whose labels are all -1, so that no true label can reach a loss; may be
            empty, and may share images with ``labeled``.
        unlabeled_truth: (u,) their classes, for diagnostics only; -1 where they are unknown.
        class_names: C of them, in label order.
        validation: images to choose a checkpoint by, if any.
        test: images to report figures on, if any.
        notes: messages for the owner of the data.
        unlabeled_out: (u,) which of the unlabelled images belong to none of the classes, for
            diagnostics only; None if unknown. Their truth is -1.
    """

    labeled: ImageSet
    unlabeled: ImageSet
    unlabeled_truth: Integers
    class_names: tuple[str, ...]
    validation: ImageSet | None = None
    test: ImageSet | None = None
    notes: tuple[str, ...] = ()
    unlabeled_out: NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        if self.n_classes < 2:
            raise DataError(
                "A classifier needs at least two classes; the labels name "
                f"{listed(self.class_names) or 'none'}. Label images of two classes or more."
            )
        self._check_unlabeled()
        for part, image_set in self.parts():
            if part != "unlabeled":
                self._check_part(part, image_set)
        absent = self._classes_with(labels=0)
        if absent:
            raise DataError(
                "Every class needs at least one labelled image; there is none of "
                f"{listed(absent)}. Label one, remove the class from the data, or number the "
                "classes of arrays without gaps."
            )
        single = self._classes_with(labels=1)
        if single:
            note = f"Classes with a single labelled image: {listed(single)}."
            notes = tuple(dict.fromkeys((*self.notes, note)))  # once, also in a copy
            object.__setattr__(self, "notes", notes)

    def _check_unlabeled(self) -> None:
        if (self.unlabeled.labels != -1).any():
            raise ValueError(
                "unlabeled must have no labels; pass unlabeled.without_labels(), and the labels as "
                "unlabeled_truth."
            )
        count = len(self.unlabeled)
        if self.unlabeled_truth.shape != (count,):
            raise DataError(
                f"unlabeled_truth must have one entry for each of the {count} unlabelled images; "
                f"got {len(self.unlabeled_truth)}."
            )
        outside = self.unlabeled_out
        if outside is None:
            return
        if outside.shape != (count,) or outside.dtype != np.bool_:
            raise DataError(
                f"unlabeled_out must be booleans, one for each of the {count} unlabelled images; "
                f"got {outside.dtype} of shape {outside.shape}."
            )
        if contradictions := int((self.unlabeled_truth[outside] >= 0).sum()):
            raise DataError(
                "An image that belongs to none of the classes has no true class; unlabeled_truth "
                f"names one for {contradictions} of those that unlabeled_out marks. Put -1 there."
            )

    def _check_part(self, part: str, image_set: ImageSet) -> None:
        if not len(image_set):
            raise DataError(
                f"The {part} part has no images. Add some, or leave the part out if it is not "
                "needed."
            )
        low = image_set.labels.min()
        high = image_set.labels.max()
        if low < 0 or high >= self.n_classes:
            raise DataError(
                f"Labels of the {part} part must lie in [0, {self.n_classes}), the number of "
                f"classes; got {low}..{high}."
            )

    def _classes_with(self, *, labels: int) -> list[str]:
        """Return the names of the classes that have this many labelled images."""
        return [self.class_names[c] for c in np.flatnonzero(self.class_counts == labels)]

    @property
    def n_classes(self) -> int:
        """C."""
        return len(self.class_names)

    @cached_property
    def class_counts(self) -> Integers:
        """(C,) labelled images of each class."""
        return np.bincount(self.labeled.labels, minlength=self.n_classes).astype(np.int64)

    @cached_property
    def sha256(self) -> str:
        """A hash of which images are in which part with which label, the same on every machine.

        It covers names, positions and labels; not pixels (see :attr:`ImageSet.marks`), the truth
        of unlabelled images, or paths of this machine.
        """
        digest = hashlib.sha256("\n".join(self.class_names).encode())
        for part, image_set in self.parts():
            digest.update(f"\n\n{part} {len(image_set)}\n".encode())
            digest.update("\n".join(image_set.names).encode())
            digest.update(image_set.positions.astype("<i8").tobytes())
            digest.update(image_set.labels.astype("<i8").tobytes())
        return digest.hexdigest()

    def parts(self) -> Iterator[tuple[str, ImageSet]]:
        """Yield name and images of each part that exists."""
        yield "labeled", self.labeled
        yield "unlabeled", self.unlabeled
        if self.validation is not None:
            yield "validation", self.validation
        if self.test is not None:
            yield "test", self.test

    def indices(self) -> dict[str, NDArray[Any]]:
        """Return positions, names and marks of each part's images, as arrays to be saved."""
        arrays: dict[str, NDArray[Any]] = {}
        for part, image_set in self.parts():
            arrays[part] = image_set.positions
            arrays[f"{part}_names"] = np.array(image_set.names, dtype=np.str_)
            marks = np.frombuffer(b"".join(image_set.marks), np.uint8)
            arrays[f"{part}_marks"] = marks.reshape(-1, MARK_BYTES)
        return arrays
