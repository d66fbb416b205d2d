"""The study of benchmarks/field.py: its problems, its methods, the experiment of each run, and the
file of their figures.

29 methods on 21 problems: digits and MNIST from scratch, CIFAR-10 as features of a frozen network,
in the five settings of :class:`StudyProblem`. Beside them: 16 pairs of fixed
scales of the GP, and fine-tuning of a pre-trained network.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, Literal

import joblib

from semigpc.addons import ADDONS, AddOnConfig, CoSSLConfig, DebiasPLConfig
from semigpc.algorithms import ALGORITHMS
from semigpc.data import DigitsConfig, SplitConfig
from semigpc.io.atomic import read_json, write_json
from semigpc.io.errors import SettingsError
from semigpc.paper.recipes import cifar10_lt, shrink
from semigpc.refiners import GPConfig, PlacementConfig, SimilarityConfig
from semigpc.training import Experiment, train
from semigpc.training.experiment import config_type
from semigpc.training.presets import digits, mnist
from semigpc.training.run_folder import RunFolder
from semigpc.training.state import DataCache

BASES = ("fixmatch", "freematch", "simmatch", "remixmatch")
LABELS_ONLY = "supervised"
SEEDS = (0, 1, 2, 3, 4)
TUNING = 100  # seeds from here on are judged on validation images: settings may be chosen by them
# The fixed values of the paper's recipe, for ten classes: l^2 = sigma^2 = 0.1, and the lambda of 1
# - 1/C.
FIXED: Mapping[str, Any] = {
    "length_scale": 0.1**0.5,
    "noise_std": 0.1**0.5,
    "logit_scale": 6.43,
    "class_prior": "none",
    "confidence": "max_softmax",
    "balanced": False,
}
# Fixed pairs of l^2 and lambda, beside which the self-tuned GP is put by --grid.
GRID: Mapping[str, tuple[float, float]] = {
    f"gp_{square:g}_{scale:g}": (square, scale)
    for square in (0.03, 0.1, 0.3, 1.0)
    for scale in (5.0, 11.0, 25.0, 60.0)
}
EPOCHS = 6  # in a run; SAW counts and class-balanced draws change between them
WINDOWS = 20  # of a run, in which accepted pseudo-labels are counted
LATE = 0.75  # of a run has passed when its accepted pseudo-labels are counted for the tables
MOMENTUM = 0.99  # of averages that follow within some hundred steps
_CACHE = DataCache()  # of a worker process

Record = dict[str, Any]
Run = tuple[str, str, int]  # problem, method, seed
Data = Literal["digits", "mnist", "cifar10", "finetuned"]
Setting = Literal["A", "B", "C", "R", "O"]
EVEN = ("B", "O")  # settings with equally many labels of each class
FOREIGN = 3  # classes of setting O that are only among the unlabelled images
STEPS: Mapping[Data, int] = {"digits": 600, "mnist": 500, "cifar10": 250, "finetuned": 350}
TITLES: Mapping[Data, str] = {
    "digits": "digits",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10 features",
    "finetuned": "CIFAR-10 fine-tuned",
}
FINETUNED = ("finetuned_b4", "finetuned_b10")  # take minutes a run, and are run if asked for
FINETUNED_SIZE = 64  # pixels a side


# The runs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudyProblem:
    """Data in a setting, with the imbalance ratio of its long tails.

    A, labels and unlabelled images have the same long tail; B, ``labels`` of each class and
    long-tailed unlabelled images; C, long-tailed labels and equally many unlabelled images of each
    class; R, the unlabelled tail is the other way round; O, as B, and as many unlabelled images as
    of the largest class of each of three classes that are none of the problem.
    """

    data: Data
    setting: Setting
    ratio: int = 50
    labels: int = 4

    @property
    def name(self) -> str:
        """Return the name on the command line, as in "mnist_a50" or "digits_b4"."""
        number = self.labels if self.setting in EVEN else self.ratio
        return f"{self.data}_{self.setting.lower()}{number}"

    @property
    def source(self) -> str:
        """Return the data set that its images come from."""
        return "cifar10" if self.data == "finetuned" else self.data

    @property
    def title(self) -> str:
        """Return the name in tables."""
        rest = f"{self.labels} labels" if self.setting in EVEN else f"ratio {self.ratio}"
        return f"{TITLES[self.data]}, {self.setting}, {rest}"

    def split(self, head: int, unlabeled: int) -> SplitConfig:
        """Return the split, with so many labels and unlabelled images of the largest class."""
        tail = SplitConfig(
            labeled_head=head,
            labeled_ratio=self.ratio,
            unlabeled_head=unlabeled,
            unlabeled_ratio=self.ratio,
        )
        even = replace(tail, labeled_head=self.labels, labeled_ratio=1, overlap="disjoint")
        return {
            "A": tail,
            "B": even,
            # about as many as in a tail
            "C": replace(tail, unlabeled_head=round(unlabeled / 3), unlabeled_ratio=1),
            "R": replace(tail, unlabeled_ratio=-self.ratio, overlap="disjoint"),
            "O": replace(even, foreign=FOREIGN),
        }[self.setting]


@dataclass(frozen=True)
class Method:
    """An algorithm, with an add-on and a refiner.

    "gp" is the recipe's, "gp_fixed" the GP with the paper's fixed values, and "gp_0.1_11" one with
    l^2 = 0.1 and lambda = 11.
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
        refiner = {"none": "", "gp": "SemiGPC", "gp_fixed": "SemiGPC, fixed"}.get(
            self.refiner, self.refiner
        )
        addon = "" if self.addon == "none" else ADDONS[self.addon].label
        return " + ".join(part for part in (ALGORITHMS[self.base].label, addon, refiner) if part)


