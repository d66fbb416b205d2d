import csv
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from pyarrow import parquet

from semigpc.estimator import Status
from semigpc.io.errors import DataError
from semigpc.labeling.evidence import left_out_probs
from semigpc.labeling.label import LabelSettings, label_data
from semigpc.labeling.project import Project
from semigpc.review import model as model_module
from semigpc.review.app import Background
from semigpc.review.queue import Filters
from semigpc.review.session import Card, Session, StaleError, View, open_session
from tests.review.shapes import make_labelled

ODD_CLASS = 'new, "odd" class'


def rows_of(session: Session, **filters: Any) -> list[int]:
    return [card["row"] for card in session.page(Filters(**filters), count=200)["cards"]]


def class_names(session: Session) -> list[str]:
    return [entry["name"] for entry in session.page(Filters())["progress"]["classes"]]


def stale_rows(session: Session) -> int:
    return session.page(Filters(), count=1)["progress"]["stale"]


def finish(session: Session) -> None:
    while session.catch_up():
        pass


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


# Opened again and undone ----------------------------------------------------------------------


class Shown(NamedTuple):
    """Everything that a page shows once nothing waits to be scored."""

    labels: list[str | None]
    statuses: list[int]
    numbers: NDArray[np.float32]
    counts: dict[str, int]
    classes: list[tuple[str, int, int]]
    cards: list[dict[str, object]]
    choices: dict[int, list[str]]


def shown(session: Session, *, versions: bool = True) -> Shown:
    model = session.model
    finish(session)
    reply = session.page(Filters(), count=40)
    keys = ["row", "label", "status", "answer", "suspected", "first"]
    keys += ["version"] if versions else []
    cards: list[dict[str, object]] = [
        {**{key: value for key, value in card.items() if key in keys}, "n": len(card["reasons"])}
        for card in reply["cards"]
    ]
    ranked = session.choices([card["row"] for card in reply["cards"]][:8])
    return Shown(
        labels=[model.label(row) for row in range(len(session))],
        statuses=model.status.tolist(),
        numbers=np.stack([model.confidence, model.variance, session.queue.supported]),
        counts=reply["progress"]["counts"],
        classes=[(e["name"], e["labels"], e["believed"]) for e in reply["progress"]["classes"]],
        cards=sorted(cards, key=repr),
        choices={row: sorted(name for name, _ in classes) for row, classes in ranked.items()},
    )


def assert_same(a: Shown, b: Shown, *, bounds: bool = False) -> None:
    """The same, but for the rounding of a model that learned the same labels in another order.

    With many labels, variances are ``bounds``, exact for rows that were on the screen; they decide
    the order of the cards.
    """
    compared = slice(None, None, 2) if bounds else slice(None)
    np.testing.assert_allclose(a.numbers[compared], b.numbers[compared], atol=2e-4)
    assert a[:2] == b[:2]
    assert (a.counts, a.classes) == (b.counts, b.classes)
    if not bounds:
        assert (a.cards, a.choices) == (b.cards, b.choices)


