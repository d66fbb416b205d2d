"""Prices against counting: images that really go through a network, and operations worked out by
hand.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from semigpc.algorithms import ALGORITHMS
from semigpc.data import DigitsConfig
from semigpc.gp import ExactGP
from semigpc.gp.tiles import FOLD_RANK
from semigpc.models import ModelConfig
from semigpc.paper.cost import (
    MACHINES,
    TRAINING_VIEWS,
    Cost,
    Machine,
    forward_flop,
    gp_step,
    images_a_step,
    price,
    training_images,
)
from semigpc.paper.scales import SUITES
from semigpc.paper.tables import cifar10_lt, fgvc
from semigpc.refiners import REFINERS
from semigpc.training import Experiment, TrainConfig
from semigpc.training.experiment import FrozenConfig
from semigpc.types import Clock, ModelOutput, Networks
from tests.algorithms.tiny import (
    LABELED,
    UNLABELED,
    TinyNetwork,
    configure,
    make_algorithm,
    make_refiner,
    seeded,
    stream,
)


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
def test_as_many_images_are_counted_as_go_through_the_network(
    algorithm: str, options: dict[str, Any], refiner: str
) -> None:
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
    """2 (patches + depth (qkv, attention twice, projection, MLP)), without norms and the
    classifier.
    """
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
def test_a_forward_pass_costs_what_it_should(
    name: str, size: int, tokens: int, width: int, patch: int
) -> None:
    assert forward_flop(ModelConfig(name=name), size) == pytest.approx(
        vit_flop(tokens, width, patch), rel=1e-4
    )


def test_a_step_of_the_gp_costs_what_the_engine_computes() -> None:
    rows, batch, queries, width, classes = 2500, 8, 16, 64, 10
    generator = torch.Generator().manual_seed(0)
    features = torch.nn.functional.normalize(torch.randn(rows, width, generator=generator), dim=1)
    targets = torch.eye(classes)[torch.randint(classes, (rows,), generator=generator)]
    engine = ExactGP(rows, width, classes)
    engine.replace(torch.arange(rows), features, targets)

    def steps(count: int) -> None:
        for _ in range(count):
            slots = torch.randperm(rows, generator=generator)[:batch]
            engine.replace(slots, features[slots], targets[slots])
            engine.mean(features[:queries])

    cycle = FOLD_RANK // (2 * batch)
    steps(cycle)  # until the next step folds

    def in_place(_: Any, first: Any, second: Any, **__: Any) -> int:
        return int(2 * first[0] * first[1] * second[1])

    with FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.addmm_: in_place}
    ) as counter:
        steps(cycle)
    assert engine.inverse.folds == 1
    operations, traffic = gp_step(rows, batch, queries, width, classes)
    assert operations == pytest.approx(counter.get_total_flops() / cycle, rel=0.1)
    assert traffic > 4 * rows**2


def test_the_gp_of_the_paper_costs_what_the_spec_counts() -> None:
    operations, traffic = gp_step(16_300, 8, 8, 384, 10)
    assert operations == pytest.approx(9e9, rel=0.07)
    assert 1.06e9 < traffic < 1.5e9


SLOW = Machine(name="slow", float32=2000.0, float64=400.0, bandwidth=200.0, share=0.5, workers=0)
RUN = Cost(
    steps=3600,
    views=6000,
    learnt=24,
    looked_at=8,
    judged=3600 * 100_000,
    flop=10,
    gp_flop=200.0,
    gp_traffic=300.0,
)


def test_the_hours_of_a_run() -> None:
    hours = RUN.hours(SLOW)  # of 3600 steps: as many as the seconds of one
    assert hours.network == pytest.approx(10 * (3 * 24 + 8) / 1000)
    assert hours.gp == pytest.approx(200 / 200 + 300 / 100)
    assert hours.loading == pytest.approx(1)
    assert hours.evaluation == pytest.approx(100_000 * 10 / 1000 + 1)
    assert hours.total == pytest.approx(0.8 + 4 + 1 + 1001)


def test_workers_load_while_the_rest_computes() -> None:
    hours = RUN.hours(replace(SLOW, workers=2))
    assert hours.loading == pytest.approx(0.5)
    assert hours.total == pytest.approx(0.8 + 4 + 1000)
    photographs = replace(RUN, style="resize", judged=0).hours(replace(SLOW, workers=2))
    assert (
        photographs.total
        == photographs.loading
        == pytest.approx(6000 / TRAINING_VIEWS["resize"] / 2)
    )


def test_a_row_of_the_paper() -> None:
    paper, data = cifar10_lt(root="/data"), SUITES["cifar10"]
    cost = price(paper, data)
    assert (cost.steps, cost.views, cost.learnt, cost.looked_at) == (204_800, 24, 24, 0)
    assert cost.judged == 100 * 10_000
    assert cost.gp_bytes == 4 * 16_300**2
    hours = cost.hours(MACHINES["paper"])
    assert hours.total == pytest.approx(3.2, abs=0.1)
    assert 0 < hours.gp < hours.network
    assert hours.evaluation == pytest.approx(0.18, abs=0.02)
    alone = price(cifar10_lt(root="/data", refiner="similarity"), data)
    assert (alone.gp_bytes, alone.hours(MACHINES["paper"]).gp) == (0, 0)
    aves = fgvc(root="/data")
    assert images_a_step(aves) == (24, 8)  # the teacher sees the labelled images once, for the bank


def test_a_frozen_network_sees_every_image_once() -> None:
    paper = cifar10_lt(root="/data")
    cost = price(replace(paper, frozen=FrozenConfig(views=3, width=256)), SUITES["cifar10"])
    assert cost.embedded == 7 * 12_406 + 10_000
    assert cost.embedding_flop == price(paper, SUITES["cifar10"]).flop
    assert cost.flop == 2 * 192 * 256  # the adapter
    assert cost.hours(MACHINES["cpu"]).loading == 0  # its features are kept
    assert cost.hours(MACHINES["cpu"]).features > cost.hours(MACHINES["cpu"]).network


def test_training_images_of_the_sets() -> None:
    assert training_images(cifar10_lt(root="/data").data) == 12_406
    assert (
        training_images(cifar10_lt(root="/data").override(["data.split.overlap=disjoint"]).data)
        == 12_406 + 3720
    )
    assert training_images(fgvc(root="/data", benchmark="cub").data) == 1000 + 3885
    assert training_images(fgvc(root="/data", benchmark="semi_inat").data) == 13_771 + 91_336
    assert (
        training_images(fgvc(root="/data").override(["data.unlabeled=in+out"]).data)
        == 5959 + 26_640 + 122_208
    )
    assert training_images(DigitsConfig()) == 0
