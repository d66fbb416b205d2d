"""NPZ files with arrays of every type: read, or an error that names the array."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from semigpc.io.errors import DataError
from semigpc.labeling.source import RowBatch, open_source
from tests.array_types import LABELS, ROWS, STRUCTURED, TYPES, of_type

PARTS: dict[str, NDArray[Any]] = {"x": ROWS, "y": LABELS, "ids": np.arange(24)}


def read(path: Path, **arrays: NDArray[Any]) -> RowBatch:
    np.savez(path, allow_pickle=True, **(PARTS | arrays))
    return next(open_source(path).batches(100))


def cases(*, usable: bool) -> list[tuple[str, str]]:
    kinds = {"x": "biuf", "y": "biufUSmM", "ids": "biufUSmM"}
    return [
        (part, name)
        for part, name in product(PARTS, TYPES)
        if (TYPES[name].kind in kinds[part]) == usable
    ]


@pytest.mark.parametrize(("part", "kind"), cases(usable=True))
def test_numbers_and_text_of_any_length_and_byte_order_are_read(
    tmp_path: Path, part: str, kind: str
) -> None:
    batch = read(tmp_path / "data.npz", **{part: of_type(PARTS[part], kind)})
    is_boolean = TYPES[kind].kind == "b"
    expected = ROWS.astype(bool) if is_boolean and part == "x" else ROWS
    np.testing.assert_array_equal(batch.x, expected)
    assert batch.labels is not None
    assert len(set(batch.labels[:12])) == 2
    if part != "y" or TYPES[kind].kind in "ifUS":
        assert batch.labels == ["0", "1"] * 6 + [None] * 12
    if part != "ids" or TYPES[kind].kind in "iufUS":
        assert batch.ids == [str(i) for i in range(24)]


@pytest.mark.parametrize(("part", "kind"), cases(usable=False))
def test_an_array_of_any_other_type_is_named(tmp_path: Path, part: str, kind: str) -> None:
    with pytest.raises(DataError, match=rf"'{part}'|{part}\.npy"):
        read(tmp_path / "data.npz", **{part: of_type(PARTS[part], kind)})


@pytest.mark.parametrize(
    ("part", "values", "words"),
    [
        ("x", ROWS.astype(np.complex64), "complex64"),
        ("x", np.zeros((24, 0)), r"shape \(24, 0\) has no columns"),
        ("y", np.zeros(24, STRUCTURED), "neither real numbers nor text"),
        ("ids", np.array(["a\ud800"] + [f"b{i}" for i in range(23)]), "surrogate"),
    ],
)
def test_an_array_that_cannot_be_used_is_named(
    tmp_path: Path, part: str, values: NDArray[Any], words: str
) -> None:
    with pytest.raises(DataError, match=f"{words}.*Correct or remove the array '{part}'"):
        read(tmp_path / "data.npz", **{part: values})


def test_single_values_beside_the_arrays_are_ignored(tmp_path: Path) -> None:
    batch = read(tmp_path / "data.npz", version=np.array(3), note=np.array(1j))
    np.testing.assert_array_equal(batch.x, ROWS)


def test_labels_of_one_column_are_a_vector_and_of_several_an_error(tmp_path: Path) -> None:
    rows = np.array([1, -1, 0])
    np.savez(tmp_path / "one.npz", x=np.eye(3), y=rows[:, None])
    (batch,) = open_source(tmp_path / "one.npz").batches(10)
    assert batch.labels == ["1", None, "0"]
    np.savez(tmp_path / "two.npz", x=np.eye(3), y=np.stack([rows, rows], axis=1))
    with pytest.raises(DataError, match=r"two\.npz is a list, \[1, 1\].*another column"):
        list(open_source(tmp_path / "two.npz").batches(10))
