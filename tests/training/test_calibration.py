"""The head that is judged, and the confidence that people read."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from semigpc.gp.certainty import reliability
from semigpc.refiners import GaussianProcessRefiner, GPConfig
from semigpc.training import train
from semigpc.training.calibration import (
    RANGE,
    calibrated,
    from_halves,
    from_labels,
    halved,
    predicted_by_halves,
    temperature_for,
    tempered,
)
from semigpc.training.evaluate import judged_head
from semigpc.training.inference import load_run
from semigpc.training.metrics import Head
from semigpc.training.run_folder import RunFolder, judged_result, read_checkpoint
from tests.training.small_runs import small_run

Floats = NDArray[np.float64]


def gp(*, entries: int = 3, **options: object) -> GaussianProcessRefiner:
    refiner = GaussianProcessRefiner(GPConfig(buffer_size=8, warmup_steps=1, **options), 2, 3)  # type: ignore[arg-type]
    refiner.remember(torch.eye(3, 2)[:entries], torch.arange(3)[:entries])
    refiner.probs(torch.eye(3, 2))
    return refiner


# The head -----------------------------------------------------------------------------------------


def test_without_validation_the_gp_is_judged_unless_an_addon_answers() -> None:
    assert judged_head(gp()) == "gp"
    assert judged_head(gp(), addon_answers=True) == "linear"
    assert judged_head(None) == "linear"
    fresh = GaussianProcessRefiner(GPConfig(buffer_size=8), 2, 3)
    assert judged_head(fresh) == "linear", "its buffer is empty"
    fresh.remember(torch.eye(3, 2), torch.arange(3))
    assert judged_head(fresh) == "linear", "it has seen no view to tune its scales by"


def test_validation_decides_and_a_tie_does_not() -> None:
    assert judged_head(gp(), {"linear": 0.6, "gp": 0.5}) == "linear"
    assert judged_head(gp(), {"linear": 0.4, "gp": 0.5}, addon_answers=True) == "gp"
    assert judged_head(gp(), {"linear": 0.5, "gp": 0.5}) == "gp"


@pytest.mark.parametrize("head", ["linear", "gp"])
def test_a_setting_overrules_the_rule_and_a_gp_that_classifies_is_always_judged(head: Head) -> None:
    worse: dict[Head, float] = {"linear": 0.1, "gp": 0.1, head: 0.0}
    assert judged_head(gp(eval_head=head), worse) == head
    assert judged_head(gp(role="classifier", eval_head=head), {"linear": 1.0, "gp": 0.0}) == "gp"


# Temperatures -------------------------------------------------------------------------------------


def overconfident(n: int, seed: int = 0) -> tuple[Floats, NDArray[np.int64]]:
    """Probabilities (n, 4) with logits five times as large as the truth of the labels (n,)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, 4))
    labels = (logits + rng.gumbel(size=(n, 4))).argmax(axis=1)
    return tempered(np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), 0.2), labels


def error(probs: Floats, labels: NDArray[np.int64]) -> float:
    return reliability(probs.max(axis=1), probs.argmax(axis=1) == labels, bins=15)[1]


def test_the_calibration_error_of_an_overconfident_network_falls_and_no_decision_changes() -> None:
    temperature = from_labels({"linear": overconfident(500)[0]}, overconfident(500)[1])["linear"]
    assert 3.5 < temperature < 7
    probs, labels = overconfident(4000, seed=1)
    scaled = tempered(probs, temperature)
    assert error(probs, labels) > 0.25
    assert error(scaled, labels) < 0.05
    np.testing.assert_array_equal(probs.argsort(axis=1), scaled.argsort(axis=1))
    np.testing.assert_allclose(scaled.sum(axis=1), 1)


def test_a_temperature_stays_in_range_also_for_certain_probabilities() -> None:
    certain = np.eye(3)[[0, 1, 2, 0]]
    assert temperature_for(certain, 0.2) == RANGE[1]
    flat = np.full((4, 3), 1 / 3)
    assert temperature_for(flat, 0.9) == RANGE[0]
    sure = from_labels({"gp": np.array([[0.9, 0.1]] * 3)}, np.zeros(3, dtype=np.int64))["gp"]
    # (3 + 1) / (3 + 2), not 1.
    assert tempered(np.array([[0.9, 0.1]]), sure)[0, 0] == pytest.approx(0.8, abs=1e-3)


def test_halves_share_no_label_but_that_of_a_class_with_one() -> None:
    labels = np.array([0] * 7 + [1] + [2] * 2)
    halves = halved(labels, 3, seed=0)
    assert halves is not None
    assert set(halves[0]) & set(halves[1]) == {7}
    assert sorted(set(halves[0]) | set(halves[1])) == list(range(10))
    assert [sorted(np.bincount(labels[half])) for half in halves] == [[1, 1, 4], [1, 1, 3]]
    assert halved(np.arange(5), 5, seed=0) is None


