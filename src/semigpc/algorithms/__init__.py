"""Algorithms: one file each, reading like its pseudo-code.

To add one, write a file with a frozen config (a subclass of :class:`AlgorithmConfig`) and a
subclass of :class:`Algorithm` with ``views`` and ``step``, and add a line to ``ALGORITHMS``.
"""

from typing import NamedTuple

from semigpc.algorithms.base import Algorithm, AlgorithmConfig
from semigpc.algorithms.comatch import CoMatch, CoMatchConfig
from semigpc.algorithms.fixmatch import FixMatch, FixMatchConfig
from semigpc.algorithms.freematch import FreeMatch, FreeMatchConfig
from semigpc.algorithms.npmatch import NPMatch, NPMatchConfig
from semigpc.algorithms.remixmatch import ReMixMatch, ReMixMatchConfig
from semigpc.algorithms.simmatch import SimMatch, SimMatchConfig
from semigpc.algorithms.supervised import Supervised, SupervisedConfig


class AlgorithmEntry(NamedTuple):
    """An algorithm's config, its class, and its name in tables."""

    config: type[AlgorithmConfig]
    build: type[Algorithm]
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
    "AlgorithmConfig",
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
