"""The tool that counts synchronisations, on planted ones."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from semigpc.types import HostState
from tests.synchronisations import Synchronisations, place

WAITING: dict[str, Callable[[Tensor], object]] = {
    "int": lambda x: int(x.sum()),
    "float": lambda x: float(x.mean()),
    "bool": lambda x: bool(x.any()),
    "item of a view": lambda x: x[1:].detach()[0].item(),
    "index by a number on the device": lambda x: x[x.argmax()],
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to cpu": lambda x: x.to("cpu", torch.float64),
    "numpy": lambda x: x.numpy(),
    "asarray": lambda x: np.asarray(x),
    "nonzero": lambda x: x.nonzero(),
    "where": lambda x: torch.where(x > 0),
    "mask": lambda x: x[x > 0],
    "write by a mask": lambda x: x.clone().index_put_((x > 0,), torch.tensor(1.0)),
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": lambda x: x.unique(),
    "bincount": lambda x: torch.bincount(x.long()),
    "repeat_interleave": lambda x: torch.arange(4).repeat_interleave(x.long()),
    "equal": lambda x: torch.equal(x, x + 1),
    "cholesky": lambda x: torch.linalg.cholesky(torch.diag(x + 1)),
    "solve": lambda x: torch.linalg.solve(torch.diag(x + 1), x),
    "inv": lambda x: torch.linalg.inv(torch.diag(x + 1)),
    "eigh": lambda x: torch.linalg.eigh(torch.diag(x)),
    "copy into a tensor of the host": lambda x: torch.zeros(4).copy_(x),
    "in backward": lambda x: (x.clone().requires_grad_() ** 2)[x > 0].sum().backward(),
}
WAITS = {"in backward": 2}  # once forward


@pytest.mark.parametrize("name", WAITING)
def test_planted_synchronisations_are_counted(name: str) -> None:
    on_device, on_host = place(torch.tensor([0.0, 1.0, 2.0, 3.0])), torch.tensor([0.0, 1.0, 2.0, 3.0])
    with Synchronisations() as counted:
        WAITING[name](on_device)
    assert counted.total == WAITS.get(name, 1), counted.places
    with Synchronisations() as counted:
        WAITING[name](on_host)
    assert counted.total == 0, counted.places


def test_what_needs_no_wait_is_not_counted() -> None:
    x, host = place(torch.tensor([0.0, 1.0, 2.0, 3.0])), torch.tensor([2, 0])
    with Synchronisations() as counted:
        torch.softmax(x[host.to(x.device)], dim=0).argmax(dim=0)
        x[host] = torch.zeros(2)
        x.new_zeros(5).index_add_(0, x.long(), x)
        torch.zeros(4, device=x.device).copy_(x)
        torch.linalg.cholesky_ex(torch.diag(x + 1))
        torch.where(x > 0, x, 0).repeat_interleave(2)
        host.tolist()
    assert counted.total == 0, counted.places


def test_a_copy_on_the_host_may_be_read_at_no_further_cost() -> None:
    x = place(torch.arange(4))
    with Synchronisations() as counted:
        copied = x.cpu()
        copied.tolist(), int(copied.max()), torch.bincount(copied)
    assert counted.total == 1
    assert [operation for operation, _ in counted.places] == ["cpu"]


def test_buffers_that_stay_on_the_host_are_not_on_the_device() -> None:
    class Module(HostState):
        on_host = ("steps",)

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("steps", torch.tensor(1))
            self.register_buffer("mean", torch.tensor(1.0))

    module = place(Module())
    with Synchronisations() as counted:
        int(module.steps)
        assert counted.total == 0
        float(module.mean)
        float(module.layer(torch.ones(2)).detach().sum())
    assert counted.total == 2
