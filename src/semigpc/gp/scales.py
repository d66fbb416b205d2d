"""Kernels learned from labelled rows: l, eta and sigma, for all classes together or one kernel per
class.

``leave_one_out``, the default, is the probability of every label given all others, through
softmax(lambda mu), as predictions are judged. The mean depends on eta through sigma^2 / eta alone,
so this ratio and l are learned, and eta follows in closed form from the Gaussian density of the
residuals. O(n^3) per iteration for n rows, C times that for one kernel per class.

``marginal`` is the Gaussian likelihood of the targets, by landmarks: O(n m^2). It can use more
rows, but it assumes Gaussian noise, which labels of 0 and 1 do not have.

Parameters are rows (log l, log eta, log sigma) of a (G, 3) float64 tensor: G is 1, or C for one
kernel per class. RBF and Laplace have all three; Cosine and NTK have no l, and theirs stays at log
1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from semigpc.gp.certainty import auto_logit_scale
from semigpc.gp.engine import full_precision
from semigpc.gp.kernels import NTK, RBF, Cosine, Kernel, Laplace, squared_distances
from semigpc.gp.landmarks import choose_landmarks

Objective = Literal["marginal", "leave_one_out"]

LENGTHS = (
    0.1,
    4.0,
)  # l stays within these, in median distances between rows: beyond 4, K is near a constant
OUTPUTS = (1e-3, 1e3)  # eta
RATIOS = (0.2, 2.0)  # sigma / sqrt(eta); with less, weights of one class cancel
USUAL_RATIO = 0.1**0.5  # sigma / sqrt(eta) before anything is learned: that of the paper
SPREAD = (
    0.3  # standard deviation of log l and log(sigma / sqrt(eta)) before anything is learned ...
)
CLASS_SPREAD = 0.15  # ... and of those of a class around those of all
MEASURED = 512  # rows between which distances are taken
LANDMARKS = 256  # of the marginal likelihood
LinAlgError: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
GAIN = 1e-3  # nats a row by which the objective must improve, or all stays as it was
JITTER = 1e-9  # on the diagonal of k(Z, Z), in units of eta: lowers the bound by next to nothing


@dataclass(frozen=True)
class Learned:
    """Kernels and noise, one or one a class, and what was minimised, in nats a row, before and
    after.

    If nothing was gained they are those it began with, and ``after`` is ``before``.
    """

    kernels: tuple[Kernel, ...]
    noise_stds: tuple[float, ...]
    before: float
    after: float

    @property
    def improved(self) -> bool:
        """Whether there is anything new."""
        return self.after < self.before


@full_precision()
def learn_kernel(
    features: Tensor,
    targets: Tensor,
    kernel: Kernel | Sequence[Kernel],
    noise_std: float | Sequence[float],
    *,
    objective: Objective = "leave_one_out",
    per_class: bool = False,
    logit_scale: float | None = None,
    rows: int = 512,
    iterations: int = 30,
    generator: torch.Generator | None = None,
) -> Learned:
    """l, eta and sigma that suit the labelled rows, by L-BFGS from what they are now.

    l stays within 0.1 and 4 median distances, eta within 1e-3 and 1e3, sigma / sqrt(eta) within 0.2
    and 2. Few labels are
    helped by what is usual: log l around the median distance and log(sigma / sqrt(eta)) around the
    paper's, with a standard deviation of 0.3; with ``per_class`` those of a class around those of
    all, with one of 0.15. Where nothing is gained, or the result is not finite, all stays as it
    was. Deterministic for a state of the generator.

    Args:
        features: (n, D). targets: (n, C) one-hot. kernel, noise_std: as they are, one or one a
            class.
        objective: see the top of this file. per_class: a kernel of its own for each class.
        logit_scale: lambda of ``leave_one_out``; None learns one beside.
        rows: that are learned from at most, as many of every class as fit. iterations: of L-BFGS.
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    kernels = (kernel,) if callable(kernel) else tuple(kernel)
    noise_stds = (noise_std,) if isinstance(noise_std, int | float) else tuple(noise_std)
    current = scales_of(kernels, noise_stds).to(features.device)
    chosen = balanced_rows(targets.argmax(dim=1), rows, generator).to(features.device)
    h, y = features[chosen].detach().double(), targets[chosen].detach().double()
    search = _Search(h, y, kernels[0], objective, logit_scale, generator)
    before = search.at(
        current.expand(y.shape[1], -1) if per_class else current, current.mean(dim=0, keepdim=True)
    )
    scales = search.descend(current.mean(dim=0, keepdim=True), None, iterations)
    if per_class:
        scales = search.descend(scales.expand(y.shape[1], -1), scales, iterations)
    after = search.at(scales, scales.mean(dim=0, keepdim=True))
    if not after < before - GAIN:
        return Learned(kernels, noise_stds, before, before)
    return Learned(*with_scales(kernels[0], search.rescaled(scales)), before, after)


