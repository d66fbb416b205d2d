"""Are the split files of a fine-grained set, and its images, what was published?"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np

from semigpc.data.archives import ARCHIVES, md5_of
from semigpc.data.cifar import FORMS, TEST, TRAINING, Form, find
from semigpc.data.dataset import DataError, ImageSet
from semigpc.data.fgvc import SplitFile, missing_images, missing_message, read_split, set_folder
from semigpc.data.images import ImageError, KeptImages, ZipImages, read_image
from semigpc.data.published_counts import BENCHMARKS, SPLIT_FILES_AT, Benchmark
from semigpc.data.splits import SplitConfig, long_tail_split
from semigpc.threads import cores

NEEDED = ("l_train_val", "test")
# What a list is the sum of; besides these, and the lists of the truth, no two have an image in common.
SUMS = {"l_train_val": ("l_train", "val"), "u_train": ("u_train_in", "u_train_out")}
ORACLES = {"u_train_in_oracle": "u_train_in", "u_train_out_oracle": "u_train_out"}
PAPER_NAMES = {"l_train_val": "L_in", "u_train_in": "U_in", "u_train_in_oracle": "U_in"}
Files = dict[str, SplitFile]
# By imbalance ratio: labels and unlabelled images in setting A. The paper prints the labels; both follow from its heads.
TOTALS: dict[int, dict[int, tuple[int, int]]] = {
    10: {50: (4196, 13996), 100: (3720, 12406), 150: (3496, 11665)},
    100: {20: (4741, 15907), 50: (3751, 12608), 100: (3218, 10847)},
}
Verdict = Literal["ok", "differs", "absent", "paper is wrong"]
Figure = int | str | None
Report = Callable[[str, int, int], None]  # what is being looked at, how many are done, of how many
AT_ONCE = 256  # images between two reports


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One figure.

    Args:
        what: it is of.
        found: in the files here; None if they are not there.
        expected: counted from the published files; None if those could not be looked at.
        paper: what the paper says, if it says anything.
        verdict: of ``found`` against ``expected``; of both against ``paper``.
        needed: whether the data are of no use without it.
    """

    what: str
    found: Figure
    expected: Figure
    paper: Figure = None
    verdict: Verdict
    needed: bool = False

    @property
    def fails(self) -> bool:
        """Whether somebody has to do something about it."""
        return self.verdict == "differs" or (self.verdict == "absent" and self.needed)


