"""The callback under a real Trainer, on the CPU."""

import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from semigpc.integrations import lightning
from semigpc.integrations.lightning import SemiGPCCallback
from semigpc.refiners import GaussianProcessRefiner, GPConfig

CLASSES, WIDTH, SIDE = 3, 6, 4
CONFIG = GPConfig(buffer_size=24, warmup_steps=3)
pytestmark = pytest.mark.filterwarnings(
    "ignore::UserWarning:pytorch_lightning", "ignore::FutureWarning:pytorch_lightning"
)


class Module(pl.LightningModule):
    """FixMatch in a few lines; notes what it was told, and what it handed over."""

    semigpc: SemiGPCCallback

    def __init__(self, *, hands_over: int = 1) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            self.body, self.head = nn.Linear(SIDE, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.hands_over = hands_over
        self.asked: list[tuple[Tensor, Tensor, Tensor]] = []
        self.handed: list[tuple[Tensor, Tensor]] = []

    def training_step(self, batch: list[Tensor]) -> Tensor:
        x, y, u = batch
        h, h_u = self.body(x), self.body(u)
        own = self.head(h_u).softmax(dim=1)
        targets = self.semigpc.refine(h_u, own)
        self.asked.append((h_u.detach(), own.detach(), targets))
        for _ in range(self.hands_over):
            self.semigpc.remember(h, y)
            self.handed.append((h.detach(), y))
        return F.cross_entropy(self.head(h), y) + F.cross_entropy(self.head(h_u), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def data(steps: int = 5) -> DataLoader[tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(1)
    y = torch.randint(CLASSES, (4 * steps,), generator=generator)
    x, u = (
        2 * torch.eye(CLASSES, SIDE)[y] + torch.randn(len(y), SIDE, generator=generator)
        for _ in range(2)
    )
    return DataLoader(TensorDataset(x, y, u), batch_size=4)


def trainer(callback: SemiGPCCallback, epochs: int, folder: Path, **options: Any) -> pl.Trainer:
    unused = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    options |= {"max_epochs": epochs, "accelerator": "cpu", "default_root_dir": folder}
    options |= dict.fromkeys(unused, False)
    return pl.Trainer(callbacks=[callback], **options)


def test_a_fit_asks_and_writes_as_a_loop_by_hand_would(tmp_path: Path) -> None:
    callback, module = SemiGPCCallback(CONFIG, WIDTH, CLASSES), Module()
    trainer(callback, 2, tmp_path).fit(module, data())
    alone = GaussianProcessRefiner(CONFIG, WIDTH, CLASSES)
    assert len(module.asked) == 10
    pairs = zip(module.asked, module.handed, strict=True)
    for step, ((features, own, answer), handed) in enumerate(pairs):
        # what was written before, and no more
        assert torch.equal(answer, alone.probs(features, own=own)), step
        assert torch.equal(answer, own) == (step < 3)
        assert not answer.requires_grad
        alone.remember(*handed)
    assert (len(callback.refiner.buffer), int(callback.refiner.placement.steps)) == (24, 10)
    assert not any("semigpc" in name or "refiner" in name for name in module.state_dict())


@pytest.mark.parametrize(
    "options", [{}, {"balanced": True, "learn": "leave_one_out", "learn_steps": 4}]
)
def test_a_run_that_was_saved_and_resumed_gives_the_same_labels_to_the_bit(
    options: dict[str, Any], tmp_path: Path
) -> None:
    config = GPConfig(**{"buffer_size": 24, "warmup_steps": 3, **options})
    whole, module = SemiGPCCallback(config, WIDTH, CLASSES), Module()
    first = trainer(whole, 2, tmp_path)
    first.fit(module, data())
    first.save_checkpoint(tmp_path / "two.ckpt")
    at_the_save = len(module.asked)
    first.fit_loop.max_epochs = 4
    first.fit(module, data())

    resumed, other = SemiGPCCallback(config, WIDTH, CLASSES), Module()
    trainer(resumed, 4, tmp_path).fit(other, data(), ckpt_path=str(tmp_path / "two.ckpt"))
    assert len(other.asked) == 10
    for ours, theirs in zip(module.asked[at_the_save:], other.asked, strict=True):
        assert all(torch.equal(one, two) for one, two in zip(ours, theirs, strict=True))
    assert int(resumed.refiner.placement.steps) == 20
    assert resumed.refiner.learned == whole.refiner.learned


def test_a_checkpoint_holds_tensors_and_no_inverse(tmp_path: Path) -> None:
    config = GPConfig(buffer_size=96, warmup_steps=3)
    runner = trainer(SemiGPCCallback(config, WIDTH, CLASSES), 2, tmp_path)
    runner.fit(Module(), data())
    runner.save_checkpoint(tmp_path / "run.ckpt")
    (state,) = torch.load(tmp_path / "run.ckpt", weights_only=True)["callbacks"].values()
    assert all(isinstance(value, Tensor) and value.numel() < 96 * 96 for value in state.values())
    empty = SemiGPCCallback(CONFIG, WIDTH, CLASSES)
    SemiGPCCallback(CONFIG, WIDTH, CLASSES).load_state_dict(empty.state_dict())


def test_handing_over_twice_in_a_batch_is_refused(tmp_path: Path) -> None:
    runner = trainer(SemiGPCCallback(CONFIG, WIDTH, CLASSES), 1, tmp_path)
    with pytest.raises(RuntimeError, match=r"once per batch; 4 rows are waiting\. Concatenate"):
        runner.fit(Module(hands_over=2), data())


def test_a_module_that_hands_nothing_over_is_told(tmp_path: Path) -> None:
    runner = trainer(SemiGPCCallback(CONFIG, WIDTH, CLASSES), 1, tmp_path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runner.fit(Module(hands_over=0), data())
    assert any("received no labelled features" in str(each.message) for each in caught)


def test_what_is_left_over_from_before_a_batch_is_not_written(tmp_path: Path) -> None:
    callback = SemiGPCCallback(CONFIG, WIDTH, CLASSES)
    callback.remember(torch.ones(7, WIDTH), torch.zeros(7, dtype=torch.int64))
    trainer(callback, 1, tmp_path).fit(Module(), data(1))
    assert len(callback.refiner.buffer) == 4


def test_the_memory_follows_the_module_to_its_device() -> None:
    callback = SemiGPCCallback(CONFIG, WIDTH, CLASSES)
    module = nn.Module()
    module.device = torch.device("meta")  # type: ignore[assignment]
    callback.on_fit_start(None, module)  # type: ignore[arg-type]
    assert callback.refiner.engine.targets.device.type == "meta"
    assert callback.refiner.buffer.entries.labels.device.type == "cpu"


def test_rows_of_all_processes_are_written_in_their_order() -> None:
    class Other(Module):
        def all_gather(self, data: Any, *_: Any, **__: Any) -> Any:  # as two processes would see it
            return tuple(torch.stack([part, part.flip(0)]) for part in data)

    class Two:
        world_size = 2

    features, labels = torch.eye(4, WIDTH), torch.tensor([0, 1, 2, 0])
    callback = SemiGPCCallback(CONFIG, WIDTH, CLASSES)
    alone = GaussianProcessRefiner(CONFIG, WIDTH, CLASSES)
    callback.remember(features, labels)
    callback.on_train_batch_end(Two(), Other())  # type: ignore[arg-type]
    alone.remember(torch.cat([features, features.flip(0)]), torch.cat([labels, labels.flip(0)]))
    assert torch.equal(callback.refiner.probs(features), alone.probs(features))
    assert int(callback.refiner.placement.steps) == 1


def test_without_lightning_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in lightning.LIGHTNINGS:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"neither is installed\. .*'semigpc\[lightning\]'"):
        lightning._callback_class()
