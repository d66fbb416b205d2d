"""Files like those of CIFAR, and a split that suits twenty images of each class."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semigpc.data import CifarConfig, SplitConfig
from semigpc.data.cifar import FORMS

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
    records[:, 0] = (
        # which is a coarse label of CIFAR-100; in CIFAR-10 there is none, and the next line
        # overwrites it
        19
    )
    records[:, form.label_bytes - 1] = labels
    records[: len(pixels), form.label_bytes :] = pixels.transpose(0, 3, 1, 2).reshape(
        len(pixels), -1
    )
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
