"""Two processes do what one does."""

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from semigpc.algorithms import ALGORITHMS
from semigpc.training import DivergedError, Experiment, Listener, RunFolder, SettingError, Stopped, train
from semigpc.training.gathered_norm import GatheredBatchNorm, gather_batch_norms
from semigpc.training.launch import _Rank, _verdict
from semigpc.training.processes import Processes, ProcessesError, RankError, check_room, lost_contact
from semigpc.training.run_folder import read_checkpoint
from semigpc.training.shared_network import own_draws
from tests.training.small_runs import small_run
from tests.training.together import run_all

QUICK = ("train.log_steps=1", "train.eval_steps=50", "train.checkpoint_steps=50")
LONG, SHORT = 50, 8


def experiment(algorithm: str, *settings: str) -> Experiment:
    """Fifteen rows, which two processes cannot share evenly."""
    steps = LONG if algorithm == "fixmatch" else SHORT
    return small_run(algorithm, "gp", *QUICK, "train.labeled_batch=15", f"train.steps={steps}", *settings)


def losses(path: Path) -> list[float]:
    entries = map(json.loads, RunFolder(path).metrics.read_text().splitlines())
    return [entry["loss"] for entry in entries if entry["kind"] == "train"]


def assert_same_end(one: Path, two: Path, *, tolerance: float) -> None:
    """Weights, moving average, moments and all of the GP's rows."""
    ours, theirs = read_checkpoint(RunFolder(one).last), read_checkpoint(RunFolder(two).last)
    assert ours.tensors.keys() == theirs.tensors.keys()
    for name, value in ours.tensors.items():
        if value.is_floating_point():
            torch.testing.assert_close(theirs.tensors[name], value, rtol=0, atol=tolerance, msg=name)
        elif "random" in name or "occupied" in name:
            assert torch.equal(theirs.tensors[name], value), name


