import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from semigpc.io import tensors
from semigpc.io.atomic import replacing
from semigpc.io.errors import CheckpointError, RunError, WriteError
from semigpc.io.tensors import save_tensors
from semigpc.training import RunFolder, train
from semigpc.training.inference import load_run
from semigpc.training.optim import optimizer_tensors, restore_optimizer
from semigpc.training.run_folder import read_checkpoint, write_checkpoint
from tests.fuzzing import seed
from tests.training.small_runs import STEPS, small_run

EXPERIMENT = small_run()


def test_tensors_and_state_come_back_also_if_they_share_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    weight = torch.arange(6.0).reshape(2, 3)
    model = {"w": weight.mT, "row": weight[1], "n": torch.tensor(3)}
    state = {"step": 5, "x": [1, None]}
    write_checkpoint(path, {"model": model, "empty": {}}, state)
    found = read_checkpoint(path)
    assert all(torch.equal(value, model[name]) for name, value in found.part("model").items())
    assert found.part("model").keys() == model.keys()
    assert found.state == state
    assert not found.part("empty")


def test_a_failed_write_leaves_the_old_file_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "last.safetensors"
    write_checkpoint(path, {"a": {"x": torch.ones(2)}}, {"step": 1})

    def full(tensors: object, draft: Path, metadata: object) -> None:
        draft.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tensors, "save_file", full)
    words = r"the checkpoint .*disk is full.* not modified.*It takes 0\.0 MB"
    with pytest.raises(WriteError, match=words):
        write_checkpoint(path, {"a": {"x": torch.zeros(2)}}, {"step": 2})
    assert read_checkpoint(path).state == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.safetensors"]


def test_a_broken_or_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "broken.safetensors"
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        read_checkpoint(path)
    for content in (b"", b"not a checkpoint at all", b"\x10\0\0\0\0\0\0\0{}              "):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"broken\.safetensors cannot be read"):
            read_checkpoint(path)


