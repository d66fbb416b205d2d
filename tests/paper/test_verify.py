"""Checks of the published sets: every figure of the real files, and what is said of files that
differ.
"""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from semigpc.data.cifar import ARCHIVES, FORMS
from semigpc.io.errors import DataError
from semigpc.paper.fgvc import BENCHMARKS, read_split
from semigpc.paper.verify import CheckedFigure, Figure, Verification, verify_cifar, verify_fgvc
from tests.data.test_splits import TOTALS
from tests.paper import fgvc_samples
from tests.paper.fgvc_samples import PUBLISHED, lines, needs_published, write_lines

JPEG_COPY = PUBLISHED.parent / "cifar10-jpeg.zip"

# Lines, classes, fewest and most images of a class, hash: from the specification, section 3 and 4,
# and not from the package.
COUNTED = {
    "cub/l_train": (500, (100, 5, 5), "ca16bd836507fc02"),
    "cub/val": (500, (100, 5, 5), None),
    "cub/l_train_val": (1000, (100, 10, 10), "8fc162d820fd88f1"),
    "cub/u_train_in": (3885, (100, 24, 40), "7452eb62622232ea"),
    "cub/u_train_out": (5903, None, "7a30b35cb584f846"),
    "cub/test": (1000, (100, 10, 10), "c3a331d763d8bbbb"),
    "semi_aves/l_train": (3959, (200, 5, 43), "219bde6e8accc72d"),
    "semi_aves/val": (2000, (200, 10, 10), None),
    "semi_aves/l_train_val": (5959, (200, 15, 53), "c06c637db93d292d"),
    "semi_aves/u_train_in": (26640, None, "d5ccd3a6c564d41f"),
    "semi_aves/u_train_in_oracle": (26640, (200, 16, 229), "3187fceac7d2e4a1"),
    "semi_aves/u_train_out": (122208, None, "a07ecb36675e1008"),
    "semi_aves/test": (8000, (200, 40, 40), "189d591649180f88"),
    "semi_fungi/l_train": (4141, (200, 6, 78), "3eccc6c58e137469"),
    "semi_fungi/l_train_val": (4141, (200, 6, 78), "3eccc6c58e137469"),
    "semi_fungi/u_train_in": (13166, None, "701ffb0e71c9dc9d"),
    "semi_fungi/u_train_in_oracle": (13166, (200, 16, 276), "93360ad0db8090cf"),
    "semi_fungi/u_train_out": (64871, None, "08953d2558f11de2"),
    "semi_fungi/test": (4000, (200, 20, 20), "000905b222fe66fa"),
    "semi_inat/l_train": (9721, (810, 5, 80), "8afd3f4154feee5f"),
    "semi_inat/val": (4050, (810, 5, 5), "c77b2a9909e7773f"),
    "semi_inat/l_train_val": (13771, (810, 10, 85), "c75ca656e5f08f07"),
    "semi_inat/test": (16200, (810, 20, 20), "f161c7dc06a88d64"),
}


@cache
def published(name: str) -> Verification:
    return verify_fgvc(name, PUBLISHED)


def judged(*figures: Figure, needed: bool = False) -> CheckedFigure:
    result = Verification("set")
    result.compare("a", *figures, needed=needed)
    return result.findings[0]


def by_name(found: Verification) -> dict[str, CheckedFigure]:
    return {finding.what: finding for finding in found.findings}


# The published files ------------------------------------------------------------------------------


@needs_published
@pytest.mark.parametrize("file", COUNTED)
def test_the_real_files_have_the_figures_of_the_specification(file: str) -> None:
    images, classes, digest = COUNTED[file]
    name, split = file.split("/")
    lowest, below = BENCHMARKS[name].labels_of(split)
    read = read_split(PUBLISHED / f"{file}.txt", lowest=lowest, below=below)
    counts = list(read.class_counts().values())
    assert len(read) == images
    assert digest in (None, read.sha256)
    assert classes == ((len(counts), min(counts), max(counts)) if counts else None)
    known = BENCHMARKS[name].files[split]
    assert (known.images, known.sha256) == (images, read.sha256)


