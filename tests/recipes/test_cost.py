"""Prices against counting: images that really go through a network, and operations worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from semigpc.algorithms import ALGORITHMS
from semigpc.data import DigitsConfig
from semigpc.models import ModelConfig
from semigpc.recipes.cost import ASSUMED_RATES, Cost, forward_flop, images_a_step, price, training_images
from semigpc.recipes.paper import cifar10_lt, fgvc
from semigpc.refiners import REFINERS
from semigpc.training import Experiment, TrainConfig
from semigpc.training.experiment import FrozenConfig
from semigpc.types import Clock, ModelOutput, Networks
from tests.algorithms.tiny import LABELED, UNLABELED, TinyNetwork, configure, make_algorithm, make_refiner, seeded, stream


class Counting(TinyNetwork):
    """Counts its images, with and without a gradient."""

    def __init__(self, counts: dict[bool, int]) -> None:
        super().__init__()
        self.counts = counts

    def forward(self, images: Tensor) -> ModelOutput:
        self.counts[torch.is_grad_enabled()] += len(images)
        return super().forward(images)


@pytest.mark.parametrize("refiner", REFINERS)
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [(name, {}) for name in ALGORITHMS]
    + [
        ("simmatch", {"bank": "teacher"}),
        ("simmatch", {"bank": "full_teacher"}),
        ("remixmatch", {"rotation_weight": 0.0}),
    ],
)
def test_as_many_images_are_counted_as_go_through_the_network(algorithm: str, options: dict[str, Any], refiner: str) -> None:
    own: dict[str, Any] = {} if refiner == "none" else {"buffer_size": 32}
    counts = {True: 0, False: 0}
    networks = Networks(Counting(counts), Counting(counts))
    made = make_algorithm(algorithm, make_refiner(refiner, **own), **options)
    seeded(0, made.double().step, networks, stream(1)[0], Clock(0, 10, 5))
    experiment = Experiment(
        algorithm=configure(algorithm, **options),
        refiner=REFINERS[refiner].config(**own),
        train=TrainConfig(labeled_batch=LABELED, unlabeled_ratio=UNLABELED // LABELED, ema=0.9),
    )
    assert images_a_step(experiment) == (counts[True], counts[False])


def vit_flop(tokens: int, width: int, patch: int, depth: int = 12) -> int:
    """2 (patches + depth (qkv, attention twice, projection, MLP)), without norms and the classifier."""
    patches = (tokens - 1) * 3 * patch**2 * width
    block = 12 * tokens * width**2 + 2 * tokens**2 * width
    return 2 * (patches + depth * block)


@pytest.mark.parametrize(
    ("name", "size", "tokens", "width", "patch"),
    [
        ("vit_tiny_patch2_32", 32, 257, 192, 2),
        ("vit_small_patch2_32", 32, 257, 384, 2),
        ("vit_small_patch16_224", 224, 197, 384, 16),
    ],
)
def test_a_forward_pass_costs_what_it_should(name: str, size: int, tokens: int, width: int, patch: int) -> None:
    assert forward_flop(ModelConfig(name=name), size) == pytest.approx(vit_flop(tokens, width, patch), rel=1e-4)


def test_the_sum_of_a_run() -> None:
    cost = Cost(steps=10, learnt=24, looked_at=8, judged=100, flop=1000, gp_bytes=0)
    assert cost.passes == 420
    assert cost.own_flop == 1000 * (3 * 240 + 80 + 100)
    assert cost.shared_flop == 0


def test_a_row_of_the_paper() -> None:
    cost = price(cifar10_lt(root="/data"), 10_000)
    assert (cost.steps, cost.learnt, cost.looked_at) == (204_800, 24, 0)
    assert cost.judged == 100 * 10_000
    assert cost.gp_bytes == 4 * 16_300**2
    assert cost.own_flop / ASSUMED_RATES["paper"] / 3600 == pytest.approx(2.92, abs=0.01)
    assert price(cifar10_lt(root="/data", refiner="similarity"), 10_000).gp_bytes == 0
    aves = fgvc(root="/data")
    assert images_a_step(aves) == (24, 8)  # the teacher sees the labelled images once, for the bank


def test_a_frozen_network_sees_every_image_once() -> None:
    paper = cifar10_lt(root="/data")
    cost = price(replace(paper, frozen=FrozenConfig(views=3, width=256)), 10_000)
    assert cost.embedded == 7 * 12_406 + 10_000
    assert cost.embedding_flop == price(paper, 10_000).flop
    assert cost.flop == 2 * 192 * 256  # the adapter
    assert cost.shared_flop == cost.embedded * cost.embedding_flop


def test_training_images_of_the_sets() -> None:
    assert training_images(cifar10_lt(root="/data").data) == 12_406
    assert training_images(cifar10_lt(root="/data").override(["data.split.overlap=disjoint"]).data) == 12_406 + 3720
    assert training_images(fgvc(root="/data", benchmark="cub").data) == 1000 + 3885
    assert training_images(fgvc(root="/data", benchmark="semi_inat").data) == 13_771 + 91_336
    assert training_images(fgvc(root="/data").override(["data.unlabeled=in+out"]).data) == 5959 + 26_640 + 122_208
    assert training_images(DigitsConfig()) == 0
