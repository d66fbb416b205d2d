"""A table of the paper as experiments: groups of rows, what was published of each, and what is run for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from semigpc.recipes.paper_scale import SUITES
from semigpc.recipes.published import NOTES, PUBLISHED, Published
from semigpc.recipes.verdicts import ENOUGH_SEEDS
from semigpc.text import unknown_name
from semigpc.training import Experiment, SettingError
from semigpc.training.experiment import config_type, override_all

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
    from semigpc.recipes.cpu_scale import shrink

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
