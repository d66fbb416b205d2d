"""Algorithms: one file each, reading like its pseudo-code.

An algorithm is an ``nn.Module`` whose registered buffers are all of its state, with ``views`` it wants cut, the ``sites`` where
a refiner may speak, and ``step``. To add one, write a file with a frozen config (``heads`` says which extra heads the network
needs) and such a class, and list it in ``ALGORITHMS``. One that says ``takes_addons`` is given an add-on too, and calls it at
the points that :class:`semigpc.addons.AddOn` lists. One with a method ``answer``, from a ModelOutput to logits (M, C), is
judged by these.
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
    """What the loop asks of an algorithm."""

    @property
    def views(self) -> tuple[str, ...]:
        """Views of the unlabelled images that a batch has to bring; none for an algorithm that learns from labels alone."""

    @property
    def sites(self) -> tuple[str, ...]:
        """Where a refiner may speak."""

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:
        """The loss of one batch. Neither goes down it nor moves anything between devices."""

    def state_dict(self) -> dict[str, Any]:
        """All state, the refiner's included."""

    def load_state_dict(self, state_dict: Mapping[str, Tensor], strict: bool = True) -> Any:
        """Restore it."""


class AlgorithmEntry(NamedTuple):
    """An algorithm's config, and how it is made from (config, refiner, task), and an add-on if it takes one."""

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
