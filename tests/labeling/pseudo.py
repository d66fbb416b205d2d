"""A project of which only the labels matter: pseudo-labels of three classes, of known truth."""

from pathlib import Path
from typing import cast

import numpy as np
import pyarrow
from numpy.typing import NDArray

from semigpc.labeling.project import Project, ProjectSettings

CLASSES = ["heron", "stork", "ibis"]
SIZES = (600, 150, 12)


def pseudo_project(folder: Path, *, seed: int = 0) -> tuple[Project, NDArray[np.str_]]:
    """The project and the truth of each row; a label of confidence c is right with the probability
    c.
    """
    rng = np.random.default_rng(seed)
    labels = np.repeat(CLASSES, SIZES)
    confidence = rng.uniform(0.8, 1.0, len(labels)).astype(np.float32)
    others = np.array([rng.choice([name for name in CLASSES if name != label]) for label in labels])
    truth = np.where(rng.uniform(size=len(labels)) < confidence, labels, others)
    status = np.array(["pseudo"] * len(labels), dtype=object)
    status[::10] = "labelled"
    status[5::50] = "abstained"
    table = pyarrow.table(
        {
            "id": [f"bird-{row}" for row in range(len(labels))],
            "label": labels,
            "confidence": confidence,
            "status": status,
        }
    )
    settings = cast("ProjectSettings", {"id_name": "id", "classes": CLASSES, "bad_rows": []})
    return Project(folder, settings, table, None), truth
