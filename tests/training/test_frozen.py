"""Cached features of a frozen network: training, resuming bit for bit, answers for images."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from semigpc.addons import CDMADConfig
from semigpc.algorithms import ALGORITHMS
from semigpc.data import DATASETS, CachedFeatures, EvaluationLoader, Splits, feature_views
from semigpc.io import parts
from semigpc.io.errors import RunError, SettingsError
from semigpc.models import ModelConfig, OnFrozen, SmallCNN, encoder
from semigpc.training import Experiment, FrozenConfig, Listener, RunFolder, last_result, train
from semigpc.training.comparison import Cell, ComparisonListener, compare
from semigpc.training.evaluate import predict
from semigpc.training.inference import load_run
from semigpc.training.run_folder import read_checkpoint
from semigpc.training.state import DataCache, EvaluationNetwork, Progress, cached_features
from tests.batteries import combinations
from tests.training.small_runs import small_run
from tests.training.test_resume import assert_same_end, kill_at

CPU = torch.device("cpu")
FEWER = ("data.test_per_class=12", "data.validation_per_class=3", "data.split.unlabeled_head=60")
QUICK = ("train.lr=0.02", "train.ema=0.9")


@pytest.fixture(autouse=True, scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Features are computed once for all tests, without workers, which are slow to start."""
    with pytest.MonkeyPatch.context() as patch:
        root = tmp_path_factory.mktemp("features")
        patch.setenv("SEMIGPC_CACHE", str(root))
        patch.setattr(feature_views, "LEAST_IMAGES_FOR_WORKERS", 10**6)
        yield root


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "features"))
    return tmp_path / "features"


def frozen_run(
    algorithm: str = "fixmatch", refiner: str = "gp", *settings: str, seed: int = 0
) -> Experiment:
    """Thirty steps of an adapter on a random convolutional network, without rotations."""
    unturned = ["algorithm.rotation_weight=0"] if algorithm == "remixmatch" else []
    experiment = small_run(algorithm, refiner, *FEWER, *unturned, seed=seed)
    return replace(experiment, frozen=FrozenConfig(views=2, width=32)).override(list(settings))


def splits_of(experiment: Experiment) -> Splits:
    return DATASETS["digits"].load(experiment.data, experiment.seed)


def features_of(
    experiment: Experiment, splits: Splits | None = None, progress: Progress | None = None
) -> CachedFeatures:
    return cached_features(experiment, splits or splits_of(experiment), CPU, progress)


def weights(run: Path) -> dict[str, Tensor]:
    return read_checkpoint(RunFolder(run).last).part("model")


def marks(root: Path) -> list[bytes]:
    """Of the images in a cache, as often as they are there."""
    found: list[bytes] = []
    for path in root.glob("*/*.safetensors"):
        with safe_open(path, framework="pt") as file:
            found += [row.tobytes() for row in file.get_tensor("marks").numpy()]
    return found


@pytest.mark.slow
def test_onnx_runtime_computes_the_same_features(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = frozen_run()
    splits = splits_of(experiment)

    def plain(name: str) -> Tensor:
        monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / name))
        features = features_of(experiment, splits=splits)
        return features.normalise(features.plain(splits.unlabeled, np.arange(20)))

    in_torch = plain("torch")
    calls: list[int] = []
    in_onnx_runtime = encoder.in_onnx_runtime

    def counted(*arguments: Any) -> Any:
        run = in_onnx_runtime(*arguments)

        def counting(images: Any) -> Any:
            calls.append(len(images))
            return run(images)

        return counting

    monkeypatch.setattr(encoder, "WORTHWHILE_PIXELS", 0)
    monkeypatch.setattr(encoder, "in_onnx_runtime", counted)
    in_runtime = plain("onnx")
    assert sum(calls) > 20
    size = in_torch.square().mean().sqrt()
    assert (in_runtime - in_torch).abs().max() <= 3e-3 * size  # both rounded to 16 bits


def test_features_are_computed_in_torch_with_a_warning_where_onnx_runtime_is_missing(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "WORTHWHILE_PIXELS", 0)
    monkeypatch.setattr(encoder, "ONNX_PACKAGES", ("onnxruntime_of_nowhere",))
    words = r"in torch, not in .*ONNX Runtime: .* pip install 'semigpc\[embedded\]'"
    with pytest.warns(UserWarning, match=words):
        features_of(frozen_run())
    assert list(own_cache.glob("*/*.safetensors"))


