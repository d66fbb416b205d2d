"""Images that cannot be read, or look as if they could not: found, told and left out, or embedded
all the same.
"""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semigpc.io.errors import ImageError
from semigpc.labeling.embed import embed_folder
from tests.data.samples import random_image, write_images
from tests.labeling.embedding_samples import TINY, leftovers, rows_of


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_images(tmp_path / "photos", {"b": 4, "a/deep": 3}, size=(20, 15))
    return tmp_path / "photos"


def spoil(photos: Path, outside: Path) -> None:
    (photos / "a/text.jpg").write_text("no image")
    whole = random_image(60, 40, np.random.default_rng(0))
    whole.save(photos / "whole.jpg")
    (photos / "b/cut.jpg").write_bytes((photos / "whole.jpg").read_bytes()[:900])
    (photos / "huge.ppm").write_bytes(b"P6 20000 20000 255\n" + bytes(3000))
    whole.save(outside)
    (photos / "link.png").symlink_to(outside)
    (photos / "fine_link.png").symlink_to(photos / "b/0.png")


def test_all_bad_images_are_found_before_any_is_told(photos: Path, tmp_path: Path) -> None:
    spoil(photos, tmp_path / "outside.png")
    out = tmp_path / "x.parquet"
    with pytest.raises(
        ImageError,
        match=r"4 of 13 images cannot be read \(a/text.jpg: cannot identify image file; b/cut.jp",
    ):
        embed_folder(photos, out, TINY)
    assert not out.exists()
    told = dict(
        line.split("\t") for line in (tmp_path / "x.parquet.bad.txt").read_text().splitlines()
    )
    assert list(told) == ["a/text.jpg", "b/cut.jpg", "huge.ppm", "link.png"]
    assert "truncated" in told["b/cut.jpg"]
    assert told["huge.ppm"].startswith(
        "has 400000000 pixels, and 178000000 is the most. Make it smaller"
    )
    assert (
        told["link.png"]
        == f"a link that leads out of the folder, to {tmp_path / 'outside.png'} (--follow-links permits it)"
    )

    skipped = embed_folder(photos, out, TINY, skip_bad=True)
    assert (skipped.rows, skipped.made, [name for name, _ in skipped.bad]) == (9, 0, list(told))
    assert {"fine_link.png", "whole.jpg"} < set(rows_of(out))
    assert embed_folder(photos, out, TINY, skip_bad=True) == skipped._replace(made=None)
    with pytest.raises(ImageError, match="4 of 13 images cannot be read"):
        embed_folder(photos, out, TINY)


def test_images_that_were_mended_are_taken_up(photos: Path, tmp_path: Path) -> None:
    good = (photos / "b/0.png").read_bytes()
    (photos / "b/0.png").write_text("no image")
    with pytest.raises(ImageError, match="1 of 7"):
        embed_folder(photos, tmp_path / "x.parquet", TINY)
    (photos / "b/0.png").write_bytes(good)
    assert embed_folder(photos, tmp_path / "x.parquet", TINY)[1:4] == (7, [], 1)
    assert leftovers(tmp_path) == []  # nor the list of bad ones


def test_a_folder_of_nothing_but_bad_images_is_an_error_in_any_case(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.jpg").write_text("no image")
    with pytest.raises(
        ImageError, match=r"None of the 1 images can be read \(a.jpg: cannot identify image file\)"
    ):
        embed_folder(tmp_path / "photos", tmp_path / "x.parquet", TINY, skip_bad=True)


def test_a_large_image_is_welcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Image, "MAX_IMAGE_PIXELS", 1000
    )  # from which on Pillow warns; it refuses twice as many
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (40, 40)).save(tmp_path / "photos/large.png")
    Image.new("RGB", (1500, 1)).save(tmp_path / "photos/thin.png")
    assert embed_folder(tmp_path / "photos", tmp_path / "x.parquet", TINY).rows == 2


def test_names_of_any_kind(photos: Path, tmp_path: Path) -> None:
    content = (photos / "b/0.png").read_bytes()
    for name in ("<b>&.png", "line\nbreak.png", "größe.png", ".hidden.png"):
        (photos / name).write_bytes(content)
    (photos / ".cache").mkdir()
    (photos / ".cache/a.png").write_bytes(content)
    (photos / "notes.txt").write_text("not an image, nor called one")
    (photos / "broken\n.png").write_text("no image")
    with (Path(str(photos)) / "latin\udce9.png").open("wb") as file:
        file.write(content)
    result = embed_folder(photos, tmp_path / "x.parquet", TINY, skip_bad=True)
    assert set(rows_of(result.path)) >= {"<b>&.png", "line\nbreak.png", "größe.png"}
    assert result.rows == 10
    assert (tmp_path / "x.parquet.bad.txt").read_text().splitlines() == [
        "broken\\n.png\tcannot identify image file",
        "latin\\udce9.png\tits name is not UTF-8; rename it",
    ]
