from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import binomtest

from semigpc.estimator import Status
from semigpc.review.queue import KINDS, Filters, alternate
from semigpc.review.reward import (
    GRADE_SHOWN,
    WITHOUT_GAIN,
    ClassProgress,
    Progress,
    Reward,
)
from semigpc.review.session import Card, Session, View, open_session
from tests.review.shapes import make_labelled


def cards_of(session: Session, **filters: Any) -> list[Card]:
    return session.page(Filters(**filters), count=200)["cards"]


def rows_of(session: Session, **filters: Any) -> list[int]:
    return [card["row"] for card in cards_of(session, **filters)]


def whole_progress(session: Session) -> Progress:
    return session.refresh(View())["progress"]


def class_progress(session: Session, name: str) -> ClassProgress:
    classes = whole_progress(session)["classes"]
    return next(entry for entry in classes if entry["name"] == name)


def test_the_need_is_as_documented(session: Session) -> None:
    model = session.model
    counts = model.label_counts()
    left_out = model.classifier.leave_one_out()
    for row, need in enumerate(session.queue.need()):
        rarity = np.clip(np.sqrt(counts.mean() / counts[model.codes[row]]), 0.5, 3)
        if row in session.project.given:
            (at,) = np.flatnonzero(left_out.rows == row)
            doubt = 1 - left_out.proba[at, left_out.codes[at]]
            suspicious = left_out.proba[at].argmax() != left_out.codes[at]
        else:
            doubt = 1 - model.confidence[row] * (1 - model.variance[row])
            suspicious = model.status[row] == Status.OUTLIER
        assert need == pytest.approx(doubt * rarity * (1 + suspicious), rel=1e-4)


def test_rows_most_in_need_come_first_and_answered_ones_leave(session: Session) -> None:
    rows = rows_of(session)
    assert (np.diff(session.queue.need()[rows]) <= 1e-6).all()
    suspected = set(np.flatnonzero(session.queue.suspected).tolist())
    assert set(rows) == set(range(len(session))) - set(session.project.given) | suspected
    session.accept(rows[:1])
    assert rows[0] not in rows_of(session)


def test_classes_in_need_have_every_second_card(session: Session) -> None:
    model = session.model
    queue = session.queue
    code = model.codes_by_name["triangle"]
    may_be = (model.codes == code) | (model.second == code)
    # No pseudo-label names the class.
    model.status[may_be & (model.status == Status.PSEUDO)] = Status.ABSTAINED
    order = queue.rows(Filters(), None)
    count = int((may_be & queue.mask("unreviewed")).sum())
    assert count > 4
    assert may_be[order[1:8:2]].all()
    assert sorted(order) == np.flatnonzero(queue.mask("unreviewed")).tolist(), "each once"
    rest = order[2 * count :]
    assert (np.diff(queue.need()[rest]) <= 1e-6).all()


def alternate_slowly(rows: list[int], rows_by_class: list[list[int]], count: int) -> list[int]:
    """The first version of the order, which searches all lists from their beginning each time."""
    chosen: list[int] = []
    classes = list(rows_by_class)
    while classes and len(chosen) < count:
        chosen += [row for row in rows if row not in chosen][:1]
        found = [row for row in classes[0] if row not in chosen][:1]
        chosen += found
        classes = classes[1:] + (classes[:1] if found else [])
    return chosen


@pytest.mark.parametrize(
    ("rows", "rows_by_class", "count", "expected"),
    [
        ([1, 2, 3, 4], [], 4, []),
        ([1, 2, 3, 4], [[3, 4]], 4, [1, 3, 2, 4]),
        ([1, 2, 3, 4, 5, 6], [[1, 6], [1, 2, 5]], 9, [1, 6, 2, 5, 3, 4]),
        ([1, 2, 3, 4, 5, 6], [[4], [5, 6]], 3, [1, 4, 2, 5]),
        ([], [[7], [8]], 3, [7, 8]),
    ],
)
def test_rows_alternate_as_recorded(
    rows: list[int], rows_by_class: list[list[int]], count: int, expected: list[int]
) -> None:
    assert alternate_slowly(rows, rows_by_class, count) == expected
    assert alternate(rows, rows_by_class, count) == expected


def test_rows_alternate_as_in_the_slow_version() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        rows = rng.permutation(rng.integers(1, 40)).tolist()
        classes = [
            [row for row in rows if rng.random() < rng.choice([0.05, 0.3, 0.9])]
            for _ in range(rng.integers(0, 5))
        ]
        count = int(rng.integers(1, 50))
        assert alternate(rows, classes, count) == alternate_slowly(rows, classes, count)


def test_a_given_label_that_the_others_contradict_is_suspected(session: Session) -> None:
    circles = [row for row, label in session.project.given.items() if label == "circle"]
    row = next(row for row in circles if not session.queue.suspected[row])
    session.correct(row, "triangle")
    session.undo()
    session.project.given[row] = "triangle"  # as if the table said so
    session.model.update_labels({row: "triangle"}, [])
    while session.catch_up():  # given labels are judged again when no request is waiting
        pass
    assert session.queue.suspected[row]
    assert row in rows_of(session, status="suspected")
    assert session.card(row)["suspected"]
    session.correct(row, "circle")
    assert not session.card(row)["suspected"]


