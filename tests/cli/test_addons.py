"""Add-ons on the command line: by name, with options, in comparisons, and where they do not fit."""

import json
from pathlib import Path

import pytest

from tests.cli.calls import SHORT, refused, semigpc, worked
from tests.training.small_runs import entries


def test_its_settings_are_listed_with_its_values() -> None:
    done = semigpc("list settings digits --addon darp")
    assert "addon.warmup=0.4" in done.stdout.splitlines()


@pytest.mark.slow
def test_a_run_with_an_add_on_is_evaluated_and_used_by_its_head(tmp_path: Path) -> None:
    run = tmp_path / "run"
    addon = "--addon abc --set addon.threshold=0.5 --set train.ema=0.9"
    worked("train digits --algorithm fixmatch --steps 60", addon, SHORT, "--out", run)
    config = json.loads((run / "config.json").read_text())
    assert (config["addon"]["name"], config["addon"]["threshold"]) == ("abc", 0.5)
    judged = json.loads(worked("evaluate", run, "--checkpoint last --json").stdout)
    evaluated = [line for line in entries(run, "eval") if line["part"] == "test"]
    last = [line for line in evaluated if line["head"] == "linear"][-1]
    assert judged["heads"]["linear"]["top1"] == pytest.approx(last["top1"], abs=1e-6)


@pytest.mark.slow
def test_without_a_folder_the_name_says_which_add_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    worked("train digits --algorithm fixmatch --addon saw --refiner none --steps 2")
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name == "digits-fixmatch-saw-none-seed0"


@pytest.mark.slow
def test_a_comparison_pairs_an_add_on_with_itself(tmp_path: Path) -> None:
    methods = "compare digits --algorithm fixmatch --addon none --addon logit_adjustment --seeds 1"
    done = worked(
        methods, "--set train.steps=4 --set refiner.buffer_size=64 --out", tmp_path, "--json"
    )
    found = next(iter(json.loads(done.stdout)["comparisons"].values()))
    plain = ["fixmatch+none", "fixmatch+gp"]
    adjusted = ["fixmatch+logit_adjustment+none", "fixmatch+logit_adjustment+gp"]
    assert list(found["cells"]) == ["supervised+none", *plain, *adjusted]
    label = "FixMatch + logit adjustment + SemiGPC"
    assert found["cells"][adjusted[1]]["label"] == label
    assert [pair["without"] for pair in found["pairs"]] == [plain[0], adjusted[0]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--addon dasso", "unknown addon 'dasso'; did you mean 'daso'?"),
        ("--algorithm supervised --addon darp", "darp acts on unlabelled images"),
        ("--addon cossl --set train.ema=0", "cossl needs a moving average"),
        ("--addon crest --set addon.generations=1", "generations must be at least 2"),
        ("--addon crest --set train.steps=3", "must be at least 6"),
        ("--addon darp --set addon.warmpu=0.1", "did you mean 'addon.warmup'?"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_paragraph(
    arguments: str, words: str, tmp_path: Path
) -> None:
    refused("train digits", arguments, "--out", tmp_path / "run", code=2, words=words)
    assert not (tmp_path / "run").exists()
