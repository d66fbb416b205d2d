"""Names of classes and files that are formulas, markup, mathematics or control sequences, through
every verb.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet
from rich.console import Console
from sklearn.datasets import load_digits
from typer.testing import Result

from semigpc.cli.tables import comparison_table, pairs_table
from semigpc.io.tables import read_labels
from semigpc.io.text import spreadsheet_cell
from tests.cli.calls import SHORT, refused, semigpc
from tests.cli.own_data import write_table

CLASSES = ("=cmd|' /C calc'!A0", "@SUM(1)", "\x1b]0;title\x07", "[/b]", 'a,b"c', "$x_1$")
FILES = ("[bold]x.png", "new\nline.png", "=1+1.png", ":cat:.png")
SHOWN = r"\x1b]0;title\x07"


def printed(*arguments: str | Path) -> Result:
    """Call, and check that nothing it prints could steer a terminal."""
    done = semigpc(*arguments)
    assert done.exit_code == 0, done.output
    assert not set(done.stdout + done.stderr) & {"\x1b", "\x07"}, done.output
    return done


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


# Embeddings: label, audit, suggest, review --------------------------------------------------------


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table of embeddings, its labels, and ``out``, where ``semigpc label``
    wrote.
    """
    root = tmp_path_factory.mktemp("outside")
    rng = np.random.default_rng(0)
    truth = np.arange(90) % len(CLASSES)
    x = (np.eye(len(CLASSES))[truth] + 0.2 * rng.normal(size=(90, len(CLASSES)))).astype(np.float32)
    names = [*(f"{i:02d}.png" for i in range(90 - len(FILES))), *FILES]
    column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.ravel()), x.shape[1])
    parquet.write_table(
        pyarrow.table({"file_name": names, "embedding": column}), root / "x.parquet"
    )
    write_table(root / "labels.csv", [(names[i], CLASSES[truth[i]]) for i in range(36)])
    done = printed(
        "label",
        root / "x.parquet",
        "--labels",
        root / "labels.csv",
        "--out",
        root / "out",
        "--answer-all",
    )
    for shown in ("=cmd|' /C calc'!A0", "@SUM(1)", SHOWN, "[/b]", 'a,b"c', "$x_1$"):
        assert shown in done.stdout
    return root


@pytest.mark.slow
def test_label_writes_what_it_means_and_draws_it(labelled: Path) -> None:
    exact = parquet.read_table(labelled / "out/labels.parquet")
    names, guesses = exact["file_name"].to_pylist(), exact["guess"].to_pylist()
    assert set(guesses) == set(CLASSES)
    rows = rows_of(labelled / "out/labels.csv")
    assert [row["guess"] for row in rows] == [spreadsheet_cell(guess) for guess in guesses]
    assert "'=1+1.png" in [row["file_name"] for row in rows]
    assert all(float(row["confidence"]) >= 0 for row in rows)
    given = dict(zip(names[:36], guesses[:36], strict=True))
    assert read_labels(labelled / "out/labels.csv").given == given
    page = (labelled / "out/report.html").read_text()
    assert "$x_1$</text>" in page, "drawn as it is, not as mathematics"


