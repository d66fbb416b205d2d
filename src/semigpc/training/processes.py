"""Several processes that train together: start and join them, share each batch.

Lightning Fabric starts and watches the processes of one machine; torchrun, or a
batch system that sets the same variables, starts those of any number of machines. Every process
runs the same command and takes its share of each batch.
"""

import logging
import os
import signal
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from semigpc.data import Splits
from semigpc.io.errors import ProcessesError, SettingsError
from semigpc.io.versions import versions
from semigpc.training.experiment import Experiment, flattened
from semigpc.training.run_folder import RunFolder
from semigpc.types import ModelOutput, Networks

# How long a process waits for the others in a collective. They do the same work between two of
# these, so seconds would do, but for a checkpoint on a slow disk and data that are read for the
# first time.
PATIENCE = timedelta(minutes=10)
# seconds for the other processes to end by themselves after an error, and to print their own
GRACE = 5.0
COMPARED_VERSIONS = (
    "semigpc",
    "torch",
    "numpy",
)  # packages whose version must be the same in all processes


class Stopped(Exception):  # noqa: N818 - not an error
    """The run was interrupted and saved; it can be resumed."""


class RankError(RuntimeError):
    """An error of one process: ``rank`` is its number and ``error`` what was raised there."""

    def __init__(self, rank: int, error: BaseException) -> None:
        super().__init__(f"rank {rank}: {error}")
        self.rank = rank
        self.error = error


# Starting and joining -----------------------------------------------------------------------------


def has_rank() -> bool:
    """Return whether torchrun or a batch system started this process as one of several (RANK and
    WORLD_SIZE are set).
    """
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1


@contextmanager
def process_group(
    experiment: Experiment, path: Path, devices: int, *, resume: bool
) -> Iterator[Fabric]:
    """Start ``devices - 1`` further processes that run the same command, or join those that
    torchrun started.

    Rank 0 is this process if it starts the others. Errors that all processes raise alike are raised
    by rank 0 alone; the others exit without a message. After any error the processes that were
    started here are ended.

    Args:
        experiment: whose batch is shared. path: of the run folder. resume: whether that folder may
            hold a run.
        devices: processes on this machine, one for each GPU; 1 under torchrun.

    Raises:
        SettingsError: there are more processes than GPUs or than rows of a batch.
        RankError: this process failed. ProcessesError: another one did, or they were started
            differently.
    """
    _check_devices(experiment, devices)
    if "RANK" not in os.environ and not resume:
        RunFolder(path).refuse_if_taken()
    fabric = join(experiment, devices)
    try:
        yield fabric
        dist.destroy_process_group()
    except BaseException as error:
        codes = _end_other_processes(fabric)
        if isinstance(error, Stopped | SettingsError | ProcessesError | KeyboardInterrupt):
            if fabric.is_global_zero:
                raise
            raise SystemExit(not isinstance(error, Stopped)) from error
        if _is_lost_connection(error):
            raise ProcessesError(_loss_message(fabric.global_rank, codes, error)) from error
        raise RankError(fabric.global_rank, error) from error


def join(experiment: Experiment, devices: int = 1) -> Fabric:
    """Return the Fabric of this process once all have joined, with NCCL on GPUs and gloo on CPUs.

    With RANK in the environment the processes exist, and RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    and LOCAL_RANK describe them. Otherwise the first call starts the rest of ``devices`` processes,
    which come to this line by themselves.
    """
    for name in ("rank_zero", "distributed"):  # which announce every process
        logging.getLogger(f"lightning_fabric.utilities.{name}").setLevel(logging.WARNING)
    cuda = torch.cuda.is_available()
    external = "RANK" in os.environ
    if external:
        devices = torch.cuda.device_count() if cuda else 1
    environment = _ExternalEnvironment() if external else LightningEnvironment()
    accelerator = "cuda" if cuda else "cpu"
    fabric = Fabric(
        accelerator=accelerator,
        devices=devices,
        strategy=_SharedBatchStrategy(cluster_environment=environment, timeout=PATIENCE),
        precision=experiment.train.precision_on(accelerator),
    )
    fabric.launch()
    return fabric


