"""The state of a run: what trains, how it is saved and restored, and the data it trains on."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from semigpc.addons import ADDONS, AddOn
from semigpc.algorithms import ALGORITHMS, Algorithm
from semigpc.data import (
    DATASETS,
    Augment,
    CachedFeatures,
    CacheKey,
    FeatureCache,
    Splits,
    ViewSource,
)
from semigpc.data.loaders import worker_count
from semigpc.io.errors import CheckpointError
from semigpc.io.parts import cache_root
from semigpc.io.threads import granted, using
from semigpc.models import Adapter, Classifier, build_model
from semigpc.models.encoder import Encoder
from semigpc.refiners import REFINERS, GaussianProcessRefiner, Refiner
from semigpc.training.experiment import Experiment, name_of, settings_of
from semigpc.training.label_head import LabelHead
from semigpc.training.optim import average_of, build_optimizer, optimizer_tensors, restore_optimizer
from semigpc.training.processes import prepare_to_share, shared_networks
from semigpc.training.run_folder import Checkpoint
from semigpc.types import HeadSpec, ModelOutput, Networks, Task

Progress = Callable[[int, int], None]  # images done, of so many


@dataclass
class Trainer:
    """The parts of a run that change.

    ``networks`` are the wrapped ones to call, ``model`` and ``average`` the bare ones to save.
    """

    fabric: Fabric
    model: Classifier
    average: nn.Module | None
    optimizer: torch.optim.Optimizer
    networks: Networks
    refiner: Refiner
    addon: AddOn
    algorithm: Algorithm

    @property
    def gp(self) -> GaussianProcessRefiner | None:
        """The refiner, if it is a GP, which can be evaluated as a head of its own."""
        return self.refiner.gp

    @property
    def asked(self) -> nn.Module:
        """The network whose weak views are refined."""
        return self.networks.teacher if self.algorithm.asks_teacher else self.networks.student

    @property
    def evaluated(self) -> nn.Module:
        """The network to evaluate, with the logits of algorithm and add-on.

        It is the moving average where there is one.
        """
        own = self.algorithm.answer if self.algorithm.answers else None
        if own is None and not self.addon.answers:
            return self.networks.teacher
        addon = self.addon if self.addon.answers else None
        return EvaluationNetwork(self.networks.teacher, own, addon)

    def show_blank(self) -> None:
        """Let an add-on see what the network to evaluate makes of an image without content."""
        self.algorithm.show_blank(self.networks.teacher)

    @torch.no_grad()
    def still_finite(self, images: Tensor) -> bool:
        """Return whether the features of these images are finite, in this process."""
        if self.fabric.world_size == 1:
            output: ModelOutput = self.networks.student(images)
        else:  # the bare network in evaluation mode, which needs no other process
            training = self.model.training
            output = self.model.eval()(images)
            self.model.train(training)
        return bool(output.features.isfinite().all())

    def rebuild_gp(self) -> None:
        """Rebuild the GP's inverse, as loading a checkpoint does.

        Done where a run may be resumed, so that the run which goes on and the run which resumes
        start from the same digits.
        """
        self.refiner.rebuild()

    # Saving ---------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return everything that a run needs to continue bit for bit, by part.

        The GP's inverse is left out, as it is a gigabyte at 16 300 rows; see :meth:`rebuild_gp`.
        """
        random = {"cpu": torch.get_rng_state()}
        if self.fabric.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.fabric.device)
        return {
            "model": self.model.state_dict(),
            "average": {} if self.average is None else self.average.state_dict(),
            "optimizer": optimizer_tensors(self.optimizer),
            "algorithm": self.algorithm.state_dict(),
            "random": random,
        }

    def precision_state(self) -> dict[str, Any]:
        """Return the loss scale of 16-bit training, where there is one."""
        return dict(self.fabric.strategy.precision.state_dict())

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint: the inverse of :meth:`tensors` and :meth:`precision_state`."""
        self.restore_networks(checkpoint)
        random = checkpoint.part("random")
        with _fitting():
            restore_optimizer(self.optimizer, checkpoint.part("optimizer"))
            torch.set_rng_state(random["cpu"])
            if "cuda" in random and self.fabric.device.type == "cuda":
                torch.cuda.set_rng_state(random["cuda"], self.fabric.device)
            self.fabric.strategy.precision.load_state_dict(checkpoint.state["precision"])

    def restore_networks(self, checkpoint: Checkpoint) -> None:
        """Load the networks and the algorithm with its memory: all that prediction needs."""
        with _fitting():
            self.model.load_state_dict(checkpoint.part("model"))
            if self.average is not None:
                self.average.load_state_dict(checkpoint.part("average"))
            self.algorithm.load_state_dict(checkpoint.part("algorithm"))


@contextmanager
def _fitting() -> Iterator[None]:
    """Raise a :class:`CheckpointError` if tensors are missing, too many or of other shapes."""
    try:
        yield
    except (RuntimeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(
            "the checkpoint does not fit the experiment in config.json: "
            f"{type(error).__name__}: {error}. Put the run folder back as it was, or train again "
            "in another one."
        ) from error


def stored_label_head(experiment: Experiment, checkpoint: Checkpoint) -> LabelHead | None:
    """Return the label head of a checkpoint; None if the run has none.

    Raises:
        CheckpointError: a part of it is missing or does not fit.
    """
    facts = checkpoint.state.get("label_head")
    if not experiment.has_label_head or facts is None:
        return None
    with _fitting():
        return LabelHead.restored(checkpoint.part("label_head"), facts)


LogitsOf = Callable[[ModelOutput], Tensor]


class EvaluationNetwork(nn.Module):
    """A network with the logits that some algorithms and add-ons compute for evaluation and use.

    Args:
        network: images (M, 3, H, W) to a :class:`ModelOutput`.
        own: from such an output to the algorithm's logits (M, C), if it has any.
        addon: whose logits come last, if it has any.
    """

    def __init__(self, network: nn.Module, own: LogitsOf | None, addon: AddOn | None) -> None:
        super().__init__()
        self.network = network
        self.own = own
        self.addon = addon
        self.training = network.training

    def replaced(self, output: ModelOutput) -> ModelOutput:
        """Return the same output with the logits replaced."""
        if self.own is not None:
            output = output._replace(logits=self.own(output))
        if self.addon is not None:
            output = output._replace(logits=self.addon.answer(output))
        return output

    def forward(self, images: Tensor) -> ModelOutput:
        """Return the network's output with the logits replaced."""
        return self.replaced(self.network(images))


