"""The defects of USB that are not to come back (algorithms section 11): the test of each row, and
some that live here.
"""

import importlib
import inspect
import json
import pkgutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import semigpc.addons
import semigpc.algorithms
import semigpc.refiners
from semigpc.addons import ADDONS
from semigpc.algorithms import ALGORITHMS
from semigpc.data import Augment
from semigpc.data.augment import CIFAR10_MEAN, CIFAR10_STD
from semigpc.io.errors import SettingsError
from semigpc.paper.recipes import cifar10_lt
from semigpc.refiners import REFINERS
from semigpc.training import Experiment, TrainConfig, loop, train
from semigpc.training.loop import take_step
from semigpc.training.presets import TrainOptions, resolve
from semigpc.training.state import Trainer
from semigpc.types import Batch, Clock, StepOutput
from tests.data.samples import plain_view
from tests.training.small_runs import small_run


def test_cifar_10_can_be_normalised_by_its_own_statistics() -> None:
    """The recipe keeps ImageNet's, as in USB (recipe section 5); the older ones are two settings,
    and reach the images.
    """
    own = [f"augment.mean={json.dumps(CIFAR10_MEAN)}", f"augment.std={json.dumps(CIFAR10_STD)}"]
    grey = Image.new("RGB", (32, 32), (125, 123, 114))
    recipe = cifar10_lt(root="/data", algorithm="fixmatch", refiner="none")
    imagenet = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    for settings, (mean, std) in ((own, (CIFAR10_MEAN, CIFAR10_STD)), ([], imagenet)):
        augment = recipe.override(settings).augment
        assert (augment.mean, augment.std) == (mean, std)
        pixels = torch.tensor([125.0, 123.0, 114.0]) / 255
        expected = (pixels - torch.tensor(mean)) / torch.tensor(std)
        view = plain_view(Augment(augment), grey).mean(dim=(1, 2))
        torch.testing.assert_close(view, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("key", ["train.clip", "train.clip_grad", "clip", "clip_grad"])
def test_a_misspelt_clip_is_refused_by_name(key: str) -> None:
    made, _ = resolve("digits", TrainOptions(refiner="none"))
    with pytest.raises(SettingsError, match=rf"'{key}'; did you mean 'train\.clip_norm'\?"):
        made.override([f"{key}=1.0"])


@pytest.mark.slow
def test_a_run_sees_its_images_in_the_order_of_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Batch] = []

    def write_down(
        trainer: Trainer, batch: Batch, clock: Clock, config: TrainConfig
    ) -> tuple[StepOutput, float]:
        seen.append(batch)
        return take_step(trainer, batch, clock, config)

    monkeypatch.setattr(loop, "take_step", write_down)

    def order(name: str, *settings: str) -> list[list[int]]:
        seen.clear()
        short = ("train.steps=3", "data.test_per_class=1")
        train(small_run("fixmatch", "none", *short, *settings), tmp_path / name)
        orders = ([batch.index for batch in seen], [batch.view_index for batch in seen])
        return [torch.cat(order).tolist() for order in orders]

    first, again, other = order("first"), order("again"), order("other", "seed=1")
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]


@pytest.mark.parametrize(
    ("room", "registry"),
    [(semigpc.algorithms, ALGORITHMS), (semigpc.addons, ADDONS), (semigpc.refiners, REFINERS)],
)
def test_nothing_is_offered_without_code(room: Any, registry: Any) -> None:
    """Every config in a room is that of an entry which can be built, or what several of them have
    in common.
    """
    listed = {entry.config for entry in registry.values()}
    there = set()
    for found in pkgutil.iter_modules(room.__path__):
        module = importlib.import_module(f"{room.__name__}.{found.name}")
        values = [value for name, value in vars(module).items() if name.endswith("Config")]
        classes = [value for value in values if inspect.isclass(value)]
        there |= {value for value in classes if value.__module__.startswith(room.__name__)}
    assert listed <= there
    for config in there - listed:
        assert any(issubclass(other, config) for other in listed), config
    assert all(callable(entry.build) for entry in registry.values())
    kind = room.__name__.rpartition(".")[2].removesuffix("s")
    with pytest.raises(SettingsError, match=f"unknown {kind} 'simis'"):
        Experiment.from_plain({kind: {"name": "simis"}})
