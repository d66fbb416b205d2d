"""No refinement hands everything back."""

import torch

from semigpc.refiners import NoRefiner
from tests.refiners.outputs import CLASSES, batch_of, points, said


def test_everything_comes_back_untouched(generator: torch.Generator) -> None:
    refiner = NoRefiner()
    features, labels = points(6, generator)
    output, probs = said(features), torch.full((6, CLASSES), 1 / CLASSES)
    assert refiner.classify(output) is output
    assert refiner.classify(output, labels) is output
    assert refiner.refine("semantic", output, probs) is probs
    refiner.observe("before", output, batch_of(features, labels))
    assert not refiner.observes
    assert not refiner.state_dict()
