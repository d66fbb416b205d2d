"""Paths from the user: which may be opened, and which images lie below a folder.

One policy for every command. A named pipe, a socket or a device is never opened, since reading it
may never end. A link that leads out of the folder is followed only with ``follow_links``. Names are
UTF-8, as tables and reports are.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from semigpc.io.atomic import trouble
from semigpc.io.errors import DataError
from semigpc.io.text import printable

EXTENSIONS = frozenset(
    (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
)
NAMED_IMAGES = 3  # that a message names
NOT_THERE = "it does not exist"

Bad = tuple[str, str]  # the name of an image, printable, and why it cannot be used


def checked(path: Path) -> Path:
    """Return the path, or raise a DataError if it may not be opened."""
    if (reason := trouble(path)) is not None:
        raise DataError(f"{printable(path)} cannot be read: {reason}.")
    return path


def existing(path: str | Path, what: str, root: Path | None = None) -> Path:
    """Return the resolved path, tried as it is and then below ``root``; errors call it ``what``."""
    places = [Path(path).expanduser(), *([root / path] if root else [])]
    for place in places:
        if place.exists():
            return checked(place.resolve())
    shown = " and ".join(printable(place) for place in places)
    raise DataError(f"{what} does not exist: looked for {shown}. Check the path.")


def leads_out(path: Path, root: Path) -> str | None:
    """Return why not to follow a link below ``root``, a resolved folder, that leads out of it."""
    if (target := path.resolve()).is_relative_to(root):
        return None
    where = printable(target)
    return f"a link that leads out of the folder, to {where} (follow_links=True permits it)"


def images_below(folder: Path, *, follow_links: bool = False) -> list[str]:
    """Return the names of all images at any depth, sorted, without hidden files and folders.

    Raises:
        DataError: some cannot be used; see :func:`walk`.
    """
    names, bad = sorted_images(folder, follow_links=follow_links)
    reject_bad(bad, folder)
    return names


def sorted_images(
    folder: Path, root: Path | None = None, *, follow_links: bool = False
) -> tuple[list[str], list[Bad]]:
    """Return the names of usable images below a folder, and the others with reasons; see
    :func:`walk`.
    """
    images = sorted(walk(folder, root, follow_links=follow_links))
    names = [name for name, reason in images if not reason]
    bad = [(printable(name), reason) for name, reason in images if reason]
    return names, bad


def files_at(
    paths: Sequence[Path], *, follow_links: bool = False, skipped: list[Bad] | None = None
) -> dict[Path, str]:
    """Return images, files and all below folders, each once with its name for a table.

    That is the name relative to the folder if ``paths`` is one folder, else the path.

    Args:
        paths: of files and folders.
        follow_links: use links that lead out of a folder.
        skipped: filled with what cannot be used in folders, each with the reason, instead of an
            error.

    Raises:
        DataError: a path does not exist, or there is no image in a folder.
    """
    files: dict[Path, str] = {}
    for path in paths:
        if checked(path).is_dir():
            names, bad = sorted_images(path, follow_links=follow_links)
            if skipped is None:
                reject_bad(bad, path)
            else:
                skipped += bad
            if not names:
                raise DataError(f"There is no image below {path}.")
            relative = len(paths) == 1
            files |= {path / name: name if relative else str(path / name) for name in names}
        elif path.is_file():
            files[path] = str(path)
        else:
            raise DataError(f"There is no image and no folder {path}. Check the path.")
    return files


def reject_bad(bad: list[Bad], place: object) -> None:
    """Raise a DataError that names the first images that cannot be used, if there are any."""
    if bad:
        first = "; ".join(f"{name}: {reason}" for name, reason in bad[:NAMED_IMAGES])
        more = f"; and {len(bad) - NAMED_IMAGES} more" if len(bad) > NAMED_IMAGES else ""
        raise DataError(
            f"{len(bad)} images of {printable(place)} cannot be used ({first}{more}). "
            "Repair or remove them."
        )


def walk(folder: Path, root: Path | None = None, *, follow_links: bool = False) -> Iterator[Bad]:
    """Yield each image below a folder, in no order, with the reason why it cannot be used, or "".

    A linked folder is entered only if it leads out of ``root`` and that is permitted: inside root
    its content has another name already. Each such folder is entered once, so that a circle of
    links ends.

    Args:
        folder: where to look.
        root: the folder that links must not leave; ``folder`` by default.
        follow_links: permit links to leave it.
    """
    root = (root or folder).resolve()
    waiting = [("", str(folder))]
    seen = {folder.resolve()}
    while waiting:
        prefix, place = waiting.pop()
        try:
            entries = os.scandir(place)
        except OSError as error:
            yield prefix, f"the folder cannot be read: {error.strerror}"
            continue
        # read as they come: a caller that looks for one image does not list a folder of millions
        with entries:
            for entry in entries:
                name = f"{prefix}{entry.name}"
                if entry.name.startswith(".") or not (entry.is_dir() or is_image_name(entry.name)):
                    continue
                path = Path(entry.path)
                outside = leads_out(path, root) if entry.is_symlink() else None
                if outside is not None and not follow_links:
                    yield name, outside
                elif not entry.is_dir():
                    broken = "" if entry.is_file() else "a link to something that does not exist"
                    yield name, trouble(path) or broken
                elif not entry.is_symlink():
                    waiting.append((f"{name}/", entry.path))
                elif outside is not None and (target := path.resolve()) not in seen:
                    seen.add(target)
                    waiting.append((f"{name}/", entry.path))


def is_image_name(name: str) -> bool:
    """Return whether a name ends like an image; without pathlib, which would take most time."""
    dot = name.rfind(".")
    return dot > 0 and name[dot:].lower() in EXTENSIONS


def unusable(root: Path, name: str, *, follow_links: bool = False) -> str | None:
    """Return why a file that a table names below ``root``, a resolved folder, cannot be used."""
    path = root / name
    try:
        if not path.exists():
            return trouble(path) or NOT_THERE
        outside = None if follow_links else leads_out(path, root)
        return outside or trouble(path) or (None if path.is_file() else "it is a folder")
    except (OSError, ValueError):  # a name that no file can have, such as one with 300 letters
        return NOT_THERE


def image_path(folder: Path, name: str, follow_links: bool) -> Path | None:
    """Return the file of an id below a resolved folder; None if there is none.

    A file outside the folder is returned only if an allowed link leads to it.
    """
    try:
        relative = PurePosixPath(name)
        path = (folder / relative).resolve()
        by_link = follow_links and not relative.is_absolute() and ".." not in relative.parts
        return path if (path.is_relative_to(folder) or by_link) and path.is_file() else None
    except (OSError, ValueError):  # no file can have this name
        return None
