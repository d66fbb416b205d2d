"""The folder of a run: what was asked, where, on which split, and one JSON line for everything that happened."""

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import with_config
from torch import Tensor
from typing_extensions import TypedDict

from semigpc import files, tensor_files
from semigpc.data import Splits
from semigpc.files import (
    RELAXED,
    Count,
    Facts,
    FileError,
    FileFacts,
    Sha256,
    Share,
    WriteError,
    facts_of,
    is_sealed,
    locked,
    must_be_file,
    remove_drafts,
    replacing,
    shown,
    trouble,
    write_json,
    write_text,
    writing,
)
from semigpc.tensor_files import remove_litter
from semigpc.text import printable
from semigpc.threads import cores
from semigpc.training.experiment import Experiment
from semigpc.training.metrics import class_groups
from semigpc.training.settings import SettingError, dotted_keys
from semigpc.versions import versions

PUT_BACK = "Put it back as it was, or train anew in another folder."
# Settings that may change after training: where the data are by now, and what the machine can do.
FREE = ("data.", "train.eval_batch", "train.workers", "train.threads", "train.tensorboard")

Choice = Literal["best", "last"]
T = TypeVar("T")


class RunError(RuntimeError):
    """A run that cannot go on as asked; the message says how it can."""


# Schemas -------------------------------------------------------------------------------------------------------------


@with_config(RELAXED)
class SplitFacts(TypedDict):
    """``split.json``: classes, counts (C,) of each part where it is known, and the hash of the split."""

    class_names: list[str]
    labeled_counts: list[Count]
    validation_counts: list[Count] | None
    test_counts: list[Count] | None
    unlabeled: Count
    unlabeled_counts: list[Count] | None
    sha256: Sha256
    notes: list[str]
    class_groups: dict[str, list[Count]]


class Bins(TypedDict):
    """The reliability diagram; None in bins without images."""

    edges: list[float]
    confidence: list[Share | None]
    accuracy: list[Share | None]
    count: list[Count]


class GroupFigures(TypedDict):
    """Accuracy of the classes with many, some and few labels; None if no image is of them."""

    many: Share | None
    medium: Share | None
    few: Share | None


@with_config(RELAXED)
class Result(TypedDict):
    """One evaluation, with the figures that tables and comparisons need."""

    step: Count
    part: Literal["test", "validation"]
    head: Literal["linear", "gp"]
    balanced_accuracy: Share
    top1: Share
    macro_f1: Share
    ece: Share
    groups: GroupFigures
    per_class_recall: list[Share | None]
    per_class_precision: list[Share | None]
    confusion: list[list[Count]]
    reliability: Bins


class Results(TypedDict):
    """The last evaluation, and the best ones."""

    last: Result | None
    best_on_validation: Result | None
    best_on_test: Result | None


@with_config(RELAXED)
class Summary(TypedDict):
    """``summary.json``: how a run ended."""

    status: Literal["finished", "stopped"]
    step: Count
    seconds: float
    results: Results
    files: dict[str, FileFacts]


class JournalState(TypedDict):
    """What a checkpoint keeps of the journal."""

    results: Results
    seconds: float
    metrics_size: Count


@with_config(RELAXED)
class RunState(TypedDict):
    """What a checkpoint keeps besides tensors. ``experiment`` and ``split`` are those it was trained with."""

    step: Count
    generation: Count
    labeled_counts: list[Count]
    journal: JournalState
    precision: dict[str, Any]
    experiment: dict[str, Any]
    split: SplitFacts


class CheckpointError(RuntimeError):
    """A checkpoint that cannot be read; the message says why, and which other one can."""


class Checkpoint(NamedTuple):
    """``tensors`` by name, such as "model.classifier.weight"; ``state`` is JSON."""

    tensors: dict[str, Tensor]
    state: dict[str, Any]

    def part(self, prefix: str) -> dict[str, Tensor]:
        """The tensors below a prefix, without it."""
        return {name.removeprefix(f"{prefix}."): value for name, value in self.tensors.items() if name.startswith(f"{prefix}.")}


