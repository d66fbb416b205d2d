"""``semigpc suggest`` as a user sees it: suggest, write labels, label again."""

import csv
import json
from pathlib import Path

import pytest

from tests.cli.calls import refused, semigpc
from tests.labeling.clouds import LABELLED, make_clouds


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return make_clouds(tmp_path).project.folder


def test_suggestions_are_shown_written_and_taken_as_labels(out: Path) -> None:
    done = semigpc("suggest", out, "--count 25")
    assert done.exit_code == 0, done.output
    assert "unlike what is labelled" in done.stdout
    assert "and 5 more" in done.stdout
    assert "25 rows; write labels into its column label" in " ".join(done.stdout.split())
    path = out / "suggestions.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows[:20]:  # the others stay empty
        row["label"] = row["id"].split("-")[0]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    data, before = out.parent / "data.parquet", out.parent / "labels.csv"
    again = semigpc(
        "label",
        data,
        "--labels",
        before,
        "--labels",
        path,
        "--out",
        out.parent / "again",
        "--no-report --json",
    )
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["statuses"]["labelled"] == sum(LABELLED.values()) + 20
    refused("suggest", out, code=2, words="20 of its rows are filled in (column 'label')")
    assert semigpc("suggest", out, "--overwrite").exit_code == 0


def test_suggestions_as_json(out: Path) -> None:
    done = semigpc("suggest", out, "--count 3 --json --rare 1 --outliers exclude")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert len(rows) == 3
    assert list(rows[0]) == [
        "row",
        "id",
        "believed",
        "confidence",
        "variance",
        "worth",
        "for_class",
        "why",
    ]
    everything = semigpc("suggest", out, "--count 1000")
    assert "1000 were requested" in " ".join(everything.stdout.split())


def test_a_folder_that_is_no_project_is_refused(tmp_path: Path) -> None:
    refused("suggest", tmp_path / "nowhere", code=2, words="There is no folder")
    refused("suggest", tmp_path, code=2, words="has no project.json")
