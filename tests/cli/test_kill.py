"""kill -9 at any moment: nothing acknowledged is lost, and the same command ends the same."""

import http.client
import json
import os
import random
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch

from semigpc.review.session import open_session
from semigpc.training.run_folder import read_checkpoint
from tests.cli.calls import start, worked
from tests.data.samples import write_images
from tests.fuzzing import cases, seed
from tests.labeling.samples import IDS, LABELS, X, write, write_labels
from tests.review.browser import Server
from tests.review.shapes import make_labelled
from tests.training.small_runs import entries


def run_whole(command: str, folder: Path) -> float:
    """Run to the end; returns the seconds that it took."""
    began = time.monotonic()
    process = start(command, cwd=folder)
    _, complaints = process.communicate(timeout=300)
    assert process.returncode == 0, complaints
    return time.monotonic() - began


def kill_after(command: str, folder: Path, seconds: float) -> None:
    """Start, and end the process and its workers without notice; it may have ended by itself."""
    process = start(command, cwd=folder)
    time.sleep(seconds)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def no_drafts(folder: Path) -> bool:
    return not [path for path in folder.rglob(".*") if path.is_file()]


@pytest.mark.nightly
def test_train(tmp_path: Path) -> None:
    rng = random.Random(seed())
    train = "train digits --algorithm fixmatch --steps 40 --resume --set refiner.buffer_size=64"
    often = "--set train.checkpoint_steps=4 --set train.eval_steps=20 --set train.log_steps=2"
    seconds = run_whole(f"{train} {often} --out whole", tmp_path)
    killed = f"{train} {often} --out killed"
    last = tmp_path / "killed" / "checkpoints" / "last.safetensors"
    step = 0
    for _ in range(cases(1)):
        kill_after(killed, tmp_path, rng.uniform(0.3, 1.0) * seconds)
        reached = read_checkpoint(last).state["step"] if last.exists() else 0
        assert reached >= step, "a checkpoint was lost"
        step = reached
        if step == 40:  # the last checkpoint was there; the summary may not have been
            run_whole(killed, tmp_path)
            _assert_same_run(tmp_path)
            shutil.rmtree(tmp_path / "killed")
            step = 0
    run_whole(killed, tmp_path)
    _assert_same_run(tmp_path)


def _assert_same_run(folder: Path) -> None:
    one, other = (
        read_checkpoint(folder / name / "checkpoints" / "last.safetensors")
        for name in ("whole", "killed")
    )
    assert one.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())
    whole, killed = (
        [(entry["kind"], entry["step"]) for entry in entries(folder / name)]
        for name in ("whole", "killed")
    )
    assert whole == killed
    assert no_drafts(folder)


@pytest.mark.slow
def test_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed())
    write(tmp_path, "parquet", X, IDS)
    write_labels(tmp_path / "labels.csv", LABELS)
    label = "label data.parquet --labels labels.csv --no-report --out"
    seconds = run_whole(f"{label} whole", tmp_path)
    monkeypatch.chdir(tmp_path)
    for _ in range(cases(1)):
        kill_after(f"{label} killed", tmp_path, rng.uniform(0.5, 1.1) * seconds)
        worked(label, "killed")  # in this process, which has imported everything
        for name in ("labels.parquet", "labels.csv", "label_studio.json"):
            killed, whole = (tmp_path / folder / name for folder in ("killed", "whole"))
            assert killed.read_bytes() == whole.read_bytes()
        assert no_drafts(tmp_path / "killed")
        shutil.rmtree(tmp_path / "killed")


@pytest.mark.nightly
def test_embed(tmp_path: Path) -> None:
    rng = random.Random(seed())
    write_images(tmp_path / "photos", {"a": 40, "b": 20}, size=(20, 20))
    embed = "embed photos --model test_resnet --pretrained none --image-size 96 --out"
    killed, whole = tmp_path / "killed.parquet", tmp_path / "whole.parquet"
    seconds = run_whole(f"{embed} whole.parquet", tmp_path)
    for _ in range(cases(1)):
        shutil.rmtree(Path(os.environ["SEMIGPC_CACHE"], "embeddings"))
        kill_after(f"{embed} killed.parquet", tmp_path, rng.uniform(0.5, 1.1) * seconds)
        run_whole(f"{embed} killed.parquet", tmp_path)
        assert killed.read_bytes() == whole.read_bytes()
        assert no_drafts(tmp_path)
        killed.unlink()


@pytest.mark.slow
def test_review(tmp_path: Path) -> None:
    """Answers are sent until the server is killed; all that it confirmed are there afterwards."""
    rng = random.Random(seed())
    out = make_labelled(tmp_path)
    for _ in range(cases(1)):
        server, confirmed = Server(out), set[int]()
        answering = threading.Thread(target=_answer_until_the_end, args=(server.address, confirmed))
        answering.start()
        time.sleep(rng.uniform(0.05, 0.5))
        server.end(signal.SIGKILL)
        answering.join()
        session = open_session(out)
        assert confirmed <= set(session.history.answers), "an answer that was confirmed is lost"
        session.close()
        (out / "reviews.jsonl").unlink()


def _answer_until_the_end(address: str, confirmed: set[int]) -> None:
    for row in range(90):
        body = json.dumps({"row": row, "version": 0}).encode()
        try:
            request = urllib.request.Request(f"{address}api/skip", body)
            with urllib.request.urlopen(request, timeout=60) as answer:
                if answer.status == 200:
                    answer.read()
                    confirmed.add(row)
        except urllib.error.HTTPError:
            continue
        except (OSError, http.client.HTTPException):
            return
