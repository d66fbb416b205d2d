"""Runs on a pretended GPU: every part of the package keeps its tensors where they belong, and
planted mistakes are found.
"""

import inspect
import textwrap
from collections.abc import Callable
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from semigpc.addons import ABC, ADDONS, CoSSLConfig
from semigpc.algorithms import ALGORITHMS
from semigpc.algorithms.comatch import CoMatch
from semigpc.algorithms.remixmatch import ReMixMatch
from semigpc.export.network import Kind
from semigpc.export.run import export_run
from semigpc.gp import ExactGP
from semigpc.gp.matrix_free import MatrixFreeGP
from semigpc.models.encoder import EmbedConfig
from semigpc.pseudo_labels import one_hot
from semigpc.refiners import REFINERS, GaussianProcessRefiner, GPConfig
from semigpc.training import Experiment, FrozenConfig, train
from semigpc.training.inference import load_run
from semigpc.training.metrics import PseudoLabelStats
from semigpc.types import Batch
from tests.addons.test_composition import check_resumes
from tests.batteries import combinations
from tests.pretend_device import CUDA, PretendDevice
from tests.training.small_runs import small_run

SHORT = (
    *("data.test_per_class=6", "data.validation_per_class=3", "data.split.unlabeled_head=60"),
    *("train.steps=6", "train.epoch_steps=2", "train.eval_steps=6", "train.checkpoint_steps=3"),
    *("train.log_steps=2", "train.workers=0"),
)


def tiny_run(algorithm: str = "fixmatch", refiner: str = "gp", *settings: str) -> Experiment:
    """Six steps with an evaluation, logging and two checkpoints; memories are in use from the third
    on.
    """
    memory = ["refiner.warmup_steps=2"] if refiner != "none" else []
    return small_run(algorithm, refiner, *SHORT, *memory, *settings)


def train_on(gpu: PretendDevice, experiment: Experiment, path: Path) -> None:
    assert train(experiment, path)["status"] == "finished"
    assert gpu.waits  # the loss was on the device, at least


# Every part ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "refiner"), combinations(list(ALGORITHMS), list(REFINERS)))
def test_algorithm_and_refiner(
    algorithm: str, refiner: str, gpu: PretendDevice, tmp_path: Path
) -> None:
    train_on(gpu, tiny_run(algorithm, refiner), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        *("refiner.engine=ensemble", "refiner.engine=matrix_free"),
        "refiner.learn=leave_one_out refiner.learn_steps=4",
        *("refiner.kernel=cosine", "refiner.kernel=ntk", "refiner.kernel_clip=0.1"),
        "refiner.role=classifier refiner.exclude_same_index=true",
        "refiner.confidence=variance refiner.balanced=true",
        "refiner.confidence=expected refiner.balanced=true",
        "refiner.eval_buffer=rebuilt refiner.eval_head=gp",
        "train.precision=16-mixed train.clip_norm=1",
        *("train.precision=bf16-mixed", "train.optimizer=sgd train.ema=0"),
    ],
)
def test_engine_kernel_and_precision(settings: str, gpu: PretendDevice, tmp_path: Path) -> None:
    train_on(gpu, tiny_run("fixmatch", "gp", *settings.split()), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("addon", [name for name in ADDONS if name != "none"])
def test_addon(addon: str, gpu: PretendDevice, tmp_path: Path) -> None:
    config = CoSSLConfig(warmup=0.5, start_steps=2) if addon == "cossl" else ADDONS[addon].config()
    train_on(gpu, replace(tiny_run("fixmatch", "none"), addon=config), tmp_path / "run")


# These draw random numbers on the device.
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["remixmatch", "npmatch"])
@pytest.mark.usefixtures("gpu")
def test_a_killed_run_resumes_to_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    check_resumes(tiny_run(algorithm), tmp_path)


def test_a_run_is_used_on_the_device_and_without_one(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with PretendDevice():
        train(tiny_run(), path)
        run = load_run(path)
        assert run.device == CUDA
        there = run.predict(run.part("test")[1]).probs
    run = load_run(path)
    here = run.predict(run.part("test")[1]).probs
    assert here.keys() == there.keys() == {"linear", "gp"}
    assert all(np.allclose(values, here[head], atol=1e-5) for head, values in there.items())


@pytest.mark.slow
@pytest.mark.usefixtures("gpu")
def test_export_of_a_run_on_frozen_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "cache"))
    run = tiny_run("simmatch", "gp", "refiner.eval_head=gp")
    train(replace(run, frozen=FrozenConfig(views=2, width=32)), tmp_path / "run")
    for kind in get_args(Kind):
        assert export_run(tmp_path / "run", kind=kind).path.exists()


@pytest.mark.usefixtures("gpu")
def test_embedding_of_images() -> None:
    encoder = EmbedConfig(model="small_cnn", pretrained="none", image_size=32).encoder()
    assert encoder.device.type == "cuda"
    assert encoder(torch.zeros(2, 32, 32, 3, dtype=torch.uint8)).device.type == "cpu"


