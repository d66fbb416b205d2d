"""What a run costs, told before it is started: images through the network, floating-point operations, memory of the GP."""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from semigpc.algorithms import ALGORITHMS, ReMixMatchConfig
from semigpc.data.cifar import CifarConfig
from semigpc.data.fgvc import BENCHMARKS, FGVCConfig
from semigpc.models import Adapter, ModelConfig, build_model
from semigpc.refiners import GPConfig, PlacementConfig
from semigpc.training import Experiment

BACKWARD = 2  # times the forward pass, that going back takes
FLOAT32 = 4  # bytes
ASSUMED_RATES = {"paper": 5e12, "cpu": 50e9}  # FLOP a second that small batches in float32 leave of one GPU, or of a CPU


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one run.

    Args:
        steps: of the optimiser.
        learnt: images a step that go forward and backward. looked_at: those that only go forward.
        judged: images that all evaluations look at together.
        flop: of one image, forward. With a frozen network these four are about the features that stand in for images.
        embedded: views of images that a frozen network sees, once for all runs that share them. embedding_flop: of one.
        gp_bytes: N^2 float32 numbers, of which the engine keeps half; its own work, O(B N^2) a step, is not counted here.
    """

    steps: int
    learnt: int
    looked_at: int
    judged: int
    flop: int
    embedded: int = 0
    embedding_flop: int = 0
    gp_bytes: int

    @property
    def passes(self) -> int:
        """Images through what is trained, in all."""
        return self.steps * (self.learnt + self.looked_at) + self.judged

    @property
    def own_flop(self) -> int:
        """Three times the forward pass for what is learnt from, once for the rest."""
        return self.flop * (self.passes + BACKWARD * self.steps * self.learnt)

    @property
    def shared_flop(self) -> int:
        """Of the frozen network."""
        return self.embedded * self.embedding_flop


def price(experiment: Experiment, test_images: int) -> Cost:
    """What a run of this experiment costs, if every evaluation looks at so many images."""
    train, frozen, plain = experiment.train, experiment.frozen, replace(experiment.model, pretrained=None)
    flop = forward_flop(plain, experiment.augment.image_size)
    learnt, looked_at = images_a_step(experiment)
    cost = Cost(
        steps=train.steps,
        learnt=learnt,
        looked_at=looked_at,
        judged=-(-train.steps // train.eval_steps) * test_images,
        flop=flop,
        gp_bytes=FLOAT32 * experiment.refiner.buffer_size**2 if isinstance(experiment.refiner, GPConfig) else 0,
    )
    if frozen is None:
        return cost
    views = (2 * frozen.views + 1) * training_images(experiment.data) + test_images
    adapter = adapter_flop(plain, frozen.width)
    return replace(cost, flop=adapter, embedded=views, embedding_flop=flop)


def training_images(data: Any) -> int:
    """Different images with or without a label, as far as the config of the data tells; 0 if it does not."""
    if isinstance(data, CifarConfig):
        labeled, unlabeled = map(sum, data.split.counts(data.n_classes))
        return unlabeled if data.split.overlap == "nested" else labeled + unlabeled
    if isinstance(data, FGVCConfig):
        files = BENCHMARKS[data.benchmark].files
        wanted = [files[name] for name in (data.labels, *(f"u_train_{part}" for part in data.unlabeled.split("+")))]
        return sum(file.images or file.paper_images or 0 for file in wanted)
    return 0


def images_a_step(experiment: Experiment) -> tuple[int, int]:
    """Images that go forward and backward, and those that go forward alone.

    All views share one pass with a gradient, since batch normalisation has to see them together; the weak view's gradient is
    zero and is taken all the same. ReMixMatch labels its weak views first, without one; it then learns from its views mixed,
    from one of them un-mixed and from that one turned. Whatever asks the moving average adds a pass of the labelled images.
    """
    labeled, unlabeled = experiment.train.labeled_batch, experiment.train.unlabeled_batch
    views = len(getattr(ALGORITHMS[experiment.algorithm_name].build, "views", ()))
    learnt, looked_at = labeled + views * unlabeled, 0
    refines = isinstance(experiment.refiner, PlacementConfig)
    if isinstance(experiment.algorithm, ReMixMatchConfig):
        learnt += (2 if experiment.algorithm.rotation_weight else 1) * unlabeled
        looked_at += unlabeled + (labeled if refines else 0)
    bank = getattr(experiment.algorithm, "bank", "")
    if bank.endswith("teacher"):
        looked_at += labeled + (unlabeled if bank == "full_teacher" else 0)
    return learnt, looked_at


@cache
def forward_flop(model: ModelConfig, image_size: int) -> int:
    """Of one image, counted on a network without memory or weights; a multiplication and an addition are two."""
    with torch.device("meta"):
        return _counted(build_model(model, n_classes=2), torch.empty(1, 3, image_size, image_size))


@cache
def adapter_flop(model: ModelConfig, width: int) -> int:
    """Of one feature of this network through what is trained on it, the heads not counted."""
    with torch.device("meta"):
        n_inputs = build_model(model, n_classes=2).n_features
        return _counted(Adapter(n_inputs, width), torch.empty(1, n_inputs))


def _counted(network: nn.Module, example: Tensor) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.eval()(example)
    return int(counter.get_total_flops())
