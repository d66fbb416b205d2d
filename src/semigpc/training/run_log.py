"""The log of a run as it goes on: means of steps, pseudo-labels, evaluations, the best of them."""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from semigpc.algorithms import ALGORITHMS
from semigpc.data import Splits
from semigpc.refiners import NoRefiner, Refiner
from semigpc.training.calibration import UNCALIBRATED
from semigpc.training.evaluate import Evaluation
from semigpc.training.experiment import Experiment
from semigpc.training.metrics import Array, Head, PseudoFigures, PseudoLabelStats
from semigpc.training.run_folder import (
    CheckState,
    LogState,
    MetricsLine,
    Results,
    RunFolder,
    RunSummary,
    add_evaluation,
    standing,
)
from semigpc.types import Batch, StepOutput

CHECK_STEPS = 200  # steps over which pseudo-labels must be useless before a note is written
# share of pseudo-labels; a tie or a single image does not hide that the others are useless
NEARLY_NONE = 0.001
CHECK_LABELS = 20  # pseudo-labels per class, on average, before classes are compared
# Estimated accuracy of a trained network from which its own labels are trusted: 0.70 to 0.96 where
# they helped, 0.54 where 17 % of them were right.
LEAST_ACCURACY = 0.65
RARE_SHARE = 0.1  # a class with less than this part of its share among the labels hardly occurs


class Listener:
    """Receives progress; every method does nothing here, override those you need."""

    def features(self, done: int, total: int) -> None:
        """Features of ``done`` images are computed, of the ``total`` that were not cached."""

    def begin(self, first_step: int, total_steps: int) -> None:
        """Training starts at a step."""

    def step(self, step: int) -> None:
        """A step is done."""

    def entry(self, entry: MetricsLine) -> None:
        """A line of ``metrics.jsonl`` was written."""


