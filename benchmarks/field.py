"""What does the field put on top of an algorithm against imbalance, and what does SemiGPC add to each?

Algorithm x add-on x refiner on four long-tailed problems, in runs of seconds each. Figures at this scale compare methods with
each other under one short budget; they say nothing of published ones. Everything is counted twice: as runs are judged, which
on cached features is by the GP itself where there is one, and by the network's own answer.
"""

import json
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that the script can be started as a file too

from benchmarks.peers import GRAPH_BASELINES, Rows
from benchmarks.ranks import SEMIGPC, draw_mean_ranks, field_notes, paired, problem_table, rank, rank_table
from benchmarks.step import load_batches, make_trainer
from benchmarks.tables import WIDTH, Json, Plot, check_folders, script
from benchmarks.timing import time_in_turns
from semigpc.addons import (
    ADDONS,
    ABCConfig,
    AddOnConfig,
    CoSSLConfig,
    CReSTConfig,
    CReSTPlusConfig,
    DARPConfig,
    DASOConfig,
    DebiasPLConfig,
)
from semigpc.algorithms import ALGORITHMS
from semigpc.cli.live import ComparisonProgress
from semigpc.data import Augment, EvaluationLoader, ImageSet, Splits, ViewSource
from semigpc.files import write_json
from semigpc.recipes.digits import digits, digits_balanced
from semigpc.recipes.paper import cifar10_lt
from semigpc.recipes.scales import short_run, shrink
from semigpc.refiners import REFINERS as KNOWN_REFINERS
from semigpc.refiners import PlacementConfig
from semigpc.text import unknown_name
from semigpc.threads import using
from semigpc.training import Experiment, Listener, SettingError
from semigpc.training.comparison import Cell, ComparisonListener, compare, finished_run, run_path
from semigpc.training.evaluate import survey
from semigpc.training.experiment import config_type
from semigpc.training.loop import take_step
from semigpc.training.metrics import classification_metrics
from semigpc.training.run_data import DataCache, RunData, load_splits
from semigpc.training.run_folder import RunFolder, read_json, split_facts
from semigpc.training.state import Trainer
from semigpc.types import Batch, Clock

BASES = ("fixmatch", "freematch", "simmatch", "remixmatch")
REFINERS = ("none", "gp")
BESIDE = (("supervised", "none"), ("npmatch", "none"), ("npmatch", "gp"))  # rows without add-ons, out of the ranking
PLAIN = "no add-on"
GENERATIONS = 3  # of CReST, instead of 6
EPOCHS = 6  # in a run; SAW counts and class-balanced draws change between them
CONFIDENT = 0.8  # a confidence that a network reaches in some hundred steps
MOMENTUM = 0.99  # of averages that follow within as many
DECIDED = ("n", "top1", "balanced_accuracy", "macro_f1", "groups", "per_class_recall", "per_class_precision", "confusion")
TIMED = "digits_a"  # the problem on which steps are timed, as it needs no files
WINDOW = 10  # steps timed at a time: DARP refines its labels once in them
LATE = 0.9  # of training is over when steps are timed, so that everything that an add-on does is on
SETTLING = 20  # steps before the clock starts, in which buffers fill

Record = dict[str, Any]
Names = list[str] | None


