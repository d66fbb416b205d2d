"""The labelled rows that speak most for a query's class, found without looking at all of them."""

import math

import torch
from torch import Tensor

GROUP = 64  # labelled rows that share one bound
SPARE = 1  # groups that are looked into beyond the number of reasons


class ReasonSearch:
    """Finds the largest of k(h, h_i) a[i, c] over i for every query h and its class c.

    Labelled rows are put into groups of the same class and of similar weights. No member of a group exceeds

        max_i k(h, h_i) * max_i a[i, c]      i in the group, a weight below 0 counted as 0

    The groups of the largest bounds are looked into, and where their best beat the bounds of all others, these were the best
    of all: nothing is approximate. The few queries of which that is not true are answered from all rows. For one pass
    over the kernel values this asks for their maxima only, where a product with the weights would make three.

    Args:
        weights: (N, C) a.
    """

    def __init__(self, weights: Tensor) -> None:
        size, own = weights.max(dim=1)
        order = size.argsort(stable=True)
        self.order = order[own[order].argsort(stable=True)]  # (N,) by class, then by weight
        self.groups = -(-len(weights) // GROUP)
        self.by_class = weights.new_full((weights.shape[1], self.groups * GROUP), -math.inf)  # padding wins nothing
        self.by_class[:, : len(weights)] = weights[self.order].mT
        self.bounds = self.by_class.view(weights.shape[1], self.groups, GROUP).amax(dim=2).clamp_min_(0)  # (C, groups)

    def room(self, rows: int) -> tuple[Tensor, Tensor]:
        """Memory for kernel values (rows, N rounded up to whole groups) and for their maxima in each group (rows, groups).

        What is beyond N must stay as it is: larger than 0, and smaller than any kernel value.
        """
        values = self.by_class.new_full((rows, self.by_class.shape[1]), torch.finfo(torch.float32).tiny)
        return values, self.by_class.new_empty(rows, self.groups)

    def find(self, values: Tensor, largest: Tensor, classes: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """Places in ``order`` (m, top) and k a there, the largest first. O(m N / GROUP + m top GROUP), mostly.

        Args:
            values: (m, N rounded up) kernel values, none below 0. largest: (m, groups) their maxima.
            classes: (m,). top: at least 1, at most N.
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
            everywhere, which = self.find_among_all(values[doubtful], classes[doubtful], top)
            places[doubtful], best[doubtful] = everywhere, which
        return places, best

    def find_among_all(self, values: Tensor, classes: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """The same for kernel values of any sign, by looking at all of them. O(m N)."""
        best, places = self.by_class.index_select(0, classes).mul_(values).topk(top, dim=1)
        return places, best