class RunFolder:
    """Paths and files of one run.

    Args:
        path: of the folder; made when a run starts.
    """

    writes = True  # only the first of several processes does

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.metrics = path / "metrics.jsonl"
        self.split = path / "split.json"
        self.features = path / "features.json"
        self.summary = path / "summary.json"
        self.last = path / "checkpoints" / "last.safetensors"
        self.best = path / "checkpoints" / "best.safetensors"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only process that trains there; what one that was killed left half-written is removed."""
        with locked(self.path):
            remove_drafts(self.path)
            remove_drafts(self.last.parent)
            remove_litter(self.last.parent)
            yield

    def refuse_if_taken(self) -> None:
        """A folder that holds a run already is refused, never overwritten."""
        if self.config.exists():
            raise RunError(
                f"{self.path} already holds a run. Go on with it by --resume, or choose another folder; nothing is overwritten."
            )

    def start(self, experiment: Experiment, splits: Splits, groups: dict[str, list[int]]) -> None:
        """Begin a new run."""
        self.refuse_if_taken()
        write_json(self.path / "environment.json", environment())
        write_json(self.split, split_facts(splits) | {"class_groups": groups})
        with replacing(self.path / "split.npz") as draft:
            np.savez_compressed(draft, allow_pickle=False, **splits.indices())
        write_text(self.metrics, "")
        write_json(self.config, experiment.to_plain())

    def experiment(self) -> Experiment:
        """What the run was asked for; an error if a file of the folder is a pipe, as reading it would never end."""
        if (reason := trouble(self.metrics)) is not None:
            raise RunError(f"{printable(self.metrics)} cannot be read: {reason}.")
        plain = read_json(self.config, "no run was started there", dict[str, Any])
        try:
            return Experiment.from_plain(plain)
        except SettingError as error:
            raise RunError(f"{self.config} cannot be used: {error} {PUT_BACK}") from error

    def read_split(self) -> SplitFacts:
        """What the run was trained on."""
        return read_json(self.split, "the run was never begun", SplitFacts, check=_check_split)

    def split_names(self, part: str) -> list[str]:
        """Names of the images of a part, as ``split.npz`` has them; none if it has no such part."""
        path = self.path / "split.npz"
        try:
            must_be_file(path)
            with np.load(path, allow_pickle=False) as saved:
                return [str(name) for name in saved[f"{part}_names"]] if f"{part}_names" in saved else []
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise RunError(f"{path} cannot be read: {error}. {PUT_BACK}") from error

    def read_summary(self) -> Summary:
        """How the run ended."""
        remedy = "Delete it and resume the run: it is written again from the last checkpoint."
        return read_json(self.summary, "the run was never finished", Summary, remedy=remedy, check=_check_seal)

    def checkpoint(self, choice: Choice, experiment: Experiment, split: Mapping[str, Any]) -> Checkpoint:
        """The checkpoint of the last step or of the best one, which must be whole and of this very experiment and split.

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
                rest = f"{other} cannot be used either." if other.exists() else "There is no other checkpoint."
                raise CheckpointError(f"{error} {rest} Train anew in another folder.") from error
            offer = f"{other} is whole, of step {step}: "
            if choice == "last":
                offer += (
                    f"copy it to {path.name} beside it and resume, to go on from there; or use it as it is, --checkpoint best."
                )
            else:
                offer += "use it with --checkpoint last."
            raise CheckpointError(f"{error} {offer}") from error

    def _checked(self, path: Path, experiment: Experiment, split: Mapping[str, Any]) -> Checkpoint:
        saved = read_checkpoint(path)
        total = experiment.addon.generations

        def check(state: RunState) -> None:
            step, number, steps = state["step"], state["generation"], experiment.train.steps
            if not number < total:
                raise ValueError(f"generation must be below {total}, the generations of the run; got {number}")
            first, last = number * steps // total, (number + 1) * steps // total
            if not first <= step <= last:
                raise ValueError(f"step must lie in {first} to {last}, the steps of generation {number}; got {step}")
            if len(state["labeled_counts"]) != len(state["split"]["class_names"]):
                raise ValueError("labeled_counts must have one number for each class")

        try:
            state = files.validated(saved.state, RunState, path, check)
        except FileError as error:
            raise CheckpointError(f"the checkpoint {error}.") from error
        before, now = state["experiment"], experiment.to_plain()
        keys = {key for key in {*dotted_keys(before), *dotted_keys(now)} if not key.startswith(FREE)}
        self._same(path, self.config, {key: (_at(before, key), _at(now, key)) for key in sorted(keys)})
        self._same(path, self.split, {key: (value, split.get(key)) for key, value in state["split"].items()})
        return saved

    def _same(self, path: Path, file: Path, values: Mapping[str, tuple[Any, Any]]) -> None:
        for key, (before, now) in values.items():
            if before != now:
                raise RunError(
                    f"{file} has been changed since the run was trained: {key} is {shown(now)} there and was {shown(before)} "
                    f"when {path.name} was written. {PUT_BACK}"
                )

    def check_same(self, experiment: Experiment, splits: Splits) -> None:
        """Refuse to go on with other settings or other data than the run began with."""
        if changed := self.changed(experiment):
            raise RunError(
                f"{self.path} was begun with other settings: {changed}. "
                f"Resume it as it was, put {self.config.name} back if it was edited, or start a new run in another folder."
            )
        old = self.read_split()
        if old["sha256"] != splits.sha256:
            before, after = len(old["class_names"]), splits.n_classes
            classes = f" It had {before} classes, the data now have {after}." if before != after else ""
            raise RunError(
                f"the data have changed since {self.path} was begun (hash {old['sha256'][:12]}, now {splits.sha256[:12]})."
                f"{classes} Put them back as they were, or start a new run."
            )

    def changed(self, experiment: Experiment) -> str:
        """Which settings differ from those that the run was begun with, in words; nothing if none do."""
        asked, now = self.experiment().to_plain(), experiment.to_plain()
        changed = [key for key in {*dotted_keys(asked), *dotted_keys(now)} if _at(asked, key) != _at(now, key)]
        changed.sort(key=lambda key: (not key.endswith(".name"), key))  # another algorithm before what follows from it
        shown = "; ".join(f"{key} was {_at(asked, key)!r}, now {_at(now, key)!r}" for key in changed[:4])
        return f"{shown} and more" if len(changed) > 4 else shown

    def check_features(self, origin: dict[str, Any]) -> None:
        """Note what made the features of a frozen network, or refuse to go on with those that something else made."""
        if not self.features.exists():
            write_json(self.features, origin)
            return
        if read_json(self.features, "it is gone", dict[str, Any]) != origin:
            raise RunError(
                f"{self.path} was begun on features of another network, or cut otherwise ({self.features} says which). "
                "Put the weights back as they were, or start a new run in another folder."
            )

    def append(self, kind: str, step: int, **values: Any) -> dict[str, Any]:
        """Add one line to ``metrics.jsonl``."""
        entry = {"kind": kind, "step": step, **values}
        with writing(self.metrics), self.metrics.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        return entry

    def facts(self) -> Facts:
        """Sizes and hashes of what the run has written, by which a finished one is known to be whole."""
        files = (self.config, self.split, self.path / "split.npz", self.metrics, self.last, self.best)
        return facts_of(self.path, [str(file.relative_to(self.path)) for file in files])

    def metrics_size(self) -> int:
        """Bytes written so far, pushed to the disk, so that a checkpoint can name them."""
        with writing(self.metrics), self.metrics.open("a") as file:
            os.fsync(file.fileno())
            return file.tell()

    def rewind_metrics(self, size: int) -> None:
        """Forget what was written after a checkpoint."""
        held = self.metrics.stat().st_size if self.metrics.exists() else 0
        if held < size:
            raise RunError(
                f"{self.metrics} has lost lines since the checkpoint ({held} of {size} bytes). Put it back, or start anew."
            )
        with writing(self.metrics), self.metrics.open("a") as file:
            file.truncate(size)


