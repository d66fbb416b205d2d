"""Networks with extra heads train as plain ones do (algorithms section 11): what decays, at which
rates, and until when.
"""

import functools
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric

from semigpc.addons import ADDONS
from semigpc.algorithms import ALGORITHMS
from semigpc.data import DigitsConfig
from semigpc.models import ModelConfig, build_model
from semigpc.models.backbones import VITS
from semigpc.paper.recipes import shrink
from semigpc.paper.tables import TABLES
from semigpc.training import Experiment, RunFolder, TrainConfig, train
from semigpc.training.loop import take_step
from semigpc.training.optim import build_optimizer, set_rate
from semigpc.training.presets import RECIPES
from semigpc.training.state import Trainer, assemble, build_fabric
from semigpc.types import Batch, Clock, Labeled, StepOutput
from tests.algorithms.tiny import seeded

VIT, WIDE = "vit_tiny_patch2_32", "wrn_28_2"
DEPTH, STEPS, WARMUP, LR, DECAY = 2, 6, 2, 0.01, 0.5
COUNTS = np.array([6, 4, 3, 2])
PAIRS = [  # all but those that are refused
    (algorithm, addon)
    for algorithm, entry in ALGORITHMS.items()
    for addon, extra in ADDONS.items()
    if addon == "none" or not extra.config.needs_unlabeled or getattr(entry.build, "views", None)
]
every_pair = pytest.mark.parametrize(("algorithm", "addon"), PAIRS, ids=str)


