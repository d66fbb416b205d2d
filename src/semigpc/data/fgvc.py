"""SemiAves, SemiFungi, Semi-iNat and SemiCUB: fine-grained images in the parts that published split files list."""

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

import numpy as np

from semigpc.data.dataset import DataError, ImageSet, Integers, Splits
from semigpc.data.images import MEGABYTE, FileImages
from semigpc.data.paths import checked
from semigpc.data.published_counts import BENCHMARKS, SPLIT_FILES_AT, Benchmark, Name

Labels = Literal["l_train_val", "l_train"]
Unlabeled = Literal["in", "in+out"]
INTEGER = re.compile(r"-?[0-9]{1,9}")
SHOWN = 80  # characters of a line in a message
DIGITS = 16  # of a hash, as many as the tables of published hashes have


@dataclass(frozen=True, kw_only=True)
class FGVCConfig:
    """Which of the four sets, and where it is.

    The test part is always the whole published test file. Labels of unlabelled images are never trained on: where the files
    have them, they are used for diagnostics alone; images of U_out belong to none of the C classes.

    Args:
        benchmark: the set, in ``<root>/<benchmark>`` or in ``<root>/semi_fgvc/<benchmark>``.
        root: the folder of the sets.
        labels: "l_train_val" as in the paper, without a validation part; or "l_train", with the rest for validation.
        unlabeled: U_in alone, or U_in and U_out; every evaluation then also reports how well the two are separated.
        splits: a folder with ``<benchmark>/<split>.txt``, if the split files are not in the folder of the set itself.
        cache_bytes: memory for decoded images in each process.
    """

    benchmark: Name
    root: str
    labels: Labels = "l_train_val"
    unlabeled: Unlabeled = "in"
    splits: str | None = None
    cache_bytes: int = 512 * MEGABYTE

    def __post_init__(self) -> None:
        for name, known in (("benchmark", get_args(Name)), ("labels", get_args(Labels)), ("unlabeled", get_args(Unlabeled))):
            if getattr(self, name) not in known:
                raise DataError(f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}.")
        if self.labels == "l_train" and "val" not in BENCHMARKS[self.benchmark].files:
            raise DataError(
                f"{BENCHMARKS[self.benchmark].title} has no validation part: its l_train and l_train_val are the same "
                "images. Leave labels at 'l_train_val'."
            )
        if self.cache_bytes < 0:
            raise DataError(f"cache_bytes must be 0 or more; got {self.cache_bytes}.")