# The runs -------------------------------------------------------------------------------------------------------------


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
    """Return the experiment of one cell; it takes a few seconds on one CPU core.

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
    refiner_config = (
        replace(full.refiner, warmup_steps=length // 10) if isinstance(full.refiner, PlacementConfig) else full.refiner
    )
    return replace(full, algorithm=short_run(full.algorithm), addon=options, refiner=refiner_config, train=train)


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


@dataclass(frozen=True, kw_only=True)
class Field:
    """What is compared.

    Args:
        problems, bases, addons, refiners: by name. root: of the images, where a problem needs them.
        seeds: of each run, from 0. steps: of a run, instead of the problem's.
    """

    problems: tuple[str, ...] = tuple(PROBLEMS)
    bases: tuple[str, ...] = BASES
    addons: tuple[str, ...] = tuple(ADDONS)
    refiners: tuple[str, ...] = REFINERS
    root: Path = Path()
    seeds: int = 3
    steps: int | None = None

    def cells(self, problem: str) -> tuple[list[Cell], list[Record]]:
        """The cells of a problem, and combinations that are refused, with the reason."""
        chosen = [(base, "none", refiner) for base, refiner in BESIDE if base not in self.bases]
        chosen += [(base, addon, refiner) for base in self.bases for addon in self.addons for refiner in self.refiners]
        found, refused = [], []
        for base, addon, refiner in chosen:
            try:
                experiment = field_experiment(problem, base, addon, refiner, root=self.root, steps=self.steps)
            except SettingError as error:
                refused.append({"base": base, "addon": addon, "refiner": refiner, "reason": str(error)})
            else:
                found.append(Cell(experiment, f"{ALGORITHMS[base].label}, {method_name(addon, refiner)}"))
        if len(refused) == len(self.bases) * len(self.addons) * len(self.refiners):
            raise SettingError(f"nothing of this can be run on {problem}: {refused[0]['reason']}")
        return found, refused

    def graphs(self, problem: str) -> tuple[str, ...]:
        """The graph baselines of a problem; on images there are none."""
        return tuple(GRAPH_BASELINES) if PROBLEMS[problem].cached else ()

    def methods(self) -> list[str]:
        """Add-on with refiner, in order: those that some base takes."""
        made = [cell.experiment for problem in self.problems for cell in self.cells(problem)[0]]
        taken = {(one.addon_name, one.refiner_name) for one in made if one.algorithm_name in self.bases}
        return [method_name(a, r) for a in self.addons for r in self.refiners if (a, r) in taken]

    def runs(self) -> int:
        """How many runs there are in all."""
        return self.seeds * sum(len(self.cells(problem)[0]) + len(self.graphs(problem)) for problem in self.problems)


def method_name(addon: str, refiner: str) -> str:
    """As in "DARP + SemiGPC"; an algorithm alone is "no add-on"."""
    parts = [ADDONS[addon].label] if addon != "none" else []
    parts += [SEMIGPC if refiner == "gp" else refiner] if refiner != "none" else []
    return " + ".join(parts) or PLAIN


# Running -----------------------------------------------------------------------------------------------------------


def run_field(
    field: Field,
    out: Path,
    *,
    command: str,
    jobs: int,
    listener: ComparisonListener,
    advance: Callable[[str], None] = lambda _: None,
) -> None:
    """Run every problem into ``out/PROBLEM``; finished runs are kept and cut-off ones go on. Weights are not kept.

    Args:
        field: what to run. out: folder. command: for whoever reads the result. jobs: runs at a time. listener: of runs.
        advance: told about every graph baseline that is there.
    """
    for problem in field.problems:
        cells, _ = field.cells(problem)
        folder, title = out / problem, PROBLEMS[problem].title
        weightless = _Weightless(listener, folder)
        compare(cells, range(field.seeds), folder, title=title, command=command, jobs=jobs, listener=weightless)
        data_cache = DataCache()
        for seed in range(field.seeds):
            for name in field.graphs(problem):
                if _graph_summary(folder, name, seed) is None:
                    experiment = replace(cells[0].experiment, seed=seed)
                    run_data = data_cache.run_data(experiment)
                    _judge_graph(name, run_data, folder, seed)
                advance(f"{problem}: {GRAPH_BASELINES[name].label}")


class _Weightless(ComparisonListener):
    """Passes everything on, and deletes the checkpoints of finished runs: a table needs none of a thousand networks."""

    def __init__(self, listener: ComparisonListener, folder: Path) -> None:
        self.listener, self.folder = listener, folder

    def features(self, done: int, total: int) -> None:
        self.listener.features(done, total)

    def run(self, cell: Cell, seed: int) -> Listener:
        return self.listener.run(cell, seed)

    def done(self, cell: Cell, seed: int, summary: Mapping[str, Any], *, kept: bool) -> None:
        shutil.rmtree(RunFolder(run_path(self.folder, cell, seed)).last.parent, ignore_errors=True)
        self.listener.done(cell, seed, summary, kept=kept)


def _graph_path(folder: Path, name: str, seed: int) -> Path:
    return folder / "graphs" / name / f"seed{seed}.json"


def _graph_summary(folder: Path, name: str, seed: int) -> Record | None:
    path = _graph_path(folder, name, seed)
    return read_json(path, "it was never made", dict[str, Any]) if path.exists() else None


def _judge_graph(name: str, run_data: RunData, folder: Path, seed: int) -> None:
    """Fit on labelled and unlabelled features, judge on those of the test set, and write a summary as a run does."""
    splits, source = run_data
    assert splits.test is not None
    began = time.perf_counter()
    labeled, unlabeled = features_of(splits.labeled, source), features_of(splits.unlabeled, source)
    predict = GRAPH_BASELINES[name].fit(labeled, splits.labeled.labels, unlabeled, splits.n_classes)
    answers = np.eye(splits.n_classes)[predict(features_of(splits.test, source))]
    figures = classification_metrics(answers, splits.test.labels, split_facts(splits)["class_groups"] or {})
    result = {key: figures[key] for key in DECIDED}  # the rest would be of probabilities, which these do not have
    path = _graph_path(folder, name, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {"status": "finished", "seconds": time.perf_counter() - began, "results": {"last": result}})


def features_of(images: ImageSet, source: ViewSource) -> Rows:
    """(n, D) plain features."""
    return np.asarray(source.normalise(source.plain(images, np.arange(len(images)))))


# Reading ------------------------------------------------------------------------------------------------------------


def rows_of(field: Field, problem: str, out: Path) -> list[Record]:
    """A row for each cell and graph baseline of which some seed is finished."""
    cells, _ = field.cells(problem)
    rows = []
    for cell in cells:
        found = {seed: finished_run(out / problem, cell, seed) for seed in range(field.seeds)}
        row = _row(_names(cell.experiment), found)
        rows.append(row | _by_network(row, [run_path(out / problem, cell, seed) for seed in row["seeds"]]))
    for name in field.graphs(problem):
        found = {seed: _graph_summary(out / problem, name, seed) for seed in range(field.seeds)}
        rows.append(_row({"base": name, "label": GRAPH_BASELINES[name].label, "method": None}, found))
    return [row for row in rows if row["seeds"]]


def _names(experiment: Experiment) -> Record:
    base, addon, refiner = experiment.algorithm_name, experiment.addon_name, experiment.refiner_name
    label = ALGORITHMS[base].label
    return {"base": base, "addon": addon, "refiner": refiner, "label": label, "method": method_name(addon, refiner)}


def _row(names: Record, summaries: Mapping[int, Record | None]) -> Record:
    done = {seed: summary for seed, summary in summaries.items() if summary is not None}
    results = [summary["results"]["last"] for summary in done.values()]
    values = [result["balanced_accuracy"] for result in results]
    groups = results[0]["groups"] if results else ()
    return names | {
        "head": results[0].get("head") if results else None,
        "seeds": list(done),
        "balanced_accuracy": values,
        "mean": float(np.mean(values)) if values else None,
        "std": float(np.std(values)) if values else None,
        "groups": {group: float(np.mean([result["groups"][group] for result in results])) for group in groups},
        "seconds": float(np.mean([summary["seconds"] for summary in done.values()])) if done else None,
    }


def _by_network(row: Record, runs: list[Path]) -> Record:
    """Mean balanced accuracy by the network's own answer, which differs where a run is judged by its GP."""
    if row["head"] != "gp":
        return {"by_network": row["mean"]}
    found = []
    for run in runs:
        lines = (json.loads(line) for line in RunFolder(run).metrics.read_text().splitlines())
        found += [line["balanced_accuracy"] for line in lines if (line.get("part"), line.get("head")) == ("test", "linear")]
    return {"by_network": float(np.mean(found))}


