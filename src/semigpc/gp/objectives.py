"""What a kernel's l, eta and sigma are judged by: the marginal likelihood, and leave-one-out.

Parameters are rows (log l, log eta, log sigma) of a (G, 3) float64 tensor: G is 1, or C for a kernel a class. RBF and Laplace
have all three; Cosine and NTK have no l, and theirs stays at log 1.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from semigpc.gp.kernels import NTK, RBF, Cosine, Kernel, Laplace, squared_distances

JITTER = 1e-9  # on the diagonal of k(Z, Z), in units of eta: lowers the bound by next to nothing


def scales_of(kernels: Sequence[Kernel], noise_stds: Sequence[float]) -> Tensor:
    """(G, 3) log l, log eta, log sigma, float64."""
    rows = []
    for kernel, noise_std in zip(kernels, noise_stds, strict=True):
        if not isinstance(kernel, RBF | Laplace | Cosine | NTK):
            raise TypeError(f"kernel must be one of RBF, Laplace, Cosine and NTK to be learned; got {kernel!r}.")
        length_scale = kernel.length_scale if isinstance(kernel, RBF | Laplace) else 1.0
        rows.append([math.log(length_scale), math.log(kernel.output_scale), math.log(noise_std)])
    return torch.tensor(rows, dtype=torch.float64)


def with_scales(kernel: Kernel, scales: Tensor) -> tuple[tuple[Kernel, ...], tuple[float, ...]]:
    """Kernels of the kind of ``kernel``, and their noise, from (G, 3) logarithms."""
    scales_of([kernel], [1.0])
    kind: Any = kernel
    values = scales.exp().tolist()
    has_length = isinstance(kernel, RBF | Laplace)
    kernels = [replace(kind, output_scale=eta, **({"length_scale": length} if has_length else {})) for length, eta, _ in values]
    return tuple(kernels), tuple(row[2] for row in values)


class Likeness:
    """k(a, b) / eta as a function of log l, from what does not depend on it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        """(n, m): half the squared distance (RBF), the distance (Laplace), or the kernel for eta = 1."""
        if isinstance(self.kernel, RBF):
            return squared_distances(x1, x2) / 2
        if isinstance(self.kernel, Laplace):
            return torch.cdist(x1, x2, compute_mode="donot_use_mm_for_euclid_dist")
        return self.own(x1)[0](x1, x2)

    def own(self, x: Tensor) -> tuple[Kernel, Tensor]:
        """The kernel for eta = 1, and its diagonal at x (n, D)."""
        unit: Any = replace(self.kernel, output_scale=1.0)  # type: ignore[type-var]
        return unit, unit.diagonal(x)

    def __call__(self, pairs: Tensor, log_length: Tensor) -> Tensor:
        """(G, n, m) for log l (G,)."""
        if isinstance(self.kernel, RBF):
            return torch.exp(-pairs * torch.exp(-2 * log_length)[:, None, None])
        if isinstance(self.kernel, Laplace):
            return torch.exp(-pairs * torch.exp(-log_length)[:, None, None])
        return pairs.expand(len(log_length), -1, -1)


