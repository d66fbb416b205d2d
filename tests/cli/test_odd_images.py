"""A folder of odd images through every verb: right images are used, and bad ones are named."""

import json
from pathlib import Path

import pytest
from pyarrow import parquet

from semigpc.io import images
from semigpc.io.images import RangeNote
from tests.cli.calls import semigpc, worked
from tests.cli.conftest import Trained
from tests.cli.own_data import write_table
from tests.io.odd_images import BAD, GOOD, Odd, write_odd

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::semigpc.io.images.RangeNote"),
]
TINY = "--model test_resnet --pretrained none --image-size 32"
OPTIONS = "--algorithm supervised --refiner none --steps 1 --set train.threads=1"
NAMES = sorted(odd.name for odd in GOOD)


def labels_of(folder: Path) -> Path:
    rows = [(name, "ab"[number % 2]) for number, name in enumerate(NAMES[:20])]
    write_table(folder / "labels.csv", rows)
    return folder / "labels.csv"


def test_embed_names_all_bad_images_and_skips_them_if_told_to(tmp_path: Path) -> None:
    photos = write_odd(tmp_path / "photos")
    out = tmp_path / "x.parquet"
    images._note_range.cache_clear()
    with pytest.warns(RangeNote) as noted:
        done = semigpc("embed", photos, "--out", out, TINY)
    assert len(noted) == 1, "one note for all images of fewer bits"
    assert done.exit_code == 1
    assert f"{len(BAD)} of {len(BAD) + len(GOOD)} images cannot be read" in done.stderr
    listed = Path(f"{out}.bad.txt").read_text().splitlines()
    assert [line.split("\t")[0] for line in listed] == sorted(odd.name for odd in BAD)
    worked("embed", photos, "--out", out, TINY, "--skip-bad")
    assert parquet.read_table(out).column("file_name").to_pylist() == NAMES


def test_label_does_the_same(tmp_path: Path) -> None:
    photos = write_odd(tmp_path / "photos")
    network = "--model test_resnet --pretrained none"
    command = ("label", photos, "--labels", labels_of(tmp_path), "--out", tmp_path / "out", network)
    done = semigpc(*command)
    assert done.exit_code == 1
    assert f"{len(BAD)} of {len(BAD) + len(GOOD)} images cannot be read" in done.stderr
    done = worked(*command, "--skip-bad --json")
    assert json.loads(done.stdout)["rows"] == len(GOOD)


@pytest.mark.parametrize("bad", BAD, ids=lambda odd: odd.name)
def test_train_and_predict_name_a_bad_image(tmp_path: Path, trained: Trained, bad: Odd) -> None:
    photos = write_odd(tmp_path / "photos", lambda odd: odd in GOOD[:4] or odd is bad)
    names = [*(odd.name for odd in GOOD[:4]), bad.name]
    rows = [(name, "ab"[number % 2]) for number, name in enumerate(names)]
    write_table(tmp_path / "labels.csv", rows)
    labels = tmp_path / "labels.csv"
    done = semigpc("train", photos, "--labels", labels, "--out", tmp_path / "run", OPTIONS)
    assert done.exit_code == 1, done.output
    assert f"{photos / bad.name} cannot be read" in done.stderr
    done = semigpc("predict", trained.run, photos)
    assert done.exit_code == 1, done.output
    assert f"{photos / bad.name} cannot be read" in done.stderr


def test_train_and_predict_use_all_good_images(tmp_path: Path, trained: Trained) -> None:
    photos = write_odd(tmp_path / "photos", lambda odd: odd in GOOD)
    labels = labels_of(tmp_path)
    worked("train", photos, "--labels", labels, "--out", tmp_path / "run", OPTIONS)
    (photos / BAD[0].name).write_bytes(BAD[0].content)
    done = worked("predict", trained.run, photos, "--skip-bad --json")
    files = [Path(row["file_name"]).name for row in json.loads(done.stdout)]
    assert files == NAMES
    assert f"skipped: The image {photos / BAD[0].name} cannot be read" in done.stderr