def refusals(field: Field) -> list[Record]:
    """Combinations that were left out, each with the problems that refuse it."""
    found: dict[tuple[str, ...], Record] = {}
    for problem in field.problems:
        for one in field.cells(problem)[1]:
            found.setdefault(tuple(one.values()), one | {"problems": []})["problems"].append(problem)
    return list(found.values())


def summarise(field: Field, out: Path) -> Record:
    """Everything but step times, from the runs that are finished."""
    problems: dict[str, Record] = {
        name: {"title": PROBLEMS[name].title, "rows": rows_of(field, name, out), "of_seeds": field.seeds}
        for name in field.problems
    }
    ranking, by_network = (rank(scores(problems, field, key), field.methods()) for key in ("mean", "by_network"))
    return {
        "seeds": field.seeds,
        "bases": list(field.bases),
        "problems": problems,
        "unfinished": field.runs() - sum(len(row["seeds"]) for one in problems.values() for row in one["rows"]),
        "refused": refusals(field),
        "ranks": ranking.plain(),
        "with_gp": gains(problems, field.bases, "mean"),
        "by_network": {"ranks": by_network.plain(), "with_gp": gains(problems, field.bases, "by_network")},
    }


def scores(problems: Mapping[str, Record], field: Field, key: str) -> dict[str, dict[str, float]]:
    """Block -> method -> mean balanced accuracy; a block is a problem with a base, and counts rows with all seeds."""
    found: dict[str, dict[str, float]] = {}
    for name, problem in problems.items():
        for base in field.bases:
            found[f"{name}, {base}"] = {
                row["method"]: row[key] for row in problem["rows"] if row["base"] == base and len(row["seeds"]) == field.seeds
            }
    return found


