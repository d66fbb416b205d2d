"""Class-balanced sampling (Kang et al., 2020): labelled images are drawn by class, and classes alike."""

from dataclasses import dataclass
from typing import ClassVar

from semigpc.addons.base import AddOn, AddOnConfig


@dataclass(frozen=True, kw_only=True)
class BalancedSamplingConfig(AddOnConfig):
    """Options of class-balanced sampling.

    Args:
        power: p in P(class c) ~ n_c^p of a labelled draw: 0 draws every class alike, 1/2 is square-root sampling, 1 is none.
    """

    needs_unlabeled: ClassVar[bool] = False
    power: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.power <= 1:
            raise ValueError(f"power must lie in [0, 1], from every class alike to the data's own shares; got {self.power}.")

    def sampling_power(self, progress: float) -> float:  # noqa: ARG002
        """The same throughout."""
        return self.power


class BalancedSampling(AddOn):
    """P(class c) = n_c^p / sum_j n_j^p of a labelled draw, with loss and labels as they are. It costs nothing."""
