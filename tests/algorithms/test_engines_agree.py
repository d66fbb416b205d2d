"""The same stream through the float32 refiner and through a fresh float64 solve at every step: the
same pseudo-labels.

But for ties: two classes, or a probability and the threshold, that are closer than what float32 may
be off by.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from semigpc.refiners import GaussianProcessRefiner, GPConfig
from semigpc.types import ModelOutput
from tests.algorithms.slow_refiners import SlowGP
from tests.algorithms.tiny import CLASSES
from tests.refiners.outputs import paper_scales

BATCH, QUERIES, WIDTH, TAU = 8, 16, 32, 0.95
WORST = 1e-4  # of a mean in float32
TRUE_COUNTS = torch.tensor([16, 12, 8, 4])  # forty images, each seen again and again


def said(features: Tensor) -> ModelOutput:
    return ModelOutput(features.new_zeros(len(features), CLASSES), features, {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "spread", "steps", "size"),
    [
        ({}, 0.02, 300, 256),
        ({}, 0.3, 120, 96),
        ({"class_prior": "frequency"}, 0.02, 120, 96),
        ({"balanced": True}, 0.02, 120, 96),
    ],
    ids=["tight", "loose", "class prior", "balanced"],
)
def test_pseudo_labels_of_both_engines_are_the_same(
    options: dict[str, Any], spread: float, steps: int, size: int
) -> None:
    generator = torch.Generator().manual_seed(3)
    labels = torch.repeat_interleave(torch.arange(CLASSES), TRUE_COUNTS)
    centres = torch.randn(CLASSES, WIDTH, generator=generator)[labels]
    noise = torch.randn(len(labels), WIDTH, generator=generator)
    images = F.normalize(centres + 0.7 * noise, dim=1)

    def views(chosen: Tensor, noise: Tensor) -> Tensor:
        shake = torch.randn(len(chosen), WIDTH, generator=generator) / WIDTH**0.5
        return F.normalize(images[chosen] + noise * shake, dim=1)

    config = GPConfig(buffer_size=size, **paper_scales(CLASSES) | options)
    refiner, slow = GaussianProcessRefiner(config, WIDTH, CLASSES), SlowGP(config)
    passed: set[bool] = set()
    worst, compared = 0.0, 0
    farther = torch.linspace(0, 1, QUERIES)[:, None]
    for step in range(steps):
        queries = views(torch.randint(len(labels), (QUERIES,), generator=generator), farther)
        with torch.no_grad():
            fast, exact = refiner.logits(said(queries)), slow.answer(said(queries.double()))
        worst = max(worst, float((fast.double() - exact).abs().max()) / slow.logit_scale)
        best = exact.topk(2, dim=1).values
        decided = best[:, 0] - best[:, 1] > 2 * WORST * slow.logit_scale
        assert torch.equal(fast.argmax(dim=1)[decided], exact.argmax(dim=1)[decided]), step
        confidence, truth = (torch.softmax(z, dim=1).max(dim=1).values for z in (fast, exact))
        clear = (truth - TAU).abs() > WORST * slow.logit_scale
        assert torch.equal(confidence[clear] >= TAU, truth[clear] >= TAU), step
        passed |= set((truth[clear] >= TAU).tolist())
        compared += int((decided & clear).sum())
        chosen = torch.randint(len(labels), (BATCH,), generator=generator)
        features = views(chosen, torch.tensor(spread))
        refiner.write(features, labels[chosen], chosen)
        slow.write(features.double(), labels[chosen], chosen)
    assert worst <= WORST
    # at step 0 all classes are equal, and ties are rare after that
    assert compared >= 0.95 * (steps - 1) * QUERIES
    assert passed == {False, True}, "some pass and some do not, or nothing is shown"
    assert len(slow.entries) == size
