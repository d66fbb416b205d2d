from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score, precision_score

from semigpc.gp.certainty import reliability
from semigpc.training.metrics import Array, PseudoLabelStats, class_groups, classification_metrics
from semigpc.types import PseudoLabels

GROUPS = {"many": [0, 1], "medium": [2], "few": [3]}


def draws(m: int = 200, n_classes: int = 4) -> tuple[Array, Array]:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, n_classes, m)
    probs = generator.dirichlet(np.ones(n_classes), m)
    probs[np.arange(m), labels] += 0.4
    return probs / probs.sum(axis=1, keepdims=True), labels


def test_metrics_agree_with_scikit_learn() -> None:
    probs, labels = draws()
    predicted = probs.argmax(axis=1)
    figures = classification_metrics(probs, labels, GROUPS)
    assert figures["top1"] == pytest.approx((predicted == labels).mean())
    assert figures["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert figures["macro_f1"] == pytest.approx(f1_score(labels, predicted, average="macro"))
    precision = precision_score(labels, predicted, average="macro")
    assert figures["macro_precision"] == pytest.approx(precision)
    assert np.array_equal(figures["confusion"], confusion_matrix(labels, predicted))
    assert figures["top5"] == 1  # of four classes
    recall = np.array(figures["per_class_recall"], float)
    assert figures["groups"]["many"] == pytest.approx(recall[:2].mean())


def test_a_class_without_images_has_no_figure_and_does_not_count() -> None:
    probs = np.array([[0.9, 0.05, 0.05, 0], [0.8, 0.1, 0.1, 0], [0.2, 0.7, 0.1, 0]])
    figures = classification_metrics(probs, np.array([0, 1, 1]), GROUPS)
    assert figures["balanced_accuracy"] == pytest.approx((1 + 0.5) / 2)
    assert figures["per_class_recall"] == [1, 0.5, None, None]
    assert figures["per_class_precision"] == [0.5, 1, None, None]
    assert figures["groups"]["few"] is None


def test_top5_counts_the_five_largest() -> None:
    probs = np.tile(np.linspace(0.2, 0.01, 10), (10, 1))
    figures = classification_metrics(probs, np.arange(10), {"many": list(range(10))})
    assert figures["top5"] == pytest.approx(0.5)


def test_groups_are_thirds_by_labels_then_by_unlabelled_images() -> None:
    def groups(*counts: Any) -> list[list[int]]:
        return list(class_groups(*map(np.array, counts)).values())

    assert list(class_groups(np.array([1, 2, 3]))) == ["many", "medium", "few"]
    assert groups([1, 9, 5, 7, 3, 2]) == [[1, 3], [2, 4], [0, 5]]
    assert groups([4, 4, 4], [1, 3, 2]) == [[1], [2], [0]]
    assert groups([4, 4, 4]) == [[], [], []], "no class is rarer than another"


def test_pseudo_label_statistics_of_a_hand_made_window() -> None:
    stats = PseudoLabelStats(3, np.array([0, 1, 2, -1]))
    probs = torch.eye(3)[torch.tensor([0, 2, 2, 1])]
    stats.add(PseudoLabels(probs, torch.tensor([True, True, False, True])), torch.arange(4))
    window = stats.flush()
    assert window == {
        "window": 1,
        "coverage": 0.75,
        "precision": 0.5,  # of the two whose truth is known
        "ece": 0.5,
        "ece_all": pytest.approx(1 / 3),
        "believed_counts": [1, 1, 2],
        "accepted_counts": [1, 1, 1],
        "true_counts": [1, 1, 1],
        "per_class_coverage": [1, 1, 0],
        "per_class_precision": [1, None, 0],
    }
    assert stats.flush() is None


def test_without_truth_there_is_no_precision() -> None:
    stats = PseudoLabelStats(2, np.full(4, -1))
    stats.add(PseudoLabels(torch.full((4, 2), 0.5), torch.ones(4)), torch.arange(4))
    window = stats.flush()
    assert window is not None
    assert window["precision"] is None
    needs_truth = ("true_counts", "per_class_precision", "ece", "ece_all")
    assert all(dict(window)[key] is None for key in needs_truth)
    assert window["coverage"] == 1


def test_calibration_errors_of_pseudo_labels_are_those_of_all_steps_taken_together() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(-1, 4, 50)
    stats, seen = PseudoLabelStats(4, truth), []
    for _ in range(3):
        probs = rng.dirichlet(np.full(4, 0.4), 40)
        mask = rng.random(40) < 0.6
        index = rng.integers(0, 50, 40)
        pseudo = PseudoLabels(torch.from_numpy(probs), torch.from_numpy(mask))
        stats.add(pseudo, torch.from_numpy(index))
        true = truth[index]
        seen.append((probs.max(axis=1), probs.argmax(axis=1) == true, true >= 0, mask))
    confidence, right, known, mask = (np.concatenate(parts) for parts in zip(*seen, strict=True))
    window = stats.flush()
    assert window is not None
    for error, rows in ((window["ece"], known & mask), (window["ece_all"], known)):
        assert error == pytest.approx(reliability(confidence[rows], right[rows], bins=15)[1])
    assert window["ece"] != pytest.approx(window["ece_all"], abs=1e-3)


def test_calibration_errors_are_none_where_nothing_was_accepted() -> None:
    stats = PseudoLabelStats(2, np.zeros(4, dtype=np.int64))
    stats.add(PseudoLabels(torch.tensor([[0.9, 0.1]] * 4), torch.zeros(4)), torch.arange(4))
    window = stats.flush()
    assert window is not None
    assert window["ece"] is None
    assert window["ece_all"] == pytest.approx(0.1)
