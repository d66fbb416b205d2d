"""The pretended GPU itself: what it reports, rejects and counts."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from semigpc.types import HostState
from tests.pretend_device import CPU, CUDA, PretendDevice

WAITING: dict[str, Callable[[Tensor], object]] = {
    "int": lambda x: int(x.sum()),
    "float": lambda x: float(x.mean()),
    "bool": lambda x: bool(x.any()),
    "item of a view": lambda x: x[1:].detach()[0].item(),
    "index by a number on the device": lambda x: x[x.argmax()],
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu", torch.float64),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "mask": lambda x: x[x > 0],
    "write by a mask": lambda x: x.clone().index_put_((x > 0,), x.new_ones(())),
    "write a number of the host": lambda x: x.clone().index_put_((x.long(),), torch.tensor(1.0)),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: torch.bincount(x.long()),
    "repeat_interleave": lambda x: torch.arange(4, device=x.device).repeat_interleave(x.long()),
    "equal": lambda x: torch.equal(x, x + 1),
    "cholesky": lambda x: torch.linalg.cholesky(torch.diag(x + 1)),
    "solve": lambda x: torch.linalg.solve(torch.diag(x + 1), x),
    "inv": lambda x: torch.linalg.inv(torch.diag(x + 1)),
    "eigh": lambda x: torch.linalg.eigh(torch.diag(x)),
    "copy into a tensor of the host": lambda x: torch.zeros(4).copy_(x),
    "in backward": lambda x: (x.clone().requires_grad_() ** 2)[x > 0].sum().backward(),
    "a tensor made of numbers": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "a copy that blocks": lambda x: torch.ones(2).to(x.device),
    "an index of the host": lambda x: x[torch.tensor([0, 1])],
    "a large copy of pageable memory": lambda x: torch.ones(2**15).to(x.device, non_blocking=True),
}
WAITS = {"in backward": 2}  # once forward


@pytest.mark.parametrize("name", WAITING)
def test_planted_waits_are_counted(name: str, gpu: PretendDevice) -> None:
    on_device = torch.arange(4.0, device=CUDA)
    on_host = torch.arange(4.0)
    WAITING[name](on_device)
    assert gpu.waits.total() == WAITS.get(name, 1), gpu.waits
    gpu.reset()
    WAITING[name](on_host)
    assert not gpu.waits
    assert not gpu.copies


def test_what_needs_no_wait_is_not_counted(gpu: PretendDevice) -> None:
    x = torch.arange(4.0, device=CUDA)
    host = torch.tensor([2, 0])
    torch.softmax(x[host.to(x.device, non_blocking=True)], dim=0).argmax(dim=0)
    torch.ones(2**15).pin_memory().to(x.device, non_blocking=True)
    x.new_zeros(5).index_add_(0, x.long(), x)
    torch.zeros(4, device=x.device).copy_(x)
    torch.linalg.cholesky_ex(torch.diag(x + 1))
    torch.where(x > 0, x, 0).repeat_interleave(2)
    host.tolist()
    assert not gpu.waits
    assert [(each.size, each.pinned) for each in gpu.copies] == [(16, False), (2**17, True)]


def test_a_copy_on_the_host_may_be_read_at_no_further_cost(gpu: PretendDevice) -> None:
    copied = torch.arange(4, device=CUDA).cpu()
    copied.tolist(), int(copied.max()), torch.bincount(copied), copied.numpy()
    assert [operation for operation, _ in gpu.waits.elements()] == ["cpu"]


def test_buffers_that_stay_on_the_host_are_not_on_the_device(gpu: PretendDevice) -> None:
    class Module(HostState):
        on_host = ("steps",)
        steps: Tensor
        mean: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("steps", torch.tensor(1))
            self.register_buffer("mean", torch.tensor(1.0))

    module = Module().to(CUDA)
    gpu.reset()
    int(module.steps)
    assert not gpu.waits
    float(module.mean)
    float(module.layer(torch.ones(2, device=CUDA)).detach().sum())
    assert gpu.waits.total() == 2


# of a tensor of the device and one of the host
RIGHT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a number of the host": lambda x, host: x * host.sum() + torch.tensor(2.0),
    "a number of the host written": lambda x, host: x.masked_fill(x > 0, host.sum()),
    "a number of the host chosen": lambda x, host: torch.where(x > 0, x, host.sum()),
    "an index of the host": lambda x, host: x[host.long()],
    "a slice written": lambda x, host: x.clone()[1:].copy_(host[1:]),
    "another tensor's device": lambda x, host: host.double().to(x),
    "made within an operation": lambda x, host: torch.nn.functional.one_hot(x.long()),
    "its own random numbers": lambda x, host: torch.rand(4, device=x.device) + torch.rand_like(x),
    "a deep copy": lambda x, host: copy.deepcopy([x])[0],
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.usefixtures("gpu")
def test_what_cuda_allows_is_allowed(name: str) -> None:
    x = torch.arange(4.0, device="cuda")
    host = torch.arange(4.0)
    result = RIGHT[name](x, host)
    assert result.device == CUDA
    assert result.is_cuda
    assert result.cpu().device == CPU


WRONG: dict[str, Callable[[Tensor, Tensor], object]] = {
    "a vector": lambda x, host: x + host,
    "a number of the device": lambda x, host: host + x.sum(),
    "a number of the host that is written": lambda x, host: host.sum().add_(x.sum()),
    "two matrices": lambda x, host: x[None] @ host[:, None],
    "an index": lambda x, host: host[x.long()],
    "a mask": lambda x, host: host[x > 0],
    "a mask for where": lambda x, host: torch.where(host > 0, x, 0),
    "values to write": lambda x, host: x.index_put_((x.long(),), host),
    "cat": lambda x, host: torch.cat([x, host]),
    "stack of numbers": lambda x, host: torch.stack([x.sum(), host.sum()]),
    "out": lambda x, host: torch.add(x, x, out=host),
    "scatter": lambda x, host: x.scatter_add(0, host.long(), x),
    "a generator": lambda x, host: torch.rand(4, device=x.device, generator=torch.Generator()),
    "a generator for drawing": lambda x, _: (x + 1).multinomial(4, generator=torch.Generator()),
    "numpy": lambda x, host: x.numpy() + host.numpy(),
    "asarray": lambda x, host: np.asarray(x) + np.asarray(host),
    "pinning": lambda x, host: (host.pin_memory(), x.pin_memory()),
    "a bound": lambda x, host: x.clamp(max=host.max()),
    "a loss": lambda x, host: nn.functional.cross_entropy(x[None], host[:1].long()),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.usefixtures("gpu")
def test_what_cuda_rejects_is_rejected(name: str) -> None:
    x = torch.arange(4.0, device="cuda")
    host = torch.arange(4.0)
    WRONG[name](host.clone(), host)
    with pytest.raises((RuntimeError, TypeError), match=r"devices?\b|cuda"):
        WRONG[name](x, host)


@pytest.mark.usefixtures("gpu")
def test_the_device_has_random_numbers_of_its_own() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = torch.rand(3, device=CUDA)
    again = torch.cuda.get_rng_state()
    assert torch.equal(torch.get_rng_state(), before)
    second = torch.rand(3, device=CUDA)
    torch.cuda.set_rng_state(again)
    assert torch.equal(torch.rand(3, device=CUDA), second)
    assert not torch.equal(first, second)


def test_everything_is_as_before_afterwards() -> None:
    with PretendDevice():
        layer = nn.Linear(2, 2).to("cuda")
        assert layer.weight.device == CUDA
    assert layer.weight.device == CPU
    assert not torch.cuda.is_available()
    assert torch.zeros(1).device == CPU
