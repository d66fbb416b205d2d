"""Self-training: unlabelled rows that the GP is sure of join the labelled ones, with their probabilities as labels."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from semigpc.estimator.calibration import class_scales, estimate_shares
from semigpc.gp import Kernel
from semigpc.threads import suited_to

SURE = 0.9  # probability from which a row joins
MOST = 1500  # rows that join, shared evenly by the classes
CHUNK = 4096


class Joined(NamedTuple):
    """Positions (P,) among the unlabelled rows of those that joined, and their soft labels (P, C)."""

    positions: Tensor
    targets: Tensor


@dataclass(frozen=True)
class Solver:
    """The GP of a few thousand rows, solved afresh: kernel, sigma and lambda."""

    kernel: Kernel
    noise_std: float
    logit_scale: float

    def weights(self, points: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """a = K^-1 (Y - 1 pi^T) diag(sqrt(nbar / n_c)), (N, C), and the leave-one-out scores (N, C). O(N^3).

        Args:
            points: (N, D). targets: (N, C) rows that sum to 1.
        """
        counts = targets.sum(dim=0)
        with suited_to(len(points) ** 3):
            K = self.kernel(points.double(), points.double())
            K.diagonal().copy_(self.kernel.diagonal(points.double()) + self.noise_std**2)
            K_inv = torch.cholesky_inverse(torch.linalg.cholesky(K))
        wanted = targets.double() - counts / counts.sum()
        alpha = K_inv @ wanted
        scales = class_scales(counts)
        return alpha * scales, (wanted - alpha / K_inv.diagonal().unsqueeze(1)) * scales

    def scores(self, queries: Tensor, points: Tensor, weights: Tensor) -> Tensor:
        """k(h, h_Q) a, (M, C), in float32 a chunk at a time. O(M N (D + C))."""
        thin = weights.float()
        with suited_to(min(len(queries), CHUNK) * len(points) * (points.shape[1] + thin.shape[1])):
            return torch.cat([self.kernel(chunk, points) @ thin for chunk in queries.split(CHUNK)])


def self_train(solver: Solver, points: Tensor, targets: Tensor, unlabeled: Tensor, *, rounds: int) -> Joined:
    """Let sure rows join for some rounds; each round chooses anew among all of them.

    Whether a row is sure is judged under the class shares of the unlabelled rows, estimated each round, so that the rows of
    a large class do not join a small one; and of a row that has joined, by what is said of it without itself. O(rounds N^3).

    Args:
        solver: the GP. points: (n, D) labelled. targets: (n, C) one-hot. unlabeled: (u, D).
        rounds: at least 1.
    """
    counts = targets.sum(dim=0)
    present = counts > 0
    quota = max(1, MOST // int(present.sum()))
    weights, _ = solver.weights(points, targets)
    scores = solver.scores(unlabeled, points, weights)
    joined = Joined(torch.zeros(0, dtype=torch.int64), targets[:0])
    for _ in range(rounds):
        balanced = torch.softmax((solver.logit_scale * scores).masked_fill(~present, -torch.inf), dim=1)
        probs = balanced * estimate_shares(balanced, present)
        probs = probs / probs.sum(dim=1, keepdim=True)
        joined = _choose(probs, quota)
        if not len(joined.positions):
            break
        together = torch.cat([points, unlabeled[joined.positions]])
        weights, left_out = solver.weights(together, torch.cat([targets, joined.targets]))
        scores = solver.scores(unlabeled, together, weights)
        scores[joined.positions] = left_out[len(points) :].float()
    return joined


def _choose(probs: Tensor, quota: int) -> Joined:
    """The surest rows of every class, no more than its quota."""
    confidence, codes = probs.max(dim=1)
    chosen = []
    for c in range(probs.shape[1]):
        sure = ((codes == c) & (confidence >= SURE)).nonzero().squeeze(1)
        chosen.append(sure[confidence[sure].argsort(descending=True, stable=True)[:quota]])
    positions = torch.cat(chosen)
    return Joined(positions, probs[positions].double())
