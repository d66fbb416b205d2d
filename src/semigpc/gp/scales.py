"""Kernels learned from labelled rows: length-scale l, output scale eta and noise sigma.

The objective is leave-one-out: the probability of every label given all others, through
softmax(lambda mu), as predictions are judged. The mean depends on eta through sigma^2 / eta alone,
so this ratio and l are learned, and eta follows in closed form from the Gaussian density of the
residuals. O(n^3) per iteration for n rows.

Scales are the vector (log l, log eta, log sigma), float64. RBF and Laplace have all three; Cosine
and NTK have no l, and theirs stays at log 1.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from semigpc.gp.certainty import auto_logit_scale
from semigpc.gp.engine import full_precision
from semigpc.gp.kernels import NTK, RBF, Cosine, Kernel, Laplace, squared_distances

# Bounds of the search. Beyond four median distances K is near a constant, and with a smaller ratio
# the weights of rows of one class cancel.
LENGTH_BOUNDS = (0.1, 4.0)  # of l, in median distances between rows
OUTPUT_BOUNDS = (1e-3, 1e3)  # of eta
RATIO_BOUNDS = (0.2, 2.0)  # of sigma / sqrt(eta)
PAPER_RATIO = 0.1**0.5  # sigma / sqrt(eta) of the paper, the centre of its prior
PRIOR_DEVIATION = 0.3  # standard deviation of log l and log(sigma / sqrt(eta)) under the prior
MEASURED_ROWS = 512  # rows between which distances are taken
LEAST_GAIN = 1e-3  # nats per row by which the objective must improve, or nothing is changed
TRIED_LOGIT_SCALES = torch.linspace(0, math.log(80), 40).tolist()  # log lambda
LinAlgError: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Learned:
    """A kernel and noise, and the objective before and after, in nats per row.

    If nothing was gained, kernel and noise are those of the start, and ``after`` is ``before``.
    """

    kernel: Kernel
    noise_std: float
    before: float
    after: float

    @property
    def improved(self) -> bool:
        """Whether the kernel or the noise changed."""
        return self.after < self.before


@full_precision()
def learn_kernel(
    features: Tensor,
    targets: Tensor,
    kernel: Kernel,
    noise_std: float,
    *,
    logit_scale: float | None = None,
    rows: int = 512,
    iterations: int = 30,
    generator: torch.Generator | None = None,
) -> Learned:
    """Return l, eta and sigma that suit the labelled rows, by L-BFGS from their current values.

    l stays within 0.1 and 4 median distances, eta within 1e-3 and 1e3, sigma / sqrt(eta) within 0.2
    and 2. A prior supports few labels: log l around the median distance, and log(sigma / sqrt(eta))
    around the paper's value, with a standard deviation of 0.3. If nothing is gained, or the result
    is not finite, the start is returned. Deterministic for a given state of the generator.

    Args:
        features: (n, D). targets: (n, C) one-hot. kernel, noise_std: the start.
        logit_scale: lambda; None learns one as well.
        rows: learn from at most so many, as many of every class as fit. iterations: of L-BFGS.
    """
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    start = scales_of(kernel, noise_std).to(features.device)
    chosen = balanced_rows(targets.argmax(dim=1), rows, generator).to(features.device)
    h = features[chosen].detach().double()
    y = targets[chosen].detach().double()
    search = _Search(h, y, kernel, logit_scale)
    before = search.at(start)
    scales = search.descend(start, iterations)
    after = search.at(scales)
    if not after < before - LEAST_GAIN:
        return Learned(kernel, noise_std, before, before)
    return Learned(*with_scales(kernel, search.rescaled(scales)), before, after)


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


def scales_of(kernel: Kernel, noise_std: float) -> Tensor:
    """Return (log l, log eta, log sigma), (3,) float64."""
    if not isinstance(kernel, RBF | Laplace | Cosine | NTK):
        raise TypeError(
            f"kernel must be one of RBF, Laplace, Cosine and NTK to be learned; got {kernel!r}."
        )
    length_scale = kernel.length_scale if isinstance(kernel, RBF | Laplace) else 1.0
    values = [length_scale, kernel.output_scale, noise_std]
    return torch.tensor([math.log(value) for value in values], dtype=torch.float64)


def with_scales(kernel: Kernel, scales: Tensor) -> tuple[Kernel, float]:
    """Return a kernel of the same kind, and the noise, from logarithms (3,)."""
    length_scale, output_scale, noise_std = scales.exp().tolist()
    kind: Any = kernel
    if isinstance(kernel, RBF | Laplace):
        return replace(kind, length_scale=length_scale, output_scale=output_scale), noise_std
    return replace(kind, output_scale=output_scale), noise_std


class LeaveOneOut:
    """Predict every row from all others in closed form, and rate the predictions.

        mu_-i = y_i - alpha_i / P_ii      P = (k(h, h) + sigma^2 I)^-1      alpha = P y

    O(n^3) per call.

    Args:
        features: (n, D). targets: (n, C), the largest of a row at its class. kernel: its kind.
    """

    def __init__(self, features: Tensor, targets: Tensor, kernel: Kernel) -> None:
        self.kernel = kernel
        self.targets = targets.double()
        self.pairs = self._pairs(features.double())
        self.labels = self.targets.argmax(dim=1)
        counts = torch.bincount(self.labels, minlength=self.targets.shape[1])[self.labels]
        # A class with a single row cannot be validated.
        weights = torch.where(counts > 1, 1 / counts.double(), 0.0)
        if not bool(weights.any()):
            raise ValueError(
                "leave-one-out needs a class with two rows or more; every class has a single row. "
                "Give more labels."
            )
        self.weights = weights / weights.sum()

    def _pairs(self, h: Tensor) -> Tensor:
        """Return what k(h, h) / eta is made of and l does not change, (n, n).

        Half the squared distance (RBF), the distance (Laplace), or the kernel with eta = 1.
        """
        if isinstance(self.kernel, RBF):
            return (squared_distances(h, h) / 2).fill_diagonal_(0)
        if isinstance(self.kernel, Laplace):
            distances = torch.cdist(h, h, compute_mode="donot_use_mm_for_euclid_dist")
            return distances.fill_diagonal_(0)
        unit: Any = replace(self.kernel, output_scale=1.0)  # type: ignore[type-var]
        values: Tensor = unit(h, h)
        values.diagonal().copy_(unit.diagonal(h))
        return values

    def _likeness(self, log_length: Tensor) -> Tensor:
        """Return k(h, h) / eta, (n, n)."""
        if isinstance(self.kernel, RBF):
            return torch.exp(-self.pairs * torch.exp(-2 * log_length))
        if isinstance(self.kernel, Laplace):
            return torch.exp(-self.pairs * torch.exp(-log_length))
        return self.pairs

    def residuals(self, scales: Tensor) -> tuple[Tensor, Tensor]:
        """Return y_i - mu_-i, (n, C), and P_ii for eta = 1, (n, 1)."""
        log_length, log_eta, log_sigma = scales
        noise = torch.exp(2 * log_sigma - log_eta)
        eye = torch.eye(len(self.targets), dtype=torch.float64, device=scales.device)
        factor = torch.linalg.cholesky(self._likeness(log_length) + noise * eye)
        P = torch.cholesky_inverse(factor)
        diagonal = P.diagonal().unsqueeze(1)
        return P @ self.targets / diagonal, diagonal

    def loss(self, residuals: Tensor, log_logit_scale: Tensor) -> Tensor:
        """Return the cross-entropy of softmax(lambda mu_-i), every class counting the same.

        Args:
            residuals: (n, C).
        """
        logits = log_logit_scale.exp() * (self.targets - residuals)
        own = torch.log_softmax(logits, dim=1).gather(1, self.labels.unsqueeze(1)).squeeze(1)
        return -(self.weights @ own)

    @torch.no_grad()
    def output_scale(self, scales: Tensor) -> Tensor:
        """Return the eta for which the Gaussian density of the residuals is largest.

        It is the mean of P_ii r_i^2, with P for eta = 1.
        """
        residuals, diagonal = self.residuals(scales)
        return (self.weights @ (residuals.square() * diagonal)).mean()


class _Search:
    """Minimise the loss and the prior, in nats per row, over the scales and lambda.

    Args:
        h: (n, D) float64. y: (n, C). kernel: its kind. logit_scale: lambda, or None.
    """

    def __init__(self, h: Tensor, y: Tensor, kernel: Kernel, logit_scale: float | None) -> None:
        self.n, self.n_classes = y.shape
        distances = squared_distances(h[:MEASURED_ROWS], h[:MEASURED_ROWS]).flatten()
        apart = distances[distances > 1e-12]
        self.median = 0.5 * float(apart.median().log()) if len(apart) else 0.0
        self.left_out = LeaveOneOut(h, y, kernel)
        self.low, self.high = (self._bounds(end).to(h) for end in (0, 1))
        self.usual = math.log(auto_logit_scale(self.n_classes))
        self.log_lambda = None if logit_scale is None else math.log(logit_scale)

    def _bounds(self, end: int) -> Tensor:
        """Return the lower (0) or upper (1) bounds of log l, log eta and log(sigma / sqrt(eta))."""
        length = self.median + math.log(LENGTH_BOUNDS[end])
        return torch.tensor([length, math.log(OUTPUT_BOUNDS[end]), math.log(RATIO_BOUNDS[end])])

    def value(self, scales: Tensor, log_lambda: Tensor) -> Tensor:
        """Return loss and prior at scales (3,)."""
        residuals, _ = self.left_out.residuals(scales)
        return (self._cost(residuals, log_lambda) + self._prior(scales)) / self.n

    def _cost(self, residuals: Tensor, log_lambda: Tensor) -> Tensor:
        loss = self.n * self.left_out.loss(residuals, log_lambda)
        return loss + self.n_classes * (log_lambda - self.usual).square()

    def _prior(self, scales: Tensor) -> Tensor:
        centre = scales.new_tensor([self.median, math.log(PAPER_RATIO)])
        length_and_ratio = torch.stack([scales[0], scales[2] - scales[1] / 2])
        return ((length_and_ratio - centre) / PRIOR_DEVIATION).square().sum() / 2

    @torch.no_grad()
    def at(self, scales: Tensor) -> float:
        """Return the value, at the best of a few lambda if none is given; inf if K is singular."""
        tried = TRIED_LOGIT_SCALES if self.log_lambda is None else [self.log_lambda]
        try:
            residuals, _ = self.left_out.residuals(scales)
        except LinAlgError:
            return math.inf
        cost = min(float(self._cost(residuals, scales.new_tensor(one))) for one in tried)
        value = (cost + float(self._prior(scales))) / self.n
        return value if math.isfinite(value) else math.inf

    def descend(self, scales: Tensor, iterations: int) -> Tensor:
        """Return the best scales (3,) that L-BFGS visits, or the start if it visits none."""
        free = self._free(scales).requires_grad_()
        log_lambda = scales.new_tensor(self.usual if self.log_lambda is None else self.log_lambda)
        variables = [free, log_lambda.requires_grad_()] if self.log_lambda is None else [free]
        best, best_value = scales, math.inf
        optimizer = torch.optim.LBFGS(variables, max_iter=iterations, line_search_fn="strong_wolfe")

        def closure() -> float:
            nonlocal best, best_value
            optimizer.zero_grad()
            inside = self._inside(free)
            value = self.value(inside, log_lambda)
            value.backward()
            reached = float(value.detach())
            if reached < best_value:
                best, best_value = inside.detach().clone(), reached
            return reached

        try:
            with torch.enable_grad():
                optimizer.step(closure)
        except LinAlgError:
            pass  # K became singular: the best scales so far are valid
        return best

    def rescaled(self, scales: Tensor) -> Tensor:
        """Return the scales with eta from the residuals, at the same ratio sigma / sqrt(eta)."""
        eta = self.left_out.output_scale(scales).clamp(*OUTPUT_BOUNDS)
        shift = eta.log() - scales[1]
        return scales + torch.stack([torch.zeros_like(shift), shift, shift / 2])

    def _inside(self, free: Tensor) -> Tensor:
        """Return scales (3,) within the bounds, for any real numbers (3,)."""
        length, eta, ratio = self.low + (self.high - self.low) * torch.sigmoid(free)
        return torch.stack([length, eta, ratio + eta / 2])

    def _free(self, scales: Tensor) -> Tensor:
        """Return the inverse of :meth:`_inside`; just inside for scales beyond the bounds."""
        bounded = torch.stack([scales[0], scales[1], scales[2] - scales[1] / 2])
        return torch.logit(((bounded - self.low) / (self.high - self.low)).clamp(1e-3, 1 - 1e-3))
