"""``semigpc audit`` as a user sees it: draw, answer, read the precision."""

import csv
import json
from pathlib import Path

import pytest

from tests.cli.calls import refused, semigpc
from tests.labeling.clouds import make_clouds


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clouds(tmp_path_factory.mktemp("audited")).project.folder


def answer(path: Path, *, every: int = 1) -> None:
    """By the truth, which is in the id."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows[::every]:
        row["truth"] = "y" if row["id"].startswith(row["label"]) else "n"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_a_sample_is_drawn_answered_and_judged(out: Path) -> None:
    drawn = semigpc("audit", out, "--sample 60 --seed 2")
    assert drawn.exit_code == 0, drawn.output
    said = " ".join(drawn.stdout.split())
    assert f"wrote {out / 'audit.csv'}: 60 of " in said
    assert f"semigpc audit {out} --answers {out / 'audit.csv'}" in said
    refused("audit", out, "--answers", out / "audit.csv", code=2, words="has no answers yet")
    answer(out / "audit.csv")
    judged = semigpc("audit", out, "--answers", out / "audit.csv")
    assert judged.exit_code == 0, judged.output
    assert "95% interval" in judged.stdout
    assert "pseudo-labels are right (" in judged.stdout
    refused(
        "audit", out, "--sample 60", code=2, words="60 of its rows are filled in (column 'truth')"
    )
    told = json.loads(semigpc("audit", out, "--answers", out / "audit.csv", "--json").stdout)
    assert told == json.loads((out / "audit.json").read_text())["result"]
    assert told["all"]["low"] <= told["all"]["precision"] <= told["all"]["high"]


def test_what_was_not_answered_is_told(out: Path) -> None:
    drawn = semigpc("audit", out, "--sample 40 --overwrite --json")
    facts = json.loads(drawn.stdout)
    assert len(facts["rows"]) == 40
    assert sum(stratum["rows"] for stratum in facts["strata"]) == facts["pseudo_labels"]
    answer(out / "audit.csv", every=2)
    judged = " ".join(semigpc("audit", out, "--answers", out / "audit.csv").stdout.split())
    assert "20 of 40 rows have no answer" in judged


def test_drawing_and_judging_are_two_things(out: Path, tmp_path: Path) -> None:
    done = semigpc("audit", out, "--sample 9 --answers", out / "audit.csv")
    assert done.exit_code == 2
    assert "--answers evaluates the last one" in " ".join(done.stderr.split())
    refused("audit", tmp_path, code=2, words="has no project.json")
    refused("audit", out, "--sample 1 --overwrite", code=2, words="sample must be at least")
