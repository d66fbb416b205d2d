"""What semigpc is compared with: other ways to update a GP, scikit-learn's labellers, and methods without training.

All have options that are fixed beforehand: those of their papers, or the defaults of scikit-learn.
"""

import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import cg
from sklearn.kernel_ridge import KernelRidge
from sklearn.neighbors import NearestNeighbors
from torch import Tensor

from benchmarks.problems import Clusters
from benchmarks.references import append_rows, drop_oldest_rows, kernel_matrix
from benchmarks.timing import Step, resident_bytes
from semigpc.estimator.peers import PEERS, fit_peer
from semigpc.gp.kernels import RBF

GPYTORCH_INSTALLED = find_spec("gpytorch") is not None
LABELLERS = ("label_spreading", "self_training")  # peers that label a table, out of those of the estimator
LOOK_SECONDS = 0.05  # between looks at the memory of a peer's process
NEIGHBOURS, POWER, ALPHA = 50, 3.0, 0.99  # k, gamma and a of label propagation for deep learning (Iscen et al., 2019)
ITERATIONS = 1000  # of conjugate gradients at most

Record = dict[str, Any]
Rows = NDArray[Any]  # (n, D)
Codes = NDArray[np.int64]  # (n,)
Predict = Callable[[Rows], Codes]


# Every way to have K^-1 y after B of N rows have changed --------------------------------------------------------------


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


# How many rows scikit-learn's semi-supervised classifiers can label before time, memory or NaN stops them -------------


@dataclass(frozen=True)
class Budget:
    """What a peer may use for one size: seconds, and bytes of its process in RAM, rows and libraries included."""

    seconds: float = 60.0
    bytes: int = 4 * 2**30


def largest_size(
    name: str,
    clusters: Clusters,
    *,
    labels: int,
    rows: int,
    budget: Budget,
    report: Callable[[str], object] = lambda _: None,
) -> Record:
    """Let one peer label more and more rows in a process of its own, until it is done with ``rows`` or is stopped.

    Sizes double from twice the labels on. A size counts if every row gets an answer that is not NaN within the budget.

    Args:
        name: one of LABELLERS. labels: given, among the rows of every size.
        report: called with what is being tried, for a progress display.

    Returns:
        ``rows`` at the largest size that counts (0 for none), ``seconds`` and ``rows_per_s`` there; ``stopped`` by "memory",
        "time", "nan", an error, or None if all rows were labelled; and ``stopped_at`` how many rows.
    """
    record: Record = {"rows": 0, "seconds": None, "rows_per_s": None, "stopped": None, "stopped_at": None}
    context = multiprocessing.get_context("spawn")  # a copy of this process would inherit its threads' locks
    ours, theirs = context.Pipe()
    child = context.Process(target=_label_more_and_more, args=(theirs, name, clusters, labels, rows), daemon=True)
    child.start()
    theirs.close()
    try:
        for size in sizes(labels, rows):
            report(f"{name}, {size:,} rows")
            answer = _answer(ours, child.pid, budget)
            if isinstance(answer, str):
                return record | {"stopped": answer, "stopped_at": size}
            record |= {"rows": size, "seconds": answer, "rows_per_s": size / answer}
        return record
    finally:
        child.kill()
        child.join()


def sizes(labels: int, rows: int) -> Iterator[int]:
    """Twice the labels, doubled until ``rows`` is reached."""
    size = 2 * labels
    while size < rows:
        yield size
        size *= 2
    yield rows


def _answer(connection: Connection, pid: int | None, budget: Budget) -> float | str:
    """Seconds of the size under way, or what stops it. The clock starts when the rows are there."""
    began: float | None = None
    while True:
        if connection.poll(LOOK_SECONDS):
            try:
                message = connection.recv()
            except EOFError:
                return "killed"
            if message != "began":
                return message  # type: ignore[no-any-return]
            began = time.monotonic()
        if began is not None and time.monotonic() - began > budget.seconds:
            return "time"
        if (resident_bytes(pid or 0) or 0) > budget.bytes:
            return "memory"


