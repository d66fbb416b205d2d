"""How often a training step makes the host wait for a GPU, and what it copies there."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from semigpc.addons import ADDONS
from semigpc.algorithms import ALGORITHMS
from semigpc.training import Experiment
from semigpc.training.loop import Interrupt, Run, take_step
from semigpc.training.run_folder import RunFolder
from semigpc.training.run_log import Listener, RunLog
from semigpc.training.state import DataCache, build_fabric
from semigpc.types import Clock
from tests.batteries import combinations
from tests.pretend_device import Copy, PretendDevice
from tests.training.small_runs import small_run

BUDGET = {"exact": 6, "ensemble": 8}
COPIES = {"exact": 4, "ensemble": 7}
SMALL_BYTES = 1024
ROWS = 256  # 32 steps to fill; landmarks are chosen whenever the rows have doubled
BATCH = 8
COUNTED = 8


@dataclass(frozen=True)
class Step:
    """What one step waits for and copies, after its ``batch`` of ``tensors`` was copied."""

    waits: Counter[tuple[str, str]]
    copies: list[Copy]
    batch: list[Copy]
    tensors: int


def experiment_of(algorithm: str, engine: str, *settings: str) -> Experiment:
    schedule = ("train.epoch_steps=3", "train.steps=120", "train.ema=0.999", "train.workers=0")
    batch = f"train.labeled_batch={BATCH}"
    if engine == "none":
        return small_run(algorithm, "none", batch, *schedule, *settings)
    gp = ["refiner.warmup_steps=0", f"refiner.buffer_size={ROWS}", f"refiner.engine={engine}"]
    gp += ["refiner.engine.members=2"] if engine == "ensemble" else []
    return small_run(algorithm, "gp", batch, *schedule, *gp, *settings)


def steps_of(gpu: PretendDevice, experiment: Experiment, folder: Path) -> Iterator[Step]:
    """The steps of training/loop.py, without logging, evaluation and checkpoints."""
    fabric = build_fabric(experiment)
    torch.manual_seed(0)
    data = DataCache().run_data(experiment, fabric.device)
    run = Run(experiment, RunFolder(folder), data, Listener(), fabric, Interrupt())
    trainer, log = run.current.trainer, RunLog(run.folder, experiment, data.splits, Listener())
    batches = run.batches(0)
    for step in range(run.current.steps):
        clock = Clock(step, run.current.steps, experiment.train.epoch_steps)
        gpu.reset()
        batch = next(batches)
        copied = list(gpu.copies)
        gpu.reset()
        output, rate = take_step(trainer, batch, clock, experiment.train)
        log.record(step, output, batch, rate=rate, waited=0.0)
        tensors = sum(isinstance(leaf, Tensor) for leaf in tree_leaves(batch))
        yield Step(Counter(gpu.waits), list(gpu.copies), copied, tensors)


def waits_of(steps: list[Step]) -> Counter[tuple[str, str]]:
    return sum((step.waits for step in steps), Counter[tuple[str, str]]())


@pytest.mark.parametrize(
    ("algorithm", "engine"), combinations(list(ALGORITHMS), list(BUDGET), costly=True)
)
def test_a_step_with_a_gp_stays_within_its_budget(
    algorithm: str, engine: str, gpu: PretendDevice, tmp_path: Path
) -> None:
    steps = steps_of(gpu, experiment_of(algorithm, engine), tmp_path)
    for taken in (ROWS // BATCH, COUNTED):  # while the buffer fills, and full
        counted = list(islice(steps, taken))
        waits = waits_of(counted)
        assert waits.total() <= BUDGET[engine] * len(counted), waits.most_common()


@pytest.mark.parametrize(
    ("algorithm", "setting"),
    combinations(
        ["fixmatch", "remixmatch", "simmatch"],
        ["refiner.role=classifier", "refiner.confidence=expected", "train.clip_norm=1"],
        costly=True,
    ),
)
def test_other_uses_of_the_gp_stay_within_it_too(
    algorithm: str, setting: str, gpu: PretendDevice, tmp_path: Path
) -> None:
    steps = steps_of(gpu, experiment_of(algorithm, "exact", setting), tmp_path)
    counted = list(islice(steps, ROWS // BATCH, ROWS // BATCH + COUNTED))
    waits = waits_of(counted)
    assert waits.total() <= BUDGET["exact"] * len(counted), waits.most_common()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_step_without_a_refiner_waits_for_its_loss_alone(
    algorithm: str, gpu: PretendDevice, tmp_path: Path
) -> None:
    steps = steps_of(gpu, experiment_of(algorithm, "none"), tmp_path)
    for step in islice(steps, 1, 8):  # the first copies the true labels to count with
        ((_, where),) = step.waits.elements()
        assert where.startswith("training/loop.py:")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [("refiner.class_prior=frequency",), ("refiner.balanced=true",)]
)
def test_class_prior_and_balance_cost_no_synchronisation(
    settings: tuple[str, ...], gpu: PretendDevice, tmp_path: Path
) -> None:
    plain, other = (
        list(islice(steps_of(gpu, experiment_of("fixmatch", "exact", *each), tmp_path), 8, 12))
        for each in (("refiner.class_prior=none",), settings)
    )
    assert waits_of(other).total() <= waits_of(plain).total()


def test_scales_that_follow_the_features_wait_at_a_look_alone(
    gpu: PretendDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for l and once to check the views, and for a rebuild of the engine where l changes."""
    monkeypatch.setattr("semigpc.refiners.tuning.TUNING_STEPS", 4)  # looks at steps 1, 5, 9
    fixed, auto = (
        list(islice(steps_of(gpu, experiment_of("fixmatch", "exact", *each), tmp_path), 10))
        for each in (("refiner.length_scale=0.3", "refiner.logit_scale=11"), ())
    )
    more = [tuned.waits - plain.waits for plain, tuned in zip(fixed, auto, strict=True)]
    assert [step for step, waits in enumerate(more) if waits] == [1, 5, 9]
    for waits in more:
        rooms = Counter(where.partition(":")[0] for _, where in waits.elements())
        assert rooms["gp/scales.py"] <= 1, waits
        assert set(rooms) <= {"gp/scales.py", "gp/engine.py", "gp/exact.py", "gp/tiles.py"}, waits
        assert waits.total() <= BUDGET["exact"], waits


