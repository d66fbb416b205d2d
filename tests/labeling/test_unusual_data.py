"""Data and labels that are not as one would wish."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from semigpc.io.errors import DataError
from semigpc.labeling.columns import ColumnOptions
from semigpc.labeling.label import label_data
from semigpc.labeling.project import Project
from semigpc.labeling.source import open_source
from tests.labeling.samples import (
    CLASSES,
    IDS,
    LABELS,
    TRUTH,
    X,
    labels_of,
    list_column,
    settings,
    table_of,
    write,
    write_labels,
)


def test_labels_in_the_data_themselves(tmp_path: Path) -> None:
    kinds = [LABELS.get(name) for name in IDS]
    parquet.write_table(table_of(X, IDS, kind=kinds), tmp_path / "data.parquet")
    summary = label_data(settings(tmp_path, labels=None, columns=ColumnOptions(label="kind")))
    assert summary["statuses"]["labelled"] == 36


def test_given_labels_go_before_those_in_the_data(tmp_path: Path) -> None:
    parquet.write_table(table_of(X, IDS, label=["ant"] * 300), tmp_path / "data.parquet")
    summary = label_data(settings(tmp_path))
    assert summary["given"] == [12, 12, 12]
    assert "in the data was ignored" in summary["notes"][0]


def test_numbered_classes_and_row_numbers_for_ids(tmp_path: Path) -> None:
    number = {"ant": 2, "bee": 10, "cat": 1}
    given = np.array([number[name] if IDS[i] in LABELS else -1 for i, name in enumerate(TRUTH)])
    np.savez(tmp_path / "data.npz", x=X, y=given)
    summary = label_data(settings(tmp_path, data=tmp_path / "data.npz", labels=None))
    project = json.loads((tmp_path / "out" / "project.json").read_text())
    assert project["classes"] == ["1", "2", "10"]
    assert sorted(summary["classes"]) == ["1", "10", "2"]
    assert summary["given"] == [12, 12, 12]
    assert labels_of(tmp_path / "out").column("id").to_pylist() == [str(i) for i in range(300)]


def test_whole_numbers_are_one_class_however_they_are_written(tmp_path: Path) -> None:
    number = dict(zip(CLASSES, ("1", "2", "3"), strict=True))
    whole = {name: number[label] for name, label in list(LABELS.items())[::2]}
    pandas = {name: f"{number[label]}.0" for name, label in list(LABELS.items())[1::2]}
    tables = [write_labels(tmp_path / f"{i}.csv", each) for i, each in enumerate((whole, pandas))]
    summary = label_data(settings(tmp_path, labels=tables[0], more_labels=(tables[1],)))
    assert (summary["classes"], summary["given"]) == (["1", "2", "3"], [12, 12, 12])
    parts = np.array([float(number[LABELS[name]]) if name in LABELS else np.nan for name in IDS])
    np.savez(tmp_path / "data.npz", x=X, y=parts)
    arrays = settings(
        tmp_path, data=tmp_path / "data.npz", labels=None, out=tmp_path / "out of arrays"
    )
    assert label_data(arrays)["classes"] == ["1", "2", "3"]


def test_classes_that_differ_only_in_case_or_spaces_are_noted(tmp_path: Path) -> None:
    odd = dict(LABELS)
    for name, label in zip(list(LABELS)[:3], ("Ant", "A nt", "bee hive"), strict=True):
        odd[name] = label
    summary = label_data(settings(tmp_path, labels=write_labels(tmp_path / "odd.csv", odd)))
    (note,) = [note for note in summary["notes"] if "case or spaces" in note]
    assert "'A nt' and 'Ant' and 'ant'." in note
    assert "bee" not in note


def test_constant_features_and_some_rows_that_are_alike(tmp_path: Path) -> None:
    constant = np.concatenate([X, np.full((300, 2), 7, np.float32)], axis=1)
    constant[20:40] = constant[20]
    parquet.write_table(table_of(constant, IDS), tmp_path / "data.parquet")
    assert sum(label_data(settings(tmp_path))["statuses"].values()) == 300


WIDE = X.astype(np.float64)


@pytest.mark.parametrize("kind", ["parquet", "csv", "npz"])
@pytest.mark.parametrize(
    "x",
    [WIDE + 1e8, WIDE + np.array([1e8, 0, 0, -1e12, 0, 0]), (WIDE * 1e6 + 1e14).astype(np.int64)],
    ids=["offset", "two columns", "integers"],
)
def test_an_offset_takes_nothing_from_numbers_of_sixty_four_bits(
    tmp_path: Path, x: NDArray[Any], kind: str
) -> None:
    plain = next(open_source(write(tmp_path, "parquet", X, IDS)).batches(300)).x
    source = open_source(write(tmp_path, kind, x, IDS))
    shifted = next(source.batches(300)).x
    scale = 1e6 if x.dtype.kind == "i" else 1
    for rows in (shifted, source.take(np.arange(300))):
        distances = np.linalg.norm(rows[:50, None] - rows[None, 50:100], axis=2) / scale
        expected = np.linalg.norm(plain[:50, None] - plain[None, 50:100], axis=2)
        np.testing.assert_allclose(distances, expected, rtol=1e-3)


@pytest.mark.parametrize(
    "x",
    [WIDE + 1e8, X * np.float32(1e37), X * np.float32(1e-30)],
    ids=["offset", "huge", "tiny"],
)
def test_the_size_of_numbers_does_not_matter(tmp_path: Path, x: NDArray[Any]) -> None:
    parquet.write_table(table_of(x, IDS), tmp_path / "data.parquet")
    summary = label_data(settings(tmp_path, report=False, target_precision=None))
    assert summary["statuses"]["pseudo"] > 200
    labels = labels_of(tmp_path / "out").column("label").to_pylist()
    assert np.mean([label == truth for label, truth in zip(labels, TRUTH, strict=True)]) > 0.9


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.ones((300, 3)), "all the same.* mean of 1 and a deviation of 0"),
        ((X + 1e8).astype(np.float32), r"all the same.* mean of 1e\+08.* subtract it in float64"),
        (WIDE * 1e-300, "largest is [0-9.]+e-300.* Multiply"),
        (WIDE * 1e40, "finite in float32"),
    ],
    ids=["constant", "rounded", "vanishing", "infinite"],
)
def test_numbers_that_nothing_can_be_learned_from(
    tmp_path: Path, x: NDArray[Any], words: str
) -> None:
    parquet.write_table(table_of(x, IDS), tmp_path / "data.parquet")
    with pytest.raises(DataError, match=words):
        label_data(settings(tmp_path))


def test_all_labelled(tmp_path: Path) -> None:
    everything = write_labels(tmp_path / "all.csv", dict(zip(IDS, TRUTH, strict=True)))
    summary = label_data(settings(tmp_path, labels=everything))
    assert summary["statuses"] == {"labelled": 300, "pseudo": 0, "abstained": 0, "outlier": 0}
    assert "nothing to label" in summary["notes"][0]
    assert labels_of(tmp_path / "out").column("label").to_pylist() == TRUTH


def test_a_class_with_a_single_label_is_noted(tmp_path: Path) -> None:
    bees = [name for name, label in LABELS.items() if label == "bee"]
    few = {name: label for name, label in LABELS.items() if label != "bee" or name == bees[0]}
    summary = label_data(settings(tmp_path, labels=write_labels(tmp_path / "few.csv", few)))
    assert summary["notes"] == ["Classes with a single label cannot be validated: 'bee'."]


def test_bad_rows_that_are_skipped_keep_what_was_given(tmp_path: Path) -> None:
    x = X.copy()
    labelled = IDS.index(next(iter(LABELS)))
    x[labelled], x[290] = np.nan, np.inf
    parquet.write_table(table_of(x, IDS), tmp_path / "data.parquet")
    with pytest.raises(DataError, match=r"skip_bad=True"):
        label_data(settings(tmp_path))
    summary = label_data(settings(tmp_path, skip_bad=True))
    rows = labels_of(tmp_path / "out").to_pylist()
    keys = ("label", "confidence", "status", "reasons")
    assert [rows[290][key] for key in keys] == [None, 0, "abstained", []]
    assert rows[290]["variance"] == 1
    assert [rows[labelled][key] for key in keys] == ["ant", 1, "labelled", []]
    assert "NaN or infinity: 2; 1 of them keep their given label" in summary["notes"][0]
    project = Project.open(tmp_path / "out")
    assert project.bad == frozenset([labelled, 290])
    assert not project.embeddings(np.array([labelled, 290])).any()
    assert labelled in project.given
    assert labelled not in project.model().labeled_rows_


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({IDS[0]: "ant", IDS[1]: "ant"}, "are 'ant'; at least two classes are needed"),
        ({IDS[0]: "", IDS[1]: "-1"}, "has no labels"),
        ({IDS[0]: "ant", "nobody": "b", "no-one": "b"}, "2 ids that .* 'nobody', 'no-one'"),
    ],
)
def test_labels_that_nothing_can_be_learned_from(
    tmp_path: Path, labels: dict[str, str], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        label_data(settings(tmp_path, labels=write_labels(tmp_path / "few.csv", labels)))


def test_there_must_be_labels_and_ids_need_a_name_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'label'\. .* labels="):
        label_data(settings(tmp_path, labels=None))
    table = pyarrow.table({"status": IDS, "embedding": list_column(X)})
    parquet.write_table(table, tmp_path / "data.parquet")
    with pytest.raises(DataError, match="Column 'status' cannot hold the ids"):
        label_data(settings(tmp_path, columns=ColumnOptions(id="status")))
    embedding = ColumnOptions(features="embedding")
    with pytest.raises(DataError, match=r"folder of images does not exist.* images"):
        label_data(settings(tmp_path, images=tmp_path / "nowhere", columns=embedding))


@pytest.mark.slow
def test_spaces_around_ids_do_not_count(tmp_path: Path) -> None:
    """Neither in the data nor in labels: those that were written can be given back."""
    np.savez(tmp_path / "data.npz", x=X, ids=np.array([f" {name} " for name in IDS]))
    first = settings(tmp_path, data=tmp_path / "data.npz")
    label_data(first)
    written = tmp_path / "out" / "labels.csv"
    again = label_data(replace(first, labels=written, out=tmp_path / "again"))
    assert again["statuses"]["labelled"] == len(LABELS)
