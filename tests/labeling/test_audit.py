"""Draw a sample of pseudo-labels, answer it as people do, and estimate the precision."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow
import pytest
from numpy.random import Generator
from numpy.typing import NDArray
from pyarrow import compute

from semigpc.io.errors import DataError
from semigpc.labeling.audit import (
    Design,
    PseudoRows,
    Stratum,
    agresti_coull,
    allocate,
    draw_sample,
    judge,
    precision,
    read_answers,
)
from semigpc.labeling.project import Project, ProjectSettings
from tests.labeling.samples import read_rows, write_rows

CLASSES = ["heron", "stork", "ibis"]
SIZES = (600, 150, 12)
Row = dict[str, str]
Birds = tuple[Project, NDArray[np.str_]]
Rates = Callable[[Generator, int], NDArray[np.float64]]


def pseudo_project(folder: Path, *, seed: int = 0) -> Birds:
    """The project and the truth; a label of confidence c is right with the probability c."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(CLASSES, SIZES)
    confidence = rng.uniform(0.8, 1.0, len(labels)).astype(np.float32)
    others = np.array([rng.choice([name for name in CLASSES if name != label]) for label in labels])
    truth = np.where(rng.uniform(size=len(labels)) < confidence, labels, others)
    status = np.array(["pseudo"] * len(labels), dtype=object)
    status[::10] = "labelled"
    status[5::50] = "abstained"
    ids = [f"bird-{row}" for row in range(len(labels))]
    table = pyarrow.table({"id": ids, "label": labels, "confidence": confidence, "status": status})
    settings = cast(
        "ProjectSettings",
        {"id_name": "id", "classes": CLASSES, "bad_rows": [], "chosen": [], "key": {}},
    )
    return Project(folder, settings, table, None), truth


@pytest.fixture
def birds(tmp_path: Path) -> Birds:
    return pseudo_project(tmp_path)


def answered(path: Path, truth: NDArray[np.str_], answer: Callable[[Row, str], str]) -> list[Row]:
    """Fill in the table with ``answer(row, its truth)``."""
    rows = read_rows(path)
    for row in rows:
        row["truth"] = answer(row, str(truth[int(row["id"].removeprefix("bird-"))]))
    write_rows(path, rows)
    return rows


def true_precision(birds: Birds) -> float:
    project, truth = birds
    labels = np.array(project.table.column("label").to_pylist())
    pseudo = np.array(project.table.column("status").to_pylist()) == "pseudo"
    return float((labels == truth)[pseudo].mean())


# The sample ---------------------------------------------------------------------------------------


def test_every_pseudo_label_is_in_one_stratum_and_no_other_row_is(birds: Birds) -> None:
    project, _ = birds
    pseudo = PseudoRows.of(project)
    status = np.array(project.table.column("status").to_pylist())
    assert pseudo.rows.tolist() == np.flatnonzero(status == "pseudo").tolist()
    strata, member = pseudo.strata(pseudo.edges(3))
    names = ["heron, low", "heron, middle", "heron, high", "stork, low"]
    assert [stratum.name for stratum in strata[:4]] == names
    assert sum(stratum.rows for stratum in strata) == len(pseudo.rows)
    for number, stratum in enumerate(strata):
        assert (pseudo.codes[member == number] == CLASSES.index(stratum.label)).all()
        assert stratum.confidence == pytest.approx(pseudo.confidence[member == number].mean())
    by_band = [sum(s.rows for s in strata if s.band == band) for band in ("low", "middle", "high")]
    assert max(by_band) - min(by_band) <= 2


def test_rows_that_are_all_equally_sure_are_one_band(birds: Birds) -> None:
    pseudo = PseudoRows.of(birds[0])
    pseudo = pseudo._replace(confidence=np.ones(len(pseudo.rows)))
    assert pseudo.edges(3) == []
    assert [stratum.name for stratum in pseudo.strata([])[0]] == CLASSES