def gains(problems: Mapping[str, Record], bases: Sequence[str], key: str) -> Record:
    """With SemiGPC minus without, of the same problem, base, add-on and seeds: in all, and by each of the first three."""
    found: list[Record] = []
    for name, problem in problems.items():
        rows = {(row["base"], row["addon"], row["refiner"]): row for row in problem["rows"] if row["base"] in bases}
        for (base, addon, refiner), row in rows.items():
            without = rows.get((base, addon, "none"))
            if refiner == "gp" and without is not None and row["seeds"] == without["seeds"]:
                gain = row[key] - without[key]
                found.append({"problem": name, "base": base, "addon": addon, "gain": gain})
    return {"all": _gain(found)} | {f"by_{part}": _by(found, part) for part in ("problem", "base", "addon")}


def _by(found: Sequence[Record], part: str) -> dict[str, Record]:
    return {name: _gain([one for one in found if one[part] == name]) for name in dict.fromkeys(one[part] for one in found)}


def _gain(found: Sequence[Record]) -> Record:
    return paired([one["gain"] for one in found])


# Step times -----------------------------------------------------------------------------------------------------------


def addon_steps(
    bases: Sequence[str], addons: Sequence[str], *, repetitions: int = 10, advance: Callable[[str], None] = lambda _: None
) -> dict[str, dict[str, dict[str, float]]]:
    """base -> add-on -> seconds of a step, and their ratio to the base without one.

    The fastest of ``repetitions`` windows of ten steps, late in a run on the small network of digits, batches at hand; what an
    add-on does once in a run or between generations is in the seconds of a run alone. On a larger network ratios are
    nearer to 1. Add-ons that a base refuses are left out.
    """
    found: dict[str, dict[str, dict[str, float]]] = {}
    for base in bases:
        steps: dict[str, Callable[[], Any]] = {}
        for addon in dict.fromkeys(("none", *addons)):
            try:
                experiment = field_experiment(TIMED, base, addon, "none")
            except SettingError:
                continue
            steps[addon] = _window(experiment)
        seconds = {addon: min(times) for addon, times in time_in_turns(steps, repetitions=repetitions).items()}
        found[base] = {addon: {"step_s": value / WINDOW, "ratio": value / seconds["none"]} for addon, value in seconds.items()}
        advance(f"step times of {base}")
    return found


def _window(experiment: Experiment) -> Callable[[], None]:
    """Ten steps, late in a generation."""
    splits = load_splits(experiment)
    trainer = make_trainer(experiment, splits)
    length = experiment.train.steps // experiment.addon.generations
    first = int(LATE * length) // WINDOW * WINDOW
    batches = list(islice(load_batches(experiment, splits, trainer, first=first, count=WINDOW), WINDOW))
    for step in range(SETTLING):
        _step(trainer, batches[step % WINDOW], first - SETTLING + step, length, experiment, splits)

    def window() -> None:
        with using(1):
            for number, batch in enumerate(batches):
                _step(trainer, batch, first + number, length, experiment, splits)

    return window


def _step(trainer: Trainer, batch: Batch, step: int, length: int, experiment: Experiment, splits: Splits) -> None:
    """As the loop takes it."""
    config = experiment.train
    clock = Clock(step, length, config.epoch_steps)
    if trainer.addon.surveys(clock):
        sets, source = (splits.labeled, splits.unlabeled), Augment(experiment.augment)
        loader = EvaluationLoader(sets, source, batch_size=config.eval_batch, workers=0, device=trainer.fabric.device)
        trainer.addon.survey(survey(trainer.evaluated, splits, loader))
    take_step(trainer, trainer.fabric.to_device(batch), clock, config)


