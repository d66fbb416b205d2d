"""The textbook paths agree with a direct inverse, so that they may serve as references."""

import torch

from benchmarks.references import append_rows, drop_oldest_rows, kernel_matrix, posterior
from semigpc.gp import RBF
from tests.gp.streams import assert_near, clusters


def test_the_papers_block_rule_equals_a_fresh_inverse(generator: torch.Generator) -> None:
    draw = clusters(generator)
    features, _ = draw(40)
    K = kernel_matrix(features, RBF(), 0.3)
    K_inv = torch.linalg.inv(K)
    dropped = drop_oldest_rows(K_inv, 8)
    assert_near(dropped, torch.linalg.inv(K[8:, 8:]), atol=1e-10)
    torch.testing.assert_close(
        append_rows(dropped, K[8:, :8], K[:8, :8]).diagonal().sum(), K_inv.diagonal().sum()
    )
    grown = append_rows(torch.linalg.inv(K[:32, :32]), K[:32, 32:], K[32:, 32:])
    assert_near(grown, K_inv, atol=1e-10)


def test_posterior_interpolates_without_noise_and_forgets_far_away(
    generator: torch.Generator,
) -> None:
    draw = clusters(generator, spread=1.0)
    features, targets = draw(20)
    mean, variance = posterior(features, features, targets, RBF(), 1e-4)
    assert_near(mean, targets, atol=1e-5)
    assert variance.abs().max() < 1e-6
    mean, variance = posterior(100 + features, features, targets, RBF(), 1e-4)
    assert mean.abs().max() == 0
    assert (variance == 1).all()
