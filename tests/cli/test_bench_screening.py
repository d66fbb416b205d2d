"""``semigpc bench screening``."""

import json
from pathlib import Path

import pytest

from tests.cli.calls import semigpc


def test_a_study_is_told_as_tables_and_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from semigpc.bench import long_tails, screening
    from tests.bench.test_screening import SMALL, clouds

    monkeypatch.setattr(screening, "PROBLEMS", (SMALL,))
    monkeypatch.setattr(long_tails, "loaders", lambda _embeddings: {"clouds": clouds})
    out, plot = tmp_path / "s.json", tmp_path / "s.png"
    done = semigpc("bench", "screening", "--seeds", "1", "--out", out, "--plot", plot)
    assert done.exit_code == 0, done.output
    for word in ("AUROC", "clouds, 3 each", "variance", "nearest", "lof", "prob.", "Wrong labels"):
        assert word in done.stdout
    assert plot.exists()
    again = semigpc("bench", "screening", "--seeds", "1", "--out", out, "--json")
    assert json.loads(again.stdout) == json.loads(out.read_text())["summary"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--out", "nowhere/s.json"), "there is no folder nowhere"),
        (("--out", "s.json", "--plot", "nowhere/s.png"), "there is no folder nowhere"),
        (("--out", "s.json", "--data", "digit"), "unknown data 'digit'; known: cifar10, digits, segments"),
        (("--out", "s.json", "--data", "cifar10"), "cifar10 needs --embeddings"),
    ],
)
def test_what_cannot_work_is_refused(arguments: tuple[str, ...], words: str) -> None:
    done = semigpc("bench", "screening", *arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())


def test_the_help_teaches() -> None:
    told = semigpc("bench", "screening", "--help").stdout
    assert "semigpc bench screening --embeddings cifar10.parquet --out screening.json" in told
