from pathlib import Path

import pytest
import torch

from semigpc.training import checkpoint
from semigpc.training.checkpoint import CheckpointError, load, save


def test_tensors_and_state_come_back(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    save(
        tmp_path / "a.safetensors", {"model": {"w": weight.mT, "n": torch.tensor(3)}, "empty": {}}, {"step": 5, "x": [1, None]}
    )
    found = load(tmp_path / "a.safetensors")
    assert torch.equal(found.part("model")["w"], weight.mT)
    assert found.part("model")["n"].item() == 3
    assert found.state == {"step": 5, "x": [1, None]}
    assert not found.part("empty")


def test_tensors_that_share_memory_are_saved_apart(tmp_path: Path) -> None:
    shared = torch.ones(4)
    save(tmp_path / "a.safetensors", {"a": {"x": shared[:2], "y": shared}}, {})
    assert torch.equal(load(tmp_path / "a.safetensors").part("a")["y"], shared)


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "last.safetensors"
    save(path, {"a": {"x": torch.ones(2)}}, {"step": 1})

    def full(tensors: object, draft: Path, metadata: object) -> None:  # noqa: ARG001
        draft.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(CheckpointError, match=r"No space left on device.*previous checkpoint .* is intact"):
        save(path, {"a": {"x": torch.zeros(2)}}, {"step": 2})
    assert load(path).state == {"step": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["last.safetensors"]


@pytest.mark.parametrize("content", [b"", b"not a checkpoint at all", b"\x10\0\0\0\0\0\0\0{}              "])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"broken\.safetensors cannot be read"):
        load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        load(tmp_path / "none.safetensors")


def test_moments_come_back_laid_out_like_their_parameters() -> None:
    def fresh() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        weight = torch.nn.Parameter(torch.arange(24.0).reshape(2, 3, 2, 2).to(memory_format=torch.channels_last))
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
        for name, value in checkpoint.optimizer_tensors(optimizer).items()
    }
    checkpoint.restore_optimizer(resumed, saved)
    for _ in range(2):
        descend(weight, optimizer)
        descend(other, resumed)
    assert torch.equal(weight, other)
