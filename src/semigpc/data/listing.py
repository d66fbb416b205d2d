"""Which images there are below a folder, and what each is labelled."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from semigpc.data.dataset import DataError, listed
from semigpc.data.paths import (
    EXTENSIONS,
    NOT_THERE,
    Bad,
    existing,
    images_below,
    is_image_name,
    leads_out,
    refuse,
    sorted_images,
    unusable,
)
from semigpc.data.tables import is_table, read_labels
from semigpc.text import label_text, printable


@dataclass(frozen=True)
class Listing:
    """Names of images below ``root``, with forward slashes, each with its class or None.

    ``classes`` are all classes that are meant to be there, also those of empty folders; ``notes`` are for the user.
    """

    root: Path
    labels: dict[str, str | None]
    classes: frozenset[str]
    notes: tuple[str, ...] = ()

    def paths(self) -> list[Path]:
        """The files."""
        return [self.root / name for name in self.labels]

    def without(self, other: "Listing", part: str) -> "Listing":
        """What is left when the images of ``other``, a part held out, are taken away."""
        held = set(other.paths())
        labels = {name: label for name, label in self.labels.items() if self.root / name not in held}
        taken = len(self.labels) - len(labels)
        if not taken:
            return self
        note = f"Images that are not trained on, since they are in the {part} part: {taken}."
        return replace(self, labels=labels, notes=(*self.notes, note))


def class_folders(
    folder: Path, *, unlabeled: str | None = None, skip: Collection[Path] = (), follow_links: bool = False
) -> Listing:
    """Every sub-folder is a class, except ``unlabeled`` and those to ``skip``; images may lie deeper inside.

    A sub-folder whose name stands for no label, such as -1, holds unlabelled images, too.
    """
    if not folder.is_dir():
        raise DataError(f"{folder} must be a folder with one sub-folder for each class; it is a file.")
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".") and path not in skip)
    classes = {path.name: None if path.name == unlabeled else label_text(path.name) for path in inside}
    labels: dict[str, str | None] = {}
    bad: list[Bad] = []
    for path in inside:
        outside = leads_out(path, folder.resolve())
        if outside is not None and not follow_links:
            bad.append((printable(path.name), outside))
            continue
        names, unread = sorted_images(path, folder, follow_links=follow_links)
        bad += [(f"{printable(path.name)}/{name}", reason) for name, reason in unread]
        labels |= {f"{path.name}/{name}": classes[path.name] for name in names}
    refuse(bad, folder)
    named = frozenset(name for name in classes.values() if name is not None)
    if not named:
        raise DataError(
            f"{folder} has no class folders. Make one sub-folder for each class and put its images there, "
            "or give a table of labels."
        )
    if not labels:
        raise DataError(
            f"There are no images in the class folders of {folder}. Known endings: {', '.join(sorted(EXTENSIONS))}."
        )
    loose = sum(1 for path in folder.iterdir() if is_image_name(path.name) and path.is_file())
    note = f"Images that are not used, since they lie in {folder.name} itself and in no class folder: {loose}."
    return Listing(folder, labels, named, (note,) if loose else ())


def from_table(table: Path, root: Path, *, unlisted: bool = False, follow_links: bool = False) -> Listing:
    """What a table says; with ``unlisted``, every other image below the root as well, without a label."""
    labels = read_labels(table)
    reasons = {name: unusable(root.resolve(), name, follow_links=follow_links) for name in labels}
    missing = [name for name, reason in reasons.items() if reason == NOT_THERE]
    if missing:
        raise DataError(
            f"{table} lists {len(missing)} images that are not below {root}: {listed(missing, 3)}. "
            "Names must be relative to that folder; mend them, put the files there or delete the rows."
        )
    refuse([(printable(name), reason) for name, reason in reasons.items() if reason is not None], table)
    classes = frozenset(label for label in labels.values() if label is not None)
    if unlisted:
        labels |= {name: None for name in images_below(root, follow_links=follow_links) if name not in labels}
    return Listing(root, labels, classes)


def held_out(given: str, root: Path, part: str, *, follow_links: bool = False) -> Listing:
    """A part to choose or to judge by: a folder of class folders, or a table with a label in every row."""
    path = existing(given, f"The {part} part", root)
    listing = (
        from_table(path, root, follow_links=follow_links) if is_table(path) else class_folders(path, follow_links=follow_links)
    )
    bare = [name for name, label in listing.labels.items() if label is None]
    if bare:
        raise DataError(
            f"Every image of the {part} part needs a label; {len(bare)} in {path} have none: {listed(bare, 3)}. "
            "Label them or delete the rows."
        )
    return listing
