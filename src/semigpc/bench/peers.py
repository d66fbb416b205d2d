"""What an online GP is up against: every way to have K^-1 y after B of N rows have changed."""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from sklearn.kernel_ridge import KernelRidge
from torch import Tensor

from semigpc.bench.reference import append_rows, drop_oldest_rows, kernel_matrix
from semigpc.bench.timing import Step
from semigpc.gp.kernels import RBF

GPYTORCH_INSTALLED = find_spec("gpytorch") is not None


@dataclass(frozen=True)
class Problem:
    """One buffer and the batch that enters it.

    Args:
        features: (N, D) unit vectors. targets: (N, C) one-hot. new_features: (B, D). new_targets: (B, C).
    """

    features: Tensor
    targets: Tensor
    new_features: Tensor
    new_targets: Tensor
    kernel: RBF
    noise_std: float


def peers(problem: Problem) -> Iterator[tuple[str, Step]]:
    """Each peer's step, by the name of its figure. Set up one at a time: at N = 16300 a matrix is 1 GB.

    The dense torch peers are GIVEN the new K: their figure is the factorisation and K^-1 y alone. scikit-learn and GPyTorch
    are called as their users call them, so theirs includes evaluating the kernel.
    """
    yield from _dense_peers(problem)
    yield "paper_rule_s", _paper_rule(problem)
    yield "sklearn_s", _kernel_ridge(problem)
    if GPYTORCH_INSTALLED:
        yield from _gpytorch_peers(problem)


def _dense_peers(problem: Problem) -> Iterator[tuple[str, Step]]:
    K, y = kernel_matrix(problem.features, problem.kernel, problem.noise_std), problem.targets
    yield "inverse_s", lambda: torch.linalg.inv(K) @ y
    yield "cholesky_inverse_s", lambda: torch.cholesky_inverse(torch.linalg.cholesky(K)) @ y
    yield "cholesky_solve_s", lambda: torch.cholesky_solve(y, torch.linalg.cholesky(K))


def _paper_rule(problem: Problem) -> Step:
    """The block rule of section 3.3 in plain matrix code: the oldest rows out, the newest in, alpha afterwards."""
    count = len(problem.new_features)
    K_inv = torch.cholesky_inverse(torch.linalg.cholesky(kernel_matrix(problem.features, problem.kernel, problem.noise_std)))
    kept = problem.features[count:]
    y = torch.cat([problem.targets[count:], problem.new_targets])

    def step() -> Tensor:
        C = problem.kernel(kept, problem.new_features)
        D = kernel_matrix(problem.new_features, problem.kernel, problem.noise_std)
        return append_rows(drop_oldest_rows(K_inv, count), C, D) @ y

    return step


def _kernel_ridge(problem: Problem) -> Step:
    X, y = problem.features.numpy(), problem.targets.numpy()
    gamma = 1 / (2 * problem.kernel.length_scale**2)
    model = KernelRidge(alpha=problem.noise_std**2, kernel="rbf", gamma=gamma)
    return lambda: model.fit(X, y)


def _gpytorch_peers(problem: Problem) -> Iterator[tuple[str, Step]]:
    """GPyTorch with ONE target column, which favours it: its exact GP would repeat K for every further one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside GPyTorch's own dependencies
        import gpytorch

    class Model(gpytorch.models.ExactGP):  # type: ignore[misc]
        def __init__(self, x: Tensor, y: Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.RBFKernel()

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    x, y = problem.features, problem.targets[:, 0].contiguous()
    new_x, new_y = problem.new_features, problem.new_targets[:, 0].contiguous()
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(x)
    model = Model(x, y, likelihood).to(x)
    likelihood.noise = problem.noise_std**2
    model.covar_module.lengthscale = problem.kernel.length_scale
    model.eval()

    def exactly(step: Step) -> Step:
        def wrapped() -> object:
            with ExitStack() as stack:
                # Above 800 rows GPyTorch would silently switch to an approximation.
                stack.enter_context(gpytorch.settings.max_cholesky_size(2 * len(x) + len(new_x)))
                stack.enter_context(gpytorch.settings.skip_posterior_variances(True))
                stack.enter_context(torch.no_grad())
                return step()

        return wrapped

    def refit() -> object:
        model.set_train_data(x, y, strict=False)  # drops what was cached
        return model(new_x).mean

    yield "gpytorch_refit_s", exactly(refit)
    exactly(refit)()
    yield "gpytorch_fantasy_s", exactly(lambda: model.get_fantasy_model(new_x, new_y))
