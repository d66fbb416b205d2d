"""``semigpc predict``, ``evaluate`` and ``export`` with a folder of ``semigpc label``."""

import json
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from semigpc.cli.predict import _lower_grades
from semigpc.labeling.inference import load_labeling
from semigpc.labeling.outputs import COLUMNS
from semigpc.models.encoder import EmbedConfig
from tests.cli.calls import refused, semigpc, worked
from tests.cli.test_export import make_labelling
from tests.labeling.samples import (
    IDS,
    LABELS,
    TRUTH,
    X,
    blobs,
    read_rows,
    table_of,
    write,
    write_labels,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A labelled table, new rows with their classes, and a folder of neither kind."""
    folder = tmp_path_factory.mktemp("used")
    labels = write_labels(folder / "labels.csv", LABELS)
    done = worked(
        "label", write(folder, "parquet", X, IDS), "--labels", labels, "--out", folder / "out",
        "--no-report",
    )  # fmt: skip
    assert f"use it:\n  semigpc predict {folder}/out NEW_TABLE" in done.stdout
    x, ids, classes = blobs(400)
    parquet.write_table(table_of(x[300:], ids[300:], label=classes[300:]), folder / "new.parquet")
    (folder / "empty").mkdir()
    return folder


def test_predictions_of_the_labelled_rows_are_those_of_labels_csv(root: Path) -> None:
    worked("predict", root / "out", root / "data.parquet", "--out", root / "again.csv")
    before = {row["id"]: row for row in read_rows(root / "out/labels.csv")}
    again = read_rows(root / "again.csv")
    assert list(again[0]) == ["id", *COLUMNS]
    assert [row["id"] for row in again] == list(before)
    for row in again:
        if row["id"] not in LABELS:
            assert row["guess"] == before[row["id"]]["guess"]
            assert float(row["confidence"]) == pytest.approx(
                float(before[row["id"]]["confidence"]), abs=1e-4
            )
            assert row["status"] in ("pseudo", "abstained", "outlier")
            assert (row["label"] == "") == (row["status"] != "pseudo")


@pytest.mark.parametrize("suffix", ["csv", "parquet", "json"])
def test_new_rows_in_every_format(root: Path, suffix: str) -> None:
    out = root / f"p.{suffix}"
    done = worked("predict", root / "out", root / "new.parquet", "--out", out)
    assert f"wrote {out}: 100 rows (" in done.stdout
    if suffix == "csv":
        rows = [dict(row) for row in read_rows(out)]
    elif suffix == "parquet":
        rows = parquet.read_table(out).to_pylist()
    else:
        rows = json.loads(out.read_text())
    truth = blobs(400)[2][300:]
    assert np.mean([row["guess"] == name for row, name in zip(rows, truth, strict=True)]) > 0.85
    assert set(rows[0]) == {"id", *COLUMNS}
    assert {float(row["grade"]) for row in rows if row["grade"]} <= {0.8, 0.9, 0.95, 0.99}
    assert "labels given out" in done.stdout


def test_where_no_label_is_given_out_the_lower_grades_are_counted() -> None:
    told = _lower_grades(Counter({0.8: 3, 0.9: 2}))
    assert "2 at 90%, 5 at 80%" in told
    assert "none" in _lower_grades(Counter())


def test_answers_of_the_page_are_learned(root: Path, tmp_path: Path) -> None:
    from semigpc.review.session import open_session

    out = shutil.copytree(root / "out", tmp_path / "out")
    before = load_labeling(out).model.labeled_rows_
    session = open_session(out)
    row = next(row for row, name in enumerate(IDS) if name not in LABELS)
    session.accept([row])
    session.close()
    after = load_labeling(out).model.labeled_rows_
    assert set(after) - set(before) == {row}


def test_evaluate_on_a_table_with_its_labels_or_others(root: Path, tmp_path: Path) -> None:
    call = ("evaluate", root / "out", "--data", root / "new.parquet", "--json")
    facts = json.loads(worked(*call).stdout)
    figures = facts["heads"]["gp"]
    assert figures["n"] == 100
    assert figures["balanced_accuracy"] > 0.8
    assert facts["class_names"] == ["ant", "bee", "cat"]
    given = {each["precision"]: each for each in facts["grades"]}
    assert 0 < given[0.95]["right"] <= given[0.95]["labels"] <= 100
    some = dict(zip(IDS, TRUTH, strict=True))
    labels = write_labels(tmp_path / "few.csv", {name: some[name] for name in IDS[:5]})
    data = ("--data", root / "data.parquet", "--labels", labels)
    few = semigpc("evaluate", root / "out", *data, "--partial --json")
    assert json.loads(few.stdout)["heads"]["gp"]["n"] == 5
    odd = write_labels(tmp_path / "odd.csv", {IDS[0]: "yak"})
    command = ("evaluate", root / "out", "--data", root / "data.parquet", "--labels", odd)
    refused(*command, code=2, words="yak")


def test_what_cannot_be_used_is_refused(root: Path, tmp_path: Path) -> None:
    for verb, more in (("predict", [root / "new.parquet"]), ("evaluate", []), ("export", [])):
        words = "neither a run nor a labelled folder"
        refused(verb, root / "empty", *more, code=2, words=words)
    new = root / "new.parquet"
    refused("predict", root / "out", new, "--head gp", code=2, words="--head is for runs")
    assert "--data" in semigpc("evaluate", root / "out").stderr
    narrow = tmp_path / "narrow.parquet"
    parquet.write_table(table_of(X[:9, :4], IDS[:9]), narrow)
    refused("predict", root / "out", narrow, code=2, words="has 4 features")
    (tmp_path / "a.png").write_bytes(b"no image")
    refused("predict", root / "out", tmp_path / "a.png", code=2, words="the network behind them")
    bad = X[:5].copy()
    bad[2, 0] = np.nan
    parquet.write_table(table_of(bad, IDS[:5]), narrow)
    refused("predict", root / "out", narrow, code=2, words="row 3 of")
    rows = json.loads(worked("predict", root / "out", narrow, "--skip-bad --json").stdout)
    assert [row["guess"] is None for row in rows] == [False, False, True, False, False]


@pytest.mark.slow
def test_images_are_embedded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "cache"))
    out = make_labelling(tmp_path)
    classes = {"dark": range(12, 24, 2), "light": range(13, 24, 2)}
    for name, numbers in classes.items():
        (tmp_path / "test" / name).mkdir(parents=True)
        for number in numbers:
            image = tmp_path / "photos" / f"{number:02d}.png"
            shutil.copyfile(image, tmp_path / "test" / name / image.name)
    monkeypatch.setattr(EmbedConfig, "encoder", None)  # no network is built
    facts = json.loads(worked("evaluate", out, "--data", tmp_path / "test", "--json").stdout)
    assert facts["heads"]["gp"]["n"] == 12
    assert facts["heads"]["gp"]["top1"] == 1.0
    rows = json.loads(worked("predict", out, tmp_path / "test", "--json").stdout)
    assert [row["file_name"] for row in rows][:2] == ["dark/12.png", "dark/14.png"]
    assert all(row["guess"] == row["file_name"].split("/")[0] for row in rows)
    given = {row["file_name"]: row for row in read_rows(out / "labels.csv")}
    for row in rows:
        before = given[row["file_name"].split("/")[1]]
        assert row["confidence"] == pytest.approx(float(before["confidence"]), abs=1e-4)


@pytest.mark.slow
def test_a_table_is_exported_as_the_gp_alone(root: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="needs semigpc[export]")
    done = worked("export", root / "out", "--json")
    facts = json.loads(done.stdout)
    path = root / "out" / "export" / "model.onnx"
    assert facts["path"] == str(path)
    assert facts["check"]["rows"] == len(IDS)
    assert facts["check"]["largest_difference"] <= 1e-4
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    new = blobs(400)[0][300:]
    (probabilities,) = session.run(["probabilities"], {"rows": new})
    expected = load_labeling(root / "out").model.predict_proba(new)
    assert np.abs(probabilities - expected).max() <= 1e-4