def with_self_training(out: Path, rounds: int) -> None:
    settings = json.loads((out / "project.json").read_text())
    settings["parameters"]["self_training"] = rounds
    settings["options"]["self_training"] = rounds
    (out / "project.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("rounds", [0, 3])
@pytest.mark.parametrize("few", [2048, 1])
def test_a_review_opened_again_shows_what_it_showed(
    out: Path, rounds: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "FEW_LABELS", few)
    with_self_training(out, rounds)
    session = open_session(out)
    rows = rows_of(session)
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
    assert stale_rows(session) == 0, "when it is first shown"
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
    session.model.scored_at[:] = -1  # by the model, and not from the table
    first = shown(session, versions=False)
    for _ in range(30):
        act_at_random(session, rng)
    before = shown(session)
    session.close()

    again = open_session(out)
    assert_same(shown(again), before)
    while again.history.done:
        again.undo()
    assert again.history.answers == {}
    assert_same(shown(again, versions=False), first)
    again.close()


# Two classes that compete ---------------------------------------------------------------------


@pytest.fixture
def contested(tmp_path: Path) -> Iterator[Session]:
    """A review with a circle that is labelled as a square."""
    session = open_session(make_labelled(tmp_path / "wrong", wrong=1))
    yield session
    session.close()


def test_a_suspected_label_stands_beside_what_the_others_predict(contested: Session) -> None:
    labels = (contested.project.folder.parent / "labels.csv").read_text().splitlines()
    wrong = labels[1].split(",")[0]
    cards = contested.page(Filters(status="suspected"))["cards"]
    card = next(card for card in cards if card["id"] == wrong)
    row = card["row"]
    classifier = contested.model.classifier
    left_out = classifier.leave_one_out()
    probs = left_out_probs(left_out)[left_out.rows.tolist().index(row)]
    keep, change = card["sides"] or []
    assert (keep["label"], change["label"]) == ("square", "circle")
    for side in (keep, change):
        place = classifier.classes_.tolist().index(side["label"])
        assert side["share"] == pytest.approx(probs[place], abs=1e-4)
        assert len(side["reasons"]) == 3
        assert row not in [reason["row"] for reason in side["reasons"]]
        assert contested.project.given[side["reasons"][0]["row"]] == side["label"]
    assert card["confidence"] == keep["share"] < 0.5 < change["share"]
    choices = contested.choices([row])[row]
    assert choices[:2] == [("square", keep["share"]), ("circle", change["share"])]
    assert sum(share or 0 for _, share in choices) == pytest.approx(1, abs=1e-3)
    contested.accept([row])
    kept = contested.card(row)
    assert (kept["label"], kept["answer"]) == ("square", "accepted")
    assert (kept["sides"], kept["confidence"]) == (None, 1)
    contested.undo()
    finish(contested)
    contested.refresh(View(visible=[row]))
    assert contested.card(row)["sides"] == card["sides"]


@pytest.mark.parametrize("prior", ["estimated", "balanced"])
def test_a_card_shows_the_class_and_the_probabilities_of_the_one_posterior(
    out: Path, prior: Literal["estimated", "balanced"]
) -> None:
    settings = LabelSettings(
        data=out.parent / "data.parquet",
        labels=out.parent / "labels.csv",
        out=out.parent / prior,
        class_prior=prior,
        report=False,
    )
    label_data(settings)
    session = open_session(settings.out)
    classifier = session.model.classifier
    for card in session.page(Filters(status="all"), count=200)["cards"]:
        if card["status"] == "labelled":
            continue
        probs = classifier.predict_proba(session.model.embeddings([card["row"]]))[0]
        worth = probs / (np.sqrt(classifier.class_shares_) if prior == "balanced" else 1)
        assert card["label"] == classifier.classes_[worth.argmax()]
        assert card["confidence"] == pytest.approx(probs[worth.argmax()], abs=1e-3)
        assert card["sides"] is None
        choices = session.choices([card["row"]])[card["row"]]
        assert choices[0] == (card["label"], card["confidence"])
        assert dict(choices) == pytest.approx(
            dict(zip(classifier.classes_.tolist(), probs.tolist(), strict=True)), abs=2e-3
        )
    session.close()


# Answers --------------------------------------------------------------------------------------


def test_an_answer_is_on_the_disk_when_it_is_given(session: Session, out: Path) -> None:
    first, second, third = rows_of(session)[:3]
    label = session.model.label(first)
    session.accept([first])
    session.correct(second, "circle" if session.model.label(second) != "circle" else "square")
    session.skip(third)
    session.undo()
    lines = [json.loads(line) for line in (out / "reviews.jsonl").read_text().splitlines()]
    assert [line["action"] for line in lines] == ["accept", "correct", "skip", "undo"]
    change = lines[0]["changes"][0]
    assert change["id"] == session.project.ids[first]
    assert (change["before"], change["after"]) == (label, label)
    assert lines[1]["changes"][0]["before"] != lines[1]["changes"][0]["after"]
    assert lines[3]["undoes"] == 3
    assert all(line["time"].endswith("Z") for line in lines)


def test_the_model_learns_from_a_correction(session: Session) -> None:
    row = rows_of(session)[0]
    session.correct(row, "never seen before")
    assert "never seen before" in session.model.classifier.classes_
    assert row in session.model.classifier.labeled_rows_
    card = session.card(row)
    assert (card["label"], card["confidence"]) == ("never seen before", 1.0)
    assert (card["status"], card["answer"]) == ("labelled", "corrected")
    assert "never seen before" in class_names(session)
    session.undo()
    assert row not in session.model.classifier.labeled_rows_
    assert session.card(row)["label"] in session.project.classes
    assert "never seen before" not in class_names(session)


def test_a_correction_returns_the_visible_cards_that_changed_and_no_others(
    session: Session,
) -> None:
    rows = rows_of(session)[:40]
    clock = session.refresh(View(visible=rows))["clock"]
    assert session.refresh(View(visible=rows, since=clock))["cards"] == []
    before = {row: session.card(row) for row in rows}
    view = View(visible=rows, since=clock, choices=rows[:2])
    reply = session.correct(rows[0], "square", view=view)
    changed = {card["row"] for card in reply["cards"]}
    assert rows[0] in changed <= set(rows)

    def visible(card: Card) -> tuple[str | None, int]:
        return card["label"], round(100 * card["confidence"])

    for row in set(rows) - changed:
        assert visible(before[row]) == visible(session.card(row))
    assert set(reply["choices"]) == set(rows[:2])
    assert reply["choices"][rows[0]][0][0] == "square"
    second = session.card(rows[1])
    assert reply["choices"][rows[1]][0] == (second["label"], second["confidence"])
    assert sum(share or 0 for _, share in reply["choices"][rows[1]]) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("self_training", [0, 3])
def test_the_variance_follows_each_answer_exactly(out: Path, self_training: int) -> None:
    with_self_training(out, self_training)
    session = open_session(out)
    rows = rows_of(session)[:50]
    session.model.variance_at[:] = -1
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
        expected = session.model.classifier.predict_variance(session.model.embeddings(rows))
        np.testing.assert_allclose(session.model.variance[rows], expected, atol=2e-4)
    session.close()


def test_with_many_labels_outliers_follow_exactly_and_other_variances_are_upper_bounds(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "FEW_LABELS", 1)
    model = session.model
    rows = rows_of(session)[:50]
    model.variance_at[:] = -1
    model.reasons.clear()
    model.score(np.array(rows))
    before = model.variance[rows]
    outlier = next(row for row in rows if model.status[row] == Status.OUTLIER)
    covariance = model.classifier.covariance(model.embeddings(rows), model.embeddings([outlier]))
    related = [row for row, each in zip(rows, covariance[:, 0], strict=True) if each > 0.02]
    added = next(row for row in related if row != outlier)
    session.accept([added], view=View(visible=rows))
    exact = model.classifier.predict_variance(model.embeddings(rows))
    at = rows.index(outlier)
    assert model.variance[outlier] == pytest.approx(exact[at], abs=2e-4)
    assert model.variance[outlier] < before[at]
    assert (model.variance[rows] >= exact - 2e-4).all()
    session.undo(view=View(visible=rows))
    np.testing.assert_allclose(model.variance[rows], before, atol=2e-4)


def test_rows_elsewhere_are_scored_later_as_when_they_are_shown(session: Session) -> None:
    rows = rows_of(session)
    session.accept(rows[:3])
    session.correct(rows[3], "triangle")
    assert stale_rows(session) > 0
    finish(session)
    assert stale_rows(session) == 0
    confidence = session.model.confidence.copy()
    status = session.model.status.copy()
    session.model.scored_at[:] = -1
    session.model.score(np.arange(len(session)))
    np.testing.assert_allclose(confidence, session.model.confidence, atol=2e-4)
    assert (status == session.model.status).all()


def test_the_background_brings_everything_up_to_date(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semigpc.review.app.IDLE_SECONDS", 0.01)
    done = threading.Event()
    monkeypatch.setattr(session.queue, "judge_given", done.set)  # the last thing to do
    background = Background(session)
    background.start()
    session.accept(rows_of(session)[:4])
    assert done.wait(60)
    assert stale_rows(session) == 0
    background.stop()
    assert not [each for each in threading.enumerate() if each.name.startswith("review-")]


def test_counts_and_choices_do_not_wait_for_a_new_model(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(session)
    fitting = threading.Event()
    may_end = threading.Event()
    fit = session.project.fit

    def slow(*arguments: Any) -> Any:
        fitting.set()
        assert may_end.wait(60)
        return fit(*arguments)

    monkeypatch.setattr(session.project, "fit", slow)
    session.accept(rows_of(session)[:1])
    before = session.model.classifier
    thread = threading.Thread(target=session.refit)
    thread.start()
    assert fitting.wait(60)
    session.correct(rows_of(session)[0], "a new class")  # while a model is fitted
    while session.keep_current():
        pass
    assert session.refresh_progress()["state"] == "ready"
    assert session.next(count=1)["cards"][0]["why"]
    assert session.model.classifier is before
    may_end.set()
    thread.join()
    assert session.model.classifier is not before
    assert "a new class" in session.model.classifier.classes_, "it learned what came meanwhile"


def test_an_answer_to_a_card_that_has_changed_is_stale(session: Session) -> None:
    row, other = rows_of(session)[:2]
    session.accept([row], versions=[0])
    with pytest.raises(StaleError, match="answered elsewhere"):
        session.correct(row, "square", version=0)
    with pytest.raises(StaleError) as caught:
        session.accept([other, row], versions=[0, 0])
    assert caught.value.rows == [other, row]
    assert session.card(other)["answer"] is None, "all or nothing"
    session.skip(other, version=0)
    with pytest.raises(StaleError, match="in the meantime"):
        session.undo(1)
    session.undo(2)
    session.undo(1)
    with pytest.raises(StaleError, match="nothing to undo"):
        session.undo()


def test_of_many_answers_at_once_the_first_counts(session: Session) -> None:
    row = rows_of(session)[0]
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


def test_the_label_that_was_shown_counts_and_the_same_answer_twice_is_one(session: Session) -> None:
    row = rows_of(session)[0]
    other = next(name for name in session.project.classes if name != session.model.label(row))
    session.accept([row], labels=[other], versions=[0])
    session.accept([row])
    assert session.card(row)["label"] == other
    assert session.card(row)["answer"] == "corrected"
    assert session.history.steps == 1


def test_a_skipped_row_teaches_nothing_and_takes_an_earlier_answer_back(session: Session) -> None:
    row = rows_of(session)[0]
    session.skip(row)
    assert row not in session.model.classifier.labeled_rows_
    assert row not in rows_of(session)
    assert rows_of(session, status="skipped") == [row]
    session.correct(row, "square")
    assert row in session.model.classifier.labeled_rows_
    session.skip(row)
    assert row not in session.model.classifier.labeled_rows_
    session.undo()
    assert session.card(row)["label"] == "square"
    given = next(iter(session.project.given))
    session.skip(given)
    assert given in session.model.classifier.labeled_rows_, "a given label stands until corrected"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "1 to 100"),
        ("a" * 101, "1 to 100"),
        ("a\x00b", "control characters"),
        ("a\x1b]0;title\x07", "control characters; got 'a"),
        ("a\nb", "control characters"),
        ("a\x1cb", "control characters"),
        ("a\ud800", "control characters"),
        ("a\u202eb", "control characters"),
        ("-1", "no label"),
        ("-1.0", "no label"),
        ("NaN", "no label"),
        ("Circle", "'circle' in case only"),
    ],
)
def test_impossible_class_names_are_rejected(session: Session, name: str, words: str) -> None:
    with pytest.raises(DataError, match=words):
        session.correct(0, name)
    assert session.history.steps == 0


