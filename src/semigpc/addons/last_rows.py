"""What was last said of each picture: a batch may show one twice."""

import torch
from torch import Tensor


def last_rows(index: Tensor) -> Tensor:
    """Positions (K,) of the last occurrence of each value in ``index`` (U,): write these alone, in any order."""
    values, inverse = index.unique(return_inverse=True)
    positions = torch.arange(len(index), device=index.device)
    return torch.zeros_like(values).scatter_reduce_(0, inverse, positions, "amax", include_self=False)
