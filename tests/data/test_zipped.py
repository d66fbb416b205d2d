"""Images in a zip file: in place, in any process, or an error with archive and name."""

import pickle
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from semigpc.io.errors import DataError
from semigpc.io.images import ZipImages, zipped_images
from tests.data.samples import write_images


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Four images, compressed."""
    write_images(tmp_path, {"a": 3, "b": 1}, size=(60, 40))
    path = tmp_path / "images.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name in ("b/0.png", "a/2.png", "a/0.png", "a/1.png"):
            file.write(tmp_path / name, name)
    return path


MEMBERS = ["a/0.png", "a/1.png", "a/2.png", "b/0.png"]


def test_names_are_sorted_and_hidden_or_other_files_are_none(archive: Path) -> None:
    with zipfile.ZipFile(archive, "a") as file:
        hidden = ("a/._0.png", ".thumbs/0.png", "__MACOSX/a/._0.png", "a/.png")
        for name in ("a/", "a/notes.txt", "png", "c.d/X.JPG", *hidden):
            file.writestr(name, b"")
    assert zipped_images(archive) == [*MEMBERS, "c.d/X.JPG"]


def test_images_are_those_of_the_files(archive: Path) -> None:
    images = ZipImages(archive, MEMBERS)
    assert len(images) == 4
    for position, member in enumerate(MEMBERS):
        with Image.open(archive.parent / member) as file:
            assert images[position].tobytes() == file.tobytes()


def test_a_copy_for_another_process_has_names_alone_and_opens_the_file_itself(
    archive: Path,
) -> None:
    images = ZipImages(archive, MEMBERS)
    first = images[0].tobytes()
    sent = pickle.dumps(images)
    assert len(sent) < 1000
    assert pickle.loads(sent)[0].tobytes() == first


def test_after_a_fork_the_file_is_opened_again(
    archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []

    class Counting(zipfile.ZipFile):
        def __init__(self, path: Path) -> None:
            opened.append(path)
            super().__init__(path)

    monkeypatch.setattr("semigpc.io.images.zipfile.ZipFile", Counting)
    images = ZipImages(archive, MEMBERS)
    pixels = [images[i].tobytes() for i in range(4)]
    assert len(opened) == 1
    monkeypatch.setattr("semigpc.io.images.os.getpid", lambda: -1)
    assert [images[i].tobytes() for i in range(4)] == pixels
    assert len(opened) == 2


def test_a_image_that_cannot_be_read_is_an_error_with_archive_and_name(archive: Path) -> None:
    with zipfile.ZipFile(archive, "a") as file:
        file.writestr("a/bad.png", b"no image")
    with pytest.raises(DataError, match=r"The image .*images.zip/a/bad.png.*be read: .*replace it"):
        ZipImages(archive, ["a/bad.png"])[0]
    with pytest.raises(DataError, match=r"images.zip/a/9.png cannot be read: .*may.*been replaced"):
        ZipImages(archive, ["a/9.png"])[0]
    content = bytearray(archive.read_bytes())
    content[200:220] = bytes(20)  # within the first image
    archive.write_bytes(content)
    with pytest.raises(DataError, match=r"images.zip/b/0.png cannot be read"):
        ZipImages(archive, MEMBERS)[3]
    archive.unlink()
    with pytest.raises(DataError, match=r"images.zip/a/0.png cannot be read: .*No such file"):
        ZipImages(archive, MEMBERS)[0]


def test_a_file_that_is_no_zip_file_is_named(archive: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"images.zip cannot be read as a.*again, or give a folder"):
        zipped_images(archive)
    with pytest.raises(DataError, match=r"There is no zip file .*other.zip. Check the path"):
        zipped_images(archive.parent / "other.zip")