class RunLog:
    """Collects what steps return, writes it to the run folder, and keeps the best evaluation.

    Args:
        folder: of the run. experiment: what is run. splits: of the run, whose truth pseudo-labels
            are compared with.
        listener: receives everything that is written.
    """

    def __init__(
        self, folder: RunFolder, experiment: Experiment, splits: Splits, listener: Listener
    ) -> None:
        self.folder = folder
        self.total_steps = experiment.train.steps
        # With frozen features wrong labels do not spoil what the heads see.
        unlabeled = bool(ALGORITHMS[experiment.algorithm_name].build.views)
        self.trusts_itself = unlabeled and experiment.frozen is None
        self.listener = listener
        self.pseudo = PseudoLabelStats(splits.n_classes, splits.unlabeled_truth)
        self.checks = PseudoLabelChecks(experiment, splits)
        self.refiner: Refiner = NoRefiner()
        self.checked_from = 0
        self.results: Results = {"last": None, "best_on_validation": None, "best_on_test": None}
        self.head: Head | None = None  # chosen by the last evaluation
        self.temperatures: dict[Head, float] = {}
        self.seconds_before = 0.0
        self.began = time.perf_counter()
        self._clear()

    def _clear(self) -> None:
        self.sums: dict[str, Tensor | float] = defaultdict(float)
        self.steps = 0
        self.waited = 0.0
        self.window_began = time.perf_counter()

    def begin(self, first_step: int) -> None:
        """Start the clocks: training begins or goes on."""
        self.began = time.perf_counter()
        self._clear()
        self.listener.begin(first_step, self.total_steps)

    def follow(self, refiner: Refiner, checked_from: int) -> None:
        """Log the scales of this refiner, and check pseudo-labels from the end of warm-ups on."""
        self.refiner = refiner
        self.checked_from = checked_from

    def record(
        self, step: int, output: StepOutput, batch: Batch, *, rate: float, waited: float
    ) -> None:
        """Add one step, with its learning rate and the seconds that it waited for data.

        The host does not wait for the device.
        """
        for name, value in {"loss": output.loss, **output.metrics}.items():
            self.sums[name] = self.sums[name] + value.detach()
        if output.pseudo is not None:
            self.pseudo.add(output.pseudo, batch.view_index)
        self.steps += 1
        self.waited += waited
        self.rate = rate
        self.listener.step(step)

    def log(self, step: int) -> None:
        """Write the means since the last time."""
        if not self.steps:
            return
        elapsed = time.perf_counter() - self.window_began
        sums, scales = self._numbers()
        line: dict[str, float] = {"window": self.steps, "lr": self.rate}
        line |= {name: total / self.steps for name, total in sums.items()}
        line |= scales
        line["steps_per_second"] = self.steps / elapsed
        line["data_wait_share"] = self.waited / elapsed
        self._write("train", step, line)
        window = self.pseudo.flush()
        if window is not None:
            self._write("pseudo", step, window)
            if step - self.steps >= self.checked_from:
                for message in self.checks.add(window, scales):
                    self.note(step, message)
        self._clear()

    def _numbers(self) -> tuple[dict[str, float], dict[str, float]]:
        """Return the sums over steps and the refiner's scales, waiting for a GPU once."""
        values = {**self.sums, **self.refiner.scales}
        tensors = {name: value for name, value in values.items() if isinstance(value, Tensor)}
        stacked = torch.stack([value.double() for value in tensors.values()])
        numbers = {**values, **dict(zip(tensors, stacked.tolist(), strict=True))}
        sums = {name: float(numbers[name]) for name in self.sums}
        return sums, {name: float(numbers[name]) for name in self.refiner.scales}

    def note(self, step: int, message: str) -> None:
        """Write a note for the reader of the run."""
        self._write("note", step, {"message": message})

    def evaluated(self, step: int, evaluation: Evaluation, *, last: bool, seconds: float) -> bool:
        """Write an evaluation that took so many seconds; return whether validation is best so far.

        ``last`` is True for the evaluation at the end of the run.
        """
        self.head = evaluation.head
        self.temperatures = evaluation.temperatures
        if last and not self.temperatures and self.head != "label":
            reason = "No class has two labels, or there are no unlabelled images."
            self.note(step, f"{UNCALIBRATED} {reason}")
        accuracy = evaluation.accuracy
        if last and self.trusts_itself and accuracy is not None and accuracy < LEAST_ACCURACY:
            self.note(step, _hardly_right(accuracy))
        lines = [self._write("eval", step, result) for result in evaluation.results]
        if evaluation.screening is not None:
            self._write("screening", step, evaluation.screening)
        self.window_began += seconds  # evaluation is no training time
        is_best = add_evaluation(self.results, lines)
        best = self.results["best_on_validation"]
        if is_best and best is not None:
            best["temperatures"] = evaluation.temperatures
        return is_best

    def forget_head(self) -> None:
        """Forget the head and its temperatures: a fresh network has not been evaluated."""
        self.head = None
        self.temperatures = {}

    def finish(self, step: int, head: Head, facts: RunSummary) -> RunSummary:
        """Write ``summary.json`` with these facts, and return it.

        Args:
            step, head: of the last checkpoint. facts: that the log does not know.
        """
        best = self.results["best_on_validation"]
        stands_for = standing(self.results, step, head)
        summary: RunSummary = {
            "step": step,
            "seconds": self._seconds(),
            "results": self.results,
            "checkpoint": stands_for.checkpoint,
            "head": stands_for.head,
            "temperatures": self.temperatures if best is None else best.get("temperatures", {}),
            **facts,
        }
        self.folder.write_summary(summary)
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
        self.results = state["results"]
        self.seconds_before = state["seconds"]
        self.checks.state |= state["checks"]
        self.head = state["head"]
        self.temperatures = state["temperatures"]
        self.folder.rewind_metrics(state["metrics_size"])

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began

    def _write(self, kind: str, step: int, values: Mapping[str, object]) -> MetricsLine:
        line = self.folder.append(kind, step, values)
        self.listener.entry(line)
        return line


def _hardly_right(accuracy: float) -> str:
    return (
        f"By the run's own estimate, about {100 * accuracy:.0f}% of its labels are right: too few "
        "to say that the unlabelled images help. Training on wrong labels can make a network worse "
        "than training on the labels alone. Compare with algorithm=supervised on labelled images "
        "that neither trains on, and label more images."
    )


