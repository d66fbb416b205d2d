"""What the studies count, against figures counted by hand, and that they resume."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats

from benchmarks.estimator import (
    BALANCED,
    GRADES,
    OURS,
    FirstContact,
    calibration_error,
    compare_on,
    graded,
    judge_unlabeled,
    kept_promises,
    meet,
    rare_figures,
    share_error,
    summarise,
    summarise_contacts,
)
from benchmarks.field import grid_rows, markdown
from benchmarks.field import summarise as summarise_field
from benchmarks.kernels import PAPER, judge, points_of, posterior_means
from benchmarks.peers import balanced_accuracy
from benchmarks.problems import Pool, Problem, cut, load_digits_pool
from benchmarks.ranks import rank, sign_test
from benchmarks.screening import risk
from benchmarks.study import GRID, figures, study_experiment
from benchmarks.suspects import judge as judge_suspicion
from benchmarks.tables import read_seeds, run_study
from semigpc.estimator import Answers
from semigpc.gp import ExactGP
from semigpc.training import train

SMALL = Problem("digits", "B", 5, 4, unlabeled=20)
BY_HAND = {  # ranks: 1 2 3; 2 1 3; 1.5 1.5 3; 1 3 2
    "one": {"a": 0.9, "b": 0.8, "c": 0.1},
    "two": {"a": 0.5, "b": 0.6, "c": 0.4},
    "three": {"a": 0.7, "b": 0.7, "c": 0.2},
    "four": {"a": 0.3, "b": 0.1, "c": 0.2},
}


def test_ranks_are_those_counted_by_hand() -> None:
    found = rank(BY_HAND, ["c", "b", "a"])
    assert list(found.mean_ranks) == ["a", "b", "c"]
    assert list(found.mean_ranks.values()) == pytest.approx([5.5 / 4, 7.5 / 4, 11 / 4])
    assert (found.blocks, found.dropped) == (4, [])
    critical = 2.343 * math.sqrt(3 * 4 / (6 * 4))  # Demsar, table 5
    assert found.critical_difference == pytest.approx(critical, abs=1e-3)
    cut_off = rank(BY_HAND | {"cut off": {"a": 0.1, "b": 0.9}}, ["a", "b", "c"])
    assert cut_off.dropped == ["cut off"]
    assert cut_off.mean_ranks == found.mean_ranks


def test_friedmans_statistic_is_scipys() -> None:
    table = np.random.default_rng(0).normal(size=(7, 5))
    table[0, 0] = table[0, 1]  # a tie
    scores = {
        str(block): dict(zip("abcde", map(float, row), strict=True))
        for block, row in enumerate(table)
    }
    found = rank(scores, list("abcde"))
    expected = stats.friedmanchisquare(*table.T)
    assert found.statistic == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue)


def test_nothing_is_ranked_where_there_is_nothing_to_rank() -> None:
    assert rank({}, ["a", "b"]).mean_ranks == {}
    assert rank({"one": {"a": 0.1}}, ["a", "b"]).dropped == ["one"]
    assert rank({"one": {"a": 0.1}}, ["a"]).critical_difference is None
    equal = {"one": {"a": 1, "b": 1, "c": 1}, "two": {"a": 2, "b": 2, "c": 2}}
    assert rank(equal, ["a", "b", "c"]).statistic is None


def test_pairs_are_counted_with_ties_apart() -> None:
    found = sign_test([0.02, -0.01, 0.0, 0.05, 0.1 + 0.2 - 0.3])
    assert (found["pairs"], found["wins"], found["losses"], found["ties"]) == (5, 2, 1, 2)
    assert found["mean_gain"] == pytest.approx(0.012)
    assert found["p_value"] == pytest.approx(1.0)
    assert sign_test([0.1] * 8)["p_value"] == pytest.approx(2 / 2**8)
    assert sign_test([])["mean_gain"] is None


def test_scores_are_judged_by_their_order() -> None:
    wrong = np.array([True, False, True, False])
    in_order = judge_suspicion(wrong, np.array([0.9, 0.1, 0.8, 0.3]))
    assert in_order == {"auroc": 1.0, "precision_at_k": 1.0}
    mixed = judge_suspicion(wrong, np.array([0.9, 0.95, 0.1, 0.3]))
    assert mixed == {"auroc": 0.25, "precision_at_k": 0.5}
    found = risk(np.array([0.9, 0.1, 0.8, 0.3]), wrong)
    assert found == {"half": 0, "area": pytest.approx((0 + 0 + 1 / 3 + 1 / 2) / 4)}
    ties = risk(np.ones(4), wrong)
    assert ties == {"half": pytest.approx(0.5), "area": pytest.approx(0.5)}
    assert balanced_accuracy(np.array([0, 0, 0, 1]), np.array([0, 0, 0, 0])) == 0.5


def promise(given: int, right: int, reachable: int = 40) -> dict[str, Any]:
    """A record with one promise about 100 unlabelled rows."""
    counts = {"given": given, "right": right, "reachable": reachable, "expected": 0.95}
    return {"unlabeled": 100, "grades": [{"grade": 0.9, **counts}]}


def test_a_promise_is_judged_by_runs_that_give_out_thirty_labels() -> None:
    found = kept_promises([promise(30, 27), promise(50, 44), promise(29, 10)], 0.9)
    assert (found["runs"], found["share"], found["kept"]) == (2, pytest.approx(2 / 3), 0.5)
    assert (found["precision"], found["expected"]) == (81 / 109, pytest.approx(0.95))
    assert found["coverage"] == pytest.approx(109 / 300)
    assert found["of_reachable"] == (30 + 40 + 29) / 120, "50 were given out, 40 were reachable"
    nothing = kept_promises([promise(0, 0, 0)], 0.9)
    shares = ("kept", "precision", "expected", "of_reachable")
    assert all(nothing[name] is None for name in shares)


def answers_of(codes: list[int], confidence: list[float], grade: list[float]) -> Answers:
    nothing = np.zeros(len(codes), dtype=np.int64)
    floats = [np.array(each, dtype=np.float32) for each in (confidence, grade)]
    blank = floats[0][:, None]
    return Answers(
        codes=np.array(codes),
        confidence=floats[0],
        second=nothing,
        second_confidence=floats[0],
        variance=None,
        status=nothing.astype(np.uint8),
        grade=floats[1],
        rows=nothing[:, None],
        weights=blank,
        scores=floats[0],
    )


def test_grades_are_counted_with_those_above_them() -> None:
    answers = answers_of([0, 0, 1, 1, 1], [0.9, 0.6, 0.8, 0.5, 0.7], [0.95, 0, 0.99, 0, 0.8])
    right = np.array([True, True, True, False, False])  # by confidence: right, right, wrong, right
    found = {one["grade"]: one for one in graded(answers, right, {0.8: 0.85})}
    counts = {grade: (one["given"], one["right"]) for grade, one in found.items()}
    assert counts == {0.8: (3, 2), 0.9: (2, 2), 0.95: (2, 2), 0.99: (1, 1)}
    assert (found[0.8]["expected"], found[0.9]["expected"]) == (0.85, None)
    assert {one["reachable"] for one in found.values()} == {2}


def test_likelihood_leaves_out_classes_without_a_label_and_nothing_else_does() -> None:
    answers = answers_of([0, 1, 0], [0.8, 0.6, 0.5], [0, 0, 0])
    probs = np.array([[0.8, 0.2], [0.4, 0.6], [0.5, 0.5]], dtype=np.float32)
    found = judge_unlabeled(answers, probs, np.array([0, 0, 2]), np.array([3, 1]), {})
    assert found["nll"] == pytest.approx(-(np.log(0.8) + np.log(0.4)) / 2)
    assert found["ece"] == pytest.approx((0.2 + 0.6 + 0.5) / 3)
    assert found["rare"] is None


def test_rare_classes_are_those_with_one_or_two_labels() -> None:
    labels = np.repeat([1, 2, 3], (6, 4, 9))
    confidence = np.repeat([0.5, 0.75, 0.9], (6, 4, 9))
    right = np.arange(19) < 3
    assert rare_figures(confidence, right, labels) == {
        "rows": 10,
        "confidence": pytest.approx(0.6),
        "accuracy": pytest.approx(0.3),
    }
    assert rare_figures(confidence[1:], right[1:], labels[1:]) is None, "nine rows"


def test_errors_of_shares_and_of_confidence_are_those_computed_by_hand() -> None:
    truth = np.repeat([0, 1, 3], (50, 40, 10))  # nothing is left of class 2, and 3 has no label
    found = share_error(np.array([0.25, 0.7, 0.05]), truth)
    assert found == pytest.approx(np.mean(np.log([2, 0.7 / 0.4])))
    confidence = np.array([0.95, 0.95, 0.95, 0.25])
    error = calibration_error(confidence, np.array([True, True, False, True]))
    assert error == pytest.approx((3 * (0.95 - 2 / 3) + 0.75) / 4)


def test_a_run_has_every_grade_and_takes_peers_from_an_earlier_study() -> None:
    pool = load_digits_pool()
    record = compare_on(SMALL, pool, 100, peers=("knn",))
    assert [one["grade"] for one in record["grades"]] == list(GRADES)
    given = [one["given"] for one in record["grades"]]
    assert given == sorted(given, reverse=True)
    assert all(one["right"] <= one["given"] <= record["unlabeled"] for one in record["grades"])
    assert list(record["methods"]) == [OURS, BALANCED, "knn"]
    assert record["methods"]["knn"]["balanced_accuracy"] > 0.5
    peer = {"balanced_accuracy": 0.25, "unlabeled_balanced_accuracy": 0.3, "seconds": 1.0}
    known = {(SMALL.name, 100): {"methods": {OURS: {}, "knn": peer}}}
    again = compare_on(SMALL, pool, 100, peers=(), earlier=known)
    assert again["methods"]["knn"] == peer
    assert again["grades"] == record["grades"]
    assert list(compare_on(SMALL, pool, 101, earlier=known)["methods"]) == [OURS, BALANCED]


def test_rows_of_classes_without_a_label_count_as_wrong() -> None:
    few = Problem("digits", "R", 30, 14, unlabeled=90)
    record = compare_on(few, load_digits_pool(), 100)
    assert record["classes_with_labels"] < record["classes"] == 10
    best = record["classes_with_labels"] / record["classes"]
    assert 0 < record["methods"][OURS]["balanced_accuracy"] < best


def study_record(problem: str, seed: int, ours: float, **peers: float) -> dict[str, Any]:
    """A record of 100 unlabelled rows, of which 40 of 50 reachable ones are given out."""
    methods = {OURS: ours, BALANCED: ours + 0.01, **peers}
    counts = {"given": 40, "right": 38, "reachable": 50, "expected": 0.96}
    return {
        "problem": problem,
        "data": problem.split()[0],
        "seed": seed,
        "unlabeled": 100,
        "methods": {
            name: {"balanced_accuracy": value, "unlabeled_accuracy": value}
            for name, value in methods.items()
        },
        "grades": [{"grade": grade, **counts} for grade in GRADES],
        "nll": 0.5,
        "ece": 0.04,
        "share_error": 0.1,
        "rare": {"rows": 10 * (seed + 1), "confidence": 0.6, "accuracy": 0.3 + 0.3 * seed},
    }


def test_peers_are_compared_on_the_seeds_and_problems_they_were_run_on() -> None:
    records = [
        study_record("waste one", 0, 0.7, knn=0.6),
        study_record("waste one", 1, 0.9),
        study_record("waste two", 0, 0.5, knn=0.5, logistic=0.45),
        *(study_record("digits one", seed, 0.8, knn=0.75) for seed in range(2)),
    ]
    found = summarise(records)
    groups = found["groups"]
    assert groups["photographs"]["ahead"] == {"knn": 0.05, "logistic": 0.05}
    assert groups["tables"]["ahead"] == {"knn": 0.05}
    assert groups["all"]["least_ahead"] == 0, "on waste two"
    assert groups["photographs"]["mean"][OURS] == pytest.approx((0.8 + 0.5) / 2)
    assert groups["all"]["of_reachable"] == 0.8
    assert found["problems"]["waste one"]["rare"]["accuracy"] == pytest.approx(0.5)
    assert groups["all"]["rare"]["gap"] == pytest.approx((0.1 + 0.3 + 0.1) / 3, abs=1e-4)
    bars = found["bars"]
    assert bars["kept at 0.95"] == {"value": 1.0, "at_least": 0.9, "reached": True}
    assert bars["kept at 0.99"]["reached"] is False
    assert bars["kept on the worst problem"]["value"] is None, "no problem has ten runs"
    assert bars["calibration error"] == {"value": 0.04, "at_most": 0.05, "reached": True}
    assert bars["ahead of the best peer on photographs"]["reached"] is True


def test_the_worst_problem_has_ten_runs() -> None:
    records = [study_record("digits one", seed, 0.8) for seed in range(9)]
    good = [study_record("digits two", seed, 0.8) for seed in range(10)]
    for record in good[:4]:
        record["grades"][2]["right"] = 37  # at 0.95
    promises = summarise([*records, *good])["promise"]
    assert promises["0.95"]["worst"] == {"problem": "digits two", "kept": 0.6}
    assert promises["0.95"]["runs"] == 19


def test_a_first_contact_names_seen_classes_that_get_no_label() -> None:
    digits = load_digits_pool()
    pool = digits._replace(names=tuple("abcdefghij"))
    record = meet(FirstContact("digits", 150, 40), pool, 100)
    assert (record["labels"], record["unlabeled"]) == (40, 110)
    assert sum(one["labels"] for one in record["classes"].values()) == 40
    lowest = record["grades"][0]
    assert sum(one["given"] for one in record["classes"].values()) == lowest["given"]
    without = [
        name for name, one in record["classes"].items() if one["labels"] >= 3 and not one["given"]
    ]
    assert record["without"] == without
    other = record | {"without": ["a", "b"]}
    found = summarise_contacts([record | {"without": []}, other])
    assert (found["draws"], found["with_every_class"]) == (2, 1)
    assert found["without"] == {"a": 1, "b": 1}
    middle = record["grades"][1]["given"]
    assert found["quartiles"] == [middle] * 3
    assert found["with_enough_labels"] == 2 * (lowest["given"] >= 100)


def test_kernels_are_judged_by_the_posterior_of_an_engine() -> None:
    points = points_of(cut(SMALL, load_digits_pool(), seed=0), seed=0)
    kernel, noise_std = PAPER
    targets = F.one_hot(points.codes, 10).double()
    engine = ExactGP(40, 64, 10, kernel=kernel, noise_std=noise_std)
    engine.replace(torch.arange(40), points.labelled, targets)
    mean, left_out = posterior_means(points, targets, kernel, noise_std)
    torch.testing.assert_close(mean, engine.mean(points.judged), rtol=0, atol=1e-9)
    torch.testing.assert_close(left_out, engine.leave_one_out().mean, rtol=0, atol=1e-9)
    found = judge(points, targets, kernel, noise_std)
    truth = torch.from_numpy(points.truth)
    expected = F.cross_entropy(found["logit_scale"] * mean, truth)
    assert found["nll"] == pytest.approx(float(expected))
    accuracy = balanced_accuracy(points.truth, mean.argmax(dim=1).numpy())
    assert found["balanced_accuracy"] == pytest.approx(accuracy)


def _label_count(problem: Problem, pool: Pool, seed: int) -> dict[str, Any]:
    labels = int((cut(problem, pool, seed).codes >= 0).sum())
    return {"problem": problem.name, "seed": seed, "labels": labels}


def test_a_study_resumes_where_it_was_stopped(tmp_path: Path) -> None:
    loads = 0

    def load() -> Pool:
        nonlocal loads
        loads += 1
        return load_digits_pool()

    def run(seeds: int) -> list[dict[str, Any]]:
        how: dict[str, Any] = {"measure": _label_count, "summarise": len, "advance": lambda _: None}
        return run_study([SMALL], {"digits": load}, range(seeds), tmp_path / "study.json", **how)

    run(1)
    records = run(2)
    assert [record["seed"] for record in records] == [0, 1]
    assert json.loads((tmp_path / "study.json").read_text())["records"] == records
    assert run(2) == records
    assert loads == 2, "all was there the third time"
    assert (read_seeds("5"), read_seeds("100:110")) == (range(5), range(100, 110))


@pytest.mark.nightly
def test_two_processes_measure_what_one_does(tmp_path: Path) -> None:
    records = [
        run_study(
            [SMALL, Problem("digits", "A", 5, 9)],
            {"digits": load_digits_pool},
            range(7, 9),
            tmp_path / f"{jobs}.json",
            measure=_label_count,
            summarise=lambda records: {"cells": len(records)},
            advance=lambda _: None,
            jobs=jobs,
        )
        for jobs in (1, 2)
    ]
    assert sorted(map(str, records[0])) == sorted(map(str, records[1]))
    assert json.loads((tmp_path / "2.json").read_text())["summary"] == {"cells": 4}


# benchmarks/field.py


def record(
    problem: str, method: str, seed: int, linear: float, gp: float | None = None, **more: Any
) -> dict[str, Any]:
    """The figures of a run whose groups all have the accuracy of the whole."""
    scores = {"linear": linear} | ({} if gp is None else {"gp": gp})
    groups = ("balanced_accuracy", "few", "medium", "many")
    heads = {head: {"ece": 0.1} | dict.fromkeys(groups, value) for head, value in scores.items()}
    usual = {"chosen_head": "linear", "ece": 0.1, "seconds": 1.0, "heads": heads}
    halfway = {"linear": linear - 0.01}
    return {"problem": problem, "method": method, "seed": seed, "halfway": halfway} | usual | more


def test_gains_are_paired_by_problem_base_and_seed() -> None:
    coverage = {"coverage": 0.5, "least_coverage": 0.3, "most_coverage": 0.7}
    found = summarise_field(
        [
            record("digits_a50", "supervised", 0, 0.4),
            record("digits_a50", "fixmatch", 0, 0.5),
            record("digits_a50", "fixmatch+gp_fixed", 0, 0.5, 0.4),
            record("digits_a50", "fixmatch+gp", 0, 0.6, 0.8, chosen_head="gp", **coverage),
            record("digits_b4", "simmatch", 0, 0.7),
            record("digits_b4", "simmatch+gp", 0, 0.65, 0.7),
            record("digits_b4", "simmatch+gp", 1, 0.9, 0.9),  # without a pair
            record("digits_o10", "fixmatch", 0, 0.5),
            record("digits_o10", "fixmatch+gp", 0, 0.7, 0.7, **coverage),
            record("digits_b4", "fixmatch+saw", 0, 0.1),
            record("digits_b4", "fixmatch+saw+gp", 0, 0.3, 0.3),
        ]
    )
    linear = found["gain"]["linear"]
    assert linear["A"]["mean_gain"] == pytest.approx(0.1)
    assert linear["B"]["mean_gain"] == pytest.approx(-0.05)
    assert (linear["ABCRO"]["wins"], linear["ABCRO"]["losses"]) == (2, 1)
    assert linear["O"]["mean_gain"] == pytest.approx(0.2)
    assert linear["R"]["mean_gain"] is None
    assert found["gain"]["chosen"]["A"]["mean_gain"] == pytest.approx(0.3)
    assert found["gain"]["better"]["B"]["mean_gain"] == pytest.approx(0.0)
    assert found["gain_on_addons"]["linear"]["B"]["mean_gain"] == pytest.approx(0.2)
    assert found["gain_over_fixed"]["chosen"]["digits"]["mean_gain"] == pytest.approx(0.3)
    assert found["over_labels_only"]["digits_a50"] == pytest.approx(0.4)
    assert found["gain_by_problem"]["linear"]["mnist_a50"] is None
    assert found["head_within_a_point"] == pytest.approx(4 / 5)
    assert found["coverage"] == {"least": 0.3, "most": 0.7, "late": 0.5}
    assert found["second_half_of_bases"] == pytest.approx(0.01)
    assert markdown([["", "A"], ["x", "1.0"]]) == "|  | A |\n| --- | ---: |\n| x | 1.0 |\n"


def test_the_grid_names_its_best_pair_and_how_far_the_tuned_one_is_behind() -> None:
    coverage = {"least_coverage": 0.5, "most_coverage": 0.75}
    records = [
        record("digits_a50", "fixmatch", 100, 0.5),
        record("digits_a50", "fixmatch+gp", 100, 0.6, 0.7, **coverage),
        *(record("digits_a50", f"fixmatch+{name}", 100, 0.3) for name in GRID),
        record("digits_a50", "fixmatch+gp_0.3_11", 101, 0.92),
        record("mnist_a50", "fixmatch", 100, 0.5),
    ]
    heading, row = grid_rows(records)
    cells = dict(zip(heading[1:], row[1:], strict=True))
    assert (cells["FixMatch"], cells["SemiGPC"], cells["best of 16"]) == ("50.0", "60.0", "61.0")
    assert (cells["l^2"], cells["lambda"], cells["behind it"]) == ("0.3", "11", "+1.0")
    assert (cells["mean of 16"], cells["worst"]) == ("31.9", "30.0")
    assert cells["coverage"] == "50.0 to 75.0"


def test_precision_is_weighted_by_what_was_accepted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(study_experiment("digits_b4", "fixmatch+gp", roots={}, times=20 / 600), run)
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    late = [entry for entry in entries if entry["kind"] == "pseudo" and entry["step"] > 15]
    accepted = [sum(entry["accepted_counts"]) for entry in late]
    right = sum((entry["precision"] or 0) * n for entry, n in zip(late, accepted, strict=True))
    believed = sum(sum(entry["believed_counts"]) for entry in late)
    found = figures(run)
    assert found["coverage"] == pytest.approx(sum(accepted) / believed)
    if sum(accepted):
        assert found["precision"] == pytest.approx(right / sum(accepted))
        assert 0 <= found["calibration_error"] <= 1