@dataclass(frozen=True, kw_only=True)
class Verification:
    """All findings of a data set, with sentences on those that need one, and every image that cannot be read."""

    name: str
    findings: tuple[Finding, ...]
    notes: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether everything that is there is as published, and everything that is needed is there."""
        return not any(finding.fails for finding in self.findings)


def verify_fgvc(
    name: str,
    root: Path,
    *,
    splits: Path | None = None,
    exist: bool = False,
    decode: bool = False,
    report: Report | None = None,
) -> Verification:
    """Count and hash every split file that is there, compare them with each other, and look for the images if asked to.

    Args:
        name: the set.
        root: the folder of the sets, in either layout.
        splits: the folder of the split files, if they are not beside the images; root need not be there then unless
            images are looked for.
        exist: look whether the images are there. decode: and whether they can be read.
        report: told how far the images are.
    """
    benchmark, folder = BENCHMARKS[name], set_folder(root if splits is None else splits, name)
    files: Files = {}
    findings: list[Finding] = []
    notes: list[str] = []
    broken: list[str] = []
    for split in benchmark.files:
        path = folder / f"{split}.txt"
        if path.is_file():
            try:
                lowest, below = benchmark.labels_of(split)
                files[split] = read_split(path, lowest=lowest, below=below)
            except DataError as error:
                findings.append(judged(f"{split}: lines", "malformed", "path and label"))
                notes.append(str(error))
                continue
        findings += _file_findings(split, files.get(split), benchmark)
    findings += [*_sums(files, benchmark), *_apart(files, notes), _imbalance(files, benchmark)]
    if exist or decode:
        images = set_folder(root, name) / benchmark.image_folder
        findings += _images(files, images, benchmark, report, notes)
        if decode:
            paths = _there(files, images)
            broken = unreadable(lambda i: read_image(paths[i]), len(paths), report)
            findings.append(judged("images that decode", len(paths) - len(broken), len(paths)))
    if any(finding.verdict == "paper is wrong" for finding in findings):
        notes.append(benchmark.remark)
    lacking = [f"{split}.txt" for split in ("l_train_val", "u_train_in", "test") if not (folder / f"{split}.txt").is_file()]
    if lacking:
        notes.append(f"Training needs {' and '.join(lacking)} too, published at {SPLIT_FILES_AT}, folder data/{name}.")
    return Verification(name=name, findings=tuple(findings), notes=tuple(notes), unreadable=tuple(broken))


def _file_findings(split: str, file: SplitFile | None, benchmark: Benchmark) -> Iterator[Finding]:
    known = benchmark.files[split]
    found = None if file is None else len(file)
    yield judged(f"{split}: images", found, known.images, known.paper_images, needed=split in NEEDED)
    if file is None:
        return
    if known.classes is not None:
        found_classes = counts_told(list(file.class_counts().values()))
        paper, agrees = _paper_on_classes(split, benchmark)
        yield judged(f"{split}: classes", found_classes, classes_told(*known.classes), paper, paper_agrees=agrees)
    if known.sha256 is not None:
        yield judged(f"{split}: sha256{', of its Unix form' if file.crlf else ''}", file.sha256, known.sha256)


def _paper_on_classes(split: str, benchmark: Benchmark) -> tuple[str | None, bool]:
    """What the paper says of the classes of a list, and whether it is so."""
    each, known = benchmark.files[split].paper_each, benchmark.files[split].classes
    if each is not None:
        return f"{each} of each", known is None or known[1:] == (each, each)
    told = {
        "l_train_val": benchmark.classes,
        "u_train_in_oracle": benchmark.classes,
        "u_train_out_oracle": benchmark.classes_out,
    }
    return (f"{told[split]} classes" if split in told else None), True


def _sums(files: Files, benchmark: Benchmark) -> Iterator[Finding]:
    """Lists that must have the same images as others together."""
    for whole, parts in (SUMS | {oracle: (split,) for oracle, split in ORACLES.items()}).items():
        published = [part for part in parts if part in benchmark.files]
        if whole not in benchmark.files:
            continue
        what = f"{whole} = {' + '.join(part.removeprefix(f'{whole}_') for part in published)}"
        if any(split not in files for split in (whole, *published)):
            yield judged(what, None, "equal")
            continue
        odd = set(files[whole].names) ^ {name for part in published for name in files[part].names}
        yield judged(what, f"{len(odd)} differ" if odd else "equal", "equal")


def _apart(files: Files, notes: list[str]) -> Iterator[Finding]:
    """Images that are in two lists which should have none in common."""
    lines = {split: {name: i for i, name in enumerate(file.names, 1)} for split, file in files.items() if split not in ORACLES}
    shared = 0
    for one, other in combinations(lines, 2):
        if one in SUMS.get(other, ()) or other in SUMS.get(one, ()):
            continue
        common = sorted(lines[one].keys() & lines[other].keys(), key=lines[one].__getitem__)
        shared += len(common)
        if common:
            notes.append(
                f"{one} and {other} must have no image in common; they have {len(common)}, such as {common[0]} on line "
                f"{lines[one][common[0]]} of the first and line {lines[other][common[0]]} of the second. Take it out of one."
            )
    yield judged("images in two parts", shared, 0)


def _imbalance(files: Files, benchmark: Benchmark) -> Finding:
    known = benchmark.imbalance
    what = f"gamma over {' + '.join(PAPER_NAMES[split] for split in known.files)}"
    expected = f"{known.most}/{known.fewest} = {known.most / known.fewest:.2f}"
    if any(split not in files for split in known.files):
        return judged(what, None, expected, known.paper, paper_agrees=True)
    tables = [files[split].class_counts() for split in known.files]
    counts = [sum(table.get(c, 0) for table in tables) for c in range(benchmark.classes)]
    most, fewest = max(counts), min(counts)
    found = f"{most}/{fewest} = {most / fewest:.2f}" if fewest else f"{most}/0"
    return judged(what, found, expected, known.paper, paper_agrees=True)


# Images ----------------------------------------------------------------------------------------------------------


def _widest(files: Files) -> Files:
    """Lists that together name every image: the parts of U, each of which has an archive of its own, rather than U whole."""
    within = {"l_train", "val"} if "l_train_val" in files else set()
    within |= {"u_train"} if files.keys() >= set(SUMS["u_train"]) else set()
    return {split: file for split, file in files.items() if split not in within and split not in ORACLES}


def _images(files: Files, folder: Path, benchmark: Benchmark, report: Report | None, notes: list[str]) -> Iterator[Finding]:
    """How many images of each list are there. None at all means that an archive was not fetched, which may be meant."""
    lists = _widest(files)
    done, total = 0, sum(map(len, lists.values()))

    def checked(count: int) -> None:
        nonlocal done
        done += count
        if report is not None:
            report("looking for images", done, total)

    for split, file in lists.items():
        missing = missing_images(folder, file.names, checked)
        there = len(file) - len(missing)
        yield judged(f"{split}: images on disk", there or None, len(file), needed=split in NEEDED)
        if missing:
            notes.append(missing_message(file, missing, folder, benchmark))


def _there(files: Files, folder: Path) -> list[Path]:
    """Every listed image that is there, once."""
    names = list(dict.fromkeys(name for file in _widest(files).values() for name in file.names))
    missing = set(missing_images(folder, names))
    return [folder / name for i, name in enumerate(names) if i not in missing]


def verify_cifar(n_classes: int, root: Path, *, decode: bool = False, report: Report | None = None) -> Verification:
    """Check the archive if it is there, sizes, counts and totals; an archive that was never unpacked is unpacked.

    Args:
        n_classes: 10 or 100.
        root: as in ``CifarConfig``: a folder, or the ``.zip`` of a copy as images.
        decode: read every image of such a copy too.
        report: told how far that is.
    """
    form, root = FORMS[n_classes], root.expanduser()
    findings = _official(form, root)
    notes: list[str] = []
    broken: list[str] = []
    try:
        images, training, _ = find(root, n_classes, download=False)
    except DataError as error:
        if not any(finding.fails for finding in findings):
            raise
        notes.append(str(error))
    else:
        if isinstance(images.images, KeptImages):
            notes.append(
                "A copy as image files: it was not made by the owners of CIFAR, so its pixels and their order may be others."
            )
            if decode:
                workers = 1 if isinstance(images.images, ZipImages) else None  # threads cannot share an open zip file
                broken = unreadable(images.images.read, len(images), report, workers=workers)
                findings.append(judged("images that decode", len(images) - len(broken), len(images)))
        findings += _counts(images, training, n_classes)
        findings += _totals(images, training, n_classes, notes)
    return Verification(name=form.name, findings=tuple(findings), notes=tuple(notes), unreadable=tuple(broken))


def _official(form: Form, root: Path) -> list[Finding]:
    """The archive's checksum, and the sizes of what it unpacks to, whose checksums nobody published."""
    archive = ARCHIVES[form.name]
    packed = [path for place in (root, root / form.name) if (path := place / archive.file_name).is_file()]
    findings = [judged(f"{archive.file_name}: md5", md5_of(packed[0]) if packed else None, archive.md5)]
    for place in (root, root / form.folder, root / form.name / form.folder):
        if any((place / name).is_file() for name in form.files):
            for name, records in form.files.items():
                path = place / name
                size = path.stat().st_size if path.is_file() else None
                findings.append(judged(f"{name}: bytes", size, records * form.record_bytes, needed=True))
            break
    return findings


