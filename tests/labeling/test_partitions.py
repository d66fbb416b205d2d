"""Partitions, read and labelled one by one, by whoever does it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from semigpc.io.errors import DataError
from semigpc.io.parts import Address, Folder, Key, ObjectStore, place_of
from semigpc.labeling import ray as ray_module
from semigpc.labeling import scan as scan_module
from semigpc.labeling.columns import ColumnOptions
from semigpc.labeling.label import LabelSettings, fit, label_data, shard_rows, table_inputs
from semigpc.labeling.outputs import Labeller, Tally
from semigpc.labeling.project import Project
from semigpc.labeling.ray import (
    BulkFolder,
    Gathering,
    Labelling,
    Partitions,
    label_on_ray,
    sample_bound,
)
from semigpc.labeling.scan import Gathered, LabelLookup, Scan, keys_of, scan
from semigpc.labeling.source import open_source
from semigpc.report.labeling_summary import LabelingSummary
from tests.labeling.partitioned import (
    CUTS,
    IDS,
    LABELS,
    X,
    assert_same_labels,
    partitioned,
    read_labels,
    write_partitions,
    write_uneven,
)
from tests.labeling.samples import labels_of, list_column, table_of


def opened(folder: Path) -> Partitions:
    return Partitions(Folder(folder), ColumnOptions())


def gathered(
    partitions: Partitions, given: dict[str, str] | None, *, below: float = 1.0
) -> Gathered:
    """What the driver makes of all partitions."""
    gathering = Gathering(partitions, given, 0, below)
    merged = Gathered(partitions.source.width, 0, below=below)
    for number in range(len(partitions)):
        merged.absorb(gathering(number))
    gathering.check(merged)
    return merged


def assert_same_scan(one: Scan, other: Scan) -> None:
    for name in ("rows", "ids", "labels", "bad_labels"):
        assert getattr(one, name) == getattr(other, name), name
    for name in ("labelled", "x", "sample", "sample_x", "bad"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


# Reading ------------------------------------------------------------------------------------------


def test_partitions_are_one_table_in_the_order_of_their_names(tmp_path: Path) -> None:
    partitions = opened(write_partitions(tmp_path / "data"))
    assert partitions.starts.tolist() == list(CUTS)
    found = [batch for number in range(5) for batch in partitions.batches(number, 5000)]
    assert [batch.first for batch in found] == [0, 700, 701, 2600]
    assert [name for batch in found for name in batch.ids] == IDS
    np.testing.assert_array_equal(np.concatenate([batch.x for batch in found]), X)
    cut = [(batch.first, len(batch.ids)) for batch in partitions.batches(3, 800)]
    assert cut == [(701, 800), (1501, 800), (2301, 299)]


def test_row_numbers_are_the_ids_where_there_are_none(tmp_path: Path) -> None:
    table = pyarrow.table({"embedding": list_column(X[:5])})
    for number in range(3):
        parquet.write_table(table, tmp_path / f"{number}.parquet")
    partitions = opened(tmp_path)
    assert [batch.ids for batch in partitions.batches(2, 3)] == [["10", "11", "12"], ["13", "14"]]


def test_folders_inside_are_partitions_too_and_other_files_are_ignored(tmp_path: Path) -> None:
    for name in ("b/0.parquet", "a/1.parquet", "a/_metadata.parquet", ".hidden/3.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        parquet.write_table(table_of(X[:2], IDS[:2]), tmp_path / name)
    (tmp_path / "readme.txt").write_text("hello")
    partitions = opened(tmp_path)
    assert partitions.names == ["a/1.parquet", "b/0.parquet"]
    assert partitions.ignored == ["readme.txt"]


def test_what_is_read_changes_with_the_files(tmp_path: Path) -> None:
    before = opened(write_partitions(tmp_path / "data")).content
    assert opened(tmp_path / "data").content == before
    parquet.write_table(table_of(X[:10], IDS[:10]), tmp_path / "data" / "part-01.parquet")
    assert opened(tmp_path / "data").content != before


def test_a_file_address_is_a_path_and_others_keep_their_slashes(tmp_path: Path) -> None:
    assert place_of(f"file://{tmp_path}/with%20space") == tmp_path / "with space"
    assert not isinstance(place_of(str(tmp_path)), Address)
    address = "s3://bucket/some/folder"
    there = place_of(address)
    assert (str(there), there.name) == (address, "folder")
    assert str(there / "x.parquet") == f"{address}/x.parquet"
    with pytest.raises(DataError, match=r"nosuch://a/b cannot be opened: .* Give a.*pyarrow knows"):
        ObjectStore(place_of("nosuch://a/b"))


# Bad input ----------------------------------------------------------------------------------------


def test_a_place_without_partitions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"There is no folder .*nowhere\. Check the path"):
        opened(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"There are no \.parquet.*Labelling on Ray takes a folder"):
        opened(tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"takes a folder of \.parquet.*is a file\. .*engine=local"):
        opened(tmp_path / "file")
    parquet.write_table(table_of(X[:0], []), tmp_path / "empty" / "0.parquet")
    with pytest.raises(DataError, match=r"The 1 partitions of.*no rows\. Nothing can be labelled"):
        opened(tmp_path / "empty")


def test_a_partition_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    write_partitions(tmp_path)
    (tmp_path / "part-03.parquet").write_bytes(b"no table at all")
    with pytest.raises(DataError, match=r"part-03\.parquet cannot be.*as Parquet: .* or remove it"):
        opened(tmp_path)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"embeding": list_column(X[:4])}, r"x\.parquet has no column 'embedding'.*'embeding'"),
        (
            {"embedding": list_column(X[:4, :5])},
            r"'embedding' of .*x\.pa.*\[5\].* part-00\..*\[6\]",
        ),
        ({"embedding": list_column(X[:4].astype(float))}, r"'embedding' of .*double.* is .*float"),
        ({"embedding": ["a"] * 4}, r"Features must be numbers; .*x\.parquet is string"),
    ],
    ids=["column", "width", "dtype", "text"],
)
def test_one_partition_that_is_not_like_the_others_is_named_before_any_row_is_read(
    tmp_path: Path, columns: dict[str, Any], words: str
) -> None:
    write_partitions(tmp_path)
    parquet.write_table(pyarrow.table({"id": IDS[:4], **columns}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match=words):
        opened(tmp_path)


def test_an_embedding_of_another_length_is_named_by_partition_and_row(tmp_path: Path) -> None:
    write_uneven(tmp_path)
    with pytest.raises(DataError, match=r"row 2 of .*1\.parquet has 1 values, and the first has 2"):
        gathered(opened(tmp_path), {})


def test_ids_that_occur_twice_are_named_by_partition_and_row(tmp_path: Path) -> None:
    ids = IDS.copy()
    ids[2000] = ids[1000]
    with pytest.raises(DataError, match=r"'row-01000' in row.*and row 1300 of .*part-03\.parquet"):
        gathered(opened(write_partitions(tmp_path / "one", ids=ids)), LABELS)
    ids[2000], ids[2700] = IDS[2000], ids[5]
    with pytest.raises(DataError, match=r"'row-00005' in row 6.*and row 101 of .*part-04\.parquet"):
        gathered(opened(write_partitions(tmp_path / "two", ids=ids)), LABELS)


def test_of_very_many_rows_only_labelled_ids_are_compared_over_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_module, "COMPARED_ROWS", 2999)
    ids, labelled = IDS.copy(), next(iter(LABELS))
    plain = next(name for name in IDS[:700] if name not in LABELS)
    ids[2700] = plain
    assert gathered(opened(write_partitions(tmp_path / "one", ids=ids)), LABELS).rows == 3000
    ids[2700] = labelled
    with pytest.raises(DataError, match=rf"{labelled!r},.*of .*part-00.* and row 101 of .*part-04"):
        gathered(opened(write_partitions(tmp_path / "two", ids=ids)), LABELS)


# The same numbers ---------------------------------------------------------------------------------


def test_partitions_gather_what_the_local_engine_gathers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan_module, "SAMPLE", 200)
    x = X.copy()
    x[[3, 700, 2650]] = np.nan
    bad_label = {IDS[3]: "ant"}
    folder = write_partitions(tmp_path, x=x)
    expected = scan(open_source(folder), LabelLookup(LABELS | bad_label), size=256, skip_bad=True)
    assert len(expected.sample) == 200
    for below in (1.0, 0.15):
        found = gathered(opened(folder), LABELS | bad_label, below=below)
        assert_same_scan(found.result(), expected)


def test_keys_depend_on_the_row_alone_and_the_bound_leaves_enough_of_them() -> None:
    np.testing.assert_array_equal(keys_of(0, 1000, 7)[300:500], keys_of(300, 200, 7))
    np.testing.assert_array_equal(keys_of(0, 1000, 7), np.random.default_rng(7).random(1000))
    rows = 2_000_000
    assert (keys_of(0, rows, 0) < sample_bound(rows, 500)).sum() > 1.9 * 20_000
    assert sample_bound(1000, 500) == 1.0


@pytest.mark.slow
def test_partitions_get_the_labels_of_the_local_engine(tmp_path: Path) -> None:
    x = X.copy()
    x[[5, 2650]] = np.nan
    write_partitions(tmp_path / "data", x=x)
    settings = partitioned(tmp_path, skip_bad=True, shard=1100)
    label_data(settings)
    partitions = opened(settings.data)
    inputs = table_inputs(settings, partitions.source, settings.data)
    found = gathered(partitions, inputs.labels).result()
    labeller = Labeller(fit(found, settings)[0], found, "id")
    out = BulkFolder(Folder(tmp_path / "bulk"), {})
    size = shard_rows(partitions.source, 1100)
    labelling = Labelling(partitions, labeller, out.parts, out.digest, size)
    facts = [labelling(number) for number in (4, 2, 0, 3, 1)]
    ours, local = read_labels(tmp_path / "bulk"), labels_of(settings.out)
    assert_same_labels(ours, local, Project.open(settings.out))
    assert Tally.joined(facts).statuses.total() == 3000
    kept = out.finished(partitions)
    assert kept[4] == facts[0] | {"rows": 400}
    assert kept[2] == facts[1] | {"rows": 0}


# Writing ------------------------------------------------------------------------------------------


def write_partition(folder: BulkFolder, name: str, rows: int, **facts: str) -> None:
    table = table_of(X[:rows], IDS[:rows])
    with (
        folder.parts.draft(name) as place,
        parquet.ParquetWriter(place, table.schema, write_page_checksum=True) as writer,
    ):
        writer.write_table(table)
        writer.add_key_value_metadata({"semigpc": json.dumps(facts)})


def test_what_the_first_pass_found_is_kept_for_an_identical_run_alone(tmp_path: Path) -> None:
    x = X.copy()
    x[[3, 2650]] = np.inf
    data = write_partitions(tmp_path / "data", x=x)
    expected = gathered(opened(data), LABELS | {IDS[3]: "bee"}).result()
    folder = Folder(tmp_path)
    BulkFolder(folder, {"seed": 0}).save_scan(expected)
    kept = BulkFolder(folder, {"seed": 0}).load_scan()
    assert kept is not None
    assert_same_scan(kept, expected)
    assert BulkFolder(folder, {"seed": 1}).load_scan() is None


def test_only_partitions_of_the_same_key_and_size_count_as_finished(tmp_path: Path) -> None:
    folder = BulkFolder(Folder(tmp_path / "out"), {"seed": 0})
    other = BulkFolder(folder.folder, {"seed": 1})
    data = write_partitions(tmp_path / "data")
    write_partition(folder, "part-00.parquet", 700, digest=folder.digest)
    write_partition(folder, "part-01.parquet", 2, digest=folder.digest)
    write_partition(folder, "part-02.parquet", 0, digest=other.digest)
    labels = tmp_path / "out" / "labels"
    (labels / "part-03.parquet").write_bytes(b"PAR1")
    (labels / ".part-04.parquet.123.part").write_bytes(b"PAR1")
    assert list(folder.finished(opened(data))) == [0]
    assert not (labels / ".part-04.parquet.123.part").exists()


def test_a_folder_of_other_labels_is_not_written_to(tmp_path: Path) -> None:
    folder = BulkFolder(Folder(tmp_path / "out"), {"seed": 0, "data content": "x"})

    def wrong(words: str, key: Key, place: str = "out") -> None:
        with pytest.raises(DataError, match=words):
            BulkFolder(Folder(tmp_path / place), key).check()

    assert not folder.check()
    folder.note(1, 4)
    assert not folder.check()
    wrong(r"seed is 0 there and 1 here\. .*out=", {"seed": 1, "data content": "x"})
    wrong("the data content has changed since", {"seed": 0, "data content": "y"})
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "labels.parquet").touch()
    wrong(r"holds labels\.parquet, which labelling on Ray did not write", {}, "local")
    (tmp_path / "out" / "_partial.json").write_text("{broken")
    wrong(r"_partial\.json cannot be read", folder.key)


def test_partitions_of_somebody_else_are_not_overwritten(tmp_path: Path) -> None:
    folder = BulkFolder(Folder(tmp_path), {"data": "here"})
    folder.check_ours()
    write_partition(folder, "ours.parquet", 2, digest=folder.digest)
    folder.check_ours()
    parquet.write_table(table_of(X[:2], IDS[:2]), tmp_path / "labels" / "theirs.parquet")
    with pytest.raises(DataError, match=r"labels/theirs\.parquet, which labelling on Ray did not"):
        folder.check_ours()


def test_a_finished_folder_with_a_changed_partition_is_not_complete(tmp_path: Path) -> None:
    folder = BulkFolder(Folder(tmp_path), {"data": "here"})
    write_partition(folder, "one.parquet", 2)
    summary = cast("LabelingSummary", {"rows": 2, "partitions": 1, "statuses": {}})
    folder.complete(summary, None)
    assert folder.summary(report=False) is not None
    assert folder.summary(report=True) is None
    assert folder.altered() == []
    path = tmp_path / "labels" / "one.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:30] + bytes([content[30] ^ 1]) + content[31:])
    assert folder.altered() == ["labels/one.parquet"]
    path.unlink()
    assert folder.altered() == ["labels/one.parquet"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_labels_are_never_written_over_the_data(tmp_path: Path, overwrite: bool) -> None:
    data = tmp_path / "project" / "labels"
    data.mkdir(parents=True)
    parquet.write_table(pyarrow.table({"id": ["a"]}), data / "part.parquet")
    (tmp_path / "file").write_text("mine")
    settings = LabelSettings(data=data, labels=tmp_path / "labels.csv", out=tmp_path / "project")
    for out, words in (("project", "must not contain the data"), ("file", "must be a folder")):
        with pytest.raises(DataError, match=words):
            label_on_ray(replace(settings, out=tmp_path / out), overwrite=overwrite)
    assert (data / "part.parquet").exists()
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.slow
def test_the_local_engine_does_not_write_beside_partitions_unless_told_to_replace_them(
    tmp_path: Path,
) -> None:
    settings = partitioned(tmp_path)
    (settings.out / "labels").mkdir(parents=True)
    (settings.out / "_partial.json").write_text("{}")
    with pytest.raises(DataError, match=r"made with engine=ray\. .*overwrite"):
        label_data(settings)
    label_data(settings, overwrite=True)
    assert not (settings.out / "labels").exists()
    assert not (settings.out / "_partial.json").exists()