PROBLEMS: dict[str, StudyProblem] = {
    problem.name: problem
    for data in STEPS
    for problem in (
        StudyProblem(data, "A", ratio=50),
        StudyProblem(data, "A", ratio=100),
        StudyProblem(data, "B", labels=4),
        StudyProblem(data, "B", labels=10),
        StudyProblem(data, "C", ratio=50),
        StudyProblem(data, "R", ratio=50),
        StudyProblem(data, "O", labels=10),
    )
    if data != "finetuned" or problem.name in FINETUNED
}
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(LABELS_ONLY),
        *(
            Method(base, "none", refiner)
            for base in BASES
            for refiner in ("none", "similarity", "gp_fixed", "gp")
        ),
        *(
            Method("fixmatch", addon, refiner)
            for addon in ("cossl", "debiaspl", "saw", "cdmad", "simpro", "acr")
            for refiner in ("none", "gp")
        ),
        *(Method("fixmatch", "none", refiner) for refiner in GRID),
    )
}


def study_experiment(
    problem: str, method: str, *, roots: Mapping[str, Path], seed: int = 0, times: float = 1.0
) -> Experiment:
    """Return the experiment of one run.

    It is evaluated halfway and at the end. What the papers count in steps is scaled to the run:
    averages have a momentum of 0.99, a fifth of the run passes before a refiner acts. Runs with a
    seed of 100 or more have validation images.

    Args:
        problem, method: by name. roots: of "mnist" and "cifar10". seed: of split and run. times:
            longer than the problem's own.
    """
    one = PROBLEMS[problem]
    chosen = METHODS[method]
    length = 2 * round(times * STEPS[one.data] / 2)
    names = {"algorithm": chosen.base, "refiner": chosen.refiner.split("_")[0], "seed": seed}
    full = _full(one, roots.get(one.source, Path()), names, validated=seed >= TUNING)
    refiner = full.refiner
    algorithm = full.algorithm.preset("short")
    if algorithm.threshold > 0:  # the study keeps that of a long run
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
        parts = (
            {"test_per_class": 0, "validation_per_class": 40}
            if validated
            else {"validation_per_class": 0}
        )
        return replace(digits(**names), data=DigitsConfig(split=problem.split(36, 120), **parts))
    if problem.data == "mnist":
        full = mnist(root=root, **names)
        full = replace(full, data=replace(full.data, split=problem.split(100, 1000)))
        return _validated(full) if validated else full
    frozen = shrink(cifar10_lt(root=root, **names), "cached")
    frozen = replace(frozen, data=replace(frozen.data, split=problem.split(600, 2000)))
    frozen = _validated(frozen) if validated else frozen
    return finetuned(frozen) if problem.data == "finetuned" else frozen


