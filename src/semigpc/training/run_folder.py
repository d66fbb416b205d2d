"""The folder of a run: the schema of its files, and the only code that reads and writes them.

``config.json`` is the experiment, ``split.json`` and ``split.npz`` the data, ``metrics.jsonl`` one
line per log, evaluation and note, ``summary.json`` the end, ``checkpoints/`` the state. Training
and prediction read strictly: :class:`RunFolder` raises an error for a file that is missing, damaged
or changed. Reports read whatever a run has left: :func:`read_run` leaves out what cannot be used
and lists it in ``problems``. Both use the same schemas, which let unknown keys pass, since another
version may have written them.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, with_config
from torch import Tensor
from typing_extensions import TypedDict

from semigpc.data import Splits
from semigpc.io import atomic
from semigpc.io.atomic import (
    RELAXED,
    Count,
    FileFacts,
    JsonObject,
    Sha256,
    facts_of,
    is_sealed,
    locked,
    must_be_file,
    remove_drafts,
    replacing,
    sealed,
    shown,
    trouble,
    write_json,
    write_text,
    writing,
)
from semigpc.io.errors import CheckpointError, FileError, RunError, SettingsError, WriteError
from semigpc.io.tensors import open_tensors, remove_unfinished_tensors, save_tensors
from semigpc.io.text import listed, printable
from semigpc.io.threads import cores
from semigpc.io.versions import versions
from semigpc.training.experiment import Experiment, flattened, upgraded
from semigpc.training.metrics import FIGURES, LARGEST, LOOSE, METRIC, Figures, Head, class_groups

Choice = Literal["best", "last"]
T = TypeVar("T")

PUT_BACK = "Put it back as it was, or train again in another folder."
REDO_SUMMARY = "Delete it and resume the run: it is written again from the last checkpoint."
# Settings that may change after training: where the data are now, and what the machine can do.
FREE_SETTINGS = ("data.", "train.eval_batch", "train.workers", "train.threads")
MOST_CHANGES = 4  # settings named in a message; another algorithm changes many more
HEADS: tuple[Head, ...] = ("linear", "gp", "label")
PARTS = ("test", "validation")
COUNTS = ("labeled_counts", "validation_counts", "test_counts", "unlabeled_counts")
PER_CLASS = (
    "per_class_recall",
    "per_class_precision",
    "per_class_coverage",
    "believed_counts",
    "accepted_counts",
    "true_counts",
    "confusion",
)  # keys of a line that have one entry for each class
SPLIT_KEYS = ("class_names", "labeled_counts", "unlabeled", "sha256", "notes", "class_groups")
SUMMARY_KEYS = ("status", "step", "seconds", "results", "files")
RESULT_KEYS = ("part", "head", "groups", *FIGURES)
TEXT_KEYS = ("kind", "part", "head", "message")  # of a line; everything else must be numbers


# Schemas ------------------------------------------------------------------------------------------


@with_config(LOOSE)
class MetricsLine(Figures):
    """One line of ``metrics.jsonl``: "train", "eval", "pseudo", "screening" or "note".

    A line of training also has the parts of the loss, which the algorithm names.
    """

    kind: str
    step: Count
    lr: NotRequired[float]
    steps_per_second: NotRequired[float]


Results = dict[str, MetricsLine | None]  # "last", "best_on_validation" and "best_on_test"


@with_config(LOOSE)
class RunSettings(TypedDict, total=False):
    """``config.json``: an experiment as plain values."""

    data: dict[str, Any]
    algorithm: dict[str, Any]
    addon: dict[str, Any]
    refiner: dict[str, Any]
    train: dict[str, Any]
    seed: int


@with_config(LOOSE)
class SplitFacts(TypedDict, total=False):
    """``split.json``: classes, counts (C,) of each part where known, and the hash of the split."""

    class_names: list[str]
    labeled_counts: list[Count] | None
    validation_counts: list[Count] | None
    test_counts: list[Count] | None
    unlabeled: Count
    unlabeled_counts: list[Count] | None
    sha256: Sha256
    notes: list[str]
    class_groups: dict[str, list[Count]] | None


@with_config(LOOSE)
class RunSummary(TypedDict, total=False):
    """``summary.json``: how a run ended.

    ``label`` is the method's name for people. ``step`` is the last one. ``checkpoint`` and ``head``
    are what the run stands for, see :func:`standing`; ``temperatures`` scale the confidence of the
    heads of that checkpoint. ``files`` are sizes and hashes.
    """

    label: str
    status: Literal["finished", "stopped"]
    step: Count | None
    seconds: Annotated[float, Field(ge=0, le=LARGEST)] | None
    results: Results
    checkpoint: Choice
    head: Head | None
    temperatures: dict[Head, float]
    processes: Count
    class_groups: dict[str, list[Count]] | None
    gp: Mapping[str, object] | None
    files: dict[str, FileFacts]


class CheckState(TypedDict):
    """What the checks of pseudo-labels have counted so far, in steps, and noted."""

    none: Count
    every: Count
    steps: Count
    believed: list[float]
    noted: list[str]


class LogState(TypedDict):
    """What a checkpoint stores of the log."""

    results: Results
    checks: NotRequired[CheckState]
    head: NotRequired[Head | None]
    temperatures: NotRequired[dict[Head, float]]
    seconds: float
    metrics_size: Count


@with_config(RELAXED)
class RunState(TypedDict):
    """What a checkpoint stores besides tensors, with the experiment and split trained on.

    ``label_head`` are the facts of that head, if the run has it.
    """

    step: Count
    generation: Count
    labeled_counts: list[Count]
    journal: LogState
    precision: dict[str, Any]
    experiment: dict[str, Any]
    split: SplitFacts
    label_head: NotRequired[JsonObject | None]


class Checkpoint(NamedTuple):
    """``tensors`` by name, such as "model.classifier.weight"; ``state`` is JSON."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """Return the tensors below a prefix, by their names without it."""
        return {
            name.removeprefix(f"{prefix}."): value
            for name, value in self.tensors.items()
            if name.startswith(f"{prefix}.")
        }


# What a run stands for ----------------------------------------------------------------------------


class Standing(NamedTuple):
    """What a run stands for: a checkpoint, its step, and the head of it that predicts."""

    checkpoint: Choice
    step: int
    head: Head


def standing(results: Results, step: int, head: Head) -> Standing:
    """Return what a run stands for, in its files, on its pages and in every command.

    It is the checkpoint that was best on validation, with the head chosen at its step. Where
    nothing was validated, it is the last one.

    Args:
        results: of the run so far. step, head: of its last checkpoint.
    """
    best = results.get("best_on_validation")
    if best is None:
        return Standing("last", step, head)
    return Standing("best", best["step"], best.get("head", head))


def judged_result(results: Results) -> MetricsLine | None:
    """Return the evaluation of what a run stands for; None if nothing was evaluated."""
    return results.get("best_on_validation") or results.get("last")


def add_evaluation(results: Results, lines: Sequence[MetricsLine]) -> bool:
    """Add the evaluation of a step to the results; return whether validation is best so far.

    Args:
        results: of the steps before. lines: of all parts and heads at this step.
    """
    judged = {line["part"]: line for line in lines if line["judged"]}
    test = judged.get("test")
    validation = judged.get("validation")
    results["last"] = test or validation
    best_test = results.get("best_on_test")
    if test is not None and (best_test is None or test[METRIC] > best_test[METRIC]):
        results["best_on_test"] = test
    best = results.get("best_on_validation")
    if validation is None or (best is not None and not _is_better(validation, best)):
        return False
    results["best_on_validation"] = {**(test or validation), "chosen_by": validation[METRIC]}
    return True


def _is_better(validation: MetricsLine, best: MetricsLine) -> bool:
    """Return whether an evaluation on validation images replaces the best one so far.

    A label head does not change in a run, so that its later checkpoint is the better one: the other
    heads in it have trained for longer.
    """
    if validation["head"] == "label" and validation[METRIC] == best["chosen_by"]:
        return True
    return validation[METRIC] > best["chosen_by"]


def results_of(evals: Sequence[MetricsLine]) -> Results:
    """Return the results of evaluations, sorted by step; lines without figures are skipped."""
    results: Results = {}
    needed = {"part", "head", "judged", METRIC}
    usable = [line for line in evals if needed <= line.keys()]
    for _, lines in groupby(usable, key=lambda line: line["step"]):
        add_evaluation(results, list(lines))
    return results


# The folder ---------------------------------------------------------------------------------------


class RunFolder:
    """Paths and files of one run, written by training and read strictly.

    Args:
        path: of the folder; made when a run starts.
    """

    writes = True  # False for all but the first of several processes that train together

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.split = path / "split.json"
        self.split_indices = path / "split.npz"
        self.features = path / "features.json"
        self.summary = path / "summary.json"
        self.last = path / "checkpoints" / "last.safetensors"
        self.best = path / "checkpoints" / "best.safetensors"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock; half-written files of a killed process are removed."""
        with locked(self.path):
            remove_drafts(self.path)
            remove_drafts(self.last.parent)
            remove_unfinished_tensors(self.last.parent)
            yield

    # Starting and resuming ------------------------------------------------------------------------

    def refuse_if_taken(self) -> None:
        """Raise a :class:`RunError` if the folder holds a run: nothing is ever overwritten."""
        if self.config.exists():
            raise RunError(
                f"{self.path} already holds a run, and nothing is overwritten. Go on with it "
                "by resume=True, or choose another folder."
            )

    def start(self, experiment: Experiment, splits: Splits) -> None:
        """Write the files of a new run, the settings last: with them the folder counts as taken."""
        cuda = torch.cuda.is_available()
        environment = {
            "cpus": str(cores()),
            "torch threads": str(torch.get_num_threads()),
            "device": torch.cuda.get_device_name() if cuda else "cpu",
            "precision": experiment.train.precision_on("cuda" if cuda else "cpu"),
            "tf32": "on" if torch.backends.cuda.matmul.allow_tf32 else "off",
        }
        write_json(self.path / "environment.json", versions() | environment)
        write_json(self.split, split_facts(splits))
        with replacing(self.split_indices) as draft:
            np.savez_compressed(draft, allow_pickle=False, **splits.indices())
        write_text(self.metrics, "")
        write_json(self.config, experiment.to_plain())

    def check_same(self, experiment: Experiment, splits: Splits) -> None:
        """Raise a :class:`RunError` if the run was started with other settings or other data."""
        if changes := self.changed(experiment):
            raise RunError(
                f"{self.path} was started with other settings: {changes}. Resume it with the same "
                f"settings, restore {self.config.name} if it was edited, or start a new run in "
                "another folder."
            )
        before = self.read_split()
        if before["sha256"] != splits.sha256:
            n_before = len(before["class_names"])
            classes = ""
            if n_before != splits.n_classes:
                classes = f" It had {n_before} classes, the data now have {splits.n_classes}."
            raise RunError(
                f"the data have changed since {self.path} was started (hash "
                f"{before['sha256'][:12]}, now {splits.sha256[:12]}).{classes} Put them back as "
                "they were, or start a new run."
            )

        self._check_contents(splits)

    def _check_contents(self, splits: Splits) -> None:
        """Raise a :class:`RunError` if an image is not the one that the run was started with.

        Every image is read. Runs of earlier versions, which stored no marks, are not checked.
        """
        arrays = splits.indices()
        for part, image_set in splits.parts():
            before = self._split_array(f"{part}_marks")
            now = arrays[f"{part}_marks"]
            if before is None or np.array_equal(before, now):
                continue
            changed = list(image_set.names)
            if before.shape == now.shape:
                changed = [changed[i] for i in np.flatnonzero((before != now).any(axis=1))]
            raise RunError(
                f"{len(changed)} images of the {part} part have changed since {self.path} was "
                f"started: {listed(changed, 3)}. Put them back as they were, or start a new run."
            )

    def changed(self, experiment: Experiment) -> str:
        """Return the settings that differ from those the run was started with, as text."""
        before = flattened(self.experiment().to_plain())
        now = flattened(experiment.to_plain())
        keys = [key for key in {*before, *now} if before.get(key) != now.get(key)]
        # Another algorithm comes before the settings that follow from it.
        keys.sort(key=lambda key: (not key.endswith(".name"), key))
        changes = "; ".join(
            f"{key} was {before.get(key)!r}, now {now.get(key)!r}" for key in keys[:MOST_CHANGES]
        )
        return f"{changes} and more" if len(keys) > MOST_CHANGES else changes

    def check_features(self, origin: Mapping[str, Any]) -> None:
        """Store which network computed the features of a frozen run, or check that it is it."""
        if not self.features.exists():
            write_json(self.features, origin)
        elif self.feature_origin() != origin:
            raise RunError(
                f"{self.path} was started on features of another network, or of other views (see "
                f"{self.features}). Put the weights back as they were, or start a new run in "
                "another folder."
            )

    # Reading --------------------------------------------------------------------------------------

    def experiment(self) -> Experiment:
        """Return the experiment of ``config.json``."""
        reason = trouble(self.metrics)  # reading a pipe in its place would never end
        if reason is not None:
            raise RunError(f"{printable(self.metrics)} cannot be read: {reason}.")
        plain = read_run_json(self.config, dict[str, Any], missing="no run was started there")
        try:
            return Experiment.from_plain(upgraded(plain))
        except SettingsError as error:
            raise RunError(f"{self.config} cannot be used: {error} {PUT_BACK}") from error

    def feature_origin(self) -> dict[str, Any]:
        """Return which network computed the features of a frozen run, and from which views."""
        missing = "it names the network that computed the features of this run"
        return read_run_json(self.features, dict[str, Any], missing=missing)

    def read_split(self) -> SplitFacts:
        """Return what the run was trained on."""
        check = partial(check_split, required=SPLIT_KEYS)
        return read_run_json(self.split, SplitFacts, missing="the run was not started", check=check)

    def split_names(self, part: str) -> list[str]:
        """Return the names of a part's images as in ``split.npz``; empty if it has no such part."""
        names = self._split_array(f"{part}_names")
        return [] if names is None else [str(name) for name in names]

    def _split_array(self, key: str) -> NDArray[Any] | None:
        """Return an array of ``split.npz``; None if it has no such array."""
        path = self.split_indices
        try:
            must_be_file(path)
            with np.load(path, allow_pickle=False) as saved:
                return cast("NDArray[Any] | None", saved.get(key))
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise RunError(f"{path} cannot be read: {error}. {PUT_BACK}") from error

    def read_summary(self) -> RunSummary:
        """Return how the run ended; the summary must be as it was written."""

        def check(summary: RunSummary) -> None:
            check_summary(summary, required=SUMMARY_KEYS, figures=RESULT_KEYS)
            if not is_sealed(summary):
                raise ValueError(
                    "sha256 does not fit the rest, so something was changed since it was written"
                )

        return read_run_json(
            self.summary,
            RunSummary,
            missing="the run was not finished",
            remedy=REDO_SUMMARY,
            check=check,
        )

    def checkpoint(self, choice: Choice, experiment: Experiment, split: SplitFacts) -> Checkpoint:
        """Read the last or the best checkpoint, which must be whole and of this experiment.

        Raises:
            CheckpointError: it is damaged; the message offers the other one, if that is whole.
        """
        path, other = (self.last, self.best) if choice == "last" else (self.best, self.last)
        try:
            return self._checked(path, experiment, split)
        except CheckpointError as error:
            try:
                step = self._checked(other, experiment, split).state["step"]
            except (CheckpointError, RunError):
                rest = "There is no other checkpoint."
                if other.exists():
                    rest = f"{other} cannot be used either."
                raise CheckpointError(f"{error} {rest} Train again in another folder.") from error
            use = "use it with checkpoint=last."
            if choice == "last":
                use = f"copy it to {path.name} to resume from there, or use checkpoint=best."
            raise CheckpointError(f"{error} {other} is intact, of step {step}: {use}") from error

    def _checked(self, path: Path, experiment: Experiment, split: SplitFacts) -> Checkpoint:
        saved = read_checkpoint(path)
        check = partial(_check_state, experiment=experiment)
        try:
            state = atomic.validated(saved.state, RunState, path, check)
        except FileError as error:
            raise CheckpointError(f"the checkpoint {error}.") from error
        try:
            trained = Experiment.from_plain(upgraded(state["experiment"]))
        except SettingsError as error:
            raise CheckpointError(f"the checkpoint {path} cannot be used: {error}") from error
        before = flattened(trained.to_plain())
        now = flattened(experiment.to_plain())
        fixed = sorted(key for key in {*before, *now} if not key.startswith(FREE_SETTINGS))
        compared = {self.config: [(key, before.get(key), now.get(key)) for key in fixed]}
        compared[self.split] = [(key, old, split.get(key)) for key, old in state["split"].items()]
        for file, values in compared.items():
            for key, old, new in values:
                if old != new:
                    raise RunError(
                        f"{file} has been changed since the run was trained: {key} is {shown(new)} "
                        f"there and was {shown(old)} when {path.name} was written. {PUT_BACK}"
                    )
        return saved

    # Writing --------------------------------------------------------------------------------------

    def append(self, kind: str, step: int, values: Mapping[str, object]) -> MetricsLine:
        """Add one line to ``metrics.jsonl`` and return it."""
        line = metrics_line(kind, step, values)
        with writing(self.metrics), self.metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return line

    def metrics_size(self) -> int:
        """Return the bytes written so far, flushed to disk, for a checkpoint to store."""
        with writing(self.metrics), self.metrics.open("a") as file:
            os.fsync(file.fileno())
            return file.tell()

    def rewind_metrics(self, size: int) -> None:
        """Cut off the lines that were written after a checkpoint."""
        current = self.metrics.stat().st_size if self.metrics.exists() else 0
        if current < size:
            raise RunError(
                f"{self.metrics} has lost lines since the checkpoint ({current} of {size} bytes). "
                "Put it back, or start a new run."
            )
        with writing(self.metrics), self.metrics.open("a") as file:
            file.truncate(size)

    def remove_summary(self) -> None:
        """Remove the summary of a run that was stopped: the run goes on, and it would be untrue."""
        with writing(self.summary):
            self.summary.unlink(missing_ok=True)

    def write_summary(self, summary: RunSummary) -> None:
        """Write ``summary.json`` with sizes and hashes of the other files."""
        if self.writes:
            files = (
                self.config,
                self.split,
                self.split_indices,
                self.metrics,
                self.last,
                self.best,
            )
            facts = facts_of(self.path, [str(file.relative_to(self.path)) for file in files])
            write_json(self.summary, sealed({**summary, "files": facts}))


