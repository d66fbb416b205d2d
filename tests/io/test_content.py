"""The mark of an input: the same for the same bytes, wherever they are, and for no others."""

import os
import zipfile
from pathlib import Path

import pytest

from semigpc.io.content import MARK_BYTES, content_mark, file_mark, joined_mark
from semigpc.io.images import FileImages, ZipImages


def test_a_mark_depends_on_the_content_and_not_on_name_place_or_time(tmp_path: Path) -> None:
    one = tmp_path / "one.png"
    other = tmp_path / "other.png"
    one.write_bytes(b"as long")
    other.write_bytes(b"as long")
    os.utime(other, ns=(0, 0))
    archive = tmp_path / "images.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(one, "in/a/folder.png")
    marks = {file_mark(one), file_mark(other), content_mark(b"as long")}
    marks |= {FileImages([other]).mark(0), ZipImages(archive, ["in/a/folder.png"]).mark(0)}
    (mark,) = marks
    assert len(mark) == MARK_BYTES
    one.write_bytes(b"as 1ong")
    os.utime(one, ns=(0, 0))
    assert file_mark(one) != mark


def test_a_joined_mark_depends_on_names_marks_and_where_one_name_ends() -> None:
    inputs = [(["ab"], [b"c"]), (["a"], [b"bc"]), (["a", "b"], [b"c", b"c"]), (["ab"], [b"d"])]
    assert len({joined_mark(names, marks) for names, marks in inputs}) == 4


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(OSError, match="pipe"):
        file_mark(tmp_path / "pipe.png")
