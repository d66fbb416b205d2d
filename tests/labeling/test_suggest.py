"""What to label next: nothing labelled, nothing twice, rare classes first, strays last."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from semigpc.io.errors import DataError, SettingsError
from semigpc.labeling.columns import read_label_table
from semigpc.labeling.project import Project
from semigpc.labeling.suggest import (
    SuggestConfig,
    choose_diverse,
    classes_in_need,
    codes_in_need,
    neighbourly,
    rare_weights,
    suggest,
    unsure,
    write_suggestions,
)
from tests.labeling.clouds import Clouds, make_clouds
from tests.labeling.samples import labelled_table, read_rows, write_rows


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> Clouds:
    return make_clouds(tmp_path_factory.mktemp("clouds"))


def points_covariance(x: NDArray[np.float64]) -> NDArray[np.float64]:
    covariance: NDArray[np.float64] = np.exp(-((x[:, None] - x[None]) ** 2).sum(axis=2) / 2)
    return covariance


def test_choosing_lowers_the_variance_as_conditioning_does() -> None:
    rng = np.random.default_rng(0)
    covariance = points_covariance(rng.normal(size=(30, 2)))
    factors = rng.uniform(0.5, 1.0, 30)
    chosen, worth, chosen_by = choose_diverse(covariance, factors[None], 0.01, [0] * 6)
    assert not chosen_by.any()
    for k in range(6):  # by the textbook: the posterior given noisy values at all chosen before
        before = chosen[:k]
        noisy = covariance[np.ix_(before, before)] + 0.01 * np.eye(k)
        gain = np.linalg.solve(noisy, covariance[before])
        left = (covariance - covariance[:, before] @ gain).diagonal() * factors
        left[before] = -1
        assert chosen[k] == left.argmax()
        assert worth[k] == pytest.approx(left.max(), abs=1e-10)


def test_of_two_copies_one_waits_until_other_regions_are_explored() -> None:
    x = np.array([[0.0, 0], [0, 0], [0.1, 0], [5, 5], [9, 0]])
    factors = np.array([[1.0, 1.0, 1.0, 0.3, 0.2]])
    chosen, worth, _ = choose_diverse(points_covariance(x), factors, 0.01, [0] * 5)
    assert chosen[:3].tolist() == [0, 3, 4]
    assert (worth[3:] < 0.05).all()


def test_no_more_rows_are_chosen_than_there_are() -> None:
    chosen, _, _ = choose_diverse(np.eye(3), np.ones((1, 3)), 0.1, [0] * 10)
    assert sorted(chosen) == [0, 1, 2]


def test_factors_take_turns_while_they_have_rows() -> None:
    factors = np.array([[0.9, 0.8, 0.7, 0.6], [0.0, 0.0, 0.1, 0.0]])
    chosen, _, chosen_by = choose_diverse(np.eye(4), factors, 0.1, [0, 1, 0, 1])
    assert chosen.tolist() == [0, 2, 1, 3]
    assert chosen_by.tolist() == [0, 1, 0, 0]


def test_a_row_without_neighbours_counts_for_little_at_any_length_scale() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.normal(size=(60, 3)), [[9.0, 9, 9]]])
    for length_scale in (0.3, 1.0, 3.0):
        weights = neighbourly(points_covariance(x / length_scale))
        assert weights[-1] < 0.01
        assert np.median(weights) > 0.99


def test_rare_classes_weigh_more_with_a_larger_exponent() -> None:
    counts = np.array([999, 99, 9])
    assert rare_weights(counts, 0.0).tolist() == [1, 1, 1]
    assert rare_weights(counts, 1.0) == pytest.approx([0.01, 0.1, 1])
    assert (rare_weights(counts, 0.5) > rare_weights(counts, 1.0))[:2].all()


def test_labelled_rows_are_never_suggested(clouds: Clouds) -> None:
    project = clouds.project
    everything = suggest(project, SuggestConfig(count=len(project.ids)))
    rows = [suggestion.row for suggestion in everything]
    assert len(rows) == len(set(rows)) == len(project.ids) - len(project.given)
    assert not set(rows) & set(project.given)
    for name in ("", "yew"):
        worth = [suggestion.worth for suggestion in everything if suggestion.for_class == name]
        assert worth
        assert worth == sorted(worth, reverse=True)


@pytest.mark.parametrize("pool", [3000, 60])
def test_every_class_in_need_gets_its_share_of_a_long_tail(tmp_path: Path, pool: int) -> None:
    rng = np.random.default_rng(3)
    sizes, labelled = (300, 150, 70, 30, 14, 10), (24, 14, 8, 3, 2, 2)
    truth = np.repeat(np.arange(6), sizes)
    x = (rng.normal(size=(6, 8))[truth] * 1.6 + rng.normal(size=(len(truth), 8))).astype(np.float32)
    ids = [f"row-{row}" for row in range(len(truth))]
    rows = [np.flatnonzero(truth == c)[:n] for c, n in enumerate(labelled)]
    given = {ids[row]: f"class {truth[row]}" for row in np.concatenate(rows)}
    project = Project.open(labelled_table(tmp_path, x, ids, given))
    needs = classes_in_need(project)
    assert {"class 3", "class 4", "class 5"} <= needs.keys()
    assert "class 0" not in needs
    found = suggest(project, SuggestConfig(count=20, pool=pool))
    for name in needs:
        sought = [suggestion for suggestion in found if suggestion.for_class == name]
        assert len(sought) >= 10 // len(needs), name
        assert all(name in suggestion.why for suggestion in sought)
    assert sum(suggestion.for_class == "" for suggestion in found) == 10
    sought = [suggestion for suggestion in found if suggestion.for_class]
    right = [f"class {truth[suggestion.row]}" == suggestion.for_class for suggestion in sought]
    assert np.mean(right) > 0.5


def test_an_unlabelled_cloud_and_one_of_the_copies_come_first(clouds: Clouds) -> None:
    found = suggest(clouds.project, SuggestConfig(count=12))
    kinds = clouds.truth[[suggestion.row for suggestion in found]].tolist()
    assert kinds.count("copy") == 1
    assert kinds[0] == "new"
    assert found[0].why.startswith("unlike what is labelled")


def test_of_an_outlier_nothing_is_sure() -> None:
    doubt = unsure(np.array([1.0, 1.0, 1.0, 0.6]), np.array([0.0, 0.5, 3.0, 0.0]))
    assert doubt == pytest.approx([0, 0.5, 1, 0.4])


def test_outliers_can_be_left_out(clouds: Clouds) -> None:
    status = clouds.project.table.column("status").to_pylist()
    some = suggest(clouds.project, SuggestConfig(count=30, outliers="exclude"))
    assert some
    assert "outlier" not in {status[suggestion.row] for suggestion in some}


def test_rare_classes_come_up_more_with_a_larger_weight(clouds: Clouds) -> None:
    def share(rare: float) -> float:
        found = suggest(clouds.project, SuggestConfig(count=60, rare=rare, outliers="exclude"))
        general = [suggestion for suggestion in found if not suggestion.for_class]
        return float(np.mean([suggestion.believed == "yew" for suggestion in general]))

    assert share(0.0) <= share(1.0) <= share(4.0)
    assert share(4.0) > share(0.0)


def test_the_same_call_gives_the_same_rows_also_from_a_part_of_them(clouds: Clouds) -> None:
    for pool in (3000, 40):
        config = SuggestConfig(count=10, pool=pool, seed=3)
        assert suggest(clouds.project, config) == suggest(clouds.project, config)
    best, of_few = (
        {suggestion.row for suggestion in suggest(clouds.project, SuggestConfig(count=10, pool=n))}
        for n in (3000, 100)
    )
    assert len(best & of_few) >= 4


def test_the_file_is_a_table_of_labels_once_it_is_filled_in(tmp_path: Path) -> None:
    project = make_clouds(tmp_path).project
    found = suggest(project, SuggestConfig(count=5))
    path = write_suggestions(project, found)
    assert path == project.folder / "suggestions.csv"
    write_suggestions(project, found)  # nobody has written into it
    rows = read_rows(path)
    assert [row["id"] for row in rows] == [suggestion.id for suggestion in found]
    names = "rank id label believed confidence variance worth for_class why chosen"
    assert list(rows[0]) == names.split()
    assert {row["label"] for row in rows} == {""}
    assert read_label_table(path, "id").given == {}
    rows[1]["label"] = "beech"
    write_rows(path, rows)
    table = read_label_table(path, "id")
    assert table.given == {found[1].id: "beech"}
    assert found[1].id in table.chosen, "no random sample"
    with pytest.raises(DataError, match=r"suggestions\.csv exists, and 1 of its rows .*'label'"):
        write_suggestions(project, found)
    write_suggestions(project, found, overwrite=True)
    assert read_label_table(path, "id").given == {}
    path.write_bytes(b"rank,id,label\n1,a,\xff\n")
    with pytest.raises(DataError, match="exists, and 1"):
        write_suggestions(project, found)


def test_nothing_left_to_label(tmp_path: Path) -> None:
    clouds = make_clouds(tmp_path)
    table = clouds.project.table.drop_columns("status")
    clouds.project.table = table.append_column("status", [["labelled"] * len(clouds.project.ids)])
    words = r"Nothing is left to label in .*out: all of its 265 rows are labelled"
    with pytest.raises(DataError, match=words):
        suggest(clouds.project)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"count": 0}, "count must be at least 1"),
        ({"count": 50, "pool": 20}, "pool at least count; got 50 and 20"),
        ({"rare": -1.0}, r"rare must lie in \[0, 10\]; got -1.0"),
        ({"outliers": "some"}, "outliers must be 'include' or 'exclude'; got 'some'"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        SuggestConfig(**settings)  # type: ignore[arg-type]


def test_classes_without_pseudo_labels_are_most_in_need_then_those_with_few_labels() -> None:
    labels = np.array([20, 3, 4, 0, 9, 3])
    pseudo = np.array([50, 2, 0, 0, 0, 1])
    assert codes_in_need(labels, pseudo).tolist() == [2, 4, 1, 5]
    assert codes_in_need(np.array([5, 5]), np.array([1, 1])).tolist() == []
