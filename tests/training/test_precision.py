"""Mixed precision with a real gradient scaler on the CPU, and TF32."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins import MixedPrecision
from torch import Tensor

from semigpc.io.errors import DivergedError
from semigpc.training import Experiment, train
from semigpc.training.experiment import Precision, TrainConfig
from semigpc.training.loop import Interrupt, Run, take_step
from semigpc.training.processes import Stopped
from semigpc.training.run_folder import RunFolder, read_checkpoint
from semigpc.training.run_log import Listener
from semigpc.training.state import DataCache, Trainer
from semigpc.types import Clock
from tests.training.small_runs import StopAt, small_run

pytestmark = pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
STEPS = 20


@pytest.fixture(autouse=True)
def without_onednn() -> Iterator[None]:
    """Some virtual machines announce instructions for 16-bit numbers that they do not have."""
    with torch.backends.mkldnn.flags(enabled=False):
        yield


def fabric_of(experiment: Experiment, scale: float = 2.0**16) -> Fabric:
    """A Fabric on the CPU that does with 16-mixed what it would do on a GPU."""
    precision = experiment.train.precision
    if precision != "16-mixed":
        return Fabric(accelerator="cpu", devices=1, precision=precision)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=5)
    plugin = MixedPrecision(precision, "cpu", scaler)
    return Fabric(accelerator="cpu", devices=1, plugins=plugin)


@pytest.fixture
def scaled(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let ``train`` use a gradient scaler that begins at a scale."""

    def use(scale: float) -> None:
        build = partial(fabric_of, scale=scale)
        monkeypatch.setattr("semigpc.training.loop.build_fabric", build)

    return use


class Watched:
    """A run that is stepped by hand; ``norms`` of the gradients that its optimiser was given."""

    def __init__(
        self, precision: Precision, folder: Path, *settings: str, scale: float = 2.0**16
    ) -> None:
        settings = (f"train.precision={precision}", "train.lr=0.01", *settings)
        self.experiment = small_run("fixmatch", "gp", *settings)
        torch.manual_seed(0)
        fabric = fabric_of(self.experiment, scale)
        data = DataCache().run_data(self.experiment, fabric.device)
        self.run = Run(self.experiment, RunFolder(folder), data, Listener(), fabric, Interrupt())
        self.trainer: Trainer = self.run.current.trainer
        self.norms: list[float] = []
        bare = getattr(self.trainer.optimizer, "optimizer", self.trainer.optimizer)
        bare.register_step_pre_hook(lambda *_: self.norms.append(self._norm()))

    def _norm(self) -> float:
        gradients = [parameter.grad for parameter in self.trainer.model.parameters()]
        known = [gradient for gradient in gradients if gradient is not None]
        return float(torch.nn.utils.get_total_norm(known))

    def steps(self, count: int) -> None:
        for step, batch in enumerate(islice(self.run.batches(0), count)):
            clock = Clock(step + 3, self.run.current.steps, self.experiment.train.epoch_steps)
            take_step(self.trainer, batch, clock, self.experiment.train)

    @property
    def weights(self) -> Tensor:
        parameters = self.trainer.model.parameters()
        return torch.cat([parameter.detach().flatten() for parameter in parameters]).clone()

    @property
    def scale(self) -> float:
        return float(self.trainer.precision_state()["scale"])


def test_gradients_are_divided_by_the_loss_scale_before_the_optimiser_sees_them(
    tmp_path: Path,
) -> None:
    scaled, plain = Watched("16-mixed", tmp_path / "16"), Watched("32-true", tmp_path / "32")
    for run in (scaled, plain):
        run.steps(4)
    assert scaled.norms == pytest.approx(plain.norms, rel=0.05)


def test_an_overflow_skips_the_step_and_lowers_the_scale(tmp_path: Path) -> None:
    run = Watched("16-mixed", tmp_path, scale=2.0**40)
    before = run.weights
    run.steps(3)
    assert torch.equal(run.weights, before)
    assert not run.norms
    assert run.scale == 2.0**37
    average, gp = run.trainer.average, run.trainer.gp
    assert average is not None
    assert gp is not None
    assert all(parameter.isfinite().all() for parameter in average.parameters())
    assert len(gp.engine)
    assert gp.engine.features.isfinite().all()