def build_fabric(experiment: Experiment) -> Fabric:
    """Return one CUDA device or the CPU, with the network's precision.

    Apple's GPUs are not used: they have no float64, which the GP needs.
    """
    # This logger recommends TF32.
    logging.getLogger("lightning_fabric.utilities.rank_zero").setLevel(logging.WARNING)
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    fabric = Fabric(
        accelerator=accelerator, devices=1, precision=experiment.train.precision_on(accelerator)
    )
    fabric.launch()
    return fabric


@contextmanager
def products_in(tf32: bool) -> Iterator[None]:
    """Allow a GPU to round the factors of float32 products to TF32, or forbid it.

    torch allows it in convolutions by default.
    """
    switches: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)
    before = [switch.allow_tf32 for switch in switches]
    try:
        for switch in switches:
            switch.allow_tf32 = tf32
        yield
    finally:
        for switch, value in zip(switches, before, strict=True):
            switch.allow_tf32 = value


def assemble(
    experiment: Experiment,
    class_counts: npt.NDArray[np.int64],
    fabric: Fabric,
    *,
    n_unlabeled: int = 0,
    original_counts: npt.NDArray[np.int64] | None = None,
    cached_width: int | None = None,
    blank: Tensor | None = None,
) -> Trainer:
    """Build network, average, optimiser, refiner, add-on and algorithm, all fresh.

    Args:
        experiment: what to build. class_counts: (C,) labelled images of each class. fabric: where.
            n_unlabeled: images.
        original_counts: (C,) before images that the model labelled itself joined.
        cached_width: in frozen mode, of the features that take the place of images.
        blank: see :func:`blank_input`.
    """
    n_classes = len(class_counts)
    heads: dict[str, HeadSpec] = experiment.algorithm.heads | experiment.addon.heads(n_classes)
    model = _network(experiment, n_classes, heads, cached_width)
    refiner = _refiner(experiment, model, heads, fabric.device)
    task = Task(
        class_counts=torch.as_tensor(class_counts),
        labeled_batch=experiment.train.labeled_batch,
        unlabeled_batch=experiment.train.unlabeled_batch,
        n_unlabeled=n_unlabeled,
        n_features=model.n_features,
        original_counts=None if original_counts is None else torch.as_tensor(original_counts),
        blank=blank,
    )
    with settings_of("addon"):
        addon = ADDONS[experiment.addon_name].build(experiment.addon, task)
    with settings_of("algorithm"):
        build = ALGORITHMS[experiment.algorithm_name].build
        algorithm = build(experiment.algorithm, refiner, task, addon).to(fabric.device)
    if fabric.world_size > 1:
        prepare_to_share(model, fabric.device)
    average = average_of(model).to(fabric.device) if experiment.train.ema else None
    optimizer = build_optimizer(model, experiment.train)
    if experiment.train.compile:
        model.compile(dynamic=False)
    # This optimiser divides by the loss scale, where there is one.
    student, optimizer = fabric.setup(model, optimizer)
    networks = _networks(student, average, fabric)
    return Trainer(fabric, model, average, optimizer, networks, refiner, addon, algorithm)


