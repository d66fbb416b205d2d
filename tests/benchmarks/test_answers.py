"""The simulated person: who is asked about what, and what is counted."""

import numpy as np
import pytest

from benchmarks.answers import (
    AT_RANDOM,
    NO_RANDOM,
    OURS,
    PEERS,
    WITHOUT_MODEL,
    Asking,
    Codes,
    Probs,
    Rows,
    Session,
    State,
    accuracies,
    ask_until,
    components,
    draw,
    first_met,
    met_at_random,
    summarise,
)
from benchmarks.problems import Pool, load_digits_pool

SIZES = (80, 40, 12)


def clouds(seed: int = 0) -> Session:
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.repeat(np.arange(3), SIZES))
    x = 8 * np.eye(3, 5)[truth] + rng.normal(size=(len(truth), 5))
    return Session(x.astype(np.float32), truth, x[:9].astype(np.float32), truth[:9])


def sure(rows: Rows) -> Probs:
    """A learner that is in doubt about the first row alone."""
    probs = np.tile([0.98, 0.01, 0.01], (len(rows), 1))
    probs[0] = 1 / 3
    return probs


@pytest.mark.parametrize("name", PEERS)
def test_peers_choose_open_rows_once_each(name: str) -> None:
    session = clouds()
    labels = np.full(len(session.X), -1)
    labels[:10] = session.truth[:10]
    predict = None if name in WITHOUT_MODEL else sure
    rows = PEERS[name](State(session.X, labels, predict, np.random.default_rng(0)), 15)
    assert len(set(rows.tolist())) == 15
    assert (labels[rows] < 0).all()
    if predict is not None:
        assert rows[0] == 10, "the only one in doubt"


@pytest.mark.parametrize("name", ["kmeans++", "typical", "coreset"])
def test_rows_that_spread_meet_all_clouds_at_once(name: str) -> None:
    session = clouds()
    labels = np.full(len(session.X), -1)
    rows = PEERS[name](State(session.X, labels, None, np.random.default_rng(0)), 6)
    assert set(session.truth[rows]) == {0, 1, 2}


def test_answers_are_the_truth_and_a_learner_comes_with_the_second_class() -> None:
    session = clouds()
    models: list[bool] = []

    def ask(labels: Codes, model: Codes | None, count: int) -> Codes:
        models.append(model is not None)
        same = np.flatnonzero((labels < 0) & (session.truth == 0))
        return same[:count] if len(models) == 1 else np.flatnonzero(labels < 0)[:count]

    asked, rounds = ask_until(session, ask, lambda labels: labels, most=60)
    assert models == [False, False, True]
    assert len(set(asked)) == len(asked) == 60
    for count, labels in zip((20, 40, 60), rounds, strict=True):
        assert sorted(np.flatnonzero(labels >= 0)) == sorted(asked[:count])
        assert (labels[asked[:count]] == session.truth[asked[:count]]).all()


def test_asking_goes_on_until_every_class_was_met_or_no_row_is_left() -> None:
    session = clouds()

    def largest_first(labels: Codes, _: object, count: int) -> Codes:
        free = np.flatnonzero(labels < 0)
        return free[np.argsort(session.truth[free], kind="stable")][:count]

    asked, rounds = ask_until(session, largest_first, None, most=20, late=True)
    assert len(rounds) == 1
    assert first_met(asked, session.truth) == SIZES[0] + SIZES[1] + 1
    everything, _ = ask_until(session, largest_first, None, most=1000)
    assert len(everything) == sum(SIZES)


def test_a_class_that_was_never_met_is_said_so() -> None:
    truth = np.array([0, 1, 0, 2])
    assert first_met([0, 2, 1], truth) is None
    assert first_met([0, 2, 3, 1], truth) == 4


def test_at_random_a_class_of_one_row_is_met_halfway() -> None:
    truth = np.zeros(101, np.int64)
    truth[3] = 1
    assert met_at_random(truth, 0) == pytest.approx(51, abs=9)  # three standard errors
    assert met_at_random(truth, 0) != met_at_random(truth, 1)


def test_a_class_without_a_label_counts_as_missed() -> None:
    session = clouds()
    labels = np.where(session.truth == 2, session.truth, -1)
    assert accuracies(session, [labels], lambda _: sure) == [1 / len(set(session.truth_test))]


def test_the_tail_is_long_and_the_test_rows_are_even() -> None:
    session = draw(Asking("digits", 10, 100, 30), load_digits_pool(), 100)
    sizes = np.sort(np.bincount(session.truth))
    assert sizes[-1] == 100
    assert sizes[0] == 10
    assert set(np.bincount(session.truth_test)) == {30}
    shared = (session.X[:, None] == session.X_test[None]).all(axis=2)
    assert shared.sum() <= 2, "of 1797 digits a few are equal"


def test_a_test_part_of_its_own_is_used() -> None:
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1], 30)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    session = draw(Asking("any", 3, 30, 5), Pool(x, codes, x + 100, codes), 0)
    assert (session.X_test > 50).all()
    assert len(session.X_test) == 10


def test_components_keep_the_distances_of_rows_in_few_dimensions() -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(80, 20)) @ rng.normal(size=(20, 400))).astype(np.float32)
    kept, others = components(x, x[:7])
    assert kept.shape == (80, 256)
    before = np.linalg.norm(x[:, None] - x[None], axis=2)
    after = np.linalg.norm(kept[:, None] - kept[None], axis=2)
    assert after == pytest.approx(before, rel=1e-3, abs=1e-2)
    assert others == pytest.approx(kept[:7], rel=1e-3, abs=1e-2)


def test_figures_are_means_over_seeds_and_then_over_problems() -> None:
    def record(
        problem: str, seed: int, own: float, peer: float, met: int | None
    ) -> dict[str, object]:
        lines = {OURS: [own, own], NO_RANDOM: [own, own], "margin, GP": [peer, peer + 0.2]}
        until = {OURS: met, NO_RANDOM: met, "margin, GP": None, "random": 50, AT_RANDOM: 40}
        return {
            "problem": problem,
            "seed": seed,
            "accuracy": lines,
            "met": until,
            "half": {OURS: None},
        }

    summary = summarise(
        [record("a", 0, 0.5, 0.3, 20), record("a", 1, 0.7, 0.3, 30), record("b", 0, 0.8, 0.6, 10)]
    )
    assert summary["problems"]["a"]["area"][OURS] == pytest.approx(0.6)
    assert summary["area"][OURS] == pytest.approx(0.7)
    assert summary["best_peer"] == "margin, GP"
    assert summary["ahead"][OURS] == pytest.approx(0.7 - 0.55)
    ratios = summary["met_of_random"]
    assert ratios[f"{OURS} / random"] == pytest.approx((25 / 50 + 10 / 50) / 2)
    assert ratios[f"{OURS} / {AT_RANDOM}"] == pytest.approx((25 / 40 + 10 / 40) / 2)
    assert summary["problems"]["a"]["met"]["margin, GP"] == 200
