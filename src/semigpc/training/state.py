"""What trains, assembled from an experiment, and how it is saved and restored."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from semigpc.addons import ADDONS, AddOn
from semigpc.algorithms import ALGORITHMS, Algorithm
from semigpc.models import Adapter, Classifier, build_model
from semigpc.refiners import REFINERS, GaussianProcessRefiner, Refiner
from semigpc.training.experiment import Experiment
from semigpc.training.optim import average_of, build_optimizer, optimizer_tensors, restore_optimizer, update_average
from semigpc.training.processes import prepare_to_share, shared_networks
from semigpc.training.run_folder import Checkpoint, CheckpointError
from semigpc.training.settings import settings_of
from semigpc.types import HeadSpec, ModelOutput, Networks, Task


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
    def evaluated(self) -> nn.Module:
        """The network to judge: the moving average where there is one, with the logits that algorithm and add-on answer by."""
        return answering(self.networks.teacher, self.algorithm, self.addon)

    def update_average(self, momentum: float) -> None:
        """Let the moving average follow the network."""
        if self.average is not None:
            update_average(self.average, self.model, momentum)

    @torch.no_grad()
    def still_finite(self, images: Tensor) -> bool:
        """Whether the network's features of these images are numbers; asked of this process alone, as others may be fine."""
        if self.fabric.world_size == 1:
            output: ModelOutput = self.networks.student(images)
        else:  # in evaluation mode, which needs nobody else
            training = self.model.training
            output = self.model.eval()(images)
            self.model.train(training)
        return bool(output.features.isfinite().all())

    def settle(self) -> None:
        """Rebuild the GP's inverse, as loading a checkpoint does.

        Done where a run may be resumed, so that the run which goes on and the run which resumes start from the same digits.
        """
        gp = gp_of(self.refiner)
        if gp is not None:
            gp.rebuild()

    # Saving ---------------------------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Everything needed to go on bit for bit: weights, average, moments, algorithm, refiner, random numbers.

        The GP's inverse is left out, being a gigabyte at 16 300 rows; see :meth:`settle`.
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

    def restore(self, checkpoint: Checkpoint) -> None:
        """The inverse of :meth:`tensors`."""
        self.restore_networks(checkpoint)
        random = checkpoint.part("random")
        with _fitting():
            restore_optimizer(self.optimizer, checkpoint.part("optimizer"))
            torch.set_rng_state(random["cpu"])
            if "cuda" in random and self.fabric.device.type == "cuda":
                torch.cuda.set_rng_state(random["cuda"], self.fabric.device)
            self.fabric.strategy.precision.load_state_dict(checkpoint.state["precision"])

    def restore_networks(self, checkpoint: Checkpoint) -> None:
        """The networks and the algorithm with its memory: all that prediction needs."""
        with _fitting():
            self.model.load_state_dict(checkpoint.part("model"))
            if self.average is not None:
                self.average.load_state_dict(checkpoint.part("average"))
            self.algorithm.load_state_dict(checkpoint.part("algorithm"))


@contextmanager
def _fitting() -> Iterator[None]:
    """Tensors of a checkpoint that are missing, too many or of other shapes."""
    try:
        yield
    except (RuntimeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint does not fit the experiment in config.json: {type(error).__name__}: {error}. Put the run folder "
            "back as it was, or train anew in another one."
        ) from error


def build_fabric(experiment: Experiment) -> Fabric:
    """One CUDA device or the CPU (Apple's GPUs have no float64, which the GP needs); the network's precision as configured."""
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    fabric = Fabric(accelerator=accelerator, devices=1, precision=experiment.train.precision)
    fabric.launch()
    return fabric


