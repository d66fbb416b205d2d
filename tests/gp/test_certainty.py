"""How sure a posterior is, against brute force."""

import numpy as np
import pytest
import torch
from torch import Tensor

from semigpc.gp import RBF, ExactGP
from semigpc.gp.certainty import class_scales, expected_probability, explained_share, reliability
from tests.gp.streams import assert_near


def brute_force(
    logits: Tensor, spread: Tensor, classes: Tensor, generator: torch.Generator
) -> Tensor:
    """The mean over 100 000 draws."""
    found = []
    for z, s, c in zip(logits, spread, classes, strict=True):
        draws = torch.randn(100_000, len(z), generator=generator, dtype=torch.float64)
        found.append(torch.softmax(z + s * draws, dim=1)[:, c].mean())
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3, 10, 40])
def test_the_expected_probability_is_that_of_many_draws(
    n_classes: int, generator: torch.Generator
) -> None:
    logits = 3 * torch.randn(8, n_classes, generator=generator, dtype=torch.float64)
    spread = 6 * torch.rand(8, n_classes, generator=generator, dtype=torch.float64)
    others = torch.randint(n_classes, (3,), generator=generator)
    classes = torch.cat([logits.argmax(dim=1)[:5], others])
    expected = brute_force(logits, spread, classes, generator)
    errors = (expected_probability(logits, spread, classes) - expected).abs()
    assert float(errors.max()) < 0.015
    assert float(errors.mean()) < 0.005
    single = expected_probability(logits.float(), spread.float(), classes)
    assert single.dtype == torch.float32
    assert_near(single.double(), expected, atol=0.015)


def test_without_spread_it_is_the_softmax_and_with_much_of_it_one_over_the_classes(
    generator: torch.Generator,
) -> None:
    logits = torch.randn(6, 5, generator=generator, dtype=torch.float64)
    classes = logits.argmax(dim=1)
    none, much = torch.zeros_like(logits), torch.full_like(logits, 1000.0)
    softmax = torch.softmax(logits, dim=1).amax(dim=1)
    assert_near(expected_probability(logits, none, classes), softmax, atol=1e-12)
    fifth = torch.full((6,), 0.2, dtype=torch.float64)
    assert_near(expected_probability(logits, much, classes), fifth, atol=0.02)


