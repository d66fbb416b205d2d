"""What a run costs, estimated before it is started: images through the network, operations of the
GP, and hours on a GPU.
"""

from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from semigpc.algorithms import ALGORITHMS, ReMixMatchConfig
from semigpc.data.cifar import CifarConfig
from semigpc.gp.tiles import FOLD_RANK, TILE
from semigpc.models import Adapter, ModelConfig, build_model
from semigpc.paper.fgvc import BENCHMARKS, FGVCConfig
from semigpc.paper.scales import Suite
from semigpc.refiners import GPConfig, PlacementConfig
from semigpc.training import Experiment

BACKWARD = 2  # times the forward pass, that going back takes
HOUR = 3600  # seconds
# Views a second that one core makes, two of each image, and images that it reads for evaluation,
# which are decoded once and kept: of images used as they are (32 px, kept) and of photographs (224
# px, decoded). Measured by `python -m benchmarks.loader --workers 1` on a busy machine with two
# cores, so these are lower bounds.
TRAINING_VIEWS = {"pad": 6000.0, "resize": 240.0}
EVALUATION_IMAGES = {"pad": 100_000.0, "resize": 2000.0}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A processor by its maker's figures, and what is assumed of it.

    Args:
        name: for people. float32, float64: operations a second at its peak. bandwidth: bytes a
            second, of its memory.
        share: of these three that a run reaches; an assumption, not a measurement.
        workers: processes that load images while it computes; with 0 it loads them itself.
    """

    name: str
    float32: float
    float64: float
    bandwidth: float
    share: float
    workers: int


MACHINES = {
    "paper": Machine(
        name="one NVIDIA V100",
        float32=15.7e12,
        float64=7.8e12,
        bandwidth=900e9,
        share=1 / 3,
        workers=2,
    ),
    "cpu": Machine(
        name="one CPU core", float32=100e9, float64=50e9, bandwidth=20e9, share=1 / 2, workers=0
    ),
}


class Hours(NamedTuple):
    """Of one run: ``features`` are those of a frozen network; ``loading`` overlaps with the rest if
    there are workers.
    """

    network: float
    gp: float
    loading: float
    evaluation: float
    features: float
    total: float


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of one run.

    Args:
        style: of the images, "pad" or "resize". steps: of the optimiser.
        views: that are loaded a step. learnt: images a step that go forward and backward.
            looked_at: that only go forward.
        judged: images that all evaluations look at together.
        flop: of one image, forward. With a frozen network these five are about the features that
            stand in for images.
        embedded: views of images that a frozen network sees, once for all runs that share them.
            embedding_flop: of one.
        gp_flop, gp_traffic: float64 operations, and bytes of memory read and written, of the GP a
            step.
        gp_bytes: of the inverse of K, half of which is stored.
    """

    style: str = "pad"
    steps: int
    views: int
    learnt: int
    looked_at: int
    judged: int
    flop: int
    embedded: int = 0
    embedding_flop: int = 0
    gp_flop: float = 0.0
    gp_traffic: float = 0.0
    gp_bytes: int = 0

    def hours(self, machine: Machine) -> Hours:
        """Estimate the hours on a machine: a step takes max(network + GP, loading / workers), or
        their sum without workers.

        Evaluation and the features of a frozen network overlap with loading in the same way.
        """
        overlapped = max if machine.workers else lambda *both: sum(both)
        rate, cores = HOUR * machine.share * machine.float32, HOUR * max(1, machine.workers)
        network = self.steps * self.flop * ((1 + BACKWARD) * self.learnt + self.looked_at) / rate
        seconds = self.gp_flop / machine.float64 + self.gp_traffic / machine.bandwidth
        gp = self.steps * seconds / machine.share / HOUR
        loading = (
            0.0 if self.embedded else self.steps * self.views / TRAINING_VIEWS[self.style] / cores
        )
        read = 0.0 if self.embedded else self.judged / EVALUATION_IMAGES[self.style] / cores
        evaluation = overlapped(self.judged * self.flop / rate, read)
        features = overlapped(
            self.embedded * self.embedding_flop / rate,
            self.embedded / TRAINING_VIEWS[self.style] / cores,
        )
        total = overlapped(network + gp, loading) + evaluation + features
        return Hours(network, gp, loading, evaluation, features, total)