@needs_published
@pytest.mark.parametrize("name", fgvc_samples.NAMES)
def test_the_real_files_pass(name: str) -> None:
    found = published(name)
    assert found.ok
    verdicts = {
        finding.what: finding.verdict for finding in found.findings if finding.verdict != "ok"
    }
    wrong = {"cub": {"u_train_in: images"}, "semi_inat": {"test: images"}}.get(name, set())
    whole = {"u_train: images", "u_train = in + out"}
    parts = {"u_train_in: images", "u_train_out: images"}
    absent = {"semi_fungi": whole, "semi_inat": whole | parts}.get(name, set())
    assert verdicts == dict.fromkeys(wrong, "paper is wrong") | dict.fromkeys(absent, "absent")
    assert by_name(found)["images in two parts"].found == 0


@needs_published
def test_gamma_is_counted_over_what_the_paper_means() -> None:
    told = {}
    for name in fgvc_samples.NAMES:
        (finding,) = [one for one in published(name).findings if one.what.startswith("gamma")]
        told[name] = (finding.what.removeprefix("gamma over "), finding.found, finding.paper)
    assert told == {
        "semi_aves": ("L_in + U_in", "260/33 = 7.88", "7.9"),
        "semi_fungi": ("L_in + U_in", "354/35 = 10.11", "10.1"),
        "semi_inat": ("L_in", "85/10 = 8.50", "8.5"),
        "cub": ("U_in", "40/24 = 1.67", "about 2"),
    }


@needs_published
def test_the_two_figures_that_are_wrong_in_the_paper_are_explained() -> None:
    cub, inat = published("cub"), published("semi_inat")
    wrong = by_name(cub)["u_train_in: images"]
    assert (wrong.found, wrong.expected, wrong.paper) == (3885, 3885, 3853)
    assert any("1000 + 3885 + 1000 + 5903 make the 11788 images" in note for note in cub.notes)
    wrong = by_name(inat)["test: images"]
    assert (wrong.found, wrong.expected, wrong.paper) == (810 * 20, 810 * 20, 810 * 100)
    assert any("the published file has 20" in note for note in inat.notes)
    assert any(note.startswith("Training also needs u_train_in.txt") for note in inat.notes)


# Files that differ --------------------------------------------------------------------------------


def copied(tmp_path: Path, name: str = "cub", end: str = "\n") -> Path:
    for split in BENCHMARKS[name].files:
        write_lines(tmp_path / name / f"{split}.txt", lines(name, split), end)
    return tmp_path / name


@needs_published
def test_one_other_label_is_seen_in_the_hash(tmp_path: Path) -> None:
    folder = copied(tmp_path)
    rows = lines("cub", "l_train_val")
    rows[0] = f"{rows[0].rpartition(' ')[0]} 1"
    write_lines(folder / "l_train_val.txt", rows)
    found = verify_fgvc("cub", tmp_path)
    assert not found.ok
    differ = {finding.what for finding in found.findings if finding.verdict == "differs"}
    assert differ == {"l_train_val: sha256"}


def test_every_file_whose_classes_matter_has_a_published_hash() -> None:
    for file in COUNTED:
        name, split = file.split("/")
        assert BENCHMARKS[name].files[split].sha256


@needs_published
def test_windows_line_ends_have_the_published_hash(tmp_path: Path) -> None:
    copied(tmp_path, end="\r\n")
    found = verify_fgvc("cub", tmp_path)
    assert found.ok
    assert by_name(found)["test: sha256, of its Unix form"].found == "c3a331d763d8bbbb"


@needs_published
def test_a_image_moved_from_test_to_labels_is_seen(tmp_path: Path) -> None:
    rows = [*lines("cub", "l_train_val"), lines("cub", "test")[10]]
    write_lines(copied(tmp_path) / "l_train_val.txt", rows)
    found = verify_fgvc("cub", tmp_path)
    findings = by_name(found)
    assert findings["images in two parts"].found == 1
    assert findings["l_train_val = l_train + val"].found == "1 differ"
    (note,) = [note for note in found.notes if "in common" in note]
    assert note.startswith("l_train_val and test must have no image in common; they have 1")
    assert "on line 1001 of the first and line 11 of the second" in note


