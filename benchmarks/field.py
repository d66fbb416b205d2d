"""What does SemiGPC add to the algorithms and add-ons of the field, on long-tailed problems in runs of seconds each?

23 methods on 12 problems: digits and MNIST from scratch, CIFAR-10 as features of a frozen network; long-tailed labels (setting
A) or equally many of each class (B). Figures at this scale compare methods with each other under one short budget; they say
nothing of published ones.
"""

import hashlib
import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import joblib
import typer
from rich.console import Console
from rich.progress import Progress

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that the script can be started as a file too

from benchmarks.ranks import draw_study, rank, sign_test
from benchmarks.tables import WIDTH, Jobs, Json, Plot, check_folders, new_table, script
from semigpc.addons import ADDONS, AddOnConfig, CoSSLConfig, DebiasPLConfig
from semigpc.algorithms import ALGORITHMS
from semigpc.data import CifarConfig, DigitsConfig, SplitConfig
from semigpc.files import read_json, write_json
from semigpc.recipes.digits import digits, mnist
from semigpc.recipes.paper import cifar10_lt
from semigpc.recipes.scales import short_run, shrink
from semigpc.refiners import PlacementConfig
from semigpc.text import CLASS_GROUPS, unknown_name
from semigpc.training import Experiment, SettingError, train
from semigpc.training.experiment import config_type
from semigpc.training.run_data import DataCache
from semigpc.training.run_folder import RunFolder

BASES = ("fixmatch", "freematch", "simmatch", "remixmatch")
LABELS_ONLY = "supervised"
SEEDS = (0, 1, 2, 3, 4)
TUNING = 100  # seeds from here on are judged on validation images: settings may be chosen by them
# The fixed values of the paper's recipe, for ten classes: l^2 = sigma^2 = 0.1, and the lambda of 1 - 1/C.
FIXED: Mapping[str, Any] = {
    "length_scale": 0.1**0.5,
    "noise_std": 0.1**0.5,
    "logit_scale": 6.43,
    "class_prior": "none",
    "balanced": False,
}
# Fixed pairs of l^2 and lambda, beside which the self-tuned GP is put by --grid.
GRID: Mapping[str, tuple[float, float]] = {
    f"gp_{square:g}_{scale:g}": (square, scale) for square in (0.03, 0.1, 0.3, 1.0) for scale in (5.0, 11.0, 25.0, 60.0)
}
EPOCHS = 6  # in a run; SAW counts and class-balanced draws change between them
WINDOWS = 20  # of a run, in which accepted pseudo-labels are counted
LATE = 0.75  # of a run has passed when its accepted pseudo-labels are counted for the tables
MOMENTUM = 0.99  # of averages that follow within some hundred steps
POINT = 0.01  # of balanced accuracy
_CACHE = DataCache()  # of a worker process

Record = dict[str, Any]
Run = tuple[str, str, int]  # problem, method, seed
Names = list[str] | None
Data = Literal["digits", "mnist", "cifar10"]
Score = Callable[[Record], float]
STEPS: Mapping[Data, int] = {"digits": 600, "mnist": 500, "cifar10": 250}
TITLES: Mapping[Data, str] = {"digits": "digits", "mnist": "MNIST", "cifar10": "CIFAR-10 features"}


# The runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyProblem:
    """Data in setting A, with an imbalance ratio, or B, with so many labels of each class."""

    data: Data
    setting: Literal["A", "B"]
    ratio: int = 50
    labels: int = 4

    @property
    def title(self) -> str:
        """Return the name in tables."""
        rest = f"A, ratio {self.ratio}" if self.setting == "A" else f"B, {self.labels} labels"
        return f"{TITLES[self.data]}, {rest}"