def split_facts(splits: Splits) -> dict[str, Any]:
    """Classes, counts of each part, notes and hash."""
    truth = splits.unlabeled_truth[splits.unlabeled_truth >= 0]
    parts = {"labeled": splits.labeled, "validation": splits.validation, "test": splits.test}
    counts = {f"{part}_counts": None if images is None else _counts(images.labels, splits) for part, images in parts.items()}
    return {
        "class_names": list(splits.class_names),
        **counts,
        "unlabeled": len(splits.unlabeled),
        "unlabeled_counts": _counts(truth, splits) if len(truth) else None,
        "sha256": splits.sha256,
        "notes": list(splits.notes),
    }


def groups_of(splits: Splits) -> dict[str, list[int]]:
    """Class ids of many, medium and few, by what is known of the split."""
    unlabeled = split_facts(splits)["unlabeled_counts"]
    return class_groups(splits.class_counts, None if unlabeled is None else np.array(unlabeled))


def _counts(labels: npt.NDArray[np.int64], splits: Splits) -> list[int]:
    return [int(count) for count in np.bincount(labels, minlength=splits.n_classes)]


def environment() -> dict[str, str]:
    """Versions and machine, for whoever wants the same figures again."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return versions() | {"cpus": str(cores()), "torch threads": str(torch.get_num_threads()), "device": device}


def read_json(
    path: Path,
    what_if_missing: str,
    schema: type[T],
    *,
    remedy: str = PUT_BACK,
    check: Callable[[T], None] | None = None,
) -> T:
    """Read one, or say what its absence means."""
    try:
        return files.read_json(path, schema, error=RunError, remedy=remedy, check=check)
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist: {what_if_missing}.") from error


def _check_seal(summary: Summary) -> None:
    if not is_sealed(summary):
        raise ValueError("sha256 does not fit the rest, so something was changed since it was written")


def _check_split(split: SplitFacts) -> None:
    n_classes = len(split["class_names"])
    if not 0 < n_classes == len(set(split["class_names"])):
        raise ValueError(f"class_names must be different names; got {shown(split['class_names'])}")
    for key in ("labeled_counts", "validation_counts", "test_counts", "unlabeled_counts"):
        counts: list[int] | None = split[key]
        if counts is not None and len(counts) != n_classes:
            raise ValueError(f"{key} must have one number for each of {n_classes} classes; got {shown(counts)}")
    for name, classes in split["class_groups"].items():
        if any(number >= n_classes for number in classes):
            raise ValueError(f"class_groups.{name} must be below {n_classes}, the number of classes; got {shown(classes)}")


def _at(plain: Any, key: str) -> Any:
    for part in key.split("."):
        plain = plain.get(part) if isinstance(plain, dict) else None
    return plain


def write_checkpoint(path: Path, parts: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]) -> None:
    """Write a checkpoint beside ``path``, push it to the disk, then move it there; whatever fails, the old one stays.

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
            tensor_files.save(draft, tensors, state=state)
    except WriteError as error:
        size = sum(value.nbytes for value in tensors.values()) / 1e6
        raise WriteError(f"the checkpoint {error} It takes {size:.1f} MB.", passing=error.passing) from error


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint, every byte of which is verified."""
    try:
        with tensor_files.opened(path) as (file, facts):
            return Checkpoint({name: file.get_tensor(name) for name in file.keys()}, facts["state"])  # noqa: SIM118 - not a dict
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint {path}.") from error
    except FileError as error:
        raise CheckpointError(f"the checkpoint {error}.") from error
    except OSError as error:
        raise CheckpointError(f"the checkpoint {path} cannot be read: {error.strerror or error}.") from error
