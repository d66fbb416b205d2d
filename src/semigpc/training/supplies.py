"""What the runs of a comparison are made from, kept from one run to the next."""

from semigpc.training.experiment import Experiment
from semigpc.training.loop import Material, load_splits, view_source
from semigpc.training.state import build_fabric

PARTS = ("data", "augment", "model", "frozen", "seed")  # of an experiment, that decide its material


def same_material(one: Experiment, other: Experiment) -> bool:
    """Whether two experiments see the same images, or the same features of them."""
    return all(getattr(one, part) == getattr(other, part) for part in PARTS)


class Supplies:
    """The material of the last experiment, for the next one if it needs the same: reading it takes as long as a short run.

    Made anew for every comparison, so that data which change between two of them are read again.
    """

    def __init__(self) -> None:
        self._held: tuple[Experiment, Material] | None = None

    def of(self, experiment: Experiment) -> Material | None:
        """Splits and features; None for images, of which a run's own views are made at no cost."""
        if experiment.frozen is None:
            return None
        if self._held is None or not same_material(self._held[0], experiment):
            self._held = None  # before another is read: one of them at a time in memory
            splits = load_splits(experiment)
            source = view_source(experiment, splits, build_fabric(experiment).device, None)
            self._held = experiment, Material(splits, source)
        return self._held[1]
