import csv
from pathlib import Path
from typing import Any

from pyarrow import parquet

from semigpc.labeling.inputs import LabelSettings
from semigpc.labeling.label import label_data
from semigpc.labeling.project import Project
from semigpc.review.queue import Filters
from semigpc.review.session import Session


def answered(session: Session) -> tuple[int, int, int]:
    """One accepted, one corrected to a new class, one skipped."""
    accepted, corrected, skipped = [card["row"] for card in session.page(Filters())["cards"]][:3]
    session.accept([accepted])
    session.correct(corrected, 'new, "odd" class')
    session.skip(skipped)
    return accepted, corrected, skipped


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_both_tables_hold_every_row_with_what_a_human_said(session: Session, out: Path) -> None:
    accepted, corrected, skipped = answered(session)
    written = session.export()
    assert (written["reviewed"], written["labels"]) == (2, len(session.project.given) + 2)
    table = parquet.read_table(out / "reviewed.parquet")
    assert table.column_names == [
        "file_name",
        "label",
        "confidence",
        "variance",
        "status",
        "reviewed",
        "answer",
    ]
    rows: list[dict[str, Any]] = table.to_pylist()
    assert [row["file_name"] for row in rows] == session.project.ids
    assert [rows[accepted][key] for key in ("confidence", "status", "reviewed", "answer")] == [
        1.0,
        "labelled",
        True,
        "accepted",
    ]
    assert (rows[corrected]["label"], rows[corrected]["answer"]) == (
        'new, "odd" class',
        "corrected",
    )
    assert (rows[skipped]["reviewed"], rows[skipped]["answer"]) == (False, "skipped")
    assert sum(row["reviewed"] for row in rows) == 2
    flat = rows_of(out / "reviewed.csv")
    assert [row["label"] for row in flat] == [row["label"] for row in rows]
    assert flat[accepted]["reviewed"] == "true"


def test_rows_that_nobody_looked_at_are_scored_before_they_are_written(
    session: Session, out: Path
) -> None:
    answered(session)
    session.export()
    written = parquet.read_table(out / "reviewed.parquet")["label"].to_pylist()
    free = [row for row in range(len(session)) if session.beliefs.taught[row] < 0]
    answers = session.beliefs.model.answer(session.beliefs.embeddings(free))
    assert [written[row] for row in free] == [
        str(session.beliefs.model.classes_[code]) for code in answers.codes
    ]


def test_the_labels_can_be_given_to_the_next_round(session: Session, out: Path) -> None:
    accepted, corrected, _ = answered(session)
    session.export()
    again = out.parent / "again"
    label_data(
        LabelSettings(
            data=out.parent / "data.parquet",
            labels=out / "reviewed_labels.csv",
            out=again,
            report=False,
        )
    )
    project = Project.open(again)
    assert project.given == session.project.given | {
        accepted: session.beliefs.label(accepted),
        corrected: 'new, "odd" class',
    }


def test_nothing_is_left_beside_the_files(session: Session, out: Path) -> None:
    before = {path.name for path in out.iterdir()}
    session.export()
    session.export()
    assert {path.name for path in out.iterdir()} - before == {
        "reviewed.parquet",
        "reviewed.csv",
        "reviewed_labels.csv",
    }
