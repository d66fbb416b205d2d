"""The folder of a run: what was asked, where, on which split, and one JSON line for everything that happened."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from semigpc.data import Splits
from semigpc.files import Facts, facts_of, locked, remove_drafts, replacing, write_json, write_text, writing
from semigpc.threads import cores
from semigpc.training.experiment import Experiment
from semigpc.training.metrics import class_groups
from semigpc.training.settings import dotted_keys
from semigpc.versions import versions


class RunError(RuntimeError):
    """A run that cannot go on as asked; the message says how it can."""


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
        """What the run was asked for."""
        return Experiment.from_plain(read_json(self.config, "no run was started there"))

    def check_same(self, experiment: Experiment, splits: Splits) -> None:
        """Refuse to go on with other settings or other data than the run began with."""
        if changed := self.changed(experiment):
            raise RunError(
                f"{self.path} was begun with other settings: {changed}. "
                "Resume it as it was, or start a new run in another folder."
            )
        old = read_json(self.split, "its split is gone")
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
        if read_json(self.features, "it is gone") != origin:
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


def read_json(path: Path, what_if_missing: str) -> Any:
    """Read one, or say what its absence means."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise RunError(f"{path} does not exist: {what_if_missing}.") from error
    except (OSError, json.JSONDecodeError) as error:
        raise RunError(f"{path} cannot be read: {error}.") from error


def _at(plain: Any, key: str) -> Any:
    for part in key.split("."):
        plain = plain.get(part) if isinstance(plain, dict) else None
    return plain