class MarginalLikelihood:
    """log p(y) of a low-rank GP through m x m matrices, less what landmarks miss. O(G n m^2) a call.

        sum_c log N(y_c | 0, Q + sigma^2 I) - tr(k(h, h) - Q) / (2 sigma^2)      Q = k(h, Z) k(Z, Z)^-1 k(Z, h)

    The second term makes it a lower bound of log N(y | 0, k(h, h) + sigma^2 I) for any Z (Titsias, 2009). Without it, noise
    would be learned in the place of whatever the landmarks Z do not reach, and l would grow until they reach all.

    Args:
        features: (n, D). targets: (n, C). landmarks: (m, D) Z. kernel: its kind.
    """

    def __init__(self, features: Tensor, targets: Tensor, landmarks: Tensor, kernel: Kernel) -> None:
        self.likeness, self.targets = Likeness(kernel), targets.double()
        h, Z = features.double(), landmarks.double()
        self.own = self.likeness.own(h)[1]
        self.inner, self.cross = self.likeness.pairs(Z, Z), self.likeness.pairs(Z, h)

    def __call__(self, scales: Tensor) -> Tensor:
        """The bound, a scalar, differentiable in the scales (G, 3)."""
        log_length, log_eta, log_sigma = scales.unbind(dim=1)
        n, m, C = len(self.targets), len(self.inner), self.targets.shape[1]
        y = self.targets.mT.unsqueeze(2) if len(scales) > 1 else self.targets.unsqueeze(0)  # (C, n, 1) or (1, n, C)
        eye = torch.eye(m, dtype=torch.float64, device=y.device)
        L = torch.linalg.cholesky(self.likeness(self.inner, log_length) + JITTER * eye)
        phi = torch.linalg.solve_triangular(L, self.likeness(self.cross, log_length), upper=False)  # Q = eta phi^T phi
        ratio = torch.exp(log_eta - 2 * log_sigma)[:, None, None]  # eta / sigma^2
        B = torch.linalg.cholesky(eye + ratio * phi @ phi.mT)
        solved = torch.linalg.solve_triangular(B, phi @ y, upper=False)
        noise = torch.exp(-2 * log_sigma)
        quadratic = noise * (y.square().sum(dim=(1, 2)) - (ratio * solved.square()).sum(dim=(1, 2)))
        log_det = 2 * B.diagonal(dim1=1, dim2=2).log().sum(dim=1) + 2 * n * log_sigma + n * math.log(2 * math.pi)
        missed = ratio.flatten() * (self.own.sum() - phi.square().sum(dim=(1, 2)))
        bound: Tensor = -0.5 * (quadratic + (C // len(scales)) * (log_det + missed)).sum()
        return bound


class LeaveOneOut:
    """Every row answered by all others, in closed form, and how good the answers are. O(G n^3) a call.

        mu_-i = y_i - alpha_i / P_ii      P = (k(h, h) + sigma^2 I)^-1      alpha = P y

    Args:
        features: (n, D). targets: (n, C), the largest of a row at its class. kernel: its kind.
    """

    def __init__(self, features: Tensor, targets: Tensor, kernel: Kernel) -> None:
        self.likeness, self.targets = Likeness(kernel), targets.double()
        h = features.double()
        self.pairs = self.likeness.pairs(h, h)
        self.pairs.diagonal().copy_(self.likeness.own(h)[1] if isinstance(kernel, Cosine | NTK) else torch.zeros(len(h)).to(h))
        self.labels = self.targets.argmax(dim=1)
        counts = torch.bincount(self.labels, minlength=self.targets.shape[1])[self.labels]
        self.weights = torch.where(counts > 1, 1 / counts.double(), 0.0)  # who is alone in a class says nothing of it
        if not bool(self.weights.any()):
            raise ValueError("leaving one row out tells nothing where every class has a single row; give more labels.")
        self.weights = self.weights / self.weights.sum()

    def residuals(self, scales: Tensor) -> tuple[Tensor, Tensor]:
        """y_i - mu_-i, (n, C), and P_ii for eta = 1, (n, G)."""
        log_length, log_eta, log_sigma = scales.unbind(dim=1)
        noise = torch.exp(2 * log_sigma - log_eta)[:, None, None]
        eye = torch.eye(len(self.targets), dtype=torch.float64, device=scales.device)
        P = torch.cholesky_inverse(torch.linalg.cholesky(self.likeness(self.pairs, log_length) + noise * eye))  # (G, n, n)
        diagonal = P.diagonal(dim1=1, dim2=2).mT
        alpha = P[0] @ self.targets if len(P) == 1 else torch.einsum("cij,jc->ic", P, self.targets)
        return alpha / diagonal, diagonal

    def loss(self, residuals: Tensor, log_logit_scale: Tensor) -> Tensor:
        """Cross-entropy of softmax(lambda mu_-i) and the labels, every class counting the same; residuals (n, C)."""
        logits = log_logit_scale.exp() * (self.targets - residuals)
        own = torch.log_softmax(logits, dim=1).gather(1, self.labels.unsqueeze(1)).squeeze(1)
        return -(self.weights @ own)

    @torch.no_grad()
    def output_scales(self, scales: Tensor) -> Tensor:
        """eta (G,) for which the Gaussian density of the residuals is largest: the mean of P_ii r_i^2 with P for eta = 1."""
        residuals, diagonal = self.residuals(scales)
        energy = self.weights @ (residuals.square() * diagonal)  # (C,)
        return energy.mean(dim=0, keepdim=True) if len(scales) == 1 else energy