def test_no_pseudo_labels_at_all(birds: Birds) -> None:
    project, _ = birds
    status = project.table.column("status")
    project.table = project.table.filter(compute.not_equal(status, "pseudo"))
    with pytest.raises(DataError, match=r"no pseudo-labels to check.*Check 50 at random"):
        PseudoRows.of(project)


def test_every_class_gets_a_few_and_the_rest_go_where_most_is_unsure() -> None:
    low = [Stratum("a", "low", 1000, 0.6), Stratum("b", "low", 3, 0.6)]
    high = [Stratum(name, "high", rows, 0.99) for name, rows in (("a", 1000), ("b", 40), ("c", 2))]
    strata = [low[0], high[0], low[1], high[1], high[2]]
    drawn = allocate(strata, 100)
    assert sum(drawn) == 100
    assert drawn[2:] == [3, 3, 2]
    ratio = np.sqrt(0.6 * 0.4) / np.sqrt(0.9 * 0.1)
    assert drawn[0] / drawn[1] == pytest.approx(ratio, rel=0.1)
    assert allocate(strata, 2045) == [stratum.rows for stratum in strata]


@pytest.mark.parametrize("sample", [12, 24, 60, 200])
def test_a_sample_of_any_size_is_spent_to_the_last_row(sample: int) -> None:
    rng = np.random.default_rng(sample)
    bands = min(3, sample // 12)
    keys = [(str(c), str(b)) for c in range(6) for b in range(bands)]
    strata = [Stratum(c, b, int(rng.integers(1, 400)), 0.9) for c, b in keys]
    drawn = np.array(allocate(strata, sample))
    assert drawn.sum() == sample
    assert (drawn >= 1).all()
    assert (drawn <= [stratum.rows for stratum in strata]).all()


def test_the_sample_has_every_class_and_its_inclusion_probabilities(birds: Birds) -> None:
    project, _ = birds
    path, design = draw_sample(project, 60)
    rows = read_rows(path)
    assert path == project.folder / "audit.csv"
    assert list(rows[0]) == ["id", "label", "confidence", "stratum", "inclusion", "truth"]
    assert len(rows) == len({row["id"] for row in rows}) == 60
    status = dict(zip(project.ids, project.table.column("status").to_pylist(), strict=True))
    assert {status[row["id"]] for row in rows} == {"pseudo"}
    assert sum(row["label"] == "ibis" for row in rows) >= 5
    total = sum(1 / float(row["inclusion"]) for row in rows)
    assert total == pytest.approx(list(status.values()).count("pseudo"), rel=1e-4)
    assert [row["label"] for row in rows] != sorted(row["label"] for row in rows)
    assert Design.read(project) == design
    assert draw_sample(project, 60)[1] == design
    assert draw_sample(project, 60, seed=1)[1].rows != design.rows


# Answers ------------------------------------------------------------------------------------------


def test_everything_can_be_checked(birds: Birds) -> None:
    project, truth = birds
    path, design = draw_sample(project, 100_000)
    assert all(stratum.rows == stratum.drawn for stratum in design.strata)
    answered(path, truth, lambda _row, right: right)
    result = judge(project, path)["all"]
    exact = true_precision(birds)
    assert (result["precision"], result["low"], result["high"]) == pytest.approx((exact,) * 3)


def test_answers_become_a_precision_with_an_interval(birds: Birds) -> None:
    project, truth = birds
    path, design = draw_sample(project, 200)
    rows = answered(path, truth, lambda _row, right: right)
    result: Any = judge(project, path)
    assert result["all"]["low"] <= true_precision(birds) <= result["all"]["high"]
    assert result["all"]["high"] - result["all"]["low"] < 0.15
    assert (result["answered"], result["unanswered"]) == (200, 0)
    assert result["all"]["confidence"] == pytest.approx(0.9, abs=0.02)
    assert [entry["class"] for entry in result["classes"]] == CLASSES
    for entry in result["classes"]:
        mine = [row for row in rows if row["label"] == entry["class"]]
        right = sum(row["label"] == row["truth"] for row in mine)
        assert (entry["checked"], entry["right"]) == (len(mine), right)
        assert entry["low"] <= entry["precision"] <= entry["high"]
    wrong = [(row["label"], row["truth"]) for row in rows if row["label"] != row["truth"]]
    counts = {(pair["label"], pair["truth"]): pair["count"] for pair in result["confusions"]}
    assert counts == {pair: wrong.count(pair) for pair in set(wrong)}
    facts = json.loads((project.folder / "audit.json").read_text())
    assert facts == {"sample": json.loads(json.dumps(asdict(design))), "result": result}


def test_words_for_right_and_wrong_mean_the_same_as_classes(birds: Birds) -> None:
    project, truth = birds
    path, _ = draw_sample(project, 90)
    words = {True: ["y", "Yes", " correct "], False: ["n", "NO", "wrong"]}

    def worded(row: Row, right: str) -> str:
        is_right = row["label"] == right
        if is_right and right == "heron":
            return right.upper()
        return words[is_right][len(row["id"]) % 3]

    answered(path, truth, lambda _row, right: right)
    by_class = judge(project, path)
    answered(path, truth, worded)
    by_word = judge(project, path)
    assert by_word["all"] == by_class["all"]
    assert by_word["classes"] == by_class["classes"]
    assert {pair["truth"] for pair in by_word["confusions"]} == {None}


def test_a_class_called_like_a_word_goes_before_it(birds: Birds, tmp_path: Path) -> None:
    project, _ = birds
    names = dict(zip(CLASSES, ("no", "yes", "3"), strict=True))
    project.classes = list(names.values())
    labels = [names[label] for label in project.table.column("label").to_pylist()]
    project.table = project.table.set_column(1, "label", [labels])
    path, design = draw_sample(project, 30)
    rows = read_rows(path)
    for row in rows:
        row["truth"] = "no" if row["label"] == "no" else "3.0"  # as a spreadsheet writes 3
    truths = read_answers(write_rows(tmp_path / "answers.csv", rows), project, design)
    assert set(truths.values()) == {"no", "3"}


def test_rows_without_an_answer_are_counted(birds: Birds) -> None:
    project, truth = birds
    path, _ = draw_sample(project, 60)
    rows = answered(path, truth, lambda row, right: "" if row["label"] == "ibis" else right)
    result = judge(project, path)
    assert result["unanswered"] == sum(row["label"] == "ibis" for row in rows)
    ibis = result["classes"][2]
    assert (ibis["checked"], ibis["precision"], ibis["low"], ibis["high"]) == (0, None, None, None)
    deleted = write_rows(path, [row for row in rows if row["truth"]])
    assert judge(project, deleted) == result
    answered(path, truth, lambda _row, _right: " ")
    with pytest.raises(DataError, match=r"audit\.csv has no answers yet.* column truth"):
        judge(project, path)


def test_answers_that_do_not_fit_the_sample(birds: Birds) -> None:
    project, truth = birds
    path, _ = draw_sample(project, 60)
    rows = answered(path, truth, lambda _row, right: right)
    first = rows[0]
    empty = dict.fromkeys(first, "")
    corrected = "ibis" if first["label"] != "ibis" else "heron"
    other = path.with_name("other.csv")
    for words, changed in (
        ("Only sampled rows .* 1 ids .*'bird-9999'", [*rows, first | {"id": "bird-9999"}]),
        ("1 ids more than once: .*Keep one row", [*rows, first]),
        (r"'hreon', which is not a class; did you mean 'heron'\?", [first | {"truth": "hreon"}]),
        ("'zebra', .*known: 'heron', 'stork', 'ibis'", [first | {"truth": "zebra"}]),
        ("1 rows .* another label .* Restore the column label", [first | {"label": corrected}]),
        ("columns id and truth; it has 'id', 'label'", [{"id": "bird-1", "label": "ibis"}]),
        ("Row 61 of .* truth 'ibis' but no id", [*rows, empty | {"truth": "ibis"}]),
    ):
        write_rows(other, changed)
        with pytest.raises(DataError, match=words):
            judge(project, other)
    judge(project, write_rows(other, [{"id": row["id"], "truth": row["truth"]} for row in rows]))
    judge(project, write_rows(other, [*rows, empty]))  # as spreadsheets leave behind
    other.write_bytes(b"id,truth\nbird-1,\xff\n")
    for name, words in (
        ("other.csv", "cannot be read as CSV"),
        ("nowhere.csv", r"does not exist: .*nowhere\.csv"),
        ("audit.json", r"\.csv or \.parquet; got audit\.json"),
    ):
        with pytest.raises(DataError, match=words):
            judge(project, path.with_name(name))


def test_labels_that_were_made_again_need_a_new_sample(birds: Birds) -> None:
    project, truth = birds
    with pytest.raises(DataError, match=r"No sample was drawn from .*: it has no audit\.json"):
        judge(project, project.folder / "audit.csv")
    path, design = draw_sample(project, 60)
    answered(path, truth, lambda _row, right: right)
    table = project.table
    labels = table.column("label").to_pylist()
    drawn = project.ids.index(next(iter(design.rows)))
    labels[drawn] = "ibis" if labels[drawn] != "ibis" else "heron"
    project.table = table.set_column(1, "label", [labels])
    with pytest.raises(DataError, match=rf"1 sampled rows .*'bird-{drawn}'.* Draw a new sample"):
        judge(project, path)
    status = table.column("status").to_pylist()
    sampled = {project.ids.index(name) for name in design.rows}
    pseudo = (row for row, name in enumerate(status) if name == "pseudo")
    status[next(row for row in pseudo if row not in sampled)] = "abstained"
    project.table = table.set_column(3, "status", [status])
    with pytest.raises(DataError, match=r"labelled again since audit.json"):
        judge(project, path)
    (project.folder / "audit.json").write_text("{}")
    with pytest.raises(DataError, match=r"sample is missing\. Draw a new sample"):
        judge(project, path)


def test_answers_about_labels_that_were_replaced_are_not_judged_but_kept(birds: Birds) -> None:
    project, truth = birds
    path, _ = draw_sample(project, 60)
    rows = answered(path, truth, lambda _row, right: right)
    project.settings["key"] = {"seed": 1}
    with pytest.raises(DataError, match=r"audit\.json was made from labels .*replaced.*new sample"):
        judge(project, path)
    draw_sample(project, 60)
    assert read_rows(project.folder / "audit.earlier-labels-1.csv") == rows
    assert [note.split()[0] for note in project.notes] == ["audit.csv", "audit.json"]
    assert all(" audit.earlier-labels-1." in note for note in project.notes)
    draw_sample(project, 50)
    assert not list(project.folder.glob("*earlier-labels-2*")), "these are of the current labels"


def test_answers_are_not_overwritten_by_a_new_sample(birds: Birds) -> None:
    project, truth = birds
    path, design = draw_sample(project, 60)
    answered(path, truth, lambda _row, right: right)
    with pytest.raises(DataError, match=r"audit\.csv exists, and 60 of its rows .*'truth'"):
        draw_sample(project, 60, seed=1)
    assert Design.read(project) == design
    assert draw_sample(project, 60, seed=1, overwrite=True)[1] != design
    with pytest.raises(DataError, match=r"at least 3, .* got 2\. Better take 30"):
        draw_sample(project, 2, overwrite=True)


# Precision ----------------------------------------------------------------------------------------


def strata_of(rows: dict[str, tuple[int, ...]]) -> list[Stratum]:
    each = [(label, i, size) for label, sizes in rows.items() for i, size in enumerate(sizes)]
    return [Stratum(label, str(i), size, 0.9) for label, i, size in each]


def counts(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def test_the_interval_is_that_of_agresti_and_coull_where_there_is_one_large_stratum() -> None:
    found = precision(strata_of({"a": (10**9,)}), counts(81), counts(100))
    # By hand: (81 + 1.9207) / (100 + 3.8415) +- 0.0771.
    assert found == pytest.approx((0.81, 0.7214, 0.8757), abs=1e-4)
    assert agresti_coull(1.0, 1 / 20) == pytest.approx((0.8102, 1.0), abs=1e-4)
    assert agresti_coull(0.3, 0.0) == pytest.approx((0.3, 0.3))


def test_strata_count_by_their_size_and_not_by_how_often_they_were_drawn() -> None:
    strata = strata_of({"a": (9000,), "b": (1000,)})
    found = precision(strata, counts(10, 45), counts(10, 90))
    assert found.value == pytest.approx(0.95)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.95 < found.high


def test_rows_that_were_all_checked_leave_nothing_to_chance() -> None:
    found = precision(strata_of({"a": (10, 5), "b": (1,)}), counts(9, 5, 0), counts(10, 5, 1))
    assert found == pytest.approx((14 / 16, 14 / 16, 14 / 16))


def test_a_stratum_without_an_answer_is_taken_to_be_like_its_class() -> None:
    strata = strata_of({"a": (100, 300), "b": (600,)})
    alike = precision(strata_of({"a": (100,), "b": (150,)}), counts(5, 20), counts(10, 20))
    found = precision(strata, counts(5, 0, 20), counts(10, 0, 20))
    assert found == pytest.approx(alike, abs=0.02)


def test_of_a_class_without_an_answer_nothing_is_known() -> None:
    strata = strata_of({"a": (900,), "b": (100,)})
    alone = precision(strata[:1], counts(27), counts(30))
    both = precision(strata, counts(27, 0), counts(30, 0))
    assert alone.low is not None
    assert alone.high is not None
    assert both == pytest.approx((0.9, 0.9 * alone.low, 0.9 * alone.high + 0.1))
    assert precision(strata, counts(0, 0), counts(0, 0)) == (None, None, None)


@pytest.mark.parametrize(
    ("classes", "sample", "rates"),
    [
        (10, 200, lambda _rng, h: np.tile([0.85, 0.95, 0.99], h // 3)),
        (10, 200, lambda _rng, h: np.tile([0.97, 0.99, 0.999], h // 3)),
        (10, 200, lambda _rng, h: np.tile([0.99, 0.9, 0.8], h // 3)),  # wrong where it is sure
        (40, 300, lambda rng, h: rng.beta(6, 1, h)),
        (3, 40, lambda _rng, h: np.tile([0.6, 0.8, 0.9], h // 3)),
    ],
    ids=["calibrated", "all but perfect", "overconfident", "classes differ", "small"],
)
def test_intervals_of_95_percent_cover_about_that(classes: int, sample: int, rates: Rates) -> None:
    rng = np.random.default_rng(0)
    sizes = np.maximum(2, 800 * 100 ** (-np.arange(classes) / max(classes - 1, 1))).astype(int)
    bands = list(enumerate((0.85, 0.95, 0.99)))
    strata = [Stratum(str(c), str(b), n, sure) for c, n in enumerate(sizes) for b, sure in bands]
    checked = np.array(allocate(strata, sample))
    rows = np.array([stratum.rows for stratum in strata])
    covered: list[bool] = []
    of_class: list[bool] = []
    first = slice(3 * (classes // 2), 3 * (classes // 2) + 3)
    for _ in range(500):
        all_right = rng.binomial(rows, rates(rng, len(rows)))
        right = rng.hypergeometric(all_right, rows - all_right, checked)
        for where, found in ((slice(None), covered), (first, of_class)):
            interval = precision(strata[where], right[where], checked[where])
            assert interval.low is not None
            assert interval.high is not None
            true = all_right[where].sum() / rows[where].sum()
            found.append(interval.low - 1e-9 <= true <= interval.high + 1e-9)
    assert 0.93 <= np.mean(covered) <= 0.995
    assert np.mean(of_class) >= 0.93
