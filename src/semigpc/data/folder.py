"""Images in a folder: one sub-folder for each class, or a table with the label of each image."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from semigpc.data.dataset import ImageSet, Splits
from semigpc.data.splits import SplitConfig, carve_validation, long_tail_split, no_validation
from semigpc.io.errors import DataError, SettingsError
from semigpc.io.images import GIGABYTE, FileImages
from semigpc.io.paths import (
    EXTENSIONS,
    NOT_THERE,
    Bad,
    existing,
    images_below,
    is_image_name,
    leads_out,
    reject_bad,
    sorted_images,
    unusable,
)
from semigpc.io.tables import is_table, label_text, read_labels
from semigpc.io.text import listed, nearly_equal, ordered, printable


@dataclass(frozen=True, kw_only=True)
class FolderConfig:
    """Where the images are and where their labels come from.

    Args:
        root: the folder of the images.
        labels: a CSV or Parquet file with the columns ``file_name`` (relative to root) and
            ``label`` (empty for none). Without it, every sub-folder of root is a class and all its
            images are labelled.
        trust_pseudo: take labels of tables that semigpc itself gave out or predicted.
        unlabeled: the sub-folder that is not a class but has unlabelled images; only without
            ``labels``.
        unlisted: whether images below root that ``labels`` does not list are "unlabeled" or
            "ignored".
        split: makes a long-tailed benchmark of images that are all labelled.
        test: a folder of class folders, or a table like ``labels`` with a label in every row.
        validation: the same, or the fraction of the labels to hold out.
        cache_bytes: largest temporary file for decoded images, per part of the data and kind of
            view.
        follow_links: use links that lead out of root, which are an error otherwise.

    Paths of tables and folders may also be given relative to root. Images of test and validation
    are never trained on, not even without their labels. Classes are numbered in the order of their
    names, or of their values if all are integers.
    """

    root: str
    labels: str | None = None
    trust_pseudo: bool = False
    unlabeled: str = "unlabeled"
    unlisted: Literal["unlabeled", "ignored"] = "unlabeled"
    split: SplitConfig | None = None
    test: str | None = None
    validation: float | str = 0.0
    cache_bytes: int = 2 * GIGABYTE
    follow_links: bool = False

    def __post_init__(self) -> None:
        if self.unlisted not in ("unlabeled", "ignored"):
            raise SettingsError(
                f"unlisted must be 'unlabeled' or 'ignored'; got {self.unlisted!r}."
            )
        if not isinstance(self.validation, str) and not 0 <= self.validation < 1:
            raise SettingsError(
                "validation must be a path, or a fraction in [0, 1) of the labels; got "
                f"{self.validation}."
            )
        if self.cache_bytes < 0:
            raise SettingsError(f"cache_bytes must be 0 or more; got {self.cache_bytes}.")


def load(config: FolderConfig, seed: int) -> Splits:
    """List the images and their labels; an image is decoded when it is first used."""
    parts = _list_parts(config)
    training = parts["training"]
    class_names = ordered(training.classes)
    sets = _image_sets(parts, class_names, config.cache_bytes)
    pool = sets.pop("training")
    notes = [*training.notes, *nearly_equal(class_names)]

    labeled = np.flatnonzero(pool.labels >= 0)
    unlabeled = np.flatnonzero(pool.labels < 0)
    if not isinstance(config.validation, str) and config.validation > 0:
        # Before any split, so that no validation image is among the unlabelled ones.
        kept, validation = carve_validation(pool.labels[labeled], config.validation, seed)
        if len(validation):
            sets["validation"] = pool.subset(labeled[validation])
        else:
            notes.append(no_validation(config.validation))
        labeled = labeled[kept]
    if config.split is not None:
        if len(unlabeled):
            raise DataError(
                f"split makes a benchmark of images that are all labelled; {len(unlabeled)} are "
                f"not, such as {pool.names[unlabeled[0]]}. Leave split out, or label, ignore or "
                "remove them."
            )
        split = long_tail_split(pool.labels[labeled], len(class_names), config.split, seed)
        unlabeled = labeled[split.unlabeled]
        labeled = labeled[split.labeled]
    drawn = pool.subset(unlabeled)
    return Splits(
        labeled=pool.subset(labeled),
        unlabeled=drawn.without_labels(),
        unlabeled_truth=drawn.labels,
        validation=sets.get("validation"),
        test=sets.get("test"),
        class_names=class_names,
        notes=tuple(notes),
    )


@dataclass(frozen=True)
class Listing:
    """Names of images below ``root``, with forward slashes, each with its class or None.

    ``classes`` are all classes, also those of empty folders; ``notes`` are for the user.
    """

    root: Path
    labels: dict[str, str | None]
    classes: frozenset[str]
    notes: tuple[str, ...] = ()

    def paths(self) -> list[Path]:
        """Return the paths of the images."""
        return [self.root / name for name in self.labels]


def _list_parts(config: FolderConfig) -> dict[str, Listing]:
    """List the training images and the parts given as a path; no image is in two of them."""
    root = existing(config.root, "The folder of the images")
    held_out = {
        part: _list_held_out(place, root, part, config)
        for part, place in (("validation", config.validation), ("test", config.test))
        if isinstance(place, str)
    }
    if config.labels is None:
        skip = [listing.root for listing in held_out.values()]  # a test folder is not a class
        training = class_folders(
            root, unlabeled=config.unlabeled, skip=skip, follow_links=config.follow_links
        )
    else:
        table = existing(config.labels, "The table of labels", root)
        training = from_table(
            table,
            root,
            unlisted=config.unlisted == "unlabeled",
            follow_links=config.follow_links,
            trust_pseudo=config.trust_pseudo,
        )
    for part, listing in held_out.items():
        others = set(listing.paths())
        labels = {
            name: label
            for name, label in training.labels.items()
            if training.root / name not in others
        }
        if removed := len(training.labels) - len(labels):
            note = f"Images that are not trained on, since they are in the {part} part: {removed}."
            training = replace(training, labels=labels, notes=(*training.notes, note))
    if len(held_out) == 2:
        shared = set(held_out["validation"].paths()) & set(held_out["test"].paths())
        if shared:
            raise DataError(
                "Validation and test must not share images, or the test result is biased; "
                f"{len(shared)} are in both, such as {min(shared)}. Remove them from one."
            )
    return {"training": training, **held_out}


def _image_sets(
    parts: dict[str, Listing], class_names: tuple[str, ...], cache_bytes: int
) -> dict[str, ImageSet]:
    """Return one set for each part, all of one pool: a position identifies an image."""
    numbers: dict[str | None, int] = {None: -1}
    numbers |= {name: number for number, name in enumerate(class_names)}
    paths = [path for listing in parts.values() for path in listing.paths()]
    images = FileImages(paths, cache_bytes=cache_bytes)
    sets: dict[str, ImageSet] = {}
    first = 0
    for part, listing in parts.items():
        unknown = sorted(label for label in {*listing.labels.values()} - {*numbers} if label)
        if unknown:
            raise DataError(
                f"The {part} part has images of {listed(unknown)}, which is not a class of the "
                f"training labels ({listed(class_names)}). Label training images of it, or remove "
                f"it from the {part} part."
            )
        positions = np.arange(first, first + len(listing.labels))
        labels = np.array([numbers[label] for label in listing.labels.values()], dtype=np.int64)
        sets[part] = ImageSet(images, labels, list(listing.labels), positions)
        first += len(listing.labels)
    return sets


def class_folders(
    folder: Path,
    *,
    unlabeled: str | None = None,
    skip: Collection[Path] = (),
    follow_links: bool = False,
) -> Listing:
    """List images by class: every sub-folder is one, except ``unlabeled`` and those to ``skip``.

    Images may lie deeper inside. A sub-folder whose name stands for no label, such as -1, has
    unlabelled images, too.
    """
    if not folder.is_dir():
        raise DataError(
            f"{folder} must be a folder with one sub-folder for each class; it is a file."
        )
    inside = sorted(
        path
        for path in folder.iterdir()
        if path.is_dir() and not path.name.startswith(".") and path not in skip
    )
    classes = {
        path.name: None if path.name == unlabeled else label_text(path.name) for path in inside
    }
    names = _names_below(folder, inside, follow_links=follow_links)
    class_names = frozenset(name for name in classes.values() if name is not None)
    if not class_names:
        raise DataError(
            f"{folder} has no class folders. Make one sub-folder for each class and put its images "
            "there, or pass a table of labels."
        )
    labels = {name: classes[name.partition("/")[0]] for name in names}
    if not labels:
        raise DataError(
            f"There are no images in the class folders of {folder}. Known endings: "
            f"{', '.join(sorted(EXTENSIONS))}."
        )
    return Listing(folder, labels, class_names, _loose_images(folder))


def _names_below(folder: Path, inside: Sequence[Path], *, follow_links: bool) -> list[str]:
    """Return the images of some sub-folders, relative to ``folder``; unusable ones are an error."""
    found: list[str] = []
    bad: list[Bad] = []
    for path in inside:
        outside = leads_out(path, folder.resolve())
        if outside is not None and not follow_links:
            bad.append((printable(path.name), outside))
            continue
        names, unread = sorted_images(path, folder, follow_links=follow_links)
        bad += [(f"{printable(path.name)}/{name}", reason) for name, reason in unread]
        found += [f"{path.name}/{name}" for name in names]
    reject_bad(bad, folder)
    return found


def _loose_images(folder: Path) -> tuple[str, ...]:
    """Return a note on images in the folder itself, if there are any."""
    loose = sum(1 for path in folder.iterdir() if is_image_name(path.name) and path.is_file())
    if not loose:
        return ()
    place = f"they lie in {folder.name} itself and in no class folder"
    return (f"Images that are not used, since {place}: {loose}.",)


def from_table(
    table: Path,
    root: Path,
    *,
    unlisted: bool = False,
    follow_links: bool = False,
    trust_pseudo: bool = False,
) -> Listing:
    """List the images of a table and, with ``unlisted``, all others below root without a label."""
    labels, notes, _ = read_labels(table, trust_pseudo=trust_pseudo)
    reasons = {name: unusable(root.resolve(), name, follow_links=follow_links) for name in labels}
    missing = [name for name, reason in reasons.items() if reason == NOT_THERE]
    if missing:
        raise DataError(
            f"{table} lists {len(missing)} images that are not below {root}: {listed(missing, 3)}. "
            "Names must be relative to that folder; correct them, add the files or delete the "
            "rows."
        )
    bad = [(printable(name), reason) for name, reason in reasons.items() if reason is not None]
    reject_bad(bad, table)
    classes = frozenset(label for label in labels.values() if label is not None)
    if unlisted:
        others = images_below(root, follow_links=follow_links)
        labels |= {name: None for name in others if name not in labels}
    return Listing(root, labels, classes, notes)


def _list_held_out(place: str, root: Path, part: str, config: FolderConfig) -> Listing:
    """List a validation or test part: a folder of class folders, or a table with all labels."""
    path = existing(place, f"The {part} part", root)
    if is_table(path):
        listing = from_table(
            path, root, follow_links=config.follow_links, trust_pseudo=config.trust_pseudo
        )
    else:
        listing = class_folders(path, follow_links=config.follow_links)
    bare = [name for name, label in listing.labels.items() if label is None]
    if bare:
        raise DataError(
            f"Every image of the {part} part needs a label; {len(bare)} in {path} have none: "
            f"{listed(bare, 3)}. {' '.join((*listing.notes, 'Label them or delete the rows.'))}"
        )
    return listing
