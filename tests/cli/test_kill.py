"""kill -9 at any moment: nothing that was acknowledged is lost, and the same command ends as if it
had not been killed.
"""

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
from tests.cli.calls import semigpc, start
from tests.data.samples import write_images
from tests.fuzzing import cases, seed
from tests.labeling.samples import IDS, LABELS, X, write, write_labels
from tests.review.browser import Server
from tests.review.shapes import make_labelled


def run_whole(command: tuple[str, ...], folder: Path) -> float:
    """Run to the end; returns the seconds that it took."""
    began = time.monotonic()
    process = start(*command, cwd=folder)
    _, complaints = process.communicate(timeout=300)
    assert process.returncode == 0, complaints
    return time.monotonic() - began


def kill_after(command: tuple[str, ...], folder: Path, seconds: float) -> None:
    """Start, and end the process and its workers without notice; it may have ended by itself."""
    process = start(*command, cwd=folder)
    time.sleep(seconds)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def no_drafts(folder: Path) -> bool:
    return not [path for path in folder.rglob(".*") if path.is_file()]


@pytest.mark.nightly
def test_train(tmp_path: Path) -> None:
    rng = random.Random(seed())
    train = (
        "train",
        "digits",
        "--algorithm",
        "fixmatch",
        "--steps",
        "40",
        "--resume",
        "--set",
        "refiner.buffer_size=64",
    )
    often = (
        "--set",
        "train.checkpoint_steps=4",
        "--set",
        "train.eval_steps=20",
        "--set",
        "train.log_steps=2",
        "--out",
    )
    seconds = run_whole((*train, *often, "whole"), tmp_path)
    last, step, killed = (
        tmp_path / "killed" / "checkpoints" / "last.safetensors",
        0,
        (*train, *often, "killed"),
    )
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
    lines = [
        (folder / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "killed")
    ]
    whole, killed = (
        [(entry["kind"], entry["step"]) for entry in map(json.loads, text)] for text in lines
    )
    assert whole == killed
    assert no_drafts(folder)


@pytest.mark.slow
def test_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed())
    write(tmp_path, "parquet", X, IDS)
    write_labels(tmp_path / "labels.csv", LABELS)
    label = ("label", "data.parquet", "--labels", "labels.csv", "--no-report", "--out")
    seconds = run_whole((*label, "whole"), tmp_path)
    monkeypatch.chdir(tmp_path)
    for _ in range(cases(1)):
        kill_after((*label, "killed"), tmp_path, rng.uniform(0.5, 1.1) * seconds)
        resumed = semigpc(*label, "killed")  # in this process, which has imported everything
        assert resumed.exit_code == 0, resumed.output
        for name in ("labels.parquet", "labels.csv", "label_studio.json"):
            assert (tmp_path / "killed" / name).read_bytes() == (
                tmp_path / "whole" / name
            ).read_bytes()
        assert no_drafts(tmp_path / "killed")
        shutil.rmtree(tmp_path / "killed")


@pytest.mark.nightly
def test_embed(tmp_path: Path) -> None:
    rng = random.Random(seed())
    write_images(tmp_path / "photos", {"a": 40, "b": 20}, size=(20, 20))
    embed = (
        "embed",
        "photos",
        "--model",
        "test_resnet",
        "--pretrained",
        "none",
        "--image-size",
        "96",
        "--out",
    )
    seconds = run_whole((*embed, "whole.parquet"), tmp_path)
    for _ in range(cases(1)):
        kill_after((*embed, "killed.parquet"), tmp_path, rng.uniform(0.5, 1.1) * seconds)
        run_whole((*embed, "killed.parquet"), tmp_path)
        assert (tmp_path / "killed.parquet").read_bytes() == (
            tmp_path / "whole.parquet"
        ).read_bytes()
        assert no_drafts(tmp_path)
        assert not (tmp_path / "killed.parquet.parts").exists()
        (tmp_path / "killed.parquet").unlink()


@pytest.mark.slow
def test_review(tmp_path: Path) -> None:
    """Answers are sent one after the other until the server is killed; all that it confirmed are
    there afterwards.
    """
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
            with urllib.request.urlopen(
                urllib.request.Request(f"{address}api/skip", body), timeout=60
            ) as answer:
                if answer.status == 200:
                    answer.read()
                    confirmed.add(row)
        except urllib.error.HTTPError:
            continue
        except (OSError, http.client.HTTPException):
            return
