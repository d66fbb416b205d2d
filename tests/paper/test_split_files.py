"""Published lists of images: what is read, and what is refused with file, line and the way out."""

from pathlib import Path

import pytest

from semigpc.io.errors import DataError
from semigpc.paper.fgvc import missing_images, read_split
from tests.paper.fgvc_samples import PUBLISHED, lines, needs_published, write_lines


def write(tmp_path: Path, *rows: str) -> Path:
    return write_lines(tmp_path / "l_train.txt", rows)


def test_lines_are_cut_at_the_last_space(tmp_path: Path) -> None:
    read = read_split(write(tmp_path, "a/1.jpg 0", "b c/d 2 e.JPG 12", "b c/x.jpg 0"))
    assert read.names == ("a/1.jpg", "b c/d 2 e.JPG", "b c/x.jpg")
    assert read.labels.tolist() == [0, 12, 0]
    assert read.class_counts() == {0: 2, 12: 1}
    assert len(read) == 3


@needs_published
def test_paths_with_spaces_in_the_published_files() -> None:
    files = ("l_train", "l_train_val", "test", "u_train_in", "u_train_out")
    read = [read_split(PUBLISHED / "semi_fungi" / f"{split}.txt", lowest=-1) for split in files]
    assert sum(" " in name for file in read for name in file.names) == 2089
    assert read[1].names[0] == lines("semi_fungi", "l_train_val")[0].rpartition(" ")[0]


def test_windows_line_ends_mean_the_same(tmp_path: Path) -> None:
    unix = read_split(write_lines(tmp_path / "unix.txt", ["a b.jpg 0", "c.jpg 1"]))
    path = write_lines(tmp_path / "windows.txt", ["a b.jpg 0", "c.jpg 1"], end="\r\n")
    windows = read_split(path)
    assert (windows.names, windows.sha256) == (unix.names, unix.sha256)
    assert windows.labels.tolist() == unix.labels.tolist()
    assert windows.crlf
    assert not unix.crlf


def test_the_last_line_may_end_without_a_newline(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a.jpg 0\nb.jpg 1")
    assert read_split(path).names == ("a.jpg", "b.jpg")


def test_no_class_is_allowed_where_it_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path, "a.jpg -1", "b.jpg 3")
    assert read_split(path, lowest=-1).class_counts() == {3: 1}
    with pytest.raises(DataError, match=r"Line 1 of .*: labels here must be 0 or .*'a.jpg -1'"):
        read_split(path)


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        *(
            (row, f"a line is a path, a space and an integer; got {row!r}")
            for row in ("b.jpg", "", " 3", "b.jpg one", "b.jpg 1.0", "b.jpg 1_0", f"b.jpg {10**20}")
        ),
        ("b.jpg\t1", "a line is a path, a space and an integer"),
        ("b.jpg 5", r"labels here must be in \[0, 5\); got 'b.jpg 5'"),
        ("b.jpg -1", r"labels here must be in \[0, 5\)"),
        ("/etc/b.jpg 1", "a path is relative .* and no '..'; got '/etc/b.jpg 1'"),
        ("../b.jpg 1", "no '..'; got '../b.jpg 1'"),
        ("a/../../b.jpg 1", "no '..'"),
        ("a\\b.jpg 1", "with forward slashes"),
        ("C:/b.jpg 1", "a path is relative"),
        ("a.jpg 2", "an image is listed once, and line 1 has it already; got 'a.jpg 2'"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_text(tmp_path: Path, row: str, rule: str) -> None:
    path = write(tmp_path, "a.jpg 0", row, "c.jpg 1")
    with pytest.raises(DataError, match=rule) as refused:
        read_split(path, below=5)
    message = str(refused.value)
    assert message.startswith(f"Line 2 of {path} cannot be used: ")
    assert "download the published file again" in message


def test_long_lines_are_shortened(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"got 'x{80}\.\.\.'"):
        read_split(write(tmp_path, "x" * 5000))


def test_files_without_lines_and_without_text_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_bytes(b"")
    with pytest.raises(DataError, match=r"empty.txt is empty"):
        read_split(empty)
    (tmp_path / "binary.txt").write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(DataError, match=r"binary.txt is not UTF-8"):
        read_split(tmp_path / "binary.txt")
    for path in (tmp_path / "none.txt", tmp_path):
        with pytest.raises(DataError, match=r"does not exist|is a folder, a pipe or a device"):
            read_split(path)


def test_missing_images_are_found_folder_by_folder(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    for name in ("top.jpg", "a b/1.jpg", "a b/3.JPG"):
        (tmp_path / name).touch()
    names = ["a b/1.jpg", "none/1.jpg", "a b/2.jpg", "top.jpg", "top.jpg/below.jpg"]
    names += ["a b/3.JPG", "a b/3.jpg"]
    settled: list[int] = []
    assert missing_images(tmp_path, names, settled.append) == [1, 2, 4, 6]
    assert sum(settled) == len(names)
    assert missing_images(tmp_path, []) == []
