"""Losses, against sums over images and classes."""

import math

import pytest
import torch

from semigpc.losses import masked_cross_entropy, soft_cross_entropy


def log_softmax(row: list[float]) -> list[float]:
    total = math.log(sum(math.exp(value) for value in row))
    return [value - total for value in row]


def draw(generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    return logits, torch.softmax(torch.randn(6, 4, generator=generator, dtype=torch.float64), dim=1)


def test_soft_cross_entropy_is_the_mean_over_images(generator: torch.Generator) -> None:
    logits, targets = draw(generator)
    total = 0.0
    for row, target in zip(logits.tolist(), targets.tolist(), strict=True):
        total -= sum(t * v for t, v in zip(target, log_softmax(row), strict=True))
    assert float(soft_cross_entropy(logits, targets)) == pytest.approx(total / 6, abs=1e-12)


def test_one_hot_targets_give_the_cross_entropy_of_classes(generator: torch.Generator) -> None:
    logits, targets = draw(generator)
    classes = targets.argmax(dim=1)
    mask = torch.ones(6)
    one_hot = torch.eye(4, dtype=torch.float64)[classes]
    hard = masked_cross_entropy(logits, classes, mask)
    torch.testing.assert_close(hard, soft_cross_entropy(logits, one_hot))
    torch.testing.assert_close(hard, masked_cross_entropy(logits, one_hot, mask))


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
def test_a_masked_mean_divides_by_the_whole_batch(
    soft: bool, kind: torch.dtype, generator: torch.Generator
) -> None:
    logits, probs = draw(generator)
    targets = probs if soft else probs.argmax(dim=1)
    mask = torch.tensor([1, 0, 0, 1, 0, 0]).to(kind)
    one = torch.ones(1)
    rows = [float(masked_cross_entropy(logits[[b]], targets[[b]], one)) for b in (0, 3)]
    loss = float(masked_cross_entropy(logits, targets, mask))
    assert loss == pytest.approx(sum(rows) / 6, abs=1e-12)
    assert float(masked_cross_entropy(logits, targets, torch.zeros(6, dtype=kind))) == 0


def test_no_gradient_flows_into_the_targets_of_a_masked_loss(generator: torch.Generator) -> None:
    logits, targets = draw(generator)
    logits.requires_grad_()
    targets.requires_grad_()
    mask = torch.tensor([True, False, True, True, False, False])
    masked_cross_entropy(logits, targets, mask).backward()
    assert targets.grad is None
    assert logits.grad is not None
    expected = (torch.softmax(logits.detach(), dim=1) - targets.detach()) * mask[:, None] / 6
    torch.testing.assert_close(logits.grad, expected)