def test_moments_come_back_laid_out_like_their_parameters() -> None:
    def fresh() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        values = torch.arange(24.0).reshape(2, 3, 2, 2).to(memory_format=torch.channels_last)
        weight = torch.nn.Parameter(values)
        return weight, torch.optim.AdamW([weight], lr=0.1, fused=True)

    def descend(weight: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        weight.pow(3).sum().backward()
        optimizer.step()

    weight, optimizer = fresh()
    descend(weight, optimizer)
    other, resumed = fresh()
    with torch.no_grad():
        other.copy_(weight)
    saved = {
        name: value.clone(memory_format=torch.contiguous_format)
        for name, value in optimizer_tensors(optimizer).items()
    }
    restore_optimizer(resumed, saved)
    for _ in range(2):
        descend(weight, optimizer)
        descend(other, resumed)
    assert torch.equal(weight, other)


# Damage -------------------------------------------------------------------------------------------

FLIPS = 200


def flip(path: Path, position: int, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path, rng = tmp_path / "last.safetensors", random.Random(seed())
    parts = {"model": {"w": torch.randn(40, 30)}, "random": {"cpu": torch.get_rng_state()}}
    write_checkpoint(path, parts, {"step": 5, "text": "x" * 300})
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    in_header = rng.sample(range(8, header), 92)
    in_tensors = rng.sample(range(header, len(whole)), FLIPS - 100)
    for position in (*range(8), *in_header, *in_tensors):
        path.write_bytes(whole)
        flip(path, position, rng)
        with pytest.raises(CheckpointError, match=r"last\.safetensors (is damaged|cannot be read)"):
            read_checkpoint(path)
    path.write_bytes(whole)
    assert read_checkpoint(path).state["step"] == 5


@pytest.mark.parametrize(
    "change", ["truncated", "longer", "without a checksum", "a folder", "a pipe"]
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, change: str) -> None:
    path = tmp_path / "last.safetensors"
    write_checkpoint(path, {"model": {"w": torch.ones(3)}}, {"step": 5})
    content = path.read_bytes()
    path.unlink()
    match change:
        case "truncated":
            path.write_bytes(content[:-1])
        case "longer":
            path.write_bytes(content + b"\0")
        case "without a checksum":
            save_file({"model.w": torch.ones(3)}, path, metadata={"state": "{}"})
        case "a folder":
            path.mkdir()
        case "a pipe":
            os.mkfifo(path)
    words = r"last\.safetensors (is damaged|cannot be read: it (has no checksum|is a))"
    with pytest.raises(CheckpointError, match=words):
        read_checkpoint(path)


def test_equal_tensors_make_equal_files(tmp_path: Path) -> None:
    for name in "ab":
        model = {"w": torch.ones(3), "b": torch.zeros(2)}
        write_checkpoint(tmp_path / name, {"model": model}, {"step": 5})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def damaged(run: Path, *names: str) -> RunFolder:
    folder = RunFolder(run)
    for name in names:
        path = folder.path / "checkpoints" / f"{name}.safetensors"
        flip(path, path.stat().st_size - 100, random.Random(seed()))
    return folder


@pytest.mark.slow
def test_the_best_checkpoint_stands_in_for_a_damaged_last_one(finished_copy: Path) -> None:
    """What the message says to do works: the run goes on from there to its end."""
    folder = damaged(finished_copy, "last")
    step = read_checkpoint(folder.best).state["step"]
    offer = rf"last\.safetensors is damaged.*best\.safetensors .*step {step}: copy it to last"
    with pytest.raises(CheckpointError, match=offer):
        train(EXPERIMENT, folder.path, resume=True)
    shutil.copy(folder.best, folder.last)
    assert train(EXPERIMENT, folder.path, resume=True)["step"] == STEPS
    assert read_checkpoint(folder.last).state["step"] == STEPS
    assert load_run(folder.path, "last").step == STEPS


def test_the_last_checkpoint_stands_in_for_a_damaged_best_one(finished_copy: Path) -> None:
    folder = damaged(finished_copy, "best")
    words = rf"best\.safetensors is damaged.*step {STEPS}: use it with checkpoint=last"
    with pytest.raises(CheckpointError, match=words):
        load_run(folder.path)
    assert load_run(folder.path, "last").step == STEPS


def test_a_deleted_best_checkpoint_is_not_replaced_by_the_last_one_silently(
    finished_copy: Path,
) -> None:
    best = RunFolder(finished_copy).best
    step = load_run(finished_copy).step
    best.unlink()
    with pytest.raises(RunError, match=rf"best .*step {step}.*missing.*use checkpoint=last"):
        load_run(finished_copy)
    assert load_run(finished_copy, "last").step == STEPS


def test_two_damaged_checkpoints_are_named(finished_copy: Path) -> None:
    folder = damaged(finished_copy, "best", "last")
    words = r"last\.safetensors is damaged.*best\.safetensors cannot be used either"
    with pytest.raises(CheckpointError, match=words):
        train(EXPERIMENT, folder.path, resume=True)


# Impossible states --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"generation": 99}, "generation must be below 1, the generations of the run; got 99"),
        ({"generation": -1}, "generation must be greater than or equal to 0; got -1"),
        ({"step": 31}, "step must lie in 0 to 30, the steps of generation 0; got 31"),
        ({"step": 1.5}, "step must be a valid integer; got 1.5"),
        ({"step": None}, "step must be a valid integer; got null"),
        ({"journal": {}}, r"journal\.results is missing"),
        ({"labeled_counts": [1, 2]}, "labeled_counts must have one number for each class"),
    ],
)
def test_a_state_that_cannot_be_is_refused(
    finished_copy: Path, changes: dict[str, Any], message: str
) -> None:
    """Also with a checksum that fits: it was written so."""
    folder = RunFolder(finished_copy)
    found = read_checkpoint(folder.last)
    folder.best.unlink()
    with replacing(folder.last) as draft:
        save_tensors(draft, found.tensors, state=found.state | changes)
    words = rf"last\.safetensors cannot be used: {message}.*Train again"
    with pytest.raises(CheckpointError, match=words):
        train(EXPERIMENT, folder.path, resume=True)
    with pytest.raises(CheckpointError, match=words):
        load_run(folder.path)


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("split", "class_names", [f"class {c}" for c in range(10)]),
        ("split", "labeled_counts", [7] * 10),
        ("config", "train", {"ema": 0.5}),
        ("config", "refiner", {"length_scale": 3.0}),
    ],
)
def test_a_file_that_was_changed_since_is_noticed(
    finished_copy: Path, file: str, key: str, value: Any
) -> None:
    """Swapped names of classes would make every prediction wrong without a word."""
    folder = RunFolder(finished_copy)
    path = folder.path / f"{file}.json"
    plain = json.loads(path.read_text())
    plain[key] = plain[key] | value if isinstance(value, dict) else value
    path.write_text(json.dumps(plain))
    words = rf"{file}\.json has been changed since the run was trained: {key}.* Put it back"
    with pytest.raises(RunError, match=words):
        load_run(folder.path)


def test_what_a_machine_can_do_may_change(finished_copy: Path) -> None:
    folder = RunFolder(finished_copy)
    plain = json.loads(folder.config.read_text())
    plain["train"] |= {"eval_batch": 3, "workers": 1, "threads": 2}
    folder.config.write_text(json.dumps(plain))
    assert load_run(folder.path).experiment.train.eval_batch == 3
