"""``semigpc bench kernels`` as a user calls it."""

import json
from pathlib import Path

import pytest

from semigpc.bench import long_tails
from tests.cli.calls import semigpc


def test_a_study_is_printed_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_tails, "PROBLEMS", (long_tails.Problem("digits", "B", 5, 4, unlabeled=20),))
    call = ("bench", "kernels", "--data", "digits", "--seeds", "1", "--out", tmp_path / "k.json")
    done = semigpc(*call)
    assert done.exit_code == 0, done.output
    assert "Negative log-likelihood" in done.stdout
    assert "leave_one_out: lower than default on" in done.stdout
    again = semigpc(*call, "--json", "--plot", tmp_path / "k.png")
    assert again.exit_code == 0, again.output
    assert json.loads(again.stdout)["of_problems"] == 1
    assert (tmp_path / "k.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--data", "mnist"), "unknown data 'mnist'; known: cifar10, digits, segments"),
        (("--data", "cifar10"), "cifar10 needs --embeddings"),
        (("--plot", "nowhere/k.png"), "there is no folder nowhere"),
    ],
)
def test_what_cannot_be_studied_is_refused(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = semigpc("bench", "kernels", "--out", tmp_path / "k.json", *arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.replace("│", " ").split())
    assert not (tmp_path / "k.json").exists()
