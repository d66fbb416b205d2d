import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from semigpc.estimator import Status
from semigpc.io.errors import DataError
from semigpc.labeling.evidence import left_out_probs
from semigpc.review import model as beliefs_module
from semigpc.review.queue import Filters
from semigpc.review.session import Session, StaleError, View, open_session
from tests.review.shapes import make_labelled


def waiting_rows(session: Session, **filters: Any) -> list[int]:
    return [card["row"] for card in session.page(Filters(**filters), count=200)["cards"]]


def act_at_random(session: Session, rng: np.random.Generator) -> None:
    row = int(rng.integers(len(session)))
    action = rng.choice(["accept", "bulk", "correct", "new", "skip", "undo"])
    if action == "accept":
        session.accept([row])
    elif action == "bulk":
        session.accept(rng.choice(len(session), 5, replace=False).tolist())
    elif action == "correct":
        session.correct(row, str(rng.choice(["circle", "square", "triangle"])))
    elif action == "new":
        session.correct(row, f"new {rng.integers(2)}")
    elif action == "skip":
        session.skip(row)
    elif session.history.done:
        session.undo()


class Shown(NamedTuple):
    """Everything that a page shows once nothing waits to be scored."""

    labels: list[str | None]
    statuses: list[int]
    numbers: NDArray[np.float32]
    counts: dict[str, int]
    classes: list[tuple[str, int, int]]
    cards: list[tuple[Any, ...]]
    choices: dict[int, list[str]]


def shown(session: Session) -> Shown:
    beliefs = session.beliefs
    while session.catch_up():
        pass
    answer = session.page(Filters(), count=40)
    cards = [
        (
            *(
                card[key]
                for key in ("row", "version", "label", "status", "answer", "suspected", "first")
            ),
            len(card["reasons"]),
        )
        for card in answer["cards"]
    ]
    return Shown(
        [beliefs.label(row) for row in range(len(session))],
        beliefs.status.tolist(),
        np.stack([beliefs.confidence, beliefs.variance, session.waiting.supported]),
        answer["progress"]["counts"],
        [
            (entry["name"], entry["labels"], entry["believed"])
            for entry in answer["progress"]["classes"]
        ],
        sorted(cards, key=repr),
        {
            row: sorted(name for name, _ in ranked)
            for row, ranked in session.choices([card[0] for card in cards][:8]).items()
        },
    )


def assert_same(a: Shown, b: Shown, *, bounds: bool = False) -> None:
    """The same, but for the rounding of a model that learned the same labels in another order.

    With many labels, variances are ``bounds``, exact for rows that were on the screen; they decide
    the order of the cards.
    """
    np.testing.assert_allclose(
        a.numbers[::2] if bounds else a.numbers, b.numbers[::2] if bounds else b.numbers, atol=2e-4
    )
    for name in (
        "labels",
        "statuses",
        "counts",
        "classes",
        *(() if bounds else ("cards", "choices")),
    ):
        assert getattr(a, name) == getattr(b, name), name