class SilentRunFolder(RunFolder):
    """The run folder of all processes but the first: nothing is read or written.

    The folder need not exist on their machines; rank 0 holds the lock and checks and writes.
    """

    writes = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Do nothing."""
        yield

    def refuse_if_taken(self) -> None:
        """Do nothing."""

    def start(self, experiment: Experiment, splits: Splits) -> None:
        """Do nothing."""

    def check_features(self, origin: Mapping[str, Any]) -> None:
        """Do nothing."""

    def append(self, kind: str, step: int, values: Mapping[str, object]) -> MetricsLine:
        """Return the line that rank 0 writes."""
        return metrics_line(kind, step, values)

    def metrics_size(self) -> int:
        """Return 0: there is no file."""
        return 0

    def rewind_metrics(self, size: int) -> None:
        """Do nothing."""

    def remove_summary(self) -> None:
        """Do nothing."""


def metrics_line(kind: str, step: int, values: Mapping[str, object]) -> MetricsLine:
    """Return a line of ``metrics.jsonl``; its other keys depend on the kind."""
    return cast("MetricsLine", {"kind": kind, "step": step, **values})


def last_result(summary: RunSummary) -> MetricsLine:
    """Return the evaluation at the end of a run, by the head that was chosen there."""
    return evaluated(summary["results"].get("last"))


def evaluated(result: MetricsLine | None) -> MetricsLine:
    """Return a result; raise a :class:`RunError` if there is none."""
    if result is None:
        raise RunError("the run has neither test nor validation images to evaluate on.")
    return result


def split_facts(splits: Splits) -> SplitFacts:
    """Return classes, counts of each part, class groups by frequency, notes and the hash."""

    def counts(labels: NDArray[np.int64]) -> list[int]:
        return [int(count) for count in np.bincount(labels, minlength=splits.n_classes)]

    truth = splits.unlabeled_truth[splits.unlabeled_truth >= 0]
    unlabeled = counts(truth) if len(truth) else None
    ties = None if unlabeled is None else np.array(unlabeled)
    validation = splits.validation
    test = splits.test
    return {
        "class_names": list(splits.class_names),
        "labeled_counts": counts(splits.labeled.labels),
        "validation_counts": None if validation is None else counts(validation.labels),
        "test_counts": None if test is None else counts(test.labels),
        "unlabeled": len(splits.unlabeled),
        "unlabeled_counts": unlabeled,
        "sha256": splits.sha256,
        "notes": list(splits.notes),
        "class_groups": class_groups(splits.class_counts, ties),
    }


# Checkpoints --------------------------------------------------------------------------------------


def write_checkpoint(
    path: Path, parts: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> None:
    """Write a checkpoint; if anything fails, the previous one is not modified.

    It is one file of tensors with the state in its header, and nothing in it is pickled.

    Args:
        path: of the file. parts: tensors by part and name. state: anything that JSON holds.
    """
    tensors = {
        f"{part}.{name}": value.detach().to("cpu", copy=True).contiguous()
        for part, values in parts.items()
        for name, value in values.items()
    }
    try:
        with replacing(path) as draft:
            save_tensors(draft, tensors, state=state)
    except WriteError as error:
        size = sum(value.nbytes for value in tensors.values()) / 1e6
        message = f"the checkpoint {error} It takes {size:.1f} MB."
        raise WriteError(message, passing=error.passing) from error


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and verify every byte of it."""
    try:
        with open_tensors(path) as (file, facts):
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            return Checkpoint(tensors, facts["state"])
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint {path}.") from error
    except FileError as error:
        raise CheckpointError(f"the checkpoint {error}.") from error
    except OSError as error:
        reason = error.strerror or error
        raise CheckpointError(f"the checkpoint {path} cannot be read: {reason}.") from error


