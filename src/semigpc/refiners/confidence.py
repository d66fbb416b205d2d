"""How sure a pseudo-label is: what an algorithm compares with its threshold."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from semigpc.gp.certainty import expected_probability

Confidence = Literal["max_softmax", "variance", "expected"]


def largest_probability(probs: Tensor) -> Tensor:
    """max_c p_c, (U, C) -> (U,)."""
    return probs.amax(dim=1)


class Belief(NamedTuple):
    """What a GP believes of M images before anything else has been made of it.

    Shapes: ``logits`` (M, C) z = lambda mu, ``spread`` (M, C) their standard deviations, ``explained`` (M,) the share
    1 - var(h) / k(h, h) of the prior variance that the buffer explains.
    """

    logits: Tensor
    spread: Tensor
    explained: Tensor

    def confidence(self, kind: Confidence, classes: Tensor) -> Tensor:
        """(M,) how sure the ``classes`` (M,) are, in [0, 1]: softmax(z)_c, the share explained, or E[ softmax(f)_c ]."""
        if kind == "variance":
            return self.explained
        if kind == "expected":
            return expected_probability(self.logits, self.spread, classes)
        return torch.softmax(self.logits, dim=1).gather(1, classes.unsqueeze(1)).squeeze(1)
