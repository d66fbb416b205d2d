"""Settings against the tables of the recipe, typed in by hand: each data set's row, each
algorithm's column.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from semigpc.algorithms import ALGORITHMS
from semigpc.io.errors import SettingsError
from semigpc.models.backbones import VITS
from semigpc.paper.fgvc import BENCHMARKS
from semigpc.paper.recipes import SUITES, balanced_cifar, cifar10_lt, cifar100_lt, fgvc
from semigpc.paper.tables import TABLES, Options
from semigpc.refiners import AutoOptions
from semigpc.training import Experiment
from tests.data.test_splits import TOTALS

ABLATIONS = ("algorithm_ablation", "pretraining_ablation")
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CIFAR100 = ((129.3 / 255, 124.1 / 255, 112.4 / 255), (68.2 / 255, 65.4 / 255, 70.4 / 255))


def experiment_on(name: str, **options: Any) -> Experiment:
    if name == "cifar10":
        return cifar10_lt(root="/data", **options)
    if name == "cifar100":
        return cifar100_lt(root="/data", **options)
    return fgvc(root="/data", benchmark=name, **options)  # type: ignore[arg-type]


LARGE = ("vit_small_patch16_224", 224, "resize", 1e-3, 0.65)
FINE_GRAINED = {"semi_aves": 200, "semi_inat": 810, "semi_fungi": 200, "cub": 100}
# backbone, pixels, style of cropping, rate, its decay, classes, temperature, statistics
ROWS: dict[str, tuple[Any, ...]] = {
    "cifar10": ("vit_tiny_patch2_32", 32, "pad", 5e-4, 0.5, 10, 0.1, IMAGENET),
    "cifar100": ("vit_small_patch2_32", 32, "pad", 5e-4, 0.5, 100, 0.1, CIFAR100),
} | {name: (*LARGE, classes, 0.2, IMAGENET) for name, classes in FINE_GRAINED.items()}


@pytest.mark.parametrize(("name", "row"), ROWS.items())
def test_each_data_set_has_the_settings_of_its_row(name: str, row: Any) -> None:
    backbone, pixels, style, lr, decay, classes, temperature, statistics = row
    made = experiment_on(name)
    assert made.model.name == backbone
    augment = made.augment
    assert VITS[backbone].image_size == augment.image_size == pixels
    assert (augment.style, augment.crop_ratio, augment.operations) == (style, 0.875, 3)
    assert augment.flip
    assert (augment.mean, augment.std) == statistics
    assert (made.train.lr, made.train.layer_decay, made.train.weight_decay) == (lr, decay, 5e-4)
    assert SUITES[name].n_classes == classes
    assert made.algorithm.temperature == temperature
    assert made.refiner.length_scale**2 == pytest.approx(temperature)
    assert made.model.pretrained == f"/data/weights/{backbone}_mlp_im_1k_{pixels}.pth"
    assert (made.model.image_size, made.model.drop_path) == (None, None)  # the backbone's own


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "npmatch"])
def test_what_all_runs_share(name: str, algorithm: str) -> None:
    train = experiment_on(name, algorithm=algorithm, refiner="none").train
    assert (train.optimizer, train.steps, train.epoch_steps) == ("adamw", 204_800, 1024)
    assert (train.labeled_batch, train.unlabeled_ratio) == (8, 1)
    assert (train.warmup_steps, train.schedule) == (5120, "cosine")
    assert (train.eval_steps, train.eval_batch) == (2048, 16)
    assert (train.precision, train.clip_norm) == ("32-true", 0.0)
    averaged = 0.999 if algorithm in ("simmatch", "comatch") and name != "semi_inat" else 0.0
    assert train.ema == averaged


ALIGNED = {"threshold": 0.95, "smoothing": 0.9, "alignment_batches": 32, "unlabeled_weight": 1.0}
COLUMNS: dict[str, dict[str, Any]] = {
    "fixmatch": {"threshold": 0.95, "hard_labels": True, "temperature": 0.5}
    | {"unlabeled_weight": 1.0},
    "freematch": {"unlabeled_weight": 1.0, "fairness_weight": 0.001, "momentum": 0.999}
    | {"quantile": None, "clip": None},
    "remixmatch": {"unlabeled_weight": 1.5, "premix_weight": 0.5, "rotation_weight": 0.5}
    | {"temperature": 0.5, "alignment_momentum": 0.999, "mixup": 0.75, "warmup": 1 / 64},
    "simmatch": ALIGNED | {"instance_weight": 1.0, "projection": 128},
    "comatch": ALIGNED
    | {"temperature": 0.2, "contrastive_weight": 1.0, "graph_threshold": 0.8}
    | {"projection": 64, "queue_batches": 32},
}


@pytest.mark.parametrize("algorithm", COLUMNS)
@pytest.mark.parametrize("name", SUITES)
def test_each_algorithm_has_the_settings_of_its_column(name: str, algorithm: str) -> None:
    made, values = experiment_on(name, algorithm=algorithm).algorithm, COLUMNS[algorithm]
    assert {key: getattr(made, key) for key in values} == values


def test_the_bank_of_simmatch() -> None:
    for name in ("cifar10", "cifar100"):
        made = experiment_on(name)
        assert (made.algorithm.bank, made.algorithm.bank_momentum) == ("momentum", 0.7)
    for name in ("semi_aves", "semi_fungi", "cub"):
        made = experiment_on(name)
        assert made.algorithm.bank == "teacher"
    # an average with momentum 0 is the network itself, which writes its projections as they are
    inat = experiment_on("semi_inat")
    assert (inat.algorithm.bank, inat.algorithm.bank_momentum) == ("momentum", 0.0)


@pytest.mark.parametrize("name", SUITES)
def test_semigpc_has_the_defaults_of_the_spec(name: str) -> None:
    gp = experiment_on(name, algorithm="fixmatch").refiner
    assert (gp.buffer_size, gp.role, gp.site, gp.blend) == (16_300, "refine", "semantic", 1.0)
    assert (gp.feature, gp.l2norm, gp.push) == ("backbone", True, "after")
    assert (gp.kernel_clip, gp.class_prior) == (0.0, "none")
    assert gp.length_scale != "auto", "the paper's experiments do not tune"
    assert gp.noise_std**2 == pytest.approx(0.1)
    assert (gp.warmup_steps, gp.eval_head, gp.engine) == (1024, "linear", AutoOptions())
    scale = {10: 6.43, 100: 9.42, 200: 10.30, 810: 12.05}[SUITES[name].n_classes]
    assert gp.logit_scale == pytest.approx(scale, abs=0.005)


def test_the_kernel_average_is_given_the_same_memory() -> None:
    gp, average = (cifar100_lt(root="/data", refiner=name).refiner for name in ("gp", "similarity"))
    for name in ("buffer_size", "balanced", "warmup_steps"):
        assert getattr(average, name) == getattr(gp, name)
    assert average.temperature == pytest.approx(gp.length_scale**2)


@pytest.mark.parametrize(("classes", "recipe"), [(10, cifar10_lt), (100, cifar100_lt)])
@pytest.mark.parametrize("which", range(3))
def test_the_long_tails_have_the_printed_totals(classes: int, recipe: Any, which: int) -> None:
    ratio, labels = list(TOTALS[classes, 15_000 // classes].items())[which]
    unlabeled = TOTALS[classes, 50_000 // classes][ratio]
    a, b = (recipe(root="/data", setting=setting, imbalance_ratio=ratio) for setting in "AB")
    assert tuple(map(sum, a.data.split.counts(classes))) == (labels, unlabeled)
    assert tuple(map(sum, b.data.split.counts(classes))) == (4 * classes, unlabeled)
    assert a.data.split.overlap == b.data.split.overlap == "nested"
    assert a.refiner.balanced  # the daggered rows
    assert not b.refiner.balanced


def test_setting_b_takes_more_labels() -> None:
    split = cifar10_lt(root="/data", setting="B", labels_per_class=25).data.split
    assert (split.labeled_head, split.labeled_ratio) == (25, 1.0)
    with pytest.raises(SettingsError, match="setting must be 'A'"):
        cifar10_lt(root="/data", setting="C")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("classes", "labels", "each"), [(10, 40, 4), (10, 250, 25), (100, 200, 2), (100, 400, 4)]
)
def test_balanced_cifar_has_all_images_unlabelled(classes: Any, labels: int, each: int) -> None:
    made = balanced_cifar(root="/data", n_classes=classes, labels=labels)
    labeled, unlabeled = made.data.split.counts(classes)
    assert set(labeled) == {each}
    assert sum(unlabeled) == 50_000
    assert made.data.split.overlap == "nested"
    assert not made.refiner.balanced


def test_labels_that_cannot_be_equally_many_are_refused() -> None:
    with pytest.raises(SettingsError, match="each of the 10 classes, such as 40; got 45"):
        balanced_cifar(root="/data", labels=45)


def test_fine_grained_sets_are_used_as_published() -> None:
    for name in ("cub", "semi_aves", "semi_fungi", "semi_inat"):
        data = experiment_on(name).data
        assert (data.benchmark, data.labels, data.unlabeled) == (name, "l_train_val", "in")
        assert SUITES[name].n_classes == BENCHMARKS[name].classes
        assert SUITES[name].test_images == BENCHMARKS[name].files["test"].images


def test_the_ablations_are_semi_aves_with_one_thing_changed() -> None:
    options = Options(root=Path("/data"), weights=Path("/w"))
    plain, freematch = (
        fgvc(root="/data", weights="/w", algorithm=name) for name in ("simmatch", "freematch")
    )
    cells = [cell for name in ABLATIONS for cell in TABLES[name].all_cells(options)]
    ablations = {cell.key: cell.experiment for cell in cells}
    assert ablations["semi_aves/simmatch+gp"] == ablations["supervised/simmatch+gp"] == plain
    assert ablations["semi_aves/freematch+gp"] == freematch
    files = {"dino": "dino_deitsmall16_pretrain.pth", "msn": "vits16_800ep.pth.tar"}
    for name, file in files.items():
        experiment = ablations[f"{name}/simmatch+gp"]
        assert experiment is not None
        assert experiment.model.pretrained == f"/w/{file}"
        assert replace(experiment, model=plain.model) == plain


@pytest.mark.parametrize(
    ("options", "near"), [({"algorithm": "simmach"}, "simmatch"), ({"refiner": "pg"}, "gp")]
)
def test_a_misspelt_name_is_answered_with_the_nearest(options: dict[str, Any], near: str) -> None:
    with pytest.raises(SettingsError, match=f"did you mean '{near}'"):
        cifar10_lt(root="/data", **options)