def _check_state(state: RunState, experiment: Experiment) -> None:
    step = state["step"]
    number = state["generation"]
    generations = experiment.addon.generations
    if not number < generations:
        raise ValueError(
            f"generation must be below {generations}, the generations of the run; got {number}"
        )
    first, last = generation_steps(experiment, number)
    if not first <= step <= last:
        raise ValueError(
            f"step must lie in {first} to {last}, the steps of generation {number}; got {step}"
        )
    if len(state["labeled_counts"]) != len(state["split"].get("class_names", ())):
        raise ValueError("labeled_counts must have one number for each class")


def generation_steps(experiment: Experiment, number: int) -> tuple[int, int]:
    """Return the first step of a generation and the one after its last."""
    steps = experiment.train.steps
    generations = experiment.addon.generations
    return number * steps // generations, (number + 1) * steps // generations


# What a run has left, for reports -----------------------------------------------------------------


@dataclass(frozen=True)
class RunRecord:
    """The files of one run, finished or not. What cannot be used is empty and in ``problems``."""

    path: Path
    config: RunSettings = field(default_factory=RunSettings)
    environment: Mapping[str, Any] = field(default_factory=dict)
    split: SplitFacts = field(default_factory=SplitFacts)
    summary: RunSummary = field(default_factory=RunSummary)
    train: Sequence[MetricsLine] = ()
    evals: Sequence[MetricsLine] = ()
    pseudo: Sequence[MetricsLine] = ()
    notes: Sequence[MetricsLine] = ()
    screening: Sequence[MetricsLine] = ()
    problems: Sequence[str] = ()

    @property
    def class_names(self) -> list[str]:
        """Names as in split.json, or numbers where it is missing."""
        return _class_names(self.split, self.evals)

    @property
    def order(self) -> NDArray[np.intp]:
        """Class ids (C,), most labelled first; ties by their true count among the unlabelled."""
        counts = [self.counts(key) for key in ("unlabeled_counts", "labeled_counts")]
        zeros = np.zeros(len(self.class_names))
        return np.lexsort([zeros if known is None else -known for known in counts])

    @property
    def groups(self) -> dict[str, list[int]]:
        """Class ids of each group that has any."""
        groups = self.summary.get("class_groups") or self.split.get("class_groups") or {}
        return {name: ids for name, ids in groups.items() if ids}

    @property
    def results(self) -> Results:
        """The results of the summary; where it is missing, of the evaluations so far."""
        return self.summary.get("results") or results_of(self.evals)

    @property
    def standing(self) -> Standing:
        """What the run stands for, as far as its files tell."""
        results = self.results
        last = results.get("last") or metrics_line("eval", 0, {})
        head = self.summary.get("head") or last.get("head", "linear")
        return standing(results, self.summary.get("step") or last["step"], head)

    def counts(self, key: str) -> NDArray[np.float64] | None:
        """Return counts (C,) from split.json, or None where they are not known."""
        values = cast("list[int] | None", self.split.get(key))
        if values is None or len(values) != len(self.class_names):
            return None
        return np.array(values, dtype=np.float64)

    def curve(self, part: str, head: str) -> list[MetricsLine]:
        """Return the evaluations of one head on one part, by step."""
        return [line for line in self.evals if (line.get("part"), line.get("head")) == (part, head)]

    def headline(self) -> MetricsLine | None:
        """Return the evaluation of what the run stands for, on test images if there are any.

        Without a summary the run may still go on, and it is the last evaluation.
        """
        results = self.results
        result = judged_result(results) if self.summary else results.get("last")
        if result is None:
            ends = [line for part in PARTS for line in self.curve(part, self.standing.head)[-1:]]
            return ends[0] if ends else None
        for line in self.curve(result.get("part", ""), result.get("head", "")):
            if line["step"] == result["step"]:
                return {**line, **result}  # with the matrices, which the summary may lack
        return result