@pytest.mark.parametrize(
    "addon",
    [
        *("daso", "saw", "abc", "debiaspl", "effective_number", "logit_adjustment", "crest_plus"),
        *("acr", "cdmad", "simpro"),
    ],
)
def test_add_ons_wait_for_nothing(addon: str, gpu: PretendDevice, tmp_path: Path) -> None:
    experiment = replace(experiment_of("fixmatch", "none"), addon=ADDONS[addon].config())
    steps = steps_of(gpu, experiment, tmp_path)
    counted = list(islice(steps, 10, 12))  # no first step of an epoch, in which SAW counts
    assert waits_of(counted).total() == len(counted), waits_of(counted)


# Copies to the device -----------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_tensor_of_a_batch_is_copied_once_from_pinned_memory(
    algorithm: str, gpu: PretendDevice, tmp_path: Path
) -> None:
    for step in islice(steps_of(gpu, experiment_of(algorithm, "none"), tmp_path), 1, 3):
        assert len(step.batch) == step.tensors
        assert all(copy.non_blocking and copy.pinned for copy in step.batch), step.batch
        assert all(copy.non_blocking for copy in step.copies)
        assert sum(copy.size for copy in step.copies) <= SMALL_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("engine", COPIES)
def test_a_gp_copies_only_slots_and_class_shares(
    engine: str, gpu: PretendDevice, tmp_path: Path
) -> None:
    steps = steps_of(gpu, experiment_of("fixmatch", engine), tmp_path)
    for step in islice(steps, ROWS // BATCH, ROWS // BATCH + 3):
        assert len(step.copies) <= COPIES[engine], step.copies
        assert all(copy.non_blocking for copy in step.copies)
        assert sum(copy.size for copy in step.copies) <= SMALL_BYTES
