"""The field in one room: algorithm x add-on x refiner on four long-tailed problems, each run in seconds.

Figures at this scale compare methods with each other under one short budget. They say nothing of published ones.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from semigpc.addons import (
    ABCConfig,
    AddOnConfig,
    CoSSLConfig,
    CReSTConfig,
    CReSTPlusConfig,
    DARPConfig,
    DASOConfig,
    DebiasPLConfig,
)
from semigpc.recipes.digits import digits, digits_balanced
from semigpc.recipes.paper import cifar10_lt
from semigpc.recipes.scales import short_run, shrink
from semigpc.refiners import PlacementConfig
from semigpc.text import unknown_name
from semigpc.training import Experiment, SettingError
from semigpc.training.experiment import config_type

BASES = ("fixmatch", "freematch", "simmatch", "remixmatch")
REFINERS = ("none", "gp")
GENERATIONS = 3  # of CReST, instead of 6
EPOCHS = 6  # in a run; SAW counts and class-balanced draws change between them
CONFIDENT = 0.8  # a confidence that a network reaches in some hundred steps
MOMENTUM = 0.99  # of averages that follow within as many


@dataclass(frozen=True)
class FieldProblem:
    """Data, the settings they are met in, and how long a run is.

    Args:
        title: for tables. setting: A, labels as long-tailed as U; B, four labels of each class and U long-tailed.
        steps: of a run. lr, unlabeled_ratio: of it.
        make: the experiment in full, from (root, algorithm, refiner, seed).
        cached: whether it is on features of a frozen network, which come from ``root``.
    """

    title: str
    setting: Literal["A", "B"]
    steps: int
    lr: float
    unlabeled_ratio: int
    make: Callable[[Path, str, str, int], Experiment]
    cached: bool


def _cifar(setting: Literal["A", "B"]) -> FieldProblem:
    def make(root: Path, algorithm: str, refiner: str, seed: int) -> Experiment:
        full = cifar10_lt(root=root, setting=setting, imbalance_ratio=100, algorithm=algorithm, refiner=refiner, seed=seed)
        return shrink(full, "cached")

    return FieldProblem(f"CIFAR-10-LT features, setting {setting}, ratio 100", setting, 250, 1e-3, 2, make, cached=True)


def _digits(setting: Literal["A", "B"]) -> FieldProblem:
    recipe, ratio = (digits, 30) if setting == "A" else (digits_balanced, 50)

    def make(_: Path, algorithm: str, refiner: str, seed: int) -> Experiment:
        return recipe(imbalance_ratio=ratio, algorithm=algorithm, refiner=refiner, seed=seed)

    return FieldProblem(f"digits, setting {setting}, ratio {ratio}", setting, 240, 4e-3, 1, make, cached=False)


PROBLEMS = {"cifar10_a": _cifar("A"), "cifar10_b": _cifar("B"), "digits_a": _digits("A"), "digits_b": _digits("B")}


def field_experiment(
    problem: str, base: str, addon: str, refiner: str, *, root: Path = Path(), seed: int = 0, steps: int | None = None
) -> Experiment:
    """One cell of ``semigpc bench field``; a few seconds on one CPU core.

    Runs are judged once, at the end. What the papers count in steps is scaled to the run: averages have a momentum of 0.99, a
    tenth of the run passes before a refiner speaks. CReST has 3 generations, each as long as a run of the others.

    Args:
        problem: out of ``PROBLEMS``. base: algorithm. addon, refiner: on top of it, "none" for neither.
        root: of the images, where the problem is made of them. seed: of split and run. steps: instead of the problem's.

    Raises:
        SettingError: an unknown name, or parts that do not go together.
    """
    if problem not in PROBLEMS:
        raise SettingError(unknown_name("problem", problem, PROBLEMS))
    chosen = PROBLEMS[problem]
    options = short_addon(config_type("addon", addon)(), chosen.setting)
    length = steps or chosen.steps
    full = chosen.make(root, base, refiner, seed)
    total = length * options.generations
    train = replace(
        full.train,
        steps=total,
        epoch_steps=max(1, length // EPOCHS),
        unlabeled_ratio=1 if base == "remixmatch" else chosen.unlabeled_ratio,
        lr=chosen.lr,
        ema=0.98,
        warmup_steps=min(20, length // 10),
        eval_steps=total,
        checkpoint_steps=total,
        log_steps=length,
        eval_batch=1024,
    )
    heard = replace(full.refiner, warmup_steps=length // 10) if isinstance(full.refiner, PlacementConfig) else full.refiner
    return replace(full, algorithm=short_run(full.algorithm), addon=options, refiner=heard, train=train)


def short_addon(addon: AddOnConfig, setting: Literal["A", "B"]) -> AddOnConfig:
    """An add-on's options in a run of some hundred steps, and those that its paper has for labels unlike U (setting B)."""
    changes: dict[type[AddOnConfig], dict[str, Any]] = {
        ABCConfig: {"threshold": CONFIDENT},
        DebiasPLConfig: {"share_momentum": MOMENTUM},
        CoSSLConfig: {"head_momentum": MOMENTUM, "start_steps": 500},  # both a tenth of what it takes to forget a start
        CReSTConfig: {"generations": GENERATIONS},
        CReSTPlusConfig: {"generations": GENERATIONS, "momentum": MOMENTUM},
        DARPConfig: {"momentum": MOMENTUM, "counts": "labeled" if setting == "A" else "estimated"},
        DASOConfig: {"every": 20, "distribution_temperature": 1.5 if setting == "A" else 0.3},
    }
    return replace(addon, **changes.get(type(addon), {}))
