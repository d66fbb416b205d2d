"""Add-ons on the command line: by name, with options, in comparisons, and refused where they do not
fit.
"""

import json
from pathlib import Path

import pytest

from semigpc.addons import ADDONS
from tests.cli.calls import SHORT, refused, semigpc


def test_every_add_on_has_a_line() -> None:
    done = semigpc("list addons --json")
    assert set(json.loads(done.stdout)) == set(ADDONS)
    assert all(line.strip() for line in json.loads(done.stdout).values())


def test_its_settings_are_listed_with_its_values() -> None:
    done = semigpc("list settings digits --addon darp")
    assert "addon.warmup=0.4" in done.stdout.splitlines()


@pytest.mark.slow
def test_a_run_with_an_add_on_is_evaluated_and_used_by_its_head(tmp_path: Path) -> None:
    run = tmp_path / "run"
    few = ("--steps 60 --set train.ema=0.9", SHORT)
    done = semigpc(
        "train digits --algorithm fixmatch --addon abc --set addon.threshold=0.5",
        *few,
        "--out",
        run,
    )
    assert done.exit_code == 0, done.output
    config = json.loads((run / "config.json").read_text())
    assert config["addon"]["name"] == "abc"
    assert config["addon"]["threshold"] == 0.5
    judged = semigpc("evaluate", run, "--checkpoint last --json")
    assert judged.exit_code == 0, judged.output
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [
        line
        for line in lines
        if line["kind"] == "eval" and line["part"] == "test" and line["head"] == "linear"
    ][-1]
    assert json.loads(judged.stdout)["heads"]["linear"]["top1"] == pytest.approx(
        last["top1"], abs=1e-6
    )


@pytest.mark.slow
def test_without_a_folder_the_name_says_which_add_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = semigpc("train digits --algorithm fixmatch --addon saw --refiner none --steps 2")
    assert done.exit_code == 0, done.output
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [
        "digits-fixmatch-saw-none-seed0"
    ]


@pytest.mark.slow
def test_a_comparison_pairs_an_add_on_with_itself(tmp_path: Path) -> None:
    done = semigpc(
        *("compare digits --algorithm fixmatch --addon none --addon logit_adjustment --seeds 1",),
        *("--set train.steps=4 --set refiner.buffer_size=64 --out", tmp_path, "--json"),
    )
    assert done.exit_code == 0, done.output
    found = next(iter(json.loads(done.stdout)["comparisons"].values()))
    assert list(found["cells"]) == [
        "supervised+none",
        "fixmatch+none",
        "fixmatch+gp",
        "fixmatch+logit_adjustment+none",
        "fixmatch+logit_adjustment+gp",
    ]
    assert (
        found["cells"]["fixmatch+logit_adjustment+gp"]["label"]
        == "FixMatch + logit adjustment + SemiGPC"
    )
    assert [pair["without"] for pair in found["pairs"]] == [
        "fixmatch+none",
        "fixmatch+logit_adjustment+none",
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--addon", "dasso"], "unknown addon 'dasso'; did you mean 'daso'?"),
        (["--algorithm", "supervised", "--addon", "darp"], "darp acts on unlabelled images"),
        (["--addon", "cossl", "--set", "train.ema=0"], "cossl needs a moving average"),
        (["--addon", "crest", "--set", "addon.generations=1"], "generations must be at least 2"),
        (["--addon", "crest", "--set", "train.steps=3"], "must be at least 6"),
        (["--addon", "darp", "--set", "addon.warmpu=0.1"], "did you mean 'addon.warmup'?"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_paragraph(
    arguments: list[str], words: str, tmp_path: Path
) -> None:
    refused("train digits", *arguments, "--out", tmp_path / "run", code=2, words=words)
    assert not (tmp_path / "run").exists()