def _validated(full: Experiment) -> Experiment:
    return replace(full, data=replace(full.data, validation_per_class=200))


def finetuned(frozen: Experiment) -> Experiment:
    """Return the same on the network itself, with the settings that a user's own photographs are
    fine-tuned with.
    """
    augment = replace(frozen.augment, image_size=FINETUNED_SIZE)
    refiner = frozen.refiner
    if isinstance(refiner, GPConfig | SimilarityConfig):
        refiner = replace(refiner, buffer_size=2048)
    options = replace(
        frozen.train, labeled_batch=16, unlabeled_ratio=3, lr=5e-4, workers=0
    )  # runs are processes already
    return replace(frozen, frozen=None, augment=augment, refiner=refiner, train=options)


def short_addon(addon: AddOnConfig) -> AddOnConfig:
    """Return an add-on with the options of a run of some hundred steps."""
    if isinstance(addon, DebiasPLConfig):
        return replace(addon, share_momentum=MOMENTUM)
    if isinstance(addon, CoSSLConfig):
        return replace(
            addon, head_momentum=MOMENTUM, start_steps=500
        )  # both a tenth of what it takes to forget a start
    return addon


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is run, and where: ``out`` has study.json, ``roots`` the data; runs are so many
    ``times`` longer.
    """

    problems: tuple[str, ...]
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    out: Path
    roots: Mapping[str, Path]
    times: float = 1.0

    def runs(self) -> list[Run]:
        """Return problem, method and seed of every run, the seeds outermost: a study that is
        stopped has whole seeds.
        """
        return [
            (problem, method, seed)
            for seed in self.seeds
            for problem in self.problems
            for method in self.methods
        ]

    def experiment(self, problem: str, method: str, seed: int) -> Experiment:
        """Return the experiment of one run."""
        return study_experiment(problem, method, roots=self.roots, seed=seed, times=self.times)

    @property
    def result(self) -> Path:
        """The file with the figures of all runs."""
        return self.out / "study.json"

    def finished(self) -> list[Record]:
        """Return the records of study.json that were made with the settings of these runs, in their
        order.
        """
        known = self._known()
        there = [(run, known[run]) for run in self.runs() if run in known]
        return [
            record
            for run, record in there
            if record["settings"] == settings_digest(self.experiment(*run))
        ]

    def write(self, records: Sequence[Record], summary: Record, command: str) -> None:
        """Write study.json: these records beside those of other runs that it holds, their summary,
        and the command.
        """
        together = self._known() | {_run_of(record): record for record in records}
        write_json(
            self.result,
            {"command": command, "summary": summary, "records": list(together.values())},
        )

    def _known(self) -> dict[Run, Record]:
        if not self.result.exists():
            return {}
        remedy = "Delete that file to run everything again."
        records = read_json(self.result, dict[str, Any], error=SettingsError, remedy=remedy).get(
            "records", []
        )
        return {_run_of(record): record for record in records}

    def run(self, problem: str, method: str, seed: int) -> Record:
        """Train in a folder that is deleted afterwards, and return the figures."""
        experiment = self.experiment(problem, method, seed)
        with TemporaryDirectory(prefix=".run-", dir=self.out) as folder:
            train(experiment, Path(folder) / "run", cache=_CACHE)
            measured = figures(Path(folder) / "run")
        names = {
            "problem": problem,
            "method": method,
            "seed": seed,
            "settings": settings_digest(experiment),
        }
        return names | measured


def _run_of(record: Record) -> Run:
    return record["problem"], record["method"], record["seed"]


def settings_digest(experiment: Experiment) -> str:
    """Return twelve digits of a hash of all settings but the place of the data, which differs
    between machines.
    """
    plain = experiment.to_plain()
    plain["data"].pop("root", None)
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def figures(path: Path) -> Record:
    """Return what a study keeps of a run: by each head on test images, or else on validation
    images; of accepted labels.
    """
    folder = RunFolder(path)
    entries = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    experiment = folder.experiment()
    summary = folder.read_summary()
    headline: Any = (summary["results"] or {})["last"]
    evaluations = [entry for entry in entries if entry["kind"] == "eval"]
    part = "validation" if experiment.seed >= TUNING else "test"
    halfway, last = (
        {
            entry["head"]: entry
            for entry in evaluations
            if (entry["part"], entry["step"]) == (part, step)
        }
        for step in (evaluations[0]["step"], evaluations[-1]["step"])
    )
    kept: Record = {
        "heads": {
            head: {
                "balanced_accuracy": entry["balanced_accuracy"],
                "ece": entry["ece"],
                **entry["groups"],
            }
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
            known = [
                (entry[key], n)
                for entry, n in zip(late, accepted, strict=True)
                if n and entry[key] is not None
            ]
            kept[name] = (
                sum(value * n for value, n in known) / sum(n for _, n in known) if known else None
            )
        kept["foreign_coverage"] = foreign_coverage(late)
        warmup = getattr(experiment.refiner, "warmup_steps", 0)
        acting = [
            entry["coverage"] for entry in windows if entry["step"] - entry["window"] >= warmup
        ]
        kept |= {"least_coverage": min(acting), "most_coverage": max(acting)}
    return kept


def foreign_coverage(windows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of the foreign unlabelled images that was accepted; None without any.

    Those are the images whose class is not one of the run's: what lines of pseudo-labels count in
    total, less what they count by true class.
    """
    seen = 0
    accepted = 0.0
    for window in windows:
        own = window["true_counts"] or []
        shares = window["per_class_coverage"] or []
        seen += sum(window["believed_counts"]) - sum(own)
        accepted += sum(window["accepted_counts"])
        accepted -= sum((share or 0) * n for share, n in zip(shares, own, strict=True))
    return accepted / seen if seen else None