@dataclass(frozen=True)
class Method:
    """An algorithm, with an add-on and a refiner.

    "gp" is the recipe's, "gp_fixed" the GP with the paper's fixed values, and "gp_0.1_11" one with l^2 = 0.1 and lambda = 11.
    """

    base: str
    addon: str = "none"
    refiner: str = "none"

    @property
    def without(self) -> str:
        """Return the name of the method without its refiner."""
        return "+".join(part for part in (self.base, self.addon) if part != "none")

    @property
    def name(self) -> str:
        """Return the name, as in "fixmatch+cossl+gp"."""
        return self.without + (f"+{self.refiner}" if self.refiner != "none" else "")

    @property
    def label(self) -> str:
        """Return the name in tables, as in "FixMatch + CoSSL + SemiGPC"."""
        refiner = {"none": "", "gp": "SemiGPC", "gp_fixed": "SemiGPC, fixed"}.get(self.refiner, self.refiner)
        addon = "" if self.addon == "none" else ADDONS[self.addon].label
        return " + ".join(part for part in (ALGORITHMS[self.base].label, addon, refiner) if part)


PROBLEMS: dict[str, StudyProblem] = {
    f"{data}_{problem.setting.lower()}{problem.ratio if problem.setting == 'A' else problem.labels}": problem
    for data in STEPS
    for problem in (
        StudyProblem(data, "A", ratio=50),
        StudyProblem(data, "A", ratio=100),
        StudyProblem(data, "B", labels=4),
        StudyProblem(data, "B", labels=10),
    )
}
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(LABELS_ONLY),
        *(Method(base, "none", refiner) for base in BASES for refiner in ("none", "similarity", "gp_fixed", "gp")),
        *(Method("fixmatch", addon, refiner) for addon in ("cossl", "debiaspl", "saw") for refiner in ("none", "gp")),
        *(Method("fixmatch", "none", refiner) for refiner in GRID),
    )
}