def test_a_malformed_file_is_told_and_the_others_are_still_checked(tmp_path: Path) -> None:
    folder = fgvc_samples.write_made_up_set(tmp_path)
    (folder / "u_train_in.txt").write_text("001.Bird_1/u 0.jpg\n")
    found = verify_fgvc("cub", tmp_path)
    assert by_name(found)["u_train_in: lines"].verdict == "differs"
    message = f"Line 1 of {folder / 'u_train_in.txt'} cannot be used"
    assert any(note.startswith(message) for note in found.notes)
    assert by_name(found)["test: images"].found == 200
    assert by_name(found)["gamma over U_in"].verdict == "absent"


def test_only_labels_and_test_are_needed(tmp_path: Path) -> None:
    folder = fgvc_samples.write_made_up_set(tmp_path)
    (folder / "test.txt").unlink()
    found = verify_fgvc("cub", tmp_path)
    absent = [finding for finding in found.findings if finding.verdict == "absent"]
    assert {finding.what for finding in absent if finding.fails} == {"test: images"}
    assert any(note.startswith("Training also needs test.txt") for note in found.notes)
    with pytest.raises(DataError, match="SemiFungi does not exist"):
        verify_fgvc("semi_fungi", tmp_path)


# Images -------------------------------------------------------------------------------------------


@needs_published
def test_images_are_looked_for_list_by_list(tmp_path: Path) -> None:
    folder = fgvc_samples.write_small_set(tmp_path, "semi_aves")
    rows = lines("semi_aves", "u_train_out")[:40]
    for row in rows:
        (folder / row.rpartition(" ")[0]).unlink()
    (folder / "u_train_in" / "7.jpg").unlink()
    reports: list[tuple[str, int, int]] = []
    result = verify_fgvc("semi_aves", tmp_path, exist=True, report=lambda *now: reports.append(now))
    found = by_name(result)
    for part, figures in {
        "l_train_val": (200, 200, "ok"),
        "u_train_in": (39, 40, "differs"),
        "u_train_out": (None, 40, "absent"),  # an archive that was never fetched
        "test": (200, 200, "ok"),
    }.items():
        finding = found[f"{part}: images on disk"]
        assert (finding.found, finding.expected, finding.verdict) == figures
    assert reports[-1] == ("looking for images", 480, 480)
    assert "images that decode" not in found


def test_missing_images_come_with_the_archive(tmp_path: Path) -> None:
    folder = fgvc_samples.write_made_up_set(tmp_path)
    (folder / "images").rename(tmp_path / "elsewhere")
    found = verify_fgvc("cub", tmp_path, exist=True)
    assert by_name(found)["test: images on disk"].fails
    assert not by_name(found)["u_train_in: images on disk"].fails
    message = "200 of its 200 images are missing. They come with CUB_200_2011.tgz"
    assert any(message in note for note in found.notes)


def test_every_unreadable_image_is_listed(tmp_path: Path) -> None:
    folder = fgvc_samples.write_made_up_set(tmp_path)
    names = ("001.Bird_1/test 1.jpg", "003.Bird_3/u 0.jpg", "199.Bird_199/test 0.jpg")
    broken = [folder / "images" / name for name in names]
    for path in broken:
        path.unlink()
        path.write_bytes(b"no image")
    found = verify_fgvc("cub", tmp_path, decode=True)
    finding = by_name(found)["images that decode"]
    assert (finding.found, finding.expected, finding.verdict) == (404, 407, "differs")
    assert len(found.unreadable) == 3
    for path in broken:
        message = f"The image {path} cannot be read: its content is not one of"
        assert any(message in line for line in found.unreadable)


def test_split_files_may_lie_elsewhere(tmp_path: Path) -> None:
    folder = fgvc_samples.write_made_up_set(tmp_path / "lists")
    (tmp_path / "images" / "cub").mkdir(parents=True)
    (folder / "images").rename(tmp_path / "images" / "cub" / "images")
    found = verify_fgvc("cub", tmp_path / "images", splits=tmp_path / "lists", decode=True)
    assert by_name(found)["images that decode"].verdict == "ok"
    assert verify_fgvc("cub", tmp_path / "nowhere", splits=tmp_path / "lists").findings
    with pytest.raises(DataError, match=r"looked for .*nowhere/cub"):
        verify_fgvc("cub", tmp_path / "nowhere", splits=tmp_path / "lists", exist=True)