def read_run(folder: Path, *, bulky: bool = True) -> RunRecord:
    """Read whatever a run has left; ``bulky=False`` omits confusion matrices and reliability bins.

    Raises:
        FileNotFoundError: if the folder holds neither config.json nor metrics.jsonl.
    """
    files = RunFolder(folder)
    if not (files.config.is_file() or files.metrics.is_file()):
        raise FileNotFoundError(
            f"a run folder holds config.json and metrics.jsonl; {folder} has neither. Give the "
            "folder that the run was written to."
        )
    problems: list[str] = []
    config = _read_or_note(files.config, RunSettings, problems)
    environment = _read_or_note(folder / "environment.json", dict[str, Any], problems)
    split = _read_or_note(files.split, SplitFacts, problems, check_split)
    # The first line of a page names a missing summary.
    problems_of_summary = problems if files.summary.exists() else []
    summary = _read_or_note(files.summary, RunSummary, problems_of_summary, check_summary)
    if summary is not None and "sha256" in summary and not is_sealed(summary):
        problems.append(
            "summary.json was changed since the run wrote it: its sha256 does not fit the rest."
        )
    lines = _read_lines(files.metrics, problems, bulky=bulky)
    classes = len(_class_names(split or {}, lines))
    lines = _lines_of_classes(lines, classes, problems)
    if summary is not None and not _summary_fits(summary, classes):
        problems.append(f"summary.json is not about the {classes} classes of split.json: ignored.")
        summary = None
    lines.sort(key=lambda line: line["step"])
    kinds = ("train", "eval", "pseudo", "note", "screening")
    train, evals, pseudo, notes, screening = (
        [line for line in lines if line["kind"] == kind] for kind in kinds
    )
    return RunRecord(
        folder,
        config or {},
        environment or {},
        split or {},
        summary or {},
        train,
        evals,
        pseudo,
        notes,
        screening,
        problems,
    )


