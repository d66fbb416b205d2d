"""Published lists of images: text files with a path and a whole number as its label on every line."""

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from semigpc.data.dataset import DataError, Integers
from semigpc.data.paths import checked

WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}")
SHOWN = 80  # characters of a line that a message shows
DIGITS = 16  # of a hash, as many as the tables of published hashes have


@dataclass(frozen=True, eq=False)
class SplitFile:
    """What a list says: entry i stands on line i + 1.

    Args:
        path: of the list.
        names: (n,) paths of images relative to their root, with forward slashes, each once.
        labels: (n,) whatever the label column holds; whether it may be trained on is for the reader to know.
        sha256: the first digits of the hash of the text with Unix line ends, so that a copy with others has the same.
        crlf: whether lines end as on Windows.
    """

    path: Path
    names: tuple[str, ...]
    labels: Integers = field(repr=False)
    sha256: str
    crlf: bool = False

    def __len__(self) -> int:
        return len(self.names)

    def class_counts(self) -> dict[int, int]:
        """Images of each label there is, without those of no class (-1)."""
        classes, counts = np.unique(self.labels[self.labels >= 0], return_counts=True)
        return dict(zip(classes.tolist(), counts.tolist(), strict=True))


def read_split(path: Path, *, lowest: int = 0, below: int | None = None) -> SplitFile:
    """Read ``<relative path><space><integer label>`` lines, cut at the last space, since paths may have spaces themselves.

    Args:
        path: the list.
        lowest: smallest label that may stand in it; -1 if images may be of no class.
        below: labels must be less than this; None for no limit.
    """
    raw = _read(path)
    unix = raw.replace(b"\r\n", b"\n")
    try:
        lines = unix.decode("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} cannot be read as text: {error}. A list of images is UTF-8; fetch it again.") from error
    if lines == [""]:
        raise DataError(f"{path} lists no images. It needs one line for each, a path and a label; fetch it again.")
    labels = np.empty(len(lines), dtype=np.int64)
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        name, _, label = line.rpartition(" ")
        if not name or not WHOLE_NUMBER.fullmatch(label):
            raise _bad_line(path, number, line, "a line is a path, a space and a whole number")
        if not _stays_inside(name):
            raise _bad_line(path, number, line, "a path is relative to the images' root, with forward slashes and no '..'")
        value = int(label)
        if value < lowest or (below is not None and value >= below):
            limits = f"{lowest} or more" if below is None else f"in [{lowest}, {below})"
            raise _bad_line(path, number, line, f"labels here must be {limits}")
        if seen.setdefault(name, number) != number:
            raise _bad_line(path, number, line, f"an image is listed once, and line {seen[name]} has it already")
        labels[number - 1] = value
    return SplitFile(path, tuple(seen), labels, hashlib.sha256(unix).hexdigest()[:DIGITS], crlf=unix != raw)


def missing_images(root: Path, names: Sequence[str], checked: Callable[[int], None] | None = None) -> list[int]:
    """Which of the names (n,) are not below ``root``, as indices in ascending order; each folder is listed only once.

    Args:
        root: the folder of the images.
        names: relative paths.
        checked: told after each folder how many names that settled.
    """
    by_folder: defaultdict[str, list[int]] = defaultdict(list)
    for i, name in enumerate(names):
        by_folder[name.rpartition("/")[0]].append(i)
    missing: list[int] = []
    for folder, indices in by_folder.items():
        try:
            with os.scandir(root / folder) as entries:
                there = {entry.name for entry in entries}
        except (FileNotFoundError, NotADirectoryError):
            there = set()
        missing += [i for i in indices if names[i].rpartition("/")[2] not in there]
        if checked is not None:
            checked(len(indices))
    return sorted(missing)


def _read(path: Path) -> bytes:
    try:
        return checked(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise DataError(f"The list of images {path} is not there. Check the path, or fetch it again.") from error


def _stays_inside(name: str) -> bool:
    """Whether a path leads somewhere below the root it is put behind, on any system."""
    return "\\" not in name and "\0" not in name and name[1:2] != ":" and not {"", ".", ".."} & set(name.split("/"))


def _bad_line(path: Path, number: int, line: str, rule: str) -> DataError:
    shown = line if len(line) <= SHOWN else f"{line[:SHOWN]}..."
    return DataError(
        f"Line {number} of {path} cannot be used: {rule}; got {shown!r}. "
        "Mend the line, or fetch the file again as it was published."
    )
