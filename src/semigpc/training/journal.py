"""What a run writes about itself: training lines, pseudo-label quality, evaluations, and which of them was best."""

import time
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from semigpc.data import Splits
from semigpc.training.evaluate import Evaluation
from semigpc.training.experiment import Experiment
from semigpc.training.metrics import METRIC, PseudoLabelStats
from semigpc.training.run_folder import RunFolder
from semigpc.types import Batch, StepOutput


class Listener:
    """Receives what happens, as it happens. Every method does nothing here; override those you need."""

    def features(self, done: int, total: int) -> None:
        """Features of ``done`` images are computed, of the ``total`` that were not cached."""

    def begin(self, first_step: int, total_steps: int) -> None:
        """Training starts at a step."""

    def step(self, step: int) -> None:
        """A step is done."""

    def entry(self, entry: dict[str, Any]) -> None:
        """A line of ``metrics.jsonl`` was written."""


class Journal:
    """Collects what steps return, writes it to the run folder, and remembers the best evaluation.

    Args:
        folder: of the run. experiment: what is run. splits: of the run, whose truth pseudo-labels are compared with.
        listener: receives everything that is written.
    """

    def __init__(self, folder: RunFolder, experiment: Experiment, splits: Splits, listener: Listener) -> None:
        self.folder, self.total_steps, self.listener = folder, experiment.train.steps, listener
        self.pseudo = PseudoLabelStats(splits.n_classes, splits.unlabeled_truth)
        self.results: dict[str, Any] = {"last": None, "best_on_validation": None, "best_on_test": None}
        self.head: str | None = None  # that is judged, by the last evaluation
        self.temperatures: dict[str, float] = {}
        self.seconds_before = 0.0
        self.began = time.perf_counter()
        self._clear()
        self._board = _tensorboard(folder) if experiment.train.tensorboard and folder.writes else None

    def _clear(self) -> None:
        self.sums: dict[str, Tensor | float] = defaultdict(float)
        self.steps, self.waited, self.window_began = 0, 0.0, time.perf_counter()

    def begin(self, first_step: int) -> None:
        """Start the clocks: training begins or goes on."""
        self.began = time.perf_counter()
        self._clear()
        self.listener.begin(first_step, self.total_steps)

    def record(self, step: int, output: StepOutput, batch: Batch, *, rate: float, waited: float) -> None:
        """Take in one step: its output, its learning rate, and the seconds it waited for data. The device is not waited for."""
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
        totals = torch.stack([torch.as_tensor(total).double() for total in self.sums.values()]).tolist()  # one wait for a GPU
        means = {name: total / self.steps for name, total in zip(self.sums, totals, strict=True)}
        speed = {"steps_per_second": self.steps / elapsed, "data_wait_share": self.waited / elapsed}
        self._write("train", step, window=self.steps, lr=self.rate, **means, **speed)
        window = self.pseudo.flush()
        if window is not None:
            self._write("pseudo", step, **window)
        self._clear()

    def note(self, step: int, message: str) -> None:
        """Write a note for the reader of the run."""
        self._write("note", step, message=message)

    def evaluated(self, step: int, evaluation: Evaluation, *, seconds: float) -> bool:
        """Write an evaluation that took so long; returns whether validation has never been better."""
        self.head, self.temperatures = evaluation.head, evaluation.temperatures
        entries = [self._write("eval", step, **result) for result in evaluation.results]
        judged = {entry["part"]: entry for entry in entries if entry["judged"]}
        if evaluation.screening is not None:
            self._write("screening", step, **evaluation.screening)
        test, validation = judged.get("test"), judged.get("validation")
        self.results["last"] = test or validation
        best = validation is not None and _better(validation, self.results["best_on_validation"], "chosen_by")
        if validation is not None and best:
            self.results["best_on_validation"] = (test or validation) | {"chosen_by": validation[METRIC]}
        if test is not None and _better(test, self.results["best_on_test"], METRIC):
            self.results["best_on_test"] = test
        self.window_began += seconds  # evaluation is no training time
        return best

    def finish(self, step: int, *, status: str, **facts: Any) -> dict[str, Any]:
        """Write ``summary.json`` with these facts, and return it."""
        summary = {
            "status": status,
            "step": step,
            "seconds": self._seconds(),
            "results": self.results,
            **self._confidence(),
            **facts,
        }
        self.folder.write_summary(summary)
        if self._board is not None:
            self._board.close()
        return summary

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the journal."""
        size = self.folder.metrics_size()
        return {"results": self.results, **self._confidence(), "seconds": self._seconds(), "metrics_size": size}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, and cut off the lines written after it."""
        self.results, self.seconds_before = state["results"], state["seconds"]
        self.head, self.temperatures = state.get("head"), state.get("temperatures", {})
        self.folder.rewind_metrics(state["metrics_size"])

    def _confidence(self) -> dict[str, Any]:
        return {"head": self.head, "temperatures": self.temperatures}

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.began

    def _write(self, kind: str, step: int, **values: Any) -> dict[str, Any]:
        entry = self.folder.append(kind, step, **values)
        self.listener.entry(entry)
        if self._board is not None:
            prefix = "/".join([kind, *(str(values[key]) for key in ("part", "head") if key in values)])
            for name, value in values.items():
                if isinstance(value, float):
                    self._board.add_scalar(f"{prefix}/{name}", value, step)
        return entry


def _better(entry: dict[str, Any], best: dict[str, Any] | None, key: str) -> bool:
    return best is None or entry[METRIC] > best[key]


def _tensorboard(folder: RunFolder) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("train.tensorboard needs the extra: pip install 'semigpc[tensorboard]'.") from error
    return SummaryWriter(str(folder.path / "tensorboard"))
