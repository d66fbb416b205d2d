"""Long-tailed handwritten digits, scikit-learn's and MNIST: small enough that every claim can be
checked on a laptop.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from semigpc.algorithms import ALGORITHMS, CoMatchConfig
from semigpc.data import AugmentConfig, DigitsConfig, MnistConfig, SplitConfig
from semigpc.io.errors import SettingsError
from semigpc.io.text import unknown_name
from semigpc.models import ModelConfig
from semigpc.refiners import GPConfig, NoRefinerConfig, SimilarityConfig
from semigpc.training import Experiment, TrainConfig

HEAD_UNLABELED = 120


def digits(
    *, imbalance_ratio: float = 30, algorithm: str = "simmatch", refiner: str = "gp", seed: int = 0
) -> Experiment:
    """Setting A: labels as long-tailed as the unlabelled digits, 36 of the largest class.

    ``semigpc train digits --ratio 30 --algorithm simmatch --refiner gp``; about 15 seconds on one
    CPU core.
    """
    split = SplitConfig(
        labeled_head=36,
        labeled_ratio=imbalance_ratio,
        unlabeled_head=HEAD_UNLABELED,
        unlabeled_ratio=imbalance_ratio,
    )
    return _experiment(DigitsConfig(split=split), algorithm, refiner, seed)


def digits_balanced(
    *, imbalance_ratio: float = 50, algorithm: str = "simmatch", refiner: str = "gp", seed: int = 0
) -> Experiment:
    """Setting B: four labels of each class, the unlabelled digits long-tailed and none of them
    labelled.

    ``semigpc train digits_balanced --ratio 50 --algorithm simmatch --refiner gp``; about 15 seconds
    on one CPU core.
    """
    split = SplitConfig(
        labeled_head=4,
        unlabeled_head=HEAD_UNLABELED,
        unlabeled_ratio=imbalance_ratio,
        overlap="disjoint",
    )  # a nested tail of one or two images could not hold four labels
    return _experiment(DigitsConfig(split=split), algorithm, refiner, seed)


def mnist(
    *,
    root: str | Path = "mnist.npz",
    setting: Literal["A", "B"] = "A",
    imbalance_ratio: float = 50,
    labels_per_class: int = 4,
    algorithm: str = "simmatch",
    refiner: str = "gp",
    seed: int = 0,
) -> Experiment:
    """MNIST at 28 x 28, labels as long-tailed as the unlabelled images, 100 of the largest class.

    ``semigpc train mnist --root mnist.npz``; about 30 seconds on one CPU core. The largest class
    has 1000 unlabelled images; 200 test images of each class are used, which ``--set
    data.test_per_class=0`` makes all 10 000.

    Args:
        root: an ``.npz`` file or the folder of the official files, see :class:`MnistConfig`.
        setting: A, as above; B, ``labels_per_class`` of each class, none of them among the
            unlabelled images.
        imbalance_ratio: the largest class over the smallest.
        labels_per_class: in setting B.
    """
    if setting not in ("A", "B"):
        raise SettingsError(
            f"setting is 'A' (long-tailed labels) or 'B' (equally many of each class); got {setting!r}."
        )
    head, ratio = (100, imbalance_ratio) if setting == "A" else (labels_per_class, 1.0)
    split = SplitConfig(
        labeled_head=head,
        labeled_ratio=ratio,
        unlabeled_head=1000,
        unlabeled_ratio=imbalance_ratio,
        overlap="nested" if setting == "A" else "disjoint",
    )
    data = MnistConfig(root=str(Path(root).expanduser().resolve()), split=split, test_per_class=200)
    experiment = _experiment(data, algorithm, refiner, seed)
    return replace(experiment, augment=replace(experiment.augment, image_size=28))


def mnist_balanced(**options: Any) -> Experiment:
    """MNIST at 28 x 28, setting B: four labels of each class, the unlabelled images long-tailed and
    none of them labelled.

    ``semigpc train mnist_balanced --root mnist.npz``. The options are those of :func:`mnist`.
    """
    return mnist(setting="B", **options)


def _experiment(
    data: DigitsConfig | MnistConfig, algorithm: str, refiner: str, seed: int
) -> Experiment:
    """The rest, which is the same for both data sets and settings."""
    refiners: dict[str, Any] = {
        "none": NoRefinerConfig(),
        "similarity": SimilarityConfig(buffer_size=512, warmup_steps=100),
        "gp": GPConfig(buffer_size=512, warmup_steps=100),
    }
    if algorithm not in ALGORITHMS:
        raise SettingsError(unknown_name("algorithm", algorithm, ALGORITHMS))
    if refiner not in refiners:
        raise SettingsError(unknown_name("refiner", refiner, refiners))
    chosen = ALGORITHMS[algorithm].config()
    if hasattr(chosen, "unlabeled_weight"):
        chosen = replace(chosen, unlabeled_weight=chosen.unlabeled_weight / 2)
    if isinstance(chosen, CoMatchConfig):
        chosen = replace(chosen, queue_batches=8)
    return Experiment(
        data=data,
        augment=AugmentConfig(
            image_size=8, flip=False, operations=1, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)
        ),
        model=ModelConfig(name="small_cnn"),
        algorithm=chosen,
        refiner=refiners[refiner],
        train=TrainConfig(
            steps=1000,
            epoch_steps=100,
            labeled_batch=16,
            unlabeled_ratio=1
            if algorithm == "remixmatch"
            else 2,  # as in the classic recipes; it sees each three times
            lr=2e-3,
            layer_decay=1.0,
            warmup_steps=20,
            ema=0.995,
            eval_steps=200,
            checkpoint_steps=500,
            log_steps=50,
            workers=0,
            # so small a network is no faster with more, and figures depend on their number
            threads=1,
        ),
        seed=seed,
    )


RECIPES: dict[str, Callable[..., Experiment]] = {
    "digits": digits,
    "digits_balanced": digits_balanced,
    "mnist": mnist,
    "mnist_balanced": mnist_balanced,
}