@pytest.mark.usefixtures("gpu")
def test_a_refiner_that_moves_to_the_device_in_a_loop_of_its_own() -> None:
    refiner = GaussianProcessRefiner(GPConfig(buffer_size=32, warmup_steps=0), 8, 3).to("cuda")
    labels = torch.arange(12, device="cuda") % 3
    for _ in range(4):
        refiner.remember(torch.randn(12, 8, device="cuda"), labels)
    assert refiner.probs(torch.randn(5, 8, device="cuda")).device == CUDA
    assert refiner.cpu().probs(torch.randn(5, 8)).device.type == "cpu"


# Planted mistakes ---------------------------------------------------------------------------------


def _edited(
    function: Callable[..., Any], right: str, wrong: str
) -> Callable[[pytest.MonkeyPatch], None]:
    """Plant a mistake in a function of the package, by another text in place of one that it
    contains.
    """

    def plant(patch: pytest.MonkeyPatch) -> None:
        bare = inspect.unwrap(function)
        source = textwrap.dedent(inspect.getsource(bare))
        assert right in source, f"{bare.__qualname__} has changed: plant the mistake elsewhere"
        made: dict[str, Any] = {}
        code = compile(source.replace(right, wrong), inspect.getfile(bare), "exec")
        exec(code, vars(inspect.getmodule(bare)), made)
        edited = made[bare.__name__]
        edited = inspect.unwrap(getattr(edited, "__func__", edited))
        patch.setattr(bare, "__code__", edited.__code__)

    return plant


def _leave_targets(patch: pytest.MonkeyPatch) -> None:
    move = Fabric.to_device

    def moved(fabric: Fabric, values: Any) -> Any:
        there = move(fabric, values)
        return there._replace(y=values.y) if isinstance(values, Batch) else there

    patch.setattr(Fabric, "to_device", moved)


def _do_not_register(patch: pytest.MonkeyPatch) -> None:
    register = nn.Module.register_buffer

    def registered(module: nn.Module, name: str, tensor: Any, persistent: bool = True) -> None:
        if name == "mean_probs":
            object.__setattr__(module, name, tensor)
        else:
            register(module, name, tensor, persistent)

    patch.setattr(nn.Module, "register_buffer", registered)


def _do_not_move(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoMatch, "to", lambda module, *_: module)


def _restore_to_the_host(patch: pytest.MonkeyPatch) -> None:
    assigning = partialmethod(nn.Module.load_state_dict, assign=True)
    patch.setattr(nn.Module, "load_state_dict", assigning)


DRAW = "torch.rand(len(probs), device=probs.device) < probs"
WITH_ABC = replace(tiny_run(), addon=ADDONS["abc"].config())
PRIOR = GaussianProcessRefiner._class_prior
MISTAKES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Experiment]] = {
    "an index of the device for a table of the host": (
        _edited(PseudoLabelStats.add, "self.truth = self.truth.to(labels.device)", "pass"),
        tiny_run("fixmatch", "none"),
    ),
    "a mask on the host": (_edited(ABC._draw, DRAW, f"({DRAW}).cpu()"), WITH_ABC),
    "a generator of the host": (
        _edited(ABC._draw, "=probs.device", "=probs.device, generator=torch.Generator()"),
        WITH_ABC,
    ),
    "a number of the device among tensors of the host": (
        _edited(PRIOR, "counts.sum()", "counts.sum().to(self.engine.device)"),
        tiny_run(),
    ),
    "a vector left on the host": (
        _edited(GaussianProcessRefiner._mean, ".to(mean, non_blocking=True)", ""),
        tiny_run(),
    ),
    "arange without a device": (_edited(one_hot, ", device=labels.device", ""), tiny_run()),
    "targets drawn on the host": (
        _edited(ReMixMatch.step, ", device=strong.device", ""),
        tiny_run("remixmatch", "none"),
    ),
    "numpy of a tensor of the device": (
        _edited(PseudoLabelStats.flush, ".cpu().numpy()", ".numpy()"),
        tiny_run("fixmatch", "none"),
    ),
    "cat of both": (
        _edited(MatrixFreeGP._relax, ".to(self.device, non_blocking=True)", ""),
        tiny_run("fixmatch", "gp", "refiner.engine=matrix_free", "refiner.engine.tolerance=1e-6"),
    ),
    "out= on the host": (
        _edited(ExactGP._update, "out=self.solution[:, :n]", "out=self.solution[:, :n].cpu()"),
        tiny_run(),
    ),
    "labels of a batch left on the host": (_leave_targets, tiny_run("fixmatch", "none")),
    "a buffer that is not registered": (_do_not_register, tiny_run("freematch", "none")),
    "a module that is not moved": (_do_not_move, tiny_run("comatch", "none")),
}
COMPLAINTS = r"same device|on cpu or on the same device|device type"


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.usefixtures("gpu")
def test_a_planted_mistake_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, experiment = MISTAKES[name]
    plant(monkeypatch)
    with pytest.raises((RuntimeError, TypeError), match=COMPLAINTS):
        train(experiment, tmp_path / "run")


@pytest.mark.usefixtures("gpu")
def test_a_state_restored_to_the_host_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tiny_run("fixmatch", "none"), tmp_path / "run")
    _restore_to_the_host(monkeypatch)
    run = load_run(tmp_path / "run")
    images = run.part("test")[1]
    with pytest.raises(RuntimeError, match=COMPLAINTS):
        run.predict(images)
