"""SemiAves, SemiFungi, Semi-iNat and SemiCUB: fine-grained images in the parts that published split
files list.

At the end of this file are the published facts of the four sets, by which a copy can be verified.
"""

import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, get_args

import numpy as np

from semigpc.data import DATASETS, DatasetEntry
from semigpc.data.dataset import ImageSet, Integers, Splits
from semigpc.io.errors import DataError
from semigpc.io.images import GIGABYTE, FileImages
from semigpc.io.paths import checked

Labels = Literal["l_train_val", "l_train"]
Unlabeled = Literal["in", "in+out"]
INTEGER = re.compile(r"-?[0-9]{1,9}")
SHOWN = 80  # characters of a line in a message
DIGITS = 16  # of a hash, as many as the tables of published hashes have
SPLIT_FILES_AT = "https://github.com/cvl-umass/ssl-evaluation"

Name = Literal["semi_aves", "semi_fungi", "semi_inat", "cub"]


@dataclass(frozen=True, kw_only=True)
class FGVCConfig:
    """Which of the four sets, and where it is.

    The test part is always the whole published test file. Labels of unlabelled images are never
    trained on: where the files have them, they are used for diagnostics alone; images of U_out
    belong to none of the C classes.

    Args:
        benchmark: the set, in ``<root>/<benchmark>`` or in ``<root>/semi_fgvc/<benchmark>``.
        root: the folder of the sets.
        labels: "l_train_val" as in the paper, without a validation part; or "l_train", with the
            rest for validation.
        unlabeled: U_in alone, or U_in and U_out; every evaluation then also reports how well the
            two are separated.
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
        for name, known in (
            ("benchmark", get_args(Name)),
            ("labels", get_args(Labels)),
            ("unlabeled", get_args(Unlabeled)),
        ):
            if getattr(self, name) not in known:
                raise DataError(
                    f"{name} must be one of {', '.join(known)}; got {getattr(self, name)!r}."
                )
        if self.labels == "l_train" and "val" not in BENCHMARKS[self.benchmark].files:
            raise DataError(
                f"{BENCHMARKS[self.benchmark].title} has no validation part: its l_train and l_train_val are the same "
                "images. Leave labels at 'l_train_val'."
            )
        if self.cache_bytes < 0:
            raise DataError(f"cache_bytes must be 0 or more; got {self.cache_bytes}.")


def load(config: FGVCConfig, seed: int) -> Splits:  # noqa: ARG001 - the parts are published: nothing is drawn
    """Read the split files and check that every image they list exists; an image is decoded when it
    is first used.
    """
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

    pool = FileImages(
        [images / name for part in parts.values() for name in part.names],
        cache_bytes=config.cache_bytes,
    )
    sets: dict[str, ImageSet] = {}
    first = 0
    for name, part in parts.items():
        sets[name] = ImageSet(pool, part.labels, part.names, np.arange(first, first + len(part)))
        first += len(part)
    unlabeled, outside, truth = sets["unlabeled"], None, sets["unlabeled"].labels
    if (oracle := lists / "u_train_in_oracle.txt").is_file():  # it has an order of its own
        known = read_split(oracle, below=benchmark.classes)
        classes = dict(zip(known.names, known.labels.tolist(), strict=True))
        truth = np.array([classes.get(name, -1) for name in unlabeled.names], dtype=np.int64)
    if "out" in sets:
        out = sets["out"]
        outside = np.arange(len(unlabeled) + len(out)) >= len(unlabeled)
        truth = np.concatenate([truth, np.full(len(out), -1)])
        positions = np.concatenate([unlabeled.positions, out.positions])
        unlabeled = ImageSet(pool, truth, unlabeled.names + out.names, positions)
    labeled, class_names = sets["labeled"], [str(c) for c in range(benchmark.classes)]
    if benchmark.named_folders:
        for name, label in zip(labeled.names, labeled.labels, strict=True):
            class_names[label] = PurePosixPath(name).parent.name
    return Splits(
        labeled=labeled,
        unlabeled=unlabeled.without_labels(),
        unlabeled_truth=truth,
        validation=sets.get("validation"),
        test=sets["test"],
        class_names=tuple(class_names),
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
    hint = (
        f"{root} seems to be the folder of the set itself; give the folder above it."
        if itself
        else "Check the path."
    )
    raise DataError(
        f"The folder of {BENCHMARKS[name].title} is not there: looked for {places[0]} and {places[1]}. {hint} To get the "
        f"set: semigpc data download {name} {root}"
    )


@dataclass(frozen=True)
class PublishedFile:
    """One split file as published: its lines, the first 16 digits of its hash, and its lines by the
    paper.

    None stands for what could not be examined, or what the paper does not say.
    """

    images: int | None
    sha256: str | None
    paper_images: int | None = None


@dataclass(frozen=True)
class Imbalance:
    """Most over fewest images of a class, counted over ``files`` together, beside what the paper
    prints.
    """

    files: tuple[str, ...]
    most: int
    fewest: int
    paper: str


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A fine-grained set.

    Args:
        title: its name in the paper.
        classes: C. classes_out: how many more the images of ``u_train_out`` belong to.
        image_folder: inside the set's folder, what the paths of the split files are relative to; ""
            for the folder itself.
        named_folders: whether the folder of an image has the name of its class.
        files: by split, in the order of reports.
        imbalance: the paper's gamma.
        remark: why the paper's figure is wrong, where the files contradict it.
        source: where the images are published.
        archives: by the first folder of a path, which archive has it; "" for any other.
        layout: where to put the archives, to follow the word "unpack".
    """

    title: str
    classes: int
    classes_out: int
    image_folder: str = ""
    named_folders: bool = False
    files: dict[str, PublishedFile]
    imbalance: Imbalance
    remark: str = ""
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
        return (
            f"{self.title} has to be fetched by hand, under its owners' terms. From {self.source} take "
            f"{', '.join(self.archives.values())} and unpack {self.layout.format(folder=root / name)}. Put the split files, "
            f"{SPLIT_FILES_AT}, folder data/{name}, into {root / name} too. Then run: semigpc data verify {name} {root} "
            "--images exist"
        )


