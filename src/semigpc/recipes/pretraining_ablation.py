"""Table "pre-trainings on SemiAves": does SemiGPC help a network that never saw a label before?"""

from pathlib import Path

from semigpc.recipes.fgvc import fgvc
from semigpc.recipes.weights import Pretraining
from semigpc.training import Experiment

PRETRAININGS: tuple[Pretraining, ...] = ("supervised", "dino", "msn")


def pretraining_ablation(
    *,
    root: str | Path,
    pretraining: Pretraining = "dino",
    algorithm: str = "simmatch",
    refiner: str = "gp",
    seed: int = 0,
    weights: str | Path | None = None,
) -> Experiment:
    """SemiAves, as in the table of fine-grained benchmarks, from other weights.

    ``semigpc reproduce pretraining_ablation --root DIR``; some 9 hours a run on one GPU at 5 TFLOP/s. Published with SemiGPC:
    supervised 69.30 (+0.85), DINO 65.32 (+1.32), MSN 67.73 (+3.03).
    """
    return fgvc(
        root=root,
        benchmark="semi_aves",
        algorithm=algorithm,
        refiner=refiner,
        seed=seed,
        weights=weights,
        pretraining=pretraining,
    )