def read_metrics(path: Path) -> Iterator[MetricsLine | None]:
    """Yield the lines of ``metrics.jsonl``, None for each that cannot be used; skip empty lines."""
    with path.open("rb") as lines:
        for line in lines:
            if not line.strip():
                continue
            try:
                parsed = atomic.parse(line, path)
                yield atomic.validated(parsed, MetricsLine, path, check_figures)
            except FileError:
                yield None


def _read_or_note(
    path: Path, schema: type[T], problems: list[str], check: Callable[[T], None] | None = None
) -> T | None:
    try:
        return atomic.read_json(path, schema, error=RunError, remedy="It is ignored.", check=check)
    except FileNotFoundError:
        problems.append(f"{path.name} is missing.")
    except RunError as error:
        problems.append(str(error).replace(str(path), path.name))
    return None


def _read_lines(path: Path, problems: list[str], *, bulky: bool) -> list[MetricsLine]:
    """Read ``metrics.jsonl``; a step measured again after a resume replaces the earlier lines.

    Confusion matrices and reliability bins are kept for the newest evaluation of each part and
    head only: C x C numbers a line.
    """
    if not path.is_file():
        problems.append("metrics.jsonl is missing: there are no curves.")
        return []
    kept: dict[tuple[object, ...], MetricsLine] = {}
    newest: dict[tuple[object, object], MetricsLine] = {}
    broken = 0
    for line in read_metrics(path):
        if line is None:
            broken += 1
            continue
        part = line.get("part")
        head = line.get("head")
        if line["kind"] == "eval":
            stale = newest.get((part, head)) if bulky else line
            if stale is not None:
                stale.pop("confusion", None)
                stale.pop("reliability", None)
            newest[part, head] = line
        kept[line["kind"], line["step"], part, head, line.get("message")] = line
    if broken:
        problems.append(
            f"metrics.jsonl: {broken} unreadable lines were skipped; a killed process leaves one."
        )
    return list(kept.values())


