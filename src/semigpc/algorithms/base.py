"""The interface of an algorithm."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from semigpc.types import Batch, Clock, Networks, StepOutput


class Algorithm(Protocol):
    """The interface of an algorithm, as the training loop calls it."""

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the views of unlabelled images that a batch must contain; empty if it learns from labels alone."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the places where a refiner may replace the pseudo-labels."""

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        """Return the loss of one batch. Calls no ``backward()`` and moves no tensor between devices."""

    def state_dict(self) -> dict[str, Any]:
        """Return all state, the refiner's included."""

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> Any:
        """Restore the state."""
