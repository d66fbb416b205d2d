"""Table "CIFAR-10-LT": imbalance ratios 50, 100 and 150, labels long-tailed (A) or four of each class (B)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Literal

from semigpc.data import SplitConfig
from semigpc.data.cifar import CifarConfig
from semigpc.data.fgvc import FGVCConfig
from semigpc.data.published_counts import BENCHMARKS, Name
from semigpc.recipes.published import ENOUGH_SEEDS, NOTES, PUBLISHED, Published
from semigpc.recipes.scales import SUITES, Pretraining, absolute, long_tailed_cifar, paper_experiment, shrink
from semigpc.text import unknown_name
from semigpc.training import Experiment, SettingError
from semigpc.training.experiment import config_type, override_all

CIFAR10_RATIOS = (50, 100, 150)


def cifar10_lt(
    *,
    root: str | Path,
    setting: Literal["A", "B"] = "A",
    imbalance_ratio: float = 100,
    labels_per_class: int = 4,
    algorithm: str = "simmatch",
    refiner: str = "gp",
    seed: int = 0,
    weights: str | Path | None = None,
) -> Experiment:
    """Setting A: 1500 labels of the largest class; setting B: ``labels_per_class`` of each. U has 5000 of the largest.

    ``semigpc reproduce cifar10_lt --root DIR``; SimMatch takes some 3 hours a run on one GPU at 5 TFLOP/s. Published with
    SemiGPC at a ratio of 100: 95.74 in setting A (+1.15), 86.86 in setting B (+10.17).
    """
    return long_tailed_cifar(
        10,
        root=root,
        setting=setting,
        imbalance_ratio=imbalance_ratio,
        labels_per_class=labels_per_class,
        weights=weights,
        algorithm=algorithm,
        refiner=refiner,
        seed=seed,
    )


CIFAR100_RATIOS = (20, 50, 100)


def cifar100_lt(
    *,
    root: str | Path,
    setting: Literal["A", "B"] = "A",
    imbalance_ratio: float = 100,
    labels_per_class: int = 4,
    algorithm: str = "simmatch",
    refiner: str = "gp",
    seed: int = 0,
    weights: str | Path | None = None,
) -> Experiment:
    """Setting A: 150 labels of the largest class; setting B: ``labels_per_class`` of each. U has 500 of the largest.

    ``semigpc reproduce cifar100_lt --root DIR``; SimMatch takes some 11 hours a run on one GPU at 5 TFLOP/s. Published with
    SemiGPC at a ratio of 100: 74.48 in setting A (+0.58), 73.47 in setting B (+3.28).
    """
    return long_tailed_cifar(
        100,
        root=root,
        setting=setting,
        imbalance_ratio=imbalance_ratio,
        labels_per_class=labels_per_class,
        weights=weights,
        algorithm=algorithm,
        refiner=refiner,
        seed=seed,
    )


FINE_GRAINED: tuple[Name, ...] = ("cub", "semi_aves", "semi_fungi", "semi_inat")


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


BALANCED_LABELS: dict[Literal[10, 100], tuple[int, int]] = {10: (40, 250), 100: (200, 400)}


def balanced_cifar(
    *,
    root: str | Path,
    n_classes: Literal[10, 100] = 10,
    labels: int = 40,
    algorithm: str = "simmatch",
    refiner: str = "gp",
    seed: int = 0,
    weights: str | Path | None = None,
) -> Experiment:
    """Equally many ``labels`` of each class; all 50 000 training images are unlabelled ones, those with labels too.

    ``semigpc reproduce balanced_cifar --root DIR``; SimMatch takes some 3 hours a run (CIFAR-10) or 11 (CIFAR-100) on one
    GPU at 5 TFLOP/s. Published with SemiGPC: 97.14 (40 labels, -0.18), 97.39 (250), 80.01 (200, +0.83), 83.87 (400, +0.62).
    """
    if labels < n_classes or labels % n_classes:
        raise SettingError(
            f"labels must be equally many of each of the {n_classes} classes, such as {4 * n_classes}; got {labels}."
        )
    split = SplitConfig(labeled_head=labels // n_classes, unlabeled_head=50_000 // n_classes, overlap="nested")
    return paper_experiment(
        f"cifar{n_classes}",
        CifarConfig(root=absolute(root), n_classes=n_classes, split=split),
        root=root,
        weights=weights,
        algorithm=algorithm,
        refiner=refiner,
        seed=seed,
    )


BASES = ("freematch", "fixmatch", "remixmatch", "simmatch")


def algorithm_ablation(
    *, root: str | Path, algorithm: str = "freematch", refiner: str = "gp", seed: int = 0, weights: str | Path | None = None
) -> Experiment:
    """SemiAves, as in the table of fine-grained benchmarks, by another algorithm.

    ``semigpc reproduce algorithm_ablation --root DIR``; some 8 hours a run on one GPU at 5 TFLOP/s, ReMixMatch 17. Published
    with SemiGPC: FreeMatch 67.93 (+0.96), FixMatch 68.31 (+0.95), ReMixMatch 68.31 (+0.41), SimMatch 69.30 (+0.85).
    """
    return fgvc(root=root, benchmark="semi_aves", algorithm=algorithm, refiner=refiner, seed=seed, weights=weights)


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


Scale = Literal["paper", "cpu"]
Features = Literal["live", "cached"]
PAPER_LABELS = 4  # of each class, in setting B
LABELS_ONLY = ("supervised", "none")
# Settings that decide how fast a run is and what it writes, but not what comes out.
HARMLESS = frozenset(f"train.{name}" for name in ("workers", "threads", "eval_batch", "log_steps", "tensorboard"))


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may say of a table.

    Args:
        root: folder of the data. weights: of the pre-trained networks; ``weights`` below root without it.
        scale: "paper", in full; or "cpu", cut to what a machine without a GPU can run.
        features: at scale "cpu", a small network from scratch ("live"), or a frozen one whose features are kept ("cached").
        algorithms: by name; the paper's without any. refiners: by name. Labels only is always there.
        labels_per_class: in setting B of the long-tailed tables; the paper's 4 without it.
        overrides: ``key=value``, for every cell that has the key.
    """

    root: Path = Path()
    weights: Path | None = None
    scale: Scale = "paper"
    features: Features = "live"
    algorithms: tuple[str, ...] = ()
    refiners: tuple[str, ...] = ("none", "gp")
    labels_per_class: int | None = None
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for room, names in (("algorithm", self.algorithms), ("refiner", self.refiners)):
            for name in names:
                config_type(room, name)
        if self.features == "cached" and self.scale == "paper":
            raise SettingError("features are kept at scale 'cpu' alone: the paper trains the whole network. Add --scale cpu.")

    @property
    def changed(self) -> list[str]:
        """Overrides that may change a figure."""
        return [setting for setting in self.overrides if setting.partition("=")[0].strip() not in HARMLESS]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows of a table that share data and seeds.

    Args:
        title: for people. suite: of the data. algorithms: that the paper has.
        make: a recipe that takes root, weights, algorithm, refiner and seed.
        few_labels: it takes ``labels_per_class`` too. seeds: with fewer, no claim is judged.
    """

    title: str
    suite: str
    make: Callable[..., Experiment]
    algorithms: tuple[str, ...] = ("simmatch",)
    few_labels: bool = False
    seeds: int = ENOUGH_SEEDS

    @property
    def test_images(self) -> int:
        """That every evaluation looks at."""
        return SUITES[self.suite].test_images


@dataclass(frozen=True, kw_only=True)
class PaperCell:
    """One row of a group: what was published, and the experiment, unless the row is quoted from others and not run."""

    group: str
    row: str
    published: Published | None
    experiment: Experiment | None

    @property
    def key(self) -> str:
        """As in "A/100/simmatch+gp"."""
        return f"{self.group}/{self.row}"


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of the paper; ``full_scale``: at scale "cpu" nothing is left of what it compares."""

    name: str
    title: str
    full_scale: bool = False
    groups: Mapping[str, Group] = field(repr=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """What does not add up in print."""
        return NOTES[self.name]

    @property
    def few_labels(self) -> bool:
        """Whether some group takes ``labels_per_class``."""
        return any(group.few_labels for group in self.groups.values())

    def all_cells(self, options: Options) -> list[PaperCell]:
        """The rows of all groups."""
        if self.full_scale and options.scale == "cpu":
            raise SettingError(
                f"{self.name} compares what networks start from, and at scale 'cpu' all start from the same. Run it at scale "
                "'paper', or another table."
            )
        return [cell for name in self.groups for cell in self.cells(name, options)]

    def cells(self, name: str, options: Options) -> list[PaperCell]:
        """The rows of a group: labels only, what the paper quotes, and every algorithm with every refiner."""
        group = self.groups[name]
        few = options.labels_per_class or PAPER_LABELS
        own = {"labels_per_class": few} if group.few_labels else {}
        printed = PUBLISHED[self.name][name] if not group.few_labels or few == PAPER_LABELS else {}
        wanted = dict.fromkeys([LABELS_ONLY])
        for algorithm in options.algorithms or group.algorithms:
            wanted |= dict.fromkeys((algorithm, refiner) for refiner in options.refiners if algorithm != LABELS_ONLY[0])
        made = [
            group.make(root=options.root, weights=options.weights, algorithm=algorithm, refiner=refiner, seed=0, **own)
            for algorithm, refiner in wanted
        ]
        cells = [
            PaperCell(group=name, row=row, published=printed.get(row), experiment=experiment)
            for experiment in override_all([_at_scale(experiment, options) for experiment in made], options.overrides)
            for row in [f"{experiment.algorithm_name}+{experiment.refiner_name}"]
        ]
        quoted = [
            PaperCell(group=name, row=row, published=entry, experiment=None) for row, entry in printed.items() if entry.quoted
        ]
        return [cells[0], *quoted, *cells[1:]]


def _at_scale(experiment: Experiment, options: Options) -> Experiment:
    if options.scale == "paper":
        return experiment
    return shrink(experiment, options.features)


def select(cells: Sequence[PaperCell], globs: Sequence[str]) -> list[PaperCell]:
    """The cells to run: all, or those whose key or group fits one of the patterns, each of which has to fit some."""
    runnable = [cell for cell in cells if cell.experiment is not None]
    for pattern in globs:
        if not any(_fits(cell, pattern) for cell in runnable):
            raise SettingError(unknown_name("cell", pattern, [cell.key for cell in runnable]))
    return [cell for cell in runnable if not globs or any(_fits(cell, pattern) for pattern in globs)]


def _fits(cell: PaperCell, pattern: str) -> bool:
    return fnmatchcase(cell.key, pattern) or fnmatchcase(cell.group, pattern)


def _long_tailed(name: str, recipe: Callable[..., Experiment], suite: str, ratios: tuple[int, ...], seeds: int) -> PaperTable:
    """Settings A and B of one CIFAR."""
    title, groups = f"{'CIFAR-100' if suite == 'cifar100' else 'CIFAR-10'}-LT", {}
    for setting in ("A", "B"):
        for ratio in ratios:
            group = Group(
                title=f"{title}, setting {setting}, imbalance ratio {ratio}",
                suite=suite,
                make=partial(recipe, setting=setting, imbalance_ratio=ratio),
            )
            groups[f"{setting}/{ratio}"] = replace(group, few_labels=True, seeds=seeds) if setting == "B" else group
    return PaperTable(name=name, title=f"{title}, labels long-tailed (A) or equally many of each class (B)", groups=groups)


TABLES: dict[str, PaperTable] = {
    "cifar10_lt": _long_tailed(
        "cifar10_lt", cifar10_lt, "cifar10", CIFAR10_RATIOS, seeds=5
    ),  # deviations of up to 8.9 in print
    "cifar100_lt": _long_tailed("cifar100_lt", cifar100_lt, "cifar100", CIFAR100_RATIOS, seeds=ENOUGH_SEEDS),
    "fgvc": PaperTable(
        name="fgvc",
        title="Fine-grained benchmarks",
        groups={
            name: Group(title=BENCHMARKS[name].title, suite=name, make=partial(fgvc, benchmark=name)) for name in FINE_GRAINED
        },
    ),
    "balanced_cifar": PaperTable(
        name="balanced_cifar",
        title="Balanced CIFAR",
        groups={
            f"cifar{n}/{labels}": Group(
                title=f"CIFAR-{n}, {labels} labels", suite=f"cifar{n}", make=partial(balanced_cifar, n_classes=n, labels=labels)
            )
            for n, counts in BALANCED_LABELS.items()
            for labels in counts
        },
    ),
    "algorithm_ablation": PaperTable(
        name="algorithm_ablation",
        title="Base algorithms on SemiAves",
        groups={"semi_aves": Group(title="SemiAves", suite="semi_aves", make=algorithm_ablation, algorithms=BASES)},
    ),
    "pretraining_ablation": PaperTable(
        name="pretraining_ablation",
        title="Pre-trainings on SemiAves",
        full_scale=True,
        groups={
            name: Group(
                title=f"SemiAves, {name} pre-training",
                suite="semi_aves",
                make=partial(pretraining_ablation, pretraining=name),
            )
            for name in PRETRAININGS
        },
    ),
}


def find_table(name: str) -> PaperTable:
    """The table of that name."""
    if name not in TABLES:
        raise SettingError(unknown_name("table", name, TABLES))
    return TABLES[name]