def _lines_of_classes(
    lines: list[MetricsLine], classes: int, problems: list[str]
) -> list[MetricsLine]:
    """Leave out lines for another number of classes than the split has: those of another run."""
    fitting = [line for line in lines if _fits(line, classes)]
    if len(fitting) < len(lines):
        problems.append(
            f"metrics.jsonl: {len(lines) - len(fitting)} lines do not have the {classes} classes "
            "of split.json and were skipped. Are both files of the same run?"
        )
    return fitting


def _summary_fits(summary: RunSummary, classes: int) -> bool:
    groups = summary.get("class_groups") or {}
    results = (summary.get("results") or {}).values()
    return all(c < classes for ids in groups.values() for c in ids) and all(
        _fits(result, classes) for result in results if result is not None
    )


def _fits(figures: Mapping[str, Any], classes: int) -> bool:
    return all(len(figures[key]) == classes for key in PER_CLASS if figures.get(key) is not None)


def _class_names(split: SplitFacts, lines: Sequence[MetricsLine]) -> list[str]:
    if names := split.get("class_names"):
        return names
    recalls = [recall for line in lines if (recall := line.get("per_class_recall"))]
    return [str(c) for c in range(len(recalls[-1]) if recalls else 0)]


# Checks that a schema cannot express --------------------------------------------------------------


