"""Tables of embeddings in files of every kind."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from semigpc.io.errors import DataError
from semigpc.labeling import source as source_module
from semigpc.labeling.columns import ColumnOptions
from semigpc.labeling.source import ParquetTable, open_source
from tests.labeling.samples import IDS, KINDS, X, blobs, table_of, write


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_file_gives_the_same_rows_in_order(tmp_path: Path, kind: str) -> None:
    source = open_source(write(tmp_path, kind, X, IDS))
    batches = list(source.batches(70))
    assert [len(batch.ids) for batch in batches] == [70, 70, 70, 70, 20]
    assert [batch.first for batch in batches] == [0, 70, 140, 210, 280]
    assert [name for batch in batches for name in batch.ids] == IDS
    np.testing.assert_array_equal(np.concatenate([batch.x for batch in batches]), X)
    assert all(batch.x.dtype == np.float32 and batch.labels is None for batch in batches)
    assert source.width == X.shape[1]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_read_at_random(tmp_path: Path, kind: str) -> None:
    source = open_source(write(tmp_path, kind, X, IDS))
    rows = np.random.default_rng(1).integers(0, len(X), 50)  # in no order, some twice
    np.testing.assert_array_equal(source.take(rows), X[rows])
    assert source.take(np.array([], dtype=np.int64)).shape == (0, X.shape[1])
    with pytest.raises(DataError, match="has no row 301"):
        source.take(np.array([0, 300]))


def test_no_batch_is_larger_than_asked_for_whatever_the_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, ids, _ = blobs(1000)
    path = write(tmp_path, "parquet", x, ids, group=1000)
    monkeypatch.setattr(source_module, "READ_ROWS", 50)
    read: list[int] = []
    batches = ParquetTable.batches

    def counted(table: Any, reading: Any, size: int, within: Any = None) -> Any:
        for first, batch in batches(table, reading, size, within):
            read.append(len(batch))
            yield first, batch

    monkeypatch.setattr(ParquetTable, "batches", counted)
    assert max(len(batch.ids) for batch in open_source(path).batches(120)) == 120
    assert max(read) == 50


@pytest.mark.slow
def test_a_large_row_group_takes_little_memory(tmp_path: Path) -> None:
    size, width = 200_000, 48
    x = np.random.default_rng(0).normal(size=(size, width)).astype(np.float32)
    path = write(tmp_path, "parquet", x, [str(i) for i in range(size)], group=size)
    before, most, rows = pyarrow.total_allocated_bytes(), 0, 0
    for batch in open_source(path).batches(4096):
        assert len(batch.ids) == batch.x.shape[0] <= 4096
        rows += len(batch.ids)
        most = max(most, pyarrow.total_allocated_bytes() - before)
    assert rows == size
    assert most < x.nbytes / 2


def test_of_parquet_only_the_row_groups_that_are_asked_for_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(write(tmp_path, "parquet", X, IDS, group=50))
    read: list[int] = []
    iterate = parquet.ParquetFile.iter_batches

    def counted(file: Any, *arguments: Any, row_groups: list[int], **options: Any) -> Any:
        read.extend(row_groups)
        return iterate(file, *arguments, row_groups=row_groups, **options)

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", counted)
    np.testing.assert_array_equal(source.take(np.array([260, 55, 51])), X[[260, 55, 51]])
    assert read == [1, 5]


@pytest.mark.parametrize("kind", ["float16", "float64", "int8", "int64", "bool"])
def test_numbers_of_any_type_become_float32(tmp_path: Path, kind: str) -> None:
    values: NDArray[Any] = np.array([[0, 1, 0], [1, 1, 0]]).astype(kind)
    parquet.write_table(table_of(values, ["a", "b"]), tmp_path / "list.parquet")
    columns = {f"f{i}": pyarrow.array(values[:, i]) for i in range(3)}
    parquet.write_table(pyarrow.table({"id": ["a", "b"], **columns}), tmp_path / "columns.parquet")
    np.savez(tmp_path / "data.npz", embeddings=values)
    for name in ("list.parquet", "columns.parquet", "data.npz"):
        batch = next(open_source(tmp_path / name).batches(10))
        assert batch.x.dtype == np.float32
        np.testing.assert_array_equal(batch.x, [[0, 1, 0], [1, 1, 0]])


def test_columns_of_several_types_mix(tmp_path: Path) -> None:
    half = np.array([0.5, 1], np.float16)
    columns = {"name": ["a", "b"], "i": [1, 2], "h": half, "b": [True, False], "f": [None, 2.5]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "data.parquet")
    batch = next(open_source(tmp_path / "data.parquet", ColumnOptions(id="name")).batches(10))
    np.testing.assert_array_equal(batch.x, [[1, 0.5, 1, np.nan], [2, 1, 0, 2.5]])


def test_lists_of_any_length_and_missing_ones(tmp_path: Path) -> None:
    lists = [[9.0, 9.0], None, [1.0, 2.0], [3.0, None]]
    column = pyarrow.array(lists, pyarrow.list_(pyarrow.float32()))
    parquet.write_table(pyarrow.table({"embedding": column.slice(1)}), tmp_path / "data.parquet")
    source = open_source(tmp_path / "data.parquet")
    batch = next(source.batches(10))
    np.testing.assert_array_equal(batch.x, [[np.nan, np.nan], [1, 2], [3, np.nan]])
    assert batch.ids == ["0", "1", "2"]
    assert not source.has_ids


def test_a_list_of_another_length_is_named(tmp_path: Path) -> None:
    table = pyarrow.table({"embedding": [[1.0, 2.0], [1.0, 2.0], [1.0]]})
    parquet.write_table(table, tmp_path / "data.parquet")
    with pytest.raises(DataError, match=r"row 3 of .* has 1 values, and the first has 2"):
        list(open_source(tmp_path / "data.parquet").batches(10))


def test_csv_keeps_ids_and_labels_as_text(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("\ufeffid,a,b,label\n007,1,2.5,01\n08,3,,\nx y,1e3,-1,NA\n", encoding="utf-8")
    batch = next(open_source(path).batches(10))
    assert batch.ids == ["007", "08", "x y"]
    assert batch.labels == ["01", None, "NA"]
    np.testing.assert_array_equal(batch.x, [[1, 2.5], [3, np.nan], [1000, -1]])


def test_numbers_that_are_whole_at_first_may_have_fractions_later_but_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "CSV_BLOCK_BYTES", 2**16)  # types are of the first block
    path = tmp_path / "data.csv"
    lines = "\n".join(["id,a,b", *(f"{i},{i},0" for i in range(20_000))])
    path.write_text(f"{lines}\nlast,0.25,1\n")
    *_, last = open_source(path).batches(5000)
    assert (last.ids, last.x.tolist()) == (["last"], [[0.25, 1.0]])
    path.write_text(f"{lines}\nlast,n.a.,1\n")
    with pytest.raises(DataError, match=r"data.csv cannot be read as CSV: .*column 'a'.*n\.a\."):
        list(open_source(path).batches(5000))


def test_labels_of_arrays_are_read_by_their_usual_names(tmp_path: Path) -> None:
    ids = np.array([b"a", b"b", b"c"])
    np.savez(tmp_path / "data.npz", x=np.eye(3), y=np.array([2, -1, 10]), ids=ids)
    batch = next(open_source(tmp_path / "data.npz").batches(10))
    assert (batch.ids, batch.labels) == (["a", "b", "c"], ["2", None, "10"])


def test_shards_are_sorted_by_name_and_rows_are_named_by_their_file(tmp_path: Path) -> None:
    x, ids, _ = blobs(20)
    parquet.write_table(table_of(x[10:], ids[10:]), tmp_path / "b.parquet")
    parquet.write_table(table_of(x[:10], ids[:10]), tmp_path / "a.parquet")
    (tmp_path / "readme.txt").write_text("no shard")
    source = open_source(tmp_path)
    assert next(source.batches(100)).ids == ids
    assert source.place(12) == f"row 3 of {tmp_path / 'b.parquet'}"


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    x, ids, _ = blobs(500)
    whole = write(tmp_path, "parquet", x, ids).read_bytes()
    for name, content, words in (
        ("cut.parquet", whole[:-200], "cut.parquet cannot be read as Parquet"),
        ("text.parquet", b"file_name,label\n", "cannot be read as Parquet"),
        ("text.arrow", b"no arrow file", "cannot be read as Arrow"),
        ("text.npz", b"no zip", "Write plain arrays with numpy.savez"),
        ("latin.csv", "id,f\nä,1\n".encode("latin-1"), "cannot be read as CSV.*UTF-8"),
        ("ragged.csv", b"id,f\na,1\nb\n", "cannot be read as CSV"),
        ("empty.csv", b"", "cannot be read as CSV"),
        ("semicolons.csv", b"id;f\na;1\n", "Separate columns by commas"),
        ("data.txt", b"", r"must be in a file that ends in .parquet"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=words):
            list(open_source(tmp_path / name).batches(100))
    with pytest.raises(DataError, match="There is no table and no folder"):
        open_source(tmp_path / "nowhere.parquet")
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match=r"no images and no \.parquet files"):
        open_source(tmp_path / "folder")


def test_parquet_with_damaged_pages_is_told(tmp_path: Path) -> None:
    x, ids, _ = blobs(5000)
    path = write(tmp_path, "parquet", x, ids, group=5000)
    content = bytearray(path.read_bytes())
    content[2000:60_000] = bytes(58_000)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"data\.parquet cannot be read as Parquet"):
        list(open_source(path).batches(1000))


def test_arrays_must_be_equally_long_and_not_need_unpickling(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.eye(3), ids=np.array(["a", "b"]))
    with pytest.raises(DataError, match="equally long; x has 3, ids has 2"):
        open_source(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", x=np.array([{}, None]))
    with pytest.raises(DataError, match="Write plain arrays"):
        open_source(tmp_path / "b.npz")


def test_a_row_without_an_id_is_named(tmp_path: Path) -> None:
    table = pyarrow.table({"id": ["a", None], "f": [1.0, 2.0]})
    parquet.write_table(table, tmp_path / "data.parquet")
    with pytest.raises(DataError, match=r"Column 'id' has no id in row 2 of .*data.parquet"):
        list(open_source(tmp_path / "data.parquet").batches(10))
