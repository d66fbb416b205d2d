"""From predicted probabilities to targets: sharpening, distribution alignment and agreement.

Nothing here makes the host wait for a GPU, as ``torch.bincount``, ``unique`` and ``one_hot`` would
at every step.
"""

import torch
from torch import Tensor, nn

from semigpc.types import HostState

EPSILON = 1e-6  # keeps a ratio of two class shares finite where both are zero


def sharpen(probs: Tensor, temperature: float) -> Tensor:
    """Return p_c^(1/T) / sum_j p_j^(1/T) of each row, (U, C); of softmax(z), softmax(z / T)."""
    powers = probs ** (1 / temperature)
    return powers / powers.sum(dim=1, keepdim=True)


def align(probs: Tensor, target: Tensor, average: Tensor) -> Tensor:
    """Return p (q + 1e-6) / (r + 1e-6), rows renormalised: it moves the average r to q.

    Args:
        probs: (U, C).
        target: (C,) q, the shares that the predictions should have.
        average: (C,) r, the shares that they had so far.
    """
    scaled = probs * (target + EPSILON) / (average + EPSILON)
    return scaled / scaled.sum(dim=1, keepdim=True)


def one_hot(labels: Tensor, n_classes: int) -> Tensor:
    """Return labels (M,) as rows of 0 and 1, (M, C) bool; the caller has checked their range."""
    return labels.unsqueeze(1) == torch.arange(n_classes, device=labels.device)


def count_classes(labels: Tensor, n_classes: int, mask: Tensor | None = None) -> Tensor:
    """Count the labels (M,) of each class where the mask (M,) is true: (C,) int64."""
    ones = torch.ones_like(labels) if mask is None else mask.to(labels.dtype)
    return labels.new_zeros(n_classes).index_add_(0, labels, ones)


def last_of_each(index: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return, for each row, the last row with the same value in ``index`` (B,). O(B^2).

    A batch may contain an image twice: ``table[index] = values[last_of_each(index)]`` writes the
    same value wherever a position is written twice. With a mask (B,) only rows where it is true
    count; -1 if there is none.
    """
    same = index.unsqueeze(1) == index
    rows = torch.arange(len(index), device=index.device)
    return torch.where(same if mask is None else same & mask, rows, -1).amax(dim=1)


class EMAAlignment(nn.Module):
    """Distribution alignment with r <- m r + (1 - m) mean_b p_b (ReMixMatch).

    r starts at the mean of the first batch.

    Args:
        target: (C,) q.
        momentum: m.
    """

    def __init__(self, target: Tensor, momentum: float = 0.999) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("target", target.float())
        self.register_buffer("average", torch.zeros_like(self.target))
        self.register_buffer("started", torch.tensor(False))

    target: Tensor
    average: Tensor
    started: Tensor

    @torch.no_grad()
    def forward(self, probs: Tensor) -> Tensor:
        """Update r with the batch, then align the batch: (U, C) -> (U, C)."""
        mean = probs.mean(dim=0)
        moved = self.momentum * self.average + (1 - self.momentum) * mean
        self.average.copy_(torch.where(self.started, moved, mean))
        self.started.fill_(True)
        return align(probs, self.target.to(probs), self.average.to(probs))


class QueueAlignment(HostState):
    """Distribution alignment with r the mean of the last batch means (SimMatch, CoMatch).

    Args:
        target: (C,) q.
        length: number of batches.
    """

    def __init__(self, target: Tensor, length: int) -> None:
        super().__init__()
        self.register_buffer("target", target.float())
        self.register_buffer("means", torch.zeros(length, len(target)))
        self.register_buffer("seen", torch.tensor(0))

    on_host = ("seen",)
    target: Tensor
    means: Tensor
    seen: Tensor

    @torch.no_grad()
    def forward(self, probs: Tensor) -> Tensor:
        """Update r with the batch, then align the batch: (U, C) -> (U, C)."""
        seen = int(self.seen)
        self.means[seen % len(self.means)] = probs.mean(dim=0).to(self.means)
        self.seen += 1
        average = self.means[: seen + 1].mean(dim=0)
        return align(probs, self.target.to(probs), average.to(probs))


class LabelShares(nn.Module):
    """How often each class occurred among the labels so far, by which a network's logits are freed.

    A network that was trained on labels with class shares pi has learnt p(c | x) ~ pi_c p(x | c):
    z_c - log pi_c are its logits where all classes are equally frequent (logit adjustment, Menon et
    al., 2021). Its state is n_c, so that a resumed run continues bit for bit; the host never waits
    for it.

    Args:
        n_classes: C.
    """

    counts: Tensor

    def __init__(self, n_classes: int, *, device: torch.device | str | None = None) -> None:
        super().__init__()
        counts = torch.zeros(n_classes, dtype=torch.int64, device=device)
        self.register_buffer("counts", counts)

    def add(self, labels: Tensor) -> None:
        """Count labels (B,)."""
        self.counts += count_classes(labels.to(self.counts.device), len(self.counts))

    def freed(self, logits: Tensor) -> Tensor:
        """Return z - log(n + 1), (M, C), in float32 at least; the 1 keeps unseen classes finite."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return logits - torch.log1p(self.counts.to(logits))

    def agree(self, logits: Tensor, classes: Tensor) -> Tensor:
        """Return whether the network has these classes (M,), freed or as it is, (M,) bool.

        Where labels and unlabelled images have the same shares the network is right as it is;
        where they differ, freed. With equally many labels of each class both are the same. O(M C).

        Args:
            logits: (M, C) z of the network. classes: (M,).
        """
        own = logits.argmax(dim=1)
        return (own == classes) | (self.freed(logits).argmax(dim=1) == classes)
