"""``semigpc label`` as a user sees it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import parquet

from semigpc.estimator import STATUSES, SemiGPClassifier
from semigpc.review.session import open_session
from tests.cli.calls import refused, semigpc
from tests.labeling.samples import IDS, LABELS, TRUTH, X, table_of, write, write_labels


@pytest.fixture
def table(tmp_path: Path) -> Path:
    write_labels(tmp_path / "labels.csv", LABELS)
    return write(tmp_path, "parquet", X, IDS)


def call(table: Path, *more: str | Path) -> tuple[str | Path, ...]:
    folder = table.parent
    return ("label", table, "--labels", folder / "labels.csv", "--out", folder / "out", *more)


def test_label_writes_everything_and_says_so(table: Path) -> None:
    few = dict(list(LABELS.items())[::2])
    small = table.with_name("small.parquet")
    parquet.write_table(table_of(X[:120], IDS[:120]), small)
    write_labels(
        table.with_name("labels.csv"),
        {name: label for name, label in few.items() if name in IDS[:120]},
    )
    done = semigpc(*call(small))
    assert done.exit_code == 0, done.output
    assert "Labels for small.parquet" in done.stdout
    assert "bee" in done.stdout
    assert "given," in done.stdout
    assert (
        "wrote labels.parquet, labels.csv, label_studio.json, report.html to "
        f"{table.parent / 'out'}" in done.stdout
    )
    written = {path.name for path in (table.parent / "out").iterdir()}
    assert written == {
        "labels.parquet",
        "labels.csv",
        "label_studio.json",
        "label_studio.xml",
        "report.html",
        "summary.json",
        "project.json",
    }
    assert "Labels for small.parquet" in (table.parent / "out" / "report.html").read_text(
        encoding="utf-8"
    )
    assert (
        json.loads((table.parent / "out" / "summary.json").read_text())["evidence"]["held_out"] > 10
    )
    again = semigpc(*call(small))
    assert again.stdout == done.stdout


@pytest.mark.parametrize(
    ("options", "parameters"), [([], {}), (["--per-class"], {"per_class": True})]
)
def test_the_command_gives_the_labels_of_the_estimator_with_its_defaults(
    table: Path, options: list[str], parameters: dict[str, Any]
) -> None:
    done = semigpc(*call(table, "--no-report", *options))
    assert done.exit_code == 0, done.output
    written = parquet.read_table(table.parent / "out" / "labels.parquet").to_pydict()
    y = np.array([LABELS.get(name) for name in IDS], dtype=object)
    model = SemiGPClassifier(**parameters).fit(X, y)
    answers, free = model.answer(X), np.array([label is None for label in y])
    assert np.array(written["guess"])[free].tolist() == model.classes_[answers.codes][free].tolist()
    assert (
        np.array(written["status"])[free].tolist()
        == np.array(STATUSES)[answers.status][free].tolist()
    )
    assert np.array(written["confidence"])[free] == pytest.approx(
        answers.confidence[free], abs=1e-4
    )
    assert (model.label(X[free]) == None).tolist() == [
        s != "pseudo" for s in np.array(written["status"])[free]
    ]
    assert "pseudo" in written["status"]


def test_label_as_json(table: Path) -> None:
    done = semigpc(*call(table, "--no-report --answer-all --json"))
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary["statuses"]["abstained"] == 0
    assert summary == json.loads((table.parent / "out" / "summary.json").read_text())
    assert not (table.parent / "out" / "report.html").exists()


def test_nothing_to_label_is_all_that_is_said_of_rows_that_all_have_labels(table: Path) -> None:
    write_labels(table.with_name("labels.csv"), dict(zip(IDS, TRUTH, strict=True)))
    done = semigpc(*call(table, "--no-report"))
    assert done.exit_code == 0, done.output
    assert "nothing to label" in done.stdout
    for untrue in ("No new labels", "more of each", "too few"):
        assert untrue not in done.stdout


@pytest.mark.parametrize("ending", ["csv", pytest.param("parquet", marks=pytest.mark.slow)])
def test_guesses_that_come_back_are_not_given_labels(table: Path, ending: str) -> None:
    first = json.loads(semigpc(*call(table, "--no-report --json")).stdout)
    own = table.parent / "out" / f"labels.{ending}"
    again = ("label", table, "--labels", own, "--out", table.parent / "again", "--no-report --json")
    second = json.loads(semigpc(*again).stdout)
    assert second["given"] == first["given"]
    guesses = first["statuses"]["pseudo"]
    assert guesses > 100
    assert any(f"guesses of semigpc: {guesses}." in note for note in second["notes"])
    trusted = json.loads(semigpc(*again, "--trust-pseudo --overwrite").stdout)
    assert trusted["statuses"]["labelled"] == first["statuses"]["labelled"] + guesses


@pytest.mark.slow
def test_what_was_made_from_labels_is_set_aside_when_they_are_replaced(table: Path) -> None:
    out = table.parent / "out"
    made = ["audit.csv", "audit.json", "reviewed.csv", "reviewed.parquet", "reviewed_labels.csv"]
    made += ["reviews.jsonl", "suggestions.csv"]
    assert semigpc(*call(table, "--no-report")).exit_code == 0
    for verb in ("audit", "suggest"):
        assert semigpc(verb, out).exit_code == 0
    session = open_session(out)
    session.accept([int(np.flatnonzero(session.model.known_codes < 0)[0])])
    session.export()
    session.close()
    answers = (out / "reviews.jsonl").read_bytes()
    assert semigpc(*call(table, "--no-report --overwrite")).exit_code == 0
    assert all((out / name).exists() for name in made), "the same labels were made again"
    done = semigpc(*call(table, "--no-report --overwrite --seed 1"))
    assert done.exit_code == 0, done.output
    for name in made:
        stem, ending = name.split(".")
        aside = f"{stem}.earlier-labels-1.{ending}"
        assert not (out / name).exists()
        assert (out / aside).exists()
        assert aside in "".join(done.stdout.split()), "the terminal names it"
    assert (out / "reviews.earlier-labels-1.jsonl").read_bytes() == answers
    refused("audit", out, "--answers", out / "audit.csv", code=2, words="No sample was drawn")
    assert "0 of " in semigpc("review", out, "--export").stdout
    (out / "reviews.earlier-labels-1.jsonl").rename(out / "reviews.jsonl")
    assert "1 of " in semigpc("review", out, "--export").stdout, "by hand, they can be used again"


def test_columns_by_name(tmp_path: Path) -> None:
    lines = [
        ",".join([IDS[i], *map(str, X[i]), LABELS.get(IDS[i], ""), "note"]) for i in range(300)
    ]
    (tmp_path / "data.csv").write_text(
        "\n".join(["name,f0,f1,f2,f3,f4,f5,kind,remark", *lines]) + "\n"
    )
    base = ("label", tmp_path / "data.csv", "--out", tmp_path / "out", "--no-report --id name")
    refused(*base, "--label-column kind", code=2, words="1 do not hold numbers: 'remark (string)'")
    done = semigpc(*base, "--label-column kind --features f* --json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["settings"]["features"] == "6 columns, f0 to f5"
    found = parquet.read_table(tmp_path / "out" / "labels.parquet")
    assert found.column("name").to_pylist() == IDS
    pseudo = [
        row["label"] == TRUTH[i]
        for i, row in enumerate(found.to_pylist())
        if row["status"] == "pseudo"
    ]
    assert np.mean(pseudo) > 0.9


def test_bad_input_is_refused_in_one_paragraph(table: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.parquet"
    refused(*call(nowhere), code=2, words=f"There is no table and no folder {nowhere}")
    refused(*call(table, "--features embeding"), code=2, words="Did you mean 'embedding'?")
    refused(
        *call(table, "--id di"),
        code=2,
        words="has no column 'di' (named by --id). Did you mean 'id'?",
    )
    refused(
        "label",
        table,
        "--out",
        tmp_path / "out",
        code=2,
        words="Give a table of labels with --labels",
    )
    refused(
        "label",
        table,
        "--labels",
        nowhere,
        "--out",
        tmp_path / "out",
        code=2,
        words="The table of labels does not exist",
    )
    twice = tmp_path / "twice.parquet"
    parquet.write_table(table_of(X, [*IDS[:-1], IDS[0]]), twice)
    refused(*call(twice), code=2, words="1 occur more than once, such as 'row-00000'")
    nan = tmp_path / "nan.parquet"
    parquet.write_table(table_of(np.where(X[9, 0] == X, np.nan, X), IDS), nan)
    refused(*call(nan), code=2, words="row 10 of " + str(nan) + " (id 'row-00009')")
    (tmp_path / "cut.parquet").write_bytes(table.read_bytes()[:-100])
    refused(*call(tmp_path / "cut.parquet"), code=2, words="cannot be read as Parquet")
    (tmp_path / "labels.csv").write_bytes("id,label\nä,1\n".encode("latin-1"))
    refused(*call(table), code=2, words="Save it as comma-separated UTF-8 text")
    assert not (tmp_path / "out").exists()


def test_options_that_exclude_each_other(table: Path) -> None:
    done = semigpc(*call(table, "--answer-all --abstain 0.8"))
    assert done.exit_code == 2
    assert "--answer-all" in done.stderr
    assert semigpc(*call(table, "--abstain 1.5")).exit_code == 2


def test_labels_made_otherwise_are_not_replaced(table: Path) -> None:
    assert semigpc(*call(table, "--no-report")).exit_code == 0
    refused(
        *call(table, "--no-report --abstain 0.7"),
        code=2,
        words="abstain is None there and 0.7 here.",
    )
    done = semigpc(*call(table, "--no-report --abstain 0.7 --overwrite"))
    assert done.exit_code == 0, done.output


def test_more_labels_than_one_gp_holds_are_all_used_and_the_summary_says_how(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semigpc.gp.exact.EXACT_ROWS", 40)  # members hold 15 rows at most
    done = semigpc(*call(table, "--answer-all --no-report --json"))
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert (summary["model"]["engine"], summary["model"]["labels used"]) == (
        "ensemble",
        len(LABELS),
    )
    assert any(
        "3 exact GPs of up to 12 rows share the 36 labelled rows" in note
        for note in summary["notes"]
    )
    rows = parquet.read_table(table.parent / "out" / "labels.parquet").to_pylist()
    free = [
        (row["guess"], truth)
        for row, truth in zip(rows, TRUTH, strict=True)
        if row["id"] not in LABELS
    ]
    assert np.mean([label == truth for label, truth in free]) > 0.9
    assert all(len(row["reasons"]) == 3 for row in rows)