def _counts(images: ImageSet, training: int, n_classes: int) -> list[Finding]:
    findings = []
    for part, labels, total in (("training", images.labels[:training], TRAINING), ("test", images.labels[training:], TEST)):
        each = total // n_classes
        findings += [
            judged(f"{part}: images", len(labels), total, needed=True),
            judged(f"{part}: classes", counts_told(np.bincount(labels).tolist()), classes_told(n_classes, each, each)),
        ]
    return findings


def _totals(images: ImageSet, training: int, n_classes: int, notes: list[str]) -> list[Finding]:
    """What the splitter gives in the paper's setting A."""
    findings = []
    head = TRAINING // n_classes
    for gamma, (labels, unlabeled) in TOTALS[n_classes].items():
        config = SplitConfig(
            labeled_head=head * 3 // 10, labeled_ratio=gamma, unlabeled_head=head, unlabeled_ratio=gamma, overlap="nested"
        )
        try:
            split = long_tail_split(images.labels[:training], n_classes, config, seed=0)
        except DataError as error:  # a copy that lacks images
            notes.append(str(error))
            findings.append(judged(f"labels at gamma {gamma}", "too few images", labels, labels))
            continue
        findings += [
            judged(f"labels at gamma {gamma}", len(split.labeled), labels, labels),
            judged(f"unlabelled at gamma {gamma}", len(split.unlabeled), unlabeled),
        ]
    return findings


