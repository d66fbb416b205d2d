"""The head that ``semigpc label`` would fit on the images of a run."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from semigpc.data import DATASETS, ImageSet, Splits
from semigpc.data.folder import FolderConfig, load
from semigpc.estimator import SemiGPClassifier
from semigpc.io.errors import CheckpointError, DataError, SettingsError
from semigpc.io.images import ArrayImages
from semigpc.labeling.inference import answer_split
from semigpc.models import ModelConfig, encoder
from semigpc.models.encoder import EmbedConfig
from semigpc.refiners import GaussianProcessRefiner, GPConfig
from semigpc.training import Experiment, FrozenConfig, RunFolder, Stopped, train
from semigpc.training.evaluate import Predictions, lead, or_label_head
from semigpc.training.inference import load_run
from semigpc.training.label_head import LabelHead, fit_label_head
from semigpc.training.run_folder import read_checkpoint, write_checkpoint
from tests.cli.own_data import make_folder
from tests.training.small_runs import StopAt, entries, small_run
from tests.training.test_resume import assert_same_end

FEWER = ("data.test_per_class=6", "data.validation_per_class=0", "data.split.unlabeled_head=40")
MODEL = ModelConfig(name="small_cnn")
pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True, scope="module")
def small_and_cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Images of 16 pixels, whose rows are computed once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEMIGPC_CACHE", str(tmp_path_factory.mktemp("rows")))
        patch.setattr(encoder, "DEFAULT_SIZE", 16)
        yield


def labelled_run(refiner: str = "gp", *settings: str) -> Experiment:
    """Thirty steps of an adapter, with a label head."""
    experiment = small_run("fixmatch", refiner, *FEWER)
    frozen = FrozenConfig(views=1, width=32, label_head=True)
    return replace(experiment, model=MODEL, frozen=frozen).override(list(settings))


def digits_of(experiment: Experiment) -> Splits:
    return DATASETS["digits"].load(experiment.data, experiment.seed)


def fitted(splits: Splits) -> LabelHead:
    head = fit_label_head(MODEL, splits, 0)
    assert head is not None
    return head


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("label") / "run"
    train(labelled_run(), path)
    return path


# What it says ----------------------------------------------------------------------------------


def test_it_says_what_label_says_of_the_same_photographs(tmp_path: Path) -> None:
    photos = make_folder(tmp_path, labels=(10, 8, 6))
    tables = {name: str(tmp_path / f"{name}.csv") for name in ("labels", "test")}
    splits = load(FolderConfig(root=str(photos), **tables), 0)  # type: ignore[arg-type]
    assert splits.test is not None
    found = fitted(splits).probs(splits.test)
    config = EmbedConfig(model="small_cnn", pretrained="none")
    expected, _ = answer_split(config, splits, splits.test, 0, lambda *_: None)
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(np.unique(expected.round(4))) > 10, "or there is nothing to compare"


def test_images_in_memory_have_the_rows_of_the_same_images_in_files(tmp_path: Path) -> None:
    photos = make_folder(tmp_path, test=0)
    splits = load(FolderConfig(root=str(photos), labels=str(tmp_path / "labels.csv")), 0)

    def in_memory(images: ImageSet) -> ImageSet:
        pixels = np.stack([np.asarray(images[i]) for i in range(len(images))])
        return ImageSet(ArrayImages(pixels), images.labels, images.names)

    other = replace(
        splits, labeled=in_memory(splits.labeled), unlabeled=in_memory(splits.unlabeled)
    )
    from_files = fitted(splits).probs(splits.unlabeled)
    assert fitted(other).probs(other.unlabeled) == pytest.approx(from_files, abs=1e-6)


def test_labelled_images_are_no_unlabelled_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    splits = digits_of(labelled_run())
    assert splits.unlabeled.images is splits.labeled.images, "and the same images are in both"
    shared = np.isin(splits.unlabeled.positions, splits.labeled.positions).sum()
    seen: list[NDArray[np.int64]] = []
    fit = SemiGPClassifier.fit

    def counted(self: SemiGPClassifier, x: object, y: NDArray[np.int64], **options: bool) -> object:
        seen.append(y)
        return fit(self, x, y, **options)

    monkeypatch.setattr(SemiGPClassifier, "fit", counted)
    fitted(splits)
    assert (seen[0] == -1).sum() == len(splits.unlabeled) - shared
    assert (seen[0] >= 0).sum() == len(splits.labeled)


def test_images_that_are_all_the_same_make_no_head() -> None:
    splits = digits_of(labelled_run())
    same = ArrayImages(np.zeros((4, 8, 8), np.uint8))
    labeled = ImageSet(same, np.array([0, 0, 1, 1]), list("abcd"))
    alike = replace(
        splits,
        labeled=labeled,
        unlabeled=labeled.subset(np.arange(2)).without_labels(),
        unlabeled_truth=np.array([-1, -1]),
        class_names=("a", "b"),
        validation=None,
        test=None,
        unlabeled_out=None,
    )
    assert fit_label_head(MODEL, alike, 0) is None


# In a run ----------------------------------------------------------------------------------------


def test_a_run_is_judged_by_it_and_reports_it_beside_the_others(run: Path) -> None:
    evaluations = entries(run, "eval")
    last = {line["head"]: line for line in evaluations if line["step"] == 30}
    assert set(last) == {"linear", "gp", "label"}
    assert [head for head, line in last.items() if line["judged"]] == ["label"]
    values = {line["top1"] for line in evaluations if line["head"] == "label"}
    assert len(values) == 1, "it does not depend on the step"
    summary = RunFolder(run).read_summary()
    assert (summary["checkpoint"], summary["head"]) == ("last", "label")


def test_a_loaded_run_predicts_what_was_evaluated(run: Path) -> None:
    loaded, images = load_run(run).part("test")
    assert loaded.heads("auto") == ("label", "linear", "gp")
    assert loaded.is_calibrated
    alone = loaded.predict(images, heads=["label"])
    assert set(alone.probs) == {"label"}
    every = loaded.predict(images)
    assert set(every.probs) == {"linear", "gp", "label"}
    assert np.array_equal(every.probs["label"], alone.probs["label"])
    splits = digits_of(labelled_run())
    assert splits.test is not None
    assert np.array_equal(alone.probs["label"], fitted(splits).probs(splits.test))
    top1 = (alone.probs["label"].argmax(axis=1) == images.labels).mean()
    line = [line for line in entries(run, "eval") if line["head"] == "label"][-1]
    assert top1 == line["top1"]


def test_a_run_that_was_stopped_ends_with_the_same_bits(run: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(labelled_run(), tmp_path, listener=StopAt(14))
    train(labelled_run(), tmp_path, resume=True)
    assert_same_end(tmp_path, run)


def test_settings_turn_it_off_or_choose_another_head(run: Path, tmp_path: Path) -> None:
    train(labelled_run("gp", "refiner.eval_head=linear", "train.steps=5"), tmp_path / "linear")
    fixed = load_run(tmp_path / "linear")
    assert fixed.heads("auto") == ("linear", "gp", "label")
    train(labelled_run("none", "frozen.label_head=false", "train.steps=5"), tmp_path / "without")
    without = load_run(tmp_path / "without")
    assert without.heads("auto") == ("linear",)
    with pytest.raises(SettingsError, match=r"frozen\.label_head"):
        without.heads("label")
    assert load_run(run).heads("gp") == ("gp",)


def test_a_checkpoint_without_a_part_of_it_is_refused(run: Path, tmp_path: Path) -> None:
    copytree(run, tmp_path / "run")
    path = RunFolder(tmp_path / "run").last
    saved = read_checkpoint(path)
    parts: dict[str, dict[str, torch.Tensor]] = {}
    for name, value in saved.tensors.items():
        part, _, rest = name.partition(".")
        if name != "label_head.given.points":
            parts.setdefault(part, {})[rest] = value
    write_checkpoint(path, parts, saved.state)
    with pytest.raises(CheckpointError, match=r"given\.points"):
        load_run(tmp_path / "run")


def test_another_network_than_in_training_is_refused(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path))
    loaded, images = load_run(run).part("test")
    head = loaded.label_head
    assert head is not None
    other = replace(head, key=replace(head.key, weights="0" * 64))
    with pytest.raises(DataError, match="not the network that made the embeddings"):
        other.probs(images)


# Which head is judged ----------------------------------------------------------------------------


def predictions(labels: NDArray[np.int64], **right: NDArray[np.bool_]) -> Predictions:
    """Heads that are right where they are said to be, of three classes."""
    probs = {
        head: np.eye(3)[np.where(own, labels, (labels + 1) % 3)] for head, own in right.items()
    }
    return Predictions(probs, labels)  # type: ignore[arg-type]


def test_the_lead_is_the_paired_difference_of_balanced_accuracies() -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 60, p=(0.6, 0.3, 0.1))
    right = {head: rng.random(60) < share for head, share in (("gp", 0.9), ("label", 0.6))}
    difference, error = lead(predictions(labels, **right), "gp", "label")
    recalls = [[own[labels == c].mean() for c in range(3)] for own in right.values()]
    assert difference == pytest.approx(np.mean(recalls[0]) - np.mean(recalls[1]))
    draws = []
    for _ in range(4000):  # of as many images of each class
        rows = np.concatenate([rng.choice(np.flatnonzero(labels == c), (labels == c).sum())
                               for c in range(3)])  # fmt: skip
        again = predictions(labels[rows], **{head: own[rows] for head, own in right.items()})
        draws.append(lead(again, "gp", "label")[0])
    assert error == pytest.approx(np.std(draws), rel=0.2)


def test_a_trained_head_is_judged_only_where_it_is_better_by_more_than_chance() -> None:
    labels = np.arange(30) % 3
    label = np.arange(30) >= 6

    def judged(better: int) -> str:
        """Of a head that is right about so many more of 30 images."""
        found = predictions(labels, linear=label | (np.arange(30) < better), label=label)
        return or_label_head("linear", None, found)

    assert [judged(better) for better in (0, 1, 3)] == ["label"] * 3
    assert judged(6) == "linear"
    worse = predictions(labels, linear=label & (np.arange(30) > 15), label=label)
    assert or_label_head("linear", None, worse) == "label"
    assert or_label_head("linear", None) == "label", "without validation images"


def test_a_head_that_was_asked_for_stays() -> None:
    gp = GaussianProcessRefiner(GPConfig(buffer_size=4, eval_head="linear"), 2, 3)
    assert or_label_head("linear", gp) == "linear"
