"""The folder of a run: its settings, its split, one JSON line for everything that happened, and its
checkpoints.
"""

import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, NotRequired, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import with_config
from torch import Tensor
from typing_extensions import TypedDict

from semigpc.data import Splits
from semigpc.io import atomic
from semigpc.io.atomic import (
    RELAXED,
    Count,
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
from semigpc.io.text import printable, versions
from semigpc.io.threads import cores
from semigpc.training.experiment import Experiment
from semigpc.training.metrics import FIGURES, class_groups
from semigpc.training.run_files import (
    Head,
    Results,
    RunSummary,
    SplitFacts,
    check_split,
    check_summary,
)
from semigpc.training.settings import flattened

PUT_BACK = "Put it back as it was, or train anew in another folder."
REDO_SUMMARY = "Delete it and resume the run: it is written again from the last checkpoint."
# Settings that may change after training: where the data are by now, and what the machine can do.
FREE = ("data.", "train.eval_batch", "train.workers", "train.threads", "train.tensorboard")
SHOWN_CHANGES = (
    4  # settings that a message names; one change of algorithm brings many others with it
)

Choice = Literal["best", "last"]
T = TypeVar("T")


class JournalState(TypedDict):
    """What a checkpoint keeps of the journal."""

    results: Results
    head: NotRequired[Head | None]
    temperatures: NotRequired[dict[str, float]]
    seconds: float
    metrics_size: Count


@with_config(RELAXED)
class RunState(TypedDict):
    """What a checkpoint keeps besides tensors. ``experiment`` and ``split`` are those it was
    trained with.
    """

    step: Count
    generation: Count
    labeled_counts: list[Count]
    journal: JournalState
    precision: dict[str, Any]
    experiment: dict[str, Any]
    split: SplitFacts


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


class RunFolder:
    """Paths and files of one run.

    Args:
        path: of the folder; made when a run starts.
    """

    writes = True  # of several processes that train together, only the first one does

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
        """Be the only process that trains there; half-written files of a killed one are removed."""
        with locked(self.path):
            remove_drafts(self.path)
            remove_drafts(self.last.parent)
            remove_unfinished_tensors(self.last.parent)
            yield

    # Starting and resuming ------------------------------------------------------------------------

    def refuse_if_taken(self) -> None:
        """Raise a :class:`RunError` if the folder holds a run already: nothing is ever overwritten."""
        if self.config.exists():
            raise RunError(
                f"{self.path} already holds a run. Go on with it by --resume, or choose another folder; nothing is overwritten."
            )

    def start(self, experiment: Experiment, splits: Splits) -> None:
        """Write what a new run is made of, the settings last: with them the folder counts as taken."""
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        environment = {
            "cpus": str(cores()),
            "torch threads": str(torch.get_num_threads()),
            "device": device,
        }
        environment["precision"] = experiment.train.precision_on(
            "cuda" if torch.cuda.is_available() else "cpu"
        )
        environment["tf32"] = "on" if torch.backends.cuda.matmul.allow_tf32 else "off"
        write_json(self.path / "environment.json", versions() | environment)
        write_json(self.split, split_facts(splits))
        with replacing(self.path / "split.npz") as draft:
            np.savez_compressed(draft, allow_pickle=False, **splits.indices())
        write_text(self.metrics, "")
        write_json(self.config, experiment.to_plain())

    def check_same(self, experiment: Experiment, splits: Splits) -> None:
        """Raise a :class:`RunError` if the run was begun with other settings or other data than
        these.
        """
        if changes := self.changed(experiment):
            raise RunError(
                f"{self.path} was begun with other settings: {changes}. "
                f"Resume it as it was, put {self.config.name} back if it was edited, or start a new run in another folder."
            )
        before = self.read_split()
        if before["sha256"] != splits.sha256:
            n_before, n_now = len(before["class_names"]), splits.n_classes
            classes = (
                f" It had {n_before} classes, the data now have {n_now}."
                if n_before != n_now
                else ""
            )
            raise RunError(
                f"the data have changed since {self.path} was begun (hash {before['sha256'][:12]}, now {splits.sha256[:12]})."
                f"{classes} Put them back as they were, or start a new run."
            )

    def changed(self, experiment: Experiment) -> str:
        """Return a list in words of the settings that differ from those the run was begun with;
        empty if none do.
        """
        before, now = flattened(self.experiment().to_plain()), flattened(experiment.to_plain())
        keys = [key for key in {*before, *now} if before.get(key) != now.get(key)]
        keys.sort(
            key=lambda key: (not key.endswith(".name"), key)
        )  # another algorithm before what follows from it
        changes = "; ".join(
            f"{key} was {before.get(key)!r}, now {now.get(key)!r}" for key in keys[:SHOWN_CHANGES]
        )
        return f"{changes} and more" if len(keys) > SHOWN_CHANGES else changes

    def check_features(self, origin: dict[str, Any]) -> None:
        """Note which network made the features of a frozen run; raise a :class:`RunError` if
        another one had made them.
        """
        if not self.features.exists():
            write_json(self.features, origin)
            return
        if read_json(self.features, "it is gone", dict[str, Any]) != origin:
            raise RunError(
                f"{self.path} was begun on features of another network, or cut otherwise ({self.features} says which). "
                "Put the weights back as they were, or start a new run in another folder."
            )

    # Reading --------------------------------------------------------------------------------------

    def experiment(self) -> Experiment:
        """Return the experiment of ``config.json``."""
        if (
            reason := trouble(self.metrics)
        ) is not None:  # reading a pipe in its place would never end
            raise RunError(f"{printable(self.metrics)} cannot be read: {reason}.")
        plain = read_json(self.config, "no run was started there", dict[str, Any])
        try:
            return Experiment.from_plain(plain)
        except SettingsError as error:
            raise RunError(f"{self.config} cannot be used: {error} {PUT_BACK}") from error

    def read_split(self) -> SplitFacts:
        """Return what the run was trained on."""
        required = ("class_names", "labeled_counts", "unlabeled", "sha256", "notes", "class_groups")
        return read_json(
            self.split,
            "the run was never begun",
            SplitFacts,
            check=partial(check_split, required=required),
        )

    def split_names(self, part: str) -> list[str]:
        """Return the names of the images of a part, as ``split.npz`` has them; none if it has no
        such part.
        """
        path = self.path / "split.npz"
        try:
            must_be_file(path)
            with np.load(path, allow_pickle=False) as saved:
                return (
                    [str(name) for name in saved[f"{part}_names"]]
                    if f"{part}_names" in saved
                    else []
                )
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            raise RunError(f"{path} cannot be read: {error}. {PUT_BACK}") from error

    def read_summary(self) -> RunSummary:
        """Return how the run ended; the summary must be as it was written."""

        def check(summary: RunSummary) -> None:
            required = ("status", "step", "seconds", "results", "files")
            check_summary(summary, required=required, figures=("part", "head", "groups", *FIGURES))
            if not is_sealed(summary):
                raise ValueError(
                    "sha256 does not fit the rest, so something was changed since it was written"
                )

        return read_json(
            self.summary, "the run was never finished", RunSummary, remedy=REDO_SUMMARY, check=check
        )

    def checkpoint(
        self, choice: Choice, experiment: Experiment, split: Mapping[str, Any]
    ) -> Checkpoint:
        """Read the checkpoint of the last step or of the best one, which must be whole and of this
        experiment and split.

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
                rest = (
                    f"{other} cannot be used either."
                    if other.exists()
                    else "There is no other checkpoint."
                )
                raise CheckpointError(f"{error} {rest} Train anew in another folder.") from error
            use = "use it with --checkpoint last."
            if choice == "last":
                use = f"copy it to {path.name} beside it and resume, to go on from there; or use it as it is, --checkpoint best."
            raise CheckpointError(f"{error} {other} is whole, of step {step}: {use}") from error

    def _checked(self, path: Path, experiment: Experiment, split: Mapping[str, Any]) -> Checkpoint:
        saved, generations, steps = (
            read_checkpoint(path),
            experiment.addon.generations,
            experiment.train.steps,
        )

        def check(state: RunState) -> None:
            step, number = state["step"], state["generation"]
            if not number < generations:
                raise ValueError(
                    f"generation must be below {generations}, the generations of the run; got {number}"
                )
            first, last = number * steps // generations, (number + 1) * steps // generations
            if not first <= step <= last:
                raise ValueError(
                    f"step must lie in {first} to {last}, the steps of generation {number}; got {step}"
                )
            if len(state["labeled_counts"]) != len(state["split"].get("class_names", ())):
                raise ValueError("labeled_counts must have one number for each class")

        try:
            state = atomic.validated(saved.state, RunState, path, check)
        except FileError as error:
            raise CheckpointError(f"the checkpoint {error}.") from error
        before, now = flattened(state["experiment"]), flattened(experiment.to_plain())
        fixed = sorted(key for key in {*before, *now} if not key.startswith(FREE))
        for file, values in (
            (self.config, {key: (before.get(key), now.get(key)) for key in fixed}),
            (self.split, {key: (value, split.get(key)) for key, value in state["split"].items()}),
        ):
            for key, (then, today) in values.items():
                if then != today:
                    raise RunError(
                        f"{file} has been changed since the run was trained: {key} is {shown(today)} there and was "
                        f"{shown(then)} when {path.name} was written. {PUT_BACK}"
                    )
        return saved

    # Writing --------------------------------------------------------------------------------------

    def append(self, kind: str, step: int, **values: Any) -> dict[str, Any]:
        """Add one line to ``metrics.jsonl`` and return it."""
        entry = {"kind": kind, "step": step, **values}
        with writing(self.metrics), self.metrics.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        return entry

    def metrics_size(self) -> int:
        """Return the bytes written so far, pushed to the disk, so that a checkpoint can name them."""
        with writing(self.metrics), self.metrics.open("a") as file:
            os.fsync(file.fileno())
            return file.tell()

    def rewind_metrics(self, size: int) -> None:
        """Cut off the lines that were written after a checkpoint."""
        current = self.metrics.stat().st_size if self.metrics.exists() else 0
        if current < size:
            raise RunError(
                f"{self.metrics} has lost lines since the checkpoint ({current} of {size} bytes). Put it back, or start anew."
            )
        with writing(self.metrics), self.metrics.open("a") as file:
            file.truncate(size)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write ``summary.json``, with sizes and hashes of the other files, by which a finished run
        is known to be whole.
        """
        if self.writes:
            files = (
                self.config,
                self.split,
                self.path / "split.npz",
                self.metrics,
                self.last,
                self.best,
            )
            facts = facts_of(self.path, [str(file.relative_to(self.path)) for file in files])
            write_json(self.summary, sealed({**summary, "files": facts}))


# Files --------------------------------------------------------------------------------------------


def write_checkpoint(
    path: Path, parts: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any]
) -> None:
    """Write a checkpoint beside ``path``, push it to the disk, then move it there; whatever fails,
    the old one stays.

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
        raise WriteError(
            f"the checkpoint {error} It takes {size:.1f} MB.", passing=error.passing
        ) from error


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint and verify every byte of it."""
    try:
        with open_tensors(path) as (file, facts):
            return Checkpoint({name: file.get_tensor(name) for name in file.keys()}, facts["state"])  # noqa: SIM118 - not a dict
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no checkpoint {path}.") from error
    except FileError as error:
        raise CheckpointError(f"the checkpoint {error}.") from error
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {path} cannot be read: {error.strerror or error}."
        ) from error


