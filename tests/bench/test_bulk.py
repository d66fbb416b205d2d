"""The comparison that ``semigpc bench bulk`` rests on."""

from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from semigpc.bench.bulk import compare
from tests.cli.calls import semigpc

ROWS = 100


def table(confidence: float = 0.5) -> pyarrow.Table:
    numbers = np.linspace(0, 1, ROWS, dtype=np.float32)
    return pyarrow.table(
        {
            "id": [str(row) for row in range(ROWS)],
            "label": ["a", "b"] * (ROWS // 2),
            "confidence": pyarrow.array(np.where(np.arange(ROWS) == 7, np.float32(confidence), numbers)),
            "variance": pyarrow.array(numbers),
            "status": ["pseudo"] * ROWS,
            "reasons": [[row] for row in range(ROWS)],
        }
    )


def write(folder: Path, held: pyarrow.Table, cuts: tuple[int, ...]) -> list[Path]:
    paths = [folder / f"{number}.parquet" for number in range(len(cuts) - 1)]
    for path, start, stop in zip(paths, cuts, cuts[1:], strict=False):
        parquet.write_table(held.slice(start, stop - start), path)
    return paths


def test_rows_that_differ_are_counted_whatever_the_partitions(tmp_path: Path) -> None:
    parquet.write_table(table(0.5), tmp_path / "whole.parquet", row_group_size=30)
    same = compare(tmp_path / "whole.parquet", write(tmp_path, table(0.5), (0, 10, 10, 61, ROWS)), lambda *_: None)
    assert same["rows"] == ROWS
    assert set(same["rows_that_differ"].values()) == {0}
    other = compare(tmp_path / "whole.parquet", write(tmp_path, table(0.25), (0, 10, 10, 61, ROWS)), lambda *_: None)
    assert other["rows_that_differ"] == {"label": 0, "status": 0, "reasons": 0, "confidence": 1, "variance": 0}
    assert other["largest_difference"] == {"confidence": 0.25, "variance": 0.0}


def test_other_rows_and_missing_rows_are_no_comparison(tmp_path: Path) -> None:
    parquet.write_table(table(), tmp_path / "whole.parquet")
    with pytest.raises(RuntimeError, match="has more rows than its partitions"):
        compare(tmp_path / "whole.parquet", write(tmp_path, table(), (0, 50)), lambda *_: None)
    with pytest.raises(RuntimeError, match="has fewer rows than its partitions"):
        compare(tmp_path / "whole.parquet", write(tmp_path, table(), (0, ROWS)) * 2, lambda *_: None)
    with pytest.raises(RuntimeError, match="The rows from 0 on are not the same"):
        compare(tmp_path / "whole.parquet", write(tmp_path, table(), (50, ROWS)), lambda *_: None)


def test_a_folder_that_is_there_is_not_written_to(tmp_path: Path) -> None:
    done = semigpc("bench", "bulk", "--out", tmp_path)
    assert done.exit_code == 2
    assert "is there already" in " ".join(done.stderr.replace("│", " ").split())
