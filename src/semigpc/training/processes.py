"""Being one of many processes: joining the group, agreeing on what is trained, and leaving the writing to the first."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import nn

from semigpc.data import Splits
from semigpc.training.experiment import Experiment
from semigpc.training.run_folder import RunFolder
from semigpc.training.settings import SettingError
from semigpc.versions import versions

# How long one process waits for the others: after it, a machine that vanished without a word ends the rest. All have the same
# work between two meetings, so seconds would do, but for a checkpoint on a slow disk and data read for the first time.
PATIENCE = timedelta(minutes=10)
DECISIVE = ("semigpc", "torch", "numpy")  # of whose versions there must be but one
COMPUTING_FEATURES = timedelta(days=30)  # no time limit for one network to go through all images


class ProcessesError(RuntimeError):
    """Processes that cannot work together, or one that is gone; the message names it."""


class RankError(RuntimeError):
    """What went wrong on one process, ``rank``, and was no error of all; ``error`` is what it raised there."""

    def __init__(self, rank: int, error: BaseException) -> None:
        super().__init__(f"rank {rank}: {error}")
        self.rank, self.error = rank, error


def lost_contact(error: BaseException | None) -> bool:
    """Whether an error says no more than that another process is gone, or does not answer."""
    return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo/" in str(error))


@dataclass(frozen=True, kw_only=True)
class Processes:
    """How many processes train together, and which of them are to be started here.

    Args:
        devices: processes on each node, one for each GPU; on a CPU as many as you like.
        nodes: machines, each with as many.
        node_rank: which of them this one is, from 0.
        rendezvous: HOST:PORT of node 0, where all can reach it; only for several nodes.
    """

    devices: int = 1
    nodes: int = 1
    node_rank: int = 0
    rendezvous: str | None = None

    def __post_init__(self) -> None:
        if self.devices < 1 or self.nodes < 1:
            raise SettingError(f"--devices and --nodes must be at least 1; got {self.devices} and {self.nodes}.")
        if not 0 <= self.node_rank < self.nodes:
            raise SettingError(f"--node-rank must lie in [0, {self.nodes}), counting nodes from 0; got {self.node_rank}.")
        if self.nodes > 1 and self.rendezvous is None:
            raise SettingError("several nodes need --rendezvous HOST:PORT, an address of node 0 that all nodes can reach.")
        if self.rendezvous is not None:
            host, _, port = self.rendezvous.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 2**16:
                raise SettingError(f"--rendezvous must be HOST:PORT, such as 10.0.0.1:29500; got {self.rendezvous!r}.")

    @property
    def total(self) -> int:
        """W, of all nodes."""
        return self.devices * self.nodes

    @property
    def write_here(self) -> bool:
        """Whether the run folder is written from here, and not on another node or by another process."""
        return os.environ["RANK"] == "0" if joined() else self.node_rank == 0


def joined() -> bool:
    """Whether torchrun or a batch system has started this process as one of several: RANK and WORLD_SIZE say so."""
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1


def check_room(experiment: Experiment, processes: int) -> None:
    """Refuse more processes than a batch has rows."""
    rows = experiment.train.labeled_batch
    if rows < processes:
        raise SettingError(
            f"train.labeled_batch={rows} is shared by all processes and has no row for each of {processes}. "
            f"Use at most {rows}, or a larger batch."
        )


# Joining -----------------------------------------------------------------------------------------------------------


class _Member(TorchElasticEnvironment):
    """What the environment of a process says of its place."""

    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", 0))

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Nothing to hold it against: the environment is all we know."""


class _Together(DDPStrategy):
    """Fabric's DDP without torch's wrapper, which does not fit what a step does here: see ``sum_gradients``."""

    @property
    def root_device(self) -> torch.device:
        assert self.parallel_devices is not None
        return self.parallel_devices[self.local_rank % len(self.parallel_devices)]  # each may see but one GPU, its own

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        return module


def join(experiment: Experiment) -> Fabric:
    """Take part in the group that the environment describes, with gloo on CPUs and NCCL on GPUs.

    RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say where, LOCAL_RANK which GPU to use.
    """
    cuda = torch.cuda.is_available()
    for name in ("lightning_fabric", "lightning_fabric.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    fabric = Fabric(
        accelerator="cuda" if cuda else "cpu",
        devices=torch.cuda.device_count() if cuda else 1,
        strategy=_Together(cluster_environment=_Member(), process_group_backend="nccl" if cuda else "gloo", timeout=PATIENCE),
        precision=experiment.train.precision,
    )
    fabric.launch()
    return fabric


# Agreeing ----------------------------------------------------------------------------------------------------------


def check_same_everywhere(experiment: Experiment, splits: Splits, fabric: Fabric) -> None:
    """Refuse, on all processes alike, to begin with different settings, data or versions; names the first that differs."""
    ours = _flat(experiment.to_plain()) | {"hash of the split": splits.sha256[:12]}
    ours |= {f"version of {name}": version for name, version in versions().items() if name in DECISIVE}
    everyone: list[dict[str, Any]] = [{} for _ in range(fabric.world_size)]
    dist.all_gather_object(everyone, ours)
    for rank, theirs in enumerate(everyone):
        keys = [key for key in sorted({*everyone[0], *theirs}) if everyone[0].get(key) != theirs.get(key)]
        if keys:
            shown = "; ".join(f"{key} is {theirs.get(key)!r}, not {everyone[0].get(key)!r}" for key in keys[:4])
            raise ProcessesError(
                f"rank {rank} was started otherwise than rank 0: {shown}{' and more' if len(keys) > 4 else ''}. "
                "Give all nodes the same command, data and installation."
            )


def _flat(plain: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Nested dictionaries as one, with keys such as ``train.lr``."""
    flat: dict[str, Any] = {}
    for key, value in plain.items():
        flat |= _flat(value, f"{where}{key}.") if isinstance(value, Mapping) else {f"{where}{key}": value}
    return flat


@contextmanager
def first_of_node_first(fabric: Fabric) -> Iterator[None]:
    """One process on each node does what is inside before the others do, which then find it done."""
    if fabric.world_size == 1:
        yield
        return
    waiting = dist.new_group(timeout=COMPUTING_FEATURES, backend="gloo")
    assert isinstance(waiting, dist.ProcessGroup)
    if fabric.local_rank:
        dist.monitored_barrier(waiting, timeout=COMPUTING_FEATURES)
    yield
    if not fabric.local_rank:
        dist.monitored_barrier(waiting, timeout=COMPUTING_FEATURES)


def anywhere(fabric: Fabric, asked: bool) -> bool:
    """Whether any process says so; the same answer for all."""
    if fabric.world_size == 1:
        return asked
    votes = torch.tensor([int(asked)], device=fabric.device)
    dist.all_reduce(votes)
    return bool(votes)


class Bystander(RunFolder):
    """The run folder as all processes but the first have it: nothing is written or asked of it, which may be elsewhere."""

    writes = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """The first process does."""
        yield

    def refuse_if_taken(self) -> None:
        """The first process does."""

    def start(self, experiment: Experiment, splits: Splits) -> None:
        """The first process does."""

    def check_features(self, origin: dict[str, Any]) -> None:
        """The first process does."""

    def append(self, kind: str, step: int, **values: Any) -> dict[str, Any]:
        """What would have been written."""
        return {"kind": kind, "step": step, **values}

    def metrics_size(self) -> int:
        """Of nothing."""
        return 0

    def rewind_metrics(self, size: int) -> None:
        """The first process does."""
