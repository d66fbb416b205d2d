"""Is a copy of CIFAR complete, and does it split into the totals that the paper prints?"""

from pathlib import Path

import numpy as np

from semigpc.data.archives import ARCHIVES, md5_of
from semigpc.data.cifar_files import FORMS, TEST, TRAINING, Form, find
from semigpc.data.dataset import DataError, ImageSet
from semigpc.data.findings import Finding, Report, Verification, classes_told, counts_told, judged, unreadable
from semigpc.data.images import KeptImages
from semigpc.data.splits import SplitConfig, long_tail_split
from semigpc.data.zipped import ZipImages

# By imbalance ratio: labels and unlabelled images in setting A. The paper prints the labels; both follow from its heads.
TOTALS: dict[int, dict[int, tuple[int, int]]] = {
    10: {50: (4196, 13996), 100: (3720, 12406), 150: (3496, 11665)},
    100: {20: (4741, 15907), 50: (3751, 12608), 100: (3218, 10847)},
}


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