FILTERS: list[tuple[dict[str, Any], Callable[[Card], bool]]] = [
    ({"status": "pseudo"}, lambda card: card["status"] == "pseudo"),
    ({"status": "abstained"}, lambda card: card["status"] == "abstained"),
    ({"status": "outlier"}, lambda card: card["status"] == "outlier"),
    ({"status": "labelled"}, lambda card: card["status"] == "labelled"),
    ({"status": "reviewed"}, lambda card: card["answer"] in ("accepted", "corrected")),
    ({"status": "skipped"}, lambda card: card["answer"] == "skipped"),
    ({"status": "suspected"}, lambda card: card["suspected"]),
    ({"status": "changed"}, lambda card: card["first"] not in (None, card["label"])),
    ({"label": "circle"}, lambda card: card["label"] == "circle"),
    ({"label": "no such class"}, lambda card: False),
    ({"least": 0.3, "most": 0.8}, lambda card: 0.3 <= card["confidence"] <= 0.8),
    ({"text": "A/0"}, lambda card: "a/0" in card["id"].lower()),
    (
        {"text": "a/0", "label": "square"},
        lambda card: card["label"] == "square" and "a/0" in card["id"],
    ),
]


def test_filters_show_what_they_say(session: Session) -> None:
    first, second = rows_of(session)[:2]
    session.correct(first, "square" if session.model.label(first) != "square" else "circle")
    session.skip(second)
    everything = cards_of(session, status="all")
    assert len(everything) == len(session)
    for filters, expected in FILTERS:
        reply = session.page(Filters(**{"status": "all", **filters}), count=200)
        shown = {card["row"] for card in reply["cards"]}
        assert shown == {card["row"] for card in everything if expected(card)}, filters
        assert reply["found"] == len(shown)


def test_orders_are_what_they_say(session: Session) -> None:
    sorts = ("least sure", "most sure", "table", "random")
    by_sort = {sort: cards_of(session, sort=sort) for sort in sorts}
    confidences = sorted(card["confidence"] for card in by_sort["table"])
    assert [card["confidence"] for card in by_sort["least sure"]] == confidences
    assert [card["confidence"] for card in by_sort["most sure"]] == confidences[::-1]
    rows = {sort: [card["row"] for card in cards] for sort, cards in by_sort.items()}
    assert rows["table"] == sorted(rows["table"])
    assert sorted(rows["random"]) == rows["table"] != rows["random"]


def test_pages_leave_out_what_was_seen(session: Session) -> None:
    seen: list[int] = []
    while cards := session.page(Filters(), seen=seen, count=25)["cards"]:
        seen += [card["row"] for card in cards]
    assert len(seen) == len(set(seen)) == session.queue.asked.sum()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"status": "lost"}, "status"),
        ({"sort": "beauty"}, "sort"),
        ({"least": 0.9, "most": 0.1}, "0.9 and 0.1"),
        ({"most": 2.0}, "0 and 2"),
    ],
)
def test_invalid_filters_are_rejected(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Filters(**wrong)


def test_precision_comes_from_answers_on_pseudo_labels_and_otherwise_from_the_model(
    session: Session,
) -> None:
    rows = rows_of(session, status="pseudo", label="square")
    abstained = rows_of(session, status="abstained")
    before = class_progress(session, "square")
    assert (before["checked"], before["low"], before["high"]) == (0, 0, 1)
    assert before["confidence"] == pytest.approx(session.model.confidence[rows].mean(), abs=1e-3)
    session.accept(rows[:3])
    session.correct(rows[3], "circle")
    session.skip(rows[4])
    least = min(abstained, key=lambda row: session.model.confidence[row])
    session.accept([least])  # was no pseudo-label
    after = class_progress(session, "square")
    assert (after["right"], after["checked"]) == (3, 4)
    interval = tuple(binomtest(3, 4).proportion_ci(method="wilson"))
    assert (after["low"], after["high"]) == pytest.approx(interval, abs=6e-4)
    session.correct(rows[3], "square")  # on second thoughts
    assert class_progress(session, "square")["right"] == 4
    whole = whole_progress(session)
    assert (whole["reviewed"], whole["total"]) == (6, session.queue.asked.sum())


def test_progress_counts_each_row_once(session: Session) -> None:
    whole = whole_progress(session)
    counts = whole["counts"]
    each = [counts[name] for name in ("labelled", "pseudo", "abstained", "outlier")]
    assert sum(each) == counts["all"] == len(session)
    assert sum(whole["histogram"]) == len(session) - counts["labelled"]


def test_accepting_a_page_of_the_grid_takes_nothing_from_what_answers_brought(
    tmp_path: Path,
) -> None:
    session = open_session(make_labelled(tmp_path, count=300, each=20, target=0.9))
    reward = Reward()
    reward.record(session.queue, 0, 0)
    model = session.model
    guaranteed = np.flatnonzero(model.grade >= np.float32(GRADE_SHOWN))
    assert len(guaranteed) > 20
    for row in guaranteed[:20]:  # accepted; the rest stays guaranteed
        model.known_codes[row] = model.codes[row]
        session.kinds[row] = KINDS.index("accepted")
    reward.record(session.queue, 20, 0)
    assert reward.gain() == {"answers": 20, "labels": 0, "precision": GRADE_SHOWN}
    model.grade[guaranteed[20:25]] = 0
    reward.record(session.queue, 21, 1)
    assert reward.gain() == {"answers": 1, "labels": -5, "precision": GRADE_SHOWN}
    for single in range(2, WITHOUT_GAIN + 1):
        assert reward.verdict(len(session)) == "", "a page at once is no sign that answers end"
        reward.record(session.queue, 20 + single, single)
    assert f"last {WITHOUT_GAIN} answers" in reward.verdict(len(session))
    session.close()
