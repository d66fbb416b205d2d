"""A labelled project with a long tail, a cloud that nobody has labelled, copies, and strays."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from semigpc.labeling.project import Project
from tests.labeling.samples import labelled_table

SIZES = {"oak": 150, "elm": 60, "yew": 20, "new": 25, "stray": 6}
LABELLED = {"oak": 19, "elm": 8, "yew": 3}


class Clouds(NamedTuple):
    """The project, and what each row truly is."""

    project: Project
    truth: NDArray[np.str_]


def make_clouds(folder: Path, *, seed: int = 0, copies: int = 4) -> Clouds:
    """``new`` and ``stray`` have no label; the last ``copies`` rows are equal, far from others."""
    rng = np.random.default_rng(seed)
    kinds = np.repeat(list(SIZES), list(SIZES.values()))
    centres = dict(zip(SIZES, rng.normal(size=(5, 8)) * 3, strict=True))
    x = np.array([centres[kind] + rng.normal(size=8) for kind in kinds])
    x[kinds == "stray"] = rng.normal(size=(SIZES["stray"], 8)) * 12
    repeated = np.repeat(rng.normal(size=(1, 8)) * 4, copies, axis=0)
    x = np.concatenate([x, repeated]).astype(np.float32)
    truth = np.concatenate([kinds, ["copy"] * copies])
    ids = [f"{kind}-{row:03d}" for row, kind in enumerate(truth)]
    given = {
        ids[row]: kind
        for kind, count in LABELLED.items()
        for row in np.flatnonzero(truth == kind)[:count]
    }
    return Clouds(Project.open(labelled_table(folder, x, ids, given)), truth)
