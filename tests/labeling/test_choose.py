"""What is asked next: spread at first, then what teaches, with random rows and labels to check."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from semigpc.estimator import SemiGPClassifier, Status
from semigpc.labeling.choose import Choice, Pool, Predictions, choose, codes_in_need
from semigpc.labeling.choose import _Coverage as Coverage
from semigpc.labeling.journal import random_order

NAMES = ("ash", "beech", "cedar", "date")


class World:
    """Clouds of different sizes, and a pool of them with some labels."""

    def __init__(self, sizes: tuple[int, ...] = (120, 60, 20, 10), *, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.truth = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
        centres = 5 * np.eye(len(sizes), 12)
        rows = centres[self.truth] + rng.normal(size=(len(self.truth), 12))
        self.x = rows.astype(np.float32)
        self.known = np.full(len(self.x), -1, np.int64)

    def label(self, code: int, count: int, *, wrong: int | None = None) -> NDArray[np.int64]:
        rows = np.flatnonzero((self.truth == code) & (self.known < 0))[:count]
        self.known[rows] = code if wrong is None else wrong
        return rows

    def pool(self, *, fitted: bool = True, **fields: Any) -> Pool:
        model = None
        if fitted:
            names = np.array([*NAMES, None], dtype=object)
            model = SemiGPClassifier(random_state=0, target_precision=None, sharpness=1.0)
            model.fit(self.x, names[self.known], transduce=False)
        order = random_order(len(self.x))
        pool = Pool(lambda rows: self.x[rows], self.known, self.known < 0, order, NAMES, model)
        return replace(pool, **fields)

    def answers_without(self, code: int) -> Predictions:
        """Return what is predicted if a class gets no new label."""
        n = len(self.x)
        return Predictions(
            np.where(self.truth == code, 0, self.truth),
            np.ones(n, np.int64),
            np.full(n, 0.9, np.float32),
            np.zeros(n, np.float32),
            np.full(n, Status.PSEUDO, np.uint8),
        )


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def labelled() -> World:
    world = World()
    for code, count in ((0, 20), (1, 10), (2, 2)):
        world.label(code, count)
    return world


def rows_of(choices: list[Choice]) -> list[int]:
    return [choice.row for choice in choices]


def test_without_labels_a_few_rows_show_every_cloud(world: World) -> None:
    found = choose(world.pool(fitted=False), 8, random_every=0)
    assert {choice.kind for choice in found} == {"spread"}
    assert set(world.truth[rows_of(found)]) == {0, 1, 2, 3}


def test_the_first_row_is_typical_and_no_outlier(world: World) -> None:
    x = np.concatenate([world.x, 40 * np.eye(1, 12, 9, dtype=np.float32)])
    known = np.full(len(x), -1, np.int64)
    pool = Pool(lambda rows: x[rows], known, known < 0, random_order(len(x)), ())
    first = choose(pool, 4, random_every=0)
    assert len(x) - 1 not in rows_of(first)


def test_rows_are_typical_of_their_clouds_while_labels_are_few(world: World) -> None:
    found = rows_of(choose(world.pool(fitted=False), 8, random_every=0))
    centres = np.stack([world.x[world.truth == code].mean(axis=0) for code in range(4)])
    distance = np.linalg.norm(world.x - centres[world.truth], axis=1)
    assert distance[found].mean() < 0.9 * distance.mean()


def test_groups_without_labels_come_before_those_with_labels(world: World) -> None:
    for code in (0, 1, 2):
        world.label(code, 1)
    found = choose(world.pool(), 5, random_every=0)
    assert {choice.kind for choice in found} == {"spread"}
    assert 3 in world.truth[rows_of(found)]
    assert "without labels" in found[0].why
    many = choose(world.pool(), 300, random_every=0)
    assert "large group" in many[-1].why


def test_copies_are_not_asked_twice_in_a_row(world: World) -> None:
    x = np.concatenate([world.x, world.x, world.x])
    known = np.full(len(x), -1, np.int64)
    pool = Pool(lambda rows: x[rows], known, known < 0, random_order(len(x)), ())
    found = rows_of(choose(pool, 20, random_every=0))
    assert len({row % len(world.x) for row in found}) == 20


@pytest.mark.parametrize("every", [2, 3, 5])
def test_every_so_many_cards_are_the_next_rows_of_the_random_order(
    labelled: World, every: int
) -> None:
    pool = labelled.pool()
    done = int((~pool.is_open).sum())
    found = choose(pool, 20, random_every=every, random_from=done + 5)
    is_random = [place > 5 and not (done + place) % every for place in range(1, 21)]
    assert [choice.kind == "random" for choice in found] == is_random
    is_open = pool.is_open.copy()
    for choice in found:
        if choice.kind == "random":
            assert pool.order[choice.row] == pool.order[is_open].min()
        is_open[choice.row] = False


def test_the_first_answers_teach_and_random_cards_come_later(world: World) -> None:
    found = choose(world.pool(fitted=False), 60)
    assert [choice.kind == "random" for choice in found] == [False] * 40 + [False, True] * 10


def test_one_at_a_time_gives_as_many_random_cards_as_many_at_once(world: World) -> None:
    pool = world.pool(fitted=False)
    kinds = []
    for _ in range(12):
        (choice,) = choose(pool, 1, random_every=4, random_from=0)
        kinds.append(choice.kind)
        is_open = pool.is_open.copy()
        is_open[choice.row] = False
        pool = replace(pool, is_open=is_open)
    assert kinds.count("random") == 3


def test_one_at_a_time_comes_to_classes_in_need_and_to_labels_to_check(labelled: World) -> None:
    unchecked = labelled.known >= 0
    answers = labelled.answers_without(2)
    pool = labelled.pool(suspected=unchecked.copy(), unchecked=unchecked, answers=answers)
    kinds = []
    for _ in range(24):
        (choice,) = choose(pool, 1, random_from=0)
        kinds.append(choice.kind)
        is_open = pool.is_open.copy()
        is_open[choice.row] = False
        unchecked = unchecked.copy()
        unchecked[choice.row] = False
        pool = replace(pool, is_open=is_open, suspected=unchecked, unchecked=unchecked)
    assert kinds.count("random") == 12
    assert kinds.count("suspected") == 3
    assert kinds.count("need") >= 3


def test_without_random_cards_there_are_none(labelled: World) -> None:
    assert all(each.kind != "random" for each in choose(labelled.pool(), 30, random_every=0))


def test_equal_input_gives_equal_choices(labelled: World) -> None:
    pool = labelled.pool()
    assert choose(pool, 15, seed=3) == choose(pool, 15, seed=3)


def test_every_open_row_comes_once_and_then_no_more(labelled: World) -> None:
    pool = labelled.pool()
    found = rows_of(choose(pool, 1000))
    assert len(found) == len(set(found))
    assert set(found) == set(np.flatnonzero(pool.is_open))
    assert choose(replace(pool, is_open=np.zeros(len(labelled.x), bool)), 3) == []


def test_a_cloud_that_nobody_has_labelled_is_asked_about_soon(labelled: World) -> None:
    found = choose(labelled.pool(), 6, random_every=0)
    unseen = [choice for choice in found if choice.kind == "unseen"]
    assert 3 in labelled.truth[rows_of(unseen)]


def test_of_known_classes_rows_of_rare_ones_and_between_classes_come_first() -> None:
    world = World((100, 100, 30))
    rng = np.random.default_rng(1)
    between = (2.5 * np.eye(12)[0] + 2.5 * np.eye(12)[1] + 0.3 * rng.normal(size=(6, 12))).astype(
        np.float32
    )
    world.x = np.concatenate([world.x, between])
    world.truth = np.concatenate([world.truth, np.zeros(6, np.int64)])
    world.known = np.full(len(world.x), -1, np.int64)
    for code, count in ((0, 20), (1, 20), (2, 3)):
        world.label(code, count)
    found = choose(world.pool(), 8, random_every=0)
    hard = (world.truth == 2) | (np.arange(len(world.x)) >= 230)
    assert hard[rows_of(found)].mean() > 2 * hard.mean()


def test_a_class_in_need_is_named_with_its_number_of_labels(labelled: World) -> None:
    pool = labelled.pool(answers=labelled.answers_without(2))
    found = choose(pool, 20, random_every=0)
    sought = [choice for choice in found if choice.kind == "need"]
    assert {choice.for_class for choice in sought} == {"cedar"}
    assert all("cedar" in choice.why and "2 labels" in choice.why for choice in sought)
    assert np.mean(labelled.truth[rows_of(sought)] == 2) > 0.25  # of 7 % of the rows


def test_a_class_with_few_labels_that_gets_new_ones_has_no_turns_of_its_own(
    labelled: World,
) -> None:
    known = labelled.pool(answers=labelled.answers_without(3))
    lacking = labelled.pool(answers=labelled.answers_without(2))
    counts = [
        sum(choice.for_class == "cedar" for choice in choose(pool, 24, random_every=0))
        for pool in (known, lacking)
    ]
    assert counts[0] < 6 <= counts[1]


def test_suspected_labels_and_copies_with_different_labels_are_asked_again(
    labelled: World,
) -> None:
    (odd,) = labelled.label(0, 1, wrong=1)
    x = np.concatenate([labelled.x, labelled.x[[odd]]])
    labelled.x = x
    labelled.truth = np.append(labelled.truth, 0)
    labelled.known = np.append(labelled.known, 0)
    suspected = np.zeros(len(x), bool)
    other = int(np.flatnonzero(labelled.known == 0)[0])
    suspected[other] = True
    unchecked = labelled.known >= 0
    pool = labelled.pool(suspected=suspected, unchecked=unchecked)
    found = choose(pool, 40)
    kinds = {choice.row: choice.kind for choice in found}
    assert kinds[other] == "suspected"
    assert kinds[odd] == kinds[len(x) - 1] == "copies"
    again = replace(pool, suspected=None, unchecked=np.zeros(len(x), bool))
    assert {"suspected", "copies"}.isdisjoint(choice.kind for choice in choose(again, 20))


def test_of_many_rows_those_in_doubt_and_some_at_random_are_chosen_among(
    labelled: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semigpc.labeling.choose.POOL_ROWS", 40)
    n = len(labelled.x)
    confidence = np.full(n, 0.99, np.float32)
    doubtful = np.flatnonzero(labelled.known < 0)[-20:]
    confidence[doubtful] = 0.3
    about = Predictions(
        np.zeros(n, np.int64),
        np.ones(n, np.int64),
        confidence,
        np.zeros(n, np.float32),
        np.ones(n, np.uint8),
    )
    seen: list[NDArray[np.int64]] = []

    def rows(wanted: NDArray[np.int64]) -> NDArray[np.float32]:
        seen.append(wanted)
        found: NDArray[np.float32] = labelled.x[wanted]
        return found

    choose(labelled.pool(rows=rows, answers=about), 5, random_every=0)
    assert len(seen[0]) == 40
    assert set(doubtful) <= set(seen[0].tolist())


def test_coverage_is_that_of_conditioning() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 2))
    covariance = np.exp(-((x[:, None] - x[None]) ** 2).sum(axis=2) / 2)
    coverage = Coverage(covariance, 0.01)
    asked: list[int] = []
    for place in (4, 17, 4, 29):  # by the textbook: the posterior given noisy values
        coverage.answered(place)
        asked.append(place)
        noisy = covariance[np.ix_(asked, asked)] + 0.01 * np.eye(len(asked))
        left = covariance - covariance[:, asked] @ np.linalg.solve(noisy, covariance[asked])
        assert coverage.variance == pytest.approx(left.diagonal(), abs=1e-4)
        gain = (left**2).sum(axis=1) / (left.diagonal() + 0.01)
        assert coverage.gain() == pytest.approx(gain, abs=1e-3)


def test_classes_without_pseudo_labels_are_most_in_need_then_those_with_few_labels() -> None:
    labels = np.array([20, 3, 4, 0, 9, 3])
    pseudo = np.array([50, 2, 0, 0, 0, 1])
    assert codes_in_need(labels, pseudo).tolist() == [2, 4, 1, 5]
    assert codes_in_need(np.array([5, 5]), np.array([1, 1])).tolist() == []
    assert codes_in_need(np.array([0, 0]), np.array([0, 0])).tolist() == []
