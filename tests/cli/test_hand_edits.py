"""Files edited by hand are refused by name, or do no harm: nothing unforeseen, nothing endless."""

import copy
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import Result

from semigpc.review.session import open_session
from semigpc.training import RunFolder
from semigpc.training.run_folder import read_checkpoint
from tests.cli.calls import SHORT, semigpc, worked
from tests.cli.own_data import make_folder
from tests.fuzzing import cases, seed
from tests.labeling.samples import read_rows, write_rows
from tests.review.shapes import make_labelled

STEPS = 6
SECONDS = 300  # no verdict on speed: what goes on for so long would go on for ever
FEW = f"--set train.eval_steps=3 --set train.checkpoint_steps=2 {SHORT}"


class Runaway(BaseException):
    """A verb that does not end."""


class Case(NamedTuple):
    """A file, and a verb that reads it; ``{}`` stands for the copy of its folder."""

    folder: str
    file: str
    verb: str


# Folders of every kind ----------------------------------------------------------------------------


def make_artefacts(root: Path, *, everything: bool) -> list[Case]:
    """Folders, and verbs that read their files; without ``everything`` what is quickly made."""
    found = [*_run(root), *_labelled(root)]
    if everything:
        found += [*_cached(root), *_compared(root)]
    for case in found:
        assert (root / case.folder / case.file).is_file(), case
    return found


def _train(root: Path) -> str:
    tables = f"--labels {root}/own/labels.csv --test {root}/own/test.csv"
    return f"train {root}/own/photos {tables} --steps {STEPS} {FEW}"


def _run(root: Path) -> Iterator[Case]:
    image = min(make_folder(root / "own", labels=(6, 5, 5)).iterdir())
    worked(_train(root), "--out", root / "run")
    resume = f"{_train(root)} --resume --out {{}}"
    for file in ("metrics.jsonl", "summary.json", "environment.json"):
        yield Case("run", file, resume)
    for file in ("config.json", "split.json"):
        yield Case("run", file, resume)
        yield Case("run", file, "evaluate {}")
        yield Case("run", file, "export {} --format torch --overwrite")
        yield Case("run", file, f"predict {{}} {image}")


def _cached(root: Path) -> Iterator[Case]:
    image = min((root / "own" / "photos").iterdir())
    train = f"{_train(root)} --features cached --image-size 32 --set frozen.views=1"
    worked(train, "--out", root / "cached")
    for file in ("features.json", "config.json"):
        yield Case("cached", file, f"{train} --resume --out {{}}")
        yield Case("cached", file, f"predict {{}} {image}")


def _labelled(root: Path) -> Iterator[Case]:
    out = make_labelled(root / "shapes")
    session = open_session(out)
    free = [row for row in range(len(session)) if row not in session.project.given]
    session.accept(free[:3])
    session.correct(free[3], "circle")
    session.skip(free[4])
    session.undo()
    session.close()
    worked("audit", out, "--sample 20")
    rows = read_rows(out / "audit.csv")
    write_rows(out / "audit.csv", [row | {"truth": "y"} for row in rows])
    out.rename(root / "out")
    shutil.copy(root / "out" / "audit.csv", root / "answers.csv")
    shapes = f"{root}/shapes"
    label = f"label {shapes}/data.parquet --labels {shapes}/labels.csv --images {shapes}/photos"
    label += " --abstain 0.85 --no-report --out {}"
    worked(label.format(root / "out"))  # the same again: it is finished
    audit = f"audit {{}} --answers {root}/answers.csv"
    for verb in ("review {} --export", audit, "suggest {}", label):
        yield Case("out", "project.json", verb)
    yield Case("out", "summary.json", label)
    yield Case("out", "reviews.jsonl", "review {} --export")
    yield Case("out", "audit.json", audit)
    parts = root / "begun" / "parts"
    parts.mkdir(parents=True)
    shutil.copy(root / "out" / "labels.parquet", parts / "00000.parquet")  # of one part
    key = json.loads((root / "out" / "project.json").read_text())["key"]
    (parts / "key.json").write_text(json.dumps(key))
    yield Case("begun", "parts/key.json", label)


def _compared(root: Path) -> Iterator[Case]:
    compare = f"compare digits --algorithm fixmatch --ratio 10 --seeds 1 --steps {STEPS} {FEW}"
    worked(compare, "--out", root / "compared")
    run = next((root / "compared").rglob("cells/fixmatch+gp/seed0"))
    for file in ("config.json", "split.json", "summary.json"):
        path = (run / file).relative_to(root / "compared")
        yield Case("compared", str(path), f"{compare} --out {{}}")


# Edits --------------------------------------------------------------------------------------------

