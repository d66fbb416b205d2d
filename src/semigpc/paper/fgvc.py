"""SemiAves, SemiFungi, Semi-iNat and SemiCUB: fine-grained images, split by published files.

At the end of this file are the published facts of the four sets, by which a copy can be verified.
"""

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

import numpy as np

from semigpc.data import DATASETS, DatasetEntry
from semigpc.data.dataset import ImageSet, Integers, Splits
from semigpc.io.errors import DataError, SettingsError
from semigpc.io.images import GIGABYTE, FileImages
from semigpc.io.paths import checked

Labels = Literal["l_train_val", "l_train"]
Unlabeled = Literal["in", "in+out"]
INTEGER = re.compile(r"-?[0-9]{1,9}")
LINE_SHOWN = 80  # characters of a split file's line in a message
HASH_DIGITS = 16  # as many as the tables of published hashes have
SPLIT_FILES_AT = "https://github.com/cvl-umass/ssl-evaluation"

Name = Literal["semi_aves", "semi_fungi", "semi_inat", "cub"]


@dataclass(frozen=True, kw_only=True)
class FGVCConfig:
    """Which of the four sets, and where it is.

    The test part is always the whole published test file. Labels of unlabelled images are never
    trained on: where the files have them, they are used only for diagnostics. Images of U_out
    belong to none of the C classes.

    Args:
        benchmark: the set, in ``<root>/<benchmark>`` or in ``<root>/semi_fgvc/<benchmark>``.
        root: the folder of the sets.
        labels: "l_train_val" as in the paper, without a validation part; or "l_train", with the
            rest for validation.
        unlabeled: "in" for U_in, or "in+out" for U_in and U_out; every evaluation then also reports
            how well the two are separated.
        splits: a folder with ``<benchmark>/<split>.txt``, if the split files are not in the folder
            of the set itself.
        cache_bytes: of temporary files for decoded images, for each part of the data and kind of
            view.
    """

    benchmark: Name
    root: str
    labels: Labels = "l_train_val"
    unlabeled: Unlabeled = "in"
    splits: str | None = None
    cache_bytes: int = 2 * GIGABYTE

    def __post_init__(self) -> None:
        choices = {
            "benchmark": (self.benchmark, Name),
            "labels": (self.labels, Labels),
            "unlabeled": (self.unlabeled, Unlabeled),
        }
        for name, (value, kind) in choices.items():
            if value not in get_args(kind):
                known = ", ".join(get_args(kind))
                raise SettingsError(f"{name} must be one of {known}; got {value!r}.")
        if self.labels == "l_train" and "val" not in BENCHMARKS[self.benchmark].files:
            raise SettingsError(
                f"{BENCHMARKS[self.benchmark].title} has no validation part: its l_train and "
                "l_train_val are the same images. Leave labels at 'l_train_val'."
            )
        if self.cache_bytes < 0:
            raise SettingsError(f"cache_bytes must be 0 or more; got {self.cache_bytes}.")


def load(config: FGVCConfig, seed: int) -> Splits:  # noqa: ARG001 - nothing is drawn
    """Read the split files and check that every image they list exists.

    An image is decoded when it is first used.
    """
    benchmark = BENCHMARKS[config.benchmark]
    folder = set_folder(Path(config.root), config.benchmark)
    lists = folder if config.splits is None else set_folder(Path(config.splits), config.benchmark)
    images = folder / benchmark.image_folder

    split_of = {"labeled": config.labels, "unlabeled": "u_train_in", "test": "test"}
    if config.labels == "l_train":
        split_of["validation"] = "val"
    if config.unlabeled == "in+out":
        split_of["out"] = "u_train_out"
    parts = {part: _listed(lists, split, config.benchmark) for part, split in split_of.items()}
    _check_apart(parts.values())
    for part in parts.values():
        if missing := missing_images(images, part.names):
            raise DataError(missing_message(part, missing, images, benchmark))

    sets = _image_sets(parts, images, config.cache_bytes)
    unlabeled = sets["unlabeled"]
    truth = _true_classes(unlabeled, lists / "u_train_in_oracle.txt", benchmark.classes)
    outside = None
    if "out" in sets:
        out = sets["out"]
        outside = np.arange(len(unlabeled) + len(out)) >= len(unlabeled)
        truth = np.concatenate([truth, np.full(len(out), -1)])
        positions = np.concatenate([unlabeled.positions, out.positions])
        unlabeled = ImageSet(unlabeled.images, truth, unlabeled.names + out.names, positions)
    return Splits(
        labeled=sets["labeled"],
        unlabeled=unlabeled.without_labels(),
        unlabeled_truth=truth,
        validation=sets.get("validation"),
        test=sets["test"],
        class_names=_class_names(sets["labeled"], benchmark),
        unlabeled_out=outside,
    )


