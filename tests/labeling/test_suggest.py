"""What ``suggest`` writes: rows of the one chooser, with every answer of the page known to it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from semigpc.io.errors import DataError, SettingsError
from semigpc.labeling.columns import read_label_table
from semigpc.labeling.journal import NAME, Action, Change, Entry, random_order
from semigpc.labeling.project import Project
from semigpc.labeling.suggest import open_pool, suggest, write_suggestions
from tests.labeling.clouds import Clouds, make_clouds
from tests.labeling.samples import labelled_table, read_rows, write_rows


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Clouds:
    return make_clouds(tmp_path_factory.mktemp("clouds"))


def answer(project: Project, rows: Sequence[int], labels: Sequence[str | None]) -> Project:
    """Return the project with answers of the page, one line each."""
    status = project.table.column("status").to_pylist()
    lines = []
    for step, (row, label) in enumerate(zip(rows, labels, strict=True), start=1):
        change = Change(project.ids[row], None, label, status[row], 0.5)
        action: Action = "skip" if label is None else "correct"
        lines.append(Entry(step, "2026-01-01T00:00:00Z", action, (change,)).line())
    (project.folder / NAME).write_text("".join(lines))
    return Project.open(project.folder)


def test_every_open_row_is_suggested_once_and_no_labelled_one_without_a_reason(
    clouds: Clouds,
) -> None:
    project = clouds.project
    everything = suggest(project, 1000)
    rows = [suggestion.row for suggestion in everything]
    assert len(rows) == len(set(rows))
    again = {each.row for each in everything if each.kind in ("suspected", "copies")}
    assert set(rows) - again == set(range(len(project.ids))) - set(project.given)
    assert again <= set(project.given)


def test_what_is_shown_of_a_row_is_what_the_model_predicts(clouds: Clouds) -> None:
    model = clouds.project.taught()
    found = suggest(clouds.project, 20)
    answers = model.answer(clouds.project.embeddings(np.array([each.row for each in found])))
    assert [each.guess for each in found] == model.classes_[answers.codes].tolist()
    assert [each.confidence for each in found] == pytest.approx(answers.confidence.tolist())
    assert answers.variance is not None
    assert [each.variance for each in found] == pytest.approx(answers.variance.tolist(), abs=1e-5)


def test_an_answer_of_the_page_is_not_asked_again_and_changes_what_follows(tmp_path: Path) -> None:
    clouds = make_clouds(tmp_path)
    before = [each.row for each in suggest(clouds.project, 12)]
    names = [clouds.truth[row] for row in before[:8]]
    project = answer(clouds.project, before[:9], [*names, None])  # the last one is skipped
    pool = open_pool(project)
    assert [pool.names[pool.known[row]] for row in before[:8]] == names
    assert not pool.is_open[before[:9]].any()
    assert pool.model is not None
    assert set(pool.model.labeled_rows_) == {*project.given, *before[:8]}
    after = [each.row for each in suggest(project, 12)]
    assert not set(after) & set(before[:9])
    assert after[:3] != before[9:12]


def test_without_any_label_the_first_rows_are_suggested_all_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(20, 4)) + 9 * np.eye(4)[c] for c in range(3)])
    ids = [f"row-{row:02d}" for row in range(60)]
    given = dict.fromkeys(ids[:1], "one") | dict.fromkeys(ids[20:21], "two")
    project = Project.open(labelled_table(tmp_path, x.astype(np.float32), ids, given))
    project.given = {}  # as of a folder that nothing is known of yet
    found = suggest(project, 9)
    assert {each.guess for each in found} == {""}
    assert {each.row // 20 for each in found} == {0, 1, 2}
    assert {each.kind for each in found} == {"spread"}


def test_a_wrong_label_of_the_tables_is_suggested_again_until_it_is_answered(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(1)
    truth = np.repeat(["oak", "elm"], 60)
    x = (rng.normal(size=(120, 6)) + 8 * np.eye(6)[(truth == "elm").astype(int)]).astype(np.float32)
    ids = [f"row-{row:03d}" for row in range(120)]
    given = {ids[row]: str(truth[row]) for row in (*range(30), *range(60, 90))}
    given[ids[5]] = "elm"
    project = Project.open(labelled_table(tmp_path, x, ids, given))
    (wrong,) = (each for each in suggest(project, 30) if each.kind == "suspected")
    assert wrong.row == 5
    project = answer(project, [5], ["elm"])  # the reviewer insists
    assert 5 not in {each.row for each in suggest(project, 30)}


def test_rows_drawn_at_random_count_as_such(tmp_path: Path) -> None:
    clouds = make_clouds(tmp_path)
    found = suggest(clouds.project, 20)
    drawn = [each.row for each in found if each.kind == "random"]
    rank = random_order(len(clouds.truth))
    assert drawn == sorted(drawn, key=lambda row: rank[row])
    path = write_suggestions(clouds.project, found)
    rows = read_rows(path)
    assert [row["chosen"] for row in rows] == [
        "" if row["kind"] == "random" else "yes" for row in rows
    ]


def test_the_file_is_a_table_of_labels_once_it_is_filled_in(tmp_path: Path) -> None:
    project = make_clouds(tmp_path).project
    found = suggest(project, 5)
    path = write_suggestions(project, found)
    assert path == project.folder / "suggestions.csv"
    write_suggestions(project, found)  # nobody has written into it
    rows = read_rows(path)
    assert [row["id"] for row in rows] == [suggestion.id for suggestion in found]
    names = "rank id label guess confidence variance kind for_class why chosen"
    assert list(rows[0]) == names.split()
    assert {row["label"] for row in rows} == {""}
    assert read_label_table(path, "id").given == {}
    place = next(place for place, row in enumerate(rows) if row["chosen"])
    rows[place]["label"] = "beech"
    write_rows(path, rows)
    table = read_label_table(path, "id")
    assert table.given == {found[place].id: "beech"}
    assert found[place].id in table.chosen, "no random sample"
    with pytest.raises(DataError, match=r"suggestions\.csv exists, and 1 of its rows .*'label'"):
        write_suggestions(project, found)
    write_suggestions(project, found, overwrite=True)
    assert read_label_table(path, "id").given == {}
    path.write_bytes(b"rank,id,label\n1,a,\xff\n")
    with pytest.raises(DataError, match="exists, and 1"):
        write_suggestions(project, found)


def test_nothing_left_to_label(tmp_path: Path) -> None:
    clouds = make_clouds(tmp_path)
    project = clouds.project
    everything = range(len(clouds.truth))
    project = answer(project, everything, [str(kind) for kind in clouds.truth])
    with pytest.raises(DataError, match=r"Nothing is left to label in .*out: all of its 265 rows"):
        suggest(project)


def test_a_count_that_cannot_be(clouds: Clouds) -> None:
    with pytest.raises(SettingsError, match="count must be at least 1; got 0"):
        suggest(clouds.project, 0)
