"""Batch normalisation over the rows of all processes. torch's SyncBatchNorm does this for CUDA alone."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

PLAIN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class GatheredBatchNorm(_BatchNorm):
    """y = w (x - mean) / sqrt(var + eps) + b with mean and var over the batches of all processes together.

    Each process brings its count n_r, mean m_r and sum of squares M_r about it, for each channel; one all-gather of 2 C + 1
    numbers, and

        n = sum n_r        mean = sum n_r m_r / n        n var = sum M_r + sum n_r (m_r - mean)^2

    which loses nothing to cancellation. The way back sums dy and dy xhat over all processes in one all-reduce. Gradients of w
    and b are those of the process's own rows: the loop adds them up with all others. Parameters, buffers and their names are
    those of torch's layer, and so is the behaviour in evaluation mode and with ``track_running_stats`` switched off for a
    while. With ``act`` and ``drop`` it stands for timm's layers that have an activation inside.

    Args:
        layer: the layer to stand for; its parameters and statistics are shared, not copied.
    """

    def __init__(self, layer: _BatchNorm) -> None:
        nn.Module.__init__(self)
        self.__dict__.update(copy.copy(layer.__dict__))

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Maps (M, C, ...) of this process's M rows."""
        if self.training or self.running_mean is None:
            normalised = self._by_batch(input)
        else:
            normalised = nn.functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
            )
        for name in ("drop", "act"):
            if name in self._modules:
                normalised = getattr(self, name)(normalised)
        return normalised

    def _by_batch(self, rows: Tensor) -> Tensor:
        xhat, mean, variance, count = _Normalise.apply(rows, self.eps)
        if self.training and self.track_running_stats and self.running_mean is not None:
            self._follow(mean, variance * (count / (count - 1).clamp_min(1)))
        shape = (1, -1, *[1] * (rows.ndim - 2))
        if self.affine:
            xhat = xhat * self.weight.view(shape) + self.bias.view(shape)
        return xhat.to(rows.dtype)  # type: ignore[no-any-return]

    @torch.no_grad()
    def _follow(self, mean: Tensor, unbiased: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), share)
        self.running_var.lerp_(unbiased.to(self.running_var), share)


class _Normalise(torch.autograd.Function):
    """xhat (M, C, ...) of own rows, with mean (C,), variance (C,) and count () of all; the latter have no gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = rows if rows.dtype == torch.float64 else rows.float()
        axes = [0, *range(2, x.ndim)]
        own = x.numel() // x.shape[1]
        spread, centre = torch.var_mean(x, dim=axes, correction=0) if own else (x.new_zeros(x.shape[1]),) * 2
        told = torch.cat([centre.double(), spread.double() * own, centre.new_full((1,), own, dtype=torch.float64)])
        heard = [torch.empty_like(told) for _ in range(dist.get_world_size())]
        dist.all_gather(heard, told)
        means, squares, counts = torch.stack(heard).split([x.shape[1], x.shape[1], 1], dim=1)  # (W, C), (W, C), (W, 1)
        count = counts.sum()
        mean = (counts * means).sum(dim=0) / count
        variance = (squares + counts * (means - mean).square()).sum(dim=0) / count
        shape = (1, -1, *[1] * (x.ndim - 2))
        scale = (variance + eps).rsqrt().to(x).view(shape)
        xhat = (x - mean.to(x).view(shape)) * scale
        ctx.save_for_backward(xhat, scale, count)
        ctx.mark_non_differentiable(mean, variance, count)
        return xhat, mean, variance, count

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        xhat, scale, count = ctx.saved_tensors
        dy = gradients[0]
        axes = [0, *range(2, dy.ndim)]
        sums = torch.stack([dy.sum(dim=axes), (dy * xhat).sum(dim=axes)]).double()  # (2, C)
        dist.all_reduce(sums)
        along, across = (sums / count).to(dy).view(2, *scale.shape)
        return scale * (dy - along - xhat * across), None


def gather_batch_norms(network: nn.Module) -> None:
    """Put a :class:`GatheredBatchNorm` in the place of every layer of batch normalisation, in place.

    Raises:
        TypeError: a layer is of a kind whose extra work is not known.
    """
    for parent in list(network.modules()):
        for name, layer in parent.named_children():
            if not isinstance(layer, _BatchNorm) or isinstance(layer, GatheredBatchNorm):
                continue
            if type(layer) not in PLAIN and not {"act", "drop"} <= set(layer._modules):
                raise TypeError(
                    f"{type(layer).__name__} cannot be computed over several processes; use a network with plain batch "
                    "normalisation, or one process."
                )
            setattr(parent, name, GatheredBatchNorm(layer))
