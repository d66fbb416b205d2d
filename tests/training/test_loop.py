import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from semigpc.io.errors import DivergedError
from semigpc.training import RunFolder, Stopped, last_result, train
from semigpc.training.metrics import METRIC
from semigpc.training.run_folder import read_checkpoint
from tests.training.small_runs import STEPS, StopAt, entries, gp_facts, small_run

REBUILT = "refiner.eval_buffer=rebuilt"


@pytest.mark.slow
def test_a_run_folder_tells_everything(tmp_path: Path) -> None:
    experiment = small_run("simmatch", "gp")
    summary = train(experiment, tmp_path)
    folder = RunFolder(tmp_path)
    assert folder.experiment() == experiment
    split = json.loads(folder.split.read_text())
    assert split["labeled_counts"] == [36, 24, 16, 11, 7, 5, 3, 2, 1, 1]
    assert split["test_counts"] == [40] * 10
    assert len(np.load(tmp_path / "split.npz")["labeled"]) == sum(split["labeled_counts"])
    assert "torch" in json.loads((tmp_path / "environment.json").read_text())
    assert summary["status"] == "finished"
    tested = [entry for entry in entries(tmp_path, "eval") if entry["part"] == "test"]
    assert [entry["step"] for entry in tested if entry["head"] == "linear"] == [10, 20, 30]
    assert {entry["head"] for entry in tested} == {"linear", "gp"}
    trained = entries(tmp_path, "train")
    assert sum(entry["window"] for entry in trained) == STEPS
    losses = {"loss", "loss_x", "loss_u", "loss_in"}
    assert losses | {"mask_rate", "lr", "data_wait_share"} <= trained[-1].keys()
    believed = sum(sum(entry["believed_counts"]) for entry in entries(tmp_path, "pseudo"))
    assert believed == STEPS * experiment.train.unlabeled_batch


@pytest.mark.slow
def test_best_is_chosen_on_validation_and_test_is_named_apart(finished: Path) -> None:
    results = RunFolder(finished).read_summary()["results"]
    judged = [entry for entry in entries(finished, "eval") if entry["judged"]]
    validation, test = (
        {entry["step"]: entry[METRIC] for entry in judged if entry["part"] == part}
        for part in ("validation", "test")
    )
    best = max(validation, key=lambda step: validation[step])  # the first of equals
    found = {key: (result["step"], result[METRIC]) for key, result in results.items() if result}
    assert found["best_on_validation"] == (best, test[best])
    assert found["best_on_test"][1] == max(test.values())
    assert found["last"] == (STEPS, test[STEPS])
    assert read_checkpoint(RunFolder(finished).best).state["step"] == best


@pytest.mark.slow
def test_without_validation_there_is_no_best(tmp_path: Path) -> None:
    summary = train(small_run("fixmatch", "none", "data.validation_per_class=0"), tmp_path)
    assert summary["results"]["best_on_validation"] is None
    assert not RunFolder(tmp_path).best.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        ("refiner.role=classifier",),
        ("refiner.role=classifier", "refiner.exclude_same_index=true", REBUILT),
        ("refiner.warmup_steps=0", "refiner.eval_head=gp"),
        ("refiner.push=before", "refiner.balanced=true"),
        ("train.clip_norm=1.0",),
        ("train.optimizer=sgd", "train.ema=0", "train.schedule=constant"),
        ("algorithm.bank=full_teacher",),
        ("refiner.feature=projection", "refiner.site=final"),
    ],
)
def test_the_switches_work_together(settings: tuple[str, ...], tmp_path: Path) -> None:
    summary = train(small_run("simmatch", "gp", *settings, "train.steps=12"), tmp_path)
    assert np.isfinite(last_result(summary)["loss"])
    only_gp = {"refiner.role=classifier", "refiner.eval_head=gp"} & set(settings)
    assert last_result(summary)["head"] in ({"gp"} if only_gp else {"linear", "gp"})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
def test_mixed_precision_never_reaches_the_gp(tmp_path: Path) -> None:
    # Some virtual machines announce bfloat16 instructions they do not have.
    with torch.backends.mkldnn.flags(enabled=False):
        train(small_run("fixmatch", "gp", "train.precision=bf16-mixed"), tmp_path)
    state = read_checkpoint(RunFolder(tmp_path).last).part("algorithm")
    features = state["refiner.engine.feature_columns"]
    assert features.dtype == torch.float64
    norms = features[:, features.any(dim=0)].square().sum(dim=0)
    # bfloat16 would be off by a thousandth.
    assert torch.allclose(norms, torch.ones_like(norms), atol=1e-6)


@pytest.mark.parametrize("bank", ["momentum", "full_teacher"])
def test_a_balanced_buffer_is_in_balance_from_the_first_step_after_the_warm_up(
    bank: str, tmp_path: Path
) -> None:
    settings = ("refiner.balanced=true", f"algorithm.bank={bank}", "train.checkpoint_steps=4")
    summary = train(small_run("simmatch", "gp", *settings, "train.steps=5"), tmp_path)
    assert gp_facts(summary)["class_counts"] == [9] * 10
    fifo = train(small_run("simmatch", "gp", "train.steps=5"), tmp_path / "fifo")
    assert len(set(gp_facts(fifo)["class_counts"])) > 1