def test_a_sample_that_was_checked_is_read_back(labelled: Path) -> None:
    out = labelled / "out"
    printed("audit", out, "--sample", "40")
    rows = rows_of(out / "audit.csv")
    assert {"'=cmd|' /C calc'!A0", "'@SUM(1)", "[/b]"} <= {row["label"] for row in rows}
    for row in rows:
        row["truth"] = "@SUM(1)" if row["label"] == "[/b]" else row["label"]
    with (labelled / "answers.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    done = printed("audit", out, "--answers", labelled / "answers.csv")
    result = json.loads((out / "audit.json").read_text())["result"]
    assert [(pair["label"], pair["truth"]) for pair in result["confusions"]] == [
        ("[/b]", "@SUM(1)")
    ]
    assert SHOWN in done.stdout
    assert printed("audit", out, "--answers", labelled / "answers.csv", "--json").stdout.isascii()


def test_suggestions_that_were_filled_in_are_read_back(labelled: Path) -> None:
    out = labelled / "out"
    printed("suggest", out, "--count", "54")
    rows = rows_of(out / "suggestions.csv")
    assert {"'=1+1.png", "new\nline.png", "[bold]x.png"} <= {row["file_name"] for row in rows}
    for row in rows:
        row["label"] = "'@SUM(1)"
    with (labelled / "more.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    tables = ("--labels", labelled / "labels.csv", "--labels", labelled / "more.csv")
    printed(
        "label",
        labelled / "x.parquet",
        *tables,
        "--out",
        labelled / "again",
        "--answer-all",
        "--no-report",
    )
    summary = json.loads((labelled / "again/project.json").read_text())
    assert set(summary["classes"]) == set(CLASSES)


def test_a_review_leaves_tables_that_are_read_back(labelled: Path) -> None:
    out = labelled / "out"
    printed("review", out, "--export")
    exact = parquet.read_table(out / "reviewed.parquet")
    labels = dict(zip(exact["file_name"].to_pylist(), exact["label"].to_pylist(), strict=True))
    known = read_labels(out / "reviewed_labels.csv").given
    assert known == {name: labels[name] for name in known}
    assert read_labels(out / "reviewed.csv").given == known
    assert len(known) == 36
    assert "'@SUM(1)" in {row["label"] for row in rows_of(out / "reviewed_labels.csv")}


# Images: train, evaluate, predict, export ---------------------------------------------------------


class Trained(NamedTuple):
    """Where all is, and what training printed."""

    root: Path
    run: Path
    stdout: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    root = tmp_path_factory.mktemp("images")
    digits, photos = load_digits(), root / "photos"
    photos.mkdir()
    rows: dict[str, list[tuple[str, str]]] = {"labels": [], "test": []}
    for c, name in enumerate(CLASSES):
        for i, pixels in enumerate(digits.images[digits.target == c][:8]):
            file = FILES[c] if i == 0 and c < len(FILES) else f"{c}_{i}.png"
            Image.fromarray((pixels * 15).astype(np.uint8)).resize((16, 16)).save(photos / file)
            rows["test" if i < 2 else "labels"].append((file, name if i < 5 else ""))
    for part, pairs in rows.items():
        write_table(root / f"{part}.csv", pairs)
    tables = ("--labels", root / "labels.csv", "--test", root / "test.csv", "--validation", "0")
    done = printed("train", photos, *tables, "--steps", "3", "--out", root / "run", SHORT)
    return Trained(root, root / "run", done.stdout)


@pytest.mark.slow
def test_train_names_the_classes_and_draws_them(trained: Trained) -> None:
    for name in ("=cmd|' /C calc'!A0", "@SUM(1)", SHOWN, "[/b]", 'a,b"c', "$x_1$"):
        assert f"{name} 3" in trained.stdout
    page = (trained.run / "report.html").read_text()
    assert "$x_1$" in page
    assert "a,b&#34;c" in page


def test_predict_shows_and_writes_any_name(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = trained.root / "photos"
    odd = photos / "latin\udce9.png"
    odd.write_bytes((photos / FILES[0]).read_bytes())
    try:
        told = refused(
            "predict",
            trained.run,
            photos,
            code=2,
            words=r"latin\udce9.png: its name is not UTF-8; rename it",
        )
        assert "\udce9" not in told
        done = printed(
            "predict", trained.run, photos, "--skip-bad", "--out", trained.root / "p.csv"
        )
    finally:
        odd.unlink()
    for suffix in ("parquet", "json"):
        printed("predict", trained.run, photos, "--out", trained.root / f"p.{suffix}")
    assert "wrote" in done.stdout
    monkeypatch.chdir(photos)  # short names, which are not folded
    shown = printed("predict", trained.run, *map(Path, FILES)).stdout
    for name in ("[bold]x.png", r"new\nline.png", ":cat:.png"):
        assert name in shown
    written = {Path(row["file"]).name: row for row in rows_of(trained.root / "p.csv")}
    assert set(FILES) <= set(written)
    exact = parquet.read_table(trained.root / "p.parquet").to_pylist()
    assert {row["label"] for row in exact} <= set(CLASSES)
    for row in exact:
        assert written[Path(row["file"]).name]["label"] == spreadsheet_cell(row["label"])


@pytest.mark.slow
def test_evaluate_and_export_take_any_name(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed("evaluate", trained.run)
    data = trained.root / "new [red]\x1b[1m"
    for name in CLASSES:
        (data / name.replace("/", "-")).mkdir(parents=True, exist_ok=True)
    told = refused("evaluate", trained.run, "--data", data, code=2, words=r"new [red]\x1b[1m")
    assert "\x1b" not in told
    monkeypatch.chdir(trained.root)  # a short name, which is not cut off
    labelled = ("--data", "photos", "--labels", trained.root / "test.csv")
    assert "photos" in printed("evaluate", trained.run, *labelled).stdout
    printed("export", trained.run, "--format", "torch", "--out", trained.root / "[x]\x1b.pt2")
    facts = json.loads((trained.root / "[x]\x1b.pt2.json").read_text())
    assert set(facts["class_names"]) == set(CLASSES)


def test_an_argument_that_is_wrong_is_named_without_its_control_sequence(tmp_path: Path) -> None:
    done = semigpc("evaluate", tmp_path / "\x1b]0;title\x07")
    assert done.exit_code == 2
    assert "\x1b]" not in done.stderr
    assert r"\x1b]0;title\x07" in done.stderr


def test_a_comparison_names_its_cells_as_they_are() -> None:
    figures: dict[str, Any] = dict.fromkeys(
        ("balanced_accuracy", "many", "medium", "few", "ece"), 0.5
    )
    runs = [{"result": {"part": "test"}}]
    cells = [{"label": name, "mean": figures, "std": figures, "runs": runs} for name in CLASSES]
    pairs = [
        {"name": name, "mean_difference": 0.1, "std": 0.0, "wins": 1, "losses": 0}
        for name in CLASSES
    ]
    file = io.StringIO()
    console = Console(file=file, width=120, force_terminal=False)
    console.print(comparison_table({"title": "[/b] :cat:", "seeds": [0], "cells": cells}))
    console.print(pairs_table({"pairs": pairs}))
    shown = file.getvalue()
    assert "\x1b" not in shown
    assert "[/b] :cat:" in shown
    for name in ("=cmd|' /C calc'!A0", "@SUM(1)", SHOWN, "[/b] ", 'a,b"c', "$x_1$"):
        assert shown.count(name) >= 2
