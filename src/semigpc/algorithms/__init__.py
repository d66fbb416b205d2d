"""Algorithms: one file each, reading like its pseudo-code.

An algorithm is an ``nn.Module`` whose registered buffers are all of its state. It lists the
``views`` of unlabelled images that it needs and the ``sites`` where a refiner may replace its
pseudo-labels, and ``step`` returns the loss of one batch. To add one, write a file with a frozen
config (``heads`` lists the extra heads of the network) and such a class, and add a line to
``ALGORITHMS``. With ``takes_addons = True`` the constructor also receives an add-on, whose methods
``step`` calls in the order that :class:`semigpc.addons.AddOn` gives. An optional method ``answer``,
from a ModelOutput to logits (M, C), replaces the network's own logits in evaluation.

A config may also have a method ``conflict(frozen, average)``, which returns why its options do not
fit a run on cached features or without a moving average, and ``has_threshold = True`` if
confidences are compared with a threshold that is no option.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from semigpc.algorithms.comatch import CoMatch, CoMatchConfig
from semigpc.algorithms.fixmatch import FixMatch, FixMatchConfig
from semigpc.algorithms.freematch import FreeMatch, FreeMatchConfig
from semigpc.algorithms.npmatch import NPMatch, NPMatchConfig
from semigpc.algorithms.remixmatch import ReMixMatch, ReMixMatchConfig
from semigpc.algorithms.simmatch import SimMatch, SimMatchConfig
from semigpc.algorithms.supervised import Supervised, SupervisedConfig
from semigpc.types import Batch, Clock, Networks, StepOutput


class Algorithm(Protocol):
    """The interface of an algorithm, as the training loop calls it."""

    @property
    def views(self) -> tuple[str, ...]:
        """Names of the views of unlabelled images that a batch must contain; empty if it learns
        from labels alone.
        """

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the places where a refiner may replace the pseudo-labels."""

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        """Return the loss of one batch. Calls no ``backward()`` and moves no tensor between
        devices.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return all state, the refiner's included."""

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> Any:
        """Restore the state."""


class AlgorithmEntry(NamedTuple):
    """An algorithm's config, and how it is made from (config, refiner, task), and an add-on if it
    takes one.
    """

    config: type[Any]
    build: Callable[..., Algorithm]
    label: str


ALGORITHMS: dict[str, AlgorithmEntry] = {
    "supervised": AlgorithmEntry(SupervisedConfig, Supervised, "labels only"),
    "fixmatch": AlgorithmEntry(FixMatchConfig, FixMatch, "FixMatch"),
    "freematch": AlgorithmEntry(FreeMatchConfig, FreeMatch, "FreeMatch"),
    "remixmatch": AlgorithmEntry(ReMixMatchConfig, ReMixMatch, "ReMixMatch"),
    "simmatch": AlgorithmEntry(SimMatchConfig, SimMatch, "SimMatch"),
    "comatch": AlgorithmEntry(CoMatchConfig, CoMatch, "CoMatch"),
    "npmatch": AlgorithmEntry(NPMatchConfig, NPMatch, "NP-Match"),
}

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AlgorithmEntry",
    "CoMatch",
    "CoMatchConfig",
    "FixMatch",
    "FixMatchConfig",
    "FreeMatch",
    "FreeMatchConfig",
    "NPMatch",
    "NPMatchConfig",
    "ReMixMatch",
    "ReMixMatchConfig",
    "SimMatch",
    "SimMatchConfig",
    "Supervised",
    "SupervisedConfig",
]