# Training -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "refiner"), combinations(list(ALGORITHMS), ["none", "gp"], costly=True)
)
def test_every_algorithm_trains_on_features(algorithm: str, refiner: str, tmp_path: Path) -> None:
    summary = train(frozen_run(algorithm, refiner, *QUICK), tmp_path)
    assert summary["status"] == "finished"
    assert last_result(summary)["step"] == 30
    assert (tmp_path / "checkpoints" / "best.safetensors").exists(), "judged on validation"
    trained = weights(tmp_path)
    assert trained["backbone.hidden.weight"].shape == (32, SmallCNN().num_features)
    assert not [name for name in trained if "rotation" in name]
    own = ("backbone.hidden.", "classifier.", "heads.")
    assert all(name.startswith(own) for name in trained), "nothing of the network"


@pytest.mark.slow
def test_an_image_without_content_is_the_row_that_the_frozen_network_has_for_it(
    tmp_path: Path,
) -> None:
    experiment = replace(frozen_run("fixmatch", "gp", *QUICK), addon=CDMADConfig(pixel=0.5))
    train(experiment, tmp_path)
    network = load_run(tmp_path).network
    assert isinstance(network, OnFrozen)
    assert isinstance(network.classifier, EvaluationNetwork)
    with torch.no_grad():
        images = torch.rand(4, 3, 8, 8)
        plain = OnFrozen(network.frozen, network.classifier.network)
        blank = plain(torch.full((1, 3, 8, 8), 0.5)).logits
        difference = plain(images).logits - network(images).logits
    assert blank.std() > 0.01
    torch.testing.assert_close(difference, blank.expand(4, -1), rtol=0, atol=2e-3)  # 16 bits


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    experiment = frozen_run("simmatch", "gp")
    features_of(experiment)
    kill_at(17, experiment, tmp_path / "killed", tmp_path)
    assert 0 < read_checkpoint(RunFolder(tmp_path / "killed").last).state["step"] < 19
    train(experiment, tmp_path / "killed", resume=True)
    train(experiment, tmp_path / "whole")
    assert_same_end(tmp_path / "killed", tmp_path / "whole")


@pytest.mark.slow
def test_whether_features_had_to_be_computed_changes_no_bit(
    own_cache: Path, tmp_path: Path
) -> None:
    experiment, caller = frozen_run("remixmatch", "none"), torch.get_rng_state()
    train(experiment, tmp_path / "first")
    files = {path: path.stat().st_mtime_ns for path in own_cache.glob("*/*")}
    train(experiment, tmp_path / "second")
    assert {path: path.stat().st_mtime_ns for path in own_cache.glob("*/*")} == files
    assert_same_end(tmp_path / "first", tmp_path / "second")
    assert torch.equal(torch.get_rng_state(), caller)


def test_resuming_without_frozen_is_refused_by_name(tmp_path: Path) -> None:
    experiment = frozen_run("fixmatch", "none")
    train(experiment, tmp_path)
    with pytest.raises(RuntimeError, match=r"other settings: .*frozen\.views was 2, now None"):
        train(replace(experiment, frozen=None), tmp_path, resume=True)


class Interrupting(Listener):
    """Presses Ctrl-C when told of features for the n-th time."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.told: list[tuple[int, int]] = []

    def features(self, done: int, total: int) -> None:
        self.told.append((done, total))
        if len(self.told) == self.at:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def heeds_ctrl_c() -> Iterator[None]:
    """As in a terminal; a process in the background of a script is started deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("own_cache", "heeds_ctrl_c")
def test_ctrl_c_ends_the_computing_at_once_and_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "PART_ROWS", 16)
    experiment, first = frozen_run("fixmatch", "none"), Interrupting(at=5)
    with pytest.raises(KeyboardInterrupt):
        train(experiment, tmp_path / "run", listener=first)
    assert len(first.told) == 5
    assert not (tmp_path / "run").exists(), "no run was begun"
    again = Interrupting(at=-1)
    assert train(experiment, tmp_path / "run", resume=True, listener=again)["status"] == "finished"
    assert first.told[0][1] - again.told[0][1] == 80, "all five were on disk"


