"""Check values of the training recipe, section 2."""

import math

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from semigpc.models import ModelConfig, build_model
from semigpc.training import TrainConfig
from semigpc.training.optim import (
    average_of,
    build_optimizer,
    rate_factor,
    set_rate,
    update_average,
)
from semigpc.types import HeadSpec


def by_name(model: nn.Module, optimizer: Optimizer, key: str) -> dict[str, float]:
    """A setting of the groups of an optimiser, by parameter; each parameter is in one group."""
    found = [(id(one), group[key]) for group in optimizer.param_groups for one in group["params"]]
    assert sorted(one for one, _ in found) == sorted(map(id, model.parameters()))
    return {name: dict(found)[id(one)] for name, one in model.named_parameters()}


def test_the_rate_rises_linearly_and_falls_along_seven_sixteenths_of_a_cosine() -> None:
    config = TrainConfig(steps=204_800, warmup_steps=5120)
    assert rate_factor(0, config) == 0
    assert rate_factor(2560, config) == pytest.approx(0.5)
    assert rate_factor(5120, config) == 1
    middle = 5120 + (204_800 - 5120) // 2
    assert rate_factor(middle, config) == pytest.approx(math.cos(7 / 32 * math.pi), abs=1e-4)
    assert rate_factor(204_800, config) == pytest.approx(0.19509, abs=1e-5)


def test_a_constant_schedule_stays_after_the_warm_up() -> None:
    config = TrainConfig(schedule="constant", warmup_steps=10)
    assert [rate_factor(step, config) for step in (5, 10, 100_000)] == [0.5, 1, 1]


@pytest.mark.parametrize(
    ("lr", "decay", "stem", "last"), [(5e-4, 0.5, 6.10e-8, 2.5e-4), (1e-3, 0.65, 3.70e-6, 6.5e-4)]
)
def test_layers_have_the_rates_of_the_recipe(
    lr: float, decay: float, stem: float, last: float
) -> None:
    heads = {"projection": HeadSpec("projection", 8)}
    model = build_model(ModelConfig(name="vit_tiny_patch2_32"), 10, heads)
    config = TrainConfig(lr=lr, layer_decay=decay)
    optimizer = build_optimizer(model, config)
    named = by_name(model, optimizer, "base_lr")
    assert named["backbone.patch_embed.proj.weight"] == pytest.approx(stem, rel=2e-3)
    assert named["backbone.blocks.11.attn.qkv.weight"] == pytest.approx(last)
    assert named["backbone.norm.weight"] == pytest.approx(last)
    assert named["classifier.weight"] == lr
    assert all(rate == lr for name, rate in named.items() if name.startswith("heads."))
    assert set_rate(optimizer, config.warmup_steps // 2, config) == pytest.approx(lr / 2)
    assert max(group["lr"] for group in optimizer.param_groups) == pytest.approx(lr / 2)


def test_vectors_and_positions_are_not_decayed() -> None:
    model = build_model(ModelConfig(name="vit_tiny_patch2_32"), 10, {})
    named = by_name(model, build_optimizer(model, TrainConfig()), "weight_decay")
    assert named["backbone.blocks.0.mlp.fc1.weight"] == 5e-4
    assert named["backbone.blocks.0.mlp.fc1.bias"] == named["backbone.norm.weight"] == 0
    assert named["backbone.pos_embed"] == named["backbone.cls_token"] == 0


def test_the_average_follows_parameters_and_copies_statistics() -> None:
    linear, norm = nn.Linear(3, 2), nn.BatchNorm1d(2)
    average = average_of(nn.Sequential(linear, norm))
    before = average.state_dict()["0.weight"].clone()
    with torch.no_grad():
        linear.weight.add_(1)
        norm.running_mean = torch.full((2,), 5.0)
    update_average(average, nn.Sequential(linear, norm), 0.9)
    after = average.state_dict()
    assert torch.allclose(after["0.weight"], before + 0.1)
    assert torch.equal(after["1.running_mean"], torch.full((2,), 5.0))
    assert not average.training
    assert not any(parameter.requires_grad for parameter in average.parameters())
