"""The first pass: ids, labelled rows, the sample, bad rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from semigpc.io.errors import DataError
from semigpc.labeling import scan as scan_module
from semigpc.labeling.scan import LabelLookup, sample_rows, scan
from semigpc.labeling.source import open_source
from tests.labeling.samples import IDS, X, blobs, some_labels, table_of, write


@pytest.fixture(autouse=True)
def small_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "SAMPLE", 40)


def test_labelled_rows_and_a_sample_of_the_others_are_gathered_whatever_the_batches(
    tmp_path: Path,
) -> None:
    x, ids, classes = blobs()
    labels = some_labels(ids, classes)
    source = open_source(write(tmp_path, "parquet", x, ids))
    told: list[tuple[str, int, int | None]] = []

    def progress(*arguments: Any) -> None:
        told.append(arguments)

    found = scan(source, LabelLookup(labels), size=100, progress=progress)
    assert told == [("reading", 100, 300), ("reading", 200, 300), ("reading", 300, 300)]
    assert dict(zip(found.ids, found.labels, strict=True)) == labels
    assert [ids[row] for row in found.labelled] == found.ids
    np.testing.assert_array_equal(found.x, x[found.labelled])
    assert len(found.sample) == 40
    assert not set(found.sample.tolist()) & set(found.labelled.tolist())
    np.testing.assert_array_equal(found.sample_x, x[found.sample])
    for size in (7, 1000):
        again = scan(source, LabelLookup(labels), size=size)
        np.testing.assert_array_equal(again.sample, found.sample)
        np.testing.assert_array_equal(again.sample_x, found.sample_x)
    other = scan(source, LabelLookup(labels), size=100, seed=1)
    assert set(other.sample.tolist()) != set(found.sample.tolist())


def test_the_sample_can_be_drawn_again_and_is_fair(tmp_path: Path) -> None:
    source = open_source(write(tmp_path, "parquet", X, IDS))
    found = scan(source, LabelLookup({IDS[3]: "cat"}), size=64, seed=5)
    eligible = np.ones(300, dtype=bool)
    eligible[3] = False
    np.testing.assert_array_equal(found.sample, sample_rows(eligible, 40, 5))
    samples = [sample_rows(eligible, 40, seed) for seed in range(2000)]
    drawn = np.bincount(np.concatenate(samples), minlength=300)
    assert drawn[3] == 0
    expected = 2000 * 40 / 299
    assert np.abs(np.delete(drawn, 3) - expected).max() < 5 * np.sqrt(expected)


def test_ids_that_occur_twice_are_refused(tmp_path: Path) -> None:
    x, ids, _ = blobs()
    ids[270] = ids[12]
    ids[5] = ids[4]
    words = r"unique; 2 occur more than once, such as 'row-00004' in row 5 of .* and row 6 of"
    with pytest.raises(DataError, match=words):
        scan(open_source(write(tmp_path, "parquet", x, ids)), LabelLookup({}), size=100)


def test_ids_that_share_a_hash_are_not_refused(tmp_path: Path) -> None:
    x, ids, _ = blobs(50)
    source = open_source(write(tmp_path, "parquet", x, ids))
    scan_module.check_unique_ids(source, np.zeros(50, dtype=np.int64), 20)


def test_rows_that_are_not_finite_are_refused_by_name_or_skipped(tmp_path: Path) -> None:
    x, ids, _ = blobs(20)
    x[3, 0], x[7, 1], x[11, 5], x[12] = np.nan, np.inf, -np.inf, np.nan
    parquet.write_table(table_of(x, ids), tmp_path / "data.parquet")
    source, labels = open_source(tmp_path / "data.parquet"), {ids[7]: "cat", ids[8]: "dog"}
    words = r"row 4 of .*data.parquet \(id 'row-00003'\); row 8 of .* and 1 more.*skip_bad=True"
    with pytest.raises(DataError, match=words):
        scan(source, LabelLookup(labels), size=6)
    found = scan(source, LabelLookup(labels), size=6, skip_bad=True)
    assert found.bad.tolist() == [3, 7, 11, 12]
    assert found.bad_labels == {7: "cat"}
    assert found.labels == ["dog"]
    assert not {3, 7, 8, 11, 12} & set(found.sample.tolist())


def test_values_beyond_float32_count_as_infinite(tmp_path: Path) -> None:
    parquet.write_table(table_of(np.array([[1.0, 1e300]]), ["a"]), tmp_path / "data.parquet")
    with pytest.raises(DataError, match="finite in float32"):
        scan(open_source(tmp_path / "data.parquet"), LabelLookup({}), size=10)


@pytest.mark.parametrize("name", ["list.parquet", "columns.parquet", "data.csv"])
def test_tables_without_rows_are_refused(tmp_path: Path, name: str) -> None:
    tables = {
        "list.parquet": table_of(*blobs(5)[:2]),
        "columns.parquet": pyarrow.table({"id": ["a"], "f": [1.0]}),
    }
    if name in tables:
        parquet.write_table(tables[name].slice(0, 0), tmp_path / name)
    else:
        (tmp_path / name).write_text("id,f0,f1\n")
    with pytest.raises(DataError, match="has no rows"):
        scan(open_source(tmp_path / name), LabelLookup({}), size=10)