@dataclass(frozen=True, eq=False)
class SplitFile:
    """A published list of images: entry i is line i + 1.

    Args:
        path: of the list.
        names: (n,) paths of images relative to their root, with forward slashes, each once.
        labels: (n,) the label column, which for unlabelled images must not be trained on.
        sha256: the first digits of the hash of the text with Unix line ends, so that line ends do not matter.
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
        """Return the number of images of each label, without those of no class (-1)."""
        classes, counts = np.unique(self.labels[self.labels >= 0], return_counts=True)
        return dict(zip(classes.tolist(), counts.tolist(), strict=True))


def load(config: FGVCConfig, seed: int) -> Splits:  # noqa: ARG001 - the parts are published: nothing is drawn
    """Read the split files and check that every image they list exists; an image is decoded when it is first used."""
    benchmark = BENCHMARKS[config.benchmark]
    folder = set_folder(Path(config.root), config.benchmark)
    lists = folder if config.splits is None else set_folder(Path(config.splits), config.benchmark)
    images = folder / benchmark.image_folder

    wanted = {"labeled": config.labels, "unlabeled": "u_train_in", "test": "test"}
    wanted |= {"validation": "val"} if config.labels == "l_train" else {}
    wanted |= {"out": "u_train_out"} if config.unlabeled == "in+out" else {}
    parts = {part: _listed(lists, split, config.benchmark) for part, split in wanted.items()}
    _check_apart(parts.values())
    for part in parts.values():
        if missing := missing_images(images, part.names):
            raise DataError(missing_message(part, missing, images, benchmark))

    pool = FileImages([images / name for part in parts.values() for name in part.names], cache_bytes=config.cache_bytes)
    sets: dict[str, ImageSet] = {}
    first = 0
    for name, part in parts.items():
        sets[name] = ImageSet(pool, part.labels, part.names, np.arange(first, first + len(part)))
        first += len(part)
    truth = _truth(parts["unlabeled"], lists / "u_train_in_oracle.txt", benchmark)
    unlabeled, outside = sets["unlabeled"], None
    if "out" in sets:
        out = sets["out"]
        outside = np.arange(len(unlabeled) + len(out)) >= len(unlabeled)
        truth = np.concatenate([truth, np.full(len(out), -1)])
        positions = np.concatenate([unlabeled.positions, out.positions])
        unlabeled = ImageSet(pool, truth, unlabeled.names + out.names, positions)
    return Splits(
        labeled=sets["labeled"],
        unlabeled=unlabeled.without_labels(),
        unlabeled_truth=truth,
        validation=sets.get("validation"),
        test=sets["test"],
        class_names=_class_names(parts["labeled"], benchmark),
        unlabeled_out=outside,
    )


def set_folder(root: Path, name: str) -> Path:
    """Return the folder of a set, in either layout."""
    root = root.expanduser()
    places = [root / name, root / "semi_fgvc" / name]
    for place in places:
        if place.is_dir():
            return place.resolve()
    itself = (root / "test.txt").is_file()
    hint = f"{root} seems to be the folder of the set itself; give the folder above it." if itself else "Check the path."
    raise DataError(
        f"The folder of {BENCHMARKS[name].title} is not there: looked for {places[0]} and {places[1]}. {hint} To get the "
        f"set: semigpc data download {name} {root}"
    )


def _listed(lists: Path, split: str, name: str) -> SplitFile:
    """Read a split file, or raise an error that says where to get it."""
    path = lists / f"{split}.txt"
    if not path.is_file():
        raise DataError(
            f"The split file {path} is not there. The split files of {BENCHMARKS[name].title} are published at "
            f"{SPLIT_FILES_AT}, folder data/{name}: put them into {lists}, or give a folder with {name}/{split}.txt as splits."
        )
    lowest, below = BENCHMARKS[name].labels_of(split)
    return read_split(path, lowest=lowest, below=below)


def _check_apart(parts: Iterable[SplitFile]) -> None:
    """Raise if an image is in two parts: test images must not be trained on."""
    seen: dict[str, tuple[Path, int]] = {}
    for part in parts:
        for line, name in enumerate(part.names, start=1):
            path, other = seen.setdefault(name, (part.path, line))
            if path != part.path:
                raise DataError(
                    f"No image may be in two parts; line {line} of {part.path} lists {name}, which line {other} of {path} "
                    "has too. Take it out of one, or fetch the split files again as they were published."
                )


def missing_message(part: SplitFile, missing: list[int], images: Path, benchmark: Benchmark) -> str:
    """Return the message for a list whose images at the indices ``missing`` do not exist."""
    name = part.names[missing[0]]
    return (
        f"Line {missing[0] + 1} of {part.path} lists {name}, which is not below {images}; missing are {len(missing)} of "
        f"its {len(part)} images. They come with {benchmark.archive_of(name)} from {benchmark.source}: unpack it so that "
        f"{images / name} is there."
    )


def _truth(unlabeled: SplitFile, oracle: Path, benchmark: Benchmark) -> Integers:
    """Return the classes (u,) of U_in: from the oracle file, which has an order of its own, or else from the label column."""
    if not oracle.is_file():
        return unlabeled.labels
    truth = read_split(oracle, below=benchmark.classes)
    classes = dict(zip(truth.names, truth.labels.tolist(), strict=True))
    return np.array([classes.get(name, -1) for name in unlabeled.names], dtype=np.int64)


def _class_names(labeled: SplitFile, benchmark: Benchmark) -> tuple[str, ...]:
    """Return the name of each class: that of its images' folder if folders have names, else its number."""
    names = {c: str(c) for c in range(benchmark.classes)}
    if benchmark.named_folders:
        names |= {int(c): PurePosixPath(name).parent.name for name, c in zip(labeled.names, labeled.labels, strict=True)}
    return tuple(names.values())


def read_split(path: Path, *, lowest: int = 0, below: int | None = None) -> SplitFile:
    """Read ``<relative path><space><integer label>`` lines, cut at the last space, since paths may have spaces themselves.

    Args:
        path: the list.
        lowest: smallest label allowed; -1 if images may be of no class.
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
        if not name or not INTEGER.fullmatch(label):
            raise _bad_line(path, number, line, "a line is a path, a space and an integer")
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
    """Return which of the names (n,) are not below ``root``, as indices in ascending order; each folder is listed once.

    Args:
        root: the folder of the images.
        names: relative paths.
        checked: called after each folder with the number of names in it.
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
    """Return whether a relative path stays below its root, on any system."""
    return "\\" not in name and "\0" not in name and name[1:2] != ":" and not {"", ".", ".."} & set(name.split("/"))


def _bad_line(path: Path, number: int, line: str, rule: str) -> DataError:
    shown = line if len(line) <= SHOWN else f"{line[:SHOWN]}..."
    return DataError(
        f"Line {number} of {path} cannot be used: {rule}; got {shown!r}. "
        "Mend the line, or fetch the file again as it was published."
    )