@pytest.fixture(scope="module", autouse=True)
def shallow_vit() -> Iterator[None]:
    """The ViT of the CIFAR-10 recipe with two thin blocks: all that these tests ask of it is there,
    and quick.
    """
    small = replace(VITS[VIT], depth=DEPTH, width=12, image_size=8, patch_size=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(VITS, VIT, small)
        yield


def experiment(algorithm: str, addon: str = "none", *settings: str) -> Experiment:
    """A ViT on digits, everything as it comes but for the length of training."""
    made = Experiment(
        data=DigitsConfig(test_per_class=1, validation_per_class=0),
        model=ModelConfig(name=VIT),
        algorithm=ALGORITHMS[algorithm].config(),
        addon=ADDONS[addon].config(),
        train=TrainConfig(steps=STEPS, warmup_steps=WARMUP, lr=LR, layer_decay=DECAY, ema=0.9),
    ).override(["train.epoch_steps=2", "train.workers=0", "train.threads=1"])
    return made.override(settings)


def rate_at(step: int) -> float:
    """Of the heads, by the recipe's formula (section 2)."""
    if step < WARMUP:
        return LR * step / WARMUP
    return LR * math.cos(7 / 16 * math.pi * (step - WARMUP) / (STEPS - WARMUP))


@functools.cache
def fabric() -> Fabric:
    return build_fabric(Experiment())


@functools.cache
def assembled(algorithm: str, addon: str = "none", *settings: str) -> Trainer:
    build = functools.partial(assemble, n_unlabeled=30, blank=torch.zeros(1, 3, 8, 8))
    return seeded(0, build, experiment(algorithm, addon, *settings), COUNTS, fabric())


def step_of(trainer: Trainer, step: int, config: TrainConfig) -> tuple[StepOutput, float]:
    """One step of a run, on random images."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(len(COUNTS)), torch.from_numpy(COUNTS))
    x = torch.randn(6, 4, 3, 8, 8, generator=rng)
    index = torch.randperm(len(labels), generator=rng)[:4]
    views = dict(zip(trainer.algorithm.views, x[2:], strict=False))
    balanced = Labeled(x[1], labels[index], index)
    batch = Batch(x[0], labels[index], index, views, torch.arange(4), balanced)
    clock = Clock(step, config.steps, config.epoch_steps)
    return seeded(step, take_step, trainer, batch, clock, config)


def groups_by_name(trainer: Trainer) -> dict[str, dict[str, Any]]:
    """The optimiser's group of every parameter of the network, each of which is in one."""
    groups = trainer.optimizer.param_groups
    grouped = [(parameter, group) for group in groups for parameter in group["params"]]
    named = {id(parameter): name for name, parameter in trainer.model.named_parameters()}
    assert sorted(named) == sorted(id(parameter) for parameter, _ in grouped)
    return {named[id(parameter)]: group for parameter, group in grouped}


@pytest.mark.slow
@every_pair
def test_positions_and_class_token_never_decay_whatever_heads_there_are(
    algorithm: str, addon: str
) -> None:
    trainer = assembled(algorithm, addon)
    groups = groups_by_name(trainer)
    made = experiment(algorithm, addon)
    heads = {*made.algorithm.heads, *made.addon.heads(len(COUNTS))}
    assert set(trainer.model.heads) == heads
    for name, parameter in trainer.model.named_parameters():
        spared = name in ("backbone.pos_embed", "backbone.cls_token") or parameter.ndim == 1
        assert groups[name]["weight_decay"] == (0 if spared else made.train.weight_decay), name


@every_pair
def test_rates_fall_layer_by_layer_whatever_heads_there_are(algorithm: str, addon: str) -> None:
    for name, group in groups_by_name(assembled(algorithm, addon)).items():
        _, part, *rest = name.split(".")
        if not name.startswith("backbone."):
            below = 0
        elif part == "blocks":
            below = DEPTH - int(rest[0])
        else:
            below = 1 if part == "norm" else DEPTH + 1
        assert group["base_lr"] == pytest.approx(LR * DECAY**below), name


@every_pair
def test_it_runs_as_it_comes_at_the_rate_of_the_cosine(algorithm: str, addon: str) -> None:
    """From a configuration that names algorithm and add-on and nothing else; USB has no schedule
    but for a few pairs.
    """
    plain = {"algorithm": {"name": algorithm}, "addon": {"name": addon}, "train": {"ema": 0.9}}
    named = Experiment.from_plain(plain)
    assert named.algorithm == ALGORITHMS[algorithm].config()
    assert named.addon == ADDONS[addon].config()
    trainer, config = assembled(algorithm, addon), experiment(algorithm, addon).train
    output, rate = step_of(trainer, STEPS - 1, config)
    assert bool(output.loss.isfinite())
    assert rate == pytest.approx(rate_at(STEPS - 1))
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    assert [max(rates), min(rates)] == pytest.approx([rate, rate * DECAY ** (DEPTH + 1)])


def test_every_recipe_and_backbone_ends_at_a_fifth_of_its_rate() -> None:
    groups = [group for table in TABLES.values() for group in table.groups.values()]
    alone = [{"algorithm": name, "refiner": "none"} for name in ALGORITHMS]
    full = [group.make(root="/data", **options) for group in groups for options in alone]
    recipes = [recipe(**options) for recipe in RECIPES.values() for options in alone]
    small = [shrink(made, features) for made in full for features in ("live", "cached")]
    configs = {made.train for made in (*full, *recipes, *small)}
    assert len(configs) > 5
    expected = [math.cos(share * math.pi) for share in (0, 7 / 32, 7 / 16)]
    for backbone in ("small_cnn", WIDE, VIT):
        model = build_model(ModelConfig(name=backbone), 4)
        for config in configs:
            optimizer, warm = build_optimizer(model, config), config.warmup_steps
            steps = (warm, (warm + config.steps) // 2, config.steps)
            rates = [set_rate(optimizer, step, config) / config.lr for step in steps]
            assert rates == pytest.approx(expected, rel=1e-3)
            assert max(group["lr"] for group in optimizer.param_groups) == rates[-1] * config.lr


@pytest.mark.parametrize(("algorithm", "addon"), [("fixmatch", "none"), ("remixmatch", "abc")])
def test_a_run_logs_the_rates_of_the_cosine(algorithm: str, addon: str, tmp_path: Path) -> None:
    train(experiment(algorithm, addon, "train.log_steps=1"), tmp_path)
    lines = [json.loads(line) for line in RunFolder(tmp_path).metrics.read_text().splitlines()]
    logged = [line["lr"] for line in lines if line["kind"] == "train"]
    assert logged == pytest.approx([rate_at(step) for step in range(STEPS)])


def test_clipping_is_a_setting_and_clips() -> None:
    def norm_of_a_step(setting: str) -> float:
        trainer = assembled("fixmatch", "none", setting)
        step_of(trainer, 1, experiment("fixmatch", "none", setting).train)
        gradients = [parameter.grad for parameter in trainer.model.parameters()]
        there = [gradient.flatten() for gradient in gradients if gradient is not None]
        return float(torch.cat(there).norm())

    assert norm_of_a_step("train.clip_norm=0.01") == pytest.approx(0.01, rel=1e-3)
    assert norm_of_a_step("train.clip_norm=0") > 0.1
