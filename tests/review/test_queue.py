import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import binomtest

from semigpc.estimator import Status
from semigpc.review.journal import Answer
from semigpc.review.queue import Filters, progress
from semigpc.review.session import Session


def test_the_need_is_as_documented(session: Session) -> None:
    beliefs, waiting = session.beliefs, session.waiting
    counts = beliefs.label_counts()
    for row, need in enumerate(waiting.need()):
        rarity = np.clip(np.sqrt(counts.mean() / counts[beliefs.codes[row]]), 0.5, 3)
        if row in session.project.given:
            judged = beliefs.model.leave_one_out()
            (at,) = np.flatnonzero(judged.rows == row)
            doubt, suspicious = (
                1 - judged.proba[at, judged.codes[at]],
                judged.proba[at].argmax() != judged.codes[at],
            )
        else:
            doubt = 1 - beliefs.confidence[row] * (1 - beliefs.variance[row])
            suspicious = beliefs.status[row] == Status.OUTLIER
        assert need == pytest.approx(doubt * rarity * (1 + suspicious), rel=1e-4)


def test_what_most_needs_a_human_comes_first_and_what_was_answered_leaves(session: Session) -> None:
    cards = session.page(Filters(), count=200)["cards"]
    need = session.waiting.need()[[card["row"] for card in cards]]
    assert (np.diff(need) <= 1e-6).all()
    suspected = set(np.flatnonzero(session.waiting.suspected).tolist())
    assert {card["row"] for card in cards} == set(range(len(session))) - set(
        session.project.given
    ) | suspected
    session.accept([cards[0]["row"]])
    assert cards[0]["row"] not in [
        card["row"] for card in session.page(Filters(), count=200)["cards"]
    ]


def test_classes_in_need_have_every_second_card(session: Session) -> None:
    beliefs, waiting = session.beliefs, session.waiting
    code = beliefs.codes_by_name["triangle"]
    mine = (beliefs.codes == code) | (beliefs.likeliest == code)
    beliefs.status[mine & (beliefs.status == Status.PSEUDO)] = (
        Status.ABSTAINED
    )  # no pseudo-label names it
    order = waiting.rows(Filters(), None)
    every = int((mine & waiting.mask("unreviewed")).sum())
    assert every > 4
    assert mine[order[1 : 2 * 4 : 2]].all()
    assert sorted(order) == np.flatnonzero(waiting.mask("unreviewed")).tolist(), "each once"
    rest = order[2 * every :]
    assert (np.diff(waiting.need()[rest]) <= 1e-6).all()


def test_a_given_label_that_the_others_contradict_is_suspected(session: Session) -> None:
    beliefs, given = session.beliefs, session.project.given
    row = next(
        row
        for row, label in given.items()
        if label == "circle" and not session.waiting.suspected[row]
    )
    beliefs.teach({row: "triangle"}, [])
    while session.catch_up():  # given labels are judged again when nobody waits
        pass
    assert session.waiting.suspected[row]
    assert row in [card["row"] for card in session.page(Filters(status="suspected"))["cards"]]
    assert session.card(row)["suspected"]
    session.correct(row, "circle")
    assert not session.card(row)["suspected"]


def test_filters_show_what_they_say(session: Session) -> None:
    everything = session.page(Filters(status="all"), count=200)["cards"]
    assert len(everything) == len(session)
    first = [card["row"] for card in session.page(Filters())["cards"]][:3]
    session.correct(first[0], "square" if session.beliefs.label(first[0]) != "square" else "circle")
    session.skip(first[1])
    everything = session.page(Filters(status="all"), count=200)["cards"]
    for filters, expected in (
        (Filters(status="pseudo"), lambda card: card["status"] == "pseudo"),
        (Filters(status="abstained"), lambda card: card["status"] == "abstained"),
        (Filters(status="outlier"), lambda card: card["status"] == "outlier"),
        (Filters(status="labelled"), lambda card: card["status"] == "labelled"),
        (Filters(status="reviewed"), lambda card: card["answer"] in ("accepted", "corrected")),
        (Filters(status="skipped"), lambda card: card["answer"] == "skipped"),
        (Filters(status="changed"), lambda card: card["label"] != card["first"]),
        (Filters(status="all", label="square"), lambda card: card["label"] == "square"),
        (Filters(status="all", label="no such class"), lambda _: False),
        (Filters(status="all", least=0.5, most=0.9), lambda card: 0.5 <= card["confidence"] <= 0.9),
        (Filters(status="all", text="B/0"), lambda card: "b/0" in card["id"]),
        (Filters(status="all", text="<img"), lambda card: "<img" in card["id"]),
    ):
        found = session.page(filters, count=200)
        assert {card["row"] for card in found["cards"]} == {
            card["row"] for card in everything if expected(card)
        }, filters
        assert found["found"] == len(found["cards"])


