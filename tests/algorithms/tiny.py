"""A network, images and a stream small enough for float64 and plain loops."""

import copy
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor, nn

from semigpc.algorithms import ALGORITHMS
from semigpc.models.neural_process import NeuralProcess
from semigpc.refiners import REFINERS, Refiner
from semigpc.types import Batch, Clock, ModelOutput, Networks, StepOutput, Task

Answer = TypeVar("Answer")
CLASSES = 4
COUNTS = (7, 5, 3, 1)  # sixteen labelled images: shares that float32 holds exactly
LABELS = torch.repeat_interleave(torch.arange(CLASSES), torch.tensor(COUNTS))
LABELED, UNLABELED = 5, 10
SIDE, WIDTH, PROJECTION = 4, 6, 5
TASK = Task(torch.tensor(COUNTS), LABELED, UNLABELED, n_unlabeled=UNLABELED, n_features=WIDTH)


class Steppable(Protocol):
    """An algorithm as these tests handle it: a module with a step."""

    refiner: Any

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput: ...

    def double(self) -> "Steppable": ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> object: ...


class TinyNetwork(nn.Module):
    """flatten, linear, batch normalisation: h; on it a linear classifier, a unit projection, a
    rotation head and a process.
    """

    def __init__(self, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.backbone = nn.Sequential(
                nn.Flatten(), nn.Linear(3 * SIDE * SIDE, WIDTH), nn.BatchNorm1d(WIDTH)
            )
            self.classifier = nn.Linear(WIDTH, CLASSES)
            self.inner, self.outer = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, PROJECTION)
            self.rotation = nn.Linear(WIDTH, 4)
            self.heads = nn.ModuleDict({"neural_process": NeuralProcess(WIDTH, CLASSES)})
        self.to(dtype)

    def forward(self, images: Tensor) -> ModelOutput:
        features = self.backbone(images)
        projection = self.outer(torch.relu(self.inner(features)))
        projection = projection / projection.pow(2).sum(dim=1, keepdim=True).sqrt()
        heads = {"projection": projection, "rotation": self.rotation(features)}
        heads |= {name: head(features) for name, head in self.heads.items()}
        return ModelOutput(3 * self.classifier(features), features, heads)


def stream(
    steps: int,
    *,
    seed: int = 0,
    unlabeled: int = UNLABELED,
    repeats: bool = True,
    dtype: torch.dtype = torch.float64,
) -> list[Batch]:
    """Batches around one image a class. With ``repeats``, every second one brings a labelled image
    twice, at two noises.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(rows: int, scale: float) -> Tensor:
        return scale * torch.randn(rows, 3, SIDE, SIDE, generator=generator, dtype=torch.float64)

    centres = noise(CLASSES, 1.0)
    own = noise(len(LABELS), 0.5)

    def draw() -> Batch:
        index = torch.randperm(len(LABELS), generator=generator)[:LABELED]
        if repeats and torch.rand((), generator=generator) < 0.5:
            index[-1] = index[0]
        classes = torch.randint(CLASSES, (unlabeled,), generator=generator)
        clean = centres[classes] + noise(unlabeled, 0.7)
        views = {
            name: clean + noise(unlabeled, s)
            for name, s in (("weak", 0.3), ("strong", 0.8), ("strong2", 0.8))
        }
        x = centres[LABELS[index]] + own[index] + noise(LABELED, 0.3)
        return Batch(
            x.to(dtype),
            LABELS[index],
            index,
            {name: view.to(dtype) for name, view in views.items()},
            torch.arange(unlabeled),
        )

    return [draw() for _ in range(steps)]


def configure(algorithm: str, **options: Any) -> Any:
    """The algorithm's config, with the projection of the tiny network."""
    config = ALGORITHMS[algorithm].config
    if "projection" in config.__dataclass_fields__:
        options = {"projection": PROJECTION, **options}
    return config(**options)


def make_refiner(name: str, width: int = WIDTH, **options: Any) -> Refiner:
    """A refiner from its entry in the registry."""
    entry = REFINERS[name]
    return entry.build(entry.config(**options), width, CLASSES)


def make_algorithm(name: str, refiner: Refiner, *, task: Task = TASK, **options: Any) -> Steppable:
    """An algorithm from its entry in the registry; whatever it draws as it is made is the same
    every time.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(7)
        return cast("Steppable", ALGORITHMS[name].build(configure(name, **options), refiner, task))


def pair(seed: int = 0, dtype: torch.dtype = torch.float64) -> Networks:
    """A student, and a teacher that is somebody else."""
    return Networks(TinyNetwork(seed, dtype), TinyNetwork(seed + 1, dtype))


def copy_of(networks: Networks) -> Networks:
    """The same networks, apart."""
    return copy.deepcopy(networks)


def learn(
    networks: Networks, loss: Tensor, rate: float = 0.1, momentum: float = 0.5
) -> dict[str, Tensor]:
    """Go down the loss once and let the teacher follow. Answers with the gradient; 0 where the loss
    knows no parameter.
    """
    student, teacher = networks
    parameters = dict(student.named_parameters())
    values = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    gradients = {
        name: torch.zeros_like(parameter) if value is None else value
        for (name, parameter), value in zip(parameters.items(), values, strict=True)
    }
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.sub_(rate * gradients[name])
            follower = teacher.get_parameter(name)
            follower.copy_(momentum * follower + (1 - momentum) * parameter)
        for name, value in student.named_buffers():
            teacher.get_buffer(name).copy_(value)
    return gradients


def learn_alike(
    networks: Networks, loss: Tensor, twins: Networks, expected: Tensor, *, rel: float
) -> None:
    """Take a step with each loss; all gradients must agree."""
    gradients = learn(networks, loss)
    for name, gradient in learn(twins, expected).items():
        torch.testing.assert_close(gradients[name], gradient, rtol=rel, atol=rel / 100)


def stream_over(images: int, steps: int) -> list[Batch]:
    """Batches of unlabelled images in random order; the last row repeats the image of the first."""
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randperm(images, generator=generator)[:UNLABELED] for _ in range(steps)]
    return [
        batch._replace(view_index=torch.cat([index[:-1], index[:1]]))
        for batch, index in zip(stream(steps, seed=5), drawn, strict=True)
    ]


def seeded(seed: int, call: Callable[..., Answer], *arguments: Any) -> Answer:
    """What the call answers, with torch's generator at a seed for as long as it takes."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return call(*arguments)