# Answering for images -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("refiner", ["none", "gp"])
def test_a_loaded_run_says_of_images_what_it_said_of_their_features(
    refiner: str, tmp_path: Path
) -> None:
    # A larger scale makes more of the rounding of features.
    scale = ["refiner.logit_scale=11"] if refiner == "gp" else []
    steps = ("train.steps=100", "train.eval_steps=100")
    experiment = frozen_run("fixmatch", refiner, *QUICK, *steps, *scale)
    summary = train(experiment, tmp_path)
    run, images = load_run(tmp_path, "last").part("test")
    answers = run.predict(images)
    splits = splits_of(experiment)
    assert splits.test is not None
    source = features_of(experiment, splits=splits)
    loader = EvaluationLoader([splits.test], source, batch_size=256, workers=0, device=CPU)
    classifier = run.network.get_submodule("classifier")
    raw = predict(classifier, run.gp, loader.batches(splits.test))
    cached = raw.calibrated(run.temperatures)
    heads = {"linear", "gp"} if refiner == "gp" else {"linear"}
    assert answers.probs.keys() == cached.probs.keys() == heads
    for head, probs in answers.probs.items():
        expected = cached.probs[head]
        np.testing.assert_allclose(probs, expected, atol=0.01)  # features are rounded to 16 bits
        assert (probs.argmax(axis=1) == expected.argmax(axis=1)).mean() > 0.98
    top1 = (answers.probs[run.head].argmax(axis=1) == answers.labels).mean()
    assert top1 == pytest.approx(last_result(summary)["top1"], abs=0.01)
    assert top1 > 0.2, "or there is nothing to compare"


@pytest.mark.slow
def test_a_run_is_used_with_the_network_it_was_trained_on_and_no_other(tmp_path: Path) -> None:
    weights = tmp_path / "weights.pth"
    torch.save(SmallCNN().state_dict(), weights)
    experiment = replace(frozen_run(), model=ModelConfig(name="small_cnn", pretrained=str(weights)))
    train(experiment, tmp_path / "run")
    load_run(tmp_path / "run")
    torch.save(SmallCNN().state_dict(), weights)  # drawn anew
    with pytest.raises(RunError, match="with other weights than"):
        load_run(tmp_path / "run")
    with pytest.raises(RunError, match="on features of another network"):
        train(experiment, tmp_path / "run", resume=True)


@pytest.mark.slow
def test_only_what_changes_the_features_has_them_computed_again(
    own_cache: Path, tmp_path: Path
) -> None:
    files = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for file in files:
        torch.save(SmallCNN().state_dict(), file)

    def computed(*settings: str, seed: int = 0) -> int:
        told = [0]
        experiment = frozen_run("fixmatch", "none", *settings, seed=seed)
        features_of(experiment, progress=lambda _, total: told.append(total))
        return told[-1]

    everything = computed()
    assert everything > 200
    assert computed("frozen.width=8", "train.lr=1") == 0
    assert 0 < computed(seed=1) < everything, "another split shares what it can"
    weights = [f"model.pretrained={file}" for file in files]
    for setting in ("frozen.views=1", "augment.operations=2", *weights):
        assert computed(setting) == everything
        assert computed(setting) == 0
    assert len(list(own_cache.iterdir())) == 5


# Settings -----------------------------------------------------------------------------------------


def test_settings_are_written_and_read_and_older_files_mean_no_frozen_network(
    tmp_path: Path,
) -> None:
    for experiment in (frozen_run(), small_run()):
        assert Experiment.from_plain(experiment.to_plain()) == experiment
    train(frozen_run("supervised", "none", "train.steps=1"), tmp_path)
    assert RunFolder(tmp_path).experiment().frozen == FrozenConfig(views=2, width=32)
    plain = small_run().to_plain()
    assert plain.pop("frozen") is None
    assert Experiment.from_plain(plain) == small_run()


def test_frozen_settings_can_be_overridden() -> None:
    assert frozen_run().override(["frozen.views=5"]).frozen == FrozenConfig(views=5, width=32)
    least = "frozen: views and width must be at least 1; got"
    for experiment, setting, words in (
        (frozen_run(), "frozen.views=0", f"{least} 0 and 32"),
        (frozen_run(), "frozen.width=0", f"{least} 2 and 0"),
        (small_run(), "frozen=2", r"a FrozenConfig or None; got 2. Set features=cached"),
    ):
        with pytest.raises(SettingsError, match=words):
            experiment.override([setting])