def test_a_whole_number_is_one_class_however_it_is_typed(session: Session) -> None:
    first, second = rows_of(session)[:2]
    session.correct(first, "7")
    session.correct(second, " 7.0")
    assert [session.card(row)["label"] for row in (first, second)] == ["7", "7"]


def test_class_names_in_any_script_are_taken(session: Session) -> None:
    joined = ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", "\U0001f469\u200d\U0001f52c")
    for name in (*joined, "=1+1", "[/b]"):
        session.correct(0, f" {name} ")
        assert session.card(0)["label"] == name


def test_rows_that_do_not_exist_are_rejected(session: Session) -> None:
    for rows in ([len(session)], [-1], []):
        with pytest.raises(DataError):
            session.accept(rows)


# Odd data -------------------------------------------------------------------------------------


def test_a_row_without_an_image_is_shown_by_its_values(tmp_path: Path) -> None:
    session = open_session(make_labelled(tmp_path, images=False))
    card = session.page(Filters())["cards"][0]
    embedding = session.model.embeddings([card["row"]])[0]
    assert card["values"] == pytest.approx(embedding[:32], abs=1e-4)
    session.close()


def test_a_row_without_an_embedding_has_only_the_label_of_the_reviewer(tmp_path: Path) -> None:
    out = make_labelled(tmp_path, bad=50)
    session = open_session(out)
    card = session.card(50)
    assert (card["label"], card["status"], card["reasons"]) == (None, "abstained", [])
    assert 50 in rows_of(session)
    labelled = set(session.model.classifier.labeled_rows_)
    session.correct(50, "square", view=View(visible=[50]))
    assert session.card(50)["label"] == "square"
    assert set(session.model.classifier.labeled_rows_) == labelled, "nothing can be learned from it"
    session.close()
    again = open_session(out)
    assert again.card(50)["label"] == "square"
    again.undo()
    assert (again.card(50)["label"], again.card(50)["status"]) == (None, "abstained")
    again.close()