def _image_sets(
    parts: Mapping[str, "SplitFile"], images: Path, cache_bytes: int
) -> dict[str, ImageSet]:
    """Return the images of each part; all parts share one pool."""
    paths = [images / name for part in parts.values() for name in part.names]
    pool = FileImages(paths, cache_bytes=cache_bytes)
    sets: dict[str, ImageSet] = {}
    first = 0
    for name, part in parts.items():
        sets[name] = ImageSet(pool, part.labels, part.names, np.arange(first, first + len(part)))
        first += len(part)
    return sets


def _true_classes(unlabeled: ImageSet, oracle: Path, classes: int) -> Integers:
    """Return the classes (n,) of unlabelled images, from their own list where it has them."""
    if not oracle.is_file():
        return unlabeled.labels
    known = read_split(oracle, below=classes)
    class_of = dict(zip(known.names, known.labels.tolist(), strict=True))  # in another order
    return np.array([class_of.get(name, -1) for name in unlabeled.names], dtype=np.int64)


def _class_names(labeled: ImageSet, benchmark: "Benchmark") -> tuple[str, ...]:
    names = [str(c) for c in range(benchmark.classes)]
    if benchmark.named_folders:
        for name, label in zip(labeled.names, labeled.labels, strict=True):
            names[label] = PurePosixPath(name).parent.name
    return tuple(names)


def set_folder(root: Path, name: str) -> Path:
    """Return the folder of a set, in either layout."""
    root = root.expanduser()
    places = [root / name, root / "semi_fgvc" / name]
    for place in places:
        if place.is_dir():
            return place.resolve()
    hint = "Check the path."
    if (root / "test.txt").is_file():
        hint = f"{root} seems to be the folder of the set itself; pass the folder above it."
    raise DataError(
        f"The folder of {BENCHMARKS[name].title} does not exist: looked for {places[0]} and "
        f"{places[1]}. {hint} To get the set: semigpc data download {name} {root}"
    )


@dataclass(frozen=True)
class PublishedFile:
    """One split file as published: its lines, the start of its hash, and its lines by the paper.

    None stands for what could not be examined, or what the paper does not give.
    """

    images: int | None
    sha256: str | None
    paper_images: int | None = None


@dataclass(frozen=True)
class Imbalance:
    """Most over fewest images of a class over ``files`` together, and the paper's figure."""

    files: tuple[str, ...]
    most: int
    fewest: int
    paper: str


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A fine-grained set.

    Args:
        title: its name in the paper.
        classes: C. classes_out: how many other classes ``u_train_out`` has.
        image_folder: folder of the images inside the set's folder; "" for that folder itself.
        named_folders: whether the folder of an image has the name of its class.
        files: by split, in the order of reports.
        imbalance: the paper's gamma.
        note: why the paper's figure is wrong, where the files contradict it.
        source: where the images are published.
        archives: the archive of an image by the first folder of its path; "" for any other.
        layout: where to put the archives, after the word "unpack".
    """

    title: str
    classes: int
    classes_out: int
    image_folder: str = ""
    named_folders: bool = False
    files: dict[str, PublishedFile]
    imbalance: Imbalance
    note: str = ""
    source: str
    archives: dict[str, str]
    layout: str

    def labels_of(self, split: str) -> tuple[int, int | None]:
        """Return the smallest label allowed in a split file, and what all must be less than."""
        if split == "u_train_out_oracle":
            return self.classes, self.classes + self.classes_out
        if split in ("u_train_out", "u_train"):
            return -1, None
        return (-1 if split == "u_train_in" else 0), self.classes

    def archive_of(self, name: str) -> str:
        """Return the archive that has an image."""
        return self.archives.get(name.partition("/")[0]) or self.archives.get("", "its archive")

    def instructions(self, name: str, root: Path) -> str:
        """Return how to get the set, in a paragraph."""
        folder = root / name
        return (
            f"{self.title} has to be downloaded by hand, under its owners' terms. From "
            f"{self.source} take {', '.join(self.archives.values())} and unpack "
            f"{self.layout.format(folder=folder)}. Put the split files, {SPLIT_FILES_AT}, folder "
            f"data/{name}, into {folder} too. To check it: semigpc data verify {name} {root}"
        )


@dataclass(frozen=True, eq=False)
class SplitFile:
    """A published list of images: entry i is line i + 1.

    Args:
        path: of the list.
        names: (n,) paths of images relative to their root, with forward slashes, each once.
        labels: (n,) the label column, which for unlabelled images must not be trained on.
        sha256: the first digits of the hash of the text with Unix line ends.
        crlf: whether the file has Windows line ends.
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