class _ExternalEnvironment(TorchElasticEnvironment):
    """The variables that torchrun sets, also where a batch system sets them."""

    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", 0))

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Accept any number: the environment alone defines it."""


class _SharedBatchStrategy(DDPStrategy):
    """Fabric's DDP without torch's wrapper around the network, which does not suit these steps: see
    ``sum_gradients``.
    """

    @property
    def root_device(self) -> torch.device:
        assert self.parallel_devices is not None
        # A process may see only its own GPU.
        return self.parallel_devices[self.local_rank % len(self.parallel_devices)]

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]
        return module


def _check_devices(experiment: Experiment, devices: int) -> None:
    if "RANK" in os.environ and devices > 1:
        raise SettingsError(
            "torchrun or the batch system has started the processes: use devices=1."
        )
    if torch.cuda.is_available() and devices > torch.cuda.device_count():
        gpus = torch.cuda.device_count()
        raise SettingsError(
            f"devices={devices} needs as many GPUs; this machine has {gpus}. Use at most {gpus}."
        )
    processes = int(os.environ["WORLD_SIZE"]) if has_rank() else devices
    rows = experiment.train.labeled_batch
    if rows < processes:
        raise SettingsError(
            f"train.labeled_batch={rows} is shared by all processes and has no row for each of "
            f"{processes}. Use at most {rows} processes, or a larger batch."
        )


def _end_other_processes(fabric: Fabric) -> dict[int, int]:
    """End the processes that Fabric started here; return exit codes of those that had ended."""
    launched: list[subprocess.Popen[bytes]] = getattr(fabric.strategy.launcher, "procs", [])
    processes = dict(enumerate(launched, start=1))
    launched.clear()  # Fabric's observer thread looks at this list, and would kill this process too
    codes = {}
    for rank, process in processes.items():
        with suppress(subprocess.TimeoutExpired):
            codes[rank] = process.wait(GRACE)
    for process in processes.values():
        process.kill()
    return codes


def _is_lost_connection(error: BaseException) -> bool:
    """Return whether an error means only that another process has ended or does not respond."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "gloo/" in str(error)
    )


def _loss_message(rank: int, codes: Mapping[int, int], error: BaseException) -> str:
    other = next((number for number, code in codes.items() if code), None)
    if other is None:
        cause = (
            f"rank {rank} lost the connection to another process, which has ended or does not "
            f"respond ({error})"
        )
    elif codes[other] < 0:
        killed_by = signal.Signals(-codes[other])
        cause = f"rank {other} was killed by {killed_by.name}"
        if killed_by == signal.SIGKILL:
            cause += ", as the system does when memory runs out"
    else:
        cause = f"rank {other} ended with exit code {codes[other]}; see its own message"
    return f"{cause}. All processes were ended. What was saved is intact: go on with resume=True."


# Agreement ----------------------------------------------------------------------------------------


def check_same_everywhere(experiment: Experiment, splits: Splits, fabric: Fabric) -> None:
    """Raise an error, in all processes alike, if settings, data or versions differ."""
    ours = flattened(experiment.to_plain()) | {"hash of the split": splits.sha256[:12]}
    ours |= {
        f"version of {name}": version
        for name, version in versions().items()
        if name in COMPARED_VERSIONS
    }
    everyone: list[dict[str, Any]] = [{} for _ in range(fabric.world_size)]
    dist.all_gather_object(everyone, ours)
    for rank, theirs in enumerate(everyone):
        first = everyone[0]
        keys = [key for key in sorted({*first, *theirs}) if first.get(key) != theirs.get(key)]
        if keys:
            named = [f"{key} is {theirs.get(key)!r}, not {first.get(key)!r}" for key in keys[:4]]
            more = " and more" if len(keys) > 4 else ""
            raise ProcessesError(
                f"rank {rank} was started differently from rank 0: {'; '.join(named)}{more}. Use "
                "the same command, data and installation on all machines."
            )


# One batch over all processes ---------------------------------------------------------------------


