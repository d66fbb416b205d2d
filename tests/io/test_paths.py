"""Paths from outside: pipes and devices are never opened, links stay inside, names are UTF-8."""

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from semigpc.data import ArraysConfig, FolderConfig, folder
from semigpc.data.arrays import load as load_arrays
from semigpc.data.folder import class_folders, from_table
from semigpc.io.atomic import trouble
from semigpc.io.errors import DataError, ImageError, RunError
from semigpc.io.images import read_image, zipped_images
from semigpc.io.paths import existing, images_below, sorted_images, unusable
from semigpc.io.tables import read_labels
from semigpc.labeling.columns import read_label_table
from semigpc.labeling.source import open_source
from semigpc.models.encoder import embed_folder
from semigpc.paper.fgvc import read_split
from semigpc.training.inference import images_at
from semigpc.training.run_folder import RunFolder
from tests.data.samples import write_images
from tests.labeling.samples import IDS, X, write

# the letter e with an accent as one byte, as Python shows a name that is not UTF-8
LATIN = "latin\udce9"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two class folders, and images elsewhere that links may lead to."""
    write_images(tmp_path / "photos", {"ant": 2, "bee": 2})
    write_images(tmp_path / "elsewhere", {"deep": 2, ".": 1})
    return tmp_path / "photos"


def pipe(path: Path) -> Path:
    os.mkfifo(path)
    return path


ENDINGS = ("parquet", "arrow", "feather", "csv", "npz")
READERS: dict[str, Callable[[Path], object]] = {
    **dict.fromkeys([f"data.{ending}" for ending in ENDINGS], open_source),
    "labels.csv": lambda path: read_label_table(path, "id"),
    "labels.parquet": lambda path: read_label_table(path, "id"),
    "table.csv": read_labels,
    "table.parquet": read_labels,
    "images.npz": lambda path: load_arrays(ArraysConfig(path=str(path)), 0),
    "image.png": read_image,
    "predicted.png": lambda path: images_at([path]),
    "folder": lambda path: embed_folder(path, path.with_name("x.parquet")),
    "root": lambda path: folder.load(FolderConfig(root=str(path)), 0),
    "pool.zip": zipped_images,
    "split.txt": read_split,
}


@pytest.mark.parametrize("name", READERS)
def test_a_named_pipe_is_refused_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=rf"{name}.* cannot be.*pipe, and reading it may never end"):
        READERS[name](pipe(tmp_path / name))


def test_a_held_out_part_is_no_pipe_either(photos: Path) -> None:
    pipe(photos.parent / "test.csv")
    for option in ("test", "validation", "labels"):
        given: dict[str, Any] = {option: str(photos.parent / "test.csv")}
        with pytest.raises(DataError, match=r"test.csv cannot be read: it is a named pipe"):
            folder.load(FolderConfig(root=str(photos), **given), 0)


@pytest.mark.parametrize("name", ["config.json", "split.json", "metrics.jsonl"])
def test_a_run_folder_with_a_pipe_in_it_is_refused(tmp_path: Path, name: str) -> None:
    pipe(tmp_path / name)
    folder = RunFolder(tmp_path)
    read = folder.read_split if name == "split.json" else folder.experiment
    with pytest.raises(RunError, match=rf"{name} cannot be read: it is a named pipe"):
        read()


def test_sockets_and_devices_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        monkeypatch.chdir(tmp_path)  # the address of a socket has 108 letters at most
        server.bind("s.png")
    assert "a socket" in str(trouble(tmp_path / "s.png"))
    assert "a device" in str(trouble(Path("/dev/null")))
    assert trouble(tmp_path) is None
    assert trouble(tmp_path / "nowhere") is None
    assert trouble(tmp_path / "nul\0.png") is None
    with pytest.raises(DataError, match="null cannot be read: it is a device"):
        existing("/dev/null", "The table")


def test_a_pipe_among_images_is_named(photos: Path) -> None:
    pipe(photos / "ant" / "pipe.png")
    for read in (images_below, class_folders, lambda place: images_at([place])):
        with pytest.raises(DataError, match=r"1 images of .*photos cannot be.*it is a named pipe"):
            read(photos)
    (photos / "labels.csv").write_text("file_name,label\nant/pipe.png,ant\nbee/0.png,bee\n")
    with pytest.raises(DataError, match=r"labels.csv cannot be used \(ant/pipe.png:.*a named pipe"):
        from_table(photos / "labels.csv", photos)
    (photos / "ant" / "pipe.png").rename(photos / "ant" / "pipe.txt")
    assert len(images_below(photos)) == 4, "what is not called an image is nobody's concern"


def link(path: Path, target: Path) -> None:
    path.symlink_to(target, target_is_directory=target.is_dir())


def test_links_that_lead_out_need_permission(photos: Path) -> None:
    outside = photos.parent / "elsewhere"
    link(photos / "ant" / "far.png", outside / "0.png")
    link(photos / "bee" / "far", outside / "deep")
    link(photos / "ant" / "near.png", photos / "bee" / "0.png")
    for read in (images_below, class_folders, lambda place: images_at([place])):
        with pytest.raises(DataError, match=r"2 images of .*\(ant/far.png: a link.*.*follow_links"):
            read(photos)
    near = ["ant/0.png", "ant/1.png", "ant/near.png", "bee/0.png", "bee/1.png"]
    assert sorted_images(photos)[0] == near
    everything = sorted([*near, "ant/far.png", "bee/far/0.png", "bee/far/1.png"])
    assert images_below(photos, follow_links=True) == everything
    assert list(class_folders(photos, follow_links=True).labels) == everything
    assert len(images_at([photos], follow_links=True)) == len(everything)
    skipped: list[tuple[str, str]] = []
    assert len(images_at([photos], skipped=skipped)) == 5
    assert [name for name, _ in skipped] == ["ant/far.png", "bee/far"]


def test_a_class_folder_may_be_a_link_only_with_permission(photos: Path) -> None:
    link(photos / "cat", photos.parent / "elsewhere")
    with pytest.raises(DataError, match=r"\(cat: a link that leads out of the folder"):
        folder.load(FolderConfig(root=str(photos)), 0)
    data = folder.load(FolderConfig(root=str(photos), follow_links=True), 0)
    assert data.class_names == ("ant", "bee", "cat")
    assert data.class_counts.tolist() == [2, 2, 3]


def test_a_table_cannot_name_what_lies_outside(photos: Path) -> None:
    link(photos / "bee" / "far", photos.parent / "elsewhere")
    table = photos.parent / "labels.csv"
    table.write_text("file_name,label\nant/0.png,ant\nbee/far/0.png,bee\n")
    with pytest.raises(DataError, match=r"labels.csv cannot be.*link that leads out of the folder"):
        from_table(table, photos)
    assert from_table(table, photos, follow_links=True).classes == {"ant", "bee"}
    table.write_text(f"file_name,label\n{'x' * 300}.png,ant\nant,bee\n")
    with pytest.raises(DataError, match="lists 1 images that are not below"):
        from_table(table, photos)


def test_links_in_a_circle_come_to_an_end(photos: Path) -> None:
    outside = photos.parent / "elsewhere"
    link(photos / "up", photos.parent)
    link(outside / "deep" / "again", outside)
    link(outside / "deep" / "home", photos)
    found = images_below(photos, follow_links=True)
    assert {"ant/0.png", "up/elsewhere/0.png", "up/elsewhere/deep/1.png"} <= set(found)
    assert len(found) < 30


def test_a_link_to_nothing_is_named(photos: Path) -> None:
    link(photos / "ant" / "gone.png", photos / "nothing.png")
    with pytest.raises(DataError, match=r"ant/gone.png: a link to something that does not exist"):
        images_below(photos)


def test_shards_may_be_links_only_with_permission(tmp_path: Path) -> None:
    shards = write(tmp_path, "shards", X, IDS)
    (shards / "001.parquet").rename(tmp_path / "away.parquet")
    link(shards / "001.parquet", tmp_path / "away.parquet")
    with pytest.raises(DataError, match=r"\(001.parquet: a link.*of the folder.*follow_links=True"):
        open_source(shards)
    assert open_source(shards, follow_links=True).rows == len(X)
    (shards / "001.parquet").unlink()
    pipe(shards / "001.parquet")
    with pytest.raises(DataError, match=r"\(001.parquet: it is a named pipe"):
        open_source(shards)


def test_names_that_are_not_utf8_are_refused_and_can_be_printed(photos: Path) -> None:
    (photos / "ant" / "0.png").rename(photos / "ant" / f"{LATIN}.png")
    for read in (images_below, class_folders, lambda place: images_at([place])):
        words = r"\(ant/latin\\udce9.png: its name is not UTF-8; rename it\)"
        with pytest.raises(DataError, match=words) as caught:
            read(photos)
        str(caught.value).encode()
    with pytest.raises(DataError, match=r"latin\\udce9.png cannot be read: its name is not UTF-8"):
        images_at([photos / "ant" / f"{LATIN}.png"])
    with pytest.raises(ImageError, match=r"latin\\udce9.png cannot be read"):
        read_image(photos / "ant" / f"{LATIN}.png")


def test_a_name_is_not_blamed_for_an_environment_that_is_not_utf8(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "ant" / "0.png").rename(photos / "ant" / f"{LATIN}.png")
    monkeypatch.setattr(sys, "getfilesystemencoding", lambda: "ascii")
    with pytest.raises(DataError, match=r"latin\\udce9.png: .*ascii.*PYTHONUTF8=1"):
        images_below(photos)
    assert "PYTHONUTF8=1" in str(unusable(photos, f"ant/{LATIN}2.png"))


@pytest.mark.parametrize("name", READERS)
def test_inputs_whose_name_is_not_utf8_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / f"{LATIN}-{name}"
    path.write_text("anything")
    words = r"latin\\udce9-.* cannot be read: its name is not UTF-8; rename it"
    with pytest.raises(DataError, match=words) as caught:
        READERS[name](path)
    str(caught.value).encode()


def test_a_class_folder_whose_name_is_not_utf8_is_refused(photos: Path) -> None:
    (photos / "ant").rename(photos / LATIN)
    with pytest.raises(DataError, match=r"latin\\udce9/0.png: its name is not UTF-8"):
        class_folders(photos)
