"""Training in several processes: how they start and join, and how they share each batch.

Lightning Fabric starts and watches the processes of one machine. Torchrun, or a batch system that
sets the same variables, starts them on any number of machines. Every process runs the same command
and computes its share of each batch.
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

# Longest wait for the other processes in a collective. All do the same work between two of them, so
# seconds would suffice, were it not for checkpoints on a slow disk and the first reading of data.
PATIENCE = timedelta(minutes=10)
GRACE = 5.0  # seconds for the other processes to end by themselves after an error, with a message
# Packages whose version must be the same in all processes.
COMPARED_VERSIONS = ("semigpc", "torch", "numpy")


class Stopped(Exception):  # noqa: N818 - not an error
    """The run was interrupted and saved; it can be resumed."""


class RankError(RuntimeError):
    """An error in one process: ``rank`` is the number of the process, ``error`` what it raised."""

    def __init__(self, rank: int, error: BaseException) -> None:
        super().__init__(f"rank {rank}: {error}")
        self.rank = rank
        self.error = error


# Starting and joining -----------------------------------------------------------------------------


def has_rank() -> bool:
    """Return whether torchrun or a batch system started this process as one of several.

    They set RANK and WORLD_SIZE.
    """
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1


@contextmanager
def process_group(
    experiment: Experiment, path: Path, devices: int, *, resume: bool
) -> Iterator[Fabric]:
    """Start ``devices - 1`` more processes with the same command, or join those of torchrun.

    A process that starts others is rank 0. An error that occurs in all processes alike is raised by
    rank 0 only; the others exit without a message. After any error, the processes started here are
    ended.

    Args:
        experiment: whose batches are shared. path: of the run folder. resume: whether that folder
            may already hold a run.
        devices: processes on this machine, one per GPU; 1 under torchrun.

    Raises:
        SettingsError: there are more processes than GPUs, or than rows in a batch.
        RankError: this process failed. ProcessesError: another process failed, or the processes
            were started differently.
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
    """Return the Fabric of this process once all have joined: NCCL on GPUs, gloo on CPUs.

    If RANK is set, the processes already exist, and RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
    LOCAL_RANK describe them. Otherwise the first call starts the other ``devices - 1`` processes,
    which run the same command and so reach this call too.
    """
    for name in ("rank_zero", "distributed"):  # these loggers announce every process
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
    """Reads the variables that torchrun sets, also where a batch system sets them."""

    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", 0))

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Accept any number of devices: the environment decides."""


class _SharedBatchStrategy(DDPStrategy):
    """Fabric's DDP without torch's wrapper around the network; :func:`sum_gradients` says why."""

    @property
    def root_device(self) -> torch.device:
        assert self.parallel_devices is not None
        # A process may see no other GPU than its own.
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
    """End the processes that Fabric started here; return the codes of those that exited first."""
    launched: list[subprocess.Popen[bytes]] = getattr(fabric.strategy.launcher, "procs", [])
    processes = dict(enumerate(launched, start=1))
    launched.clear()  # Fabric's observer thread watches this list, and would kill this process too
    codes = {}
    for rank, process in processes.items():
        with suppress(subprocess.TimeoutExpired):
            codes[rank] = process.wait(GRACE)
    for process in processes.values():
        process.kill()
    return codes


def _is_lost_connection(error: BaseException) -> bool:
    """Return whether an error is only the result of another process that ended or hangs."""
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
    """Raise the same error in all processes if their settings, data or versions differ."""
    installed = versions()
    ours = flattened(experiment.to_plain()) | {"hash of the split": splits.sha256[:12]}
    ours |= {f"version of {name}": installed[name] for name in COMPARED_VERSIONS}
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
    """A network whose processes compute a share of each batch, and return the outputs of all rows.

    Process r of W computes rows floor(r M / W) to floor((r + 1) M / W) of the M rows, which every
    process has; the outputs are gathered in the order of the rows. Algorithm, refiner, GP and loss
    therefore have the same input in every process and do not depend on their number. The backward
    pass covers the process's own rows only, so that the gradients of all processes add up to that
    of the whole batch (:func:`sum_gradients`). A batch with fewer rows than processes, such as the
    last one of an evaluation, is computed by every process, without gradient.

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
        """Return the outputs of all M images (M, 3, H, W), which are the same in every process."""
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
    """Return both networks, each shared by all processes."""
    network = SharedNetwork(student, fabric)
    if teacher is student:
        return Networks(network, network)
    return Networks(network, SharedNetwork(teacher, fabric).train(teacher.training))


def prepare_to_share(model: nn.Module, device: torch.device) -> None:
    """Move a network to a device, synchronise its batch normalisation, and copy rank 0's weights.

    Each machine may have read its pre-trained weights from another file.
    """
    synchronize_batch_norm(model, device)
    with torch.no_grad():
        for tensor in model.to(device).state_dict().values():
            weights = tensor.contiguous()
            dist.broadcast(weights, src=0)
            tensor.copy_(weights)


def synchronize_batch_norm(model: nn.Module, device: torch.device) -> None:
    """Replace batch normalisation in place by ``nn.SyncBatchNorm``, over the rows of all processes.

    Parameters and statistics are kept. The conversion is timm's, since torch's would drop the
    activation within timm's ``BatchNormAct2d``.

    Raises:
        SettingsError: on a CPU, where ``nn.SyncBatchNorm`` does not run and results would depend on
            the number of processes.
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
    """Joins matrices (m_r, K_i) of all processes r to matrices (M, K_i), in one collective.

    The gradient is that of the process's own rows. The loss, and so its gradient, is the same in
    all processes, hence nothing is summed. A matrix that the loss does not use gets no gradient,
    rather than one of zeros, so that the optimiser skips the head that it belongs to.
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
        own = [None if gradient is None else gradient[ctx.rows] for gradient in gradients]
        return None, None, *own


@contextmanager
def own_draws(rank: int, device: torch.device) -> Iterator[None]:
    """Draw different random numbers in each process, such as for dropout.

    Afterwards the generators of all processes are in the same state: the one before, with the CPU's
    generator advanced by one draw if any number was drawn inside.
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
    """Sum the gradients of all processes, once per step, in one flat tensor.

    torch's DistributedDataParallel does this bucket by bucket during the backward pass, but cannot
    be used here. After a step whose loss does not use a head, such as SimMatch's projection in the
    first epoch, it raises an error; with ``find_unused_parameters`` it hangs if several forward
    passes precede one backward pass, as in ReMixMatch.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if not gradients:
        return
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    total = fabric.all_reduce(flat, reduce_op="sum")
    assert isinstance(total, Tensor)
    sums = total.split([gradient.numel() for gradient in gradients])
    for gradient, summed in zip(gradients, sums, strict=True):
        gradient.copy_(summed.view_as(gradient))