def assemble(
    experiment: Experiment,
    class_counts: npt.NDArray[np.int64],
    fabric: Fabric,
    *,
    n_unlabeled: int = 0,
    original_counts: npt.NDArray[np.int64] | None = None,
    cached_width: int | None = None,
) -> Trainer:
    """Network, average, optimiser, refiner, add-on and algorithm, fresh.

    Args:
        experiment: what to make. class_counts: (C,) labelled images of each class. fabric: where. n_unlabeled: images.
        original_counts: (C,) before the model's own labels joined.
        cached_width: in frozen mode, of the features that stand in for images.
    """
    n_classes = len(class_counts)
    heads: dict[str, HeadSpec] = experiment.algorithm.heads | experiment.addon.heads(n_classes)
    with settings_of("model"):
        if experiment.frozen is not None and cached_width is not None:
            model = Classifier(Adapter(cached_width, experiment.frozen.width), n_classes, heads)
        else:
            model = build_model(experiment.model, n_classes, heads)
    width = model.n_features
    if getattr(experiment.refiner, "feature", "backbone") == "projection":
        width = heads["projection"].width
    with settings_of("refiner"):
        refiner = REFINERS[experiment.refiner_name].build(experiment.refiner, width, n_classes, device=fabric.device)
    task = Task(
        class_counts=torch.as_tensor(class_counts),
        labeled_batch=experiment.train.labeled_batch,
        unlabeled_batch=experiment.train.unlabeled_batch,
        n_unlabeled=n_unlabeled,
        n_features=model.n_features,
        original_counts=None if original_counts is None else torch.as_tensor(original_counts),
    )
    with settings_of("addon"):
        addon = ADDONS[experiment.addon_name].build(experiment.addon, task)
    with settings_of("algorithm"):
        build = ALGORITHMS[experiment.algorithm_name].build
        parts = (experiment.algorithm, refiner, task)
        algorithm = build(*parts, addon) if getattr(build, "takes_addons", False) else build(*parts)
    if isinstance(algorithm, nn.Module):
        algorithm.to(fabric.device)

    if fabric.world_size > 1:
        prepare_to_share(model, fabric.device)
    average = average_of(model).to(fabric.device) if experiment.train.ema else None
    optimizer = build_optimizer(model, experiment.train)
    student, _ = fabric.setup(model, optimizer)
    teacher = student if average is None else fabric.setup_module(average)
    if average is not None:
        teacher.eval()
    networks = Networks(student, teacher) if fabric.world_size == 1 else shared_networks(student, teacher, fabric)
    return Trainer(fabric, model, average, optimizer, networks, refiner, addon, algorithm)


def precision_state(fabric: Fabric) -> dict[str, Any]:
    """The loss scale of 16-bit training, where there is one."""
    return dict(fabric.strategy.precision.state_dict())


Answer = Callable[[ModelOutput], Tensor]


class Answering(nn.Module):
    """A network whose logits are replaced.

    Args:
        network: images (M, 3, H, W) to a :class:`ModelOutput`.
        own: the algorithm's answer, from such an output to logits (M, C), if it has one.
        addon: whose answer comes last, if it has one.
    """

    def __init__(self, network: nn.Module, own: Answer | None, addon: AddOn | None) -> None:
        super().__init__()
        self.network, self.own, self.addon = network, own, addon
        self.training = network.training

    def replaced(self, output: ModelOutput) -> ModelOutput:
        """The same output with the logits that are answered by."""
        if self.own is not None:
            output = output._replace(logits=self.own(output))
        if self.addon is not None:
            output = output._replace(logits=self.addon.answer(output))
        return output

    def forward(self, images: Tensor) -> ModelOutput:
        """What the network says, with other logits."""
        return self.replaced(self.network(images))


def answering(network: nn.Module, algorithm: Algorithm, addon: AddOn) -> nn.Module:
    """The network itself, unless the algorithm has a method ``answer`` or the add-on ``answers``."""
    own: Answer | None = getattr(algorithm, "answer", None)
    if own is None and not addon.answers:
        return network
    return Answering(network, own, addon if addon.answers else None)


def gp_of(refiner: Refiner) -> GaussianProcessRefiner | None:
    """The refiner if it is a GP that can be evaluated as a head of its own."""
    return refiner if isinstance(refiner, GaussianProcessRefiner) else None
