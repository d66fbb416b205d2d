"""How sure a refiner is of a pseudo-label."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from semigpc.refiners import GPConfig, NoRefiner
from tests.gp.test_certainty import brute_force
from tests.refiners.outputs import (
    CLASSES,
    ENGINES_OF_24,
    batch_of,
    make,
    points,
    said,
    show,
    unit,
)


def probabilities(rows: int, generator: torch.Generator) -> Tensor:
    return torch.softmax(2 * torch.randn(rows, CLASSES, generator=generator), dim=1)


@pytest.mark.parametrize("name", ["none", "similarity", "gp"])
def test_it_may_be_the_largest_probability(name: str, generator: torch.Generator) -> None:
    refiner: Any = NoRefiner() if name == "none" else make(name)
    if name != "none":
        show(refiner, *points(12, generator))
    probs = probabilities(5, generator)
    assert torch.equal(refiner.confidence(said(points(5, generator)[0]), probs), probs.amax(dim=1))


def test_the_variance_explained_is_that_of_the_equation(generator: torch.Generator) -> None:
    refiner = make("gp", confidence="variance")
    features, labels = points(20, generator)
    show(refiner, features, labels)
    queries = torch.cat([points(6, generator)[0], features[:2]])
    h, q = unit(features), unit(queries)

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp((a @ b.mT - 1) / 0.1)

    K = kernel(h, h) + 0.1 * torch.eye(20, dtype=torch.float64)
    explained = (kernel(q, h) * torch.linalg.solve(K, kernel(h, q)).mT).sum(dim=1)
    found = refiner.confidence(said(queries), probabilities(8, generator))
    assert found.dtype == torch.float32, "that of the probabilities"
    torch.testing.assert_close(found.double(), explained, rtol=0, atol=1e-6)
    assert float(found[-2:].min()) > 0.9, "rows of the buffer itself"


@pytest.mark.parametrize("prior", ["none", "frequency"])
def test_the_expected_probability_is_of_the_class_that_was_decided_for(
    prior: str, generator: torch.Generator
) -> None:
    refiner = make("gp", confidence="expected", class_prior=prior)
    features, labels = points(0, generator, counts=(12, 6, 2))
    show(refiner, features, labels)
    queries, probs = said(points(6, generator)[0]), probabilities(6, generator).double()
    scales = torch.tensor([12.0, 6.0, 2.0]).double()
    scales = (scales.mean() / scales).sqrt() if prior == "frequency" else torch.ones(3).double()
    variance = refiner.engine.variance(unit(queries.features))
    spread = refiner.logit_scale * variance.sqrt().unsqueeze(1) * scales
    expected = brute_force(refiner.logits(queries), spread, probs.argmax(dim=1), generator)
    torch.testing.assert_close(refiner.confidence(queries, probs), expected, rtol=0, atol=0.01)


@pytest.mark.parametrize("kind", ["variance", "expected"])
def test_in_the_warm_up_and_in_an_empty_buffer_nothing_is_vouched_for(
    kind: str, generator: torch.Generator
) -> None:
    probs, queries = probabilities(4, generator), said(points(4, generator)[0])
    warming = make("gp", confidence=kind, warmup_steps=2)
    show(warming, *points(12, generator))
    assert torch.equal(warming.confidence(queries, probs), probs.amax(dim=1))
    empty = make("gp", confidence=kind).confidence(queries, probs)
    torch.testing.assert_close(
        empty, torch.full((4,), 0.0 if kind == "variance" else 1 / CLASSES), rtol=0, atol=0.02
    )


@pytest.mark.parametrize("kind", ["variance", "expected"])
def test_what_looks_like_nothing_in_the_buffer_is_unsure_whatever_is_said_of_it(
    kind: str, generator: torch.Generator
) -> None:
    refiner = make("gp", confidence=kind, l2norm=False, blend=0.0, length_scale=1.0)
    features, labels = points(20, generator)
    show(refiner, features, labels)
    sure = torch.eye(CLASSES)[labels]
    near, far = (refiner.confidence(said(x), sure) for x in (features, features + 100))
    assert float(near.min()) > float(far.max()) + 0.3
    assert torch.equal(refiner.refine("semantic", said(features), sure), sure), (
        "with blend=0 it vouches and does no more"
    )


@pytest.mark.parametrize("engine", ["ensemble", "matrix_free"])
@pytest.mark.parametrize("kind", ["agreement", "variance", "expected"])
def test_every_engine_can_be_asked(engine: str, kind: str, generator: torch.Generator) -> None:
    features, labels = points(20, generator)
    queries, probs = said(points(6, generator)[0]), probabilities(6, generator)
    exact, other = (
        make("gp", confidence=kind, engine=ENGINES_OF_24[one]) for one in ("exact", engine)
    )
    for refiner in (exact, other):
        show(refiner, features, labels)
    reference, found = exact.confidence(queries, probs), other.confidence(queries, probs)
    assert bool(((found >= 0) & (found <= 1)).all())
    torch.testing.assert_close(found, reference, rtol=0, atol=0.3 if engine == "ensemble" else 0.01)


def test_a_confidence_carries_no_gradient(generator: torch.Generator) -> None:
    for kind in ("agreement", "variance", "expected"):
        refiner = make("gp", confidence=kind)
        show(refiner, *points(12, generator))
        features = points(3, generator)[0].requires_grad_()
        assert not refiner.confidence(said(features), probabilities(3, generator)).requires_grad


# Agreement ----------------------------------------------------------------------------------------


def agreeing(**options: Any) -> Any:
    """A refiner that asks the network too, after 16, 8 and 2 labels of the three classes."""
    refiner = make("gp", confidence="agreement", **options)
    show(refiner, *points(0, torch.Generator().manual_seed(2), counts=(16, 8, 2)))
    return refiner


def test_the_default_asks_the_network_and_the_paper_does_not() -> None:
    assert GPConfig().confidence == "agreement"
    paper = GPConfig().in_paper(temperature=0.1, n_classes=CLASSES, balanced=False)
    assert paper.confidence == "max_softmax"
    for options in ({"confidence": "max_softmax"}, {"role": "classifier"}):
        refiner = make("gp", **{"confidence": "agreement"} | options)
        assert not [name for name in refiner.state_dict() if "label_shares" in name]


@pytest.mark.parametrize("asked_before", [True, False])
def test_a_label_is_as_sure_as_the_gp_where_the_network_has_its_class_and_0_elsewhere(
    asked_before: bool, generator: torch.Generator
) -> None:
    refiner = agreeing()
    features = points(80, generator)[0]
    logits = 2 * torch.randn(80, CLASSES, generator=generator, dtype=torch.float64)
    output = said(features)._replace(logits=logits)
    if asked_before:
        refiner.refine("semantic", output, probabilities(80, generator).double())
    smoothed = probabilities(80, generator).double()  # whatever alignment and smoothing made of it
    found = refiner.confidence(output, smoothed)
    posterior = torch.softmax(refiner.logits(output), dim=1)
    cases = set()
    for row in range(80):
        c = int(smoothed[row].argmax())
        plain = int(logits[row].argmax())
        freed = int((logits[row] - torch.log(torch.tensor([17.0, 9.0, 3.0]).double())).argmax())
        expected = float(posterior[row, c]) if c in (plain, freed) else 0.0
        assert float(found[row]) == pytest.approx(expected, abs=1e-12)
        cases.add((c == plain, c == freed))
    assert len(cases) == 4, "every case was seen"


def test_smoothing_does_not_keep_a_label_below_a_threshold(generator: torch.Generator) -> None:
    """As in SimMatch: 0.9 of a certain label and 0.1 of a memory that votes for other classes."""
    refiner = agreeing(logit_scale=60.0)
    features, labels = points(20, generator)
    sure = torch.eye(CLASSES, dtype=torch.float64)[labels]
    output = said(features)._replace(logits=sure)
    probs = refiner.refine("semantic", output, sure)
    smoothed = 0.9 * probs + 0.1 * probs.roll(1, dims=1)
    assert float(smoothed.max()) < 0.95
    right = probs.argmax(dim=1) == labels
    assert float(refiner.confidence(output, smoothed)[right].median()) > 0.99


def test_views_of_an_earlier_step_are_not_taken_for_those_of_this_one(
    generator: torch.Generator,
) -> None:
    refiner = agreeing()
    first, second = (said(points(6, generator)[0]) for _ in range(2))
    probs = probabilities(6, generator).double()
    refiner.refine("semantic", first, probs)
    fresh = agreeing()
    assert torch.equal(refiner.confidence(second, probs), fresh.confidence(second, probs))
    refiner.refine("semantic", first, probs)
    show(refiner, *points(4, generator))
    copy = make("gp", confidence="agreement")
    copy.load_state_dict(refiner.state_dict())
    found, expected = (one.confidence(first, probs) for one in (refiner, copy))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


def test_labels_are_counted_once_a_step_and_a_filled_ring_does_not_count(
    generator: torch.Generator,
) -> None:
    refiner = agreeing(balanced=True)
    refiner.store(said(points(6, generator)[0]), torch.tensor([0, 0, 1, 1, 2, 2]))
    assert refiner.label_shares.counts.tolist() == [16, 8, 2]
    refiner.remember(points(2, generator)[0], torch.tensor([2, 2]))
    assert refiner.label_shares.counts.tolist() == [16, 8, 4]
    assert refiner.half().label_shares.counts.dtype == torch.int64


@pytest.mark.parametrize("blend", [1.0, 0.4])
def test_where_they_disagree_a_label_is_half_the_networks_also_in_a_loop_of_its_own(
    blend: float, generator: torch.Generator
) -> None:
    refiner = agreeing(blend=blend)
    features = points(60, generator)[0]
    own = torch.softmax(2 * torch.randn(60, CLASSES, generator=generator).double(), dim=1)
    output = said(features)._replace(logits=own.log())
    found = refiner.probs(features, own=own)
    assert torch.equal(found, refiner.refine("semantic", output, own))
    posterior = torch.softmax(refiner.logits(output), dim=1)
    counts = torch.tensor([17.0, 9.0, 3.0]).double()
    weights = set()
    for p, gp, row in zip(own, posterior, found, strict=True):
        agree = int(gp.argmax()) in (int(p.argmax()), int((p / counts).argmax()))
        weight = blend if agree else blend / 2
        torch.testing.assert_close(row, (1 - weight) * p + weight * gp)
        assert agree or blend < 1 or float(row.max()) <= 0.75
        weights.add(weight)
    assert len(weights) == 2


# Reach --------------------------------------------------------------------------------------------


def reaching(
    generator: torch.Generator, labels: tuple[int, ...] = (9, 8, 12), **options: Any
) -> tuple[Any, Tensor, Tensor, Tensor]:
    """A refiner after two views of each of so many images per class; views, classes, images."""
    features, classes = points(0, generator, counts=labels)
    images = torch.arange(len(classes)).repeat(2)
    views = features.repeat(2, 1) + 0.05 * torch.randn(2 * len(features), 8, generator=generator)
    refiner = make("gp", **{"confidence": "agreement", "buffer_size": 60} | options)
    batch = batch_of(views.double(), classes.repeat(2), images)
    for moment in ("before", "after"):
        refiner.observe(moment, said(batch.x), batch)
    return refiner, batch.x, batch.y, images


def test_the_reach_of_a_class_is_the_distance_that_most_of_its_images_have_to_another_one(
    generator: torch.Generator,
) -> None:
    refiner, views, classes, images = reaching(generator)
    h = unit(views)
    for c in range(CLASSES):
        nearest = []
        for i in range(len(h)):
            others = [
                float((h[i] - h[j]).square().sum())
                for j in range(len(h))
                if classes[i] == classes[j] == c and images[i] != images[j]
            ]
            nearest += [min(others)] if others else []
        expected = np.quantile(nearest, 0.8, method="higher")
        assert float(refiner.reach.limits[c]) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("engine", ENGINES_OF_24)
def test_a_view_beyond_the_reach_of_its_class_is_not_believed(
    engine: str, generator: torch.Generator
) -> None:
    refiner, views, classes, _ = reaching(generator, engine=ENGINES_OF_24[engine])
    foreign = torch.zeros(6, 8, dtype=torch.float64)
    foreign[:, -1] = 2.0  # as far from every class
    foreign[:, 0] = 0.1  # and yet of the first one, for the GP and the network
    sure = torch.eye(CLASSES, dtype=torch.float64)
    known = refiner.confidence(said(views)._replace(logits=sure[classes]), sure[classes])
    assert float((known > 0).double().mean()) > 0.9
    first = sure[[0] * 6]
    assert not refiner.confidence(said(foreign)._replace(logits=first), first).any()
    refiner.reach.known.fill_(False)
    assert bool((refiner.confidence(said(foreign)._replace(logits=first), first) > 0).all())


@pytest.mark.parametrize("engine", ENGINES_OF_24)
@pytest.mark.parametrize("rows", [0, 7, 24])
def test_every_engine_knows_the_nearest_row(
    engine: str, rows: int, generator: torch.Generator
) -> None:
    refiner = make("gp", confidence="agreement", engine=ENGINES_OF_24[engine])
    features, labels = points(rows, generator)
    if rows:
        show(refiner, features, labels)
    queries = unit(points(5, generator)[0])
    differences = (queries.unsqueeze(1) - unit(features)).square().sum(dim=2)
    expected = differences.amin(dim=1) if rows else torch.full((5,), torch.inf).double()
    torch.testing.assert_close(refiner.engine.nearest(queries), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("labels", [(7, 9, 9), (8, 9, 17)])
def test_with_few_or_uneven_labels_no_view_is_too_far(
    labels: tuple[int, ...], generator: torch.Generator
) -> None:
    refiner, *_ = reaching(generator, labels)
    assert not refiner.reach.known
    assert refiner.reach.limits.isfinite().all(), "what is saved is finite"


def test_copies_of_an_image_that_cannot_be_told_apart_are_not_measured(
    generator: torch.Generator,
) -> None:
    refiner = make("gp", confidence="agreement", buffer_size=60)
    refiner.remember(*points(0, generator, counts=(9, 9, 9)))
    assert not refiner.reach.known


def test_the_reach_is_measured_again_every_50_steps_and_saved(generator: torch.Generator) -> None:
    refiner, views, classes, images = reaching(generator)
    before = refiner.reach.limits.clone()
    batch = batch_of(views + torch.randn(views.shape, generator=generator), classes, images)
    for step in range(1, 52):
        refiner.observe("after", said(batch.x), batch)
        assert torch.equal(refiner.reach.limits, before) == (step < 50), step
    copy = make("gp", confidence="agreement", buffer_size=60)
    copy.load_state_dict(refiner.state_dict())
    assert torch.equal(copy.reach.limits, refiner.reach.limits)
    assert copy.reach.known
    assert refiner.half().reach.limits.dtype == torch.float64
    assert make("gp", confidence="max_softmax").reach is None
