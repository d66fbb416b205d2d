"""The page of a run: what the folder says, alone, and made from whatever a run has left."""

import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from semigpc.report.run_page import write_run_report
from tests.report.synthetic import write_run

LONG_NAME = "a very long name of a rare bird"
ODD_NAMES = ['<b>&"', "<script>alert(1)</script>", "$a$b$", "猫", LONG_NAME, ""]
OPTIMISTIC = "Best on the test set (optimistic: chosen on the test set)"


def page_of(folder: Path) -> str:
    return write_run_report(folder).read_text(encoding="utf-8")


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def keep_lines(folder: Path, *, below: int) -> None:
    path = folder / "metrics.jsonl"
    lines = [line for line in path.read_text().splitlines() if json.loads(line)["step"] < below]
    path.write_text("".join(line + "\n" for line in lines))


def assert_self_contained(page: str) -> None:
    assert not re.search(r"https?://|<script|<link|@import", page)
    assert set(re.findall(r'(?:src|href)="([^"#]{0,5})', page)) <= {"", "data:"}
    ids = re.findall(r'\sid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(ids)
    assert set(re.findall(r'href="#([^"]+)"', page)) <= set(ids)


class Finished(NamedTuple):
    folder: Path
    summary: dict[str, Any]
    page: str


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    summary = write_run(folder)
    return Finished(folder, summary, page_of(folder))


@pytest.fixture
def run(finished: Finished, tmp_path: Path) -> Path:
    """A copy of a finished run without its page."""
    folder = shutil.copytree(finished.folder, tmp_path / "run")
    (folder / "report.html").unlink()
    return folder


@pytest.mark.slow
def test_the_page_needs_nothing_else_and_is_made_again_in_its_place(finished: Finished) -> None:
    assert_self_contained(finished.page)
    path = write_run_report(finished.folder)
    assert path == finished.folder / "report.html"
    assert path.read_text(encoding="utf-8") == finished.page


def test_the_headline_numbers_are_those_of_the_summary(finished: Finished) -> None:
    _, summary, page = finished
    names = {"last": "Last step", "best_on_validation": "Best on validation"}
    for choice, name in (names | {"best_on_test": OPTIMISTIC}).items():
        entry = summary["results"][choice]
        row = re.search(rf'<tr><th scope="row">{re.escape(name)}</th>.*?</tr>', page, re.DOTALL)
        assert row is not None
        figures = [entry[key] for key in ("balanced_accuracy", "top1", "ece")]
        for value in (*figures, entry["groups"]["few"]):
            assert f">{100 * value:.1f}%</td>" in row[0]
    assert "Finished at step 2,000 of 2,000, after 2 min 54 s." in page


def test_only_what_commands_use_of_the_run_is_marked_and_drawn(finished: Finished) -> None:
    page = finished.page
    assert "export use the linear head of step 1,800, the best on validation." in page
    marked = re.findall(r'<th scope="row">([^<]+)</th><td class="text number">.*\(judged\)', page)
    assert marked[0] == "Best on validation"
    assert "Last step" not in marked
    assert "Measured on the test images, linear head, step 1,800." in page


def test_every_part_of_the_page_is_there_with_a_caption(finished: Finished) -> None:
    page = finished.page
    titles = re.findall(r"<h3>([^<]+)</h3>\s*<svg", page)
    assert titles == [
        "Accuracy over training",
        "Recall of each class",
        "Confusion matrix",
        "Reliability",
        "Quality of the pseudo-labels",
        "Scales of the GP",
        "Class counts: given, predicted, true",
        "Pseudo-labels of each class over time",
        "Loss",
    ]
    curves = ("coverage: ", "precision: ", "calibration error", "lambda (refiner", "l (refiner")
    for curve in curves:
        assert f">{curve}" in page
    captions = re.findall(r"<figcaption>(.+?)</figcaption>", page)
    assert len(captions) == len(titles)
    assert all(caption.endswith(".") for caption in captions)
    inputs = ("3f0c" * 16, "labelled counts follow", "imbalance_ratio", "heads.projection", "2.6.0")
    for words in (*inputs, "kernel width set"):
        assert words in page


def test_charts_follow_the_theme_of_the_page(finished: Finished) -> None:
    drawings = "".join(re.findall(r"<svg.*?</svg>", finished.page, re.DOTALL))
    assert "currentColor" in drawings
    assert "var(--grid)" in drawings
    assert "#222222" not in drawings
    assert "DejaVu" not in drawings


@pytest.mark.slow
def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    write_run(tmp_path / "run", names=[*ODD_NAMES, "f", "g"])
    edit(tmp_path / "run" / "config.json", data={"name": "</title><script>"})
    page = page_of(tmp_path / "run")
    assert_self_contained(page)
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;" in page
    assert "$a$b$" in page
    assert "猫" in page


@pytest.mark.slow
def test_an_interrupted_run_has_a_page_that_says_so(run: Path) -> None:
    (run / "summary.json").unlink()
    keep_lines(run, below=460)
    with (run / "metrics.jsonl").open("a") as lines:
        lines.write('{"kind": "train", "step": 450, "loss": NaN, "loss_x": NaN}\n')
        lines.write('{"kind": "eval", "step": 500, "bal')
    page = page_of(run)
    assert re.search(r"No summary\.json: .*it has reached step 450 of 2,000", page)
    assert "metrics.jsonl: 1 unreadable lines" in page
    assert re.search(r"loss was NaN .*step 450 \(1 ", page)
    assert page.count('<th scope="row">Last evaluation</th>') == 4
    assert OPTIMISTIC not in page
    assert "Confusion matrix" in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["environment", "split", "summary", "metrics"])