class SharedNetwork(nn.Module):
    """A network that returns the outputs of all rows of a batch, of which each process computes its
    own share.

    Process r of W computes rows floor(r M / W) to floor((r + 1) M / W) of the M that every process
    has; the outputs are gathered in the order of the rows. So algorithm, refiner, GP and loss see
    the same outputs everywhere and need not know of processes. The backward pass goes through a
    process's own rows only: the gradients of all processes add up to that of the whole batch, see
    :func:`sum_gradients`. Fewer rows than processes, as at the end of an evaluation, are computed
    by all, without gradient.

    Args:
        network: images (m, 3, H, W) to a :class:`ModelOutput`; see :func:`prepare_to_share`.
        fabric: of the process group.
    """

    def __init__(self, network: nn.Module, fabric: Fabric) -> None:
        super().__init__()
        self.network = network
        self.rank = fabric.global_rank
        self.n_ranks = fabric.world_size

    def forward(self, images: Tensor) -> ModelOutput:
        """Images (M, 3, H, W), the same in all processes, to outputs of all M rows."""
        bounds = [rank * len(images) // self.n_ranks for rank in range(self.n_ranks + 1)]
        sizes = [last - first for first, last in pairwise(bounds)]
        with own_draws(self.rank, images.device):
            if not all(sizes):
                assert not torch.is_grad_enabled(), "a batch must have a row for each process"
                whole: ModelOutput = self.network(images)
                return whole
            own: ModelOutput = self.network(images[bounds[self.rank] : bounds[self.rank + 1]])
        logits, features, *heads = _GatherRows.apply(
            self.rank, sizes, own.logits, own.features, *own.heads.values()
        )
        return ModelOutput(logits, features, dict(zip(own.heads, heads, strict=True)))


def shared_networks(student: nn.Module, teacher: nn.Module, fabric: Fabric) -> Networks:
    """Return both networks, each of them shared by all processes."""
    network = SharedNetwork(student, fabric)
    return Networks(
        network,
        network if teacher is student else SharedNetwork(teacher, fabric).train(teacher.training),
    )


def prepare_to_share(model: nn.Module, device: torch.device) -> None:
    """Move a network to a device, let its batch normalisation see the rows of all processes, and
    copy rank 0's weights.
    """
    synchronize_batch_norm(model, device)
    with torch.no_grad():
        for tensor in (
            model.to(device).state_dict().values()
        ):  # pretrained weights may come from another file on each machine
            weights = tensor.contiguous()
            dist.broadcast(weights, src=0)
            tensor.copy_(weights)


def synchronize_batch_norm(model: nn.Module, device: torch.device) -> None:
    """Replace batch normalisation by ``nn.SyncBatchNorm``, in place, keeping parameters and
    statistics.

    timm's conversion is used, since torch's own would drop the activation inside of timm's
    ``BatchNormAct2d``.

    Raises:
        SettingsError: on a CPU, where ``nn.SyncBatchNorm`` does not run and the result would depend
            on the number of processes.
    """
    from timm.layers.norm_act import convert_sync_batchnorm

    if not any(isinstance(layer, _BatchNorm) for layer in model.modules()):
        return
    if device.type != "cuda":
        raise SettingsError(
            "this network has batch normalisation, which several processes can share on GPUs only. "
            "On a CPU train in one process, which uses all cores; or set features=cached, or use a "
            "network without batch normalisation, such as model.name=vit_tiny_patch2_32."
        )
    convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]


class _GatherRows(torch.autograd.Function):
    """Matrices (m_r, K_i) of every process to those (M, K_i) of all rows, in one collective; the
    gradient is that of own rows.

    The loss is the same in all processes, and so is its gradient: there is nothing to add up. A
    matrix that the loss does not use has no gradient, rather than one of zeros, so that the
    optimiser skips the head it came from.
    """

    @staticmethod
    def forward(ctx: Any, rank: int, sizes: list[int], *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.rows = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        wide = torch.cat(
            [part.float() if part.dtype != torch.float64 else part for part in parts], dim=1
        )
        padded = wide.new_zeros(max(sizes), wide.shape[1])
        padded[: len(wide)] = wide
        gathered = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(gathered, padded)
        whole = torch.cat([rows[:size] for rows, size in zip(gathered, sizes, strict=True)])
        columns = whole.split([part.shape[1] for part in parts], dim=1)
        return tuple(
            column.to(part.dtype).clone() for column, part in zip(columns, parts, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return (
            None,
            None,
            *(None if gradient is None else gradient[ctx.rows] for gradient in gradients),
        )


@contextmanager
def own_draws(rank: int, device: torch.device) -> Iterator[None]:
    """Draw other random numbers in each process, as for dropout, and leave the generators of all in
    the same state.

    That state is the one before, with the CPU's generator advanced by one draw if anything was
    drawn inside.
    """
    gpus = [device] if device.type == "cuda" else []
    seed = zlib.crc32(torch.get_rng_state().numpy().tobytes(), rank)
    with torch.random.fork_rng(gpus):
        torch.manual_seed(seed)
        before = [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]
        yield
        after = [torch.get_rng_state(), *(torch.cuda.get_rng_state(gpu) for gpu in gpus)]
    if not all(map(torch.equal, before, after)):
        torch.rand(())


def sum_gradients(model: nn.Module, fabric: Fabric) -> None:
    """Add up the gradients of all processes, once per step, in one flat tensor.

    torch's DistributedDataParallel does this bucket by bucket during the backward pass. It does not
    suit these steps: a head that the loss leaves out, such as SimMatch's projection in its first
    epoch, makes it raise an error in the next step; with ``find_unused_parameters`` it hangs when
    several forward passes precede one backward pass, as in ReMixMatch.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if not gradients:
        return
    flat = fabric.all_reduce(
        torch.cat([gradient.reshape(-1) for gradient in gradients]), reduce_op="sum"
    )
    assert isinstance(flat, Tensor)
    for gradient, total in zip(
        gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True
    ):
        gradient.copy_(total.view_as(gradient))
