"""A cell of each table at the paper's own scale: three steps with the real networks."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from semigpc.cli import live
from semigpc.models import ModelConfig, build_model
from semigpc.paper.fgvc import BENCHMARKS
from semigpc.paper.recipes import weight_file
from semigpc.training import RunFolder
from semigpc.training.run_folder import read_checkpoint
from tests.cli.calls import refused, worked
from tests.models.test_pretrained import dino_file, msn_file, random_weights, usb_file
from tests.paper.fgvc_samples import write_images_of, write_lines
from tests.training.small_runs import StopAt

pytestmark = pytest.mark.nightly  # minutes: networks of the paper's size

LAYOUTS = {"supervised": usb_file, "dino": dino_file, "msn": msn_file}
SMALL_BATCH = "--set train.labeled_batch=2 --set train.workers=0 --set train.threads=1"
FEW_IMAGES = """
    --set data.split.labeled_head=3 --set data.split.labeled_ratio=1
    --set data.split.unlabeled_head=6 --set data.split.unlabeled_ratio=2"""


def write_cifar(root: Path, n_classes: int) -> None:
    rng = np.random.default_rng(0)
    for part, each in (("train", 6), ("test", 1)):
        for c in range(n_classes):
            folder = root / part / str(c)
            folder.mkdir(parents=True)
            for i in range(each):
                pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")


def write_photographs(root: Path, name: str) -> None:
    """A labelled image of every class and a few others, in the layout of the published lists."""
    counts = {"l_train_val": BENCHMARKS[name].classes, "u_train_in": 12, "test": 10}
    for part, count in counts.items():
        lines = [f"{c:03d}.Class/{part}_{c}.jpg {c}" for c in range(count)]
        write_lines(root / name / f"{part}.txt", lines)
        write_images_of(root / name / BENCHMARKS[name].image_folder, lines)


def write_weights(folder: Path, backbone: str, *pretrainings: Any) -> None:
    folder.mkdir(parents=True)
    network = build_model(ModelConfig(name=backbone), n_classes=2).backbone
    small = {name: 0.02 * value for name, value in random_weights(network, 0).items()}
    for pretraining in pretrainings:
        torch.save(LAYOUTS[pretraining](small), folder / weight_file(backbone, pretraining).file)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder that is emptied at once: weights and checkpoints take hundreds of megabytes."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def command(place: Path, table: str, *words: str) -> tuple[str | Path, ...]:
    few = "--steps 3 --seeds 1"
    return ("reproduce", table, "--root", place, "--out", place / "out", few, *words, SMALL_BATCH)


def reproduced(place: Path, table: str, *words: str) -> dict[str, Any]:
    done = worked(*command(place, table, *words))
    assert "train.steps=3" in done.stdout  # changed, so that nothing is judged
    figures: dict[str, Any] = json.loads((place / "out" / "figures.json").read_text())
    assert (figures["scale"], figures["judged"]) == ("paper", False)
    return figures


def check_runs(place: Path, figures: dict[str, Any], network: str) -> None:
    """Three steps, an evaluation, a checkpoint and a page; the GP refined."""
    for name, group in figures["groups"].items():
        folder = place / "out" / name.replace("/", "-")
        assert (folder / "report.html").stat().st_size > 10_000
        for row, cell in group["cells"].items():
            if "last" not in cell:
                continue
            run = RunFolder(folder / "cells" / row / "seed0")
            assert read_checkpoint(run.last).state["step"] == 3
            assert 0 <= cell["last"]["mean"] <= 100
            assert cell["config"]["model"]["name"] == network
            assert "lower refiner.warmup_steps" not in run.metrics.read_text()


def test_cifar_10_with_a_long_tail_stopped_after_a_step_and_continued(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cifar(place, 10)
    write_weights(place / "weights", "vit_tiny_patch2_32", "supervised")
    # A balanced buffer is filled at once, by as many passes of the network.
    fewer = "--set refiner.buffer_size=60"
    words = ("--cell A/150/simmatch+gp --set train.checkpoint_steps=1", fewer, FEW_IMAGES)
    with monkeypatch.context() as patch:
        patch.setattr(live.ComparisonProgress, "run", lambda *_: StopAt(1))
        refused(*command(place, "cifar10_lt", *words), code=130, words="stopped after step 1 of 3")
    run = RunFolder(place / "out" / "A-150" / "cells" / "simmatch+gp" / "seed0")
    assert read_checkpoint(run.last).state["step"] == 1

    figures = reproduced(place, "cifar10_lt", *words)
    check_runs(place, figures, "vit_tiny_patch2_32")
    finished = run.summary.stat().st_mtime_ns
    assert reproduced(place, "cifar10_lt", *words) == figures  # nothing is left to do
    assert run.summary.stat().st_mtime_ns == finished


def test_cifar_100_with_a_long_tail_and_few_labels(place: Path) -> None:
    write_cifar(place, 100)
    write_weights(place / "weights", "vit_small_patch2_32", "supervised")
    figures = reproduced(place, "cifar100_lt", "--cell B/100/simmatch+gp", FEW_IMAGES)
    check_runs(place, figures, "vit_small_patch2_32")


def test_balanced_cifar_with_an_addon_beside_the_paper(place: Path) -> None:
    write_cifar(place, 10)
    write_weights(place / "weights", "vit_tiny_patch2_32", "supervised")
    cells = "--cell cifar10/40/simmatch+gp --cell cifar10/40/simmatch+daso+gp --addon daso"
    figures = reproduced(place, "balanced_cifar", cells, FEW_IMAGES)
    check_runs(place, figures, "vit_tiny_patch2_32")
    cells_of = figures["groups"]["cifar10/40"]["cells"]
    assert list(cells_of) == ["FreeMatch", "simmatch+gp", "simmatch+daso+gp"]
    assert cells_of["simmatch+daso+gp"]["published"] is None


@pytest.mark.parametrize(
    ("table", "data", "pretrainings", "cells"),
    [
        ("fgvc", "cub", "supervised", "cub/simmatch+gp"),
        ("algorithm_ablation", "semi_aves", "supervised", "semi_aves/freematch+gp"),
        ("pretraining_ablation", "semi_aves", "dino msn", "dino/simmatch+gp msn/simmatch+gp"),
    ],
)
def test_photographs(place: Path, table: str, data: str, pretrainings: str, cells: str) -> None:
    write_photographs(place, data)
    write_weights(place / "weights", "vit_small_patch16_224", *pretrainings.split())
    figures = reproduced(place, table, *(f"--cell {cell}" for cell in cells.split()))
    check_runs(place, figures, "vit_small_patch16_224")
    groups = figures["groups"].items()
    run = [f"{name}/{row}" for name, group in groups for row in group["cells"] if "+" in row]
    assert run == cells.split()
