"""Are the split files of a fine-grained set, and its images, what was published?"""

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from semigpc.data.dataset import DataError
from semigpc.data.fgvc import missing_message, set_folder
from semigpc.data.findings import Finding, Report, Verification, classes_told, counts_told, judged, unreadable
from semigpc.data.images import read_image
from semigpc.data.published_counts import BENCHMARKS, SPLIT_FILES_AT, Benchmark
from semigpc.data.split_files import SplitFile, missing_images, read_split

NEEDED = ("l_train_val", "test")
# What a list is the sum of; besides these, and the lists of the truth, no two have an image in common.
SUMS = {"l_train_val": ("l_train", "val"), "u_train": ("u_train_in", "u_train_out")}
ORACLES = {"u_train_in_oracle": "u_train_in", "u_train_out_oracle": "u_train_out"}
PAPER_NAMES = {"l_train_val": "L_in", "u_train_in": "U_in", "u_train_in_oracle": "U_in"}

Files = dict[str, SplitFile]


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
