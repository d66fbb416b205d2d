"""Notes about pseudo-labels that are of no use, and the scales of the GP in the lines of a run."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from semigpc.data import ImageSet, Splits
from semigpc.io.images import ArrayImages
from semigpc.refiners import GaussianProcessRefiner, GPConfig
from semigpc.training import Listener, RunFolder, train
from semigpc.training.evaluate import Evaluation
from semigpc.training.metrics import METRIC, Array, Figures, Head, PseudoFigures
from semigpc.training.run_folder import HEADS
from semigpc.training.run_log import (
    CHECK_LABELS,
    CHECK_STEPS,
    PseudoLabelChecks,
    RunLog,
    collapsed_classes,
)
from semigpc.types import Batch, PseudoLabels, StepOutput
from tests.training.small_runs import entries, small_run

LABELED = np.full(10, 4)
ROWS = 64  # pseudo-labels a step
SCALES = {"length_scale": 0.3, "logit_scale": 11.0}


def long_tail(ratio: float, n_classes: int = 10) -> Array:
    shares = ratio ** (-np.arange(n_classes) / (n_classes - 1))
    return np.asarray(shares / shares.sum())


def balanced_splits() -> Splits:
    labels = np.repeat(np.arange(10), LABELED)
    images = ArrayImages(np.zeros((len(labels), 1, 1, 3), dtype=np.uint8))
    file_names = [str(i) for i in range(len(labels))]
    unlabeled = ImageSet(images, np.full(len(labels), -1), file_names)
    labeled = ImageSet(images, labels, file_names)
    names = tuple("abcdefghij")
    return Splits(labeled=labeled, unlabeled=unlabeled, unlabeled_truth=labels, class_names=names)


def checks(algorithm: str = "fixmatch", refiner: str = "gp", **fixed: Any) -> PseudoLabelChecks:
    scales = SCALES | fixed if refiner == "gp" else {}
    settings = [f"refiner.{name}={scale}" for name, scale in scales.items()]
    return PseudoLabelChecks(small_run(algorithm, refiner, *settings), balanced_splits())


def window(coverage: float, *, steps: int = 50, shares: Any = None) -> PseudoFigures:
    believed = ROWS * steps * (np.full(10, 0.1) if shares is None else np.array(shares))
    counts = believed.astype(int).tolist()
    known = {"window": steps, "coverage": coverage, "believed_counts": counts}
    return cast("PseudoFigures", known)  # the others are not looked at


def notes(
    of: PseudoLabelChecks, *windows: PseudoFigures, scales: dict[str, float] | None = None
) -> list[str]:
    return [note for one in windows for note in of.add(one, SCALES if scales is None else scales)]


def test_the_summary_stands_for_the_best_step_and_the_head_chosen_there(tmp_path: Path) -> None:
    log = RunLog(RunFolder(tmp_path), small_run(), balanced_splits(), Listener())
    steps: list[tuple[int, Head, float]] = [(10, "gp", 0.8), (20, "linear", 0.6)]
    for step, head, accuracy in steps:
        results: list[Figures] = [
            {"part": "validation", "head": each, "judged": each == head, METRIC: accuracy}
            for each in HEADS
        ]
        evaluation = Evaluation(results, head, {head: float(step)}, None)
        assert log.evaluated(step, evaluation, last=False, seconds=0) == (step == 10)
    log.finish(20, "linear", {})
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["checkpoint"], summary["head"]) == ("best", "gp")
    assert summary["temperatures"] == {"gp": 10.0}
    assert summary["results"]["best_on_validation"]["step"] == 10


@pytest.mark.parametrize(
    ("algorithm", "accuracy", "noted"),
    [
        ("fixmatch", 0.54, True),
        ("fixmatch", 0.7, False),
        ("fixmatch", None, False),
        ("supervised", 0.54, False),
    ],
)
def test_a_run_that_is_mostly_wrong_says_that_unlabelled_images_may_not_help(
    algorithm: str, accuracy: float | None, noted: bool, tmp_path: Path
) -> None:
    log = RunLog(RunFolder(tmp_path), small_run(algorithm, "none"), balanced_splits(), Listener())
    evaluation = Evaluation([], "linear", {"linear": 1.0}, None, accuracy)
    for last in (False, True):
        log.evaluated(10, evaluation, last=last, seconds=0)
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    found = [entry["message"] for entry in map(json.loads, lines)]
    expected = ["By the run's own estimate, about 54% of its labels are right"] if noted else []
    assert [note.partition(":")[0] for note in found] == expected


def test_two_hundred_steps_without_an_accepted_label_are_noted_once_with_what_to_change() -> None:
    check, nothing = checks(), window(0.0)
    assert notes(check, *[nothing] * 3) == []
    (note,) = notes(check, *[nothing] * 9)
    assert note.startswith("Fewer than 1 in 1000 pseudo-labels were accepted in the last 200 steps")
    assert note.endswith(
        "raise refiner.length_scale (now 0.3; auto chooses one), "
        "raise refiner.logit_scale (now 11; auto chooses one), "
        "lower algorithm.threshold (now 0.95) or raise train.steps."
    )


def test_what_auto_chose_is_not_the_reason_that_nothing_is_accepted_and_smoothing_may_be() -> None:
    (note,) = notes(checks("simmatch", length_scale="auto", logit_scale="auto"), *[window(0.0)] * 4)
    assert note.endswith(
        "To accept some, raise algorithm.smoothing (now 0.9), lower algorithm.threshold (now 0.95) "
        "or raise train.steps."
    )


def test_accepted_labels_begin_the_two_hundred_steps_anew() -> None:
    nothing = window(0.0)
    assert notes(checks(), *[nothing] * 3, window(0.01), *[nothing] * 3) == []
    assert len(notes(checks(), window(0.01), *[nothing] * 4)) == 1


def test_every_label_accepted_is_noted_where_the_algorithm_has_a_threshold() -> None:
    everything = [window(1.0)] * 4
    (note,) = notes(checks(), *everything)
    assert note.startswith("All but 1 in 1000 pseudo-labels were accepted in the last 200 steps")
    assert note.endswith(
        "lower refiner.logit_scale (now 11; auto chooses one) or raise algorithm.threshold "
        "(now 0.95)."
    )
    assert notes(checks(), *[window(0.99)] * 8) == []
    for algorithm in ("remixmatch", "freematch"):
        assert notes(checks(algorithm), *everything) == []


def test_scales_that_the_gp_chose_are_named_as_such() -> None:
    (note,) = notes(checks(logit_scale="auto"), *[window(1.0)] * 4)
    assert "lower refiner.logit_scale (now 11, chosen by auto)" in note


def test_without_a_gp_the_notes_name_none_of_its_settings() -> None:
    (note,) = notes(checks("fixmatch", "none"), *[window(0.0)] * 4, scales={})
    assert note.endswith(
        "To accept some, lower algorithm.threshold (now 0.95) or raise train.steps."
    )
    (note,) = notes(checks("freematch", "none"), *[window(0.0)] * 4, scales={})
    assert note.endswith("To accept some, raise train.steps.")
    (note,) = notes(checks("fixmatch", "none"), *[window(1.0)] * 4, scales={})
    assert note.endswith("raise algorithm.threshold (now 0.95).")


def test_pseudo_labels_of_few_classes_are_noted_with_the_class_that_has_most() -> None:
    collapsed = [0.02] * 2 + [0.93] + [0.03] + [0.0] * 6
    (note,) = notes(checks(), *[window(0.5, shares=collapsed)] * 8)
    assert "in the last 200 steps 6 of 10 classes had less than a tenth of their share" in note
    assert "93.0% of the pseudo-labels were 'c'" in note
    assert "change refiner.length_scale (now 0.3" in note
    (note,) = notes(checks("remixmatch", "none"), *[window(1.0, shares=collapsed)] * 4, scales={})
    assert "refiner=gp" in note


def test_few_pseudo_labels_say_nothing_about_classes() -> None:
    of_one = window(0.5, steps=CHECK_STEPS)
    of_one["believed_counts"] = [CHECK_LABELS * 10 - 1] + [0] * 9
    assert notes(checks(), of_one) == []
    assert len(notes(checks(), of_one, of_one)) == 1


@pytest.mark.parametrize(
    ("ratio", "n_classes"), [(1, 10), (100, 2), (100, 3), (100, 10), (1000, 10), (1000, 200)]
)
def test_right_labels_of_a_long_tail_are_no_collapse_whether_the_labels_share_it_or_not(
    ratio: float, n_classes: int
) -> None:
    tail = long_tail(ratio, n_classes)
    assert collapsed_classes(1e6 * tail, np.full(n_classes, 4)) is None
    assert collapsed_classes(1e6 * tail, np.ceil(1e3 * tail)) is None
    assert collapsed_classes(1e6 * tail[::-1], np.ceil(1e3 * tail)) is None


@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_one_class_for_everything_is_a_collapse(n_classes: int) -> None:
    assert collapsed_classes(1000 * np.eye(n_classes)[1], np.full(n_classes, 4)) == n_classes - 1


def test_a_run_notes_once_that_its_gp_accepts_nothing_also_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Listener):
        def __init__(self, at: int) -> None:
            self.at = at

        def step(self, step: int) -> None:
            if step == self.at:
                raise InterruptedError

    monkeypatch.setattr("semigpc.training.run_log.CHECK_STEPS", 8)
    useless = ("refiner.length_scale=1e-3", "refiner.logit_scale=7")
    steps = ("train.steps=22", "train.eval_steps=22", "train.checkpoint_steps=7")
    experiment = small_run("fixmatch", "gp", *useless, *steps)
    for at in (9, 16):  # resumed from step 7, before the note, and from step 14, after it
        with pytest.raises(InterruptedError):
            train(experiment, tmp_path, resume=True, listener=Killed(at))
    train(experiment, tmp_path, resume=True)
    noted = entries(tmp_path, "note")
    about = [line["step"] for line in noted if "Fewer than 1 in 1000" in line["message"]]
    assert about == [12], "4 steps of warm-up, then 8 without a label"
    assert not any("far from" in line["message"] for line in noted), "no label, no class"
    trained = entries(tmp_path, "train")
    assert {(line["length_scale"], line["logit_scale"]) for line in trained} == {(1e-3, 7.0)}


def test_scales_that_are_tensors_are_logged_as_they_are_and_not_as_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scales = {"length_scale": torch.tensor(0.25), "logit_scale": 12.0}
    monkeypatch.setattr(GaussianProcessRefiner, "scales", scales)
    journal = RunLog(RunFolder(tmp_path), small_run(), balanced_splits(), Listener())
    journal.follow(GaussianProcessRefiner(GPConfig(buffer_size=10), 2, 10), 0)
    batch = Batch(torch.zeros(1), torch.zeros(1), torch.zeros(1), {}, torch.arange(4))
    for loss in (1.0, 2.0):
        pseudo = PseudoLabels(torch.full((4, 10), 0.1), torch.ones(4))
        journal.record(0, StepOutput(torch.tensor(loss), {}, pseudo), batch, rate=0.1, waited=0.0)
    journal.log(2)
    line = entries(tmp_path)[0]
    assert (line["kind"], line["loss"]) == ("train", 1.5)
    assert (line["length_scale"], line["logit_scale"]) == (0.25, 12.0)
    assert scales == {"length_scale": torch.tensor(0.25), "logit_scale": 12.0}
