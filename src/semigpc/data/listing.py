"""Which pictures there are below a folder, and what each is labelled."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from semigpc.data.dataset import DataError, listed
from semigpc.data.tables import is_table, read_labels

EXTENSIONS = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))


@dataclass(frozen=True)
class Listing:
    """Names of pictures below ``root``, with forward slashes, each with its class or None.

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
        """What is left when the pictures of ``other``, a part held out, are taken away."""
        held = set(other.paths())
        labels = {name: label for name, label in self.labels.items() if self.root / name not in held}
        taken = len(self.labels) - len(labels)
        if not taken:
            return self
        note = f"Pictures that are not trained on, since they are in the {part} part: {taken}."
        return replace(self, labels=labels, notes=(*self.notes, note))


def existing(path: str | Path, what: str, root: Path | None = None) -> Path:
    """The resolved path, tried as it is and then below ``root``."""
    places = [Path(path).expanduser(), *([root / path] if root else [])]
    for place in places:
        if place.exists():
            return place.resolve()
    raise DataError(f"{what} is not there: looked for {' and '.join(str(place) for place in places)}. Check the path.")


def class_folders(folder: Path, *, unlabeled: str | None = None, skip: Collection[Path] = ()) -> Listing:
    """Every sub-folder is a class, except ``unlabeled`` and those to ``skip``; pictures may lie deeper inside."""
    if not folder.is_dir():
        raise DataError(f"{folder} must be a folder with one sub-folder for each class; it is a file.")
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".") and path not in skip)
    labels: dict[str, str | None] = {}
    for path in inside:
        label = None if path.name == unlabeled else path.name
        labels |= {f"{path.name}/{name}": label for name in pictures_below(path)}
    classes = frozenset(path.name for path in inside if path.name != unlabeled)
    if not classes:
        raise DataError(
            f"{folder} has no class folders. Make one sub-folder for each class and put its pictures there, "
            "or give a table of labels."
        )
    if not labels:
        raise DataError(
            f"There are no pictures in the class folders of {folder}. Known endings: {', '.join(sorted(EXTENSIONS))}."
        )
    loose = sum(1 for path in folder.iterdir() if is_picture(path))
    note = f"Pictures that are not used, since they lie in {folder.name} itself and in no class folder: {loose}."
    return Listing(folder, labels, classes, (note,) if loose else ())


def from_table(table: Path, root: Path, *, unlisted: bool = False) -> Listing:
    """What a table says; with ``unlisted``, every other picture below the root as well, without a label."""
    labels = read_labels(table)
    missing = [name for name in labels if not (root / name).is_file()]
    if missing:
        raise DataError(
            f"{table} lists {len(missing)} pictures that are not below {root}: {listed(missing, 3)}. "
            "Names must be relative to that folder; mend them, put the files there or delete the rows."
        )
    classes = frozenset(label for label in labels.values() if label is not None)
    if unlisted:
        labels |= {name: None for name in pictures_below(root) if name not in labels}
    return Listing(root, labels, classes)


def held_out(given: str, root: Path, part: str) -> Listing:
    """A part to choose or to judge by: a folder of class folders, or a table with a label in every row."""
    path = existing(given, f"The {part} part", root)
    if not is_table(path):
        return class_folders(path)
    listing = from_table(path, root)
    bare = [name for name, label in listing.labels.items() if label is None]
    if bare:
        raise DataError(
            f"Every picture of the {part} part needs a label; {len(bare)} in {path} have none: {listed(bare, 3)}. "
            "Label them or delete the rows."
        )
    return listing


def pictures_below(folder: Path) -> list[str]:
    """Names of all pictures, sorted, however deep; hidden files and folders are passed over."""
    names = (path.relative_to(folder) for path in folder.rglob("*") if is_picture(path))
    return sorted(name.as_posix() for name in names if not _is_hidden(name))


def is_picture(path: Path) -> bool:
    """Whether it is a file with the ending of a picture."""
    return path.suffix.lower() in EXTENSIONS and not path.name.startswith(".") and path.is_file()


def _is_hidden(name: Path | PurePosixPath) -> bool:
    return any(part.startswith(".") for part in name.parts)
