"""An experiment: everything that decides a result, in one frozen object."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from semigpc.addons import ADDONS, AddOnConfig
from semigpc.algorithms import ALGORITHMS, FixMatchConfig
from semigpc.data import DATASETS, AugmentConfig, DigitsConfig
from semigpc.io.errors import SettingsError
from semigpc.io.text import unknown_name
from semigpc.models import ModelConfig
from semigpc.refiners import REFINERS, NoRefinerConfig
from semigpc.training.settings import (
    config_class,
    from_plain,
    groups_by_name,
    name_among,
    override,
    to_plain,
)

ROOMS: dict[str, Mapping[str, Any]] = {
    "data": DATASETS,
    "algorithm": ALGORITHMS,
    "addon": ADDONS,
    "refiner": REFINERS,
}
NOT_FROZEN = "frozen must be a FrozenConfig or None; got {!r:.80}. Use --features cached instead."


Precision = Literal["32-true", "64-true", "16-mixed", "bf16-mixed"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """The loop's options; the defaults are the ViT recipe of USB (Wang et al., 2022), which the
    paper follows.

    Args:
        steps: optimiser steps in all.
        epoch_steps: steps that make an "epoch", which is no pass over the data.
        labeled_batch: B. unlabeled_ratio: mu, U = mu B unlabelled images a step.
        optimizer: AdamW, or SGD with Nesterov momentum 0.9.
        lr: of the heads. layer_decay: d in lr d^(depth - layer). weight_decay: of matrices; vectors
            and positions have none.
        warmup_steps: over which the rate rises from 0; then it follows cos(7/16 pi t).
        schedule: or stay constant after the warm-up.
        ema: momentum of the moving average that is evaluated; 0 for none.
        clip_norm: largest norm of a gradient; 0 for no limit.
        precision: of the network; the GP computes in float64 in any case. 16-mixed needs a GPU.
        tf32: let a GPU round the factors of the network's float32 products to 10 bits, which is
            faster and changes figures.
        compile: translate the network by torch.compile, which takes time at the start and needs a
            C++ compiler.
        eval_steps, checkpoint_steps, log_steps: how often to do each.
        eval_batch: images at a time in evaluation. workers: processes that load images; 0 loads in
            the loop. By default one for each core but one, at most 8, where loading takes long
            enough (:func:`~semigpc.data.loaders.worker_count`).
        threads: of torch on the CPU, on whose number the last bits depend; 0 for as many as torch
            is set to, but no more than there are cores granted to the process.
        tensorboard: write TensorBoard files too.
    """

    steps: int = 204_800
    epoch_steps: int = 1024
    labeled_batch: int = 8
    unlabeled_ratio: int = 1
    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: float = 5e-4
    layer_decay: float = 0.5
    weight_decay: float = 5e-4
    warmup_steps: int = 5120
    schedule: Literal["cosine", "constant"] = "cosine"
    ema: float = 0.0
    clip_norm: float = 0.0
    precision: Precision = "32-true"
    tf32: bool = False
    compile: bool = False
    eval_steps: int = 2048
    checkpoint_steps: int = 2048
    log_steps: int = 128
    eval_batch: int = 256
    workers: int | None = None
    threads: int = 0
    tensorboard: bool = False

    def __post_init__(self) -> None:
        positive = (
            "steps",
            "epoch_steps",
            "labeled_batch",
            "unlabeled_ratio",
            "eval_steps",
            "checkpoint_steps",
            "log_steps",
        )
        for name in (*positive, "eval_batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        for name in ("weight_decay", "warmup_steps", "clip_norm", "workers", "threads"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must not be negative; got {getattr(self, name)}.")
        if not self.lr > 0:
            raise ValueError(f"lr must be positive; got {self.lr}.")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay must lie in (0, 1]; got {self.layer_decay}.")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must lie in [0, 1); got {self.ema}.")

    @property
    def unlabeled_batch(self) -> int:
        """U."""
        return self.unlabeled_ratio * self.labeled_batch

    def precision_on(self, accelerator: str) -> Precision:
        """Return the precision to compute in: a CPU takes float32 where 16-mixed is set, which it
        cannot do.
        """
        return "32-true" if (self.precision, accelerator) == ("16-mixed", "cpu") else self.precision


@dataclass(frozen=True, kw_only=True)
class FrozenConfig:
    """The network of ``model`` keeps its weights; what trains is h = relu(W norm(f) + b) on its
    features f, and the heads on h.

    Args:
        views: V, weak and strong views of each image to compute. More cost time once, and 2 (2 V +
            1) D bytes an image.
        width: of h.
    """

    views: int = 3
    width: int = 256

    def __post_init__(self) -> None:
        if self.views < 1 or self.width < 1:
            raise ValueError(
                f"views and width must be at least 1; got {self.views} and {self.width}."
            )


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Data, augmentation, network, algorithm, add-on, refiner, loop and seed.

    ``data``, ``algorithm``, ``addon`` and ``refiner`` are configs out of ``DATASETS``,
    ``ALGORITHMS``, ``ADDONS`` and ``REFINERS``. With ``frozen`` the network keeps its weights and
    an adapter trains on its features. Combinations that make no sense raise an error here, before
    anything is loaded.

    Example::

        experiment = Experiment(algorithm=SimMatchConfig(), refiner=GPConfig(buffer_size=1024))
        train(experiment, Path("runs/first"))
    """

    data: Any = field(default_factory=DigitsConfig, metadata={"choices": DATASETS})
    augment: AugmentConfig = field(default_factory=lambda: AugmentConfig(image_size=8, flip=False))
    model: ModelConfig = field(default_factory=ModelConfig)
    algorithm: Any = field(default_factory=FixMatchConfig, metadata={"choices": ALGORITHMS})
    addon: AddOnConfig = field(default_factory=AddOnConfig, metadata={"choices": ADDONS})
    refiner: Any = field(default_factory=NoRefinerConfig, metadata={"choices": REFINERS})
    train: TrainConfig = field(default_factory=TrainConfig)
    frozen: FrozenConfig | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for room in ROOMS:
            name_of(room, getattr(self, room))
        if self.seed < 0:
            raise SettingsError(f"seed must not be negative; got {self.seed}.")
        if not isinstance(self.frozen, FrozenConfig | None):
            raise SettingsError(NOT_FROZEN.format(self.frozen))
        sites = ALGORITHMS[self.algorithm_name].build.sites
        heads = self.algorithm.heads
        for message in (
            self.refiner.conflict(self.algorithm_name, sites=sites, heads=heads),
            self.algorithm.conflict(frozen=self.frozen is not None, average=self.train.ema > 0),
        ):
            if message is not None:
                raise SettingsError(message)
        if self.addon_name != "none":
            self._check_addon(self.addon)

    def _check_addon(self, addon: AddOnConfig) -> None:
        build = ALGORITHMS[self.algorithm_name].build
        if not build.takes_addons:
            raise SettingsError(
                f"{self.algorithm_name} does not use add-ons, so {self.addon_name} cannot act; leave it out."
            )
        if addon.needs_unlabeled and not build.views:
            raise SettingsError(
                f"{self.addon_name} acts on unlabelled images, and {self.algorithm_name} learns from labels alone. Choose "
                "another algorithm, or an add-on for the labels, such as effective_number."
            )
        if addon.needs_average and not self.train.ema:
            raise SettingsError(
                f"{self.addon_name} needs a moving average of the network; set train.ema, such as 0.999."
            )
        clash = sorted(set(addon.heads(2)) & set(self.algorithm.heads))
        if clash:
            raise SettingsError(
                f"{self.addon_name} and {self.algorithm_name} both have a head named {', '.join(clash)}."
            )
        if addon.generations > self.train.steps:
            raise SettingsError(
                f"train.steps={self.train.steps} are shared among {addon.generations} generations, which need one each. "
                "Train longer, or lower addon.generations."
            )

    @property
    def algorithm_name(self) -> str:
        """Its name in ``ALGORITHMS``."""
        return name_of("algorithm", self.algorithm)

    @property
    def addon_name(self) -> str:
        """Its name in ``ADDONS``."""
        return name_of("addon", self.addon)

    @property
    def refiner_name(self) -> str:
        """Its name in ``REFINERS``."""
        return name_of("refiner", self.refiner)

    @property
    def label(self) -> str:
        """The method's name in tables and on pages, as in "FixMatch + DARP + SemiGPC"."""
        parts = (
            ALGORITHMS[self.algorithm_name],
            ADDONS[self.addon_name],
            REFINERS[self.refiner_name],
        )
        return " + ".join(part.label for part in parts if part.label)

    def to_plain(self) -> dict[str, Any]:
        """Return nested dictionaries; configs that are chosen by name have it as ``name``."""
        return to_plain(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> "Experiment":
        """Return the experiment of nested dictionaries: the inverse of :meth:`to_plain`."""
        if not isinstance(frozen := plain.get("frozen"), Mapping | None):
            raise SettingsError(NOT_FROZEN.format(frozen))
        experiment: Experiment = from_plain(cls, plain)
        return experiment

    def override(self, assignments: Sequence[str]) -> "Experiment":
        """Return a copy with settings such as ``train.lr=3e-4`` changed; the error for an unknown
        one names the nearest.
        """
        by_name = set(groups_by_name(self)) - set(
            ROOMS
        )  # rooms are chosen by options of the command line
        return (
            self.from_plain(override(self.to_plain(), assignments, by_name))
            if assignments
            else self
        )


def override_all(experiments: Sequence[Experiment], settings: Sequence[str]) -> list[Experiment]:
    """Return each with the settings it has changed: those of an algorithm or a refiner apply to
    experiments with it alone.
    """
    unused, changed = set(settings), []
    for experiment in experiments:
        own = [setting for setting in settings if _applies(setting, experiment.to_plain())]
        unused -= set(own)
        changed.append(experiment.override(own))
    if unused:  # by no experiment: the last one raises the error for an unknown setting
        experiments[-1].override(sorted(unused))
    return changed


def _applies(setting: str, plain: Mapping[str, Any]) -> bool:
    room, _, key = setting.partition("=")[0].strip().partition(".")
    return room not in ("refiner", "algorithm", "addon") or key.partition(".")[0] in plain[room]


def name_of(room: str, config: Any) -> str:
    """Return the name under which a config's class is listed."""
    name = name_among(ROOMS[room], config)
    if name is None:
        raise SettingsError(
            f"{room} must be a config out of {', '.join(sorted(ROOMS[room]))}; got {config!r}."
        )
    return name


def config_type(room: str, name: str) -> type[Any]:
    """Return the config class listed under a name."""
    if name not in ROOMS[room]:
        message = unknown_name(room, name, ROOMS[room])
        if room == "data":
            message += " One that is defined elsewhere is known once its module is imported."
        raise SettingsError(message)
    return config_class(ROOMS[room], name)