def price(experiment: Experiment, data: Suite) -> Cost:
    """Return what a run of this experiment costs on these data; passes that an add-on makes of its
    own are not counted.
    """
    train, frozen, plain = (
        experiment.train,
        experiment.frozen,
        replace(experiment.model, pretrained=None),
    )
    flop, width = forward_flop(plain, experiment.augment.image_size), n_features(plain)
    learnt, looked_at = images_a_step(experiment)
    cost = Cost(
        style=experiment.augment.style,
        steps=train.steps,
        views=train.labeled_batch + _views(experiment) * train.unlabeled_batch,
        learnt=learnt,
        looked_at=looked_at,
        judged=-(-train.steps // train.eval_steps) * data.test_images,
        flop=flop,
    )
    if frozen is not None:
        embedded = (2 * frozen.views + 1) * training_images(experiment.data) + data.test_images
        cost = replace(
            cost, flop=adapter_flop(width, frozen.width), embedded=embedded, embedding_flop=flop
        )
        width = frozen.width
    if not isinstance(experiment.refiner, GPConfig):
        return cost
    size = experiment.refiner.buffer_size
    operations, traffic = gp_step(
        size, train.labeled_batch, train.unlabeled_batch, width, data.n_classes
    )
    return replace(cost, gp_flop=operations, gp_traffic=traffic, gp_bytes=4 * size**2)


def gp_step(rows: int, batch: int, queries: int, width: int, n_classes: int) -> tuple[float, float]:
    """Return operations and bytes of memory that a step of the exact engine takes, with a full
    buffer.

        operations = 2 B N^2 + 2 B N (N + T) + 3 B N R + 2 (B + U) N D + 2 (3 B + U) N C
        bytes = 4 N^2 (1 + 2 / S) + 16 N D

    In this order: the product P C; folding changes into P, whose tiles have T rows; products with
    the R / 2 changes that wait on average to be folded; the kernel; alpha and the means. P is read
    once as half a matrix, and is read and written at every S-th step, when it is folded; the
    features are read for the new rows and for the queries.

    Args:
        rows: N. batch: B, rows replaced. queries: U, means. width: D. n_classes: C.
    """
    columns = 4 * batch * rows + 2 * batch * TILE + 3 * batch * FOLD_RANK
    columns += 2 * (batch + queries) * width + 2 * (3 * batch + queries) * n_classes
    return rows * columns, 4 * rows**2 * (
        1 + 2 / max(1, FOLD_RANK // (2 * batch))
    ) + 16 * rows * width


def training_images(data: Any) -> int:
    """Different images with or without a label, as far as the config of the data tells; 0 if it
    does not.
    """
    if isinstance(data, CifarConfig):
        labeled, unlabeled = map(sum, data.split.counts(data.n_classes))
        return unlabeled if data.split.overlap == "nested" else labeled + unlabeled
    if isinstance(data, FGVCConfig):
        files = BENCHMARKS[data.benchmark].files
        wanted = [
            files[name]
            for name in (data.labels, *(f"u_train_{part}" for part in data.unlabeled.split("+")))
        ]
        return sum(file.images or file.paper_images or 0 for file in wanted)
    return 0


def images_a_step(experiment: Experiment) -> tuple[int, int]:
    """Images that go forward and backward, and those that go forward alone.

    All views share one pass with a gradient, since batch normalisation has to see them together;
    the weak view's gradient is zero and is taken all the same. ReMixMatch labels its weak views
    first, without one; it then learns from its views mixed, from one of them un-mixed and from that
    one turned. Whatever asks the moving average adds a pass of the labelled images.
    """
    labeled, unlabeled = experiment.train.labeled_batch, experiment.train.unlabeled_batch
    learnt, looked_at = labeled + _views(experiment) * unlabeled, 0
    refines = isinstance(experiment.refiner, PlacementConfig)
    if isinstance(experiment.algorithm, ReMixMatchConfig):
        learnt += (2 if experiment.algorithm.rotation_weight else 1) * unlabeled
        looked_at += unlabeled + (labeled if refines else 0)
    bank = getattr(experiment.algorithm, "bank", "")
    if bank.endswith("teacher"):
        looked_at += labeled + (unlabeled if bank == "full_teacher" else 0)
    return learnt, looked_at


def _views(experiment: Experiment) -> int:
    """Return the views of an unlabelled image that the algorithm takes."""
    return len(getattr(ALGORITHMS[experiment.algorithm_name].build, "views", ()))


@cache
def forward_flop(model: ModelConfig, image_size: int) -> int:
    """Of one image, counted on a network without memory or weights; a multiplication and an
    addition are two.
    """
    with torch.device("meta"):
        return _counted(build_model(model, n_classes=2), torch.empty(1, 3, image_size, image_size))


@cache
def n_features(model: ModelConfig) -> int:
    """Return the width of the network's features."""
    with torch.device("meta"):
        return build_model(model, n_classes=2).n_features


@cache
def adapter_flop(n_inputs: int, width: int) -> int:
    """Of one feature through what is trained on it, the heads not counted."""
    with torch.device("meta"):
        return _counted(Adapter(n_inputs, width), torch.empty(1, n_inputs))


def _counted(network: nn.Module, example: Tensor) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.eval()(example)
    return int(counter.get_total_flops())