def run_missing(
    study: Study, jobs: int, advance: Callable[[list[Record], str], None]
) -> list[Record]:
    """Return the figures of every run, in the order of their runs; what is not finished is run.

    Args:
        study: what to run. jobs: processes. advance: called with all figures so far and a
            description after every run.
    """
    records = {_run_of(record): record for record in study.finished()}
    missing = [run for run in study.runs() if run not in records]
    features = DataCache()
    for problem, seed in dict.fromkeys((problem, seed) for problem, _, seed in missing):
        if (
            PROBLEMS[problem].data == "cifar10"
        ):  # once, before several processes begin to compute the same
            advance([], f"features of {problem}, seed {seed}")
            features.run_data(study.experiment(problem, LABELS_ONLY, seed))
    del features
    with joblib.parallel_config("loky", inner_max_num_threads=1 if jobs > 1 else None):
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
        for run, record in parallel(joblib.delayed(run_one)(study, run) for run in missing):
            records[run] = record
            advance(
                [records[one] for one in study.runs() if one in records],
                f"{run[0]}, {run[1]}, seed {run[2]}",
            )
    return [records[run] for run in study.runs()]


def run_one(study: Study, run: Run) -> tuple[Run, Record]:
    """Return a run with its figures."""
    return run, study.run(*run)
