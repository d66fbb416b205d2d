"""``semigpc audit`` as a user sees it: draw, answer, read the precision."""

import json
from pathlib import Path

import pytest

from tests.cli.calls import refused, semigpc, worked
from tests.labeling.clouds import make_clouds
from tests.labeling.samples import read_rows, write_rows


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clouds(tmp_path_factory.mktemp("audited")).project.folder


def answer(path: Path, *, every: int = 1) -> None:
    """By the truth, which is in the id."""
    rows = read_rows(path)
    for row in rows[::every]:
        row["truth"] = "y" if row["id"].startswith(row["label"]) else "n"
    write_rows(path, rows)


def test_a_sample_is_drawn_answered_and_judged(out: Path) -> None:
    said = " ".join(worked("audit", out, "--sample 60 --seed 2").stdout.split())
    assert f"wrote {out / 'audit.csv'}: 60 of " in said
    assert f"semigpc audit {out} --answers {out / 'audit.csv'}" in said
    refused("audit", out, "--answers", out / "audit.csv", code=2, words="has no answers yet")
    answer(out / "audit.csv")
    judged = worked("audit", out, "--answers", out / "audit.csv")
    assert "95% interval" in judged.stdout
    assert "pseudo-labels are right (" in judged.stdout
    words = "60 of its rows are filled in (column 'truth')"
    refused("audit", out, "--sample 60", code=2, words=words)
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


def test_drawing_and_judging_are_two_things(out: Path) -> None:
    done = semigpc("audit", out, "--sample 9 --answers", out / "audit.csv")
    assert done.exit_code == 2
    assert "--answers evaluates the last one" in " ".join(done.stderr.split())
    refused("audit", out, "--sample 1 --overwrite", code=2, words="sample must be at least")
