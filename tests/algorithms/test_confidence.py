"""Masks from a refiner's confidence, in every algorithm."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from semigpc.algorithms import ALGORITHMS
from semigpc.losses import soft_cross_entropy
from semigpc.refiners import NoRefiner
from semigpc.types import Clock, ModelOutput
from tests.algorithms.test_acceptance import batch_of, image, rolled, step
from tests.algorithms.tiny import (
    CLASSES,
    LABELS,
    UNLABELED,
    learn,
    make_algorithm,
    make_refiner,
    pair,
    seeded,
    stream,
)
from tests.refiners.outputs import paper_scales

KINDS = ("max_softmax", "variance", "expected")
MASKED = [name for name in ALGORITHMS if name != "supervised"]
OPTIONS: dict[str, dict[str, Any]] = {
    name: {"threshold": 0.6} for name in MASKED if name != "freematch"
}
OPTIONS["comatch"] |= {"queue_batches": 2}
OPTIONS["remixmatch"] |= {"warmup": 0.0, "rotation_weight": 0.0}
OPTIONS["freematch"] = {"momentum": 0.75}


class Vouching(NoRefiner):
    """As sure as it is told to be."""

    def __init__(self, confidence: list[float]) -> None:
        super().__init__()
        self.told = torch.tensor(confidence, dtype=torch.float64)
        self.asked: list[Tensor] = []

    def confidence(self, output: ModelOutput, probs: Tensor) -> Tensor:
        assert len(output.features) == len(probs) == len(self.told)
        assert not probs.requires_grad
        self.asked.append(probs)
        return self.told


@pytest.mark.parametrize("name", ["fixmatch", "simmatch", "comatch", "remixmatch"])
def test_the_mask_is_what_the_refiner_is_sure_enough_of(name: str) -> None:
    told = [0.6, 0.5999, 0.9, 0.0, 1.0, 0.61, 0.2, 0.3, 0.7, 0.1]
    refiner = Vouching(told)
    algorithm = make_algorithm(name, refiner, **OPTIONS[name]).double()
    output = seeded(0, algorithm.step, pair(), stream(1)[0], Clock(0, 20, 2))
    assert output.pseudo is not None
    assert output.pseudo.mask.tolist() == [value >= 0.6 for value in told], (
        "exactly the threshold is enough"
    )
    (asked,) = refiner.asked
    assert torch.equal(asked.argmax(dim=1), output.pseudo.probs.argmax(dim=1)), (
        "it was asked about the finished label"
    )


def test_freematch_thresholds_follow_the_confidence_and_not_the_probability() -> None:
    # every class as likely: all four thresholds are the global one
    weak = rolled([2.0, 0.0, 0.0, 0.0])
    algorithm: Any = make_algorithm(
        "freematch", Vouching([0.1, 0.3, 0.5, 0.7]), momentum=0.5
    ).double()
    output = step(algorithm, batch_of(image(weak), image(weak), [0, 7]))
    assert float(algorithm.threshold) == pytest.approx(0.5 * 0.25 + 0.5 * 0.4, abs=1e-12)
    assert output.pseudo is not None
    assert output.pseudo.mask.tolist() == [False, False, True, True]
    assert float(output.metrics["threshold"]) == pytest.approx(0.325)


def test_remixmatch_hears_nothing_of_what_is_masked_mixed_or_not() -> None:
    """L is linear in the labels: with a mask it is what mixed labels give in which the masked ones
    are rows of zeros.
    """
    told = [1.0] * 4 + [0.0] * 6
    algorithm: Any = make_algorithm(
        "remixmatch", Vouching(told), threshold=0.5, rotation_weight=0.0, warmup=0.0
    ).double()
    networks, batch = pair(), stream(1)[0]
    output = seeded(3, algorithm.step, networks, batch, Clock(0, 20, 2))
    assert output.pseudo is not None
    targets = output.pseudo.probs
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(UNLABELED, dtype=torch.float64))
    network = pair().student  # as it was: batch normalisation uses the batch in any case
    strong = network(batch.views["strong"]).logits
    rows = -(targets * F.log_softmax(strong, dim=1)).sum(dim=1)
    torch.testing.assert_close(output.metrics["loss_pre"], rows[:4].sum() / UNLABELED)
    silent: Any = make_algorithm(
        "remixmatch", Vouching([0.0] * 10), threshold=0.5, rotation_weight=0.0, warmup=0.0
    ).double()
    deaf = seeded(3, silent.step, pair(), batch, Clock(0, 20, 2))
    assert float(deaf.metrics["loss_pre"].detach()) == 0
    assert float(deaf.metrics["loss_u"].detach()) < float(output.metrics["loss_u"].detach())


def test_remixmatch_without_a_threshold_asks_nobody() -> None:
    refiner = Vouching([0.0] * UNLABELED)
    algorithm = make_algorithm("remixmatch", refiner).double()
    output = seeded(0, algorithm.step, pair(), stream(1)[0], Clock(0, 20, 2))
    assert output.pseudo is not None
    assert output.pseudo.mask.all()
    assert not refiner.asked
    strong = pair().student(stream(1)[0].views["strong"]).logits
    torch.testing.assert_close(
        output.metrics["loss_pre"], soft_cross_entropy(strong, output.pseudo.probs)
    )


@pytest.mark.parametrize(("name", "kind"), list(itertools.product(MASKED, KINDS)))
def test_every_algorithm_masks_by_every_confidence_of_a_gp(name: str, kind: str) -> None:
    options = OPTIONS[name] if name == "freematch" else {**OPTIONS[name], "threshold": 0.4}
    refiner: Any = make_refiner(
        "gp", confidence=kind, buffer_size=12, warmup_steps=1, **paper_scales(CLASSES)
    )
    algorithm: Any = make_algorithm(name, refiner, **options).double()
    networks, masks = pair(), []
    for number, batch in enumerate(stream(8)):
        output = seeded(number, algorithm.step, networks, batch, Clock(number, 20, 2))
        assert output.loss.isfinite()
        assert output.pseudo is not None
        masks.append(output.pseudo.mask)
        learn(networks, output.loss)
    assert 0 < int(torch.cat(masks[1:]).sum()) < 7 * UNLABELED, "some pass and some do not"


def test_a_image_unlike_all_labelled_ones_is_masked_by_variance_whatever_the_network_says() -> None:
    """By hand: sigma^2 = 0.1, one labelled image a class at unit features e_c, so that 1 / 1.1 is
    explained at each.
    """
    refiner: Any = make_refiner(
        "gp",
        width=CLASSES,
        confidence="variance",
        buffer_size=CLASSES,
        warmup_steps=0,
        push="before",
        blend=0.0,
    )
    algorithm = make_algorithm("fixmatch", refiner, threshold=0.9).double()
    index = [LABELS.tolist().index(c) for c in range(CLASSES)]
    like = 3.0 * torch.eye(CLASSES, dtype=torch.float64)
    # sure of class 1 or 2, and far from both
    unlike = torch.tensor([[-9.0, 1.0, 1.0, -9.0]], dtype=torch.float64)
    weak = image(torch.cat([like, unlike]))
    output = step(algorithm, batch_of(weak, weak, index))
    assert output.pseudo is not None
    assert output.pseudo.mask.tolist() == [True] * CLASSES + [False]
    explained = refiner.belief(ModelOutput(like, like, {})).explained
    torch.testing.assert_close(
        explained, torch.full((CLASSES,), 1 / 1.1, dtype=torch.float64), rtol=0, atol=1e-6
    )
