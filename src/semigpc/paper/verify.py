"""Compare a copy of a published set with what was published: counts, hashes, images, the paper."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from semigpc.data.cifar import FORMS, TEST, TRAINING, Form, find, md5_of
from semigpc.data.dataset import ImageSet
from semigpc.data.splits import SplitConfig, long_tail_split
from semigpc.io.errors import DataError, ImageError
from semigpc.io.images import FileImages, ZipImages, read_image
from semigpc.io.threads import cores
from semigpc.paper.fgvc import (
    BENCHMARKS,
    SPLIT_FILES_AT,
    Benchmark,
    SplitFile,
    missing_images,
    missing_message,
    read_split,
    set_folder,
)

Verdict = Literal["ok", "differs", "absent", "paper is wrong"]
Figure = int | str | None
Report = Callable[[str, int, int], None]  # the task, how many images are done, of how many
Files = dict[str, SplitFile]

DECODED_AT_ONCE = 256  # images between two reports of progress
NEEDED = ("l_train_val", "test")
# What a list is the sum of; besides these, and the lists of the true classes, no two lists share an
# image.
SUMS = {"l_train_val": ("l_train", "val"), "u_train": ("u_train_in", "u_train_out")}
ORACLES = {"u_train_in_oracle": "u_train_in", "u_train_out_oracle": "u_train_out"}
PAPER_NAMES = {"l_train_val": "L_in", "u_train_in": "U_in", "u_train_in_oracle": "U_in"}
# By imbalance ratio: labels and unlabelled images in setting A. The paper prints the labels; both
# follow from its heads.
TOTALS: dict[int, dict[int, tuple[int, int]]] = {
    10: {50: (4196, 13996), 100: (3720, 12406), 150: (3496, 11665)},
    100: {20: (4741, 15907), 50: (3751, 12608), 100: (3218, 10847)},
}


@dataclass(frozen=True, kw_only=True)
class CheckedFigure:
    """One figure of a data set.

    Args:
        what: a description.
        found: in the files here; None if they do not exist.
        expected: counted from the published files; None if those could not be examined.
        paper: the paper's figure, if it gives one.
        verdict: of ``found`` against ``expected``, and of both against ``paper``.
        needed: whether the data cannot be used without it.
    """

    what: str
    found: Figure
    expected: Figure
    paper: Figure = None
    verdict: Verdict
    needed: bool = False

    @property
    def fails(self) -> bool:
        """Whether the data cannot be used as they are."""
        return self.verdict == "differs" or (self.verdict == "absent" and self.needed)


@dataclass
class Verification:
    """All figures of a data set, notes on them, and the images that cannot be read."""

    name: str
    findings: list[CheckedFigure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether everything needed exists, and everything that exists is as published."""
        return not any(figure.fails for figure in self.findings)

    def compare(
        self,
        what: str,
        found: Figure,
        expected: Figure,
        paper: Figure = None,
        *,
        needed: bool = False,
    ) -> None:
        """Add a :class:`CheckedFigure` with its verdict.

        Where nothing was counted, the paper's figure is expected. The paper can be wrong only where
        it gives a count: its ratios are rounded.
        """
        reference = paper if expected is None else expected
        verdict: Verdict = "ok"
        if found is None:
            verdict = "absent"
        elif reference is not None and found != reference:
            verdict = "differs"
        elif isinstance(paper, int) and paper != reference:
            verdict = "paper is wrong"
        figure = CheckedFigure(
            what=what, found=found, expected=expected, paper=paper, verdict=verdict, needed=needed
        )
        self.findings.append(figure)

    def decode(
        self,
        read: Callable[[int], Any],
        count: int,
        report: Report | None,
        *,
        workers: int | None = None,
    ) -> None:
        """Decode ``count`` images and list all that cannot be read.

        Args:
            read: decodes the image at a position, or raises :class:`ImageError`.
            count: number of images.
            report: called now and then.
            workers: threads; one per core by default, since decoding releases the interpreter's
                lock.
        """

        def problem(position: int) -> str | None:
            try:
                read(position)
            except ImageError as error:
                return str(error).partition(" It may be ")[0].rstrip(".")
            return None

        with ThreadPoolExecutor(workers or cores()) as pool:
            for first in range(0, count, DECODED_AT_ONCE):
                chunk = range(first, min(first + DECODED_AT_ONCE, count))
                self.unreadable += [reason for reason in pool.map(problem, chunk) if reason]
                if report is not None:
                    report("decoding", chunk.stop, count)
        self.compare("images that decode", count - len(self.unreadable), count)