@dataclass(frozen=True, eq=False)
class SplitFile:
    """A published list of images: entry i is line i + 1.

    Args:
        path: of the list.
        names: (n,) paths of images relative to their root, with forward slashes, each once.
        labels: (n,) the label column, which for unlabelled images must not be trained on.
        sha256: the first digits of the hash of the text with Unix line ends, so that line ends do
            not matter.
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


def read_split(path: Path, *, lowest: int = 0, below: int | None = None) -> SplitFile:
    """Read ``<relative path><space><integer label>`` lines, cut at the last space, since paths may
    have spaces themselves.

    Args:
        path: the list.
        lowest: smallest label allowed; -1 if images may be of no class.
        below: labels must be less than this; None for no limit.
    """
    try:
        raw = checked(path).read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise DataError(
            f"The list of images {path} is not there. Check the path, or fetch it again."
        ) from error
    unix = raw.replace(b"\r\n", b"\n")
    try:
        lines = unix.decode("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} cannot be read as text: {error}. A list of images is UTF-8; fetch it again."
        ) from error
    if lines == [""]:
        raise DataError(
            f"{path} lists no images. It needs one line for each, a path and a label; fetch it again."
        )
    labels = np.empty(len(lines), dtype=np.int64)
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        name, _, label = line.rpartition(" ")
        if not name or not INTEGER.fullmatch(label):
            raise _bad_line(path, number, line, "a line is a path, a space and an integer")
        if (
            "\\" in name
            or "\0" in name
            or name[1:2] == ":"
            or {"", ".", ".."} & set(name.split("/"))
        ):  # on any system
            raise _bad_line(
                path,
                number,
                line,
                "a path is relative to the images' root, with forward slashes and no '..'",
            )
        value = int(label)
        if value < lowest or (below is not None and value >= below):
            limits = f"{lowest} or more" if below is None else f"in [{lowest}, {below})"
            raise _bad_line(path, number, line, f"labels here must be {limits}")
        if seen.setdefault(name, number) != number:
            raise _bad_line(
                path, number, line, f"an image is listed once, and line {seen[name]} has it already"
            )
        labels[number - 1] = value
    return SplitFile(
        path, tuple(seen), labels, hashlib.sha256(unix).hexdigest()[:DIGITS], crlf=unix != raw
    )


def missing_images(
    root: Path, names: Sequence[str], checked: Callable[[int], None] | None = None
) -> list[int]:
    """Return which of the names (n,) are not below ``root``, as indices in ascending order; each
    folder is listed once.

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
    shown = line if len(line) <= SHOWN else f"{line[:SHOWN]}..."
    return DataError(
        f"Line {number} of {path} cannot be used: {rule}; got {shown!r}. "
        "Mend the line, or fetch the file again as it was published."
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
        source="https://github.com/cvl-umass/semi-inat-2020 (Google Drive or Kaggle; version 2, of 25 March 2020)",
        archives={
            "trainval_images": "the labelled training and validation images (533 MB)",
            "u_train_in": "the in-class unlabelled images (2.3 GB)",
            "u_train_out": "the out-of-class unlabelled images (11 GB, for U_out only)",
            "test": "the test images (722 MB)",
        },
        layout="them in {folder}, which then has the folders trainval_images, u_train_in, u_train_out and test",
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
        layout="it in {folder}, which then has the folder images; the split's authors shrank its images to 300 px at most",
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
            "test": PublishedFile(
                16200, "f161c7dc06a88d64", 81000
            ),  # by the paper, 100 of each class
        },
        imbalance=Imbalance(("l_train_val",), 85, 10, "8.5"),
        remark="The paper speaks of 100 test images of each class of Semi-iNat; the published file has 20, the public and "
        "the private half of 8100 images merged.",
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
        remark="The paper gives SemiCUB 3853 images in U_in; the published file lists 3885, and only so do 1000 + 3885 + "
        "1000 + 5903 make the 11788 images of CUB-200-2011.",
        source="https://data.caltech.edu/records/65de6-vp158",
        archives={"": "CUB_200_2011.tgz (md5 97eceeb196236b17998738112f37df78)"},
        layout="it anywhere, and move its CUB_200_2011/images to {folder}/images",
    ),
}

# The data room does not import this one: the set is known once this module is imported.
DATASETS["fgvc"] = DatasetEntry(FGVCConfig, load)