def with_self_training(out: Path, rounds: int) -> None:
    settings = json.loads((out / "project.json").read_text())
    settings["parameters"]["self_training"] = rounds
    (out / "project.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("rounds", [0, 3])
@pytest.mark.parametrize("few", [2048, 1])
def test_a_review_opened_again_shows_what_it_showed(
    out: Path, rounds: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beliefs_module, "FEW_LABELS", few)
    with_self_training(out, rounds)
    session = open_session(out)
    rows = waiting_rows(session)
    session.accept(rows[:6])
    session.correct(rows[6], "square")
    session.correct(rows[7], "new one")
    session.correct(rows[8], "new two")
    session.undo()
    session.accept(rows[9:15])
    session.undo()
    session.skip(rows[15])
    session.correct(rows[16], "new three")
    session.correct(next(iter(session.project.given)), "triangle")
    before = shown(session)
    session.close()
    session = open_session(out)
    assert session.page(Filters(), count=1)["progress"]["stale"] == 0, "not when it is first shown"
    assert_same(shown(session), before, bounds=few == 1)
    session.close()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_journal_replayed_gives_the_same_state_and_undoing_all_gives_the_first(
    out: Path, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    with_self_training(out, 3 * (seed % 2))
    session = open_session(out)
    session.beliefs.scored[:] = -1  # by the model, and not from the table
    first = shown(session)
    for _ in range(30):
        act_at_random(session, rng)
    before = shown(session)
    session.close()

    again = open_session(out)
    assert_same(shown(again), before)
    while again.history.done:
        again.undo()
    assert again.history.answers == {}
    unversioned = [(card[0], *card[2:]) for card in first.cards]
    undone = shown(again)
    assert [(card[0], *card[2:]) for card in undone.cards] == unversioned
    assert_same(undone._replace(cards=first.cards), first)
    again.close()


@pytest.fixture
def contested(tmp_path: Path) -> Iterator[Session]:
    """A review with a circle that is labelled as a square."""
    session = open_session(make_labelled(tmp_path / "wrong", wrong=1))
    yield session
    session.close()


def test_a_suspected_label_stands_beside_what_the_others_say(contested: Session) -> None:
    wrong = (
        (contested.project.folder.parent / "labels.csv").read_text().splitlines()[1].split(",")[0]
    )
    card = next(
        card for card in contested.page(Filters(status="suspected"))["cards"] if card["id"] == wrong
    )
    row, model, given = card["row"], contested.beliefs.model, contested.project.given
    left_out = model.leave_one_out()
    at = int(np.flatnonzero(left_out.rows == row)[0])
    keep, change = card["sides"]
    assert (keep["label"], change["label"]) == ("square", "circle")
    for side in (keep, change):
        place = model.classes_.tolist().index(side["label"])
        assert side["share"] == pytest.approx(left_out_probs(left_out)[at, place], abs=1e-4)
        assert len(side["reasons"]) == 3
        assert row not in [reason["row"] for reason in side["reasons"]]
        assert given[side["reasons"][0]["row"]] == side["label"]
    assert card["confidence"] == keep["share"] < 0.5 < change["share"]
    choices = contested.choices([row])[row]
    assert choices[:2] == [("square", keep["share"]), ("circle", change["share"])]
    assert sum(share for _, share in choices) == pytest.approx(1, abs=1e-3)
    contested.accept([row])
    kept = contested.card(row)
    assert (kept["label"], kept["answer"], kept["sides"], kept["confidence"]) == (
        "square",
        "accepted",
        None,
        1,
    )
    contested.undo()
    while contested.catch_up():
        pass
    contested.refresh(View(visible=[row]))
    assert contested.card(row)["sides"] == card["sides"]


def test_a_row_whose_class_is_not_its_likeliest_shows_both_with_their_probabilities(
    session: Session,
) -> None:
    cards = session.page(Filters(status="all"), count=200)["cards"]
    split = [card for card in cards if card["sides"] and not card["suspected"]]
    assert split
    for card in split:
        row, (decided, likeliest) = card["row"], card["sides"]
        assert card["status"] in ("abstained", "outlier")
        assert (decided["label"], decided["share"]) == (card["label"], card["confidence"])
        assert decided["share"] < likeliest["share"]
        assert all(len(side["reasons"]) == 3 for side in card["sides"])
        assert [name for name, _ in session.choices([row])[row][:2]] == [
            decided["label"],
            likeliest["label"],
        ]
    for card in cards:
        if not card["sides"]:
            shares = [share for _, share in session.choices([card["row"]])[card["row"]]]
            assert shares[0] >= max(shares[1:]) - 1e-3, "no other class is more probable"


def test_an_answer_is_on_the_disk_when_it_is_given(session: Session, out: Path) -> None:
    first, second, third = waiting_rows(session)[:3]
    believed = session.beliefs.label(first)
    session.accept([first])
    session.correct(second, "circle" if session.beliefs.label(second) != "circle" else "square")
    session.skip(third)
    session.undo()
    lines = [json.loads(line) for line in (out / "reviews.jsonl").read_text().splitlines()]
    assert [line["action"] for line in lines] == ["accept", "correct", "skip", "undo"]
    change = lines[0]["changes"][0]
    assert (change["id"], change["before"], change["after"]) == (
        session.project.ids[first],
        believed,
        believed,
    )
    assert lines[1]["changes"][0]["before"] != lines[1]["changes"][0]["after"]
    assert lines[3]["undoes"] == 3
    assert all(line["time"].endswith("Z") for line in lines)


def test_the_model_learns_from_a_correction(session: Session) -> None:
    row = waiting_rows(session)[0]
    session.correct(row, "never seen before")
    assert "never seen before" in session.beliefs.model.classes_
    assert row in session.beliefs.model.labeled_rows_
    card = session.card(row)
    assert (card["label"], card["confidence"], card["status"], card["answer"]) == (
        "never seen before",
        1.0,
        "labelled",
        "corrected",
    )
    assert "never seen before" in [
        entry["name"] for entry in session.page(Filters())["progress"]["classes"]
    ]
    session.undo()
    assert row not in session.beliefs.model.labeled_rows_
    assert session.card(row)["label"] in session.project.classes
    assert "never seen before" not in [
        entry["name"] for entry in session.page(Filters())["progress"]["classes"]
    ]


def test_a_correction_answers_with_the_visible_cards_that_changed_and_no_others(
    session: Session,
) -> None:
    rows = waiting_rows(session)[:40]
    clock = session.refresh(View(visible=rows))["clock"]
    assert session.refresh(View(visible=rows, since=clock))["cards"] == []
    before = {row: session.card(row) for row in rows}
    reply = session.correct(
        rows[0], "square", view=View(visible=rows, since=clock, choices=rows[:2])
    )
    changed = {card["row"]: card for card in reply["cards"]}
    assert rows[0] in changed
    assert set(changed) <= set(rows)
    for row in set(rows) - set(changed):
        shown = [
            round(100 * float(value))
            for value in (before[row]["confidence"], session.card(row)["confidence"])
        ]
        assert (shown[0], before[row]["label"]) == (shown[1], session.card(row)["label"])
    assert set(reply["choices"]) == set(rows[:2])
    assert reply["choices"][rows[0]][0][0] == "square"
    label, share = reply["choices"][rows[1]][0]
    assert (label, share) == (session.card(rows[1])["label"], session.card(rows[1])["confidence"])
    assert sum(share for _, share in reply["choices"][rows[1]]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("self_training", [0, 3])
def test_the_variance_follows_each_answer_exactly(out: Path, self_training: int) -> None:
    with_self_training(out, self_training)
    session = open_session(out)
    rows = waiting_rows(session)[:50]
    session.beliefs.varied[:] = -1
    view = View(visible=rows)
    session.refresh(view)
    acts: list[Callable[[], Any]] = [
        lambda: session.accept([rows[0]], view=view),
        lambda: session.accept(rows[1:9], view=view),
        lambda: session.correct(rows[0], "square", view=view),
        lambda: session.undo(view=view),
        lambda: session.undo(view=view),
    ]
    for act in acts:
        act()
        expected = session.beliefs.model.predict_variance(session.beliefs.embeddings(rows))
        np.testing.assert_allclose(session.beliefs.variance[rows], expected, atol=2e-4)
    session.close()


def test_with_many_labels_outliers_follow_exactly_and_other_variances_are_upper_bounds(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beliefs_module, "FEW_LABELS", 1)
    rows = waiting_rows(session)[:50]
    session.beliefs.varied[:] = -1
    session.beliefs.reasons.clear()
    session.beliefs.score(np.array(rows))
    before = session.beliefs.variance[rows]
    outlier = next(row for row in rows if session.beliefs.status[row] == Status.OUTLIER)
    others = [row for row in rows if row != outlier]
    added = next(
        row
        for row in others
        if session.beliefs.model.covariance(*session.beliefs.embeddings([outlier, row])[:, None])
        > 0.02
    )
    session.accept([added], view=View(visible=rows))
    exact = session.beliefs.model.predict_variance(session.beliefs.embeddings(rows))
    at = rows.index(outlier)
    assert session.beliefs.variance[outlier] == pytest.approx(exact[at], abs=2e-4)
    assert session.beliefs.variance[outlier] < before[at]
    assert (session.beliefs.variance[rows] >= exact - 2e-4).all()
    session.undo(view=View(visible=rows))
    np.testing.assert_allclose(session.beliefs.variance[rows], before, atol=2e-4)


def test_rows_elsewhere_are_scored_when_nobody_waits_as_when_they_are_shown(
    session: Session,
) -> None:
    rows = waiting_rows(session)
    session.accept(rows[:3])
    session.correct(rows[3], "triangle")
    assert session.page(Filters(), count=1)["progress"]["stale"] > 0
    while session.catch_up():
        pass
    assert session.page(Filters(), count=1)["progress"]["stale"] == 0
    beliefs = session.beliefs
    confidence, status = beliefs.confidence.copy(), beliefs.status.copy()
    beliefs.scored[:] = -1
    beliefs.score(np.arange(len(session)))
    np.testing.assert_allclose(confidence, beliefs.confidence, atol=1e-5)
    assert (status == beliefs.status).all()


def test_an_answer_to_a_card_that_has_changed_is_stale(session: Session) -> None:
    row, other = waiting_rows(session)[:2]
    session.accept([row], versions=[0])
    with pytest.raises(StaleError, match="answered elsewhere"):
        session.correct(row, "square", version=0)
    with pytest.raises(StaleError) as caught:
        session.accept([other, row], versions=[0, 0])
    assert caught.value.rows == [other, row]
    assert session.card(other)["answer"] is None, "all or nothing"
    session.skip(other, version=0)
    with pytest.raises(StaleError, match="Something else was done"):
        session.undo(1)
    session.undo(2)
    session.undo(1)
    with pytest.raises(StaleError, match="nothing to undo"):
        session.undo()


def test_the_same_answer_twice_is_one(session: Session) -> None:
    row = waiting_rows(session)[0]
    session.accept([row])
    session.accept([row])
    assert session.history.steps == 1


def test_a_label_that_was_shown_counts_even_if_the_model_has_moved_since(session: Session) -> None:
    row = waiting_rows(session)[0]
    other = next(name for name in session.project.classes if name != session.beliefs.label(row))
    session.accept([row], labels=[other], versions=[0])
    assert session.card(row)["label"] == other
    assert session.card(row)["answer"] == "corrected"


def test_to_skip_says_nothing_and_takes_back_what_was_said(session: Session) -> None:
    row = waiting_rows(session)[0]
    session.skip(row)
    assert row not in session.beliefs.model.labeled_rows_
    assert row not in waiting_rows(session)
    assert waiting_rows(session, status="skipped") == [row]
    session.correct(row, "square")
    assert row in session.beliefs.model.labeled_rows_
    session.skip(row)
    assert row not in session.beliefs.model.labeled_rows_
    session.undo()
    assert session.card(row)["label"] == "square"
    given = next(iter(session.project.given))
    session.skip(given)
    assert given in session.beliefs.model.labeled_rows_, (
        "a given label stands until somebody gives another"
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "one line of 1 to 100"),
        ("a" * 101, "one line of 1 to 100"),
        ("a\x00b", "one line"),
        ("a\x1b]0;title\x07", "without control characters; got 'a"),
        ("a\nb", "without control characters"),
        ("a\x1cb", "without control characters"),
        ("a\ud800", "without control characters"),
        ("a\u202eb", "without control characters"),
        ("-1", "stands for no label"),
        ("-1.0", "stands for no label"),
        ("NaN", "stands for no label"),
        ("Circle", "a class 'circle' already"),
    ],
)
def test_names_that_no_class_can_have_are_refused(session: Session, name: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        session.correct(0, name)
    assert session.history.steps == 0


@pytest.mark.parametrize(
    "name",
    [
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\U0001f469\u200d\U0001f52c",
        "=1+1",
        "[/b]",
    ],
)
def test_names_in_any_script_are_taken(session: Session, name: str) -> None:
    session.correct(0, f" {name} ")
    assert session.card(0)["label"] == name


def test_rows_that_are_not_there_are_refused(session: Session) -> None:
    for rows in ([len(session)], [-1], []):
        with pytest.raises(DataError):
            session.accept(rows)


def test_reviews_of_other_data_are_refused(out: Path) -> None:
    session = open_session(out)
    session.accept([40])
    session.close()
    path = out / "reviews.jsonl"
    path.write_text(path.read_text().replace(session.project.ids[40], "elsewhere.png"))
    with pytest.raises(DataError, match=r"about 'elsewhere.png', which is not among the data"):
        open_session(out)