def verify_fgvc(
    name: str,
    root: Path,
    *,
    splits: Path | None = None,
    exist: bool = False,
    decode: bool = False,
    report: Report | None = None,
) -> Verification:
    """Count and hash the split files, compare them with each other, and check images on request.

    Args:
        name: the set.
        root: the folder of the sets, in either layout.
        splits: the folder of the split files, if they are not beside the images; root need not
            exist then unless images are checked.
        exist: check that the images exist. decode: check that they can be decoded, too.
        report: called with the progress through the images.
    """
    benchmark = BENCHMARKS[name]
    folder = set_folder(root if splits is None else splits, name)
    result = Verification(name)
    files = _compare_split_files(result, folder, benchmark)
    _compare_sums(result, files, benchmark)
    _compare_parts(result, files)
    _compare_imbalance(result, files, benchmark)
    if exist or decode:
        images = set_folder(root, name) / benchmark.image_folder
        paths = _find_images(result, files, images, benchmark, report)
        if decode:
            result.decode(lambda i: read_image(paths[i]), len(paths), report)
    if any(figure.verdict == "paper is wrong" for figure in result.findings):
        result.notes.append(benchmark.note)
    files_to_train = [f"{split}.txt" for split in ("l_train_val", "u_train_in", "test")]
    missing = [file for file in files_to_train if not (folder / file).is_file()]
    if missing:
        place = f"{SPLIT_FILES_AT}, folder data/{name}"
        result.notes.append(f"Training also needs {' and '.join(missing)}, published at {place}.")
    return result


def _compare_split_files(result: Verification, folder: Path, benchmark: Benchmark) -> Files:
    """Compare the counts and hashes of the split files, and return those that can be read."""
    files: Files = {}
    for split, known in benchmark.files.items():
        path = folder / f"{split}.txt"
        if path.is_file():
            try:
                lowest, below = benchmark.labels_of(split)
                files[split] = read_split(path, lowest=lowest, below=below)
            except DataError as error:
                result.compare(f"{split}: lines", "malformed", "path and label")
                result.notes.append(str(error))
                continue
        file = files.get(split)
        found = None if file is None else len(file)
        what = f"{split}: images"
        result.compare(what, found, known.images, known.paper_images, needed=split in NEEDED)
        if file is not None and known.sha256 is not None:
            unix = ", of its Unix form" if file.crlf else ""
            result.compare(f"{split}: sha256{unix}", file.sha256, known.sha256)
    return files


def _compare_sums(result: Verification, files: Files, benchmark: Benchmark) -> None:
    """Compare each list with those whose images it must contain, all together."""
    for whole, parts in (SUMS | {oracle: (split,) for oracle, split in ORACLES.items()}).items():
        published = [part for part in parts if part in benchmark.files]
        if whole not in benchmark.files:
            continue
        what = f"{whole} = {' + '.join(part.removeprefix(f'{whole}_') for part in published)}"
        found = None
        if all(split in files for split in (whole, *published)):
            together = {name for part in published for name in files[part].names}
            different = set(files[whole].names) ^ together
            found = f"{len(different)} differ" if different else "equal"
        result.compare(what, found, "equal")


def _compare_parts(result: Verification, files: Files) -> None:
    """Count the images in two lists that must have none in common."""
    lines = {
        split: {name: i for i, name in enumerate(file.names, 1)}
        for split, file in files.items()
        if split not in ORACLES
    }
    shared = 0
    for one, other in combinations(lines, 2):
        if one in SUMS.get(other, ()) or other in SUMS.get(one, ()):
            continue
        common = sorted(lines[one].keys() & lines[other].keys(), key=lines[one].__getitem__)
        shared += len(common)
        if common:
            first = common[0]
            result.notes.append(
                f"{one} and {other} must have no image in common; they have {len(common)}, such as "
                f"{first} on line {lines[one][first]} of the first and line {lines[other][first]} "
                "of the second. Remove it from one."
            )
    result.compare("images in two parts", shared, 0)


def _compare_imbalance(result: Verification, files: Files, benchmark: Benchmark) -> None:
    known = benchmark.imbalance
    found = None
    if all(split in files for split in known.files):
        tables = [files[split].class_counts() for split in known.files]
        counts = [sum(table.get(c, 0) for table in tables) for c in range(benchmark.classes)]
        most = max(counts)
        fewest = min(counts)
        found = f"{most}/{fewest} = {most / fewest:.2f}" if fewest else f"{most}/0"
    what = f"gamma over {' + '.join(PAPER_NAMES[split] for split in known.files)}"
    expected = f"{known.most}/{known.fewest} = {known.most / known.fewest:.2f}"
    result.compare(what, found, expected, known.paper)