# Export ---------------------------------------------------------------------------------------


@pytest.fixture
def answered(session: Session) -> tuple[int, int, int]:
    """One accepted, one corrected to a new class, one skipped."""
    accepted, corrected, skipped = rows_of(session)[:3]
    session.accept([accepted])
    session.correct(corrected, ODD_CLASS)
    session.skip(skipped)
    return accepted, corrected, skipped


def test_both_tables_hold_every_row_with_its_answer(
    session: Session, out: Path, answered: tuple[int, int, int]
) -> None:
    accepted, corrected, _ = answered
    before = {path.name for path in out.iterdir()}
    written = [session.export(name) for name in ("csv", "parquet")]
    assert [each.files for each in written] == [
        (out / "exports" / "labels.csv",),
        (out / "exports" / "labels.parquet",),
    ]
    table = parquet.read_table(out / "exports" / "labels.parquet")
    assert table.column_names[:3] == ["file_name", "label", "guess"]
    rows: list[dict[str, Any]] = table.to_pylist()
    assert [row["file_name"] for row in rows] == session.project.ids
    assert (rows[accepted]["confidence"], rows[accepted]["status"]) == (1.0, "labelled")
    assert [rows[row]["answer"] for row in answered] == ["accepted", "corrected", "skipped"]
    assert rows[corrected]["label"] == ODD_CLASS
    assert {row["answer"] for row in rows} == {"accepted", "corrected", "skipped", None}
    labelled = [row["status"] == "labelled" for row in rows]
    assert sum(labelled) == len(session.project.given) + 2
    with (out / "exports" / "labels.csv").open(newline="", encoding="utf-8") as file:
        flat = list(csv.DictReader(file))
    assert [row["label"] or None for row in flat] == [row["label"] for row in rows]
    session.export()
    assert {path.name for path in out.iterdir()} - before == {"exports"}, "nothing else is left"


