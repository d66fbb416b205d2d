"""One vocabulary in every table, so that each can be given to ``--labels`` as it is."""

import csv
import json
from pathlib import Path

import pytest
from pyarrow import parquet

from tests.cli.calls import refused, worked
from tests.cli.conftest import Trained
from tests.cli.own_data import make_folder

NETWORK = "--model test_resnet --pretrained none"
# Every column of a table, by what it is about.
OF_LABELS = ("label", "guess", "confidence", "second", "second_confidence", "variance", "status")
VOCABULARY = {
    "file_name",
    *OF_LABELS,
    *("grade", "reasons"),
    *("answer", "chosen"),  # of the page
    *("kind", "why", "for_class", "rank"),  # of suggest
    *("stratum", "inclusion", "truth"),  # of audit
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, labels, and a labelled folder."""
    root = tmp_path_factory.mktemp("vocabulary")
    make_folder(root, side=40)
    label(root, root / "labels.csv", root / "out")
    return root


def label(root: Path, labels: Path, out: Path, *more: str) -> dict[str, str]:
    """Label the photographs; return the status of each."""
    command = ("label", root / "photos", "--labels", labels, "--out", out, NETWORK)
    worked(*command, "--no-report --answer-all", *more)
    rows = parquet.read_table(out / "labels.parquet").to_pylist()
    return {row["file_name"]: row["status"] for row in rows}


def header(path: Path) -> list[str]:
    if path.suffix == ".parquet":
        return list(parquet.read_schema(path).names)
    if path.suffix == ".json":
        return list(json.loads(path.read_text())[0])
    with path.open(newline="") as file:
        return next(csv.reader(file))


def test_every_table_has_the_same_words(root: Path, trained: Trained) -> None:
    out = root / "out"
    worked("suggest", out)
    worked("audit", out, "--sample 5")
    worked("review", out, "--export")
    predicted = []
    for ending in ("csv", "parquet", "json"):
        for name, model in (("run", trained.run), ("labelling", out)):
            predicted.append(root / f"{name}.{ending}")
            worked("predict", model, root / "photos", "--out", predicted[-1])
    tables = [out / "labels.csv", out / "labels.parquet", *predicted]
    for path in tables:
        assert header(path) == ["file_name", *OF_LABELS, "grade", "reasons"], path
    made = [*(out / "exports").glob("labels.*"), out / "suggestions.csv", out / "audit.csv"]
    assert len(made) == 4
    for path in made:
        assert "file_name" in header(path)
        assert set(header(path)) <= VOCABULARY, path
        assert "label" in header(path)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_predictions_of_a_labelling_are_labels_where_they_are_trusted(
    root: Path, ending: str
) -> None:
    table = root / f"again.{ending}"
    worked("predict", root / "out", root / "photos", "--out", table)
    before = parquet.read_table(root / "out" / "labels.parquet").to_pylist()
    out = root / f"again-{ending}"
    command = ("label", root / "photos", "--labels", table, "--out", out, NETWORK)
    told = refused(*command, code=2, words="its labels are guesses")
    assert "--trust-pseudo" in told
    statuses = label(root, table, out, "--trust-pseudo")
    pseudo = {row["file_name"] for row in before if row["status"] in ("labelled", "pseudo")}
    assert {name for name, status in statuses.items() if status == "labelled"} == pseudo


def test_predictions_of_a_run_are_labels_where_they_are_trusted(
    root: Path, trained: Trained
) -> None:
    table = root / "by_run.csv"
    worked("predict", trained.run, trained.photos, "--out", table)
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows[::2]:  # a run this short knows one class
        row["label"] = "other"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    command = ("label", trained.photos, "--labels", table, "--out", root / "by_run", NETWORK)
    refused(*command, code=2, words="--trust-pseudo")
    worked(*command, "--no-report --trust-pseudo")
    labels = parquet.read_table(root / "by_run" / "labels.parquet")
    assert set(labels.column("status").to_pylist()) == {"labelled"}
