"""An add-on from outside of the package: one class, and one line in a dictionary; and settings that
no add-on can work with.
"""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from semigpc.addons import (
    ADDONS,
    ABCConfig,
    AddOn,
    AddOnConfig,
    AddOnEntry,
    CoSSLConfig,
    CReSTConfig,
    ExtraLoss,
    Step,
)
from semigpc.algorithms import (
    ALGORITHMS,
    Algorithm,
    AlgorithmEntry,
    FixMatchConfig,
    SupervisedConfig,
)
from semigpc.io.errors import SettingsError
from semigpc.models import ModelConfig
from semigpc.training import Experiment, RunFolder, TrainConfig, train
from semigpc.training.run_folder import read_checkpoint
from semigpc.types import HeadSpec, ModelOutput, Task
from tests.algorithms.tiny import COUNTS, LABELED, UNLABELED
from tests.training.small_runs import small_run

ORDER = ["weak", "opinion", "targets", "labeled_loss", "unlabeled_loss", "extra_loss"]


@dataclass(frozen=True, kw_only=True)
class HumbleConfig(AddOnConfig):
    """Options: how much of a pseudo-label is given up."""

    humility: float = 0.1

    def heads(self, n_classes: int) -> dict[str, HeadSpec]:
        return {"humble": HeadSpec("linear", n_classes)}