@pytest.mark.slow
def test_after_overflows_training_goes_on_at_a_lower_scale(tmp_path: Path) -> None:
    run = Watched("16-mixed", tmp_path, "train.clip_norm=1", scale=2.0**24)
    before = run.weights
    run.steps(20)
    assert run.weights.isfinite().all()
    assert not torch.equal(run.weights, before)
    assert run.scale < 2.0**24
    assert 0 < len(run.norms) < 20


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "32-true"])
def test_gradients_are_clipped_at_their_true_size(precision: Precision, tmp_path: Path) -> None:
    run = Watched(precision, tmp_path, "train.clip_norm=0.01")
    run.steps(2)
    assert run.norms == pytest.approx([0.01, 0.01], rel=1e-3)


@pytest.mark.slow
def test_all_precisions_end_near_each_other(tmp_path: Path) -> None:
    runs = {name: Watched(name, tmp_path / name) for name in ("16-mixed", "bf16-mixed", "32-true")}
    start = runs["32-true"].weights
    for run in runs.values():
        run.steps(STEPS)
    plain = runs["32-true"].weights
    moved = (plain - start).norm()
    for name in ("16-mixed", "bf16-mixed"):
        assert (runs[name].weights - plain).norm() < 0.5 * moved, name


@pytest.mark.slow
def test_a_resumed_run_has_the_scale_it_was_stopped_with(
    tmp_path: Path, scaled: Callable[[float], None]
) -> None:
    experiment = small_run("fixmatch", "none", "train.precision=16-mixed")
    scaled(2.0**30)
    results = train(experiment, tmp_path / "whole")["results"]
    with pytest.raises(Stopped):
        train(experiment, tmp_path / "cut", listener=StopAt(12))
    stopped = read_checkpoint(RunFolder(tmp_path / "cut").last).state["precision"]
    assert stopped["scale"] < 2.0**30
    assert train(experiment, tmp_path / "cut", resume=True)["results"] == results
    ends = [read_checkpoint(RunFolder(tmp_path / name).last) for name in ("whole", "cut")]
    assert ends[0].state["precision"] == ends[1].state["precision"]
    whole, cut = (end.part("model") for end in ends)
    assert all(torch.equal(value, cut[name]) for name, value in whole.items())


def test_gradients_that_overflow_for_ever_stop_the_run(
    tmp_path: Path, scaled: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled(2.0**-8)
    backward = Fabric.backward
    monkeypatch.setattr(Fabric, "backward", lambda fabric, loss: backward(fabric, loss * torch.inf))
    words = r"gradients overflow at step 3 .*train\.precision=32-true"
    with pytest.raises(DivergedError, match=words):
        train(small_run("fixmatch", "none", "train.precision=16-mixed"), tmp_path)


def test_a_cpu_computes_in_float32_where_16_bits_are_set_and_says_so(tmp_path: Path) -> None:
    train(small_run("fixmatch", "none", "train.precision=16-mixed", "train.steps=2"), tmp_path)
    assert "needs a GPU" in RunFolder(tmp_path).metrics.read_text()
    assert TrainConfig(precision="16-mixed").precision_on("cuda") == "16-mixed"


@pytest.mark.parametrize("tf32", [False, True])
def test_tf32_is_off_unless_it_is_set_and_stands_in_the_environment(
    tf32: bool, tmp_path: Path
) -> None:
    seen = []

    class Watching(Listener):
        def step(self, step: int) -> None:
            seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))

    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    settings = ("train.steps=2", f"train.tf32={str(tf32).lower()}")
    train(small_run("fixmatch", "gp", *settings), tmp_path, listener=Watching())
    assert set(seen) == {(tf32, tf32)}
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert (environment["precision"], environment["tf32"]) == ("32-true", "on" if tf32 else "off")
