"""The labelled rows that speak most for a query's class, found without looking at all of them."""

import math

import torch
from torch import Tensor

GROUP = 64  # labelled rows that share one bound
SPARE = 1  # groups that are looked into beyond the number of reasons


def grouping_order(weights: Tensor) -> Tensor:
    """An order (N,) of labelled rows that brings rows of one class and of similar weights together, for weights (N, C)."""
    size, own = weights.max(dim=1)
    order = size.argsort(stable=True)
    return order[own[order].argsort(stable=True)]


class ReasonSearch:
    """Finds the largest of e(h, h_i) a[i, c] over i for every query h and its class c, where no e is below 0.

    Labelled rows are taken in groups of 64. No member of a group exceeds

        max_i e(h, h_i) * max_i a[i, c]      i in the group; a maximum below 0 counted as 0

    The groups with the largest bounds are looked into, and where their best exceed the bounds of all others, these are the best
    of all: nothing is approximate. The few queries of which that is not true are answered from all rows. In a good
    order of rows this takes one pass over the kernel values, for their maxima, where multiplying all of them takes three.

    Args:
        weights: (N, C) a, in ``grouping_order``.
    """

    def __init__(self, weights: Tensor) -> None:
        self.count = len(weights)
        self.groups = -(-self.count // GROUP)
        self.by_class = weights.new_full((weights.shape[1], self.groups * GROUP), -math.inf)  # padding wins nothing
        self.by_class[:, : len(weights)] = weights.mT
        self.bounds = self.by_class.view(weights.shape[1], self.groups, GROUP).amax(dim=2).clamp_min_(0)  # (C, groups)

    def room(self, rows: int) -> Tensor:
        """Memory for kernel values (rows, N rounded up to whole groups).

        What is beyond N must be left as it is: above 0, and below any kernel value.
        """
        values = self.by_class.new_empty(rows, self.by_class.shape[1])
        values[:, self.count :] = torch.finfo(torch.float32).tiny
        return values

    def find(self, values: Tensor, largest: Tensor, classes: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """Positions (m, top) among the labelled rows, and e a there, largest first. O(m (N / 64 + 64 top)), almost always.

        Args:
            values: (m, N rounded up) e. largest: (m, groups) their maxima. classes: (m,). top: from 1 to N.
        """
        looked = top + SPARE
        if self.groups <= looked:
            return self.find_among_all(values, classes, top)
        bounds, groups = self.bounds.index_select(0, classes).mul_(largest).topk(looked + 1, dim=1)
        groups = groups[:, :looked]
        first = torch.arange(0, len(values) * self.groups, self.groups, device=values.device)
        members = values.view(-1, GROUP).index_select(0, (first.unsqueeze(1) + groups).view(-1))
        weights = self.by_class.view(-1, GROUP).index_select(0, (classes.unsqueeze(1) * self.groups + groups).view(-1))
        best, places = members.mul_(weights).view(len(values), -1).topk(top, dim=1)
        places = groups.gather(1, places // GROUP).mul_(GROUP).add_(places % GROUP)
        doubtful = (best[:, -1] < bounds[:, -1]).nonzero().squeeze(1)
        if len(doubtful):
            places[doubtful], best[doubtful] = self.find_among_all(values[doubtful], classes[doubtful], top)
        return places, best

    def find_among_all(self, values: Tensor, classes: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """The same from all rows, whatever the signs of e. O(m N)."""
        best, places = self.by_class.index_select(0, classes).mul_(values).topk(top, dim=1)
        return places, best