def test_features_cannot_be_rotated() -> None:
    with pytest.raises(SettingsError, match=r"rotated.* algorithm\.rotation_weight=0"):
        replace(small_run("remixmatch", "none"), frozen=FrozenConfig())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.name=smal_cnn", "unknown model 'smal_cnn'; did you mean 'small_cnn'"),
        ("model.pretrained=embedded", "those of tf_efficientnet_lite0; got small_cnn"),
        ("model.pretrained=timm", "timm's hub has no weights for small_cnn"),
    ],
)
def test_a_network_that_cannot_be_is_a_setting_and_leaves_no_run(
    setting: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=f"model: .*{message}"):
        train(frozen_run("fixmatch", "none", setting), tmp_path / "run")
    assert not (tmp_path / "run").exists()


# Comparing ----------------------------------------------------------------------------------------


class Recording(ComparisonListener):
    """Writes down what happens in which order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.told: list[tuple[int, int]] = []

    def features(self, done: int, total: int) -> None:
        self.events.append("features")
        self.told.append((done, total))

    def run(self, cell: Cell, seed: int) -> Listener:
        self.events.append("run")
        return Interrupting(at=1)  # told of features, it would end the comparison

    def done(self, cell: Cell, seed: int, summary: object, *, kept: bool) -> None:
        self.events.append("kept" if kept else "done")


@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_a_comparison_computes_features_once_before_its_runs(
    jobs: int, own_cache: Path, tmp_path: Path
) -> None:
    short = ("train.steps=6", "train.eval_steps=6")
    cells = [Cell(frozen_run("fixmatch", refiner, *short), refiner) for refiner in ("none", "gp")]
    first = Recording()
    runs = tmp_path / "runs"
    found = compare(cells, [0], runs, title="t", command="c", jobs=jobs, listener=first)
    assert [cell["name"] for cell in found["cells"]] == ["fixmatch+none", "fixmatch+gp"]
    assert first.events.index("run") == len(first.told), "features come before runs"
    assert first.events.count("done") == 2
    assert first.told[-1][0] == first.told[-1][1]
    assert [done for done, _ in first.told] == sorted({done for done, _ in first.told}), "in one go"
    held = marks(own_cache)
    assert len(held) == len(set(held)) == first.told[-1][1]


@pytest.mark.slow
@pytest.mark.usefixtures("own_cache")
def test_a_comparison_that_goes_on_computes_what_is_missing(tmp_path: Path) -> None:
    cells, told = [Cell(frozen_run("fixmatch", "none", "train.steps=1"), "FixMatch")], []
    for seeds in ([0], [0, 1], [0, 1]):
        listener = Recording()
        compare(cells, seeds, tmp_path / "runs", title="t", command="c", listener=listener)
        told.append((listener.events.count("kept"), listener.told[-1][1] if listener.told else 0))
    (_, first), (_, second), _ = told
    assert 0 < second < first
    assert told == [(0, first), (1, second), (2, 0)]


# Data that several runs share ---------------------------------------------------------------------


def test_runs_that_share_their_data_end_with_the_same_bits_as_alone(tmp_path: Path) -> None:
    cache, short = DataCache(), ("train.steps=8", "train.eval_steps=8")
    for algorithm, refiner in (("fixmatch", "gp"), ("remixmatch", "none")):
        experiment = frozen_run(algorithm, refiner, *short)
        alone = train(experiment, tmp_path / algorithm / "alone")
        shared = train(experiment, tmp_path / algorithm / "shared", cache=cache)
        assert shared["results"] == alone["results"]
        found, expected = (weights(tmp_path / algorithm / name) for name in ("shared", "alone"))
        assert all(found[name].equal(value) for name, value in expected.items())


def test_data_are_read_once_for_runs_that_share_them_and_again_where_they_differ() -> None:
    cache = DataCache()
    first = cache.run_data(frozen_run("fixmatch"))
    assert cache.run_data(frozen_run("simmatch", "none")) == first
    other = cache.run_data(frozen_run("fixmatch", seed=1))
    assert other.splits.sha256 != first.splits.sha256
    again = cache.run_data(frozen_run("fixmatch"))
    assert again.splits is not first.splits
    assert again.source is not first.source
    assert again.splits.sha256 == first.splits.sha256
    plain = cache.run_data(small_run("fixmatch", "none"))
    assert cache.run_data(small_run("simmatch", "gp")).splits is plain.splits
    assert cache.splits(small_run().data, 5) is not plain.splits
