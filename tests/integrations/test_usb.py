"""The adapter for semilearn against its real classes, on CPU tensors.

semilearn sends every tensor to a GPU; here ``Tensor.cuda`` answers with the tensor itself, and
steps are taken by hand, since its timer wants CUDA events. Its training command, mixed precision on
a GPU and several processes are not run here.
"""

import importlib.util
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.integrations import usb
from semigpc.refiners import GaussianProcessRefiner, GPConfig

CLASSES, WIDTH, SIDE, LABELED, UNLABELED = 3, 6, 4, 4, 6
VIEWS = ("x_lb", "x_ulb_w", "x_ulb_s")


def test_without_semilearn_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "semilearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "semilearn", None)
    with pytest.raises(ImportError, match=r"semilearn cannot be imported: .*semigpc\[usb\]"):
        usb.register()


@pytest.fixture(scope="module")
def algorithms() -> dict[str, type]:
    """Our two and theirs, by name, where semilearn can be imported."""
    if importlib.util.find_spec("semilearn") is None:
        pytest.skip("semilearn needs packages that our pins exclude, see docs/integrate.md")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ours = usb.register()
            from semilearn.algorithms import name2alg
        except ImportError as error:
            pytest.skip(f"semilearn is installed and cannot be imported: {error}")
    theirs = name2alg["fixmatch"], name2alg["simmatch"]
    assert ours == (name2alg["semigpc_fixmatch"], name2alg["semigpc_simmatch"]) == usb.register()
    names = ("semigpc_fixmatch", "semigpc_simmatch", "fixmatch", "simmatch")
    return dict(zip(names, (*ours, *theirs), strict=True))


class Net(nn.Module):
    """A network with the manners of semilearn's."""

    num_features = WIDTH

    def __init__(self, num_classes: int, **_: Any) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(SIDE, WIDTH), nn.Linear(WIDTH, num_classes)

    def forward(self, x: Tensor, only_fc: bool = False, only_feat: bool = False) -> Any:
        if only_fc:
            return self.head(x)
        feature = torch.tanh(self.body(x))
        return feature if only_feat else {"logits": self.head(feature), "feat": feature}


COMMON: dict[str, Any] = (  # what every algorithm of semilearn is given
    {"num_classes": CLASSES, "num_labels": 8, "lb_dest_len": 8, "dataset": "none", "data_dir": ""}
    | {"epoch": 2, "num_train_iter": 100, "num_eval_iter": 50, "num_log_iter": 5, "p_cutoff": 0.4}
    | {"optim": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.0, "layer_decay": 1.0}
    | {"num_warmup_iter": 0, "clip_grad": 0, "ulb_loss_ratio": 1.0, "ema_m": 0.9}
    | dict.fromkeys(("amp", "resume", "distributed", "use_pretrain", "use_wandb", "use_aim"), False)
    | {"use_cat": True, "include_lb_to_ulb": True, "pretrain_path": "", "save_dir": ""}
    | {"save_name": "run", "gpu": None, "rank": 0, "world_size": 1}
)
Make = Callable[..., Any]


@pytest.fixture
def make(algorithms: dict[str, type], monkeypatch: pytest.MonkeyPatch) -> Make:
    """Build an algorithm whose arguments come from its own ``get_argument``, at its first step."""
    monkeypatch.setattr(Tensor, "cuda", lambda tensor, *_: tensor)

    def made(name: str, **options: Any) -> Any:
        arguments = algorithms[name].get_argument()  # type: ignore[attr-defined]
        plain = {argument.name[2:]: argument.default for argument in arguments}
        memory = {"gp_buffer_size": 20, "gp_warmup_steps": 1}
        args = Namespace(**plain | COMMON | memory | {"algorithm": name} | options)
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # semilearn uses names that torch is about to drop
            torch.default_generator.manual_seed(0)
            algorithm = algorithms[name](args, Net)
        algorithm.epoch = 1
        for hook in ("EMAHook", "SemiGPCHook"):
            if algorithm.registered_hook(hook):
                algorithm.call_hook("before_run", hook)
        algorithm.model.train()
        return algorithm

    return made


