"""The published split files of the fine-grained sets, whole or cut short, with an image for every
path they list.
"""

import os
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from semigpc.paper.fgvc import BENCHMARKS
from tests.data.samples import random_image

PUBLISHED = Path(__file__).parents[3] / "shared" / "data" / "fgvc_splits"
LINKS = 40_000  # to one file, of which a file system allows so many
NAMES = tuple(BENCHMARKS)

needs_published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason=f"the published split files are not in {PUBLISHED}"
)


def lines(name: str, split: str) -> list[str]:
    return (PUBLISHED / name / f"{split}.txt").read_text().splitlines()


def write_lines(path: Path, rows: Iterable[str], end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{row}{end}" for row in rows).encode())
    return path


def write_images_of(folder: Path, rows: Iterable[str]) -> None:
    """A tiny image wherever the lines of a split file say; all of them are one, linked."""
    folder.mkdir(parents=True, exist_ok=True)
    made: set[str] = set()
    for i, row in enumerate(rows):
        if i % LINKS == 0:
            source = folder / f"source_{i}.jpg"
            random_image(20, 18, np.random.default_rng(i)).save(source, format="jpeg")
        name = row.rpartition(" ")[0]
        parent = name.rpartition("/")[0]
        if parent not in made:
            (folder / parent).mkdir(parents=True, exist_ok=True)
            made.add(parent)
        os.link(source, f"{folder}/{name}")


def first_of_each(rows: Iterable[str], most: int) -> list[str]:
    """The first lines of each label."""
    seen: Counter[str] = Counter()
    kept = []
    for row in rows:
        label = row.rpartition(" ")[2]
        seen[label] += 1
        if seen[label] <= most:
            kept.append(row)
    return kept


def write_small_set(root: Path, name: str, *, each: int = 1, unlabeled: int = 40) -> Path:
    """A set in ``root/name`` with ``each`` published lines a class in every labelled part, and a
    few unlabelled ones.

    Semi-iNat's lists of unlabelled images are not stored here, so its lines are made up.
    """
    folder = root / name
    parts = {split: first_of_each(lines(name, split), each) for split in ("l_train_val", "test")}
    for part in ("in", "out"):
        made_up = [f"u_train/{part}{i}.jpg {-1 if i % 2 else i}" for i in range(unlabeled)]
        listed = made_up if name == "semi_inat" else lines(name, f"u_train_{part}")[:unlabeled]
        parts[f"u_train_{part}"] = listed
    for split, rows in parts.items():
        write_lines(folder / f"{split}.txt", rows)
    if "u_train_in_oracle" in BENCHMARKS[name].files:
        write_lines(folder / "u_train_in_oracle.txt", lines(name, "u_train_in_oracle"))
    write_images_of(folder / BENCHMARKS[name].image_folder, chain(*parts.values()))
    return folder


def write_made_up_set(root: Path, *, unlabeled: int = 7) -> Path:
    """``root/cub`` with two labelled and two test images of each of its classes; needs no published
    file.
    """
    folder = root / "cub"

    def listed(part: str, classes: int, each: int) -> list[str]:
        """Paths with a space, as SemiFungi has."""
        return [
            f"{2 * c + 1:03d}.Bird_{2 * c + 1}/{part} {i}.jpg {c}"
            for c in range(classes)
            for i in range(each)
        ]

    classes = BENCHMARKS["cub"].classes
    rows = {split: listed(split, classes, 2) for split in ("l_train_val", "test")}
    rows["u_train_in"] = listed("u", unlabeled, 1)
    for split, own in rows.items():
        write_lines(folder / f"{split}.txt", own)
    write_images_of(folder / "images", chain(*rows.values()))
    return folder