def balanced_rows(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Positions of at most ``size`` rows, sorted: large classes give way first, none below two
    rows.
    """
    if len(labels) <= size:
        return torch.arange(len(labels))
    order = torch.randperm(len(labels), generator=generator)
    shuffled = labels.cpu()[order]
    place = torch.zeros_like(shuffled)  # how many of its class come before a row
    for c in shuffled.unique():
        mine = shuffled == c
        place[mine] = torch.arange(int(mine.sum()))
    kept = torch.bincount(place).cumsum(0)  # rows if every class gives 1, 2, ... at most
    return order[place < max(int((kept <= size).sum()), 2)].sort().values


def scales_of(kernels: Sequence[Kernel], noise_stds: Sequence[float]) -> Tensor:
    """(G, 3) log l, log eta, log sigma, float64."""
    rows = []
    for kernel, noise_std in zip(kernels, noise_stds, strict=True):
        if not isinstance(kernel, RBF | Laplace | Cosine | NTK):
            raise TypeError(
                f"kernel must be one of RBF, Laplace, Cosine and NTK to be learned; got {kernel!r}."
            )
        length_scale = kernel.length_scale if isinstance(kernel, RBF | Laplace) else 1.0
        rows.append([math.log(length_scale), math.log(kernel.output_scale), math.log(noise_std)])
    return torch.tensor(rows, dtype=torch.float64)


def with_scales(kernel: Kernel, scales: Tensor) -> tuple[tuple[Kernel, ...], tuple[float, ...]]:
    """Kernels of the kind of ``kernel``, and their noise, from (G, 3) logarithms."""
    scales_of([kernel], [1.0])
    kind: Any = kernel
    values = scales.exp().tolist()
    has_length = isinstance(kernel, RBF | Laplace)
    kernels = [
        replace(kind, output_scale=eta, **({"length_scale": length} if has_length else {}))
        for length, eta, _ in values
    ]
    return tuple(kernels), tuple(row[2] for row in values)


class Likeness:
    """k(a, b) / eta as a function of log l, from what does not depend on it."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def pairs(self, x1: Tensor, x2: Tensor) -> Tensor:
        """(n, m): half the squared distance (RBF), the distance (Laplace), or the kernel for eta =
        1.
        """
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
    """log p(y) of a low-rank GP through m x m matrices, less what landmarks miss. O(G n m^2) a
    call.

        sum_c log N(y_c | 0, Q + sigma^2 I) - tr(k(h, h) - Q) / (2 sigma^2)      Q = k(h, Z) k(Z, Z)^-1 k(Z, h)

    The second term makes it a lower bound of log N(y | 0, k(h, h) + sigma^2 I) for any Z (Titsias,
    2009). Without it, noise would be learned in the place of whatever the landmarks Z do not reach,
    and l would grow until they reach all.

    Args:
        features: (n, D). targets: (n, C). landmarks: (m, D) Z. kernel: its kind.
    """

    def __init__(
        self, features: Tensor, targets: Tensor, landmarks: Tensor, kernel: Kernel
    ) -> None:
        self.likeness, self.targets = Likeness(kernel), targets.double()
        h, Z = features.double(), landmarks.double()
        self.own = self.likeness.own(h)[1]
        self.inner, self.cross = self.likeness.pairs(Z, Z), self.likeness.pairs(Z, h)

    def __call__(self, scales: Tensor) -> Tensor:
        """The bound, a scalar, differentiable in the scales (G, 3)."""
        log_length, log_eta, log_sigma = scales.unbind(dim=1)
        n, m, C = len(self.targets), len(self.inner), self.targets.shape[1]
        y = (
            self.targets.mT.unsqueeze(2) if len(scales) > 1 else self.targets.unsqueeze(0)
        )  # (C, n, 1) or (1, n, C)
        eye = torch.eye(m, dtype=torch.float64, device=y.device)
        L = torch.linalg.cholesky(self.likeness(self.inner, log_length) + JITTER * eye)
        phi = torch.linalg.solve_triangular(
            L, self.likeness(self.cross, log_length), upper=False
        )  # Q = eta phi^T phi
        ratio = torch.exp(log_eta - 2 * log_sigma)[:, None, None]  # eta / sigma^2
        B = torch.linalg.cholesky(eye + ratio * phi @ phi.mT)
        solved = torch.linalg.solve_triangular(B, phi @ y, upper=False)
        noise = torch.exp(-2 * log_sigma)
        quadratic = noise * (y.square().sum(dim=(1, 2)) - (ratio * solved.square()).sum(dim=(1, 2)))
        log_det = (
            2 * B.diagonal(dim1=1, dim2=2).log().sum(dim=1)
            + 2 * n * log_sigma
            + n * math.log(2 * math.pi)
        )
        missed = ratio.flatten() * (self.own.sum() - phi.square().sum(dim=(1, 2)))
        bound: Tensor = -0.5 * (quadratic + (C // len(scales)) * (log_det + missed)).sum()
        return bound


class LeaveOneOut:
    """Every row answered by all others, in closed form, and how good the answers are. O(G n^3) a
    call.

        mu_-i = y_i - alpha_i / P_ii      P = (k(h, h) + sigma^2 I)^-1      alpha = P y

    Args:
        features: (n, D). targets: (n, C), the largest of a row at its class. kernel: its kind.
    """

    def __init__(self, features: Tensor, targets: Tensor, kernel: Kernel) -> None:
        self.likeness, self.targets = Likeness(kernel), targets.double()
        h = features.double()
        self.pairs = self.likeness.pairs(h, h)
        self.pairs.diagonal().copy_(
            self.likeness.own(h)[1]
            if isinstance(kernel, Cosine | NTK)
            else torch.zeros(len(h)).to(h)
        )
        self.labels = self.targets.argmax(dim=1)
        counts = torch.bincount(self.labels, minlength=self.targets.shape[1])[self.labels]
        self.weights = torch.where(
            counts > 1, 1 / counts.double(), 0.0
        )  # who is alone in a class says nothing of it
        if not bool(self.weights.any()):
            raise ValueError(
                "leaving one row out tells nothing where every class has a single row; give more labels."
            )
        self.weights = self.weights / self.weights.sum()

    def residuals(self, scales: Tensor) -> tuple[Tensor, Tensor]:
        """y_i - mu_-i, (n, C), and P_ii for eta = 1, (n, G)."""
        log_length, log_eta, log_sigma = scales.unbind(dim=1)
        noise = torch.exp(2 * log_sigma - log_eta)[:, None, None]
        eye = torch.eye(len(self.targets), dtype=torch.float64, device=scales.device)
        P = torch.cholesky_inverse(
            torch.linalg.cholesky(self.likeness(self.pairs, log_length) + noise * eye)
        )  # (G, n, n)
        diagonal = P.diagonal(dim1=1, dim2=2).mT
        alpha = P[0] @ self.targets if len(P) == 1 else torch.einsum("cij,jc->ic", P, self.targets)
        return alpha / diagonal, diagonal

    def loss(self, residuals: Tensor, log_logit_scale: Tensor) -> Tensor:
        """Cross-entropy of softmax(lambda mu_-i) and the labels, every class counting the same;
        residuals (n, C).
        """
        logits = log_logit_scale.exp() * (self.targets - residuals)
        own = torch.log_softmax(logits, dim=1).gather(1, self.labels.unsqueeze(1)).squeeze(1)
        return -(self.weights @ own)

    @torch.no_grad()
    def output_scales(self, scales: Tensor) -> Tensor:
        """eta (G,) for which the Gaussian density of the residuals is largest: the mean of P_ii
        r_i^2 with P for eta = 1.
        """
        residuals, diagonal = self.residuals(scales)
        energy = self.weights @ (residuals.square() * diagonal)  # (C,)
        return energy.mean(dim=0, keepdim=True) if len(scales) == 1 else energy


class _Search:
    """What is minimised, in nats a row, over log l, log eta, log sigma and lambda.

    Args:
        h: (n, D) float64. y: (n, C). kernel: its kind. The others as in :func:`learn_kernel`.
    """

    def __init__(
        self,
        h: Tensor,
        y: Tensor,
        kernel: Kernel,
        objective: Objective,
        logit_scale: float | None,
        generator: torch.Generator,
    ) -> None:
        self.n, self.n_classes = y.shape
        distances = squared_distances(h[:MEASURED], h[:MEASURED]).flatten()
        apart = distances[distances > 1e-12]
        self.median = 0.5 * float(apart.median().log()) if len(apart) else 0.0
        self.objective: MarginalLikelihood | LeaveOneOut
        if objective == "leave_one_out":
            self.objective = LeaveOneOut(h, y, kernel)
        else:
            near = scales_of([kernel], [1.0]).clamp_max(
                self.median - math.log(4)
            )  # so that Z still reaches if l shrinks
            chosen = choose_landmarks(
                h, with_scales(kernel, near)[0][0], LANDMARKS, generator=generator
            )
            self.objective = MarginalLikelihood(h, y, h[chosen], kernel)
        self.low, self.high = (
            torch.tensor(
                [self.median + math.log(LENGTHS[i]), math.log(OUTPUTS[i]), math.log(RATIOS[i])]
            ).to(h)
            for i in (0, 1)
        )
        self.usual = math.log(auto_logit_scale(self.n_classes))
        self.log_lambda = None if logit_scale is None else math.log(logit_scale)

    def value(self, scales: Tensor, log_lambda: Tensor, centre: Tensor | None) -> Tensor:
        """Objective and priors; with a ``centre`` (1, 3), it is the usual, and classes are around
        it.
        """
        if isinstance(self.objective, MarginalLikelihood):
            cost = -self.objective(scales)
        else:
            cost = self._left_out_cost(
                self.objective, self.objective.residuals(scales)[0], log_lambda
            )
        return (cost + self._prior(scales, centre)) / self.n

    def _left_out_cost(
        self, left_out: LeaveOneOut, residuals: Tensor, log_lambda: Tensor
    ) -> Tensor:
        return (
            self.n * left_out.loss(residuals, log_lambda)
            + self.n_classes * (log_lambda - self.usual).square()
        )

    def _prior(self, scales: Tensor, centre: Tensor | None) -> Tensor:
        middle = scales.new_tensor([self.median, math.log(USUAL_RATIO)])
        shared = _length_and_ratio(scales if centre is None else centre)
        cost = ((shared - middle) / SPREAD).square().sum()
        if centre is not None:
            cost = cost + ((_length_and_ratio(scales) - shared) / CLASS_SPREAD).square().sum()
        return cost / 2

    @torch.no_grad()
    def at(self, scales: Tensor, centre: Tensor) -> float:
        """The value at scales, at the best lambda of a few if none is given; infinite where there
        is none.
        """
        tried = (
            [self.log_lambda]
            if self.log_lambda is not None
            else torch.linspace(0, math.log(80), 40).tolist()
        )
        try:
            if isinstance(self.objective, MarginalLikelihood):
                cost = -float(self.objective(scales))
            else:
                residuals, _ = self.objective.residuals(scales)
                cost = min(
                    float(self._left_out_cost(self.objective, residuals, scales.new_tensor(one)))
                    for one in tried
                )
        except LinAlgError:
            return math.inf
        found = (cost + float(self._prior(scales, centre))) / self.n
        return found if math.isfinite(found) else math.inf

    def descend(self, scales: Tensor, centre: Tensor | None, iterations: int) -> Tensor:
        """The best scales (G, 3) that L-BFGS passes; those it starts from, if there is none."""
        free = self._free(scales).requires_grad_()
        log_lambda = scales.new_tensor(self.usual if self.log_lambda is None else self.log_lambda)
        variables = [free, log_lambda.requires_grad_()] if self.log_lambda is None else [free]
        best, best_value = scales, math.inf
        optimizer = torch.optim.LBFGS(variables, max_iter=iterations, line_search_fn="strong_wolfe")

        def closure() -> float:
            nonlocal best, best_value
            optimizer.zero_grad()
            inside = self._inside(free)
            value = self.value(inside, log_lambda, centre)
            value.backward()
            reached = float(value.detach())
            if reached < best_value:
                best, best_value = inside.detach().clone(), reached
            return reached

        try:
            with torch.enable_grad():
                optimizer.step(closure)
        except LinAlgError:
            pass  # so far and no further: the best that was seen is good
        return best

    def rescaled(self, scales: Tensor) -> Tensor:
        """With eta by the residuals for leave-one-out, whose means say nothing of it."""
        if isinstance(self.objective, MarginalLikelihood):
            return scales
        eta = self.objective.output_scales(scales).clamp(*OUTPUTS)
        shift = eta.log() - scales[:, 1]
        return scales + torch.stack([torch.zeros_like(shift), shift, shift / 2], dim=1)

    def _inside(self, free: Tensor) -> Tensor:
        """Scales (G, 3) within the bounds, for any real numbers (G, 3)."""
        length, eta, ratio = (self.low + (self.high - self.low) * torch.sigmoid(free)).unbind(dim=1)
        return torch.stack([length, eta, ratio + eta / 2], dim=1)

    def _free(self, scales: Tensor) -> Tensor:
        """The inverse of :meth:`_inside`; from beyond the bounds, just inside."""
        bounded = torch.stack([scales[:, 0], scales[:, 1], scales[:, 2] - scales[:, 1] / 2], dim=1)
        return torch.logit(((bounded - self.low) / (self.high - self.low)).clamp(1e-3, 1 - 1e-3))


def _length_and_ratio(scales: Tensor) -> Tensor:
    """(G, 2) log l and log(sigma / sqrt(eta))."""
    return torch.stack([scales[:, 0], scales[:, 2] - scales[:, 1] / 2], dim=1)