def judged(
    what: str,
    found: Figure,
    expected: Figure,
    paper: Figure = None,
    *,
    paper_agrees: bool | None = None,
    needed: bool = False,
) -> Finding:
    """A finding with its verdict. Where nothing was counted, what the paper says is expected.

    Args:
        what, found, expected, paper, needed: as in :class:`Finding`.
        paper_agrees: whether the paper's figure and the one counted mean the same, if equality does not tell.
    """
    reference = paper if expected is None else expected
    if paper_agrees is None:
        paper_agrees = paper is None or expected is None or paper == expected
    verdict: Verdict = "ok" if paper_agrees else "paper is wrong"
    if found is None:
        verdict = "absent"
    elif reference is not None and found != reference:
        verdict = "differs"
    return Finding(what=what, found=found, expected=expected, paper=paper, verdict=verdict, needed=needed)


def classes_told(classes: int, fewest: int, most: int) -> str:
    """``200 x 15..53``: so many classes, so many images of each."""
    return f"{classes} x {fewest}" if fewest == most else f"{classes} x {fewest}..{most}"


def counts_told(counts: Sequence[int]) -> str:
    """The same of the images of each class."""
    return classes_told(len(counts), min(counts, default=0), max(counts, default=0))


def unreadable(
    read: Callable[[int], Any], count: int, report: Report | None = None, *, workers: int | None = None
) -> list[str]:
    """Decode ``count`` images and answer with what is wrong with those that cannot be; all of them, not only the first.

    Args:
        read: decodes the image at a position, or raises :class:`ImageError`.
        count: how many there are.
        report: told now and then.
        workers: threads; as many as there are cores by default. Decoding does not hold the interpreter's lock.
    """

    def problem(position: int) -> str | None:
        try:
            read(position)
        except ImageError as error:
            return str(error).partition(" It may be ")[0].rstrip(".")
        return None

    problems: list[str] = []
    with ThreadPoolExecutor(workers or cores()) as pool:
        for first in range(0, count, AT_ONCE):
            chunk = range(first, min(first + AT_ONCE, count))
            problems += [found for found in pool.map(problem, chunk) if found]
            if report is not None:
                report("decoding", chunk.stop, count)
    return problems