def _listed(lists: Path, split: str, name: str) -> SplitFile:
    """Read a split file, or raise an error that says where to get it."""
    path = lists / f"{split}.txt"
    if not path.is_file():
        raise DataError(
            f"The split file {path} does not exist. Those of {BENCHMARKS[name].title} are "
            f"published at {SPLIT_FILES_AT}, folder data/{name}: put them into {lists}, or set "
            f"data.splits to a folder with {name}/{split}.txt."
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
                    f"No image may be in two parts; line {line} of {part.path} lists {name}, which "
                    f"line {other} of {path} has too. Remove it from one, or download the "
                    "published split files again."
                )


def missing_message(part: SplitFile, missing: list[int], images: Path, benchmark: Benchmark) -> str:
    """Return the message for a list whose images at the indices ``missing`` do not exist."""
    name = part.names[missing[0]]
    return (
        f"Line {missing[0] + 1} of {part.path} lists {name}, which is not below {images}; "
        f"{len(missing)} of its {len(part)} images are missing. They come with "
        f"{benchmark.archive_of(name)} from {benchmark.source}: unpack it so that {images / name} "
        "exists."
    )


def read_split(path: Path, *, lowest: int = 0, below: int | None = None) -> SplitFile:
    """Read lines of a relative path, a space and an integer label; paths may contain spaces.

    Args:
        path: the list.
        lowest: smallest label allowed; -1 if images may be of no class.
        below: labels must be less than this; None for no limit.
    """
    try:
        raw = checked(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise DataError(
            f"The list of images {path} does not exist. Check the path, or download it again."
        ) from error
    unix = raw.replace(b"\r\n", b"\n")
    try:
        lines = unix.decode("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not UTF-8 text: {error}. Download the list of images again."
        ) from error
    if lines == [""]:
        raise DataError(
            f"{path} is empty; it needs a path and a label per image. Download it again."
        )
    labels = np.empty(len(lines), dtype=np.int64)
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        name, _, label = line.rpartition(" ")
        rule = _broken_rule(name, label, lowest, below)
        if not rule and seen.setdefault(name, number) != number:
            rule = f"an image is listed once, and line {seen[name]} has it already"
        if rule:
            raise _bad_line(path, number, line, rule)
        labels[number - 1] = int(label)
    digest = hashlib.sha256(unix).hexdigest()[:HASH_DIGITS]
    return SplitFile(path, tuple(seen), labels, digest, crlf=unix != raw)


def _broken_rule(name: str, label: str, lowest: int, below: int | None) -> str:
    """Return the rule that a line breaks, the same on every system; "" if it breaks none."""
    if not name or not INTEGER.fullmatch(label):
        return "a line is a path, a space and an integer"
    is_foreign = "\\" in name or "\0" in name or name[1:2] == ":"
    if is_foreign or {"", ".", ".."} & set(name.split("/")):
        return "a path is relative to the images' root, with forward slashes and no '..'"
    if int(label) < lowest or (below is not None and int(label) >= below):
        limits = f"{lowest} or more" if below is None else f"in [{lowest}, {below})"
        return f"labels here must be {limits}"
    return ""


def missing_images(
    root: Path, names: Sequence[str], checked: Callable[[int], None] | None = None
) -> list[int]:
    """Return the indices, ascending, of the names (n,) that do not exist below ``root``.

    Each folder is listed once.

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


def _bad_line(path: Path, number: int, line: str, rule: str) -> DataError:
    shown = line if len(line) <= LINE_SHOWN else f"{line[:LINE_SHOWN]}..."
    return DataError(
        f"Line {number} of {path} cannot be used: {rule}; got {shown!r}. "
        "Correct the line, or download the published file again."
    )


BENCHMARKS: dict[str, Benchmark] = {
    "semi_aves": Benchmark(
        title="SemiAves",
        classes=200,
        classes_out=800,
        files={
            "l_train": PublishedFile(3959, "219bde6e8accc72d"),
            "val": PublishedFile(2000, "557a6a40bf52e0e3"),
            "l_train_val": PublishedFile(5959, "c06c637db93d292d", 5959),
            "u_train_in": PublishedFile(26640, "d5ccd3a6c564d41f", 26640),
            "u_train_in_oracle": PublishedFile(26640, "3187fceac7d2e4a1"),
            "u_train_out": PublishedFile(122208, "a07ecb36675e1008", 122208),
            "u_train_out_oracle": PublishedFile(122208, "975b614a5d61c02e"),
            "u_train": PublishedFile(148848, "128d50db61f4aa65"),
            "test": PublishedFile(8000, "189d591649180f88", 8000),
        },
        imbalance=Imbalance(("l_train_val", "u_train_in_oracle"), 260, 33, "7.9"),
        source="https://github.com/cvl-umass/semi-inat-2020 "
        "(Google Drive or Kaggle; version 2, of 25 March 2020)",
        archives={
            "trainval_images": "the labelled training and validation images (533 MB)",
            "u_train_in": "the in-class unlabelled images (2.3 GB)",
            "u_train_out": "the out-of-class unlabelled images (11 GB, for U_out only)",
            "test": "the test images (722 MB)",
        },
        layout="them in {folder}, which then has the folders trainval_images, u_train_in, "
        "u_train_out and test",
    ),
    "semi_fungi": Benchmark(
        title="SemiFungi",
        classes=200,
        classes_out=1194,
        named_folders=True,
        files={
            "l_train": PublishedFile(4141, "3eccc6c58e137469"),
            "l_train_val": PublishedFile(4141, "3eccc6c58e137469", 4141),
            "u_train_in": PublishedFile(13166, "701ffb0e71c9dc9d", 13166),
            "u_train_in_oracle": PublishedFile(13166, "93360ad0db8090cf"),
            "u_train_out": PublishedFile(64871, "08953d2558f11de2", 64871),
            "u_train_out_oracle": PublishedFile(64871, "12f6e48abd732ced"),
            "u_train": PublishedFile(None, None),
            "test": PublishedFile(4000, "000905b222fe66fa", 4000),
        },
        imbalance=Imbalance(("l_train_val", "u_train_in_oracle"), 354, 35, "10.1"),
        source="https://github.com/visipedia/fgvcx_fungi_comp",
        archives={"": "fungi_train_val.tgz (13 GB, md5 df2b2980835668ed1d9a0e286e4bdadd)"},
        layout="it in {folder}, which then has the folder images; the split's authors shrank its "
        "images to at most 300 px",
    ),
    "semi_inat": Benchmark(
        title="Semi-iNat",
        classes=810,
        classes_out=1629,
        files={
            "l_train": PublishedFile(9721, "8afd3f4154feee5f"),
            "val": PublishedFile(4050, "c77b2a9909e7773f"),
            "l_train_val": PublishedFile(13771, "c75ca656e5f08f07", 13771),
            "u_train_in": PublishedFile(None, None, 91336),
            "u_train_out": PublishedFile(None, None, 221912),
            "u_train": PublishedFile(313248, None),  # according to its owners
            # The paper has 100 of each class.
            "test": PublishedFile(16200, "f161c7dc06a88d64", 81000),
        },
        imbalance=Imbalance(("l_train_val",), 85, 10, "8.5"),
        note="The paper gives Semi-iNat 100 test images of each class; the published file has 20, "
        "the public and the private half of 8100 images merged.",
        source="https://github.com/cvl-umass/semi-inat-2021",
        archives={
            "l_train": "l_train.tar.gz (164 MB)",
            "val": "val.tar.gz (67 MB)",
            "test": "test.tar.gz (271 MB)",
            "": "u_train.tar.gz (5.2 GB)",
        },
        layout="them in {folder}, which then has the folders l_train, val, test and u_train",
    ),
    "cub": Benchmark(
        title="SemiCUB",
        classes=100,
        classes_out=100,
        image_folder="images",
        named_folders=True,
        files={
            "l_train": PublishedFile(500, "ca16bd836507fc02"),
            "val": PublishedFile(500, "d68c9ed8d55b655d"),
            "l_train_val": PublishedFile(1000, "8fc162d820fd88f1", 1000),
            "u_train_in": PublishedFile(3885, "7452eb62622232ea", 3853),
            "u_train_out": PublishedFile(5903, "7a30b35cb584f846", 5903),
            "u_train": PublishedFile(9788, "97eca774ad49389f"),
            "test": PublishedFile(1000, "c3a331d763d8bbbb", 1000),
        },
        imbalance=Imbalance(("u_train_in",), 40, 24, "about 2"),
        note="The paper gives SemiCUB 3853 images in U_in; the published file lists 3885, and only "
        "then do 1000 + 3885 + 1000 + 5903 make the 11788 images of CUB-200-2011.",
        source="https://data.caltech.edu/records/65de6-vp158",
        archives={"": "CUB_200_2011.tgz (md5 97eceeb196236b17998738112f37df78)"},
        layout="it anywhere, and move its CUB_200_2011/images to {folder}/images",
    ),
}

# The data room does not import this one: the set is known once this module is imported.
DATASETS["fgvc"] = DatasetEntry(FGVCConfig, load)