def study_experiment(
    problem: str, method: str, *, roots: Mapping[str, Path], seed: int = 0, steps: int | None = None
) -> Experiment:
    """Return the experiment of one run.

    It is evaluated halfway and at the end. What the papers count in steps is scaled to the run: averages have a momentum of
    0.99, a fifth of the run passes before a refiner acts. Runs with a seed of 100 or more have validation images.

    Args:
        problem, method: by name. roots: of "mnist" and "cifar10". seed: of split and run. steps: instead of the problem's.
    """
    one, chosen = PROBLEMS[problem], METHODS[method]
    length = steps or STEPS[one.data]
    names = {"algorithm": chosen.base, "refiner": chosen.refiner.split("_")[0], "seed": seed}
    full = _full(one, roots.get(one.data, Path()), names, validated=seed >= TUNING)
    refiner, algorithm = full.refiner, short_run(full.algorithm)
    if hasattr(algorithm, "threshold"):
        algorithm = replace(algorithm, threshold=full.algorithm.threshold)
    if chosen.refiner == "gp_fixed":
        refiner = replace(refiner, **FIXED)
    if chosen.refiner in GRID:
        square, scale = GRID[chosen.refiner]
        refiner = replace(refiner, length_scale=square**0.5, logit_scale=scale)
    if isinstance(refiner, PlacementConfig):
        refiner = replace(refiner, warmup_steps=length // 5)
    return replace(
        full,
        algorithm=algorithm,
        addon=short_addon(config_type("addon", chosen.addon)()),
        refiner=refiner,
        train=replace(
            full.train,
            steps=length,
            epoch_steps=max(1, length // EPOCHS),
            ema=0.98,
            warmup_steps=min(20, length // 10),
            eval_steps=length // 2,
            checkpoint_steps=length,
            log_steps=max(1, length // WINDOWS),
            eval_batch=1024,
        ),
    )


def _full(problem: StudyProblem, root: Path, names: Record, *, validated: bool) -> Experiment:
    """Return the recipe of a problem, with validation images where they are needed."""
    if problem.data == "digits":
        head, ratio = (36, problem.ratio) if problem.setting == "A" else (problem.labels, 1.0)
        overlap: Literal["nested", "disjoint"] = "nested" if problem.setting == "A" else "disjoint"
        split = SplitConfig(
            labeled_head=head, labeled_ratio=ratio, unlabeled_head=120, unlabeled_ratio=problem.ratio, overlap=overlap
        )
        parts = {"test_per_class": 0, "validation_per_class": 40} if validated else {"validation_per_class": 0}
        return replace(digits(**names), data=DigitsConfig(split=split, **parts))
    cut: Record = {"setting": problem.setting, "imbalance_ratio": problem.ratio, "labels_per_class": problem.labels}
    full = mnist(root=root, **cut, **names) if problem.data == "mnist" else cifar10_lt(root=root, **cut, **names)
    if validated:
        full = replace(full, data=replace(full.data, validation_per_class=200))
    return shrink(full, "cached") if isinstance(full.data, CifarConfig) else full


def short_addon(addon: AddOnConfig) -> AddOnConfig:
    """Return an add-on with the options of a run of some hundred steps."""
    if isinstance(addon, DebiasPLConfig):
        return replace(addon, share_momentum=MOMENTUM)
    if isinstance(addon, CoSSLConfig):
        return replace(addon, head_momentum=MOMENTUM, start_steps=500)  # both a tenth of what it takes to forget a start
    return addon


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is run, and where: ``out`` has study.json, ``roots`` the data; ``steps`` replaces the problems' own."""

    problems: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    out: Path
    roots: Mapping[str, Path]
    steps: int | None = None

    def runs(self) -> list[Run]:
        """Return problem, method and seed of every run, the seeds outermost: a study that is stopped has whole seeds."""
        return [(problem, method, seed) for seed in self.seeds for problem in self.problems for method in self.methods]

    def experiment(self, problem: str, method: str, seed: int) -> Experiment:
        """Return the experiment of one run."""
        return study_experiment(problem, method, roots=self.roots, seed=seed, steps=self.steps)

    @property
    def result(self) -> Path:
        """The file with the figures of all runs."""
        return self.out / "study.json"

    def finished(self) -> list[Record]:
        """Return the records of study.json that were made with the settings of these runs, in their order."""
        known = self._known()
        there = [(run, known[run]) for run in self.runs() if run in known]
        return [record for run, record in there if record["settings"] == settings_digest(self.experiment(*run))]

    def write(self, records: Sequence[Record], command: str) -> None:
        """Write study.json: the summary of these records, and them beside those of other runs that it holds."""
        together = self._known() | {_run_of(record): record for record in records}
        write_json(self.result, {"command": command, "summary": summarise(records), "records": list(together.values())})

    def _known(self) -> dict[Run, Record]:
        if not self.result.exists():
            return {}
        remedy = "Delete that file to run everything again."
        records = read_json(self.result, dict[str, Any], error=SettingError, remedy=remedy).get("records", [])
        return {_run_of(record): record for record in records}

    def run(self, problem: str, method: str, seed: int) -> Record:
        """Train in a folder that is deleted afterwards, and return the figures."""
        experiment = self.experiment(problem, method, seed)
        with TemporaryDirectory(prefix=".run-", dir=self.out) as folder:
            train(experiment, Path(folder) / "run", cache=_CACHE)
            measured = figures(Path(folder) / "run")
        names = {"problem": problem, "method": method, "seed": seed, "settings": settings_digest(experiment)}
        return names | measured


def _run_of(record: Record) -> Run:
    return record["problem"], record["method"], record["seed"]


def settings_digest(experiment: Experiment) -> str:
    """Return twelve digits of a hash of all settings but the place of the data, which differs between machines."""
    plain = experiment.to_plain()
    plain["data"].pop("root", None)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def figures(path: Path) -> Record:
    """Return what a study keeps of a run: by each head on test images, or else on validation images; of accepted labels."""
    folder = RunFolder(path)
    entries = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    experiment, summary = folder.experiment(), folder.read_summary()
    headline: Any = (summary["results"] or {})["last"]
    evaluations = [entry for entry in entries if entry["kind"] == "eval"]
    part = "validation" if experiment.seed >= TUNING else "test"
    halfway, last = (
        {entry["head"]: entry for entry in evaluations if (entry["part"], entry["step"]) == (part, step)}
        for step in (evaluations[0]["step"], evaluations[-1]["step"])
    )
    kept: Record = {
        "heads": {
            head: {"balanced_accuracy": entry["balanced_accuracy"], "ece": entry["ece"], **entry["groups"]}
            for head, entry in last.items()
        },
        "halfway": {head: entry["balanced_accuracy"] for head, entry in halfway.items()},
        "chosen_head": headline["head"],
        "ece": headline["ece"],
        "seconds": summary["seconds"],
    }
    windows = [entry for entry in entries if entry["kind"] == "pseudo"]
    late = [entry for entry in windows if entry["step"] > LATE * experiment.train.steps]
    if late:
        accepted = [sum(entry["accepted_counts"]) for entry in late]
        kept["coverage"] = mean(entry["coverage"] for entry in late)
        for name, key in (("precision", "precision"), ("calibration_error", "ece")):
            known = [(entry[key], n) for entry, n in zip(late, accepted, strict=True) if n and entry[key] is not None]
            kept[name] = sum(value * n for value, n in known) / sum(n for _, n in known) if known else None
        warmup = getattr(experiment.refiner, "warmup_steps", 0)
        acting = [entry["coverage"] for entry in windows if entry["step"] - entry["window"] >= warmup]
        kept |= {"least_coverage": min(acting), "most_coverage": max(acting)}
    return kept


def run_missing(study: Study, jobs: int, advance: Callable[[list[Record], str], None]) -> list[Record]:
    """Return the figures of every run, in the order of their runs; what is not finished is run.

    Args:
        study: what to run. jobs: processes. advance: called with all figures so far and a description after every run.
    """
    # By its name in the package, since a function of the main script would be sent to every worker with a cache of its own.
    from benchmarks.field import run_one

    records = {_run_of(record): record for record in study.finished()}
    missing = [run for run in study.runs() if run not in records]
    features = DataCache()
    for problem, seed in dict.fromkeys((problem, seed) for problem, _, seed in missing):
        if PROBLEMS[problem].data == "cifar10":  # once, before several processes begin to compute the same
            advance([], f"features of {problem}, seed {seed}")
            features.run_data(study.experiment(problem, LABELS_ONLY, seed))
    del features
    with joblib.parallel_config("loky", inner_max_num_threads=1 if jobs > 1 else None):
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
        for run, record in parallel(joblib.delayed(run_one)(study, run) for run in missing):
            records[run] = record
            advance([records[one] for one in study.runs() if one in records], f"{run[0]}, {run[1]}, seed {run[2]}")
    return [records[run] for run in study.runs()]


def run_one(study: Study, run: Run) -> tuple[Run, Record]:
    """Return a run with its figures."""
    return run, study.run(*run)


# Counting ------------------------------------------------------------------------------------------------------------


def by_linear(record: Record) -> float:
    """Return the balanced accuracy by the linear head."""
    return float(record["heads"]["linear"]["balanced_accuracy"])


def by_chosen(record: Record) -> float:
    """Return the balanced accuracy by the head that the run chose."""
    return float(record["heads"][record["chosen_head"]]["balanced_accuracy"])


def by_better(record: Record) -> float:
    """Return the balanced accuracy by the better head."""
    return float(max(head["balanced_accuracy"] for head in record["heads"].values()))


def of_group(group: str, record: Record) -> float:
    """Return the balanced accuracy of a third of the classes, by the head that the run chose."""
    return float(record["heads"][record["chosen_head"]][group])


SCORES: dict[str, Score] = {"linear": by_linear, "chosen": by_chosen, "better": by_better}


Gains = list[tuple[StudyProblem, float]]


def gains(records: Sequence[Record], score: Score, *, addons: bool = False, against: str = "none") -> Gains:
    """Return the gain of each run with SemiGPC over its pair with another refiner: same problem, base, add-on and seed.

    Args:
        records: of all runs. score: of a run. addons: of methods with an add-on, or without. against: the other refiner.
    """
    found = {(one["problem"], one["method"], one["seed"]): one for one in records}
    pairs = []
    for (problem, name, seed), record in found.items():
        method = METHODS[name]
        if method.refiner == "gp" and (method.addon != "none") == addons:
            other = found.get((problem, replace(method, refiner=against).name, seed))
            pairs += [] if other is None else [(PROBLEMS[problem], score(record) - score(other))]
    return pairs


def summarise(records: Sequence[Record]) -> Record:
    """Return the figures that the study is judged by, each None or empty where its runs are not there yet."""
    plain = {name: gains(records, score) for name, score in SCORES.items()}
    summary: Record = {
        "runs": len(records),
        "gain": {name: _by_setting(pairs) for name, pairs in plain.items()},
        "gain_on_addons": {name: _by_setting(gains(records, score, addons=True)) for name, score in SCORES.items()},
        "gain_by_problem": {
            by: {name: _mean(gain for one, gain in pairs if one == problem) for name, problem in PROBLEMS.items()}
            for by, pairs in plain.items()
        },
        "gain_over_fixed": {name: _by_data(gains(records, score, against="gp_fixed")) for name, score in SCORES.items()},
        "gain_by_group": {group: _by_setting(gains(records, partial(of_group, group))) for group in CLASS_GROUPS},
        "over_labels_only": _over_labels_only(records),
        "ranks": {name: rank(_scores(records, score), _methods(records)).plain() for name, score in SCORES.items()},
    }
    ours = [record for record in records if METHODS[record["method"]].refiner == "gp"]
    acting = [one for one in ours if "coverage" in one and METHODS[one["method"]].base != "remixmatch"]  # it accepts everything
    bases = [by_linear(one) - one["halfway"]["linear"] for one in records if METHODS[one["method"]].refiner == "none"]
    summary["head_within_a_point"] = _mean(by_better(one) - by_chosen(one) <= POINT for one in ours)
    summary["coverage"] = {
        "least": min((one["least_coverage"] for one in acting), default=None),
        "most": max((one["most_coverage"] for one in acting), default=None),
        "late": _mean(one["coverage"] for one in acting),
    }
    summary["ece"] = _mean(one["ece"] for one in ours)
    summary["second_half_of_bases"] = _mean(bases)
    return summary


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return float(mean(found)) if found else None


def _by_setting(pairs: Gains) -> Record:
    return {key: sign_test([gain for problem, gain in pairs if problem.setting in key]) for key in ("A", "B", "AB")}


def _by_data(pairs: Gains) -> Record:
    return {data: sign_test([gain for problem, gain in pairs if problem.data == data]) for data in STEPS}


def _over_labels_only(records: Sequence[Record]) -> dict[str, float | None]:
    """Return by problem the mean of the bases with the GP, each by its better head, over labels only."""
    labels = {(one["problem"], one["seed"]): by_linear(one) for one in records if one["method"] == LABELS_ONLY}
    names = [f"{base}+gp" for base in BASES]
    return {
        name: _mean(
            by_better(one) - labels[name, one["seed"]]
            for one in records
            if one["problem"] == name and one["method"] in names and (name, one["seed"]) in labels
        )
        for name in PROBLEMS
    }


def _methods(records: Sequence[Record]) -> list[str]:
    there = {record["method"] for record in records}
    return [name for name in METHODS if name in there]


def _scores(records: Sequence[Record], score: Score) -> dict[str, dict[str, float]]:
    """Problem -> method -> mean over the seeds that all of its methods have."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for one in records:
        found.setdefault(one["problem"], {}).setdefault(one["method"], {})[one["seed"]] = score(one)
    table: dict[str, dict[str, float]] = {}
    for problem, methods in found.items():
        seeds = set.intersection(*(set(values) for values in methods.values()))
        table[problem] = {name: mean(values[seed] for seed in seeds) for name, values in methods.items()} if seeds else {}
    return table


# Tables ---------------------------------------------------------------------------------------------------------------

Rows = list[list[str]]  # the first has the headings


def percent(value: float | None, *, sign: bool = False) -> str:
    """Return a share in percent or points, "-" where there is none."""
    return "-" if value is None else f"{100 * value:{'+' if sign else ''}.1f}"


def problem_rows(records: Sequence[Record], summary: Mapping[str, Any]) -> Rows:
    """Return one row per problem: means over bases and seeds, and the gain of SemiGPC over its base."""
    rows = [["", "labels only", "base", "similarity", "fixed GP", "SemiGPC", "by chosen head", "gain", "chosen head's"]]
    for name, problem in PROBLEMS.items():
        ours = [one for one in records if one["problem"] == name and METHODS[one["method"]].addon == "none"]
        if not ours:
            continue

        def score(refiner: str, by: Score, ours: Sequence[Record] = ours) -> str:
            kind = [one for one in ours if METHODS[one["method"]].refiner == refiner and one["method"] != LABELS_ONLY]
            return percent(_mean(map(by, kind)))

        labels = percent(_mean(by_linear(one) for one in ours if one["method"] == LABELS_ONLY))
        linear = [score(refiner, by_linear) for refiner in ("none", "similarity", "gp_fixed", "gp")]
        gain = [percent(summary["gain_by_problem"][by][name], sign=True) for by in ("linear", "chosen")]
        rows.append([problem.title, labels, *linear, score("gp", by_chosen), *gain])
    return rows


def method_rows(records: Sequence[Record], summary: Mapping[str, Any]) -> Rows:
    """Return one row per method, by mean rank: means over problems and seeds, by the chosen head and by the linear one."""
    rows = [["", "rank", "A", "B", "few", "rank, linear", "A", "B", "few", "accepted", "right", "calibration", "s per run"]]
    ranks = {name: one["mean_ranks"] for name, one in summary["ranks"].items()}
    for name in ranks["chosen"] or _methods(records):
        ours = [one for one in records if one["method"] == name]
        row = [METHODS[name].label]
        for by, head in (("chosen", lambda one: one["chosen_head"]), ("linear", lambda _: "linear")):
            row.append(f"{ranks[by][name]:.1f}" if name in ranks[by] else "-")
            for setting in "AB":
                row.append(percent(_mean(SCORES[by](one) for one in ours if PROBLEMS[one["problem"]].setting == setting)))
            row.append(percent(_mean(one["heads"][head(one)]["few"] for one in ours)))
        for figure in ("coverage", "precision", "calibration_error"):
            row.append(percent(_mean(one[figure] for one in ours if one.get(figure) is not None)))
        rows.append([*row, f"{mean(one['seconds'] for one in ours):.1f}"])
    return rows


def grid_rows(records: Sequence[Record]) -> Rows:
    """Return one row per problem: FixMatch, SemiGPC, and the best of the fixed pairs of scales, by the linear head."""
    rows = [["", "FixMatch", "SemiGPC", "best of 16", "l^2", "lambda", "behind it", "mean of 16", "worst", "coverage"]]
    for name, problem in PROBLEMS.items():
        ours = [one for one in records if one["problem"] == name]
        scores = {method: _mean(by_linear(one) for one in ours if one["method"] == method) for method in _methods(ours)}
        pairs = {refiner: score for refiner in GRID if (score := scores.get(f"fixmatch+{refiner}")) is not None}
        base, tuned = scores.get("fixmatch"), scores.get("fixmatch+gp")
        if not pairs or base is None or tuned is None:
            continue
        best = max(pairs, key=lambda refiner: pairs[refiner])
        found = [one for one in ours if one["method"] == "fixmatch+gp"]
        coverage = (
            f"{percent(min(one['least_coverage'] for one in found))} to {percent(max(one['most_coverage'] for one in found))}"
        )
        scales = [f"{scale:g}" for scale in GRID[best]]
        others = [
            percent(pairs[best] - tuned, sign=True),
            percent(mean(pairs.values())),
            percent(min(pairs.values())),
            coverage,
        ]
        rows.append([problem.title, percent(base), percent(tuned), percent(pairs[best]), *scales, *others])
    return rows


def claim_rows(summary: Mapping[str, Any]) -> Rows:
    """Return one row per claim that the study can decide."""
    rows = [["", "setting A", "setting B", "both", "sign test"]]
    labels = {"linear": "linear head", "chosen": "chosen head", "better": "better head"}
    gained = {f"gain over the base, {labels[by]}": one for by, one in summary["gain"].items()}
    gained |= {f"on top of add-ons, {labels[by]}": one for by, one in summary["gain_on_addons"].items() if by != "better"}
    gained |= {f"gain for classes with {group} labels, chosen head": one for group, one in summary["gain_by_group"].items()}
    for title, one in gained.items():
        test = (
            "-" if one["AB"]["p_value"] is None else f"{one['AB']['wins']}:{one['AB']['losses']}, p {one['AB']['p_value']:.1g}"
        )
        rows.append([title, *(percent(one[key]["mean_gain"], sign=True) for key in ("A", "B", "AB")), test])
    return rows


def note_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the rest of the claims, one per line."""
    coverage, above = summary["coverage"], {k: v for k, v in summary["over_labels_only"].items() if v is not None}
    below = {name: gain for name, gain in summary["gain_by_problem"]["linear"].items() if gain is not None}
    lines = [f"Runs: {summary['runs']}."]
    if below:
        worst = min(below, key=lambda name: below[name])
        lines.append(f"Least gain of a problem, linear head: {percent(below[worst], sign=True)}, {PROBLEMS[worst].title}.")
    if above:
        worst = min(above, key=lambda name: above[name])
        wins = sum(value > 0 for value in above.values())
        lines.append(
            f"Above labels only by the better head on {wins} of {len(above)} problems, "
            f"least {percent(above[worst], sign=True)}, {PROBLEMS[worst].title}."
        )
    for by in ("linear", "chosen"):
        fixed = [
            f"{TITLES[data]} {percent(one['mean_gain'], sign=True)}" for data, one in summary["gain_over_fixed"][by].items()
        ]
        lines.append(f"Self-tuned over the paper's fixed values, {by} head: {', '.join(fixed)}.")
    lines += [
        f"The chosen head is within a point of the better one in {percent(summary['head_within_a_point'])} % of runs.",
        f"Coverage of SemiGPC after the warm-up: {percent(coverage['least'])} to {percent(coverage['most'])} %, late in a run "
        f"{percent(coverage['late'])} % on average.",
        f"Calibration error of what SemiGPC's runs report: {percent(summary['ece'])} points.",
        f"Methods without a refiner gain {percent(summary['second_half_of_bases'], sign=True)} in the second half of a run.",
    ]
    if difference := summary["ranks"]["chosen"]["critical_difference"]:
        lines.append(f"Mean ranks closer than {difference:.1f} cannot be told apart (Nemenyi, 5 %).")
    return lines


def markdown(rows: Rows) -> str:
    """Return a table of Markdown."""
    head, *body = rows
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def field(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of study.json; what it holds is not run again.")],
    mnist: Annotated[Path | None, typer.Option(metavar="PATH", exists=True, help="MNIST, .npz or folder of idx files.")] = None,
    cifar: Annotated[Path | None, typer.Option(metavar="PATH", exists=True, help="CIFAR-10, a folder or a .zip.")] = None,
    problem: Annotated[Names, typer.Option(metavar="NAME", help="Such as mnist_a50 or digits_b4; repeat for several.")] = None,
    method: Annotated[Names, typer.Option(metavar="NAME", help="Such as fixmatch+cossl+gp; repeat for several.")] = None,
    seed: Annotated[
        list[int] | None, typer.Option(metavar="N", help="0 to 4 without it; from 100 on, judged on validation.")
    ] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="Run FixMatch with SemiGPC and with 16 pairs of fixed l and lambda instead.")
    ] = False,
    steps: Annotated[int | None, typer.Option(help="Of a run, for a trial.", metavar="N", min=20)] = None,
    jobs: Jobs = 1,
    only_summary: Annotated[bool, typer.Option("--only-summary", help="Run nothing more; show what is finished.")] = False,
    plot: Plot = None,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the tables as Markdown.")] = False,
    as_json: Json = False,
) -> None:
    """Compare methods of the field with and without SemiGPC, on the same splits and seeds.

    Problems: digits and MNIST from scratch, CIFAR-10 as features of a frozen
    network; a50 and a100 have long-tailed labels of that ratio, b4 and b10 so
    many of each class and unlabelled images with a ratio of 50. Without --mnist
    or --cifar those problems are left out.

    The figures of all runs are in study.json in the output folder, written
    after each run. What was stopped goes on where it was: give the command
    again. A study.json of another machine can be continued in the same way.

      python benchmarks/field.py --mnist mnist.npz --cifar cifar10.zip --out study --jobs 2
    """
    check_folders(plot=plot)
    roots = {name: path for name, path in (("mnist", mnist), ("cifar10", cifar)) if path is not None}
    if grid:
        method, seed = ["fixmatch", "fixmatch+gp", *(f"fixmatch+{refiner}" for refiner in GRID)], seed or [TUNING]
    study = _chosen(problem, method, seed, out, roots, steps)
    words = (Path(word).name if "/" in word else word for word in sys.argv[1:])  # of no use elsewhere: where the files lie
    command = shlex.join(["python", "benchmarks/field.py", *words])
    runs = study.runs()
    if only_summary:
        records = study.finished()
    else:
        out.mkdir(parents=True, exist_ok=True)
        errors = Console(stderr=True)
        with Progress(console=errors, disable=not errors.is_terminal) as bar:
            task = bar.add_task("runs", total=len(runs))

            def advance(records: list[Record], text: str) -> None:
                bar.update(task, completed=len(records) or None, description=text)
                if records:
                    study.write(records, command)

            records = run_missing(study, jobs, advance)
    study.write(records, command)
    summary = summarise(records)
    if plot is not None:
        titles, labels = (
            {name: one.title for name, one in PROBLEMS.items()},
            {name: one.label for name, one in METHODS.items()},
        )
        draw_study(summary, plot, titles=titles, labels=labels)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    console = Console(width=None if Console().is_terminal else WIDTH)
    tables = (
        {"Scales of SemiGPC on FixMatch, balanced accuracy by the linear head": grid_rows(records)}
        if grid
        else {
            "Balanced accuracy in percent, means over bases and seeds, by the linear head": problem_rows(records, summary),
            "Methods by mean rank, by the chosen head and by the linear one": method_rows(records, summary),
            "What SemiGPC adds, in points of balanced accuracy": claim_rows(summary),
        }
    )
    for title, rows in tables.items():
        if as_markdown:
            typer.echo(f"{title}:\n\n{markdown(rows)}")
            continue
        table = new_table(title, *rows[0])
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table)
    for line in () if grid else note_lines(summary):
        typer.echo(f"- {line}" if as_markdown else line)


def _chosen(
    problem: Names, method: Names, seed: list[int] | None, out: Path, roots: Mapping[str, Path], steps: int | None
) -> Study:
    """Return what is to be run, with every name checked before anything is."""
    at_hand = [name for name, one in PROBLEMS.items() if one.data == "digits" or one.data in roots]
    for kind, names, known in (("problem", problem, PROBLEMS), ("method", method, METHODS)):
        for name in names or ():
            if name not in known:
                raise SettingError(unknown_name(kind, name, known))
    for name in problem or ():
        if name not in at_hand:
            option = "--mnist" if PROBLEMS[name].data == "mnist" else "--cifar"
            raise SettingError(f"{name} is made of images: give the path of their data by {option}.")
    return Study(
        problems=tuple(name for name in PROBLEMS if name in (problem or at_hand)),
        methods=tuple(name for name, one in METHODS.items() if (name in method if method else one.refiner not in GRID)),
        seeds=tuple(dict.fromkeys(seed or SEEDS)),
        out=out,
        roots={name: path.resolve() for name, path in roots.items()},
        steps=steps,
    )


app = script(field)
if __name__ == "__main__":
    app()
