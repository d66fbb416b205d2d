"""Labelling a table from end to end, without the report."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest

from semigpc.estimator import STATUSES
from semigpc.io.errors import DataError
from semigpc.labeling import label as label_module
from semigpc.labeling.label import label_data
from semigpc.labeling.outputs import COLUMNS, Labeller
from semigpc.labeling.project import Project
from tests.labeling.samples import (
    CLASSES,
    IDS,
    KINDS,
    LABELS,
    TRUTH,
    X,
    labels_of,
    read_rows,
    settings,
    write,
    write_labels,
)


@pytest.fixture
def usual(labelled: Callable[[str], Path]) -> Path:
    return labelled("parquet").parent


def test_every_row_has_its_label_in_the_order_of_the_data(usual: Path) -> None:
    table = labels_of(usual / "out")
    assert table.column_names == ["id", *COLUMNS]
    assert table.column("id").to_pylist() == IDS
    rows = table.to_pylist()
    for row in rows:
        if row["id"] in LABELS:
            given = (row["label"], row["confidence"], row["status"])
            assert given == (LABELS[row["id"]], 1.0, "labelled")
    rest = [(row, truth) for row, truth in zip(rows, TRUTH, strict=True) if row["id"] not in LABELS]
    assert {row["status"] for row, _ in rest} <= {"pseudo", "abstained", "outlier"}
    right = [row["label"] == truth for row, truth in rest if row["status"] == "pseudo"]
    assert len(right) > 150
    assert np.mean(right) > 0.9
    for row in rows:
        assert 0 <= row["variance"] <= 1
        assert row["guess"] in CLASSES
        assert row["label"] == (row["guess"] if row["status"] in ("labelled", "pseudo") else None)
    assert not (usual / "out" / "parts").exists()


def test_reasons_are_rows_with_a_label_of_their_own(usual: Path) -> None:
    rows = labels_of(usual / "out").to_pylist()
    labels = {row["id"]: row["label"] for row in rows}
    for row in rows:
        weights = [abs(reason["weight"]) for reason in row["reasons"]]
        assert len(weights) == 3
        assert weights == sorted(weights, reverse=True)
        assert all(labels[reason["id"]] == reason["label"] for reason in row["reasons"])


def test_csv_and_parquet_say_the_same(usual: Path) -> None:
    found = read_rows(usual / "out" / "labels.csv")
    for row, expected in zip(found, labels_of(usual / "out").to_pylist(), strict=True):
        for name in ("id", "label", "guess", "status"):
            assert row[name] == (expected[name] or "")
        for name in ("confidence", "variance"):
            assert float(row[name]) == pytest.approx(expected[name], rel=1e-5)
        assert row["grade"] == str(expected["grade"] or "")  # 0.9, and not 0.899999976
        for reason, other in zip(json.loads(row["reasons"]), expected["reasons"], strict=True):
            assert reason["id"] == other["id"]
            assert reason["weight"] == pytest.approx(other["weight"], rel=1e-5)


def test_the_summary_counts_what_the_table_holds(usual: Path) -> None:
    summary = json.loads((usual / "out" / "summary.json").read_text())
    table = labels_of(usual / "out")
    status = table.column("status").to_pylist()
    label = table.column("label").to_pylist()
    assert summary["statuses"] == {name: status.count(name) for name in STATUSES}
    assert summary["classes"] == list(CLASSES)
    assert summary["given"] == [12, 12, 12]
    pseudo = [name for name, what in zip(label, status, strict=True) if what == "pseudo"]
    assert summary["pseudo"] == [pseudo.count(name) for name in CLASSES]
    assert sum(summary["believed"]) == pytest.approx(1)
    assert summary["evidence"] is None
    assert "was skipped" in summary["why_none"]


def test_label_studio_gets_a_task_for_every_row(usual: Path) -> None:
    tasks = json.loads((usual / "out" / "label_studio.json").read_text(encoding="utf-8"))
    assert [task["data"]["text"] for task in tasks] == IDS
    assert sum("annotations" in task for task in tasks) == 36
    assert 'value="cat"' in (usual / "out" / "label_studio.xml").read_text()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "parquet"])
def test_the_kind_of_file_does_not_matter(labelled: Callable[[str], Path], kind: str) -> None:
    expected = labels_of(labelled("parquet"))
    assert labels_of(labelled(kind)).rename_columns(expected.column_names).equals(expected)


@pytest.mark.parametrize("shard", [37, 128])
def test_the_size_of_a_shard_does_not_matter(usual: Path, tmp_path: Path, shard: int) -> None:
    label_data(settings(usual, out=tmp_path / "out", shard=shard))
    found = labels_of(tmp_path / "out")
    expected = labels_of(usual / "out")
    for name in ("id", "label", "status"):
        assert found.column(name).equals(expected.column(name))
    for name in ("confidence", "variance"):
        values = expected.column(name).to_numpy()
        np.testing.assert_allclose(found.column(name).to_numpy(), values, atol=2e-5)


def test_a_stopped_run_goes_on_and_ends_the_same(
    usual: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = settings(usual, out=tmp_path / "whole", shard=50)
    label_data(whole)
    stopped = settings(usual, out=tmp_path / "stopped", shard=50)

    def stop(stage: str, done: int, total: int | None) -> None:
        if stage == "labelling" and done == 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        label_data(stopped, progress=stop)
    parts = sorted(path.name for path in (tmp_path / "stopped" / "parts").glob("*.parquet"))
    assert parts == ["00000.parquet", "00001.parquet", "00002.parquet"]
    assert not (tmp_path / "stopped" / "project.json").exists()
    made: list[int] = []
    table = Labeller.table

    def counted(labeller: Labeller, batch: Any) -> pyarrow.Table:
        made.append(batch.first)
        return table(labeller, batch)

    monkeypatch.setattr(Labeller, "table", counted)
    label_data(stopped)
    assert made == [150, 200, 250]
    for name in ("labels.parquet", "labels.csv", "label_studio.json", "label_studio.xml"):
        expected = (tmp_path / "whole" / name).read_bytes()
        assert (tmp_path / "stopped" / name).read_bytes() == expected


def test_a_finished_folder_answers_at_once(usual: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = json.loads((usual / "out" / "summary.json").read_text())
    monkeypatch.setattr(label_module, "scan", None)  # nothing is read
    assert label_data(settings(usual)) == summary


@pytest.mark.parametrize("name", ["labels.parquet", "labels.csv", "summary.json"])
def test_an_output_that_is_not_as_it_was_written_is_made_again_and_kept(
    tmp_path: Path, name: str
) -> None:
    label_data(settings(tmp_path))
    path = tmp_path / "out" / name
    before = path.read_bytes()
    damaged = before[:-20] + bytes(20)
    path.write_bytes(damaged)
    summary = label_data(settings(tmp_path))
    assert any(f"kept as {name}.changed" in note for note in summary["notes"])
    assert (tmp_path / "out" / f"{name}.changed").read_bytes() == damaged
    if name != "summary.json":  # which has the seconds that it took
        assert path.read_bytes() == before
    path.unlink()
    label_data(settings(tmp_path))
    assert path.exists()


def test_other_settings_labels_and_data_are_refused_unless_overwritten(tmp_path: Path) -> None:
    label_data(settings(tmp_path))
    with pytest.raises(DataError, match=r"seed is 0 there and 3 here\. .*overwrite=True"):
        label_data(settings(tmp_path, seed=3))
    fewer = write_labels(tmp_path / "fewer.csv", dict(list(LABELS.items())[:-1]))
    changed = settings(tmp_path, labels=fewer)
    with pytest.raises(DataError, match="the labels content has changed since"):
        label_data(changed)
    assert label_data(changed, overwrite=True)["statuses"]["labelled"] == 35
    write(tmp_path, "parquet", X[:299], IDS[:299])
    with pytest.raises(DataError, match="the data content has changed since"):
        label_data(changed)


def test_what_cannot_be_labelled_replaces_nothing(tmp_path: Path) -> None:
    label_data(settings(tmp_path))
    before = (tmp_path / "out" / "labels.parquet").read_bytes()
    one_class = write_labels(tmp_path / "one.csv", {IDS[0]: "ant"})
    with pytest.raises(DataError, match="at least two classes"):
        label_data(settings(tmp_path, labels=one_class), overwrite=True)
    assert (tmp_path / "out" / "labels.parquet").read_bytes() == before
    assert not (tmp_path / "out" / "parts").exists()


def test_data_replaced_by_others_of_the_same_size_and_time_are_noticed(tmp_path: Path) -> None:
    table = write(tmp_path, "npz", X, IDS)
    label_data(settings(tmp_path, data=table))
    before = table.stat()
    write(tmp_path, "npz", X[::-1], IDS)
    os.utime(table, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert table.stat().st_size == before.st_size
    with pytest.raises(DataError, match="the data content has changed since"):
        label_data(settings(tmp_path, data=table))


def test_copies_are_counted_and_those_with_different_labels_are_named(tmp_path: Path) -> None:
    given = list(LABELS)[:20]
    places = [IDS.index(name) for name in given]
    rows = np.concatenate([X, X[places], X[places[:1]]])
    copied = [f"copy {i}" for i in range(len(places) + 1)]
    other = next(name for name in CLASSES if name != LABELS[given[0]])
    labels = LABELS | {f"copy {i}": LABELS[name] for i, name in enumerate(given)}
    path = write_labels(tmp_path / "copied.csv", labels | {copied[-1]: other})
    write(tmp_path, "parquet", rows, [*IDS, *copied])
    summary = label_data(settings(tmp_path, labels=path, report=True))
    assert [len(group["ids"]) for group in summary["copies"]] == [3] + [2] * 19
    assert summary["copies"][0]["ids"] == [given[0], copied[0], copied[-1]]
    counted, conflict = summary["notes"][-2:]
    assert "41, in 20 groups" in counted
    assert f"1, such as {given[0]} ({LABELS[given[0]]}) and {copied[-1]} ({other})" in conflict
    evidence = summary["evidence"]
    assert evidence is not None
    assert evidence["held_out"] == len(LABELS) + 1  # of 57 labels
    assert copied[-1] in (tmp_path / "out" / "report.html").read_text()


def test_the_aim_decides_how_much_is_labelled(usual: Path, tmp_path: Path) -> None:
    all_of_it = label_data(settings(usual, out=tmp_path / "all", target_precision=None))
    strict = settings(usual, out=tmp_path / "sure", target_precision=None, abstain=0.999999)
    sure = label_data(strict)
    assert all_of_it["statuses"]["abstained"] == all_of_it["threshold"] == 0
    assert sure["statuses"]["abstained"] > 100
    assert sure["threshold"] == pytest.approx(0.999999)


def test_a_later_table_of_labels_overrules_an_earlier_one(tmp_path: Path) -> None:
    first, second = list(LABELS)[:2]
    more = write_labels(tmp_path / "more.csv", {first: LABELS[second], IDS[-1]: LABELS[second]})
    label_data(settings(tmp_path, more_labels=(more,)))
    given = Project.open(tmp_path / "out").given
    assert given[IDS.index(first)] == LABELS[second]
    assert given[len(IDS) - 1] == LABELS[second]
    assert len(given) == len(set(LABELS) | {IDS[-1]})