def test_any_one_file_may_be_missing(run: Path, name: str) -> None:
    gone = next(run.glob(f"{name}.*"))
    gone.unlink()
    page = page_of(run)
    assert gone.name in page
    assert_self_contained(page)


def test_a_run_killed_before_its_first_line_has_a_page(run: Path) -> None:
    (run / "summary.json").write_text('{"status": "fin')
    (run / "metrics.jsonl").write_text("")
    page = page_of(run)
    assert "summary.json cannot be read: it is not JSON" in page
    assert "it has no metrics yet" in page
    assert "Nothing was evaluated" in page


@pytest.mark.slow
def test_what_is_not_known_is_stated_or_a_dash(tmp_path: Path) -> None:
    summary = write_run(tmp_path / "run", n_classes=2, true_known=False)
    assert summary["class_groups"]["few"] == []
    page = page_of(tmp_path / "run")
    assert "Precision is not known" in page
    assert "Accepted, of those predicted to be of the class" in page
    assert "true, among the unlabelled" not in page
    row = re.search(r'<tr><th scope="row">Last step</th>.*?</tr>', page, re.DOTALL)
    assert row is not None
    assert ">\N{EN DASH}</td>" in row[0]


@pytest.mark.slow
def test_many_classes_thin_out(tmp_path: Path) -> None:
    write_run(tmp_path / "run", n_classes=150)
    page = page_of(tmp_path / "run")
    assert_self_contained(page)
    assert "class, most frequent first" in page
    assert "<details><summary>Split: 150 classes" in page
    assert page.count("class 149") == 1  # in the table of the split, not on an axis
    assert len(page) < 600_000


@pytest.mark.slow
def test_without_pseudo_labels_the_counts_are_still_shown(tmp_path: Path) -> None:
    write_run(tmp_path / "run", algorithm="supervised", refiner="none")
    path = tmp_path / "run" / "metrics.jsonl"
    lines = [line for line in path.read_text().splitlines() if '"pseudo"' not in line]
    path.write_text("\n".join(lines) + "\n")
    page = page_of(tmp_path / "run")
    assert "No pseudo-labels were made" in page
    assert "Quality of the pseudo-labels" not in page
    assert "Scales of the GP" not in page


def test_a_folder_without_a_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"config\.json .*Give the folder"):
        write_run_report(tmp_path)


def test_figures_of_another_run_are_left_out_and_reported(run: Path) -> None:
    unknown = dict.fromkeys(("unlabeled_counts", "validation_counts", "test_counts"))
    edit(run / "split.json", class_names=["a", "b"], labeled_counts=[1, 2], **unknown)
    page = page_of(run)
    assert "lines do not have the 2 classes of split.json" in page
    assert "summary.json is not about the 2 classes of split.json" in page
