"""How far a low-rank mean is from the exact one."""

from typing import NamedTuple

import torch

from semigpc.gp.landmarks import LandmarkFeatures
from semigpc.gp.stored_rows import StoredRows

ASKED = 512  # rows asked about at most
LOOKED, CHUNK = 16, 4096  # times the rows wanted, among which they and the landmarks are looked for; rows at a time
CARRIED = 1e-3  # share of k(x, x) unexplained below which a row is a landmark, or as good as one


class Gap(NamedTuple):
    """A low-rank mean against the exact one, both over the same rows and asked about others, which are no landmarks.

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
    slots = slots[torch.randperm(len(slots), generator=generator)[: LOOKED * rows].to(slots.device)]
    own = basis.kernel.diagonal(stored.features[slots]).double()
    free = torch.cat([basis.residual(stored.features[part]) for part in slots.split(CHUNK)]) > CARRIED * own
    asked = slots[free][: min(ASKED, -(-int(free.sum()) // 8))]
    if not len(asked):  # all rows are landmarks
        return Gap(0.0, 0.0, 1.0, stored.count, 0)
    held = torch.cat([slots[~free], slots[free][len(asked) :]])[: max(rows, 2 * int((~free).sum()))]
    H, y, h = stored.features[held], stored.targets[held].double(), stored.features[asked]
    K = basis.kernel(H.double(), H.double())
    K.diagonal().copy_(basis.kernel.diagonal(H.double()) + noise_std**2)
    exact = basis.kernel(h.double(), H.double()) @ torch.cholesky_solve(y, torch.linalg.cholesky(K))
    phi = basis.phi(H).double()
    A = phi.mT @ phi
    A.diagonal().add_(noise_std**2)
    low = basis.phi(h).double() @ torch.cholesky_solve(phi.mT @ y, torch.linalg.cholesky(A))
    difference = (low - exact).abs()
    same = (low.argmax(dim=1) == exact.argmax(dim=1)).double().mean()
    return Gap(float(difference.mean()), float(difference.max()), float(same), len(held), len(asked))