def test_halves_count_rare_classes_as_much_as_frequent_ones() -> None:
    """Of 90 images of class 0 all are right, of 10 of class 1 none: the agreement is a half, and
    0.99 the confidence.

    That is an error of 0.255, to which 0.255^2 of the rest are added.
    """
    truth = np.repeat([0, 1], [90, 10])
    probs = np.full((100, 2), [0.99, 0.01])
    temperature = from_halves({"linear": probs}, (truth, truth), strict=True)["linear"]
    expected = (1 - 0.255) * (1 - 0.255**2)
    assert tempered(probs, temperature)[0, 0] == pytest.approx(expected, abs=1e-3)
    alone = from_halves({"gp": probs}, (truth, truth), strict=True)["gp"]
    assert tempered(probs, alone)[0, 0] < 0.6, "without a linear head the agreement decides"


def test_strict_halves_believe_only_what_both_agree_on() -> None:
    probs = np.repeat([[0.97, 0.01, 0.01, 0.01], [0.01, 0.97, 0.01, 0.01]], [30, 10], axis=0)
    halves = (np.repeat([0, 1], [30, 10]), np.repeat([0, 1], [34, 6]))
    mild, strict = (from_halves({"gp": probs}, halves, strict=flag)["gp"] for flag in (False, True))
    assert strict > mild > 1


def test_halves_that_agree_do_not_make_a_head_surer_than_it_is() -> None:
    truth = np.zeros(20, dtype=np.int64)
    linear, own = (np.tile(row, (20, 1)) for row in ([0.6, 0.4], [0.7, 0.3]))
    probs: dict[Head, Floats] = {"linear": linear, "gp": own}
    assert from_halves(probs, (truth, truth), strict=True) == {"linear": 1.0, "gp": 1.0}


def test_no_agreement_leaves_a_head_as_sure_as_a_guess() -> None:
    truth = np.ones(20, dtype=np.int64)
    probs = np.tile([0.9, 0.1], (20, 1))
    assert from_halves({"gp": probs}, (truth, truth), strict=False)["gp"] == RANGE[1]


def test_the_gp_reports_a_third_of_the_linear_head_where_both_are_calibrated() -> None:
    linear, own = np.array([[0.5, 0.5]]), np.array([[0.8, 0.2]])
    reported = calibrated({"linear": linear, "gp": own}, {"linear": 2.0, "gp": 1.0})
    np.testing.assert_allclose(reported["gp"], [[0.7, 0.3]])
    np.testing.assert_allclose(reported["linear"], linear)
    alone: list[dict[Head, float]] = [{}, {"gp": 1.0}, {"linear": 1.0}]
    for temperatures in alone:
        reported = calibrated({"linear": linear, "gp": own}, temperatures)
        np.testing.assert_allclose(reported["gp"], own)


def test_two_gps_agree_on_images_that_are_easy_and_not_on_others() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = np.repeat(np.arange(3), 10)
    centres = 6 * torch.eye(3, 8)

    def agreement(spread: float) -> float:
        features = centres[labels] + spread * torch.randn(30, 8, generator=generator)
        queries = centres.repeat(50, 1) + spread * torch.randn(150, 8, generator=generator)
        halves = halved(labels, 3, seed=1)
        assert halves is not None
        first, second = predicted_by_halves(features, labels, halves, queries, 3)
        return float((first == second).mean())

    assert agreement(0.5) > 0.98
    assert agreement(20.0) < 0.7


# A run --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("validation", [0, 3])
def test_a_run_remembers_its_head_and_its_temperatures(validation: int, tmp_path: Path) -> None:
    steps = ("train.steps=12", "train.eval_steps=6", "train.checkpoint_steps=6")
    held_out = f"data.validation_per_class={validation}"
    summary = train(small_run("fixmatch", "gp", *steps, held_out), tmp_path)
    folder = RunFolder(tmp_path)
    state = read_checkpoint(folder.best if validation else folder.last).state["journal"]
    assert (state["head"], state["temperatures"]) == (summary["head"], summary["temperatures"])
    assert set(summary["temperatures"]) == {"linear", "gp"}
    result = judged_result(summary["results"])
    assert result is not None
    assert result["head"] == summary["head"]
    if not validation:
        assert summary["head"] == "gp"

    run = load_run(tmp_path)
    assert (run.head, run.temperatures) == (summary["head"], summary["temperatures"])
    assert run.heads("auto")[0] == run.head
    run, images = run.part("test")
    probs = run.predict(images).probs[run.head]
    assert error(probs, images.labels) == pytest.approx(result["ece"], abs=1e-6)
    object.__setattr__(run, "temperatures", {})
    raw = run.predict(images).probs
    np.testing.assert_allclose(probs, calibrated(raw, summary["temperatures"])[run.head], atol=1e-9)
    assert np.abs(probs - raw[run.head]).max() > 1e-3


def test_a_gp_that_classifies_is_calibrated_alone(tmp_path: Path) -> None:
    """Nothing trains the linear head then, and it takes no part in what the GP reports."""
    steps = ("train.steps=8", "train.eval_steps=8", "train.checkpoint_steps=8")
    experiment = small_run("fixmatch", "gp", *steps, "refiner.role=classifier")
    assert set(train(experiment, tmp_path)["temperatures"]) == {"gp"}
