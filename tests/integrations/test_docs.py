"""The snippets of docs/integrate.md, extend.md and extend-training.md run as they stand."""

import importlib.util
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

from semigpc import SemiGPClassifier
from semigpc.algorithms import ALGORITHMS
from semigpc.data import DATASETS
from semigpc.gp import KERNELS, RBF
from semigpc.refiners import REFINERS, GaussianProcessRefiner, GPConfig
from semigpc.training import last_result, train
from semigpc.training.presets import digits

DOCS = Path(__file__).parent.parent.parent / "docs"


def snippets(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


LOOP, LIGHTNING, USB = snippets("integrate.md")
KERNEL, DATASET, REFINER = snippets("extend.md")
ALGORITHM, _ADDON, VERB = snippets("extend-training.md")


def run(snippet: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "snippet"}
    with torch.random.fork_rng(devices=[]):
        exec(compile(snippet, "a page of docs", "exec"), names)
    return names


@pytest.mark.slow
def test_the_plain_loop_runs() -> None:
    names = run(LOOP)
    assert names["targets"].shape == (56, 10)
    assert (len(names["refiner"].buffer), int(names["refiner"].placement.steps)) == (24, 3)


@pytest.mark.filterwarnings(
    "ignore::UserWarning:pytorch_lightning", "ignore::FutureWarning:pytorch_lightning"
)
def test_the_lightning_module_trains(
    generator: torch.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(LIGHTNING)
    x, weak, strong = (torch.randn(20, 8, generator=generator) for _ in range(3))
    rows = TensorDataset(x, torch.randint(3, (20,), generator=generator), weak, strong)
    names["trainer"].fit(names["MyModule"](), DataLoader(rows, batch_size=4))
    assert len(names["callback"].refiner.buffer) == 20


def test_the_usb_snippet_configures_it() -> None:
    if importlib.util.find_spec("semilearn") is None:
        pytest.skip("semilearn needs packages that our pins exclude, see docs/integrate.md")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            names = run(USB)
        except (ImportError, OSError, RuntimeError) as error:
            pytest.skip(f"semilearn is installed and cannot be imported: {error}")
    assert names["config"].gp_balanced is True


def test_the_kernel_of_the_page_works_in_a_refiner_and_in_the_classifier(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    monkeypatch.setitem(KERNELS, "rational_quadratic", RBF)  # undone after the test
    kernel = run(KERNEL)["RationalQuadratic"]
    config = GPConfig(kernel="rational_quadratic", length_scale=0.7, buffer_size=32, warmup_steps=0)
    refiner = GaussianProcessRefiner(config, n_features=4, n_classes=2)
    assert refiner.engine.kernel == kernel(length_scale=0.7)
    features, labels = torch.randn(20, 4, generator=generator), torch.arange(20) % 2
    refiner.remember(features, labels)
    probs = refiner.probs(features)
    assert (probs.argmax(dim=1) == labels).all()
    classifier = SemiGPClassifier(kernel="rational_quadratic", length_scale=0.7, scaling="none")
    classifier.fit(features.numpy(), labels.numpy())
    assert classifier.kernel_ == kernel(length_scale=0.7)
    assert (classifier.predict(features.numpy()) == labels.numpy()).mean() > 0.8


def test_the_data_set_of_the_page_trains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(DATASETS, "stripes", DATASETS["digits"])
    experiment = run(DATASET)["stripes"](algorithm="fixmatch")
    summary = train(experiment.override(["train.steps=3", "train.eval_steps=3"]), tmp_path / "run")
    assert last_result(summary)["n"] == 100
    assert len(last_result(summary)["per_class_recall"]) == 2


def test_the_algorithm_and_the_refiner_train_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(ALGORITHMS, "softmatch", ALGORITHMS["fixmatch"])  # undone after the test
    monkeypatch.setitem(REFINERS, "tempered", REFINERS["none"])
    run(ALGORITHM)
    run(REFINER)
    experiment = digits(algorithm="softmatch", refiner="tempered")
    settings = ["train.steps=3", "refiner.temperature=1.5", "algorithm.unlabeled_weight=0.5"]
    assert train(experiment.override(settings), tmp_path / "run")["status"] == "finished"


def test_the_verb_prints_the_labels_of_a_run(tmp_path: Path) -> None:
    train(digits().override(["train.steps=1", "train.threads=1"]), tmp_path / "run")
    app = typer.Typer()
    app.command()(run(VERB)["counts"])
    done = CliRunner().invoke(app, [str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0] == "0: 36"


def test_the_loop_of_the_walkthrough_compares_with_and_without() -> None:
    program = "\n".join(snippets("own-fixmatch-loop.md"))
    assert "STEPS = 400" in program
    names = run(program.replace("STEPS = 400", "STEPS = 60"))
    without, with_it, gain = names["compare"](range(2))
    assert torch.equal(gain, with_it - without)
    assert (without > 0.2).all()  # of 10 classes: both learn something
    assert (with_it > 0.2).all()
    assert gain.abs().max() > 0  # after the warm-up the GP has a say
