"""The labelled rows that speak most for a query's class, found without looking at all of them."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 64  # labelled rows that share one bound
SPARE = 1  # groups that are looked into beyond the number of reasons
WIDER = 2  # times as many are looked into where these were not enough


def grouping_order(weights: Tensor) -> Tensor:
    """An order (N,) of labelled rows that brings rows of one class and of similar weights together, for weights (N, C)."""
    size, own = weights.max(dim=1)
    order = size.argsort(stable=True)
    return order[own[order].argsort(stable=True)]


class _View(NamedTuple):
    """For every class the groups of its largest weights (C, looked), all weights there (C, looked * 64), and ``bounds`` with 0
    for these groups (C, groups).
    """

    groups: Tensor
    weights: Tensor
    others: Tensor


class ReasonSearch:
    """Finds the largest of e(h, h_i) a[i, c] over i for every query h and its class c, where no e is below 0.

    Labelled rows are taken in groups of 64. For a class, the few groups with its largest weights are looked into. No member of
    another group exceeds

        max_i e(h, h_i) * max_i a[i, c]      i in the group; a maximum below 0 counted as 0

    so where the best that were seen reach all of these bounds, they are the best of all: nothing is approximate. For the
    few queries of which that is not true more groups are looked into, and in the end all. In a good order of rows
    this takes one pass over the kernel values, for their maxima, where multiplying all of them takes three.

    Args:
        weights: (N, C) a, in ``grouping_order``.
    """

    def __init__(self, weights: Tensor) -> None:
        self.count, classes = weights.shape
        self.groups = -(-self.count // GROUP)
        self.by_class = weights.new_full((classes, self.groups * GROUP), -math.inf)  # padding wins nothing
        self.by_class[:, : self.count] = weights.mT
        self.bounds = self.by_class.view(classes, self.groups, GROUP).amax(dim=2).clamp_min_(0)  # (C, groups)
        self._views: dict[int, _View] = {}

    def room(self, rows: int) -> Tensor:
        """Memory for kernel values (rows, N rounded up to whole groups).

        What is beyond N must be left as it is: above 0, and below any kernel value.
        """
        values = self.by_class.new_empty(rows, self.by_class.shape[1])
        values[:, self.count :] = torch.finfo(torch.float32).tiny
        return values

    def find(
        self, values: Tensor, largest: Tensor, classes: Tensor, top: int, *, looked: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Positions (m, top) among the labelled rows, and e a there, largest first. O(m (N / 64 + 64 top)), almost always.

        Args:
            values: (m, N rounded up) e. largest: (m, groups) their maxima. classes: (m,). top: from 1 to N.
            looked: groups looked into at first; one more than ``top`` if left out.
        """
        looked = top + SPARE if looked is None else looked
        if self.groups <= looked:
            return self.find_among_all(values, classes, top)
        view = self._view(looked)
        groups = view.groups.index_select(0, classes)  # (m, looked)
        first = torch.arange(0, len(values) * self.groups, self.groups, device=values.device).unsqueeze(1)
        seen = values.view(-1, GROUP).index_select(0, (first + groups).view(-1)).view(len(values), -1)
        best, places = seen.mul_(view.weights.index_select(0, classes)).topk(top, dim=1)
        places = groups.gather(1, places // GROUP).mul_(GROUP).add_(places % GROUP)
        unseen = view.others.index_select(0, classes).mul_(largest).amax(dim=1)
        doubtful = (best[:, -1] < unseen).nonzero().squeeze(1)
        if len(doubtful):
            rest = self.find(values[doubtful], largest[doubtful], classes[doubtful], top, looked=WIDER * looked)
            places[doubtful], best[doubtful] = rest
        return places, best

    def find_among_all(self, values: Tensor, classes: Tensor, top: int) -> tuple[Tensor, Tensor]:
        """The same from all rows, whatever the signs of e. O(m N)."""
        best, places = self.by_class.index_select(0, classes).mul_(values).topk(top, dim=1)
        return places, best

    def _view(self, looked: int) -> _View:
        if looked not in self._views:
            groups = self.bounds.topk(looked, dim=1).indices
            cells = self.by_class.view(len(self.by_class), self.groups, GROUP)
            weights = cells.gather(1, groups.unsqueeze(2).expand(-1, -1, GROUP)).flatten(1)
            self._views[looked] = _View(groups, weights, self.bounds.scatter(1, groups, 0))
        return self._views[looked]
