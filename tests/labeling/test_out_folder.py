"""What the folder of labels may hold already."""

from pathlib import Path

import pyarrow
import pytest

from semigpc.io.atomic import facts_of, write_json
from semigpc.io.errors import DataError
from semigpc.labeling.outputs import OutFolder, content_hash, files_hash

KEY = {"seed": 0, "labels content": "abc"}


@pytest.fixture
def out(tmp_path: Path) -> OutFolder:
    """A folder in which labelling has begun."""
    begun = OutFolder(tmp_path / "out", KEY)
    assert not begun.check()
    begun.begin()
    return begun


def finish(out: OutFolder) -> None:
    (out.parts / "labels.csv").write_text("id,label\n")
    write_json(
        out.parts / "project.json", {"key": out.key, "files": facts_of(out.parts, ["labels.csv"])}
    )
    out.publish()


def test_parts_are_kept_for_an_identical_run_unless_it_begins_afresh(out: OutFolder) -> None:
    out.write_part(3, pyarrow.table({"a": [1]}))
    again = OutFolder(out.path, KEY)
    assert not again.check()
    again.begin()
    assert again.has_part(3)
    again.begin(afresh=True)
    assert not again.has_part(3)


def test_old_outputs_stay_until_all_new_ones_are_complete(out: OutFolder) -> None:
    finish(out)
    assert not out.parts.exists()
    (out.path / "reviews.jsonl").write_text("mine")
    again = OutFolder(out.path, KEY | {"seed": 1})
    again.begin(afresh=True)
    again.write_part(0, pyarrow.table({"a": [1]}))
    assert OutFolder(out.path, KEY).check(), "the old labels are whole"
    assert out.altered() == []
    write_json(again.parts / "project.json", {"key": again.key, "files": {}})
    again.publish()
    assert again.check()
    assert sorted(path.name for path in out.path.iterdir()) == ["project.json", "reviews.jsonl"]


def test_files_made_from_other_labels_are_renamed_and_never_lost(tmp_path: Path) -> None:
    for seed in range(4):
        out = OutFolder(tmp_path, KEY | {"seed": min(seed, 2)})  # the last two are the same
        out.begin(afresh=True)
        write_json(out.parts / "project.json", {"key": out.key, "files": {}})
        out.publish(new_names=out.outdated([tmp_path / "suggestions.csv"]))
        assert (tmp_path / "reviews.jsonl").exists() == (seed == 3)
        out.derived.claim("reviews.jsonl", "audit.json")
        (tmp_path / "reviews.jsonl").write_text(f"{seed}")
        (tmp_path / "suggestions.csv").write_text("an input of the next labels")
    (note,) = OutFolder(tmp_path, KEY | {"engine": "ray"}).rename_outdated(
        [tmp_path / "suggestions.csv"]
    )
    assert "reviews.earlier-labels-3.jsonl" in note
    kept = {path.name: path.read_text() for path in tmp_path.glob("reviews*")}
    names = [f"reviews.earlier-labels-{number}.jsonl" for number in (1, 2, 3)]
    assert kept == dict(zip(names, ("0", "1", "3"), strict=True))
    assert not list(tmp_path.glob("suggestions.earlier*")), "labels were read from it"
    (tmp_path / "reviews.earlier-labels-1.jsonl").rename(tmp_path / "audit.json")
    assert not out.derived.outdated(["audit.json"]), "renamed by hand, which says that it fits"


def test_a_damaged_part_is_named(out: OutFolder) -> None:
    out.write_part(0, pyarrow.table({"a": list(range(1000))}))
    path = out.parts / "00000.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 255  # in the middle of a page
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"00000\.parquet cannot be.*same command makes it again"):
        out.read_part(0)


@pytest.mark.parametrize("finished", [False, True])
def test_labels_that_were_made_otherwise_are_not_replaced(out: OutFolder, finished: bool) -> None:
    other = OutFolder(out.path, KEY | {"seed": 1})
    relabelled = OutFolder(out.path, KEY | {"labels content": "xyz"})
    assert not other.check()  # nothing is lost yet
    out.write_part(0, pyarrow.table({"a": [1]}))
    if finished:
        finish(out)
    by = r"project\.json" if finished else r"parts/key\.json"
    with pytest.raises(DataError, match=rf"by {by}, seed is.*there and 1 here\. .*out=.*overwrite"):
        other.check()
    with pytest.raises(DataError, match="the labels content has changed since"):
        relabelled.check()
    assert relabelled.check(ignoring="labels content") == finished


def test_files_that_are_not_ours_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("mine")
    (tmp_path / "reviews.jsonl").write_text("mine too")
    out = OutFolder(tmp_path, KEY)
    with pytest.raises(DataError, match=r"holds labels\.csv, which is not listed"):
        out.check()
    out.begin(afresh=True)
    assert (tmp_path / "reviews.jsonl").exists()
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
