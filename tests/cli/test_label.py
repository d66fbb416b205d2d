"""``semigpc label`` as a user sees it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from semigpc.estimator import STATUSES, SemiGPClassifier
from semigpc.review.session import open_session
from tests.cli.calls import refused, semigpc, worked
from tests.labeling.samples import IDS, LABELS, TRUTH, X, labels_of, table_of, write, write_labels


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_labels(tmp_path / "labels.csv", LABELS)
    return write(tmp_path, "parquet", X, IDS)


def call(table: Path, *more: str | Path) -> tuple[str | Path, ...]:
    folder = table.parent
    return ("label", table, "--labels", folder / "labels.csv", "--out", folder / "out", *more)


def test_label_writes_everything_and_says_so(table: Path) -> None:
    out, small = table.parent / "out", table.with_name("small.parquet")
    parquet.write_table(table_of(X[:120], IDS[:120]), small)
    few = {name: label for name, label in list(LABELS.items())[::2] if name in IDS[:120]}
    write_labels(table.with_name("labels.csv"), few)
    done = worked(*call(small))
    named = ["labels.parquet", "labels.csv", "label_studio.json", "report.html"]
    told = ("Labels for small.parquet", "bee", "given,", f"wrote {', '.join(named)} to {out}")
    for words in told:
        assert words in done.stdout
    others = {"label_studio.xml", "summary.json", "project.json"}
    assert {path.name for path in out.iterdir()} == {*named, *others}
    assert "Labels for small.parquet" in (out / "report.html").read_text(encoding="utf-8")
    assert json.loads((out / "summary.json").read_text())["evidence"]["held_out"] > 10
    assert semigpc(*call(small)).stdout == done.stdout


@pytest.mark.parametrize(
    ("options", "parameters"), [("", {}), ("--per-class", {"per_class": True})]
)
def test_the_command_gives_the_labels_of_the_estimator_with_its_defaults(
    table: Path, options: str, parameters: dict[str, Any]
) -> None:
    worked(*call(table, "--no-report", options))
    y = np.array([LABELS.get(name) for name in IDS], dtype=object)
    free = np.array([label is None for label in y])
    written = labels_of(table.parent / "out").filter(free).to_pydict()
    model = SemiGPClassifier(**parameters).fit(X, y)
    answers = model.answer(X[free])
    assert written["guess"] == model.classes_[answers.codes].tolist()
    assert written["status"] == np.array(STATUSES)[answers.status].tolist()
    assert np.array(written["confidence"]) == pytest.approx(answers.confidence, abs=1e-4)
    labelled = [label is not None for label in model.label(X[free])]
    assert labelled == [status == "pseudo" for status in written["status"]]
    assert any(labelled)


def test_label_as_json(table: Path) -> None:
    summary = json.loads(worked(*call(table, "--no-report --answer-all --json")).stdout)
    assert summary["statuses"]["abstained"] == 0
    assert summary == json.loads((table.parent / "out" / "summary.json").read_text())
    assert not (table.parent / "out" / "report.html").exists()


def test_nothing_to_label_is_all_that_is_said_of_rows_that_all_have_labels(table: Path) -> None:
    write_labels(table.with_name("labels.csv"), dict(zip(IDS, TRUTH, strict=True)))
    done = worked(*call(table, "--no-report"))
    assert "nothing to label" in done.stdout
    for untrue in ("No new labels", "more of each", "too few"):
        assert untrue not in done.stdout


@pytest.mark.parametrize("ending", ["csv", pytest.param("parquet", marks=pytest.mark.slow)])
def test_guesses_that_come_back_are_not_given_labels(table: Path, ending: str) -> None:
    first = json.loads(worked(*call(table, "--no-report --json")).stdout)
    own = table.parent / "out" / f"labels.{ending}"
    again = ("label", table, "--labels", own, "--out", table.parent / "again", "--no-report --json")
    second = json.loads(worked(*again).stdout)
    assert second["given"] == first["given"]
    guesses = first["statuses"]["pseudo"]
    assert guesses > 100
    assert any(f"guesses of semigpc: {guesses}." in note for note in second["notes"])
    trusted = json.loads(worked(*again, "--trust-pseudo --overwrite").stdout)
    assert trusted["statuses"]["labelled"] == first["statuses"]["labelled"] + guesses


@pytest.mark.slow
def test_what_was_made_from_labels_is_set_aside_when_they_are_replaced(table: Path) -> None:
    out = table.parent / "out"
    made = ["audit.csv", "audit.json", "exports", "reviews.jsonl", "suggestions.csv"]
    worked(*call(table, "--no-report"))
    for verb in ("audit", "suggest"):
        worked(verb, out)
    session = open_session(out)
    session.accept([int(np.flatnonzero(session.model.known_codes < 0)[0])])
    session.export()
    session.close()
    answers = (out / "reviews.jsonl").read_bytes()
    worked(*call(table, "--no-report --overwrite"))
    assert all((out / name).exists() for name in made), "the same labels were made again"
    done = worked(*call(table, "--no-report --overwrite --seed 1"))
    for name in made:
        stem, dot, ending = name.partition(".")
        aside = f"{stem}.earlier-labels-1{dot}{ending}"
        assert not (out / name).exists()
        assert (out / aside).exists()
        assert aside in "".join(done.stdout.split()), "the terminal names it"
    assert (out / "reviews.earlier-labels-1.jsonl").read_bytes() == answers
    refused("audit", out, "--answers", out / "audit.csv", code=2, words="No sample was drawn")
    assert "0 of " in worked("review", out, "--export").stdout
    (out / "reviews.earlier-labels-1.jsonl").rename(out / "reviews.jsonl")
    assert "1 of " in worked("review", out, "--export").stdout, "by hand, they can be used again"


def test_columns_by_name(tmp_path: Path) -> None:
    rows = zip(IDS, X, strict=True)
    lines = [",".join([name, *map(str, x), LABELS.get(name, ""), "note"]) for name, x in rows]
    header = "name,f0,f1,f2,f3,f4,f5,kind,remark"
    (tmp_path / "data.csv").write_text("\n".join([header, *lines]) + "\n")
    base = ("label", tmp_path / "data.csv", "--out", tmp_path / "out", "--no-report --id name")
    refused(*base, "--label-column kind", code=2, words="1 do not hold numbers: 'remark (string)'")
    done = worked(*base, "--label-column kind --features f* --json")
    assert json.loads(done.stdout)["settings"]["features"] == "6 columns, f0 to f5"
    found = labels_of(tmp_path / "out")
    assert found.column("name").to_pylist() == IDS
    both = zip(found.to_pylist(), TRUTH, strict=True)
    assert (
        np.mean([row["label"] == truth for row, truth in both if row["status"] == "pseudo"]) > 0.9
    )


def test_bad_input_is_refused_in_one_paragraph(table: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.parquet"
    misnamed = "has no column 'di' (named by --id). Did you mean 'id'?"
    out = ("--out", tmp_path / "out")
    for command, words in (
        (call(nowhere), f"There is no table and no folder {nowhere}"),
        (call(table, "--id di"), misnamed),
        (("label", table, *out), "Give a table of labels with --labels"),
        (("label", table, "--labels", nowhere, *out), "The table of labels does not exist"),
    ):
        refused(*command, code=2, words=words)
    assert not (tmp_path / "out").exists()


def test_options_that_exclude_each_other(table: Path) -> None:
    done = semigpc(*call(table, "--answer-all --abstain 0.8"))
    assert done.exit_code == 2
    assert "--answer-all" in done.stderr
    assert semigpc(*call(table, "--abstain 1.5")).exit_code == 2


def test_labels_made_otherwise_are_not_replaced(table: Path) -> None:
    command = call(table, "--no-report")
    worked(*command)
    words = "abstain is None there and 0.7 here."
    refused(*command, "--abstain 0.7", code=2, words=words)
    worked(*command, "--abstain 0.7 --overwrite")


def test_more_labels_than_one_gp_holds_are_all_used_and_the_summary_says_how(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semigpc.gp.exact.EXACT_ROWS", 40)  # members hold 15 rows at most
    summary = json.loads(worked(*call(table, "--answer-all --no-report --json")).stdout)
    model = summary["model"]
    assert (model["engine"], model["labels used"]) == ("ensemble", len(LABELS))
    words = "3 exact GPs of up to 12 rows share the 36 labelled rows"
    assert any(words in note for note in summary["notes"])
    rows = labels_of(table.parent / "out").to_pylist()
    both = zip(rows, TRUTH, strict=True)
    assert np.mean([row["guess"] == truth for row, truth in both if row["id"] not in LABELS]) > 0.9
    assert all(len(row["reasons"]) == 3 for row in rows)