def test_what_is_written_waits_for_the_model_that_the_background_is_fitting(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(session)
    fitting = threading.Event()
    may_end = threading.Event()
    fit = session.project.fit
    refit = session.refit

    def slow(*arguments: Any) -> Any:
        fitting.set()
        assert may_end.wait(60)
        return fit(*arguments)

    def refit_after_the_background() -> bool:
        may_end.set()
        return refit()

    monkeypatch.setattr(session.project, "fit", slow)
    monkeypatch.setattr(session, "refit", refit_after_the_background)
    session.accept(rows_of(session)[:1])
    thread = threading.Thread(target=refit)
    thread.start()
    assert fitting.wait(60)
    session.export("csv")
    thread.join()
    assert stale_rows(session) == 0


@pytest.mark.usefixtures("answered")
def test_all_rows_are_scored_before_they_are_written(session: Session, out: Path) -> None:
    session.export("parquet")
    written = parquet.read_table(out / "exports" / "labels.parquet")["guess"].to_pylist()
    free = np.flatnonzero(session.model.known_codes < 0).tolist()
    classifier = session.model.classifier
    codes = classifier.answer(session.model.embeddings(free)).codes
    assert [written[row] for row in free] == [str(classifier.classes_[code]) for code in codes]


def test_the_labels_can_be_given_to_the_next_round(
    session: Session, out: Path, answered: tuple[int, int, int]
) -> None:
    session.export()
    data, again = out.parent / "data.parquet", out.parent / "again"
    labels = out / "exports" / "labels.csv"
    summary = label_data(LabelSettings(data=data, labels=labels, out=again, report=False))
    assert any("semigpc chose" in note and ": 2." in note for note in summary["notes"])
    accepted, corrected, _ = answered
    added = {accepted: session.model.label(accepted), corrected: ODD_CLASS}
    assert Project.open(again).given == session.project.given | added


# Classes: renamed, merged, split ----------------------------------------------------------------


def test_a_class_is_renamed_in_one_step_which_is_undone(session: Session, out: Path) -> None:
    rows = [row for row, label in session.project.given.items() if label == "circle"]
    first = rows_of(session)[0]
    session.correct(first, "circle")
    kind = session.history.answers[first].kind
    session.rename("circle", "disc")
    finish(session)
    assert {session.model.label(row) for row in [*rows, first]} == {"disc"}
    assert "circle" not in session.model.classifier.classes_
    assert "circle" not in class_names(session)
    assert session.history.answers[first].kind == kind, "a new name is no other answer"
    assert session.history.answers[rows[0]].kind == "accepted"
    session.undo()
    finish(session)
    assert {session.model.label(row) for row in [*rows, first]} == {"circle"}
    session.close()


def test_classes_are_merged_only_if_that_is_meant(session: Session) -> None:
    with pytest.raises(DataError, match="merge"):
        session.rename("circle", "square")
    with pytest.raises(DataError, match="nothing of it"):
        session.rename("nothing of it", "square")
    squares = session.model.label_counts()[session.model.code("square")]
    circles = session.model.label_counts()[session.model.code("circle")]
    session.rename("circle", "square", merge=True)
    finish(session)
    assert session.model.label_counts()[session.model.code("square")] == squares + circles
    assert "circle" not in session.model.classifier.classes_


def test_many_rows_get_one_label_in_one_step(session: Session) -> None:
    rows = rows_of(session)[:5]
    session.assign(rows, "new class")
    assert {session.model.label(row) for row in rows} == {"new class"}
    session.undo()
    assert session.history.answers == {}


def test_a_row_of_none_of_the_classes_teaches_nothing_and_gets_no_label(session: Session) -> None:
    row = next(row for row in rows_of(session) if row not in session.project.given)
    labelled = set(session.model.classifier.labeled_rows_)
    session.reject(row)
    assert session.card(row)["answer"] == "none"
    assert set(session.model.classifier.labeled_rows_) == labelled
    assert row not in [card["row"] for card in session.next(count=90)["cards"]]
    assert session.labels().label[row] is None
    session.undo()
    assert session.card(row)["answer"] is None


def test_random_cards_come_in_the_random_order_and_count_for_the_guarantee(
    session: Session,
) -> None:
    order = np.argsort(session.order)
    open_rows = [row for row in order.tolist() if row not in session.project.given]
    shown = [card["row"] for card in session.next("audit", count=8)["cards"]]
    assert shown == open_rows[:8]
    for row in shown[:3]:
        session.accept([row])
    known = session.project.known(session.history.answers)
    drawn = dict(zip(known.rows.tolist(), known.drawn.tolist(), strict=True))
    assert all(drawn[row] for row in shown[:3])
    session.accept([open_rows[20]])
    known = session.project.known(session.history.answers)
    drawn = dict(zip(known.rows.tolist(), known.drawn.tolist(), strict=True))
    assert not drawn[open_rows[20]]
    audit = session.refresh_progress()["audit"]
    assert (audit["checked"], audit["right"]) == (3, 3)
