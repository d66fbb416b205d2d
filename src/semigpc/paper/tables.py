"""The paper's six tables: groups of rows, what was published of each, and the experiment to run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import product
from pathlib import Path
from typing import Literal

from semigpc.io.errors import SettingsError
from semigpc.io.text import unknown_name
from semigpc.paper.fgvc import BENCHMARKS, Name
from semigpc.paper.published import ENOUGH_SEEDS, NOTES, PUBLISHED, Published
from semigpc.paper.recipes import (
    PAPER_LABELS,
    SUITES,
    Pretraining,
    Suite,
    balanced_cifar,
    fgvc,
    long_tailed_cifar,
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
LABELS_ONLY = ("supervised", "none", "none")  # algorithm, add-on and refiner
# Settings that affect how fast a run is and what it writes, but not its result.
HARMLESS_SETTINGS = frozenset(
    f"train.{name}" for name in ("workers", "threads", "eval_batch", "log_steps")
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may choose about a table.

    Args:
        root: folder of the data. weights: folder of the pre-trained networks; ``weights`` below
            root if None.
        scale: "paper", in full; or "cpu", reduced to what a machine without a GPU can run.
        features: at scale "cpu", a small network from scratch ("live"), or an adapter on stored
            features of a frozen one ("cached").
        algorithms: by name; the paper's if empty. refiners: by name. Labels only is always run.
        addons: by name; each adds rows for every algorithm and refiner.
        steps: of every run instead of the recipe's, to try a table before it is run in full.
        labels_per_class: in setting B of the long-tailed tables; the paper's 4 if None.
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
        rooms = {"algorithm": self.algorithms, "refiner": self.refiners, "addon": self.addons}
        for room, names in rooms.items():
            for name in names:
                config_type(room, name)
        if self.features == "cached" and self.scale == "paper":
            raise SettingsError(
                "features=cached needs scale=cpu: the paper trains the whole network."
            )

    @property
    def changed(self) -> list[str]:
        """Settings that may change a figure."""
        shorter = [] if self.steps is None else [f"train.steps={self.steps}"]
        return shorter + [
            setting
            for setting in self.overrides
            if setting.partition("=")[0].strip() not in HARMLESS_SETTINGS
        ]


@dataclass(frozen=True, kw_only=True)
class Group:
    """Rows of a table that share data and seeds.

    Args:
        title: for people. suite: of the data. algorithms: those of the paper.
        make: a recipe that takes root, weights, algorithm, addon, refiner and seed.
        few_labels: whether it takes ``labels_per_class`` too. seeds: the number run by default;
            with fewer, no claim is judged.
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
    """One row of a group: what was published, and the cell to run unless the row is quoted."""

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
    """A table of the paper; ``full_scale``: it compares nothing at scale "cpu"."""

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
                f"{self.name} compares pre-trainings, and at scale=cpu all networks start from the "
                "same. Use scale=paper, or another table."
            )
        return [cell for name in self.groups for cell in self.cells(name, options)]

    def cells(self, name: str, options: Options) -> list[PaperCell]:
        """Return the rows of a group: labels only, quoted ones, then every algorithm."""
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
    """Return the cells to run: all, or those that match a pattern; every pattern must match one."""
    runnable = [cell for cell in cells if cell.cell is not None]
    for pattern in globs:
        if not any(cell.fits(pattern) for cell in runnable):
            raise SettingsError(unknown_name("cell", pattern, [cell.key for cell in runnable]))
    return [cell for cell in runnable if not globs or any(cell.fits(pattern) for pattern in globs)]


def _long_tailed(n_classes: Literal[10, 100], ratios: tuple[int, ...], seeds: int) -> PaperTable:
    """Return the table of one CIFAR; ``seeds``: how many a claim in setting B needs."""
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
    _long_tailed(10, (50, 100, 150), seeds=5),  # printed deviations reach 8.9
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
