"""The paper's six tables as experiments: groups of rows, what was published of each, and what is
run for it.

A recipe returns one cell of a table. ``semigpc reproduce --list`` estimates the hours of each, and
``semigpc reproduce TABLE --root DIR`` runs a table and puts it beside what was published.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal

from typing_extensions import Unpack

from semigpc.data import SplitConfig
from semigpc.data.cifar import CifarConfig
from semigpc.io.errors import SettingsError
from semigpc.io.text import unknown_name
from semigpc.paper.fgvc import BENCHMARKS, FGVCConfig, Name
from semigpc.paper.published import ENOUGH_SEEDS, NOTES, PUBLISHED, Published
from semigpc.paper.recipes import (
    SUITES,
    PaperRun,
    Pretraining,
    Suite,
    absolute,
    paper_experiment,
    shorten,
    shrink,
)
from semigpc.training import Experiment
from semigpc.training.comparison import Cell
from semigpc.training.experiment import config_type, override_all

Scale = Literal["paper", "cpu"]
Features = Literal["live", "cached"]
FINE_GRAINED: tuple[Name, ...] = ("cub", "semi_aves", "semi_fungi", "semi_inat")
PRETRAININGS: tuple[Pretraining, ...] = ("supervised", "dino", "msn")
BALANCED_LABELS: dict[Literal[10, 100], tuple[int, int]] = {10: (40, 250), 100: (200, 400)}
TRAINING_IMAGES = 50_000  # of either CIFAR
PAPER_LABELS = 4  # of each class, in setting B
LABELS_ONLY = ("supervised", "none", "none")  # algorithm, add-on and refiner
# Settings that decide how fast a run is and what it writes, but not its result.
HARMLESS = frozenset(f"train.{name}" for name in ("workers", "threads", "eval_batch", "log_steps"))


# Recipes ------------------------------------------------------------------------------------------


def long_tailed_cifar(
    n_classes: Literal[10, 100],
    *,
    setting: Literal["A", "B"] = "A",
    imbalance_ratio: float = 100,
    labels_per_class: int = PAPER_LABELS,
    **run: Unpack[PaperRun],
) -> Experiment:
    """Return a cell of "CIFAR-10-LT" or "CIFAR-100-LT"; L is part of U, whose largest class is
    whole.

    Args:
        n_classes: 10 or 100.
        setting: A, labels as long-tailed as U and 30 % of it, and a balanced buffer; B,
            ``labels_per_class`` of each class.
        imbalance_ratio: the largest class of U over its smallest.
        run: see :class:`PaperRun`.
    """
    if setting not in ("A", "B"):
        raise SettingsError(
            f"setting is 'A' (long-tailed labels) or 'B' (equally many of each class); got {setting!r}."
        )
    whole = TRAINING_IMAGES // n_classes
    head, ratio = (whole * 3 // 10, imbalance_ratio) if setting == "A" else (labels_per_class, 1.0)
    split = SplitConfig(
        labeled_head=head,
        labeled_ratio=ratio,
        unlabeled_head=whole,
        unlabeled_ratio=imbalance_ratio,
        overlap="nested",
    )
    data = CifarConfig(root=absolute(run["root"]), n_classes=n_classes, split=split)
    return paper_experiment(f"cifar{n_classes}", data, balanced=setting == "A", **run)


cifar10_lt = partial(long_tailed_cifar, 10)
cifar100_lt = partial(long_tailed_cifar, 100)


def fgvc(*, benchmark: Name = "semi_aves", **run: Unpack[PaperRun]) -> Experiment:
    """Return a cell of "fine-grained benchmarks", or on SemiAves of the ablations of algorithms and
    pre-trainings.

    Labels are ``l_train_val``, unlabelled images ``u_train_in``; the splits are published, so the
    seed decides the training alone.
    """
    data = FGVCConfig(
        benchmark=benchmark, root=absolute(run["root"]), labels="l_train_val", unlabeled="in"
    )
    return paper_experiment(benchmark, data, **run)


def balanced_cifar(
    *, n_classes: Literal[10, 100] = 10, labels: int = 40, **run: Unpack[PaperRun]
) -> Experiment:
    """Return a cell of "balanced CIFAR": all training images are unlabelled ones, also those with
    one of the ``labels``.
    """
    if labels < n_classes or labels % n_classes:
        raise SettingsError(
            f"labels must be equally many of each of the {n_classes} classes, such as {4 * n_classes}; got {labels}."
        )
    split = SplitConfig(
        labeled_head=labels // n_classes,
        unlabeled_head=TRAINING_IMAGES // n_classes,
        overlap="nested",
    )
    return paper_experiment(
        f"cifar{n_classes}",
        CifarConfig(root=absolute(run["root"]), n_classes=n_classes, split=split),
        **run,
    )


# Tables -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may choose about a table.

    Args:
        root: folder of the data. weights: of the pre-trained networks; ``weights`` below root
            without it.
        scale: "paper", in full; or "cpu", cut to what a machine without a GPU can run.
        features: at scale "cpu", a small network from scratch ("live"), or a frozen one whose
            features are kept ("cached").
        algorithms: by name; the paper's without any. refiners: by name. Labels only is always
            there.
        addons: by name; each is put on every algorithm, with every refiner, beside the rows without
            it.
        steps: of every run instead of the recipe's, to see a table work before it is run in full.
        labels_per_class: in setting B of the long-tailed tables; the paper's 4 without it.
        overrides: ``key=value``, for every cell that has the key.
    """

    root: Path = Path()
    weights: Path | None = None
    scale: Scale = "paper"
    features: Features = "live"
    algorithms: tuple[str, ...] = ()
    refiners: tuple[str, ...] = ("none", "gp")
    addons: tuple[str, ...] = ()
    steps: int | None = None
    labels_per_class: int | None = None
    overrides: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for room, names in (
            ("algorithm", self.algorithms),
            ("refiner", self.refiners),
            ("addon", self.addons),
        ):
            for name in names:
                config_type(room, name)
        if self.features == "cached" and self.scale == "paper":
            raise SettingsError(
                "features are kept at scale 'cpu' alone: the paper trains the whole network. Add --scale cpu."
            )

    @property
    def changed(self) -> list[str]:
        """Settings that may change a figure."""
        shorter = [] if self.steps is None else [f"train.steps={self.steps}"]
        return shorter + [
            setting
            for setting in self.overrides
            if setting.partition("=")[0].strip() not in HARMLESS
        ]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows of a table that share data and seeds.

    Args:
        title: for people. suite: of the data. algorithms: that the paper has.
        make: a recipe that takes root, weights, algorithm, addon, refiner and seed.
        few_labels: it takes ``labels_per_class`` too. seeds: with fewer, no claim is judged, so as
            many are run by default.
    """

    title: str
    suite: str
    make: Callable[..., Experiment]
    algorithms: tuple[str, ...] = ("simmatch",)
    few_labels: bool = False
    seeds: int = ENOUGH_SEEDS

    @property
    def data(self) -> Suite:
        """The row of its data in the table of data sets."""
        return SUITES[self.suite]


@dataclass(frozen=True, kw_only=True)
class PaperCell:
    """One row of a group: what was published, and the cell to run, unless the row is quoted from
    others.
    """

    group: str
    row: str
    published: Published | None
    cell: Cell | None = None

    @property
    def key(self) -> str:
        """As in "A/100/simmatch+gp"."""
        return f"{self.group}/{self.row}"

    @property
    def experiment(self) -> Experiment | None:
        """What is run."""
        return None if self.cell is None else self.cell.experiment

    def fits(self, pattern: str) -> bool:
        """Return whether the key or the group matches a pattern, such as "A/*"."""
        return fnmatchcase(self.key, pattern) or fnmatchcase(self.group, pattern)


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table of the paper; ``full_scale``: at scale "cpu" nothing is left of what it compares."""

    name: str
    title: str
    full_scale: bool = False
    groups: Mapping[str, Group] = field(repr=False)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is inconsistent in print."""
        return NOTES[self.name]

    @property
    def few_labels(self) -> bool:
        """Whether some group takes ``labels_per_class``."""
        return any(group.few_labels for group in self.groups.values())

    def all_cells(self, options: Options) -> list[PaperCell]:
        """Return the rows of all groups."""
        if self.full_scale and options.scale == "cpu":
            raise SettingsError(
                f"{self.name} compares what networks start from, and at scale 'cpu' all start from the same. Run it at scale "
                "'paper', or another table."
            )
        return [cell for name in self.groups for cell in self.cells(name, options)]

    def cells(self, name: str, options: Options) -> list[PaperCell]:
        """Return the rows of a group: labels only, what the paper quotes, and every algorithm with
        add-ons and refiners.
        """
        group = self.groups[name]
        few = options.labels_per_class or PAPER_LABELS
        own = {"labels_per_class": few} if group.few_labels else {}
        printed = PUBLISHED[self.name][name] if not group.few_labels or few == PAPER_LABELS else {}
        methods = dict.fromkeys([LABELS_ONLY])
        for algorithm in options.algorithms or group.algorithms:
            refiners = options.refiners if algorithm != LABELS_ONLY[0] else ("none",)
            methods |= dict.fromkeys(product([algorithm], ["none", *options.addons], refiners))
        full = [
            group.make(
                root=options.root,
                weights=options.weights,
                algorithm=algorithm,
                addon=addon,
                refiner=refiner,
                **own,
            )
            for algorithm, addon, refiner in methods
        ]
        experiments = override_all(
            [_at_scale(experiment, options) for experiment in full], options.overrides
        )
        cells = [Cell(experiment, experiment.label) for experiment in experiments]
        ours = [
            PaperCell(group=name, row=cell.name, published=printed.get(cell.name), cell=cell)
            for cell in cells
        ]
        quoted = [
            PaperCell(group=name, row=row, published=entry)
            for row, entry in printed.items()
            if entry.quoted
        ]
        return [ours[0], *quoted, *ours[1:]]


def _at_scale(experiment: Experiment, options: Options) -> Experiment:
    experiment = experiment if options.scale == "paper" else shrink(experiment, options.features)
    return experiment if options.steps is None else shorten(experiment, options.steps)


def select(cells: Sequence[PaperCell], globs: Sequence[str]) -> list[PaperCell]:
    """Return the cells to run: all, or those that fit one of the patterns, each of which has to fit
    some.
    """
    runnable = [cell for cell in cells if cell.cell is not None]
    for pattern in globs:
        if not any(cell.fits(pattern) for cell in runnable):
            raise SettingsError(unknown_name("cell", pattern, [cell.key for cell in runnable]))
    return [cell for cell in runnable if not globs or any(cell.fits(pattern) for pattern in globs)]


def _long_tailed(n_classes: Literal[10, 100], ratios: tuple[int, ...], seeds: int) -> PaperTable:
    """Return the table of one CIFAR; ``seeds`` are those that a claim needs in setting B."""
    title = f"CIFAR-{n_classes}-LT"
    groups = {
        f"{setting}/{ratio}": Group(
            title=f"{title}, setting {setting}, imbalance ratio {ratio}",
            suite=f"cifar{n_classes}",
            make=partial(long_tailed_cifar, n_classes, setting=setting, imbalance_ratio=ratio),
            few_labels=setting == "B",
            seeds=seeds if setting == "B" else ENOUGH_SEEDS,
        )
        for setting in ("A", "B")
        for ratio in ratios
    }
    return PaperTable(
        name=f"cifar{n_classes}_lt",
        title=f"{title}, labels long-tailed (A) or equally many of each class (B)",
        groups=groups,
    )


_TABLES = (
    _long_tailed(10, (50, 100, 150), seeds=5),  # deviations of up to 8.9 in print
    _long_tailed(100, (20, 50, 100), seeds=ENOUGH_SEEDS),
    PaperTable(
        name="fgvc",
        title="Fine-grained benchmarks",
        groups={
            name: Group(
                title=BENCHMARKS[name].title, suite=name, make=partial(fgvc, benchmark=name)
            )
            for name in FINE_GRAINED
        },
    ),
    PaperTable(
        name="balanced_cifar",
        title="Balanced CIFAR",
        groups={
            f"cifar{n}/{labels}": Group(
                title=f"CIFAR-{n}, {labels} labels",
                suite=f"cifar{n}",
                make=partial(balanced_cifar, n_classes=n, labels=labels),
            )
            for n, counts in BALANCED_LABELS.items()
            for labels in counts
        },
    ),
    PaperTable(
        name="algorithm_ablation",
        title="Base algorithms on SemiAves",
        groups={
            "semi_aves": Group(
                title="SemiAves",
                suite="semi_aves",
                make=fgvc,
                algorithms=("freematch", "fixmatch", "remixmatch", "simmatch"),
            )
        },
    ),
    PaperTable(
        name="pretraining_ablation",
        title="Pre-trainings on SemiAves",
        full_scale=True,
        groups={
            name: Group(
                title=f"SemiAves, {name} pre-training",
                suite="semi_aves",
                make=partial(fgvc, pretraining=name),
            )
            for name in PRETRAININGS
        },
    ),
)
TABLES: dict[str, PaperTable] = {table.name: table for table in _TABLES}


def find_table(name: str) -> PaperTable:
    """Return the table of that name."""
    if name not in TABLES:
        raise SettingsError(unknown_name("table", name, TABLES))
    return TABLES[name]