def _label_more_and_more(connection: Connection, name: str, clusters: Clusters, labels: int, rows: int) -> None:
    """In the child: "began", then seconds or what went wrong, for size after size."""
    for size in sizes(labels, rows):
        X, codes = clusters.draw(size)
        connection.send("began")
        began = time.perf_counter()
        try:
            fitted = fit_peer(PEERS[name], X[:labels], codes[:labels], X[labels:])
            found = fitted.classifier
            probs = found.label_distributions_ if name == "label_spreading" else found.predict_proba(fitted.scaler.transform(X))
            seconds = time.perf_counter() - began
            connection.send(seconds if np.isfinite(probs).all() else "nan")
        except MemoryError:
            connection.send("memory")
        except Exception as error:  # whatever it is, it is the peer's answer
            connection.send(f"{type(error).__name__}: {error}")


# Methods on features of a frozen network that take no steps: label propagation and neighbours. -----------------------


@dataclass(frozen=True)
class GraphBaseline:
    """A method without steps: its name in tables, and how it learns from (labelled rows, codes, unlabelled rows, C)."""

    label: str
    fit: Callable[[Rows, Codes, Rows, int], Predict]


class Diffusion:
    """Z = (I - a S)^-1 Y over labelled and unlabelled rows, with S = D^-1/2 W D^-1/2.

    w_ij = max(0, cos(x_i, x_j))^g between a row and its k nearest, made symmetric by W + W^T. Column c of Y is 1 / n_c at the
    labels of class c, so that every class sends out the same mass whatever its size; rows of Z are then normalised. Solved
    by conjugate gradients, O(k (n + u) C) an iteration; no test row is in the graph: one gets the mean of its k nearest
    rows of Z, weighted by w.

    Args:
        labeled: (n, D). codes: (n,). unlabeled: (u, D). n_classes: C.
        neighbours: k, or as many as there are.
    """

    def __init__(self, labeled: Rows, codes: Codes, unlabeled: Rows, n_classes: int, *, neighbours: int = NEIGHBOURS) -> None:
        rows = unit(np.concatenate([labeled, unlabeled]))
        self.neighbours = min(neighbours, len(rows) - 1)
        self.index = NearestNeighbors(n_neighbors=self.neighbours, algorithm="brute").fit(rows)
        distances, nearest = self.index.kneighbors()  # of each row, without itself
        own = np.repeat(np.arange(len(rows)), self.neighbours)
        W = sparse.csr_matrix((affinity(distances).ravel(), (own, nearest.ravel())), shape=(len(rows), len(rows)))
        W = W + W.T
        scale = sparse.diags(1 / np.sqrt(np.maximum(np.asarray(W.sum(axis=1)).ravel(), 1e-12)))
        system = sparse.identity(len(rows), format="csr") - ALPHA * (scale @ W @ scale)
        sent = np.zeros((len(rows), n_classes))
        sent[np.arange(len(codes)), codes] = 1 / np.bincount(codes, minlength=n_classes)[codes]
        Z = np.stack([_solve(system, column) for column in sent.T], axis=1)
        self.shares = Z / np.maximum(Z.sum(axis=1, keepdims=True), 1e-12)

    def __call__(self, rows: Rows) -> Codes:
        """The class (M,) of rows (M, D)."""
        distances, nearest = self.index.kneighbors(unit(rows))
        said = np.einsum("mk,mkc->mc", affinity(distances), self.shares[nearest])
        return np.asarray(said.argmax(axis=1), dtype=np.int64)


def unit(rows: Rows) -> Rows:
    """Rows of unit length."""
    return np.asarray(rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12))


def affinity(distances: Rows) -> Rows:
    """max(0, cos)^g from distances between unit rows: cos = 1 - d^2 / 2."""
    return np.asarray(np.maximum(0, 1 - distances**2 / 2) ** POWER)


def _solve(system: Any, column: NDArray[np.float64]) -> NDArray[np.float64]:
    solution, left = cg(system, column, maxiter=ITERATIONS)
    if left:
        raise RuntimeError(f"label propagation did not converge in {ITERATIONS} iterations; are features finite?")
    return np.asarray(solution)


def _peer(name: str) -> Callable[[Rows, Codes, Rows, int], Predict]:
    return lambda labeled, codes, unlabeled, _: fit_peer(PEERS[name], labeled, codes, unlabeled).predict


GRAPH_BASELINES: Mapping[str, GraphBaseline] = {
    "knn": GraphBaseline("5 nearest labels", _peer("knn5")),
    "label_spreading": GraphBaseline("LabelSpreading", _peer("label_spreading")),
    "diffusion": GraphBaseline("diffusion", Diffusion),
}
