"""The kernel average, against a loop, and as the GP's limit (algorithms section 3.4, item 5)."""

import math

import pytest
import torch

from semigpc.types import ModelOutput
from tests.refiners.outputs import CLASSES, make, points, said, show, unit


@pytest.mark.parametrize("l2norm", [True, False])
def test_every_entry_votes_for_its_class(l2norm: bool, generator: torch.Generator) -> None:
    refiner = make("similarity", temperature=0.7, l2norm=l2norm).double()
    held: list[tuple[torch.Tensor, int]] = []
    for _ in range(7):  # 24 slots, 35 entries
        features, labels = points(5, generator)
        show(refiner, features, labels)
        rows = unit(features) if l2norm else features
        held = [*held, *zip(rows, labels.tolist(), strict=True)][-24:]
    queries = points(6, generator)[0]
    probs = refiner.probs(said(queries))
    for query, row in zip(unit(queries) if l2norm else queries, probs, strict=True):
        votes = [math.exp(float(query @ feature) / 0.7) for feature, _ in held]
        for c in range(CLASSES):
            own = sum(vote * (label == c) for vote, (_, label) in zip(votes, held, strict=True))
            assert float(row[c]) == pytest.approx(own / sum(votes), abs=1e-9)


def test_a_larger_class_has_more_votes_and_a_balanced_memory_takes_them_back(
    generator: torch.Generator,
) -> None:
    features, labels = points(0, generator, counts=(16, 4, 4))
    nowhere: ModelOutput = said(torch.ones(1, features.shape[1], dtype=torch.float64))
    shares = {}
    for balanced in (False, True):
        size = 12 if balanced else 24
        refiner = make("similarity", balanced=balanced, buffer_size=size, temperature=1e6)
        show(refiner, features, labels)
        shares[balanced] = refiner.probs(nowhere)[0]
    assert shares[False].tolist() == pytest.approx([16 / 24, 4 / 24, 4 / 24], abs=1e-5)
    assert shares[True].tolist() == pytest.approx([1 / 3] * 3, abs=1e-5)


@pytest.mark.parametrize("length_scale", [0.3, 0.6, 1.0])
def test_the_gp_tends_to_it_as_the_noise_grows(
    length_scale: float, generator: torch.Generator
) -> None:
    features, labels = points(20, generator)
    queries = said(points(10, generator)[0])
    ratio = 1e-9  # eta / sigma^2
    gp = make("gp", length_scale=length_scale, noise_std=ratio**-0.5, logit_scale=1.0)
    votes = make("similarity", temperature=length_scale**2).double()
    for refiner in (gp, votes):
        show(refiner, features, labels)
    mean = gp.logits(queries) / ratio
    shares = mean / mean.sum(dim=1, keepdim=True)
    torch.testing.assert_close(shares, votes.probs(queries), rtol=0, atol=1e-6)


def test_the_classifier_keeps_its_logits(generator: torch.Generator) -> None:
    output = said(points(4, generator)[0])
    assert make("similarity").classify(output) is output


@pytest.mark.parametrize("temperature", [0.0, -0.1])
def test_a_temperature_that_makes_no_sense_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match="temperature must be positive"):
        make("similarity", temperature=temperature)