def _network(
    experiment: Experiment, n_classes: int, heads: dict[str, HeadSpec], cached_width: int | None
) -> Classifier:
    """Return the network that trains: in frozen mode, an adapter on features of this width."""
    with settings_of("model"):
        if experiment.frozen is not None and cached_width is not None:
            adapter = Adapter(cached_width, experiment.frozen.width)
            return Classifier(adapter, n_classes, heads)
        return build_model(experiment.model, n_classes, heads)


def _refiner(
    experiment: Experiment, model: Classifier, heads: dict[str, HeadSpec], device: torch.device
) -> Refiner:
    """Return the refiner of the network's features, or of its projections."""
    width = model.n_features
    if experiment.refiner.feature == "projection":
        width = heads["projection"].width
    build = REFINERS[experiment.refiner_name].build
    with settings_of("refiner"):
        return build(experiment.refiner, width, model.n_classes, device=device)


def _networks(student: Any, average: Any, fabric: Fabric) -> Networks:
    """Return the student with its teacher: the average in evaluation mode, or the student."""
    teacher = student
    if average is not None:
        teacher = fabric.setup_module(average)
        teacher.eval()
    if fabric.world_size == 1:
        return Networks(student, teacher)
    return shared_networks(student, teacher, fabric)


# Data ---------------------------------------------------------------------------------------------


class RunData(NamedTuple):
    """The splits of a run, and the source of views: their images, or cached features of these."""

    splits: Splits
    source: ViewSource


def blank_input(experiment: Experiment, device: torch.device) -> Tensor | None:
    """Return the network's input for an image without content; None if no add-on needs it.

    It is an image of equal pixels, (1, 3, s, s); in frozen mode the frozen network's features of
    that image, (1, D), in 16 bits like the cached ones.
    """
    if experiment.addon.blank_pixel is None:
        return None
    size = experiment.augment.image_size
    image = torch.full((1, 3, size, size), experiment.addon.blank_pixel)
    if experiment.frozen is None:
        return image
    with settings_of("model"):
        encoder = Encoder(experiment.model, size, device)
    return encoder(image).half().float()


class DataCache:
    """Keeps the data loaded last, since reading them can take as long as a short run.

    Make a new cache for every command, so that data that change between two commands are read
    again.
    """

    def __init__(self) -> None:
        self._splits: tuple[tuple[object, int], Splits] | None = None
        self._features: tuple[tuple[object, ...], CachedFeatures] | None = None

    def splits(self, data: object, seed: int) -> Splits:
        """Return the splits of a config out of ``DATASETS``, with a seed."""
        if self._splits is None or self._splits[0] != (data, seed):
            self._splits = None  # before others are read: only one of them is in memory
            self._features = None
            self._splits = (data, seed), DATASETS[name_of("data", data)].load(data, seed)
        return self._splits[1]

    def keep(self, data: object, seed: int, splits: Splits) -> None:
        """Keep splits that were made elsewhere, equal to what this config and seed would load."""
        self._splits = (data, seed), splits
        self._features = None

    def run_data(
        self,
        experiment: Experiment,
        device: torch.device | None = None,
        progress: Progress | None = None,
    ) -> RunData:
        """Return splits and view source of an experiment; missing features are computed.

        Args:
            experiment: whose data.
            device: that computes features; without one a GPU if there is one.
            progress: receives how many images are done, and of how many.
        """
        splits = self.splits(experiment.data, experiment.seed)
        if experiment.frozen is None:
            return RunData(splits, Augment(experiment.augment))
        network = (experiment.augment, experiment.model, experiment.frozen)
        key = (experiment.data, experiment.seed, *network)
        if self._features is None or self._features[0] != key:
            self._features = None
            device = device or build_fabric(experiment).device
            self._features = key, cached_features(experiment, splits, device, progress)
        return RunData(splits, self._features[1])


def cached_features(
    experiment: Experiment, splits: Splits, device: torch.device, progress: Progress | None = None
) -> CachedFeatures:
    """Return the features of these splits from the cache; missing ones are computed first."""
    assert experiment.frozen is not None
    augment = experiment.augment
    with settings_of("model"):
        encoder = Encoder(experiment.model, augment.image_size, device)
    key = CacheKey(
        network=experiment.model.name,
        weights=encoder.weights,
        augment=augment,
        views=experiment.frozen.views,
        width=encoder.width,
    )

    def prepare(views: int) -> None:
        if (reason := encoder.accelerate(views, threads=granted())) is not None:
            warnings.warn(
                f"Features are computed in torch, not in the faster ONNX Runtime: {reason}",
                stacklevel=2,
            )

    with using(granted()):
        cache = FeatureCache(key, cache_root())
        workers = worker_count(experiment.train.workers, splits.labeled.images, Augment(augment))
        return cache.features(splits, encoder, prepare=prepare, workers=workers, progress=progress)
