"""Two processes do what one does."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import nn

from semigpc.algorithms import ALGORITHMS
from semigpc.io.errors import SettingsError
from semigpc.training import Experiment, RunFolder, Stopped, train
from semigpc.training.processes import (
    _check_devices,
    _is_lost_connection,
    _loss_message,
    has_rank,
    own_draws,
    synchronize_batch_norm,
)
from semigpc.training.run_folder import read_checkpoint
from tests.training.small_runs import StopAt, entries, small_run
from tests.training.together import WITHOUT_BATCH_NORM, run_all

SPARSE = ("train.log_steps=1", "train.eval_steps=50", "train.checkpoint_steps=50")
LONG = 20
SHORT = 8


def experiment(algorithm: str, *settings: str) -> Experiment:
    """Fifteen rows, which two processes cannot share evenly."""
    steps = LONG if algorithm == "fixmatch" else SHORT
    few = ("train.labeled_batch=15", f"train.steps={steps}")
    return small_run(algorithm, "gp", *SPARSE, *WITHOUT_BATCH_NORM, *few, *settings)


def losses(path: Path) -> list[float]:
    return [entry["loss"] for entry in entries(path, "train")]


def assert_same_end(one: Path, two: Path, *, tolerance: float) -> None:
    """Weights, moving average, moments and all of the GP's rows."""
    ours, theirs = read_checkpoint(RunFolder(one).last), read_checkpoint(RunFolder(two).last)
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, value in ours.tensors.items():
        other = theirs.tensors[name]
        if value.is_floating_point():
            torch.testing.assert_close(other, value, rtol=0, atol=tolerance, msg=name)
        elif "random" in name or "occupied" in name:
            assert torch.equal(other, value), name


@pytest.mark.slow
def test_two_processes_train_as_one_does_and_reject_different_settings(tmp_path: Path) -> None:
    """In float64, so that rounding does not grow over the steps."""
    runs = {name: experiment(name) for name in ALGORITHMS}
    members = ("refiner.engine=ensemble", "refiner.engine.members=3")
    runs["classifier"] = experiment("simmatch", "refiner.role=classifier", *members)
    # AdamW does not see the scale of a gradient: half of it, a mean where a sum belongs, would
    # change no loss.
    runs["sgd"] = experiment("freematch", "train.optimizer=sgd", "train.lr=0.05")
    runs["clipped"] = experiment("supervised", "train.optimizer=sgd", "train.clip_norm=0.5")
    jobs: list[dict[str, Any]] = [
        {"experiment": run.to_plain(), "path": str(tmp_path / "two" / name), "precision": "64-true"}
        for name, run in runs.items()
    ]
    for name, run in runs.items():
        exact: Any = replace(run.train, precision="64-true")
        train(replace(run, train=exact), tmp_path / "one" / name)
    other = {"path": str(tmp_path / "other"), "differ": ["train.lr=1e-3", "seed=1"]}
    jobs.append({"experiment": runs["fixmatch"].to_plain(), **other})
    run_all("tests.training.together", json.dumps(jobs))
    for name in runs:
        one, two = losses(tmp_path / "one" / name), losses(tmp_path / "two" / name)
        assert len(one) == len(two) == (LONG if name == "fixmatch" else SHORT)
        assert max(abs(a - b) for a, b in zip(one, two, strict=True)) <= 1e-5, name
        assert_same_end(tmp_path / "one" / name, tmp_path / "two" / name, tolerance=1e-6)
    summary = json.loads(RunFolder(tmp_path / "two" / "fixmatch").summary.read_text())
    assert summary["processes"] == 2

    for rank in range(2):
        message = (tmp_path / f"other-{rank}.txt").read_text()
        assert message.startswith("rank 1 was started differently from rank 0: hash of the split")
        assert "seed is 1, not 0; train.lr is 0.001, not 0.002" in message
    assert not (tmp_path / "other").exists()