def test_a_run_that_stops_before_its_buffer_is_filled_goes_on_to_the_same_end(
    tmp_path: Path,
) -> None:
    experiment = small_run("fixmatch", "similarity", "refiner.balanced=true", "train.steps=8")
    with pytest.raises(Stopped, match="stopped after step 4"):  # of the refiner's warm-up
        train(experiment, tmp_path / "cut", listener=StopAt(4))
    resumed = train(experiment, tmp_path / "cut", resume=True)
    assert resumed["results"] == train(experiment, tmp_path / "whole")["results"]


@pytest.mark.nightly
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_a_translated_network_learns_the_same(tmp_path: Path) -> None:
    short = ("train.steps=4", "train.eval_steps=4")
    for setting in ("false", "true"):
        train(small_run("fixmatch", "none", *short, f"train.compile={setting}"), tmp_path / setting)
    plain, translated = (
        read_checkpoint(RunFolder(tmp_path / name).last).part("model") for name in ("false", "true")
    )
    assert list(plain) == list(translated)
    for name, weights in plain.items():
        assert torch.allclose(weights.float(), translated[name].float(), atol=2e-3), name


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize(
    ("refiner", "setting", "words"),
    [
        ("none", "train.eval_steps=10", r"at step \d+ \(loss_x .*a lower train\.lr"),
        ("gp", "train.eval_steps=10", r"features contain NaN .* at step \d+.*a lower train\.lr"),
        ("none", "train.eval_steps=1", "contain NaN or infinity"),  # of predictions
    ],
)
def test_what_is_no_number_stops_the_run_with_advice(
    refiner: str, setting: str, words: str, tmp_path: Path
) -> None:
    wild = ("train.lr=1e30", "train.warmup_steps=0", setting)
    with pytest.raises(DivergedError, match=words):
        train(small_run("fixmatch", refiner, *wild), tmp_path)


def test_a_refiner_that_is_never_used_is_noted(tmp_path: Path) -> None:
    train(small_run("fixmatch", "gp", "train.steps=3", "refiner.warmup_steps=3"), tmp_path)
    messages = [entry["message"] for entry in entries(tmp_path, "note")]
    assert any("lower refiner.warmup_steps" in message for message in messages)


@pytest.mark.slow
def test_ctrl_c_saves_and_the_run_goes_on_to_the_same_end(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match="stopped after step 12 of 30"):
        train(small_run(), tmp_path / "cut", listener=StopAt(12))
    assert read_checkpoint(RunFolder(tmp_path / "cut").last).state["step"] == 12
    assert json.loads(RunFolder(tmp_path / "cut").summary.read_text())["status"] == "stopped"
    train(small_run(), tmp_path / "cut", resume=True)
    train(small_run(), tmp_path / "whole")
    ours, theirs = (read_checkpoint(RunFolder(tmp_path / name).last) for name in ("cut", "whole"))
    networks = [name for name in ours.tensors if name.startswith(("model.", "average."))]
    for name in networks:
        assert torch.allclose(ours.tensors[name], theirs.tensors[name], atol=1e-4), name


def test_a_run_chooses_its_engine_by_the_memory_of_the_device_it_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def memory(device: object) -> int:
        return 2**36 if device is None else 2**15  # None: not told

    monkeypatch.setattr("semigpc.gp.exact._memory", memory)
    settings = ("refiner.engine.members=4", "refiner.eval_buffer=rebuilt", "train.steps=3")
    summary = train(small_run("fixmatch", "gp", *settings), tmp_path)
    assert gp_facts(summary)["engine"] == "ensemble"
    assert "the inverse of K for 96 rows takes 0 MiB of 0" in gp_facts(summary)["engine_reason"]
    tensors = read_checkpoint(RunFolder(tmp_path).last).tensors
    assert tensors["algorithm.refiner.engine.layout"].tolist() == [96, 4, 24]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ensemble", "matrix_free"])
def test_a_run_is_carried_by_any_engine(engine: str, tmp_path: Path) -> None:
    losses = {}
    options = {"exact": [], "ensemble": ["refiner.engine.members=3"], "matrix_free": []}
    for name in ("exact", engine):
        experiment = small_run("simmatch", "gp", f"refiner.engine={name}", *options[name])
        summary = train(experiment, tmp_path / name)
        assert gp_facts(summary)["engine"] == name
        assert gp_facts(summary)["engine_reason"] == "as configured"
        assert gp_facts(summary)["entries"] == 96, "the buffer is full"
        losses[name] = [entry["loss"] for entry in entries(tmp_path / name, "train")]
    assert losses[engine] == pytest.approx(losses["exact"], rel=0.05)


def test_a_confidence_that_nothing_is_compared_with_is_noted(tmp_path: Path) -> None:
    for algorithm, expected in (("remixmatch", 1), ("fixmatch", 0)):
        experiment = small_run(algorithm, "gp", "refiner.confidence=expected", "train.steps=2")
        train(experiment, tmp_path / algorithm)
        messages = [entry["message"] for entry in entries(tmp_path / algorithm, "note")]
        assert sum("no effect" in message for message in messages) == expected
