"""Rows that engines are compared on: embeddings of real images, or generated clusters; and what an exact GP says of them."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from semigpc.bench.clusters import Clusters
from semigpc.bench.long_tails import load_embeddings_pool
from semigpc.estimator.fitting import tune
from semigpc.gp import RBF, Kernel

TUNED = 3000  # rows by which leave-one-out picks the length-scale
QUERIES = 2000  # rows that engines are asked about
PROBES = 32  # random vectors by which a trace is estimated
CHUNK = 2048


class Rows(NamedTuple):
    """Unit features (n, D) with one-hot targets (n, C), and queries (M, D) with their classes (M,); all float32."""

    features: Tensor
    targets: Tensor
    queries: Tensor
    classes: Tensor


class Picked(NamedTuple):
    """Length-scale and noise that leave-one-out picks."""

    length_scale: float
    noise_std: float


class Exact(NamedTuple):
    """The exact mean at the queries (M, C), and the effective dimension tr(K (K + sigma^2 I)^-1), estimated."""

    mean: Tensor
    dimension: float


def embedded_rows(path: Path, count: int, seed: int) -> Rows:
    """Of embeddings that ``semigpc embed`` made of train/CLASS and test/CLASS images: rows of train, queries of test."""
    pool = load_embeddings_pool(path)
    rng = np.random.default_rng([seed, 6])
    assert pool.X_test is not None
    assert pool.codes_test is not None
    if count > len(pool.codes):
        raise ValueError(f"{path} has {len(pool.codes)} rows in train; {count} were asked for.")
    kept, asked = rng.permutation(len(pool.codes))[:count], rng.permutation(len(pool.codes_test))[:QUERIES]
    return _rows(pool.X[kept], pool.codes[kept], pool.X_test[asked], pool.codes_test[asked])


def generated_rows(count: int, width: int, classes: int, seed: int) -> Rows:
    """Clusters on the unit sphere with a long tail."""
    clusters = Clusters(width, classes, seed)
    X, codes = clusters.draw(count)
    X_asked, codes_asked = clusters.draw(QUERIES, stream=1)
    return _rows(X, codes, X_asked, codes_asked)


def _rows(
    X: NDArray[np.float32], codes: NDArray[np.int64], X_asked: NDArray[np.float32], codes_asked: NDArray[np.int64]
) -> Rows:
    classes = int(codes.max()) + 1
    targets = F.one_hot(torch.from_numpy(codes), classes).float()
    return Rows(_unit(X), targets, _unit(X_asked), torch.from_numpy(codes_asked))


def _unit(X: NDArray[np.float32]) -> Tensor:
    return F.normalize(torch.from_numpy(X).float(), dim=1)


def pick(rows: Rows, seed: int) -> Picked:
    """By the estimator's grid and criterion, on rows drawn at random."""
    drawn = torch.randperm(len(rows.features), generator=torch.Generator().manual_seed(seed))[:TUNED]
    codes = rows.targets[drawn].argmax(dim=1)
    points = {"unit": rows.features[drawn]}
    found = tune(points, codes, kernel="rbf", length_scale=None, noise_std=None)
    return Picked(found.length_scale, found.noise_std)


def exact_mean(rows: Rows, kernel: Kernel, noise_std: float) -> Exact:
    """By one Cholesky factor in float32, with one step of refinement in float64. O(n^3), two n^2 matrices."""
    H, y = rows.features, rows.targets.double()
    K = kernel(H, H)
    K.diagonal().copy_(kernel.diagonal(H) + noise_std**2)
    root = torch.linalg.cholesky(K)
    alpha = torch.cholesky_solve(rows.targets, root).double()
    residual = torch.cat([part - wide.double() @ alpha for part, wide in zip(y.split(CHUNK), K.split(CHUNK), strict=True)])
    alpha += torch.cholesky_solve(residual.float(), root).double()
    probes = torch.randn(len(H), PROBES, generator=torch.Generator().manual_seed(0))
    trace = float((probes * torch.cholesky_solve(probes, root)).sum()) / PROBES
    mean = torch.cat([kernel(part, H).double() @ alpha for part in rows.queries.split(CHUNK)])
    return Exact(mean, len(H) - noise_std**2 * trace)


def compare(mean: Tensor, exact: Tensor, classes: Tensor) -> dict[str, float]:
    """How far a mean (M, C) is from the exact one, and how right each is about classes (M,)."""
    difference = (mean.double() - exact).abs()
    return {
        "mean_difference": float(difference.mean()),
        "max_difference": float(difference.max()),
        "same_class": float((mean.argmax(dim=1) == exact.argmax(dim=1)).double().mean()),
        "accuracy": float((mean.argmax(dim=1) == classes).double().mean()),
        "exact_accuracy": float((exact.argmax(dim=1) == classes).double().mean()),
    }


def rbf(length_scale: float) -> RBF:
    """The kernel of the comparison."""
    return RBF(length_scale=length_scale)