class Humble(AddOn):
    """Mixes pseudo-labels with 1/C, counts its steps, and trains a head for evaluation."""

    learns = True
    answers = True
    steps: Tensor
    asked: ClassVar[list[str]] = []

    def __init__(self, config: HumbleConfig, task: Task) -> None:
        super().__init__(config, task)
        self.humility = config.humility
        self.register_buffer("steps", torch.tensor(0))

    def weak(self, step: Step, output: ModelOutput) -> ModelOutput:
        self.asked.append("weak")
        return super().weak(step, output)

    def opinion(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        self.asked.append("opinion")
        return super().opinion(step, output, probs)

    def targets(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        self.asked.append("targets")
        assert not torch.is_grad_enabled()
        return (1 - self.humility) * probs + self.humility / probs.shape[1]

    def labeled_loss(self, step: Step, logits: Tensor, targets: Tensor) -> Tensor:
        self.asked.append("labeled_loss")
        return super().labeled_loss(step, logits, targets)

    def unlabeled_loss(
        self, step: Step, logits: Tensor, targets: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        self.asked.append("unlabeled_loss")
        return super().unlabeled_loss(step, logits, targets, mask)

    def extra_loss(
        self, step: Step, x: ModelOutput, weak: ModelOutput, strong: ModelOutput
    ) -> ExtraLoss:
        self.asked.append("extra_loss")
        assert x.logits.requires_grad
        assert strong.logits.requires_grad
        assert len(weak.logits) == len(strong.logits) == len(step.batch.view_index)
        self.steps += 1
        if self.steps == 1:
            self.note("The humble one has begun.")
        loss = torch.nn.functional.cross_entropy(x.heads["humble"], step.batch.y)
        return ExtraLoss(loss, {"loss_humble": loss})

    def answer(self, output: ModelOutput) -> Tensor:
        return output.heads["humble"]


@pytest.fixture
def humble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ADDONS, "humble", AddOnEntry(HumbleConfig, Humble, "humble"))
    Humble.asked.clear()


@pytest.mark.usefixtures("humble")
@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "supervised"])
def test_one_line_in_the_dictionary_puts_an_add_on_into_every_algorithm(
    algorithm: str, tmp_path: Path
) -> None:
    experiment = replace(small_run(algorithm, "gp", "train.steps=3"), addon=HumbleConfig())
    experiment = Experiment.from_plain(experiment.to_plain()).override(["addon.humility=0.25"])
    assert experiment.addon == HumbleConfig(humility=0.25)
    train(experiment, tmp_path / "run")
    first = Humble.asked[: len(Humble.asked) // 3]
    assert list(dict.fromkeys(first)) == ORDER, "every point is asked, in the order of a step"
    assert [first.count(name) for name in ORDER if name != "unlabeled_loss"] == [1] * 5, "once"
    saved = read_checkpoint(RunFolder(tmp_path / "run").last)
    assert int(saved.part("algorithm")["addon.steps"]) == 3, "its state is part of a checkpoint"
    assert "heads.humble.weight" in saved.part("model"), "and its head of the network"
    text = RunFolder(tmp_path / "run").metrics.read_text()
    assert "The humble one has begun." in text
    assert "loss_humble" in text


@pytest.mark.slow
@pytest.mark.usefixtures("humble")
def test_humility_is_seen_in_the_pseudo_labels(tmp_path: Path) -> None:
    """With humility 1 every label is 1/C, so that nothing passes a threshold."""
    experiment = replace(small_run("fixmatch", "none"), addon=HumbleConfig(humility=1.0))
    train(experiment, tmp_path / "run")
    lines = RunFolder(tmp_path / "run").metrics.read_text().splitlines()
    rows = [line for line in lines if '"kind": "pseudo"' in line]
    assert rows
    assert all('"coverage": 0.0' in row for row in rows)


# What does not fit is refused before anything is loaded -------------------------------------------


def test_an_algorithm_that_asks_no_add_on_is_refused_one(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True, kw_only=True)
    class DeafConfig(FixMatchConfig):
        """Of an algorithm written before there were add-ons."""

    monkeypatch.setitem(ALGORITHMS, "deaf", AlgorithmEntry(DeafConfig, Algorithm, "Deaf"))
    with pytest.raises(SettingsError, match="leave abc out"):
        Experiment(algorithm=DeafConfig(), addon=ABCConfig())
    Experiment(algorithm=DeafConfig())


@pytest.mark.usefixtures("humble")
def test_two_heads_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FixMatchConfig, "heads", {"humble": HeadSpec("linear", 2)})
    with pytest.raises(SettingsError, match="humble and fixmatch both have a head named humble"):
        Experiment(addon=HumbleConfig(), model=ModelConfig())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"algorithm": SupervisedConfig(), "addon": ABCConfig()}, "abc acts on unlabelled images"),
        ({"addon": CoSSLConfig(), "train": TrainConfig(ema=0.0)}, r"cossl needs .*train\.ema"),
        ({"addon": CReSTConfig(), "train": TrainConfig(steps=4)}, r"steps=4 must be at least 6"),
    ],
)
def test_settings_that_an_add_on_cannot_work_with_are_refused(
    settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        Experiment(**settings)


REFUSED: dict[str, dict[str, Any]] = {
    "acr": {"threshold": [1.5], "strength": [-1.0], "share_momentum": [1.0], "warmup": [-0.1]}
    | {"branch_weight": [-1.0]},
    "abc": {"threshold": [1.5], "abc_weight": [-1.0, math.nan]},
    "balanced_sampling": {"power": [1.5]},
    "cdmad": {"warmup": [1.2]},
    "cossl": {"warmup": [1.2], "head_momentum": [-0.1], "least_own": [2.0], "head_rate": [0.0]}
    | {"head_decay": [-1.0], "start_steps": [0]},
    "crest": {"generations": [1], "power": [-1.0]},
    "crest_plus": {"final_temperature": [2.0]},
    "darp": {"every": [0], "alternations": [0], "newton_steps": [0], "keep": [0.0]}
    | {"tolerance": [-1.0], "warmup": [1.5], "momentum": [1.0], "counts": ["true"]},
    "daso": {"queue": [0], "every": [0], "temperature": [0.0], "warmup": [2.0]}
    | {"distribution_temperature": [math.nan], "alignment_weight": [-1.0]},
    "debiaspl": {"strength": [-0.1], "share_momentum": [1.0]},
    "deferred": {"start": [2.0], "beta": [-0.1]},
    "effective_number": {"beta": [1.0]},
    "logit_adjustment": {"strength": [-1.0]},
    "simpro": {"threshold": [-0.1], "strength": [-1.0], "share_momentum": [1.0], "every": [1.2]}
    | {"labeled_weight": [-1.0]},
}


@pytest.mark.parametrize(
    ("addon", "option", "value"),
    [(a, o, value) for a, row in REFUSED.items() for o, values in row.items() for value in values],
)
def test_an_option_out_of_range_is_refused(addon: str, option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"{option} must .*; got {value!r}"):
        ADDONS[addon].config(**{option: value})


@pytest.mark.parametrize(
    ("addon", "words"),
    [
        ("cossl", "n_features must be at least 1; got 0"),
        ("daso", "n_features must be at least 1; got 0"),
        ("darp", "got 0. Add unlabelled images"),
        ("saw", "got 0. Add unlabelled"),
    ],
)
def test_a_task_without_what_an_add_on_needs_is_refused(addon: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ADDONS[addon].build(ADDONS[addon].config(), Task(torch.tensor(COUNTS), LABELED, UNLABELED))


def test_an_unknown_add_on_is_answered_with_the_nearest() -> None:
    plain = Experiment().to_plain()
    with pytest.raises(SettingsError, match="unknown addon 'dasso'; did you mean 'daso'"):
        Experiment.from_plain(plain | {"addon": {"name": "dasso"}})


def test_the_add_on_that_the_docs_show_is_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "extend-training.md").read_text()
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    (code,) = [block for block in blocks if "class Humble(AddOn)" in block]
    # what the page puts there is gone after the test
    monkeypatch.setitem(ADDONS, "humble", ADDONS["none"])
    exec(compile(code, "extend-training.md", "exec"), {"__name__": "page"})
    plain = small_run("fixmatch", "none", "train.steps=3")
    experiment = replace(plain, addon=ADDONS["humble"].config())
    train(experiment.override(["addon.humility=0.2"]), tmp_path / "run")
    assert '"humility": 0.2' in RunFolder(tmp_path / "run").config.read_text()