def _find_images(
    result: Verification, files: Files, folder: Path, benchmark: Benchmark, report: Report | None
) -> list[Path]:
    """Count the existing images of each list, and return their paths, each once.

    The lists checked cover all images; of U these are its parts, each of which has an archive of
    its own. A list without any image is absent rather than different: its archive may have been
    left out on purpose.
    """
    within = {"l_train", "val"} if "l_train_val" in files else set()
    within |= {"u_train"} if files.keys() >= set(SUMS["u_train"]) else set()
    lists = {
        split: file for split, file in files.items() if split not in within and split not in ORACLES
    }
    paths: dict[Path, None] = {}
    done = 0
    total = sum(map(len, lists.values()))

    def checked(count: int) -> None:
        nonlocal done
        done += count
        if report is not None:
            report("looking for images", done, total)

    for split, file in lists.items():
        missing = missing_images(folder, file.names, checked)
        existing = len(file) - len(missing) or None
        result.compare(f"{split}: images on disk", existing, len(file), needed=split in NEEDED)
        if missing:
            result.notes.append(missing_message(file, missing, folder, benchmark))
        absent = set(missing)
        paths |= dict.fromkeys(
            folder / name for i, name in enumerate(file.names) if i not in absent
        )
    return list(paths)


def verify_cifar(
    n_classes: int, root: Path, *, decode: bool = False, report: Report | None = None
) -> Verification:
    """Check the archive if there is one, sizes, counts and totals; a packed archive is unpacked.

    Args:
        n_classes: 10 or 100.
        root: as in ``CifarConfig``: a folder, or the ``.zip`` of a copy as images.
        decode: read every image of such a copy too.
        report: called with the progress of that.
    """
    form = FORMS[n_classes]
    root = root.expanduser()
    result = Verification(form.name)
    _compare_official_files(result, form, root)
    try:
        images, training, _ = find(root, n_classes, download=False)
    except DataError as error:
        if result.ok:
            raise
        result.notes.append(str(error))
        return result
    if isinstance(images.images, FileImages | ZipImages):
        result.notes.append(
            "This copy has image files, which the owners of CIFAR do not publish; its pixels and "
            "their order may differ."
        )
        if decode:
            # Threads cannot share an open zip file.
            workers = 1 if isinstance(images.images, ZipImages) else None
            result.decode(images.images.read, len(images), report, workers=workers)
    for part, labels, total in (
        ("training", images.labels[:training], TRAINING),
        ("test", images.labels[training:], TEST),
    ):
        result.compare(f"{part}: images", len(labels), total, needed=True)
        counts = np.bincount(labels)
        each = "..".join(map(str, sorted({counts.min(), counts.max()})))
        result.compare(
            f"{part}: classes", f"{len(counts)} x {each}", f"{n_classes} x {total // n_classes}"
        )
    _compare_totals(result, images, training, n_classes)
    return result


def _compare_official_files(result: Verification, form: Form, root: Path) -> None:
    """Compare the archive's checksum, and the sizes of its files, which have none published."""
    archive = form.archive
    packed = [
        path for place in (root, root / form.name) if (path := place / archive.file_name).is_file()
    ]
    result.compare(f"{archive.file_name}: md5", md5_of(packed[0]) if packed else None, archive.md5)
    for place in (root, root / archive.folder, root / form.name / archive.folder):
        if any((place / name).is_file() for name in form.files):
            for name, records in form.files.items():
                path = place / name
                size = path.stat().st_size if path.is_file() else None
                result.compare(f"{name}: bytes", size, records * form.record_bytes, needed=True)
            break


def _compare_totals(result: Verification, images: ImageSet, training: int, n_classes: int) -> None:
    """Compare the sizes of the paper's setting A with what the splitter draws."""
    head = TRAINING // n_classes
    for gamma, (labels, unlabeled) in TOTALS[n_classes].items():
        config = SplitConfig(
            labeled_head=head * 3 // 10,
            labeled_ratio=gamma,
            unlabeled_head=head,
            unlabeled_ratio=gamma,
        )
        try:
            split = long_tail_split(images.labels[:training], n_classes, config, seed=0)
        except DataError as error:  # a copy that lacks images
            result.notes.append(str(error))
            result.compare(f"labels at gamma {gamma}", "too few images", labels, labels)
            continue
        result.compare(f"labels at gamma {gamma}", len(split.labeled), labels, labels)
        result.compare(f"unlabelled at gamma {gamma}", len(split.unlabeled), unlabeled)