NUMBERS: tuple[Any, ...] = (-1, -3.5, 10**18, 10**400, float("nan"), float("inf"), True)
VALUES: tuple[Any, ...] = (*NUMBERS, None, [], {}, "", "x" * 100_000, "nonsense")
WHOLE = "truncated empty mark latin twice deep folder pipe list text null"


def spoil(path: Path, rng: random.Random) -> str:
    """Edit a file by hand; returns how, for whoever has to find out why a test failed."""
    if rng.random() < 0.2:
        return _spoil_whole(path, rng.choice(WHOLE.split()), rng)
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    number = rng.randrange(len(lines))
    plain = json.loads(lines[number])
    how = _spoil_value(plain, rng)
    lines[number] = json.dumps(plain)
    path.write_text("\n".join(lines) + "\n")
    return f"line {number + 1}: {how}"


def _spoil_value(plain: Any, rng: random.Random) -> str:
    """One place of nested values, any depth."""
    places = list(_places(plain))
    where, holder, key = rng.choice(places)
    old = holder[key]
    kind = rng.choice(("delete", "value", "value", "value", "wrap", "swap", "more"))
    if kind == "delete":
        del holder[key]
    elif kind == "wrap":
        holder[key] = rng.choice(([old], {"x": old}, str(old)))
    elif kind == "swap":
        _, other, there = rng.choice(places)
        holder[key], other[there] = copy.deepcopy(other[there]), copy.deepcopy(old)
    elif kind == "more" and isinstance(old, list):
        old.append(copy.deepcopy(old[-1]) if old else 0)
    elif kind == "more" and isinstance(old, dict):
        old["nobody knows this"] = 1
    else:
        holder[key] = rng.choice(VALUES)
    return f"{kind} {where}: {str(old)[:60]}"


def _places(plain: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    for key in list(plain) if isinstance(plain, dict) else range(len(plain)):
        yield f"{where}.{key}", plain, key
        if isinstance(plain[key], dict | list):
            yield from _places(plain[key], f"{where}.{key}")


def _spoil_whole(path: Path, how: str, rng: random.Random) -> str:
    content = path.read_bytes()
    first = content.split(b"\n")[0] if path.suffix == ".jsonl" else content
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    else:
        written = {
            "truncated": content[: rng.randrange(len(content))],
            "empty": b"",
            "mark": b"\xef\xbb\xbf" + content,
            "latin": content[:40] + b"\xe4\xff" + content[40:],
            "twice": first.rstrip()[:-1] + b', "step": 1, "step": 2}\n',
            "deep": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
            "list": b"[1, 2]\n",
            "text": b'"text"\n',
            "null": b"null\n",
        }
        path.write_bytes(written[how])
    return how


# Trying -------------------------------------------------------------------------------------------


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def end(*_: object) -> None:
        raise Runaway(f"still going after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def complaint(case: Case, done: Result, copied: Path) -> str | None:
    """What is wrong with how a verb ended, or with its message, or with the run."""
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"raised {done.exception!r}"
    if "not foreseen" in done.output or "Traceback" in done.output:
        return "was not foreseen"
    if done.exit_code not in (0, 1, 2):
        return f"ended with {done.exit_code}"
    if done.exit_code and Path(case.file).name not in done.output:
        return "does not name the file"
    is_run = case.folder in ("run", "cached")
    if is_run and read_checkpoint(RunFolder(copied).last).state["step"] > STEPS:
        return "trained too far"
    return None


def complaints(root: Path, tried: list[Case]) -> list[str]:
    """What is wrong after one edit for each case, in a copy of its folder."""
    found = []
    for number, case in enumerate(tried):
        copied = root / "copies" / str(number)
        shutil.copytree(root / case.folder, copied, symlinks=True)
        how = spoil(copied / case.file, random.Random(f"{seed()} {number}"))
        with time_limit(SECONDS):
            done = semigpc(case.verb.format(copied))
        what = complaint(case, done, copied)
        if what is not None:
            output = done.output[-600:]
            found.append(f"{number}: {case.verb} {case.file}, {how}: {what}: {output}")
    return found


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.slow
def test_a_few_edits_by_hand(root: Path) -> None:
    """Each file once, with the last of the verbs that read it."""
    chosen = {case.file: case for case in make_artefacts(root, everything=False)}
    assert complaints(root, list(chosen.values())) == []


@pytest.mark.nightly
def test_many_edits_by_hand(root: Path) -> None:
    artefacts = make_artefacts(root, everything=True)
    tried = [artefacts[number % len(artefacts)] for number in range(cases(60))]
    wrong = complaints(root, tried)
    assert not wrong, f"{len(wrong)} of {len(tried)}:\n" + "\n".join(wrong)
