"""The paper's tables by name."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from semigpc.data.published_counts import BENCHMARKS
from semigpc.recipes.algorithm_ablation import ALGORITHMS as BASES
from semigpc.recipes.algorithm_ablation import algorithm_ablation
from semigpc.recipes.balanced_cifar import LABELS, balanced_cifar
from semigpc.recipes.cifar10_lt import RATIOS as RATIOS10
from semigpc.recipes.cifar10_lt import cifar10_lt
from semigpc.recipes.cifar100_lt import RATIOS as RATIOS100
from semigpc.recipes.cifar100_lt import cifar100_lt
from semigpc.recipes.fgvc import SETS, fgvc
from semigpc.recipes.paper_table import Group, PaperTable
from semigpc.recipes.pretraining_ablation import PRETRAININGS, pretraining_ablation
from semigpc.recipes.verdicts import ENOUGH_SEEDS
from semigpc.text import unknown_name
from semigpc.training import Experiment, SettingError


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
    "cifar10_lt": _long_tailed("cifar10_lt", cifar10_lt, "cifar10", RATIOS10, seeds=5),  # deviations of up to 8.9 in print
    "cifar100_lt": _long_tailed("cifar100_lt", cifar100_lt, "cifar100", RATIOS100, seeds=ENOUGH_SEEDS),
    "fgvc": PaperTable(
        name="fgvc",
        title="Fine-grained benchmarks",
        groups={name: Group(title=BENCHMARKS[name].title, suite=name, make=partial(fgvc, benchmark=name)) for name in SETS},
    ),
    "balanced_cifar": PaperTable(
        name="balanced_cifar",
        title="Balanced CIFAR",
        groups={
            f"cifar{n}/{labels}": Group(
                title=f"CIFAR-{n}, {labels} labels", suite=f"cifar{n}", make=partial(balanced_cifar, n_classes=n, labels=labels)
            )
            for n, counts in LABELS.items()
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
