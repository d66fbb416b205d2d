"""``benchmarks/field.py`` as a user calls it, the short runs it makes, and what it counts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.field import grid_rows, markdown, summarise
from benchmarks.study import (
    FINETUNED,
    FIXED,
    GRID,
    METHODS,
    PROBLEMS,
    TUNING,
    figures,
    settings_digest,
    study_experiment,
)
from semigpc.training import train
from tests.benchmarks.calls import bench, refused

ROOTS = {"mnist": Path("mnist.npz"), "cifar10": Path("images.zip")}
SMALL = (
    "--problem",
    "digits_b4",
    "--method",
    "fixmatch",
    "--method",
    "fixmatch+gp",
    "--times",
    "0.034",
)


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("study")
    done = bench(
        "field",
        *SMALL,
        "--method",
        "fixmatch+gp_fixed",
        "--seed",
        "0",
        "--out",
        out,
        "--plot",
        out / "study.png",
    )
    assert done.exit_code == 0, done.output
    return out, done.stdout


def test_every_run_leaves_its_figures_and_no_weights(studied: tuple[Path, str]) -> None:
    out, printed = studied
    study = json.loads((out / "study.json").read_text())
    assert [(one["method"], one["seed"]) for one in study["records"]] == [
        ("fixmatch", 0),
        ("fixmatch+gp_fixed", 0),
        ("fixmatch+gp", 0),
    ]
    plain, fixed, ours = study["records"]
    assert set(plain["heads"]) == set(plain["halfway"]) == {"linear"}
    assert set(ours["heads"]) == set(fixed["heads"]) == {"linear", "gp"}
    assert set(ours["heads"]["gp"]) == {"balanced_accuracy", "ece", "few", "medium", "many"}
    assert 0 <= ours["least_coverage"] <= ours["coverage"] <= ours["most_coverage"] <= 1
    assert study["summary"]["gain"]["linear"]["B"]["mean_gain"] == pytest.approx(
        ours["heads"]["linear"]["balanced_accuracy"] - plain["heads"]["linear"]["balanced_accuracy"]
    )
    assert "FixMatch + SemiGPC, fixed" in printed
    assert (out / "study.png").stat().st_size > 1000
    assert {path.name for path in out.iterdir()} == {"study.json", "study.png"}


def test_what_is_finished_is_not_run_again_and_other_runs_are_kept(
    studied: tuple[Path, str],
) -> None:
    out, _ = studied
    before = json.loads((out / "study.json").read_text())["records"]
    done = bench(
        "field", *SMALL, "--seed", "0", "--seed", "1", "--out", out, "--only-summary", "--markdown"
    )
    assert done.exit_code == 0, done.output
    assert "| digits, B, 4 labels |" in done.stdout
    done = bench("field", *SMALL, "--seed", "0", "--out", out, "--json")
    assert json.loads(done.stdout)["runs"] == 2
    assert json.loads((out / "study.json").read_text())["records"] == before, (
        "with the seconds that they took"
    )


def test_a_run_with_other_settings_is_run_again(studied: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "study.json").write_bytes((studied[0] / "study.json").read_bytes())
    arguments = (
        "--problem",
        "digits_b4",
        "--method",
        "fixmatch",
        "--seed",
        "0",
        "--out",
        tmp_path,
        "--times",
        "0.067",
    )
    assert "Runs: 0." in bench("field", *arguments, "--only-summary").stdout
    assert "Runs: 1." in bench("field", *arguments).stdout


def test_the_place_of_the_data_is_no_setting() -> None:
    here, there, other = (
        settings_digest(
            study_experiment("mnist_a50", "fixmatch", roots={"mnist": Path(root)}, seed=seed)
        )
        for root, seed in (("mnist.npz", 0), ("data/mnist.npz", 0), ("mnist.npz", 1))
    )
    assert here == there != other


def test_precision_is_weighted_by_what_was_accepted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(study_experiment("digits_b4", "fixmatch+gp", roots={}, times=20 / 600), run)
    late = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    late = [entry for entry in late if entry["kind"] == "pseudo" and entry["step"] > 15]
    accepted = [sum(entry["accepted_counts"]) for entry in late]
    right = sum((entry["precision"] or 0) * n for entry, n in zip(late, accepted, strict=True))
    found = figures(run)
    assert found["coverage"] == pytest.approx(
        sum(accepted) / sum(sum(entry["believed_counts"]) for entry in late)
    )
    if sum(accepted):
        assert found["precision"] == pytest.approx(right / sum(accepted))
        assert 0 <= found["calibration_error"] <= 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("--problem", "cifar10_a50"),
            "cifar10_a50 is made of images: give the path of their data by --cifar",
        ),
        (("--problem", "digits"), "unknown problem 'digits'"),
        (("--method", "fixmach"), "unknown method 'fixmach'; did you mean 'fixmatch'?"),
        (("--plot", "nowhere/study.png"), "there is no folder nowhere"),
    ],
)
def test_what_cannot_be_run_is_an_error_before_anything_runs(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    refused("field", "--out", tmp_path / "out", *arguments, words=words)
    assert not (tmp_path / "out").exists()


# The short runs


def test_there_are_twelve_problems_and_23_methods_beside_the_grid() -> None:
    assert (len(PROBLEMS) - len([FINETUNED]), len(METHODS) - len(GRID), len(GRID)) == (12, 23, 16)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_run_is_an_experiment_of_its_own_problem(problem: str) -> None:
    made = {method: study_experiment(problem, method, roots=ROOTS, seed=2) for method in METHODS}
    assert len({str(one.data) for one in made.values()}) == 1
    split = made["fixmatch"].data.split
    assert (split.labeled_ratio == 1) == (PROBLEMS[problem].setting == "B")
    assert split.unlabeled_ratio == PROBLEMS[problem].ratio
    for method, one in made.items():
        chosen = METHODS[method]
        refiner = "gp" if chosen.refiner.startswith("gp") else chosen.refiner
        assert (one.algorithm_name, one.addon_name, one.refiner_name) == (
            chosen.base,
            chosen.addon,
            refiner,
        )
        assert one.train.steps == 2 * one.train.eval_steps
        assert (one.frozen is not None) == (PROBLEMS[problem].data == "cifar10")
    fixed, ours = made["fixmatch+gp_fixed"].refiner, made["fixmatch+gp"].refiner
    assert {name: getattr(fixed, name) for name in FIXED} == FIXED
    assert (ours.length_scale, ours.logit_scale) == ("auto", "auto")
    assert made["fixmatch+gp_0.1_25"].refiner == replace(
        ours, length_scale=0.1**0.5, logit_scale=25.0
    )


@pytest.mark.parametrize("problem", PROBLEMS)
def test_tuning_seeds_have_validation_images(problem: str) -> None:
    plain, tuned = (
        study_experiment(problem, "fixmatch", roots=ROOTS, seed=seed).data
        for seed in (TUNING - 1, TUNING)
    )
    assert plain.validation_per_class == 0
    assert tuned.validation_per_class > 0


# Counting


def record(
    problem: str, method: str, seed: int, linear: float, gp: float | None = None, **more: Any
) -> dict[str, Any]:
    """The figures of a run whose groups all have the accuracy of the whole."""
    scores = {"linear": linear} | ({} if gp is None else {"gp": gp})
    heads = {
        head: {"balanced_accuracy": value, "ece": 0.1, "few": value, "medium": value, "many": value}
        for head, value in scores.items()
    }
    plain = {
        "halfway": {"linear": linear - 0.01},
        "chosen_head": "linear",
        "ece": 0.1,
        "seconds": 1.0,
    }
    return {"problem": problem, "method": method, "seed": seed, "heads": heads} | plain | more


def test_gains_are_paired_by_problem_base_and_seed() -> None:
    records = [
        record("digits_a50", "supervised", 0, 0.4),
        record("digits_a50", "fixmatch", 0, 0.5),
        record("digits_a50", "fixmatch+gp_fixed", 0, 0.5, 0.4),
        record(
            "digits_a50",
            "fixmatch+gp",
            0,
            0.6,
            0.8,
            chosen_head="gp",
            coverage=0.5,
            least_coverage=0.3,
            most_coverage=0.7,
        ),
        record("digits_b4", "simmatch", 0, 0.7),
        record("digits_b4", "simmatch+gp", 0, 0.65, 0.7),
        record("digits_b4", "simmatch+gp", 1, 0.9, 0.9),  # without a pair
        record("digits_b4", "fixmatch+saw", 0, 0.1),
        record("digits_b4", "fixmatch+saw+gp", 0, 0.3, 0.3),
    ]
    found = summarise(records)
    linear, chosen, better = (found["gain"][by] for by in ("linear", "chosen", "better"))
    assert linear["A"]["mean_gain"] == pytest.approx(0.1)
    assert linear["B"]["mean_gain"] == pytest.approx(-0.05)
    assert (linear["AB"]["wins"], linear["AB"]["losses"]) == (1, 1)
    assert chosen["A"]["mean_gain"] == pytest.approx(0.3)
    assert better["B"]["mean_gain"] == pytest.approx(0.0)
    assert found["gain_on_addons"]["linear"]["B"]["mean_gain"] == pytest.approx(0.2)
    assert found["gain_over_fixed"]["chosen"]["digits"]["mean_gain"] == pytest.approx(0.3)
    assert found["over_labels_only"]["digits_a50"] == pytest.approx(0.4)
    assert found["gain_by_problem"]["linear"]["mnist_a50"] is None
    assert found["head_within_a_point"] == pytest.approx(3 / 4)
    assert found["coverage"] == {"least": 0.3, "most": 0.7, "late": 0.5}
    assert found["second_half_of_bases"] == pytest.approx(0.01)


def test_a_table_of_markdown_has_its_numbers_at_the_right() -> None:
    assert markdown([["", "A"], ["x", "1.0"]]) == "|  | A |\n| --- | ---: |\n| x | 1.0 |\n"


def test_the_grid_names_its_best_pair_and_how_far_the_tuned_one_is_behind() -> None:
    seen = {"least_coverage": 0.5, "most_coverage": 0.75}
    records = [
        record("digits_a50", "fixmatch", 100, 0.5),
        record("digits_a50", "fixmatch+gp", 100, 0.6, 0.7, **seen),
    ]
    records += [record("digits_a50", f"fixmatch+{name}", 100, 0.3) for name in GRID]
    records.append(record("digits_a50", "fixmatch+gp_0.3_11", 101, 0.92))
    records.append(record("mnist_a50", "fixmatch", 100, 0.5))
    heading, row = grid_rows(records)
    assert dict(zip(heading[1:], row[1:], strict=True)) == {
        "FixMatch": "50.0",
        "SemiGPC": "60.0",
        "best of 16": "61.0",
        "l^2": "0.3",
        "lambda": "11",
        "behind it": "+1.0",
        "mean of 16": "31.9",
        "worst": "30.0",
        "coverage": "50.0 to 75.0",
    }
