"""What a run tells: training lines, pseudo-label quality, evaluations, and which of them was best."""

import time
from collections import defaultdict
from typing import Any

from torch import Tensor

from semigpc.data import ImageSet, Splits, ViewSource, eval_loader
from semigpc.files import sealed, write_json
from semigpc.training.evaluate import evaluate, headline_head, predict, refilled, screening
from semigpc.training.experiment import Experiment
from semigpc.training.metrics import PseudoLabelStats
from semigpc.training.run_folder import RunFolder
from semigpc.training.state import Trainer, gp_of
from semigpc.types import Batch, StepOutput

METRIC = "balanced_accuracy"  # what best means


class Listener:
    """Told what happens, as it happens. Every method does nothing here; override what you want to hear."""

    def features(self, done: int, total: int) -> None:
        """Features of so many images are computed, of those that were not cached."""

    def begin(self, first_step: int, total_steps: int) -> None:
        """Training starts at a step."""

    def step(self, step: int) -> None:
        """A step is done."""

    def entry(self, entry: dict[str, Any]) -> None:
        """A line of ``metrics.jsonl`` was written."""


class Journal:
    """Collects what steps say, writes it to the run folder, evaluates, and remembers the best.

    Args:
        folder: of the run. experiment, splits, source: what is run. groups: class ids of many, medium, few.
        listener: told about everything that is written.
    """

    def __init__(
        self,
        folder: RunFolder,
        experiment: Experiment,
        splits: Splits,
        source: ViewSource,
        groups: dict[str, list[int]],
        listener: Listener,
    ) -> None:
        self.folder, self.experiment, self.splits, self.source = folder, experiment, splits, source
        self.groups, self.listener = groups, listener
        self.pseudo = PseudoLabelStats(splits.n_classes, splits.unlabeled_truth)
        self.results: dict[str, Any] = {"last": None, "best_on_validation": None, "best_on_test": None}
        self.seconds_before = 0.0
        self.began = time.perf_counter()
        self._clear()
        self._board = _tensorboard(folder) if experiment.train.tensorboard and folder.writes else None

    def _clear(self) -> None:
        self.sums: dict[str, Tensor | float] = defaultdict(float)
        self.steps, self.waited, self.window_began = 0, 0.0, time.perf_counter()

    # Training -------------------------------------------------------------------------------------------------------

    def sees(self, splits: Splits, source: ViewSource) -> None:
        """The data as the coming steps have them: later generations of a run have more labels."""
        self.splits, self.source = splits, source

    def begin(self, first_step: int) -> None:
        """Training starts or goes on."""
        self.began = time.perf_counter()
        self._clear()
        self.listener.begin(first_step, self.experiment.train.steps)

    def record(self, step: int, output: StepOutput, batch: Batch, *, rate: float, waited: float) -> None:
        """Take in what one step said."""
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
        means = {name: float(total) / self.steps for name, total in self.sums.items()}
        speed = {"steps_per_second": self.steps / elapsed, "data_wait_share": self.waited / elapsed}
        self._write("train", step, window=self.steps, lr=self.rate, **means, **speed)
        window = self.pseudo.flush()
        if window is not None:
            self._write("pseudo", step, **window)
        self._clear()

    def note(self, step: int, message: str) -> None:
        """Write a remark for whoever reads the run."""
        self._write("note", step, message=message)

    # Judging --------------------------------------------------------------------------------------------------------

    def evaluate(self, step: int, trainer: Trainer) -> bool:
        """Judge on validation and test images; answers whether validation has never been better."""
        began, best = time.perf_counter(), False
        headline, entries = headline_head(trainer.refiner), {}
        for part, images in (("validation", self.splits.validation), ("test", self.splits.test)):
            if images is None:
                continue
            heads = self._judge(images, trainer)
            for head, figures in heads.items():
                entry = self._write("eval", step, part=part, head=head, **figures)
                if head == (headline if headline in heads else "linear"):
                    entries[part] = entry
        if (screened := screening(self.experiment, self.splits, self.source, trainer)) is not None:
            self._write("screening", step, **screened)
        test, validation = entries.get("test"), entries.get("validation")
        self.results["last"] = test or validation
        if validation is not None and _better(validation, self.results["best_on_validation"], "chosen_by"):
            best = True
            self.results["best_on_validation"] = (test or validation) | {"chosen_by": validation[METRIC]}
        if test is not None and _better(test, self.results["best_on_test"], METRIC):
            self.results["best_on_test"] = test
        self.window_began += time.perf_counter() - began  # evaluation is no training time
        return best

    def _judge(self, images: ImageSet, trainer: Trainer) -> dict[str, dict[str, Any]]:
        config, gp, device = self.experiment.train, gp_of(trainer.refiner), trainer.fabric.device
        if gp is not None and gp.config.rebuilt_for_evaluation:
            gp = refilled(gp, trainer.evaluated, self.splits.labeled, self.source, batch=config.eval_batch, device=device)
        loader = eval_loader(images, self.source, batch_size=config.eval_batch, workers=0)
        return evaluate(predict(trainer.evaluated, gp, loader, device), self.groups)

    # Ending ---------------------------------------------------------------------------------------------------------

    def finish(self, step: int, trainer: Trainer, *, status: str) -> dict[str, Any]:
        """Write ``summary.json``."""
        gp = gp_of(trainer.refiner)
        summary = {
            "status": status,
            "step": step,
            "seconds": self._seconds(),
            "processes": trainer.fabric.world_size,
            "results": self.results,
            "class_groups": self.groups,
            "gp": None if gp is None else gp.facts(),
        }
        if self.folder.writes:
            write_json(self.folder.summary, sealed(summary | {"files": self.folder.facts()}))
        if self._board is not None:
            self._board.close()
        return summary

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the journal."""
        return {"results": self.results, "seconds": self._seconds(), "metrics_size": self.folder.metrics_size()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, and forget the lines written after it."""
        self.results, self.seconds_before = state["results"], state["seconds"]
        self.folder.rewind_metrics(state["metrics_size"])

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
