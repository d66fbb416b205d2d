"""Choosing a kernel's scales from rows, and leave-one-out in closed form.

Three ways to choose the length-scale l, for three situations:

- ``choose_by_grid``: l and the noise sigma of least squared leave-one-out error, from a grid of
  multiples of the median distance. For a table of labelled rows (the estimator).
- ``neighbour_length_scale``: l from the distance of unlabelled rows to the nearest labelled one.
  Needs no labels, so it can follow the features of a network in training.
- ``learn_kernel``: l, sigma and the output scale eta by gradient descent on the leave-one-out
  likelihood. For the buffer of a network in training (``refiner.learn``).

The last two differ from the first in what they minimise: probabilities through softmax(lambda mu),
as pseudo-labels are judged, instead of squared errors of the mean.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semigpc.gp.certainty import auto_logit_scale
from semigpc.gp.engine import full_precision
from semigpc.gp.kernels import (
    NTK,
    RBF,
    Cosine,
    Kernel,
    Laplace,
    has_length_scale,
    make_kernel,
    squared_distances,
)

Integers = NDArray[np.int64]

# The grid. With less noise, rows of one class have weights that cancel.
GRID_LENGTHS = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0)  # l, in median distances
GRID_NOISES = (0.2, 0.32, 0.55, 1.0)  # sigma, beside an output scale of 1
# Neighbours
NEIGHBOUR_FACTOR = 1.5  # l^2 over the median squared distance to the nearest labelled row
SMALLEST_LENGTH = 1e-3  # queries that are labelled rows themselves have no distance
NEIGHBOUR_CHUNK = 8192  # labelled rows compared at once
# Learning. Beyond four median distances K is near a constant, and with a smaller ratio the weights
# of rows of one class cancel.
LENGTH_BOUNDS = (0.1, 4.0)  # of l, in median distances between rows
OUTPUT_BOUNDS = (1e-3, 1e3)  # of eta
RATIO_BOUNDS = (0.2, 2.0)  # of sigma / sqrt(eta)
PAPER_RATIO = 0.1**0.5  # sigma / sqrt(eta) of the paper, the centre of its prior
PRIOR_DEVIATION = 0.3  # standard deviation of log l and log(sigma / sqrt(eta)) under the prior
MEASURED_ROWS = 512  # rows between which distances are taken
LEARNABLE = (RBF, Laplace, Cosine, NTK)  # kernels that learn_kernel can differentiate
LEAST_GAIN = 1e-3  # nats per row by which the objective must improve, or nothing is changed
TRIED_LOGIT_SCALES = torch.linspace(0, math.log(80), 40).tolist()  # log lambda
LinAlgError: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]


# Leave-one-out ------------------------------------------------------------------------------------


def left_out_residuals(alpha: Tensor, inverse_diagonal: Tensor) -> Tensor:
    """Return y_i - mu_-i(h_i), (n, C): every row predicted by the n - 1 others.

        mu_-i(h_i) = y_i - alpha_i / P_ii        var_-i(h_i) = 1 / P_ii - sigma^2

    with P = (k(h, h) + sigma^2 I)^-1 and alpha = P y, so that no GP is fitted again.

    Args:
        alpha: (n, C). inverse_diagonal: (n,) P_ii.
    """
    return alpha / inverse_diagonal.unsqueeze(1)


def left_out_block(alpha: Tensor, inverse_block: Tensor) -> tuple[Tensor, Tensor]:
    """Return residuals (m, C) of m rows that are left out together, and their variances (m,).

        mu_-F(h_F) = y_F - P_FF^-1 alpha_F        var_-F(h_F) = diag(P_FF^-1) - sigma^2

    The variances returned are those of the targets: sigma^2 is not subtracted. O(m^3 + m^2 C).

    Args:
        alpha: (m, C) of the rows left out. inverse_block: (m, m) P_FF.
    """
    factor, failed = torch.linalg.cholesky_ex(inverse_block)
    if bool(failed):  # K of a clipped kernel can be indefinite
        inverse = torch.linalg.inv(inverse_block)
        return inverse @ alpha, inverse.diagonal()
    return torch.cholesky_solve(alpha, factor), torch.cholesky_inverse(factor).diagonal()


def class_weights(codes: Tensor, n_classes: int, counted: Tensor | None = None) -> Tensor:
    """Return weights (n,) under which every class counts the same, with sum 1.

    A class with a single row cannot be validated: its row has the weight 0. All weights are 0 where
    every class has a single row.

    Args:
        codes: (n,). counted: (n,) which rows count, such as one of several copies; all by default.
    """
    counted = torch.ones_like(codes, dtype=torch.bool) if counted is None else counted
    counts = torch.bincount(codes[counted], minlength=n_classes)[codes]
    weights = torch.where(counted & (counts > 1), 1 / counts.double(), 0.0)
    return weights / weights.sum().clamp_min(1e-300)


class LeftTogether(NamedTuple):
    """Rows that are left out together, such as copies of each other.

    Attributes:
        groups: (n,) the group of each row. counted: (n,) which rows count.
    """

    groups: Tensor
    counted: Tensor

    def blocks(self) -> list[Tensor]:
        """Return places (g, m) of the g groups of m rows, for each m above 1."""
        order = self.groups.argsort(stable=True)
        _, sizes = self.groups.unique(return_counts=True)
        members = order.split(sizes.tolist())
        return [
            torch.stack([places for places in members if len(places) == size])
            for size in sizes.unique().tolist()
            if size > 1
        ]


# Choosing by a grid -------------------------------------------------------------------------------


class Setting(NamedTuple):
    """Scaling, length-scale and noise, and their class-balanced squared leave-one-out error."""

    scaling: str
    length_scale: float
    noise_std: float
    error: float


def choose_by_grid(
    points: Mapping[str, Tensor],
    codes: Tensor,
    *,
    kernel: str,
    length_scale: float | None = None,
    noise_std: float | None = None,
    together: LeftTogether | None = None,
) -> Setting:
    """Return the setting of least squared leave-one-out error, every class counting the same.

        error = 1/C sum_c 1/n_c sum_{i in c} |y_i - mu_-i|^2

    One eigendecomposition of k(h, h) is used for every sigma: a length-scale costs O(n^3), each
    sigma O(n^2 C), and O(n m (n + m)) more for rows that are left out together, m at a time.

    Args:
        points: labelled points (n, D) under each scaling to choose from, by its name.
        codes: (n,) classes 0 .. C - 1. kernel: its name.
        length_scale, noise_std: fixed, or None to choose from the grid.
        together: rows that are left out together; each row by itself if left out.
    """
    n_classes = int(codes.max()) + 1
    targets = torch.nn.functional.one_hot(codes, n_classes).double()
    weights = class_weights(codes, n_classes, together.counted if together else None)
    if not bool(weights.any()):
        weights = torch.full_like(weights, 1 / len(weights))
    blocks = together.blocks() if together else []
    noises = _noises(together) if noise_std is None else [noise_std]
    settings = []
    for name, scaled in points.items():
        h = scaled.double()
        for length in _lengths(h, kernel, length_scale):
            values, vectors = torch.linalg.eigh(make_kernel(kernel, length)(h, h))
            rotated = vectors.mT @ targets
            for noise in noises:
                inverse = 1 / (values.clamp_min(0) + noise**2)
                alpha = vectors @ (inverse.unsqueeze(1) * rotated)
                residuals = left_out_residuals(alpha, vectors.square() @ inverse)
                for places in blocks:
                    own = vectors[places]  # (g, m, n)
                    P = (own * inverse) @ own.mT
                    residuals[places] = torch.linalg.solve(P, alpha[places])
                error = float(weights @ residuals.square().sum(dim=1))
                settings.append(Setting(name, float(length), float(noise), error))
    return min(settings, key=lambda setting: setting.error)


def _noises(together: LeftTogether | None) -> list[float]:
    """Return the noises to try: m copies of a row with noise sigma are one with sigma / sqrt(m)."""
    copies = 1.0 if together is None else len(together.counted) / int(together.counted.sum())
    return [noise * math.sqrt(copies) for noise in GRID_NOISES]


def _lengths(points: Tensor, kernel: str, length_scale: float | None) -> list[float]:
    """Return the length-scales to try; one where it is fixed or the kernel has none."""
    if length_scale is not None:
        return [length_scale]
    median = median_distance(points)
    lengths = [factor * median for factor in GRID_LENGTHS]
    return lengths if has_length_scale(kernel) else lengths[:1]


def median_distance(points: Tensor) -> float:
    """Return the median distance between different points (n, D); 1 if all coincide. O(n^2 D)."""
    distances = squared_distances(points, points).flatten()
    apart = distances[distances > 1e-12]
    return float(apart.median().sqrt()) if len(apart) else 1.0


# Choosing by neighbours ---------------------------------------------------------------------------


def neighbour_length_scale(queries: Tensor, rows: Tensor, present: Tensor | None = None) -> float:
    """Return the l at which a typical query has a labelled row within the kernel's reach.

        l^2 = 1.5 median_i min_j |h_i - h_j|^2                  queries i, labelled rows j

    O(M N D). One synchronisation with the device.

    Args:
        queries: (M, D). rows: (N, D). present: (N,) which of them count; all if left out.
    """
    nearest = []
    for start in range(0, len(rows), NEIGHBOUR_CHUNK):
        part = slice(start, start + NEIGHBOUR_CHUNK)
        distances = squared_distances(queries, rows[part])
        if present is not None:
            distances = distances.masked_fill(~present[part], torch.inf)
        nearest.append(distances.amin(dim=1))
    median = torch.stack(nearest).amin(dim=0).median()
    return max(float((NEIGHBOUR_FACTOR * median).sqrt()), SMALLEST_LENGTH)


# Learning -----------------------------------------------------------------------------------------


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
    seed: int = 0,
) -> Learned:
    """Return l, eta and sigma that suit the labelled rows, by L-BFGS from their current values.

    The objective is the probability of every label given all others, through softmax(lambda mu).
    The mean depends on eta through sigma^2 / eta alone, so this ratio and l are learned, and eta
    follows in closed form from the Gaussian density of the residuals. O(n^3) per iteration.

    l stays within 0.1 and 4 median distances, eta within 1e-3 and 1e3, sigma / sqrt(eta) within 0.2
    and 2. A prior supports few labels: log l around the median distance, and log(sigma / sqrt(eta))
    around the paper's value, with a standard deviation of 0.3. If nothing is gained, or the result
    is not finite, the start is returned. Deterministic for a given seed.

    Args:
        features: (n, D). targets: (n, C) one-hot. kernel, noise_std: the start.
        logit_scale: lambda; None learns one as well.
        rows: learn from at most so many, as many of every class as fit. iterations: of L-BFGS.
        seed: of the choice of these rows.
    """
    start = scales_of(kernel, noise_std).to(features.device)
    codes = targets.argmax(dim=1).cpu().numpy()
    subset = balanced_subset(codes, rows, np.random.default_rng(seed), least=2)
    chosen = torch.from_numpy(subset).to(features.device)
    h = features[chosen].detach().double()
    y = targets[chosen].detach().double()
    search = _Search(h, y, kernel, logit_scale)
    before = search.at(start)
    scales = search.descend(start, iterations)
    after = search.at(scales)
    if not after < before - LEAST_GAIN:
        return Learned(kernel, noise_std, before, before)
    return Learned(*with_scales(kernel, search.rescaled(scales)), before, after)


def scales_of(kernel: Kernel, noise_std: float) -> Tensor:
    """Return (log l, log eta, log sigma), (3,) float64; log l is 0 for Cosine and NTK."""
    if not isinstance(kernel, LEARNABLE):
        known = ", ".join(kind.__name__ for kind in LEARNABLE)
        raise TypeError(f"kernel must be one of {known} to be learned; got {kernel!r}.")
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
    """Predict every row from all others, and rate the predictions; differentiable in the scales.

    O(n^3) per call.

    Args:
        features: (n, D). targets: (n, C), the largest of a row at its class. kernel: its kind.
    """

    def __init__(self, features: Tensor, targets: Tensor, kernel: Kernel) -> None:
        self.kernel = kernel
        self.targets = targets.double()
        self.pairs = self._pairs(features.double())
        self.labels = self.targets.argmax(dim=1)
        self.weights = class_weights(self.labels, self.targets.shape[1])
        if not bool(self.weights.any()):
            raise ValueError(
                "leave-one-out needs a class with two rows or more; every class has a single row. "
                "Give more labels."
            )

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
        return left_out_residuals(P @ self.targets, P.diagonal()), P.diagonal().unsqueeze(1)

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
        self.median = math.log(median_distance(h[:MEASURED_ROWS]))
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
        best = scales
        best_value = math.inf
        optimizer = torch.optim.LBFGS(variables, max_iter=iterations, line_search_fn="strong_wolfe")

        def closure() -> float:
            nonlocal best, best_value
            optimizer.zero_grad()
            inside = self._inside(free)
            value = self.value(inside, log_lambda)
            value.backward()
            reached = float(value.detach())
            if reached < best_value:
                best = inside.detach().clone()
                best_value = reached
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


# Subsets of the rows ------------------------------------------------------------------------------


def balanced_subset(
    codes: Integers, size: int, rng: np.random.Generator, *, least: int = 1
) -> Integers:
    """Return sorted positions of at most ``size`` rows: large classes give way first.

    All rows of small classes, and equally many of each larger one.

    Args:
        codes: (n,) classes. least: rows that each class keeps, even beyond ``size``.
    """
    if len(codes) <= size:
        return np.arange(len(codes))
    counts = np.bincount(codes)
    quota = np.full(len(counts), max(least, balanced_quota(counts, size)))
    return draw_by_class(codes, quota, rng)


def balanced_quota(counts: Integers, size: int, least: Integers | int = 0) -> int:
    """Return the largest q for which max(least_c, min(n_c, q)) rows of each class fit into a size.

    Args:
        counts: (C,) n_c. least: (C,) rows of each class that are taken in any case.
    """
    below = 0
    above = int(counts.max()) + 1
    while above - below > 1:
        middle = (below + above) // 2
        if np.maximum(least, np.minimum(counts, middle)).sum() <= size:
            below = middle
        else:
            above = middle
    return below


def draw_by_class(codes: Integers, quota: Integers, rng: np.random.Generator) -> Integers:
    """Return sorted positions of ``quota[c]`` random rows of each class c, or of all it has."""
    kept = [rng.permutation(np.flatnonzero(codes == c))[:most] for c, most in enumerate(quota)]
    return np.sort(np.concatenate(kept))
