"""``semigpc suggest`` as a user sees it: suggest, write labels, label again."""

import json
from pathlib import Path

import pytest

from tests.cli.calls import refused, semigpc, worked
from tests.labeling.clouds import LABELLED, make_clouds
from tests.labeling.samples import read_rows, write_rows


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return make_clouds(tmp_path).project.folder


def test_suggestions_are_shown_written_and_taken_as_labels(out: Path) -> None:
    done = worked("suggest", out, "--count 25")
    assert "drawn at random" in done.stdout
    assert "and 5 more" in done.stdout
    assert "25 rows; write labels into its column label" in " ".join(done.stdout.split())
    path = out / "suggestions.csv"
    rows = read_rows(path)
    for row in rows[:20]:  # the others stay empty
        row["label"] = row["id"].split("-")[0]
    write_rows(path, rows)
    tables = ("--labels", out.parent / "labels.csv", "--labels", path)
    options = ("--no-report --json --out", out.parent / "again")
    again = worked("label", out.parent / "data.parquet", *tables, *options)
    assert json.loads(again.stdout)["statuses"]["labelled"] == sum(LABELLED.values()) + 20
    refused("suggest", out, code=2, words="20 of its rows are filled in (column 'label')")
    worked("suggest", out, "--overwrite")


def test_suggestions_as_json(out: Path) -> None:
    done = worked("suggest", out, "--count 3 --json")
    rows = json.loads(done.stdout)
    assert len(rows) == 3
    names = "row id guess confidence variance kind for_class why"
    assert list(rows[0]) == names.split()
    everything = semigpc("suggest", out, "--count 1000")
    assert "1000 were requested" in " ".join(everything.stdout.split())


@pytest.mark.parametrize("verb", ["suggest", "audit", "review --no-browser"])
def test_a_folder_that_is_no_project_is_refused(verb: str, tmp_path: Path) -> None:
    refused(verb, tmp_path / "nowhere", code=2, words="There is no folder")
    refused(verb, tmp_path, code=2, words="has no project.json")