def read_run_json(
    path: Path,
    schema: type[T],
    *,
    missing: str,
    remedy: str = PUT_BACK,
    check: Callable[[T], None] | None = None,
) -> T:
    """Read a JSON file of a run; a :class:`RunError` says what is wrong, or what is ``missing``."""
    try:
        return atomic.read_json(path, schema, error=RunError, remedy=remedy, check=check)
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist: {missing}.") from error


def check_split(split: SplitFacts, *, required: Collection[str] = ()) -> None:
    """Raise a ValueError for a split whose parts do not fit, or which lacks a required key."""
    _require(split, required)
    names = split.get("class_names")
    if names is None:
        return
    if not 0 < len(names) == len(set(names)):
        raise ValueError(f"class_names must be different names; got {shown(names)}")
    for key in COUNTS:
        counts = cast("list[int] | None", split.get(key))
        if counts is not None and len(counts) != len(names):
            raise ValueError(
                f"{key} must have one number for each of {len(names)} classes; got {shown(counts)}"
            )
    for name, classes in (split.get("class_groups") or {}).items():
        if any(number >= len(names) for number in classes):
            raise ValueError(
                f"class_groups.{name} must be below {len(names)}, the number of classes; got "
                f"{shown(classes)}"
            )


def check_summary(
    summary: RunSummary, *, required: Collection[str] = (), figures: Collection[str] = ()
) -> None:
    """Raise a ValueError for a summary that lacks a required key, or a result with bad figures."""
    _require(summary, required)
    for name, result in (summary.get("results") or {}).items():
        if result is not None:
            _require(result, figures, f"results.{name}.")
            check_figures(result, f"results.{name}.")


def check_figures(figures: Figures, where: str = "") -> None:
    """Raise a ValueError for figures that cannot be drawn: lists that do not fit, or text."""
    for key, value in figures.items():
        if key not in TEXT_KEYS and not all(_is_number(leaf) for leaf in _leaves(value)):
            raise ValueError(f"{where}{key} must be a number, or numbers")
    confusion = figures.get("confusion") or []
    if any(len(row) != len(confusion) for row in confusion):
        raise ValueError(f"{where}confusion must have as many columns as rows")
    bins = figures.get("reliability")
    if bins is not None:
        lists = (bins["confidence"], bins["accuracy"], bins["count"])
        if len(bins["edges"]) < 2 or {len(each) for each in lists} != {len(bins["edges"]) - 1}:
            raise ValueError(f"{where}reliability must have one number for each bin")


def _require(content: Mapping[str, Any], keys: Collection[str], where: str = "") -> None:
    for key in keys:
        if content.get(key) is None:
            raise ValueError(f"{where}{key} is missing")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


def _is_number(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not LARGEST < abs(value) < float("inf")