def read_json(
    path: Path,
    what_if_missing: str,
    schema: type[T],
    *,
    remedy: str = PUT_BACK,
    check: Callable[[T], None] | None = None,
) -> T:
    """Read a JSON file as :func:`semigpc.io.atomic.read_json` does; a :class:`RunError` says what
    its absence means.
    """
    try:
        return atomic.read_json(path, schema, error=RunError, remedy=remedy, check=check)
    except FileNotFoundError as error:
        raise RunError(f"{path} does not exist: {what_if_missing}.") from error


def split_facts(splits: Splits) -> SplitFacts:
    """Return the classes, the counts of each part, the groups of classes by frequency, notes and
    the hash.
    """
    truth = splits.unlabeled_truth[splits.unlabeled_truth >= 0]
    unlabeled = _counts(truth, splits) if len(truth) else None
    return {
        "class_names": list(splits.class_names),
        "labeled_counts": _counts(splits.labeled.labels, splits),
        "validation_counts": None
        if splits.validation is None
        else _counts(splits.validation.labels, splits),
        "test_counts": None if splits.test is None else _counts(splits.test.labels, splits),
        "unlabeled": len(splits.unlabeled),
        "unlabeled_counts": unlabeled,
        "sha256": splits.sha256,
        "notes": list(splits.notes),
        "class_groups": class_groups(
            splits.class_counts, None if unlabeled is None else np.array(unlabeled)
        ),
    }


def _counts(labels: npt.NDArray[np.int64], splits: Splits) -> list[int]:
    return [int(count) for count in np.bincount(labels, minlength=splits.n_classes)]
