"""One batch, many processes: each takes a share of the rows through the network, and all see what came out of it."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from torch import Tensor, nn

from semigpc.training.gathered_norm import gather_batch_norms
from semigpc.types import ModelOutput, Networks


class SharedNetwork(nn.Module):
    """A network that answers for the rows of all processes, of which each computes its own.

    Process r of W takes rows floor(r M / W) to floor((r + 1) M / W) of the M that every process is given; the outputs are
    gathered in the order of the rows. So every process sees the same outputs, and whatever stands on them (algorithm, refiner,
    GP, loss) is the same everywhere and knows nothing of processes. The way back goes through own rows only: gradients of the
    processes add up to that of the whole batch, see :func:`sum_gradients`.

    Fewer rows than processes, as at the end of an evaluation, are computed by all; there is then no way back.

    Layers that draw random numbers (dropout) draw others on each process, and others than one process would; the generators
    of all processes move on alike.

    Args:
        network: images (m, 3, H, W) to a :class:`ModelOutput`; its batch normalisation must be gathered.
        fabric: of the process group.
    """

    def __init__(self, network: nn.Module, fabric: Fabric) -> None:
        super().__init__()
        self.network, self.rank, self.n_ranks = network, fabric.global_rank, fabric.world_size

    def forward(self, images: Tensor) -> ModelOutput:
        """Images (M, 3, H, W), the same on all processes, to outputs of all M rows."""
        bounds = [rank * len(images) // self.n_ranks for rank in range(self.n_ranks + 1)]
        sizes = [last - first for first, last in pairwise(bounds)]
        with own_draws(self.rank, images.device):
            if not all(sizes):
                assert not torch.is_grad_enabled(), "a batch must have a row for each process"
                whole: ModelOutput = self.network(images)
                return whole
            own: ModelOutput = self.network(images[bounds[self.rank] : bounds[self.rank + 1]])
        logits, features, *heads = GatherRows.apply(self.rank, sizes, own.logits, own.features, *own.heads.values())
        return ModelOutput(logits, features, dict(zip(own.heads, heads, strict=True)))


def share(model: nn.Module) -> None:
    """Prepare a network for being shared: batch normalisation over all processes, and the first process's weights."""
    gather_batch_norms(model)
    with torch.no_grad():
        for tensor in model.state_dict().values():  # drawn from one seed everywhere, but pretrained ones are read by each
            weights = tensor.contiguous()
            dist.broadcast(weights, src=0)
            tensor.copy_(weights)


def shared(student: nn.Module, teacher: nn.Module, fabric: Fabric) -> Networks:
    """Both networks, each answering for the rows of all processes."""
    ours = SharedNetwork(student, fabric)
    return Networks(ours, ours if teacher is student else SharedNetwork(teacher, fabric).train(teacher.training))


class GatherRows(torch.autograd.Function):
    """Matrices (m_r, K_i) of every process to those (M, K_i) of all rows, in one collective; the gradient is one's own rows'.

    The loss is the same on all processes, and so is its gradient: there is nothing to add up. A matrix that the loss does not
    use has no gradient, rather than one of zeros, so that an optimiser passes over the head it came from.
    """

    @staticmethod
    def forward(ctx: Any, rank: int, sizes: list[int], *parts: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.rows = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        wide = torch.cat([part.float() if part.dtype != torch.float64 else part for part in parts], dim=1)
        padded = wide.new_zeros(max(sizes), wide.shape[1])
        padded[: len(wide)] = wide
        heard = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(heard, padded)
        whole = torch.cat([rows[:size] for rows, size in zip(heard, sizes, strict=True)])
        columns = whole.split([part.shape[1] for part in parts], dim=1)
        return tuple(column.to(part.dtype).clone() for column, part in zip(columns, parts, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, *(None if gradient is None else gradient[ctx.rows] for gradient in gradients)


@contextmanager
def own_draws(rank: int, device: torch.device) -> Iterator[None]:
    """Random numbers of this process's own for what is inside, and the same state for all processes afterwards.

    That state is the one before, moved on by one draw if there was any inside.
    """
    generators = [torch.default_generator]
    if device.type == "cuda":
        generators.append(torch.cuda.default_generators[device.index or 0])
    states = [generator.get_state() for generator in generators]
    for generator, state in zip(generators, states, strict=True):
        generator.manual_seed(zlib.crc32(state.numpy().tobytes(), rank))
    seeded = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, before, start in zip(generators, states, seeded, strict=True):
            drawn = not torch.equal(generator.get_state(), start)
            generator.set_state(before)
            if drawn:
                torch.rand((), generator=generator, device=generator.device)


def sum_gradients(model: nn.Module, fabric: Fabric) -> None:
    """Add up the gradients of all processes, once a step, in one flat tensor.

    torch's DistributedDataParallel would do this bucket by bucket while the backward pass is under way. Tried, it does not
    fit: a head that the loss leaves out, as SimMatch's projection in its first epoch, makes it refuse the next step; with
    ``find_unused_parameters`` it hangs when several passes forward come before one back, as in ReMixMatch.
    """
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if not gradients:
        return
    flat = fabric.all_reduce(torch.cat([gradient.reshape(-1) for gradient in gradients]), reduce_op="sum")
    assert isinstance(flat, Tensor)
    for gradient, summed in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))
