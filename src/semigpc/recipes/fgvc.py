"""Table "fine-grained benchmarks": SemiCUB, SemiAves, SemiFungi and Semi-iNat, with unlabelled images of their classes."""

from pathlib import Path

from semigpc.data.fgvc import FGVCConfig
from semigpc.data.published_counts import Name
from semigpc.recipes.paper_scale import absolute, paper_experiment
from semigpc.recipes.weights import Pretraining
from semigpc.training import Experiment

SETS: tuple[Name, ...] = ("cub", "semi_aves", "semi_fungi", "semi_inat")


def fgvc(
    *,
    root: str | Path,
    benchmark: Name = "semi_aves",
    algorithm: str = "simmatch",
    refiner: str = "gp",
    seed: int = 0,
    weights: str | Path | None = None,
    pretraining: Pretraining = "supervised",
) -> Experiment:
    """Labels ``l_train_val``, unlabelled ``u_train_in``; the splits are published, so the seed decides the training alone.

    ``semigpc reproduce fgvc --root DIR``; SimMatch takes some 9 hours a run on one GPU at 5 TFLOP/s. Published with SemiGPC:
    85.43 (SemiCUB, +0.90), 69.59 (SemiAves, +1.12), 71.50 (SemiFungi, +3.49), 66.54 (Semi-iNat, +1.59).
    """
    return paper_experiment(
        benchmark,
        FGVCConfig(benchmark=benchmark, root=absolute(root), labels="l_train_val", unlabeled="in"),
        root=root,
        weights=weights,
        algorithm=algorithm,
        refiner=refiner,
        seed=seed,
        pretraining=pretraining,
    )
