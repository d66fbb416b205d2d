"""Names that are formulas, markup, mathematics or control sequences, through every verb."""

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

from semigpc.cli.tables import comparison_table, pairs_table
from semigpc.io.tables import read_labels
from semigpc.io.text import from_spreadsheet_cell, spreadsheet_cell
from tests.cli.calls import SHORT, refused, semigpc, worked
from tests.cli.own_data import write_table
from tests.labeling.samples import list_column, read_rows, write_rows

CLASSES = ("=cmd|' /C calc'!A0", "@SUM(1)", "\x1b]0;title\x07", "[/b]", 'a,b"c', "$x_1$")
FILES = ("[bold]x.png", "new\nline.png", "=1+1.png", ":cat:.png")
SHOWN = r"\x1b]0;title\x07"
ALL_SHOWN = ("=cmd|' /C calc'!A0", "@SUM(1)", SHOWN, "[/b]", 'a,b"c', "$x_1$")


def printed(*arguments: str | Path) -> str:
    """Call, check that nothing it prints could steer a terminal, and return standard output."""
    done = worked(*arguments)
    assert not set(done.stdout + done.stderr) & {"\x1b", "\x07"}, done.output
    return done.stdout


# Embeddings: label, audit, suggest, review --------------------------------------------------------


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with embeddings, their labels, and ``out``, where ``semigpc label`` wrote."""
    root = tmp_path_factory.mktemp("outside")
    rng = np.random.default_rng(0)
    truth = np.arange(90) % len(CLASSES)
    x = (np.eye(len(CLASSES))[truth] + 0.2 * rng.normal(size=(90, len(CLASSES)))).astype(np.float32)
    names = [*(f"{i:02d}.png" for i in range(90 - len(FILES))), *FILES]
    table = pyarrow.table({"file_name": names, "embedding": list_column(x)})
    parquet.write_table(table, root / "x.parquet")
    write_table(root / "labels.csv", [(names[i], CLASSES[truth[i]]) for i in range(36)])
    label = ("label", root / "x.parquet", "--labels", root / "labels.csv", "--answer-all")
    told = printed(*label, "--out", root / "out")
    assert all(shown in told for shown in ALL_SHOWN)
    return root


@pytest.mark.slow
def test_label_writes_what_it_means_and_draws_it(labelled: Path) -> None:
    exact = parquet.read_table(labelled / "out/labels.parquet")
    names, guesses = exact["file_name"].to_pylist(), exact["guess"].to_pylist()
    assert set(guesses) == set(CLASSES)
    rows = read_rows(labelled / "out/labels.csv")
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
    rows = read_rows(out / "audit.csv")
    assert {"'=cmd|' /C calc'!A0", "'@SUM(1)", "[/b]"} <= {row["label"] for row in rows}
    for row in rows:
        row["truth"] = "@SUM(1)" if row["label"] == "[/b]" else row["label"]
    answers = write_rows(labelled / "answers.csv", rows)
    told = printed("audit", out, "--answers", answers)
    result = json.loads((out / "audit.json").read_text())["result"]
    (pair,) = result["confusions"]
    assert (pair["label"], pair["truth"]) == ("[/b]", "@SUM(1)")
    assert SHOWN in told
    assert printed("audit", out, "--answers", answers, "--json").isascii()


def test_suggestions_that_were_filled_in_are_read_back(labelled: Path) -> None:
    out = labelled / "out"
    printed("suggest", out, "--count", "54")
    rows = read_rows(out / "suggestions.csv")
    assert {"'=1+1.png", "new\nline.png", "[bold]x.png"} <= {row["file_name"] for row in rows}
    for row in rows:
        row["label"] = "'@SUM(1)"
    write_rows(labelled / "more.csv", rows)
    tables = ("--labels", labelled / "labels.csv", "--labels", labelled / "more.csv")
    options = ("--answer-all --no-report --out", labelled / "again")
    printed("label", labelled / "x.parquet", *tables, *options)
    summary = json.loads((labelled / "again/project.json").read_text())
    assert set(summary["classes"]) == set(CLASSES)


def test_a_review_leaves_tables_that_are_read_back(labelled: Path) -> None:
    out = labelled / "out"
    printed("review", out, "--export")
    exact = parquet.read_table(out / "exports" / "labels.parquet")
    labels = dict(zip(exact["file_name"].to_pylist(), exact["label"].to_pylist(), strict=True))
    known = read_labels(out / "exports" / "labels.csv").given
    assert known == {name: labels[name] for name in known}
    assert read_labels(out / "exports" / "labels.csv").given == known
    assert len(known) == 36
    assert "'@SUM(1)" in {row["label"] for row in read_rows(out / "exports" / "labels.csv")}


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
    told = printed("train", photos, *tables, "--steps 3 --out", root / "run", SHORT)
    return Trained(root, root / "run", told)


@pytest.mark.slow
def test_train_names_the_classes_and_draws_them(trained: Trained) -> None:
    assert all(f"{name} 3" in trained.stdout for name in ALL_SHOWN)
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
        words = r"latin\udce9.png: its name is not UTF-8; rename it"
        told = refused("predict", trained.run, photos, code=2, words=words)
        assert "\udce9" not in told
        options = ("--skip-bad --out", trained.root / "p.csv")
        assert "wrote" in printed("predict", trained.run, photos, *options)
    finally:
        odd.unlink()
    for suffix in ("parquet", "json"):
        printed("predict", trained.run, photos, "--out", trained.root / f"p.{suffix}")
    monkeypatch.chdir(photos)  # short names, which are not folded
    shown = printed("predict", trained.run, *map(Path, FILES))
    for name in ("[bold]x.png", r"new\nline.png", ":cat:.png"):
        assert name in shown
    rows = read_rows(trained.root / "p.csv")
    written = {from_spreadsheet_cell(row["file_name"]): row for row in rows}
    assert set(FILES) <= set(written)
    assert all(row["file_name"] == spreadsheet_cell(name) for name, row in written.items())
    exact = parquet.read_table(trained.root / "p.parquet").to_pylist()
    assert {row["label"] for row in exact} <= set(CLASSES)
    for row in exact:
        assert written[row["file_name"]]["label"] == spreadsheet_cell(row["label"])


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
    assert "photos" in printed("evaluate", trained.run, *labelled)
    printed("export", trained.run, "--format", "torch", "--out", trained.root / "[x]\x1b.pt2")
    facts = json.loads((trained.root / "[x]\x1b.pt2.json").read_text())
    assert set(facts["class_names"]) == set(CLASSES)


def test_an_argument_that_is_wrong_is_named_without_its_control_sequence(tmp_path: Path) -> None:
    done = semigpc("evaluate", tmp_path / "\x1b]0;title\x07")
    assert done.exit_code == 2
    assert "\x1b]" not in done.stderr
    assert r"\x1b]0;title\x07" in done.stderr


def test_a_comparison_names_its_cells_as_they_are() -> None:
    names = ("balanced_accuracy", "many", "medium", "few", "ece")
    figures: dict[str, Any] = dict.fromkeys(names, 0.5)
    runs = [{"result": {"part": "test"}}]
    cells = [{"label": name, "mean": figures, "std": figures, "runs": runs} for name in CLASSES]
    gap = {"mean_difference": 0.1, "std": 0.0, "wins": 1, "losses": 0}
    pairs = [{"name": name, **gap} for name in CLASSES]
    file = io.StringIO()
    console = Console(file=file, width=120, force_terminal=False)
    console.print(comparison_table({"title": "[/b] :cat:", "seeds": [0], "cells": cells}))
    console.print(pairs_table({"pairs": pairs}))
    shown = file.getvalue()
    assert "\x1b" not in shown
    assert "[/b] :cat:" in shown
    for name in ALL_SHOWN:
        assert shown.count(name) >= 2
