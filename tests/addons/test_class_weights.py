"""Weights by effective numbers against exact fractions."""

from fractions import Fraction

import pytest
import torch

from semigpc.addons.rebalancing import effective_number_weights


@pytest.mark.parametrize("beta", [0.0, 0.5, 0.9, 0.999])
def test_weights_are_those_of_the_equation_scaled_to_the_number_of_classes(beta: float) -> None:
    counts, exact = [400, 20, 3, 1], Fraction(beta)
    raw = [(1 - exact) / (1 - exact**n) for n in counts]
    expected = [float(w * len(counts) / sum(raw)) for w in raw]
    weights = effective_number_weights(torch.tensor(counts), beta)
    assert weights.dtype == torch.float64
    assert weights.tolist() == pytest.approx(expected, rel=1e-12)
    assert float(weights.sum()) == pytest.approx(4)


def test_a_class_nobody_has_seen_weighs_as_much_as_one_seen_once() -> None:
    weights = effective_number_weights(torch.tensor([0, 1, 8]), 0.9)
    assert weights[0] == weights[1] > weights[2]


def test_a_beta_next_to_one_weighs_by_inverse_counts() -> None:
    weights = effective_number_weights(torch.tensor([1.0, 10.0, 1000.0]), 1 - 1e-12)
    assert weights.tolist() == pytest.approx([3 / 1.101, 0.3 / 1.101, 0.003 / 1.101], rel=1e-3)
    assert bool(effective_number_weights(torch.tensor([10**9, 1]), 0.5).isfinite().all())


@pytest.mark.parametrize("beta", [-0.1, 1.0, float("nan")])
def test_a_beta_outside_of_its_range_is_refused(beta: float) -> None:
    with pytest.raises(ValueError, match=r"beta must lie in \[0, 1\); got"):
        effective_number_weights(torch.tensor([1, 2]), beta)
