"""Strata of pseudo-labels by class and confidence, and how many rows of each to check."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyarrow import compute

from semigpc.data.dataset import DataError
from semigpc.labeling.project import Project

BANDS = {1: ("all",), 2: ("low", "high"), 3: ("low", "middle", "high")}  # of confidence, by how many there are
FEW = 5  # rows to check in every class, if there are that many
SURE = 0.9  # confidence beyond which a stratum is not checked any less

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Stratum(NamedTuple):
    """Rows that are believed to be of one class, with confidences in one band: how many, and their mean confidence."""

    label: str
    band: str
    rows: int
    confidence: float

    @property
    def name(self) -> str:
        """For people."""
        return self.label if self.band == "all" else f"{self.label}, {self.band}"


class PseudoLabels(NamedTuple):
    """All rows with the status pseudo: numbers (n,), class codes (n,) in ``classes``, and confidences (n,)."""

    rows: Integers
    codes: Integers
    confidence: Floats
    classes: list[str]

    @classmethod
    def of(cls, project: Project) -> "PseudoLabels":
        """Those of a project, with the classes that occur."""
        table = project.table.filter(compute.equal(project.table.column("status"), "pseudo"))
        if not table.num_rows:
            raise DataError(
                f"{project.folder} has no pseudo-labels to check: every row is labelled by you, an outlier or abstained from."
            )
        labels = table.column("label").to_pylist()
        classes = sorted(set(labels), key=project.classes.index)
        code = {name: number for number, name in enumerate(classes)}
        rows = np.flatnonzero(np.asarray(compute.equal(project.table.column("status"), "pseudo")))
        confidence = table.column("confidence").to_numpy().astype(np.float64)
        return cls(rows, np.array([code[label] for label in labels]), confidence, classes)

    def edges(self, bands: int) -> list[float]:
        """Confidences that part the rows into bands of about equal size; fewer if many rows are equally sure."""
        quantiles = np.quantile(self.confidence, np.arange(1, bands) / bands)
        return sorted({float(edge) for edge in quantiles if edge > self.confidence.min()})

    def strata(self, edges: Sequence[float]) -> tuple[list[Stratum], Integers]:
        """Those with rows, by class and then from low to high confidence; and (n,) in which of them each row is."""
        names = BANDS[len(edges) + 1]
        keys = self.codes * len(names) + np.searchsorted(edges, self.confidence, side="right")
        found, member, counts = np.unique(keys, return_inverse=True, return_counts=True)
        means = np.bincount(member, self.confidence) / counts
        strata = [
            Stratum(self.classes[key // len(names)], names[key % len(names)], count, mean)
            for key, count, mean in zip(found.tolist(), counts.tolist(), means.tolist(), strict=True)
        ]
        return strata, member


def allocate(strata: Sequence[Stratum], sample: int) -> list[int]:
    """How many rows of each stratum to check: a few of every class, and the rest where it narrows the interval most.

    Every stratum gets a row, and every class up to five in equal parts of its strata. The others go one by one to the stratum
    with the largest N_h s_h / (n_h + 1/2), where s_h = sqrt(c (1 - c)) and c is the mean confidence, at least 0.5 and at most
    0.9: in proportion to N_h s_h, which is Neyman's rule. The bound keeps a model that is too sure of itself from hiding where
    it is wrong. O(sample H).

    Args:
        strata: H of them, none empty.
        sample: no more than there are rows, and at least two for each stratum, or one if every class has a single one.
    """
    sizes = np.array([stratum.rows for stratum in strata])
    bands = {name: sum(stratum.label == name for stratum in strata) for name in {stratum.label for stratum in strata}}
    few = max(1, min(FEW, sample // (2 * len(bands))))
    counts = np.minimum(sizes, [-(-few // bands[stratum.label]) for stratum in strata])
    believed = np.clip([stratum.confidence for stratum in strata], 0.5, SURE)
    weights = sizes * np.sqrt(believed * (1 - believed))
    for _ in range(sample - int(counts.sum())):
        counts[int(np.where(counts < sizes, weights / (counts + 0.5), -1.0).argmax())] += 1
    allocated: list[int] = counts.tolist()
    return allocated
