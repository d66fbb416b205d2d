"""What a run writes about itself: training lines, pseudo-label quality, evaluations, and which of
them was best.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from semigpc.data import Splits
from semigpc.refiners import NoRefiner, Refiner
from semigpc.training.calibration import UNCALIBRATED
from semigpc.training.evaluate import Evaluation
from semigpc.training.experiment import Experiment
from semigpc.training.metrics import METRIC, Array, Head, PseudoFigures, PseudoLabelStats
from semigpc.training.run_folder import (
    CheckState,
    LogState,
    MetricsLine,
    Results,
    RunFolder,
    RunSummary,
)
from semigpc.types import Batch, StepOutput

CHECK_STEPS = 200  # over which pseudo-labels must be useless before a note says so
# share of pseudo-labels: ties and single images do not hide that the others are of no use
NEARLY = 0.001
# pseudo-labels per class, on average, before their classes are compared with those of the labels
CHECK_ROWS = 20
HARDLY = 0.1  # a class with less than this part of its share among the labels hardly occurs


class Listener:
    """Receives what happens, as it happens. Every method does nothing here; override those you
    need.
    """

    def features(self, done: int, total: int) -> None:
        """Features of ``done`` images are computed, of the ``total`` that were not cached."""

    def begin(self, first_step: int, total_steps: int) -> None:
        """Training starts at a step."""

    def step(self, step: int) -> None:
        """A step is done."""

    def entry(self, entry: MetricsLine) -> None:
        """A line of ``metrics.jsonl`` was written."""


class Journal:
    """Collects what steps return, writes it to the run folder, and remembers the best evaluation.

    Args:
        folder: of the run. experiment: what is run. splits: of the run, whose truth pseudo-labels
            are compared with.
        listener: receives everything that is written.
    """

    def __init__(
        self, folder: RunFolder, experiment: Experiment, splits: Splits, listener: Listener
    ) -> None:
        self.folder, self.total_steps, self.listener = folder, experiment.train.steps, listener
        self.pseudo = PseudoLabelStats(splits.n_classes, splits.unlabeled_truth)
        self.checks = PseudoLabelChecks(experiment, splits)
        self.refiner: Refiner = NoRefiner()
        self.checked_from = 0
        self.results: Results = {
            "last": None,
            "best_on_validation": None,
            "best_on_test": None,
        }
        self.head: Head | None = None  # that is judged, by the last evaluation
        self.temperatures: dict[Head, float] = {}
        self.seconds_before = 0.0
        self.began = time.perf_counter()
        self._clear()
        self._board = (
            _tensorboard(folder) if experiment.train.tensorboard and folder.writes else None
        )

    def _clear(self) -> None:
        self.sums: dict[str, Tensor | float] = defaultdict(float)
        self.steps, self.waited, self.window_began = 0, 0.0, time.perf_counter()

    def begin(self, first_step: int) -> None:
        """Start the clocks: training begins or goes on."""
        self.began = time.perf_counter()
        self._clear()
        self.listener.begin(first_step, self.total_steps)

    def follow(self, refiner: Refiner, checked_from: int) -> None:
        """Log the scales of this GP from now on, and check pseudo-labels from a step on, where
        warm-ups are over.
        """
        self.refiner = refiner
        self.checked_from = checked_from

    def record(
        self, step: int, output: StepOutput, batch: Batch, *, rate: float, waited: float
    ) -> None:
        """Take in one step: its output, its learning rate, and the seconds it waited for data. The
        device is not waited for.
        """
        for name, value in {"loss": output.loss, **output.metrics}.items():
            self.sums[name] = self.sums[name] + value.detach()
        if output.pseudo is not None:
            self.pseudo.add(output.pseudo, batch.view_index)
        self.steps, self.waited, self.rate = self.steps + 1, self.waited + waited, rate
        self.listener.step(step)

    def log(self, step: int) -> None:
        """Write the means since the last time."""
        if not self.steps:
            return
        elapsed = time.perf_counter() - self.window_began
        scales = dict(self.refiner.scales)
        tensors = self.sums | {
            name: scale for name, scale in scales.items() if isinstance(scale, Tensor)
        }
        numbers = torch.stack(
            [torch.as_tensor(tensor).double() for tensor in tensors.values()]
        ).tolist()  # one wait for a GPU
        values = scales | dict(zip(tensors, numbers, strict=True))
        means = {name: values.pop(name) / self.steps for name in self.sums}
        speed = {"steps_per_second": self.steps / elapsed, "data_wait_share": self.waited / elapsed}
        own = {"window": self.steps, "lr": self.rate}
        self._write("train", step, own | means | values | speed)
        window = self.pseudo.flush()
        if window is not None:
            self._write("pseudo", step, window)
            if step - self.steps >= self.checked_from:
                for message in self.checks.add(window, values):
                    self.note(step, message)
        self._clear()

    def note(self, step: int, message: str) -> None:
        """Write a note for the reader of the run."""
        self._write("note", step, {"message": message})

    def evaluated(self, step: int, evaluation: Evaluation, *, last: bool, seconds: float) -> bool:
        """Write an evaluation, the last or not, that took so long; returns whether validation has
        never been better.
        """
        self.head, self.temperatures = evaluation.head, evaluation.temperatures
        if last and not self.temperatures:
            self.note(
                step, f"{UNCALIBRATED} No class has two labels, or there are no unlabelled images."
            )
        entries = [self._write("eval", step, result) for result in evaluation.results]
        judged = {entry["part"]: entry for entry in entries if entry["judged"]}
        if evaluation.screening is not None:
            self._write("screening", step, evaluation.screening)
        test, validation = judged.get("test"), judged.get("validation")
        self.results["last"] = test or validation
        self.window_began += seconds  # evaluation is no training time
        best_test = self.results["best_on_test"]
        if test is not None and (best_test is None or test[METRIC] > best_test[METRIC]):
            self.results["best_on_test"] = test
        best = self.results["best_on_validation"]
        if validation is None or (best is not None and validation[METRIC] <= best["chosen_by"]):
            return False
        chosen = test or validation
        self.results["best_on_validation"] = {**chosen, "chosen_by": validation[METRIC]}
        return True

    def finish(self, step: int, facts: RunSummary) -> RunSummary:
        """Write ``summary.json`` with these facts, and return it."""
        summary: RunSummary = {
            "step": step,
            "seconds": self._seconds(),
            "results": self.results,
            "head": self.head,
            "temperatures": self.temperatures,
            **facts,
        }
        self.folder.write_summary(summary)
        if self._board is not None:
            self._board.close()
        return summary

    def state(self) -> LogState:
        """Return what a checkpoint stores of the log."""
        return {
            "results": self.results,
            "checks": self.checks.state,
            "head": self.head,
            "temperatures": self.temperatures,
            "seconds": self._seconds(),
            "metrics_size": self.folder.metrics_size(),
        }

    def restore(self, state: LogState) -> None:
        """Go on from a checkpoint, and cut off the lines written after it."""
        self.results, self.seconds_before = state["results"], state["seconds"]
        self.checks.state |= state["checks"]
        self.head, self.temperatures = state["head"], state["temperatures"]
        self.folder.rewind_metrics(state["metrics_size"])

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began

    def _write(self, kind: str, step: int, values: Mapping[str, Any]) -> MetricsLine:
        entry = self.folder.append(kind, step, values)
        self.listener.entry(entry)
        if self._board is not None:
            prefix = "/".join(
                [kind, *(str(values[key]) for key in ("part", "head") if key in values)]
            )
            for name, value in values.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{prefix}/{name}", value, step)
        return entry


class PseudoLabelChecks:
    """Finds pseudo-labels that are of no use: (nearly) none accepted, all accepted, or far from the
    classes of the labels.

    Each is noted once per run, with the settings to change. All accepted is as intended without a
    threshold, and in the first thousand steps of FreeMatch, whose own threshold starts at 1/C.

    Args:
        experiment: what is run. splits: of the run.
    """

    def __init__(self, experiment: Experiment, splits: Splits) -> None:
        self.experiment, self.names, self.labeled = (
            experiment,
            splits.class_names,
            splits.class_counts,
        )
        self.state: CheckState = {
            "none": 0,
            "every": 0,
            "steps": 0,
            "believed": [0] * splits.n_classes,
            "noted": [],
        }

    def add(self, window: PseudoFigures, scales: Mapping[str, float]) -> Iterator[str]:
        """Take in a window of :class:`PseudoLabelStats`, with the GP's scales at its end, and yield
        what to note.
        """
        state, steps, coverage = self.state, window["window"], window["coverage"]
        state["none"] = state["none"] + steps if coverage < NEARLY else 0
        state["every"] = state["every"] + steps if coverage > 1 - NEARLY else 0
        if coverage >= NEARLY:  # where nothing is accepted, the classes do not matter
            state["steps"] += steps
            state["believed"] = [
                a + b for a, b in zip(state["believed"], window["believed_counts"], strict=True)
            ]
        found = {}
        if state["none"] >= CHECK_STEPS and self.experiment.algorithm.has_threshold:
            found["none"] = self._none_accepted(scales)
        if state["every"] >= CHECK_STEPS and self.experiment.algorithm.threshold:
            found["every"] = self._every_accepted(scales)
        if state["steps"] >= CHECK_STEPS and sum(state["believed"]) >= CHECK_ROWS * len(self.names):
            if (hardly := hardly_believed(np.array(state["believed"]), self.labeled)) is not None:
                found["classes"] = self._far_from_labels(hardly, scales)
            state["steps"], state["believed"] = 0, [0] * len(self.names)
        for kind, message in found.items():
            if kind not in state["noted"]:
                state["noted"] = [*state["noted"], kind]
                yield message

    def _none_accepted(self, scales: Mapping[str, float]) -> str:
        raised = [
            f"raise {self._now(name, scales)}"
            for name in scales
            if name not in self.experiment.refiner.automatic
        ]
        smoothing = self.experiment.algorithm.smoothing
        raised += [f"raise algorithm.smoothing (now {smoothing:g})"] if smoothing < 1 else []
        return (
            f"Fewer than 1 in 1000 pseudo-labels were accepted in the last {self.state['none']} steps, so only labels train "
            f"the network. To accept some, {_either(*raised, *self._threshold('lower'), 'raise train.steps')}."
        )

    def _every_accepted(self, scales: Mapping[str, float]) -> str:
        lowered = [f"lower {self._now('logit_scale', scales)}"] if scales else []
        return (
            f"All but 1 in 1000 pseudo-labels were accepted in the last {self.state['every']} steps, so the threshold excludes "
            f"nothing. Unless nearly all are right, {_either(*lowered, *self._threshold('raise'))}."
        )

    def _far_from_labels(self, hardly: int, scales: Mapping[str, float]) -> str:
        believed = np.array(self.state["believed"])
        prior = (
            ["set refiner.class_prior=frequency"]
            if self.experiment.refiner.class_prior == "none"
            else []
        )
        other = [f"change {self._now('length_scale', scales)}"] if "length_scale" in scales else []
        other = other if scales else ["use the GP (--refiner gp)"]
        return (
            f"The pseudo-labels are far from the labels: in the last {self.state['steps']} steps {hardly} of {len(believed)} "
            f"classes had less than a tenth of their share among the labels, and {100 * believed.max() / believed.sum():.1f}% of "
            f"the pseudo-labels were {self.names[believed.argmax()]!r}. Unless the unlabelled images are of so few classes, "
            f"{_either(*prior, *other, 'lower train.lr')}."
        )

    def _threshold(self, verb: str) -> list[str]:
        threshold = self.experiment.algorithm.threshold
        return [f"{verb} algorithm.threshold (now {threshold:g})"] if threshold else []

    def _now(self, name: str, scales: Mapping[str, float]) -> str:
        auto = (
            ", chosen by auto"
            if name in self.experiment.refiner.automatic
            else "; auto chooses one"
        )
        return f"refiner.{name} (now {scales[name]:.4g}{auto})"


def hardly_believed(believed: Array, labeled: Array) -> int | None:
    """Return how many classes hardly occur among pseudo-labels where these have collapsed onto a
    few classes, else None.

    r_c = (b_c / sum b) / (n_c / sum n) compares shares among pseudo-labels and labels. Classes with
    r_c < 0.1 hardly occur, and a collapse is that more than half of them do, or that one class has
    everything. Where labels are balanced and the largest class of the unlabelled images is g times
    the smallest, correct pseudo-labels have a median r of about ln(g) / sqrt(g): 0.46 at g = 100,
    0.22 at g = 1000. So neither rare classes nor balanced labels are taken for a collapse.

    Args:
        believed: (C,) pseudo-labels of each class. labeled: (C,) labelled images of each class,
            none of them 0.
    """
    hardly = int((believed / believed.sum() < HARDLY * labeled / labeled.sum()).sum())
    return hardly if 2 * hardly > len(believed) or (believed > 0).sum() == 1 else None


def _either(*changes: str) -> str:
    return " or ".join(filter(None, (", ".join(changes[:-1]), changes[-1])))


def _tensorboard(folder: RunFolder) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            "train.tensorboard needs the extra: pip install 'semigpc[tensorboard]'."
        ) from error
    return SummaryWriter(str(folder.path / "tensorboard"))