@pytest.mark.nightly
def test_a_run_goes_on_with_another_number_of_processes(tmp_path: Path) -> None:
    spread = experiment("simmatch", "refiner.engine=ensemble", "refiner.engine.members=3")
    plain = spread.to_plain()
    train(spread, tmp_path / "whole")
    with pytest.raises(Stopped, match="stopped after step 5 of 8"):
        train(spread, tmp_path / "one_then_two", listener=StopAt(5))
    jobs = [
        {"experiment": plain, "path": str(tmp_path / "two_then_one"), "stop_at": 5},
        {"experiment": plain, "path": str(tmp_path / "one_then_two"), "resume": True},
    ]
    run_all("tests.training.together", json.dumps(jobs))

    for number in range(2):  # Ctrl-C reached the first alone
        assert "stopped after step 5 of 8" in (tmp_path / f"two_then_one-{number}.txt").read_text()

    assert read_checkpoint(RunFolder(tmp_path / "two_then_one").last).state["step"] == 5
    train(spread, tmp_path / "two_then_one", resume=True)
    for name, processes in (("one_then_two", 2), ("two_then_one", 1)):
        assert losses(tmp_path / name) == pytest.approx(losses(tmp_path / "whole"), abs=1e-5)
        assert json.loads(RunFolder(tmp_path / name).summary.read_text())["processes"] == processes


def test_batch_norm_is_synchronized_on_gpus_with_its_parameters_and_activations() -> None:
    deeper = nn.Sequential(BatchNormAct2d(4, act_layer=nn.Tanh))
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), deeper)
    before = network.state_dict()
    synchronize_batch_norm(network, torch.device("cuda"))
    kind = nn.modules.batchnorm._BatchNorm
    layers = [layer for layer in network.modules() if isinstance(layer, kind)]
    assert len(layers) == 2
    assert all(isinstance(layer, nn.SyncBatchNorm) for layer in layers)
    assert isinstance(layers[1].act, nn.Tanh)
    after = network.state_dict()
    assert after.keys() == before.keys()
    assert all(value.data_ptr() == before[name].data_ptr() for name, value in after.items())


def test_batch_norm_on_a_cpu_is_rejected_with_what_to_do() -> None:
    synchronize_batch_norm(nn.Sequential(nn.LayerNorm(3)), torch.device("cpu"))
    words = r"on GPUs only\. On a CPU train in one process.*model\.name=vit_tiny_patch2_32"
    with pytest.raises(SettingsError, match=words):
        synchronize_batch_norm(nn.Sequential(nn.BatchNorm2d(3)), torch.device("cpu"))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.usefixtures("gpu")
def test_random_layers_draw_apart_and_the_generators_move_on_alike(device: str) -> None:
    drawn, after = [], []
    for rank in range(2):
        torch.manual_seed(0)
        with own_draws(rank, torch.device(device)):
            drawn.append(torch.rand(3 + rank, device=device)[:3])
        after.append((torch.rand(1), torch.rand(1, device=device)))
    assert not torch.equal(*drawn)
    assert all(map(torch.equal, *after))
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with own_draws(1, torch.device("cpu")):
        pass
    assert torch.equal(torch.rand(1), expected)  # nothing drawn, nothing moved


ECHO = RuntimeError("[third_party/gloo/transport/tcp/pair.cc:1] Connection closed by peer")


def test_the_message_names_the_process_that_ended() -> None:
    assert _is_lost_connection(ECHO)
    assert not _is_lost_connection(RuntimeError("disk"))
    for rank, codes, words in (
        (
            0,
            {1: 0, 2: -9},
            "rank 2 was killed by SIGKILL, as the system does when memory runs out.",
        ),
        (0, {1: 2}, "rank 1 ended with exit code 2; see its own message."),
        (3, {}, "rank 3 lost the connection to another process, which has ended or does not"),
    ):
        assert _loss_message(rank, codes, ECHO).startswith(words)


def test_more_processes_than_rows_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    _check_devices(experiment("fixmatch"), 15)
    words = r"has no row for each of 16\. Use at most 15 processes"
    with pytest.raises(SettingsError, match=words):
        _check_devices(experiment("fixmatch"), 16)
    assert not has_rank()
    monkeypatch.setenv("RANK", "0")
    assert not has_rank()  # torchrun with one process
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert has_rank()
    with pytest.raises(SettingsError, match=r"has no row for each of 16\."):
        _check_devices(experiment("fixmatch"), 1)
    with pytest.raises(SettingsError, match="devices=1"):
        _check_devices(experiment("fixmatch"), 2)


def test_more_processes_than_gpus_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    words = r"devices=3 needs as many GPUs; this machine has 2\. Use at most 2\."
    with pytest.raises(SettingsError, match=words):
        _check_devices(experiment("fixmatch"), 3)
