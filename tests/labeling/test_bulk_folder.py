"""What labelling on Ray refuses to write to, before anything is started."""

from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from semigpc.io.errors import DataError
from semigpc.labeling.bulk import Store
from semigpc.labeling.inputs import LabelSettings
from semigpc.labeling.ray import BulkFolder, label_on_ray


def settings(data: Path, out: Path) -> LabelSettings:
    return LabelSettings(data=data, labels=data.parent / "labels.csv", out=out)


def test_a_folder_that_holds_the_data_is_refused_even_to_overwrite(tmp_path: Path) -> None:
    data = tmp_path / "project" / "labels"
    data.mkdir(parents=True)
    parquet.write_table(pyarrow.table({"id": ["a"]}), data / "part.parquet")
    for overwrite in (False, True):
        with pytest.raises(
            DataError, match=r"--out must not hold the data, as it is cleared to make labels again"
        ):
            label_on_ray(settings(data, tmp_path / "project"), overwrite=overwrite)
    assert (data / "part.parquet").exists()


def test_a_file_is_no_place_for_partitions(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "out").write_text("mine")
    with pytest.raises(DataError, match=r"--out must be a folder; .* is a file"):
        label_on_ray(settings(tmp_path / "data", tmp_path / "out"))


def test_partitions_of_somebody_else_are_not_overwritten(tmp_path: Path) -> None:
    store = Store(tmp_path)
    folder = BulkFolder(store, {"data": "here"})
    folder.check_ours()
    (tmp_path / "labels").mkdir()
    table = pyarrow.table({"id": ["a"]})
    store.write_table(
        "labels/ours.parquet", table.schema, [table], lambda: {"digest": folder.digest}
    )
    folder.check_ours()
    parquet.write_table(table, tmp_path / "labels" / "theirs.parquet")
    with pytest.raises(
        DataError,
        match=r"labels/theirs\.parquet, which labelling on Ray did not write and will not delete",
    ):
        folder.check_ours()


def test_a_finished_folder_with_a_partition_cut_short_is_not_taken_for_complete(
    tmp_path: Path,
) -> None:
    folder = BulkFolder(Store(tmp_path), {"data": "here"})
    table = pyarrow.table({"id": ["a", "b"]})
    folder.store.write_table("labels/one.parquet", table.schema, [table], dict)
    folder.complete({"rows": 2, "partitions": 1, "statuses": {}}, None)
    assert folder.summary(report=False) is not None
    assert folder.summary(report=True) is None
    assert folder.altered() == []
    path = tmp_path / "labels" / "one.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:30] + bytes([content[30] ^ 1]) + content[31:])
    assert folder.altered() == ["labels/one.parquet"]
    path.unlink()
    assert folder.altered() == ["labels/one.parquet"]
