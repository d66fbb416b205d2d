"""Table "base algorithms on SemiAves": does SemiGPC help FreeMatch, FixMatch and ReMixMatch too?"""

from pathlib import Path

from semigpc.recipes.fgvc import fgvc
from semigpc.training import Experiment

ALGORITHMS = ("freematch", "fixmatch", "remixmatch", "simmatch")


def algorithm_ablation(
    *, root: str | Path, algorithm: str = "freematch", refiner: str = "gp", seed: int = 0, weights: str | Path | None = None
) -> Experiment:
    """SemiAves, as in the table of fine-grained benchmarks, by another algorithm.

    ``semigpc reproduce algorithm_ablation --root DIR``; some 8 hours a run on one GPU at 5 TFLOP/s, ReMixMatch 17. Published
    with SemiGPC: FreeMatch 67.93 (+0.96), FixMatch 68.31 (+0.95), ReMixMatch 68.31 (+0.41), SimMatch 69.30 (+0.85).
    """
    return fgvc(root=root, benchmark="semi_aves", algorithm=algorithm, refiner=refiner, seed=seed, weights=weights)