class PseudoLabelChecks:
    """Finds useless pseudo-labels: nearly none accepted, nearly all, or far from the labels.

    Each is noted once per run, with the settings to change. All accepted is as intended without a
    threshold, and in the first thousand steps of FreeMatch, whose own threshold starts at 1/C.

    Args:
        experiment: what is run. splits: of the run.
    """

    def __init__(self, experiment: Experiment, splits: Splits) -> None:
        self.algorithm = experiment.algorithm
        self.refiner = experiment.refiner
        self.names = splits.class_names
        self.labeled = splits.class_counts
        self.state: CheckState = {
            "none": 0,
            "every": 0,
            "steps": 0,
            "believed": [0] * splits.n_classes,
            "noted": [],
        }

    def add(self, window: PseudoFigures, scales: Mapping[str, float]) -> Iterator[str]:
        """Add a window of pseudo-labels, with the GP's scales at its end; yield new notes."""
        state = self.state
        steps = window["window"]
        coverage = window["coverage"]
        state["none"] = state["none"] + steps if coverage < NEARLY_NONE else 0
        state["every"] = state["every"] + steps if coverage > 1 - NEARLY_NONE else 0
        if coverage >= NEARLY_NONE:  # where nothing is accepted, the classes do not matter
            state["steps"] += steps
            counts = np.add(state["believed"], window["believed_counts"])
            state["believed"] = counts.tolist()
        messages = {}
        if state["none"] >= CHECK_STEPS and self.algorithm.has_threshold:
            messages["none"] = self._none_accepted(scales)
        if state["every"] >= CHECK_STEPS and self.algorithm.threshold:
            messages["every"] = self._every_accepted(scales)
        enough = sum(state["believed"]) >= CHECK_LABELS * len(self.names)
        if state["steps"] >= CHECK_STEPS and enough:
            rare = collapsed_classes(np.array(state["believed"]), self.labeled)
            if rare is not None:
                messages["classes"] = self._far_from_labels(rare, scales)
            state["steps"] = 0
            state["believed"] = [0] * len(self.names)
        for kind, message in messages.items():
            if kind not in state["noted"]:
                state["noted"] = [*state["noted"], kind]
                yield message

    def _none_accepted(self, scales: Mapping[str, float]) -> str:
        changes = [
            f"raise {self._now(name, scales)}"
            for name in scales
            if name not in self.refiner.automatic
        ]
        if self.algorithm.smoothing < 1:
            changes.append(f"raise algorithm.smoothing (now {self.algorithm.smoothing:g})")
        changes += [*self._threshold("lower"), "raise train.steps"]
        return (
            f"Fewer than 1 in 1000 pseudo-labels were accepted in the last {self.state['none']} "
            f"steps, so only labels train the network. To accept some, {_either(changes)}."
        )

    def _every_accepted(self, scales: Mapping[str, float]) -> str:
        changes = [f"lower {self._now('logit_scale', scales)}"] if scales else []
        changes += self._threshold("raise")
        return (
            f"All but 1 in 1000 pseudo-labels were accepted in the last {self.state['every']} "
            "steps, so the threshold excludes nothing. Unless nearly all are right, "
            f"{_either(changes)}."
        )

    def _far_from_labels(self, rare: int, scales: Mapping[str, float]) -> str:
        believed = np.array(self.state["believed"])
        largest = int(believed.argmax())
        changes = []
        if self.refiner.class_prior == "none":
            changes.append("set refiner.class_prior=frequency")
        if "length_scale" in scales:
            changes.append(f"change {self._now('length_scale', scales)}")
        if not scales:
            changes.append("use the GP (refiner=gp)")
        changes.append("lower train.lr")
        return (
            "The pseudo-labels are far from the labels: in the last "
            f"{self.state['steps']} steps {rare} of {len(believed)} classes had less than a tenth "
            f"of their share among the labels, and {100 * believed[largest] / believed.sum():.1f}% "
            f"of the pseudo-labels were {self.names[largest]!r}. Unless the unlabelled images are "
            f"of so few classes, {_either(changes)}."
        )

    def _threshold(self, verb: str) -> list[str]:
        threshold = self.algorithm.threshold
        return [f"{verb} algorithm.threshold (now {threshold:g})"] if threshold else []

    def _now(self, name: str, scales: Mapping[str, float]) -> str:
        automatic = name in self.refiner.automatic
        auto = ", chosen by auto" if automatic else "; auto chooses one"
        return f"refiner.{name} (now {scales[name]:.4g}{auto})"


def collapsed_classes(believed: Array, labeled: Array) -> int | None:
    """Return how many classes hardly occur where pseudo-labels have collapsed, else None.

    r_c = (b_c / sum b) / (n_c / sum n) compares shares among pseudo-labels and labels. Classes with
    r_c < 0.1 hardly occur, and a collapse is that more than half of them do, or that one class has
    everything. Where labels are balanced and the largest class of the unlabelled images is g times
    the smallest, correct pseudo-labels have a median r of about ln(g) / sqrt(g): 0.46 at g = 100,
    0.22 at g = 1000. So neither rare classes nor balanced labels are taken for a collapse.

    Args:
        believed: (C,) pseudo-labels of each class. labeled: (C,) labelled images of each class,
            none of them 0.
    """
    rare = int((believed / believed.sum() < RARE_SHARE * labeled / labeled.sum()).sum())
    return rare if 2 * rare > len(believed) or (believed > 0).sum() == 1 else None


def _either(changes: list[str]) -> str:
    """Join as in "a, b or c"."""
    *first, last = changes
    return f"{', '.join(first)} or {last}" if first else last
