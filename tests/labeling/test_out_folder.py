"""What the folder of labels may hold already."""

import json
from pathlib import Path

import pyarrow
import pytest

from semigpc.data import DataError
from semigpc.labeling.out_folder import OutFolder, content_hash, files_hash

KEY = {"seed": 0, "labels content": "abc"}


def finish(out: OutFolder) -> None:
    out.write_text("project.json", json.dumps({"key": out.key}))
    out.remove_parts()


def test_parts_are_kept_for_an_identical_run(tmp_path: Path) -> None:
    out = OutFolder(tmp_path / "out", KEY)
    assert not out.check()
    out.begin()
    out.write_part(3, pyarrow.table({"a": [1]}))
    assert out.part(3).name == "00003.parquet"
    again = OutFolder(tmp_path / "out", KEY)
    assert not again.check()
    again.begin()
    assert again.part(3).exists()
    again.begin(afresh=True)
    assert not again.part(3).exists()


def test_a_finished_folder_is_known(tmp_path: Path) -> None:
    out = OutFolder(tmp_path / "out", KEY)
    out.begin()
    finish(out)
    assert OutFolder(tmp_path / "out", KEY).check()
    assert not out.parts.exists()


@pytest.mark.parametrize("finished", [False, True])
def test_labels_that_were_made_otherwise_are_not_replaced(tmp_path: Path, finished: bool) -> None:
    out = OutFolder(tmp_path / "out", KEY)
    out.begin()
    assert not OutFolder(tmp_path / "out", KEY | {"seed": 1}).check()  # nothing is lost yet
    out.write_part(0, pyarrow.table({"a": [1]}))
    if finished:
        finish(out)
    with pytest.raises(DataError, match=r"made otherwise: seed is 0 there and 1 here\. Give another --out, or --overwrite"):
        OutFolder(tmp_path / "out", KEY | {"seed": 1}).check()
    with pytest.raises(DataError, match="the labels content has changed since"):
        OutFolder(tmp_path / "out", KEY | {"labels content": "xyz"}).check()
    assert OutFolder(tmp_path / "out", KEY | {"labels content": "xyz"}).check(ignoring="labels content") == finished


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("mine")
    (tmp_path / "reviews.jsonl").write_text("mine too")
    out = OutFolder(tmp_path, KEY)
    with pytest.raises(DataError, match=r"holds labels\.csv, which no finished labelling says to have written"):
        out.check()
    out.begin(afresh=True)
    assert (tmp_path / "reviews.jsonl").exists()
    with pytest.raises(DataError, match="must be a folder"):
        OutFolder(tmp_path / "reviews.jsonl", KEY).check()
    (tmp_path / "project.json").write_text("{")
    with pytest.raises(DataError, match=r"project\.json cannot be read"):
        out.check()


def test_hashes_follow_what_they_are_of(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    before = content_hash(path), files_hash([path])
    assert (content_hash(path), files_hash([path])) == before
    path.write_text("four")
    assert content_hash(path) != before[0]
    assert files_hash([path]) != before[1]
    assert content_hash(None) is content_hash(tmp_path / "b") is None
