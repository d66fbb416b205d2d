"""What abstaining goes by: a probability, its expectation over the posterior, or the variance."""

from typing import Any

import numpy as np
import pytest
import torch

from semigpc import SemiGPClassifier
from tests.estimator.long_tail import blobs
from tests.gp.test_certainty import brute_force

KINDS = ("probability", "expected", "variance")


def fitted(**options: Any) -> tuple[SemiGPClassifier, Any, Any]:
    X, codes, truth = blobs(counts=(20, 8, 3))
    return SemiGPClassifier(random_state=0, **options).fit(X, codes), X[codes < 0], truth[codes < 0]


def test_only_the_confidence_differs() -> None:
    answers = {kind: model.answer(rows) for kind in KINDS for model, rows, _ in [fitted(confidence=kind)]}
    plain = answers["probability"]
    for found in answers.values():
        assert (found.codes == plain.codes).all()
        assert found.variance is not None
        assert plain.variance is not None
        assert np.array_equal(found.variance, plain.variance)
        assert np.array_equal(found.scores, plain.scores)
    assert np.array_equal(fitted()[0].answer(fitted()[1]).confidence, plain.confidence), "the default"
    assert plain.variance is not None
    np.testing.assert_allclose(answers["variance"].confidence, 1 - plain.variance, atol=1e-6)


@pytest.mark.parametrize("prior", ["balanced", "estimated"])
def test_the_expected_confidence_is_that_of_many_draws(prior: str, generator: torch.Generator) -> None:
    model, rows, _ = fitted(confidence="expected", class_prior=prior, length_scale=1.0, scaling="unit", self_training=0)
    rows = rows[::12]
    points = model._scaling(rows)
    mean = model._memory._view.posterior.score(points).mean.double() / model._memory.scales()
    logits = model.confidence_scale_ * mean + torch.from_numpy(model.class_shares_).log()
    variance = torch.from_numpy(model.predict_variance(rows)).double()
    spread = (model.confidence_scale_ * variance.sqrt()).unsqueeze(1).expand_as(logits)
    answers = model.answer(rows)
    expected = brute_force(logits, spread, torch.from_numpy(answers.codes), generator)
    np.testing.assert_allclose(answers.confidence, expected.numpy(), atol=0.015)


@pytest.mark.parametrize("kind", ["expected", "variance"])
def test_a_row_unlike_all_labelled_ones_gets_no_label(kind: str) -> None:
    model, rows, _ = fitted(confidence=kind, abstain=0.5, scaling="none")
    far = rows[:5] + 1000
    assert (model.predict(far) == -1).all()
    assert (model.predict(rows) >= 0).mean() > 0.8
    assert (model.answer(far, variance=False).confidence < 0.5).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_promised_precision_is_kept_by_every_confidence(kind: str) -> None:
    rng = np.random.default_rng(1)
    truth = rng.integers(3, size=500)
    X = (1.5 * np.eye(3, 6)[truth] + 0.7 * rng.standard_normal((500, 6))).astype(np.float32)
    codes = np.where(np.arange(500) < 120, truth, -1)
    options: dict[str, Any] = {"confidence": kind, "target_precision": 0.95}
    model = SemiGPClassifier(random_state=0, **options).fit(X, codes)
    found = model.predict(X[120:])
    given = found >= 0
    right = (found[given] == truth[120:][given]).mean() if given.any() else 1.0
    assert right >= 0.9, "three standard deviations of 200 rows below what was promised"
    if kind != "variance":
        assert given.mean() > 0.1