def field(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of runs; what it holds is not run again.")],
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="CIFAR-10, a folder or a .zip; without it digits alone.")
    ] = None,
    problem: Annotated[Names, typer.Option(metavar="NAME", help="cifar10_a, cifar10_b, digits_a, digits_b; repeat.")] = None,
    base: Annotated[Names, typer.Option(metavar="NAME", help="Algorithm; repeat for several.")] = None,
    addon: Annotated[
        Names, typer.Option(metavar="NAME", help="Or none; repeat. All of semigpc list addons without it.")
    ] = None,
    refiner: Annotated[
        Names, typer.Option(metavar="NAME", help="none, gp or similarity; repeat. The first two without it.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Splits of each problem.", metavar="N", min=1)] = 3,
    steps: Annotated[int | None, typer.Option(help="Of a run, for a trial.", metavar="N", min=10)] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time.", metavar="N", min=1)] = 1,
    only_summary: Annotated[bool, typer.Option("--only-summary", help="Run nothing more; show what is finished.")] = False,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Compare add-ons against imbalance, on several algorithms, with and without SemiGPC.

    Every algorithm with every add-on and refiner, in short runs on the same
    splits and seeds: long-tailed labels (setting A) or four of each class (B),
    of CIFAR-10 as features of a frozen network and of digits as images.
    Labels only, NP-Match and, on features, label propagation stand beside
    them. Then mean ranks, and each method with SemiGPC against without.

    What was stopped goes on where it was: give the command again. The figures
    of all runs are in field.json in the output folder.

      python benchmarks/field.py --root cifar10.zip --out field --jobs 2
    """
    check_folders(plot=plot)
    chosen = _chosen(root, problem, base, addon, refiner, seeds, steps)
    command = shlex.join(["python", "benchmarks/field.py", *sys.argv[1:]])
    total, result = chosen.runs(), out / "field.json"
    if not only_summary:
        with ComparisonProgress(total, f"{total} runs") as progress:
            run_field(chosen, out, command=command, jobs=jobs, listener=progress, advance=progress.advance)
    summary: Record = {"command": command} | summarise(chosen, out)
    step_times = json.loads(result.read_text()).get("step_times", {}) if result.exists() else {}
    missing = [name for name in chosen.bases if not set(chosen.addons) <= set(step_times.get(name, ()))]
    if missing and not only_summary:
        with Console(stderr=True).status("step times"):
            step_times |= addon_steps(missing, chosen.addons)
    summary["step_times"] = step_times
    out.mkdir(parents=True, exist_ok=True)
    write_json(result, summary)
    if plot is not None and summary["ranks"]["mean_ranks"]:
        draw_mean_ranks(summary["ranks"], plot, marked=SEMIGPC, title="Add-ons against imbalance, with and without SemiGPC")
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    console = Console(width=None if Console().is_terminal else WIDTH)
    for one in summary["problems"].values():
        console.print(problem_table(one, summary["bases"]))
    if summary["ranks"]["mean_ranks"]:
        console.print(rank_table(summary))
    for line in field_notes(summary):
        typer.echo(line)
    typer.echo(f"figures: {result}")


def _chosen(
    root: Path | None, problem: Names, base: Names, addon: Names, refiner: Names, seeds: int, steps: int | None
) -> Field:
    """Return what is to be compared, with every name checked before anything is run."""
    at_hand = [name for name, one in PROBLEMS.items() if root is not None or not one.cached]
    asked: dict[str, tuple[Iterable[str], Mapping[str, Any]]] = {
        "problem": (problem or at_hand, PROBLEMS),
        "algorithm": (base or BASES, ALGORITHMS),
        "addon": (addon or ADDONS, ADDONS),
        "refiner": (refiner or REFINERS, KNOWN_REFINERS),
    }
    for kind, (names, known) in asked.items():
        for name in names:
            if name not in known:
                raise SettingError(unknown_name(kind, name, known))
    problems, bases, addons, refiners = (tuple(dict.fromkeys(names)) for names, _ in asked.values())
    needy = [name for name in problems if name not in at_hand]
    if needy:
        raise SettingError(f"{needy[0]} is made of images: say where CIFAR-10 is by --root, a folder or a .zip.")
    return Field(
        problems=problems, bases=bases, addons=addons, refiners=refiners, root=root or Path(), seeds=seeds, steps=steps
    )


app = script(field)
if __name__ == "__main__":
    app()
