"""A practitioner's folder, made of scikit-learn's digits: three classes, few labels."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits

CLASSES = {"zero": 0, "one": 1, "two": 2}
SIDE = 16


def pixels(name: str, count: int, skip: int = 0) -> NDArray[np.uint8]:
    """``count`` images of a class, (count, 16, 16) bytes."""
    digits = load_digits()
    chosen = digits.images[digits.target == CLASSES[name]][skip : skip + count]
    return np.kron(np.rint(chosen * 255 / 16), np.ones((1, SIDE // 8, SIDE // 8))).astype(np.uint8)


def make_folder(
    root: Path,
    *,
    labels: tuple[int, int, int] = (6, 5, 3),
    unlabeled: int = 12,
    test: int = 5,
    side: int = SIDE,
) -> Path:
    """Return ``root/photos``; beside it are ``labels.csv`` and ``test.csv``."""
    photos = root / "photos"
    photos.mkdir(parents=True)
    known: list[tuple[str, str]] = []
    judged: list[tuple[str, str]] = []
    for (name, _), n in zip(CLASSES.items(), labels, strict=True):
        for i, image in enumerate(pixels(name, n + unlabeled + test)):
            file = f"{name[0]}{name[1]}_{i:02d}.png"
            Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC).save(
                photos / file
            )
            if i < n:
                known.append((file, name))
            elif i < n + unlabeled:
                known.append((file, ""))
            else:
                judged.append((file, name))
    write_table(root / "labels.csv", known)
    write_table(root / "test.csv", judged)
    return photos


def write_table(path: Path, rows: list[tuple[str, str]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("file_name", "label"), *rows])


def make_class_folders(
    root: Path, counts: dict[str, int], *, unlabeled: int = 0, skip: int = 0
) -> Path:
    """One sub-folder for each class, and ``unlabeled`` images of each in a folder of that name."""
    for name, count in counts.items():
        for i, image in enumerate(pixels(name, count + unlabeled, skip)):
            folder = root / (name if i < count else "unlabeled")
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{name}{i:02d}.png")
    return root