def test_orders_are_what_they_say(session: Session) -> None:
    by = {
        sort: session.page(Filters(sort=sort), count=200)["cards"]
        for sort in ("least sure", "most sure", "table", "random")
    }
    assert [card["confidence"] for card in by["least sure"]] == sorted(
        card["confidence"] for card in by["least sure"]
    )
    assert [card["confidence"] for card in by["most sure"]] == sorted(
        (card["confidence"] for card in by["table"]), reverse=True
    )
    rows = {sort: [card["row"] for card in cards] for sort, cards in by.items()}
    assert rows["table"] == sorted(rows["table"])
    assert sorted(rows["random"]) == rows["table"] != rows["random"]


def test_pages_leave_out_what_was_seen(session: Session) -> None:
    seen: list[int] = []
    while cards := session.page(Filters(), seen=seen, count=25)["cards"]:
        seen += [card["row"] for card in cards]
    assert len(seen) == len(set(seen)) == session.waiting.asked.sum()


@pytest.mark.parametrize(
    "wrong", [{"status": "lost"}, {"sort": "beauty"}, {"least": 0.9, "most": 0.1}, {"most": 2.0}]
)
def test_filters_that_mean_nothing_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(
        ValidationError,
        match=next(iter(wrong)) if len(wrong) == 1 and "most" not in wrong else "from 0 to 1",
    ):
        Filters(**wrong)  # type: ignore[arg-type]


def test_precision_comes_from_answers_on_pseudo_labels_and_from_the_model_where_there_are_none(
    session: Session,
) -> None:
    rows = [
        card["row"]
        for card in session.page(Filters(status="pseudo", label="square"), count=200)["cards"]
    ]
    abstained = [card["row"] for card in session.page(Filters(status="abstained"))["cards"]]
    before = {entry["name"]: entry for entry in session.page(Filters())["progress"]["classes"]}[
        "square"
    ]
    assert (before["checked"], before["low"], before["high"]) == (0, 0, 1)
    assert before["confidence"] == pytest.approx(session.beliefs.confidence[rows].mean(), abs=1e-3)
    session.accept(rows[:3])
    session.correct(rows[3], "circle")
    session.skip(rows[4])
    session.accept(abstained[:1])  # was no pseudo-label
    after = {entry["name"]: entry for entry in session.page(Filters())["progress"]["classes"]}
    assert (after["square"]["right"], after["square"]["checked"]) == (3, 4)
    assert (after["square"]["low"], after["square"]["high"]) == pytest.approx(
        tuple(binomtest(3, 4).proportion_ci(method="wilson")), abs=6e-4
    )
    session.correct(rows[3], "square")  # on second thoughts
    assert {e["name"]: e["right"] for e in session.page(Filters())["progress"]["classes"]}[
        "square"
    ] == 4
    reviewed = session.page(Filters())["progress"]
    assert (reviewed["reviewed"], reviewed["total"]) == (6, session.waiting.asked.sum())


def test_an_answer_knows_whether_it_agrees() -> None:
    assert Answer("a", "a", "pseudo").kind == "accepted"
    assert Answer("b", "a", "pseudo").kind == "corrected"
    assert Answer(None, "a", "pseudo").kind == "skipped"


def test_progress_counts_each_row_once(session: Session) -> None:
    whole = progress(session.waiting, session.history.answers)
    counts = whole["counts"]
    assert (
        sum(counts[name] for name in ("labelled", "pseudo", "abstained", "outlier"))
        == counts["all"]
        == len(session)
    )
    assert sum(whole["histogram"]) == len(session) - counts["labelled"]
