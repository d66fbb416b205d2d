"""The textbook paths: slow, short, and what the engine is tested against.

Here C and D are the blocks of a bordered matrix; nothing in this file knows of classes.
"""

import torch
from torch import Tensor

from semigpc.gp.kernels import Kernel


def kernel_matrix(features: Tensor, kernel: Kernel, noise_std: float) -> Tensor:
    """K = k(h_Q, h_Q) + sigma^2 I, (N, N), for features (N, D). O(N^2 D)."""
    K = kernel(features, features)
    K.diagonal().copy_(kernel.diagonal(features) + noise_std**2)
    return K


def posterior(
    queries: Tensor, features: Tensor, targets: Tensor, kernel: Kernel, noise_std: float
) -> tuple[Tensor, Tensor]:
    """Mean and variance of a GP fitted afresh (section 3.2). O(N^3).

        mu(h)  = k(h, h_Q) K^-1 y_Q
        var(h) = k(h, h) - k(h, h_Q) K^-1 k(h_Q, h)

    Args:
        queries: (M, D). features: (N, D). targets: (N, C).

    Returns:
        (M, C) and (M,).
    """
    K = kernel_matrix(features, kernel, noise_std)
    k = kernel(queries, features)  # (M, N)
    solved = torch.linalg.solve(K, torch.cat([targets, k.mT], dim=1))
    mean = k @ solved[:, : targets.shape[1]]
    return mean, kernel.diagonal(queries) - (k * solved[:, targets.shape[1] :].mT).sum(dim=1)


def append_rows(A_inv: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """Grow the inverse of A into the inverse of [[A, C], [C^T, D]] (section 3.3).

    Args:
        A_inv: (N, N) inverse of the block that stays.
        C: (N, B) kernel values between kept and new points.
        D: (B, B) kernel values among new points, noise already on the diagonal.

    Returns:
        (N + B, N + B) symmetric inverse, in O(B N^2 + B^3).
    """
    W = A_inv @ C  # (N, B)
    S_inv = torch.linalg.inv(D - C.mT @ W)  # (B, B), Schur complement; K22 in the paper
    top = torch.cat([A_inv + W @ S_inv @ W.mT, -W @ S_inv], dim=1)
    bottom = torch.cat([-S_inv @ W.mT, S_inv], dim=1)
    return torch.cat([top, bottom])


def drop_oldest_rows(K_inv: Tensor, count: int) -> Tensor:
    """Inverse of K without its first ``count`` rows and columns, from K^-1 (section 3.3).

        A^-1 = M11 - M12 M22^-1 M12^T        M the blocks of K^-1, 2 the rows that go

    Args:
        K_inv: (N, N), oldest entry first.

    Returns:
        (N - count, N - count), in O(count N^2 + count^3).
    """
    M11 = K_inv[count:, count:]
    M12 = K_inv[count:, :count]
    M22 = K_inv[:count, :count]
    A_inv: Tensor = M11 - M12 @ torch.linalg.inv(M22) @ M12.mT
    return A_inv


def similarity_aggregate(
    queries: Tensor, features: Tensor, targets: Tensor, kernel: Kernel
) -> Tensor:
    """k(h, h_Q) y_Q, (M, C): the un-normalised kernel average of SimMatch and CoMatch. O(M N (D +
    C)).

    It is what sigma^2 * mu tends to as eta / sigma^2 -> 0: the GP without its K^-1.

    Args:
        queries: (M, D). features: (N, D). targets: (N, C).
    """
    return kernel(queries, features) @ targets