def test_verdicts() -> None:
    for figures in ((5, 5, 5), (5, 5), (5, None, 5), (4, None)):
        assert judged(*figures).verdict == "ok"
    for figures in ((4, 5, 5), (4, 5, 4), (4, None, 5)):
        assert judged(*figures).verdict == "differs"
    assert judged(5, 5, 4).verdict == "paper is wrong"
    assert judged(None, 5, 4).verdict == "absent"
    assert not judged(None, 5).fails
    assert judged(None, 5, needed=True).fails


# CIFAR --------------------------------------------------------------------------------------------


def write_binary(folder: Path, n_classes: int) -> Path:
    """The official files with black images, whose holes cost no disk."""
    form = FORMS[n_classes]
    folder.mkdir(parents=True)
    for name, count in form.files.items():
        records = np.memmap(folder / name, np.uint8, "w+", shape=(count, form.record_bytes))
        records[:, form.label_bytes - 1] = np.arange(count) % n_classes
        records.flush()
    (folder / form.class_names).write_text("\n".join(f"class{c}" for c in range(n_classes)))
    return folder


def test_official_files_of_cifar_pass_and_give_the_printed_totals(tmp_path: Path) -> None:
    folder = write_binary(tmp_path / "cifar100" / "cifar-100-binary", 100)
    found = verify_cifar(100, tmp_path)
    findings = by_name(found)
    assert found.ok
    assert not found.notes
    assert findings["train.bin: bytes"].found == 153_700_000
    assert findings["test.bin: bytes"].found == 30_740_000
    assert findings["training: classes"].found == "100 x 500"
    assert findings["test: classes"].found == "100 x 100"
    assert findings["cifar-100-binary.tar.gz: md5"].verdict == "absent"
    for ratio, total in TOTALS[100, 150].items():
        labels = findings[f"labels at gamma {ratio}"]
        assert labels.found == labels.paper == total

    with (folder / "test.bin").open("r+b") as file:
        file.truncate(30_740_000 - 1)
    (tmp_path / "cifar100" / "cifar-100-binary.tar.gz").write_bytes(b"cut short")
    found = verify_cifar(100, tmp_path)
    assert by_name(found)["test.bin: bytes"].verdict == "differs"
    assert by_name(found)["cifar-100-binary.tar.gz: md5"].expected == ARCHIVES["cifar100"].md5
    assert by_name(found)["cifar-100-binary.tar.gz: md5"].verdict == "differs"
    assert any("must have 30740000 bytes" in note for note in found.notes)


def test_cifar_that_is_nowhere_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="CIFAR-10 is not in"):
        verify_cifar(10, tmp_path)


def test_a_copy_that_lacks_images_differs(tmp_path: Path) -> None:
    rows = [
        f"{part}/{c}/{i}.jpg 0"
        for part, count in (("train", 3), ("test", 1))
        for c in range(10)
        for i in range(count)
    ]
    fgvc_samples.write_images_of(tmp_path / "copy", rows)
    (tmp_path / "copy" / "train" / "4" / "0.jpg").unlink()
    (tmp_path / "copy" / "train" / "4" / "0.jpg").write_bytes(b"no image")
    found = verify_cifar(10, tmp_path / "copy", decode=True)
    findings = by_name(found)
    assert findings["training: images"].found == 30
    assert findings["training: classes"].found == "10 x 3"
    assert findings["labels at gamma 100"].found == "too few images"
    assert (findings["images that decode"].found, len(found.unreadable)) == (39, 1)
    assert "train/4/0.jpg cannot be read" in found.unreadable[0]
    assert any("This copy has image files" in note for note in found.notes)


@pytest.mark.skipif(not JPEG_COPY.is_file(), reason=f"the copy of CIFAR-10 is not at {JPEG_COPY}")
def test_the_jpeg_copy_of_cifar_gives_the_printed_totals() -> None:
    found = verify_cifar(10, JPEG_COPY)
    findings = by_name(found)
    assert found.ok
    assert findings["training: classes"].found == "10 x 5000"
    assert findings["test: classes"].found == "10 x 1000"
    assert any("This copy has image files" in note for note in found.notes)
    for what, head in (("labels", 1500), ("unlabelled", 5000)):
        for ratio, total in TOTALS[10, head].items():
            assert findings[f"{what} at gamma {ratio}"].found == total
