"""Tables without images, rows without embeddings, and several people at once."""

import threading
from pathlib import Path

import pytest

from semigpc.review.app import Background
from semigpc.review.queue import Filters
from semigpc.review.session import Session, StaleError, View, open_session
from tests.review.shapes import make_labelled


def test_a_row_without_a_image_is_shown_by_its_values(tmp_path: Path) -> None:
    session = open_session(make_labelled(tmp_path, images=False))
    card = session.page(Filters())["cards"][0]
    assert len(card["values"]) == 32
    assert card["values"][0] == pytest.approx(
        session.beliefs.embeddings([card["row"]])[0, 0], abs=1e-4
    )
    session.close()


def test_of_a_row_without_an_embedding_a_human_alone_can_say_something(tmp_path: Path) -> None:
    out = make_labelled(tmp_path, bad=50)
    session = open_session(out)
    card = session.card(50)
    assert (card["label"], card["status"], card["reasons"]) == (None, "abstained", [])
    assert 50 in [each["row"] for each in session.page(Filters(), count=200)["cards"]]
    labelled = set(session.beliefs.model.labeled_rows_)
    session.correct(50, "square", view=View(visible=[50]))
    assert session.card(50)["label"] == "square"
    assert set(session.beliefs.model.labeled_rows_) == labelled, "the model cannot learn from it"
    session.close()
    again = open_session(out)
    assert again.card(50)["label"] == "square"
    again.undo()
    assert (again.card(50)["label"], again.card(50)["status"]) == (None, "abstained")
    again.close()


def test_the_background_brings_everything_up_to_date(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semigpc.review.app.IDLE", 0.01)
    done = threading.Event()
    monkeypatch.setattr(session.waiting, "judge_given", done.set)  # the last thing to do
    background = Background(session)
    background.start()
    session.accept([card["row"] for card in session.page(Filters())["cards"]][:4])
    assert done.wait(60)
    assert session.page(Filters(), count=1)["progress"]["stale"] == 0
    background.stop()
    assert not background.is_alive()


def test_of_many_who_answer_at_once_one_is_first(session: Session) -> None:
    row = session.page(Filters())["cards"][0]["row"]
    taken: list[str] = []
    stale: list[StaleError] = []

    def answer(label: str) -> None:
        try:
            session.correct(row, label, version=0)
            taken.append(label)
        except StaleError as error:
            stale.append(error)

    threads = [threading.Thread(target=answer, args=(f"class {i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(stale)) == (1, 7)
    assert session.card(row)["label"] == taken[0]
    assert len(session.journal.entries) == 1
