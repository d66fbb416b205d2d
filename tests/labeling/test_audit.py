"""Draw a sample, answer it as people do, and learn the precision; or learn what is wrong with the
answers.
"""

import csv
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from semigpc.io.errors import DataError
from semigpc.labeling.audit import Design, draw_sample, judge, read_answers
from semigpc.labeling.project import Project
from tests.labeling.pseudo import CLASSES, pseudo_project

Row = dict[str, str]


@pytest.fixture
def birds(tmp_path: Path) -> tuple[Project, NDArray[np.str_]]:
    return pseudo_project(tmp_path)


def read_table(path: Path) -> list[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_table(path: Path, rows: list[Row]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def answered(path: Path, truth: NDArray[np.str_], answer: Callable[[Row, str], str]) -> list[Row]:
    """Fill in the table with ``answer(row, its truth)``."""
    rows = read_table(path)
    for row in rows:
        row["truth"] = answer(row, str(truth[int(row["id"].removeprefix("bird-"))]))
    write_table(path, rows)
    return rows


def test_the_sample_has_every_class_and_its_inclusion_probabilities(
    birds: tuple[Project, NDArray[np.str_]],
) -> None:
    project, _ = birds
    path, design = draw_sample(project, 60)
    rows = read_table(path)
    assert path == project.folder / "audit.csv"
    assert list(rows[0]) == ["id", "label", "confidence", "stratum", "inclusion", "truth"]
    assert len(rows) == len({row["id"] for row in rows}) == 60
    status = dict(zip(project.ids, project.table.column("status").to_pylist(), strict=True))
    assert {status[row["id"]] for row in rows} == {"pseudo"}
    assert {name: sum(row["label"] == name for row in rows) for name in CLASSES}["ibis"] >= 5
    # the inverse inclusion probabilities add up to all pseudo-labels
    assert sum(1 / float(row["inclusion"]) for row in rows) == pytest.approx(
        list(status.values()).count("pseudo"), rel=1e-4
    )
    assert [row["label"] for row in rows] != sorted(row["label"] for row in rows)
    assert Design.read(project) == design
    assert draw_sample(project, 60)[1] == design
    assert draw_sample(project, 60, seed=1)[1].rows != design.rows


def test_everything_can_be_checked(birds: tuple[Project, NDArray[np.str_]]) -> None:
    project, truth = birds
    path, design = draw_sample(project, 100_000)
    assert all(stratum.rows == stratum.drawn for stratum in design.strata)
    answered(path, truth, lambda _row, right: right)
    labels = np.array(project.table.column("label").to_pylist())
    pseudo = np.array(project.table.column("status").to_pylist()) == "pseudo"
    exact = (labels == truth)[pseudo].mean()
    result = judge(project, path)["all"]
    assert [result[name] for name in ("precision", "low", "high")] == pytest.approx([exact] * 3)


def test_answers_become_a_precision_with_an_interval(
    birds: tuple[Project, NDArray[np.str_]],
) -> None:
    project, truth = birds
    path, design = draw_sample(project, 200)
    rows = answered(path, truth, lambda _row, right: right)
    result = judge(project, path)
    labels = np.array(project.table.column("label").to_pylist())
    pseudo = np.array(project.table.column("status").to_pylist()) == "pseudo"
    assert result["all"]["low"] <= (labels == truth)[pseudo].mean() <= result["all"]["high"]
    assert result["all"]["high"] - result["all"]["low"] < 0.15
    assert (result["answered"], result["unanswered"]) == (200, 0)
    assert result["all"]["confidence"] == pytest.approx(0.9, abs=0.02)
    assert [entry["class"] for entry in result["classes"]] == CLASSES
    for entry in result["classes"]:
        mine = [row for row in rows if row["label"] == entry["class"]]
        assert (entry["checked"], entry["right"]) == (
            len(mine),
            sum(row["label"] == row["truth"] for row in mine),
        )
        assert entry["low"] <= entry["precision"] <= entry["high"]
    wrong = [(row["label"], row["truth"]) for row in rows if row["label"] != row["truth"]]
    told = {(pair["label"], pair["truth"]): pair["count"] for pair in result["confusions"]}
    assert told == {pair: wrong.count(pair) for pair in set(wrong)}
    facts = json.loads((project.folder / "audit.json").read_text())
    assert facts == {"sample": json.loads(json.dumps(asdict(design))), "result": result}


def test_words_for_right_and_wrong_mean_the_same_as_classes(
    birds: tuple[Project, NDArray[np.str_]],
) -> None:
    project, truth = birds
    path, _ = draw_sample(project, 90)
    words = {True: ["y", "Yes", " correct ", "heron"], False: ["n", "NO", "wrong", "stork"]}
    rows = read_table(path)

    def worded(row: Row, right: str) -> str:
        options = words[row["label"] == right]
        answer = options[len(row["id"]) % 3]
        return right.upper() if row["label"] == "heron" and row["label"] == right else answer

    answered(path, truth, lambda _row, right: right)
    by_class = judge(project, path)
    answered(path, truth, worded)
    by_word = judge(project, path)
    assert by_word["all"] == by_class["all"]
    assert by_word["classes"] == by_class["classes"]
    assert {pair["truth"] for pair in by_word["confusions"]} == {None}
    assert len(rows) == by_word["answered"]


def test_a_class_called_like_a_word_goes_before_it(
    birds: tuple[Project, NDArray[np.str_]], tmp_path: Path
) -> None:
    project, _ = birds
    names = dict(zip(CLASSES, ("no", "yes", "3"), strict=True))
    project.classes = list(names.values())
    labels = [names[label] for label in project.table.column("label").to_pylist()]
    project.table = project.table.set_column(1, "label", [labels])
    path, design = draw_sample(project, 30)
    rows = read_table(path)
    for row in rows:
        row["truth"] = "no" if row["label"] == "no" else "3.0"  # as a spreadsheet writes 3
    truths = read_answers(write_table(tmp_path / "answers.csv", rows), project, design)
    assert set(truths.values()) == {"no", "3"}


def test_rows_without_an_answer_are_counted(birds: tuple[Project, NDArray[np.str_]]) -> None:
    project, truth = birds
    path, _ = draw_sample(project, 60)
    answered(path, truth, lambda row, right: "" if row["label"] == "ibis" else right)
    result = judge(project, path)
    assert result["unanswered"] == sum(row["label"] == "ibis" for row in read_table(path))
    ibis = result["classes"][2]
    assert (ibis["checked"], ibis["precision"], ibis["low"], ibis["high"]) == (0, None, None, None)
    rows = read_table(path)
    shorter = judge(
        project, write_table(path, [row for row in rows if row["truth"]])
    )  # deleted, not left empty
    assert shorter == result
    answered(path, truth, lambda _row, _right: " ")
    with pytest.raises(
        DataError,
        match=r"audit\.csv has no answers yet\. Write into its column truth the right class, or y",
    ):
        judge(project, path)


def test_answers_that_do_not_fit_the_sample(birds: tuple[Project, NDArray[np.str_]]) -> None:
    project, truth = birds
    path, _ = draw_sample(project, 60)
    rows = answered(path, truth, lambda _row, right: right)
    other = path.with_name("other.csv")

    def wrong(words: str, changed: list[Row], file: Path = other) -> None:
        write_table(file, changed)
        with pytest.raises(DataError, match=words):
            judge(project, file)

    wrong(r"has 1 ids that were not drawn: 'bird-9999'", [*rows, rows[0] | {"id": "bird-9999"}])
    wrong(r"has 1 ids more than once: .*Keep one row for each", [*rows, rows[0]])
    wrong(
        r"has the answer 'hreon', which is no class; did you mean 'heron'\? Write a class, or y .* that has no label yet",
        [rows[0] | {"truth": "hreon"}, *rows[1:]],
    )
    wrong(
        r"'zebra', which is no class; known: 'heron', 'stork', 'ibis'\.",
        [rows[0] | {"truth": "zebra"}],
    )
    mended = "ibis" if rows[0]["label"] != "ibis" else "heron"
    wrong(
        r"1 rows of .* have another label than when .* Leave the column label as it was",
        [rows[0] | {"label": mended}],
    )
    wrong(
        r"must have the columns id and truth; it has 'id', 'label'",
        [{"id": "bird-1", "label": "ibis"}],
    )
    wrong(
        r"Row 61 of .* has 'ibis' as its truth, and no id\. Fill it in",
        [*rows, dict.fromkeys(rows[0], "") | {"truth": "ibis"}],
    )
    judge(project, write_table(other, [{"id": row["id"], "truth": row["truth"]} for row in rows]))
    judge(
        project, write_table(other, [*rows, dict.fromkeys(rows[0], "")])
    )  # an empty row, as spreadsheets leave behind
    other.write_bytes(b"id,truth\nbird-1,\xff\n")
    with pytest.raises(DataError, match="cannot be read as CSV"):
        judge(project, other)
    with pytest.raises(DataError, match=r"The answers are not there: .*nowhere\.csv"):
        judge(project, path.with_name("nowhere.csv"))
    with pytest.raises(DataError, match=r"a file that ends in \.csv or \.parquet; got audit\.json"):
        judge(project, path.with_name("audit.json"))


def test_labels_that_were_made_again_need_a_new_sample(
    birds: tuple[Project, NDArray[np.str_]],
) -> None:
    project, truth = birds
    with pytest.raises(DataError, match=r"No sample was drawn from .*: it has no audit\.json"):
        judge(project, project.folder / "audit.csv")
    path, design = draw_sample(project, 60)
    answered(path, truth, lambda _row, right: right)
    table, labels = project.table, project.table.column("label").to_pylist()
    drawn = project.ids.index(next(iter(design.rows)))
    changed = [
        *labels[:drawn],
        "ibis" if labels[drawn] != "ibis" else "heron",
        *labels[drawn + 1 :],
    ]
    project.table = table.set_column(1, "label", [changed])
    with pytest.raises(
        DataError,
        match=rf"1 rows of the sample in audit.json have another label .*'bird-{drawn}'.* Draw a new sample",
    ):
        judge(project, path)
    status = table.column("status").to_pylist()
    free = next(
        row
        for row, what in enumerate(status)
        if what == "pseudo" and project.ids[row] not in design.rows
    )
    status[free] = "abstained"
    project.table = table.set_column(3, "status", [status])
    with pytest.raises(
        DataError, match=r"was labelled again since the sample of audit.json was drawn"
    ):
        judge(project, path)
    (project.folder / "audit.json").write_text("{}")
    with pytest.raises(
        DataError, match=r"audit\.json cannot be used: sample is missing\. Draw a new sample"
    ):
        judge(project, path)


def test_answers_are_not_overwritten_by_a_new_sample(
    birds: tuple[Project, NDArray[np.str_]],
) -> None:
    project, truth = birds
    path, design = draw_sample(project, 60)
    answered(path, truth, lambda _row, right: right)
    with pytest.raises(
        DataError,
        match=r"audit\.csv is there already, and 60 rows of it have something in the column 'truth'",
    ):
        draw_sample(project, 60, seed=1)
    assert Design.read(project) == design
    assert draw_sample(project, 60, seed=1, overwrite=True)[1] != design
    with pytest.raises(
        DataError, match=r"a row of each of the 3 classes .*; got 2\. Take at least 3, better 30"
    ):
        draw_sample(project, 2, overwrite=True)
