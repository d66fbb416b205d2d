"""Images given to a finished run: with labels to judge it by, or without, to be labelled."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semigpc.data import ArraysConfig, DataError, ImageSet
from semigpc.data.arrays import read_npz
from semigpc.data.dataset import listed
from semigpc.data.folder import class_folders, from_table
from semigpc.data.images import ArrayImages, FileImages
from semigpc.data.paths import Bad, checked, existing, refuse, sorted_images
from semigpc.data.tables import is_table
from semigpc.training.inference import LoadedRun


def images_to_judge(
    run: LoadedRun, data: Path, labels: Path | None = None, *, partial: bool = False, follow_links: bool = False
) -> ImageSet:
    """Labelled images, with their classes found by name among those of the run.

    Args:
        run: whose classes count.
        data: a folder of class folders, a table beside its images, or an ``.npz`` file with x_test and y_test.
        labels: a table for a folder whose sub-folders are no classes; rows without a label are passed over.
        partial: let classes of the run be absent.
        follow_links: use links that lead out of the folder.
    """
    path = existing(data, "The data to judge by")
    images = _from_arrays(run, path, labels) if path.suffix == ".npz" else _from_files(run, path, labels, follow_links)
    present = set(images.labels.tolist())
    absent = [name for c, name in enumerate(run.class_names) if c not in present]
    if absent and not partial:
        raise DataError(
            f"the run knows {len(run.class_names)} classes, and {data} has images of {len(present)}: none of "
            f"{listed(absent)}. Add some, or say --partial to judge by the classes that are there."
        )
    return images


def images_at(paths: Sequence[Path], *, follow_links: bool = False, skipped: list[Bad] | None = None) -> ImageSet:
    """Files, and every image below folders, without labels; each once, in the order given.

    Args:
        paths: what was asked for.
        follow_links: use links that lead out of a folder.
        skipped: filled with what cannot be used in folders, each with the reason, instead of an error.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if checked(path).is_dir():
            names, bad = sorted_images(path, follow_links=follow_links)
            if skipped is None:
                refuse(bad, path)
            else:
                skipped += bad
            if not names:
                raise DataError(f"There is no image below {path}.")
            files |= dict.fromkeys(path / name for name in names)
        elif path.is_file():
            files[path] = None
        else:
            raise DataError(f"There is no image and no folder {path}. Check the path.")
    return ImageSet(FileImages(list(files)), np.full(len(files), -1), [str(path) for path in files])


def _from_files(run: LoadedRun, path: Path, labels: Path | None, follow_links: bool) -> ImageSet:
    if labels is not None:
        table = existing(labels, "The table of labels", path)
        listing = from_table(table, path, follow_links=follow_links)
    elif is_table(path):
        listing = from_table(path, path.parent, follow_links=follow_links)
    else:
        unlabeled = getattr(run.experiment.data, "unlabeled", None)  # a sub-folder that training took for no class either
        listing = class_folders(path, unlabeled=unlabeled, follow_links=follow_links)
    named = {name: label for name, label in listing.labels.items() if label is not None}
    if not named:
        raise DataError(f"{labels or path} has no labelled image to judge by. Fill in the labels.")
    numbers = _numbers(run, list(named.values()))
    return ImageSet(FileImages([listing.root / name for name in named]), numbers, list(named))


def _from_arrays(run: LoadedRun, path: Path, labels: Path | None) -> ImageSet:
    if labels is not None:
        raise DataError(f"{path} holds its own labels, y_test; leave --labels out.")
    arrays = read_npz(path, ("x_test", "y_test"))
    if len(arrays) < 2:
        raise DataError(f"{path} must hold x_test and y_test to judge by; it has {listed(list(arrays)) or 'neither'}.")
    x, y = arrays["x_test"], arrays["y_test"]
    if y.ndim != 1 or y.dtype.kind not in "iu" or len(x) != len(y) or not len(y) or y.min() < 0:
        raise DataError(f"y_test must hold one class, 0 or more, for each of the {len(x)} images; got {y.dtype} {y.shape}.")
    names = [str(c) for c in y.tolist()]
    if isinstance(run.experiment.data, ArraysConfig):  # classes are numbers there, whatever they are called
        names = [run.class_names[c] if c < len(run.class_names) else str(c) for c in y.tolist()]
    return ImageSet(ArrayImages(x), _numbers(run, names), [f"x_test/{i}" for i in range(len(x))])


def _numbers(run: LoadedRun, names: Sequence[str]) -> NDArray[np.int64]:
    known = {name: c for c, name in enumerate(run.class_names)}
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise DataError(
            f"the data have images of {listed(unknown)}, which the run does not know; it was trained on "
            f"{listed(run.class_names)}. Rename the class, leave it out, or train with it."
        )
    return np.array([known[name] for name in names], dtype=np.int64)
