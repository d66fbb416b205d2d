"""Every algorithm with every add-on, each pair with one of the refiners: it steps, is saved, and
resumes to the same bits.

The refiners take turns, so that every algorithm and every add-on meets every refiner: all pairs are
covered, not all triples. The tests are in three files, one for each refiner, so that they can run
side by side.
"""

import shutil
from dataclasses import replace
from itertools import product
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

STEPS, SAVED = 6, 4
REFINERS: dict[str, Any] = {
    "none": NoRefinerConfig(),
    "similarity": SimilarityConfig(buffer_size=12, warmup_steps=1),
    "gp": GPConfig(buffer_size=12, warmup_steps=1, class_prior="frequency"),
}
SHORT: dict[str, dict[str, Any]] = {  # what starts late in a long run starts at once here
    "crest": {"generations": 2},
    "crest_plus": {"generations": 2},
    "darp": {"warmup": 0.2, "every": 2},
    "daso": {"warmup": 0.2},
    "cossl": {"warmup": 0.3, "start_steps": 20},
    "deferred": {"start": 0.4},
}


def squares(folder: Path) -> ArraysConfig:
    """Three classes of bright, grey and dark squares: 5, 3 and 2 labels, 14 images without."""
    generator = np.random.default_rng(0)
    truth = np.array([0] * 5 + [1] * 3 + [2] * 2 + [0] * 7 + [1] * 4 + [2] * 3)
    values = generator.integers(0, 90, (len(truth), 4, 4, 3)) + 80 * truth[:, None, None, None]
    images = values.astype(np.uint8)
    path = folder / "squares.npz"
    np.savez(
        path,
        x_labeled=images[:10],
        y_labeled=truth[:10],
        x_unlabeled=images[10:],
        x_test=images[:6],
        y_test=truth[:6],
    )
    return ArraysConfig(path=str(path))


def experiment(data: ArraysConfig, algorithm: str, addon: str, refiner: str) -> Experiment:
    chosen: Any = ALGORITHMS[algorithm].config()
    if algorithm == "comatch":
        chosen = replace(chosen, queue_batches=1)
    return Experiment(
        data=data,
        augment=AugmentConfig(image_size=4, flip=False, operations=1),
        model=ModelConfig(name="small_cnn"),
        algorithm=chosen,
        addon=ADDONS[addon].config(**SHORT.get(addon, {})),
        refiner=REFINERS[refiner],
        train=TrainConfig(
            steps=STEPS,
            epoch_steps=2,
            labeled_batch=4,
            lr=1e-2,
            layer_decay=1.0,
            warmup_steps=0,
            ema=0.5,
            eval_steps=STEPS,
            checkpoint_steps=SAVED - 1,  # in the middle of a generation
            log_steps=STEPS,
            workers=0,
            threads=1,
        ),
    )


class Copier(Listener):
    """Copies the run as it is on the disk after its first checkpoint."""

    def __init__(self, run: Path, copy: Path) -> None:
        self.run, self.copy = run, copy

    def step(self, step: int) -> None:
        if step == SAVED:
            shutil.copytree(self.run, self.copy)


def pairs_with(refiner: str) -> list[Any]:
    """Return the algorithms and add-ons that meet this refiner: a third of all pairs. One of each
    add-on is fast.
    """
    addons, place = [addon for addon in ADDONS if addon != "none"], list(REFINERS).index(refiner)
    pairs, met = [], set[str]()
    for (i, algorithm), (j, addon) in product(enumerate(ALGORITHMS), enumerate(addons)):
        if (i + j) % len(REFINERS) == place:
            fast = (
                algorithm != "supervised" and addon not in met
            )  # labels alone are refused by most add-ons
            pairs.append(pytest.param(algorithm, addon, marks=() if fast else pytest.mark.slow))
            met |= {addon} if fast else set()
    return pairs


def check_resumes(
    algorithm: str, addon: str, refiner: str, data: ArraysConfig, tmp_path: Path
) -> None:
    """Train, and train again from the first checkpoint: every tensor must be the same."""
    if algorithm == "supervised" and ADDONS[addon].config.needs_unlabeled:
        with pytest.raises(SettingsError, match=f"{addon} acts on unlabelled images"):
            experiment(data, algorithm, addon, refiner)
        return
    asked = experiment(data, algorithm, addon, refiner)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    summary = train(asked, whole, listener=Copier(whole, cut))
    assert summary["status"] == "finished"
    assert read_checkpoint(RunFolder(cut).last).state["step"] == SAVED - 1
    train(asked, cut, resume=True)
    ours, theirs = read_checkpoint(RunFolder(whole).last), read_checkpoint(RunFolder(cut).last)
    assert ours.tensors.keys() == theirs.tensors.keys()
    assert all(
        value.isfinite().all() for value in ours.tensors.values() if value.is_floating_point()
    )
    assert [
        name for name, value in ours.tensors.items() if not torch.equal(value, theirs.tensors[name])
    ] == []
