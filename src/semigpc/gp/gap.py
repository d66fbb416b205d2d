"""How far a low-rank mean is from the exact one."""

from typing import NamedTuple

import torch

from semigpc.gp.landmarks import LandmarkFeatures
from semigpc.gp.stored_rows import StoredRows

ASKED = 512  # rows asked about at most


class Gap(NamedTuple):
    """A low-rank mean against the exact one, both over the same rows and asked about others.

    Attributes:
        mean: average of |difference| over queries and classes. largest: of them.
        same_class: share of queries for which both have the same class first.
        rows: that both were made of. queries: that both were asked.
    """

    mean: float
    largest: float
    same_class: float
    rows: int
    queries: int


@torch.no_grad()
def measure_gap(stored: StoredRows, basis: LandmarkFeatures | None, noise_std: float, *, rows: int, seed: int) -> Gap:
    """See :meth:`LowRankGP.gap`."""
    if basis is None or stored.count < 2:
        return Gap(0.0, 0.0, 1.0, stored.count, 0)
    generator = torch.Generator().manual_seed(seed)
    slots = stored.occupied.nonzero().squeeze(1)
    slots = slots[torch.randperm(len(slots), generator=generator).to(slots.device)]
    asked = min(ASKED, max(1, len(slots) // 8))
    queries, held = slots[:asked], slots[asked : asked + rows]
    H, y, h = stored.features[held], stored.targets[held].double(), stored.features[queries]
    K = basis.kernel(H.double(), H.double())
    K.diagonal().copy_(basis.kernel.diagonal(H.double()) + noise_std**2)
    exact = basis.kernel(h.double(), H.double()) @ torch.cholesky_solve(y, torch.linalg.cholesky(K))
    phi = basis.phi(H).double()
    A = phi.mT @ phi
    A.diagonal().add_(noise_std**2)
    low = basis.phi(h).double() @ torch.cholesky_solve(phi.mT @ y, torch.linalg.cholesky(A))
    difference = (low - exact).abs()
    same = (low.argmax(dim=1) == exact.argmax(dim=1)).double().mean()
    return Gap(float(difference.mean()), float(difference.max()), float(same), len(held), asked)
