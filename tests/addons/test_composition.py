"""Algorithms, add-ons and refiners together: a run is saved, and resumes bit for bit.

Each add-on meets each refiner, and each algorithm each refiner, in ``make test``; each algorithm
meets each add-on in ``make test-all``.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semigpc.addons import ADDONS
from semigpc.algorithms import ALGORITHMS
from semigpc.data import ArraysConfig, AugmentConfig
from semigpc.io.errors import SettingsError
from semigpc.models import ModelConfig
from semigpc.refiners import GPConfig, NoRefinerConfig, SimilarityConfig
from semigpc.training import Experiment, Listener, RunFolder, TrainConfig, train
from semigpc.training.run_folder import read_checkpoint

STEPS = 6
COPIED = 4  # step after whose first checkpoint the run folder is copied
REFINERS: dict[str, Any] = {
    "none": NoRefinerConfig(),
    "similarity": SimilarityConfig(buffer_size=12, warmup_steps=1),
    "gp": GPConfig(buffer_size=12, warmup_steps=1, class_prior="frequency"),
}
LEARNERS = [name for name in ALGORITHMS if name != "supervised"]  # from unlabelled images
COMPARATORS = [name for name in ADDONS if name != "none"]
SHORT: dict[str, dict[str, Any]] = {  # what starts late in a long run starts at once here
    "comatch": {"queue_batches": 1},
    "crest": {"generations": 2},
    "crest_plus": {"generations": 2},
    "darp": {"warmup": 0.2, "every": 2},
    "daso": {"warmup": 0.2},
    "cossl": {"warmup": 0.3, "start_steps": 20},
    "deferred": {"start": 0.4},
    "acr": {"warmup": 0.2, "threshold": 0.4},
    "cdmad": {"warmup": 0.2},
    "simpro": {"every": 0.3, "threshold": 0.4},
}


TRAIN: dict[str, Any] = {"steps": STEPS, "eval_steps": STEPS, "log_steps": STEPS, "epoch_steps": 2}
TRAIN |= {"checkpoint_steps": COPIED - 1}  # in the middle of a generation
TRAIN |= {"labeled_batch": 4, "lr": 1e-2, "layer_decay": 1.0, "warmup_steps": 0, "ema": 0.5}
TRAIN |= {"workers": 0, "threads": 1}


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> ArraysConfig:
    """Three classes of dark, grey and bright squares: 5, 3 and 2 labels, 14 images without."""
    generator = np.random.default_rng(0)
    truth = np.array([0] * 5 + [1] * 3 + [2] * 2 + [0] * 7 + [1] * 4 + [2] * 3)
    noise = generator.integers(0, 90, (len(truth), 4, 4, 3))
    images = (noise + 80 * truth[:, None, None, None]).astype(np.uint8)
    path = tmp_path_factory.mktemp("squares") / "squares.npz"
    labeled = {"x_labeled": images[:10], "y_labeled": truth[:10]}
    test = {"x_test": images[:6], "y_test": truth[:6]}
    np.savez(path, x_unlabeled=images[10:], **labeled, **test)
    return ArraysConfig(path=str(path))


def experiment(data: ArraysConfig, algorithm: str, addon: str, refiner: str) -> Experiment:
    return Experiment(
        data=data,
        augment=AugmentConfig(image_size=4, flip=False, operations=1),
        model=ModelConfig(name="small_cnn"),
        algorithm=ALGORITHMS[algorithm].config(**SHORT.get(algorithm, {})),
        addon=ADDONS[addon].config(**SHORT.get(addon, {})),
        refiner=REFINERS[refiner],
        train=TrainConfig(**TRAIN),
    )


def cells() -> list[Any]:
    """Return six (algorithm, add-on, refiner) per add-on; the first three meet all refiners."""
    listed = []
    for number, addon in enumerate(COMPARATORS):
        for turn in range(len(LEARNERS)):
            algorithm = LEARNERS[(number + turn) % len(LEARNERS)]
            refiner = list(REFINERS)[(number + turn) % len(REFINERS)]
            marks = [pytest.mark.slow] if turn else []
            marks += [pytest.mark.nightly] if turn >= len(REFINERS) else []
            listed.append(pytest.param(algorithm, addon, refiner, marks=marks))
    return listed


class Copier(Listener):
    """Copies the run folder after its first checkpoint."""

    def __init__(self, run: Path, copy: Path) -> None:
        self.run = run
        self.copy = copy

    def step(self, step: int) -> None:
        if step == COPIED:
            shutil.copytree(self.run, self.copy)


def check_resumes(run: Experiment, tmp_path: Path) -> None:
    """Train, and train again from the first checkpoint: every tensor must be the same."""
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    summary = train(run, whole, listener=Copier(whole, cut))
    assert summary["status"] == "finished"
    assert read_checkpoint(RunFolder(cut).last).state["step"] == COPIED - 1
    train(run, cut, resume=True)
    ours = read_checkpoint(RunFolder(whole).last).tensors
    theirs = read_checkpoint(RunFolder(cut).last).tensors
    assert ours.keys() == theirs.keys()
    assert all(value.isfinite().all() for value in ours.values() if value.is_floating_point())
    assert [name for name, value in ours.items() if not torch.equal(value, theirs[name])] == []


@pytest.mark.parametrize(("algorithm", "addon", "refiner"), cells())
def test_a_run_resumes_bit_for_bit(
    algorithm: str, addon: str, refiner: str, squares: ArraysConfig, tmp_path: Path
) -> None:
    check_resumes(experiment(squares, algorithm, addon, refiner), tmp_path)


@pytest.mark.parametrize("addon", COMPARATORS)
def test_labels_only_takes_the_add_ons_for_labels(
    addon: str, squares: ArraysConfig, tmp_path: Path
) -> None:
    if ADDONS[addon].config.needs_unlabeled:
        with pytest.raises(SettingsError, match=f"{addon} acts on unlabelled images"):
            experiment(squares, "supervised", addon, "gp")
    else:
        check_resumes(experiment(squares, "supervised", addon, "gp"), tmp_path)