class Impatient(Listener):
    """Presses Ctrl-C after the fifth step."""

    def step(self, step: int) -> None:
        if step == 4:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_two_processes_train_as_one_does(tmp_path: Path) -> None:
    """In float64, where no ReLU is decided by rounding: in float32 one gate that flips changes a gradient by a tenth."""
    runs = {name: experiment(name) for name in ALGORITHMS}
    members = ("refiner.engine=ensemble", "refiner.engine.members=3")
    runs["classifier"] = experiment("simmatch", "refiner.role=classifier", *members)
    # AdamW does not see the scale of a gradient: half of it, a mean where a sum belongs, would change no loss.
    runs["sgd"] = experiment("freematch", "train.optimizer=sgd", "train.lr=0.05")
    runs["clipped"] = experiment("supervised", "train.optimizer=sgd", "train.clip_norm=0.5")
    jobs: list[dict[str, Any]] = [
        {"experiment": run.to_plain(), "path": str(tmp_path / "two" / name), "precision": "64-true"}
        for name, run in runs.items()
    ]
    for name, run in runs.items():
        exact: Any = replace(run.train, precision="64-true")
        train(replace(run, train=exact), tmp_path / "one" / name)
    run_all("tests.training.together", json.dumps(jobs))
    for name in runs:
        one, two = losses(tmp_path / "one" / name), losses(tmp_path / "two" / name)
        assert len(one) == len(two) == (LONG if name == "fixmatch" else SHORT)
        assert max(abs(a - b) for a, b in zip(one, two, strict=True)) <= 1e-5, name
        assert_same_end(tmp_path / "one" / name, tmp_path / "two" / name, tolerance=1e-6)
    summary = json.loads(RunFolder(tmp_path / "two" / "fixmatch").summary.read_text())
    assert summary["processes"] == 2


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_processes_and_differences_are_refused(tmp_path: Path) -> None:
    spread = experiment("simmatch", "refiner.engine=ensemble", "refiner.engine.members=3")
    plain, other = spread.to_plain(), ["train.lr=1e-3", "seed=1"]
    train(spread, tmp_path / "whole")
    with pytest.raises(Stopped, match="stopped after step 5 of 8"):
        train(spread, tmp_path / "one_then_two", listener=Impatient())
    jobs = [
        {"experiment": plain, "path": str(tmp_path / "two_then_one"), "stop_at": 5},
        {"experiment": plain, "path": str(tmp_path / "other"), "differ": other},
        {"experiment": plain, "path": str(tmp_path / "one_then_two"), "resume": True},
    ]
    run_all("tests.training.together", json.dumps(jobs))

    for number in range(2):  # Ctrl-C reached the first alone
        assert "stopped after step 5 of 8" in (tmp_path / f"two_then_one-{number}.txt").read_text()
        told = (tmp_path / f"other-{number}.txt").read_text()
        assert told.startswith("rank 1 was started otherwise than rank 0: hash of the split is ")
        assert "seed is 1, not 0; train.lr is 0.001, not 0.002" in told
    assert not (tmp_path / "other").exists()

    assert read_checkpoint(RunFolder(tmp_path / "two_then_one").last).state["step"] == 5
    train(spread, tmp_path / "two_then_one", resume=True)
    for name, processes in (("one_then_two", 2), ("two_then_one", 1)):
        assert losses(tmp_path / name) == pytest.approx(losses(tmp_path / "whole"), abs=1e-5)
        assert json.loads(RunFolder(tmp_path / name).summary.read_text())["processes"] == processes


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one, in this process."""
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("momentum", [0.1, None])
def test_gathered_batch_norm_is_torchs(momentum: float | None) -> None:
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.BatchNorm2d(3, momentum=momentum)).double()
    ours = nn.Sequential(nn.BatchNorm2d(3, momentum=momentum)).double()
    gather_batch_norms(ours)
    assert isinstance(ours[0], GatheredBatchNorm)
    for mode in ("train", "frozen", "train", "eval"):
        inputs = [(5 + 2 * torch.randn(4, 3, 2, 2)).double().requires_grad_()]
        inputs.append(inputs[0].detach().clone().requires_grad_())
        answers = []
        for network, rows in zip((theirs, ours), inputs, strict=True):
            network.train(mode != "eval")
            for layer in network.children():
                setattr(layer, "track_running_stats", mode != "frozen")  # noqa: B010 - mypy knows no such attribute
            answers.append(network(rows))
            answers[-1].pow(3).sum().backward()
        torch.testing.assert_close(*answers)
        torch.testing.assert_close(*(rows.grad for rows in inputs))
        torch.testing.assert_close(theirs.state_dict(), ours.state_dict())
    for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_batch_norm_of_an_unknown_kind_is_refused() -> None:
    class Odd(nn.BatchNorm2d):
        pass

    with pytest.raises(TypeError, match="Odd cannot be computed over several processes"):
        gather_batch_norms(nn.Sequential(Odd(3)))


def test_random_layers_draw_apart_and_the_generators_move_on_alike() -> None:
    drawn, after = [], []
    for rank in range(2):
        torch.manual_seed(0)
        with own_draws(rank, torch.device("cpu")):
            drawn.append(torch.rand(3 + rank)[:3])
        after.append(torch.rand(1))
    assert not torch.equal(*drawn)
    assert torch.equal(*after)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    with own_draws(1, torch.device("cpu")):
        pass
    assert torch.equal(torch.rand(1), expected)  # nothing drawn, nothing moved


def rank(number: int, failure: BaseException | None, when: float = 0.0) -> _Rank:
    summary = {"status": "finished"} if failure is None else None
    nobody: Any = SimpleNamespace()
    return _Rank(number, nobody, nobody, nobody, summary, failure, when, ended=True)


MEETING: Any = SimpleNamespace(failure_elsewhere=lambda patience=0.0: None, tell_failure=lambda message: None)  # noqa: ARG005
ECHO = RuntimeError("[third_party/gloo/transport/tcp/pair.cc:1] Connection closed by peer")


def test_the_first_error_is_told_with_its_rank_and_not_its_echoes() -> None:
    assert lost_contact(ECHO)
    ranks = [rank(0, ECHO, 1.0), rank(1, OSError("disk"), 2.0), rank(2, ValueError("later"), time.time())]
    with pytest.raises(RankError, match="rank 1: disk") as told:
        _verdict(ranks, MEETING)
    assert isinstance(told.value.error, OSError)
    with pytest.raises(ProcessesError, match="rank 0 lost contact with the others"):
        _verdict([rank(0, ECHO, 1.0), rank(1, ECHO, 2.0)], MEETING)


def test_an_error_of_all_processes_is_told_as_it_is() -> None:
    with pytest.raises(DivergedError, match=r"^no numbers$"):
        _verdict([rank(number, DivergedError("no numbers")) for number in range(2)], MEETING)
    with pytest.raises(Stopped, match=r"^stopped after step 3"):
        _verdict([rank(number, Stopped("stopped after step 3")) for number in range(2)], MEETING)
    assert _verdict([rank(0, None), rank(1, None)], MEETING) == {"status": "finished"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"devices": 0}, "--devices and --nodes must be at least 1; got 0 and 1"),
        ({"nodes": 2, "node_rank": 2, "rendezvous": "a:1"}, r"--node-rank must lie in \[0, 2\), counting nodes from 0; got 2"),
        ({"nodes": 2}, "several nodes need --rendezvous HOST:PORT"),
        ({"nodes": 2, "rendezvous": "node0"}, "--rendezvous must be HOST:PORT, such as 10.0.0.1:29500; got 'node0'"),
        ({"nodes": 2, "rendezvous": "node0:99999"}, "got 'node0:99999'"),
    ],
)
def test_processes_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        Processes(**options)


def test_more_processes_than_rows_are_refused() -> None:
    check_room(experiment("fixmatch"), 15)
    with pytest.raises(SettingError, match=r"has no row for each of 16\. Use at most 15, or a larger batch"):
        check_room(experiment("fixmatch"), 16)