def batches(steps: int, algorithm: Any) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    centres = 2 * torch.eye(CLASSES, SIDE)
    answer = []
    for _ in range(steps):
        y = torch.randint(CLASSES, (LABELED,), generator=generator)
        u = centres[torch.randint(CLASSES, (UNLABELED,), generator=generator)]
        x, weak, strong = (
            part + torch.randn(part.shape, generator=generator) / 2 for part in (centres[y], u, u)
        )
        index = torch.randperm(8, generator=generator)[:LABELED]
        batch = {"x_lb": x, "y_lb": y, "x_ulb_w": weak, "x_ulb_s": strong, "idx_lb": index}
        answer.append(algorithm.process_batch(**batch))
    return answer


def step(algorithm: Any, batch: dict[str, Tensor]) -> dict[str, Any]:
    """One iteration of semilearn's loop, with the hooks that need no GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        algorithm.out_dict, algorithm.log_dict = algorithm.train_step(**batch)
        for hook in ("ParamUpdateHook", "SemiGPCHook", "EMAHook"):
            if algorithm.registered_hook(hook):
                algorithm.call_hook("after_train_step", hook)
    algorithm.it += 1
    log: dict[str, Any] = algorithm.log_dict
    return log


def weights(algorithm: Any) -> Tensor:
    return torch.cat([value.flatten() for value in algorithm.model.parameters()]).detach()


@pytest.mark.parametrize("use_cat", [True, False])
@pytest.mark.parametrize("base", ["fixmatch", "simmatch"])
def test_in_the_warm_up_it_is_the_base_algorithm_bit_for_bit(
    make: Make, base: str, use_cat: bool
) -> None:
    plain = make(base, use_cat=use_cat)
    refined = make(f"semigpc_{base}", use_cat=use_cat, gp_warmup_steps=3)
    for batch in batches(3, plain):
        assert step(plain, batch) == step(refined, batch)
        assert torch.equal(weights(plain), weights(refined))
    assert (len(refined.refiner.buffer), int(refined.refiner.placement.steps)) == (12, 3)
    (last,) = batches(4, plain)[3:]
    assert step(plain, last) != step(refined, last), "from here on the GP speaks"


@pytest.mark.parametrize("use_cat", [True, False])
def test_three_steps_of_fixmatch_take_their_targets_from_the_gp(make: Make, use_cat: bool) -> None:
    algorithm = make("semigpc_fixmatch", use_cat=use_cat)
    memory = GaussianProcessRefiner(GPConfig(buffer_size=20, warmup_steps=0), WIDTH, CLASSES)
    for number, batch in enumerate(batches(4, algorithm)):
        with torch.no_grad():
            h_x, h_w, h_s = (torch.tanh(algorithm.model.body(batch[name])) for name in VIEWS)
            logits = algorithm.model.head(h_s)
            targets = memory.probs(h_w) if number else algorithm.model.head(h_w).softmax(dim=1)
            mask = (targets.max(dim=1).values >= 0.4).float()
            loss = F.cross_entropy(logits, targets.argmax(dim=1), reduction="none")
        log = step(algorithm, batch)
        assert log["train/unsup_loss"] == pytest.approx(float((loss * mask).mean()), abs=1e-6)
        assert log["train/util_ratio"] == pytest.approx(float(mask.mean()))
        memory.remember(h_x, batch["y_lb"])


@pytest.mark.parametrize("use_cat", [True, False])
def test_three_steps_of_simmatch_align_the_gp_and_keep_their_own_bank(
    make: Make, use_cat: bool
) -> None:
    algorithm = make("semigpc_simmatch", use_cat=use_cat)
    memory = GaussianProcessRefiner(GPConfig(buffer_size=20, warmup_steps=0), WIDTH, CLASSES)
    means: list[Tensor] = []
    for number, batch in enumerate(batches(4, algorithm)):
        with torch.no_grad():
            backbone = algorithm.model.backbone
            h_x, h_w, h_s = (torch.tanh(backbone.body(batch[name])) for name in VIEWS)
            weak = memory.probs(h_w) if number else backbone.head(h_w).softmax(dim=1)
            means.append(weak.mean(dim=0))
            aligned = weak * (1 / CLASSES + 1e-6) / (torch.stack(means).sum(dim=0) / 256 + 1e-6)
            aligned = aligned / aligned.sum(dim=1, keepdim=True)
            projection = F.normalize(algorithm.model.mlp_proj(h_w), dim=1)
            votes = torch.softmax(projection @ algorithm.mem_bank / 0.5, dim=1)
            labels = F.one_hot(algorithm.labels_bank, CLASSES).float()
            targets = 0.9 * aligned + 0.1 * votes @ labels
            mask = (targets.max(dim=1).values >= 0.4).float()
            loss = -(targets * torch.log_softmax(backbone.head(h_s), dim=1)).sum(dim=1)
        log = step(algorithm, batch)
        assert log["train/unsup_loss"] == pytest.approx(float((loss * mask).mean()), abs=1e-6)
        memory.remember(h_x, batch["y_lb"])
    assert torch.equal(algorithm.refiner.buffer.entries.labels, memory.buffer.entries.labels)


@pytest.mark.parametrize("name", ["semigpc_fixmatch", "semigpc_simmatch"])
def test_a_checkpoint_of_semilearn_carries_the_memory(
    make: Make, name: str, tmp_path: Path
) -> None:
    first, second = make(name), make(name)
    stream = batches(5, first)
    for batch in stream[:3]:
        step(first, batch)
    first.save_model("latest_model.pth", str(tmp_path))
    second.load_model(str(tmp_path / "latest_model.pth"))
    second.ema.load(second.ema_model)
    second.epoch = first.epoch
    for batch in stream[3:]:
        ours, theirs = step(first, batch), step(second, batch)
        assert ours == pytest.approx(theirs, abs=1e-6)
    torch.testing.assert_close(weights(first), weights(second), rtol=0, atol=1e-6)
    assert int(second.refiner.placement.steps) == 5


def test_a_checkpoint_without_a_memory_is_refused(make: Make, tmp_path: Path) -> None:
    make("fixmatch").save_model("plain.pth", str(tmp_path))
    with pytest.raises(ValueError, match=r"memory of SemiGPC: another algorithm wrote it"):
        make("semigpc_fixmatch").load_model(str(tmp_path / "plain.pth"))


def in_order(*names: str, within: Iterable[str]) -> bool:
    return [name for name in within if name in names] == list(names)


def test_rows_are_written_after_the_parameters_moved_and_before_anything_is_saved(
    make: Make,
) -> None:
    hooks = make("semigpc_simmatch").hooks_dict
    order = ("ParamUpdateHook", "SemiGPCHook", "EvaluationHook", "CheckpointHook")
    assert in_order(*order, within=hooks)


@pytest.mark.usefixtures("algorithms")
def test_semilearn_reads_our_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    from semilearn import get_config

    monkeypatch.setattr("semilearn.lighting.config.get_port", lambda: 0)  # it leaves a pipe open
    config = get_config({"algorithm": "semigpc_fixmatch", "gp_balanced": True})
    assert (config.gp_balanced, config.gp_buffer_size) == (True, 16300)
    assert (config.gp_logit_scale, config.p_cutoff) == (None, 0.95)


def test_a_batch_cut_up_among_devices_is_refused(make: Make) -> None:
    algorithm = make("semigpc_fixmatch")
    (batch,) = batches(1, algorithm)
    cut = nn.DataParallel(algorithm.model)
    cut.device_ids = [0, 1]
    algorithm.model = cut
    with pytest.raises(RuntimeError, match=r"2 devices.*multiprocessing_distributed"):
        algorithm.train_step(**batch)


@pytest.mark.parametrize("imbalance", ["abc", "saw"])
def test_its_imbalanced_add_ons_find_the_methods_they_build_on(
    algorithms: dict[str, type], imbalance: str
) -> None:
    from semilearn.imb_algorithms import name2imbalg

    both = type("Both", (name2imbalg[imbalance], algorithms["semigpc_fixmatch"]), {})
    order = ("SemiGPCFixMatch", "Refined", "FixMatch", "AlgorithmBase")
    assert in_order(*order, within=[each.__name__ for each in both.__mro__])