def test_a_sure_class_becomes_less_sure_with_the_variance_while_the_largest_of_all_becomes_surer(
    generator: torch.Generator,
) -> None:
    logits = torch.tensor([[4.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    named, largest = [], []
    for s in (0.1, 1.0, 3.0, 10.0):
        spread = torch.full_like(logits, s)
        named.append(float(expected_probability(logits, spread, torch.tensor([0]))))
        noise = s * torch.randn(20_000, 4, generator=generator, dtype=torch.float64)
        largest.append(float(torch.softmax(logits + noise, dim=1).amax(dim=1).mean()))
    assert named == sorted(named, reverse=True)
    assert named[0] - named[-1] > 0.4
    assert largest[-1] > 0.9 > largest[1], "which is why it is no confidence"


def test_a_class_out_of_the_question_has_no_part(generator: torch.Generator) -> None:
    logits = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    spread = torch.ones(4, 4, dtype=torch.float64)
    shut = torch.cat([logits, torch.full((4, 1), -torch.inf)], dim=1)
    classes = logits.argmax(dim=1)
    open_ = expected_probability(logits, spread[:, :3], classes)
    assert_near(expected_probability(shut, spread, classes), open_, atol=0.01)
    assert expected_probability(shut[:1], spread[:1], torch.tensor([3])).item() == 0
    only = torch.zeros(4, dtype=torch.int64)
    assert expected_probability(logits[:, :1], spread[:, :1], only).tolist() == [1] * 4
    assert expected_probability(logits[:0], spread[:0, :3], classes[:0]).shape == (0,)


def test_many_rows_are_answered_as_one_by_one_without_touching_the_generator(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = torch.get_rng_state()
    logits = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    classes = logits.argmax(dim=1)
    whole = expected_probability(logits, torch.ones_like(logits), classes)
    monkeypatch.setattr("semigpc.gp.certainty.DRAWN_CELLS", 7 * 256 * 16)
    assert_near(expected_probability(logits, torch.ones_like(logits), classes), whole, atol=1e-14)
    assert torch.equal(torch.get_rng_state(), before)


def test_close_neighbours_explain_as_much_as_the_docstring_says() -> None:
    engine = ExactGP(4, 2, 2, kernel=RBF(length_scale=1.0), noise_std=0.1**0.5)
    here = torch.zeros(1, 2, dtype=torch.float64)
    far = torch.full((1, 2), 50.0, dtype=torch.float64)
    shares = []
    for slot in range(2):
        engine.replace(torch.tensor([slot]), here, torch.eye(2, dtype=torch.float64)[:1])
        shares.append(float(explained_share(engine.variance(here), engine.kernel.diagonal(here))))
    assert shares == pytest.approx([1 / 1.1, 2 / 2.1], abs=1e-12)
    assert float(explained_share(engine.variance(far), engine.kernel.diagonal(far))) == 0
    # where there is no variance, nothing is explained
    assert explained_share(torch.zeros(1), torch.zeros(1)).item() == 0


def test_beside_one_neighbour_a_class_is_less_sure_than_beside_two() -> None:
    """lambda = 6.43, ten classes, sigma^2 = 0.1: the values in the docstring of GPConfig."""
    found = []
    for neighbours in (1, 2):
        mean = neighbours / (neighbours + 0.1)
        logits = torch.tensor([[6.43 * mean] + [0.0] * 9], dtype=torch.float64)
        spread = torch.full_like(logits, 6.43 * (1 - mean) ** 0.5)
        found.append(float(expected_probability(logits, spread, torch.tensor([0]))))
        assert float(torch.softmax(logits, dim=1).max()) > 0.97
    assert found == pytest.approx([0.80, 0.91], abs=0.01)


def test_reliability_of_a_hand_made_case() -> None:
    confidence = np.array([0.95, 0.95, 0.55, 1.0])
    bins, error = reliability(confidence, np.array([True, False, True, True]), bins=15)
    assert error == pytest.approx((abs(0.95 + 0.95 + 1.0 - 2) + 0.45) / 4)
    assert sum(bins["count"]) == 4
    assert bins["count"][-1] == 3  # confidence 1 is in the last bin
    assert bins["confidence"][0] is None


@pytest.mark.parametrize(("right", "expected"), [(7, 0.0), (0, 0.7)])
def test_calibration_error_is_the_gap_between_confidence_and_accuracy(
    right: int, expected: float
) -> None:
    weights = np.full(10, 3.0)
    _, error = reliability(np.full(10, 0.7), np.arange(10) < right, bins=10, weights=weights)
    assert error == pytest.approx(expected, abs=1e-12)


def test_a_weight_counts_as_so_many_rows() -> None:
    confidence, right = np.array([0.3, 0.8, 0.85]), np.array([True, True, False])
    rows = np.array([0, 1, 1, 2, 2, 2])
    weighted = reliability(confidence, right, bins=10, weights=np.array([1.0, 2.0, 3.0]))
    repeated = reliability(confidence[rows], right[rows], bins=10)
    assert weighted[1] == pytest.approx(repeated[1])
    assert weighted[0]["accuracy"] == pytest.approx(repeated[0]["accuracy"])


def test_equal_evidence_is_that_of_the_classes_that_are_present() -> None:
    assert class_scales(torch.tensor([6.0, 6.0])).tolist() == [1, 1]
    assert class_scales(torch.tensor([6.0, 6.0, 0.0])).tolist() == [1, 1, 0], "no label"
    some = class_scales(torch.tensor([[16.0, 4.0, 4.0], [0.0, 3.0, 0.0], [0.0, 0.0, 0.0]]))
    assert some[0].tolist() == pytest.approx([0.5**0.5, 2**0.5, 2**0.5])
    assert some[1:].tolist() == [[0, 1, 0], [0, 0, 0]]
