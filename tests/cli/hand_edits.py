"""Small folders of every kind, and ways in which people and editors spoil the files in them."""

import copy
import csv
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import Result

from semigpc.review.session import open_session
from tests.cli.calls import SHORT, semigpc
from tests.cli.own_data import make_folder
from tests.review.shapes import make_labelled

STEPS, SECONDS = 6, 300  # no verdict on speed: what goes on for so long would go on for ever
FEW = ("--set", "train.eval_steps=3", "--set", "train.checkpoint_steps=2", SHORT)


class Runaway(BaseException):
    """A verb that does not end."""


class Case(NamedTuple):
    """A file, and a verb that reads it; ``{}`` stands for the copy of its folder."""

    folder: str
    file: str
    verb: tuple[str, ...]


def make_artefacts(root: Path, *, everything: bool) -> list[Case]:
    """Folders below ``root``, and which verbs read which of their files; without ``everything``
    what is quickly made.
    """
    cases = [*_run(root), *_labelled(root)]
    if everything:
        cases += [*_cached(root), *_compared(root)]
    for case in cases:
        assert (root / case.folder / case.file).is_file(), case
    return cases


def _must(*arguments: str | Path) -> None:
    done = semigpc(*arguments)
    assert done.exit_code == 0, done.output


def _command(root: Path) -> tuple[str, ...]:
    tables = ("--labels", f"{root}/own/labels.csv", "--test", f"{root}/own/test.csv")
    return ("train", f"{root}/own/photos", *tables, "--steps", str(STEPS), *FEW)


def _run(root: Path) -> Iterator[Case]:
    photos = make_folder(root / "own", labels=(6, 5, 5))
    image, train = str(min(photos.iterdir())), (*_command(root), "--out")
    _must(*train, root / "run")
    for file in ("metrics.jsonl", "summary.json", "environment.json"):
        yield Case("run", file, (*train, "{}", "--resume"))
    for file in ("config.json", "split.json"):
        yield Case("run", file, (*train, "{}", "--resume"))
        yield Case("run", file, ("evaluate", "{}"))
        yield Case("run", file, ("export", "{}", "--format", "torch", "--overwrite"))
        yield Case("run", file, ("predict", "{}", image))


def _cached(root: Path) -> Iterator[Case]:
    small = ("--features", "cached", "--image-size", "32", "--set", "frozen.views=1")
    train, image = (*_command(root), *small, "--out"), str(min((root / "own" / "photos").iterdir()))
    _must(*train, root / "cached")
    for file in ("features.json", "config.json"):
        yield Case("cached", file, (*train, "{}", "--resume"))
        yield Case("cached", file, ("predict", "{}", image))


def _labelled(root: Path) -> Iterator[Case]:
    out = make_labelled(root / "shapes")
    session = open_session(out)
    free = [row for row in range(len(session)) if row not in session.project.given]
    session.accept(free[:3])
    session.correct(free[3], "circle")
    session.skip(free[4])
    session.undo()
    session.close()
    _must("audit", out, "--sample", "20")
    with (out / "audit.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (out / "audit.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {"truth": "y"} for row in rows)
    out.rename(root / "out")
    answers = shutil.copy(root / "out" / "audit.csv", root / "answers.csv")
    label: tuple[str, ...] = (
        "label",
        f"{root}/shapes/data.parquet",
        "--labels",
        f"{root}/shapes/labels.csv",
    )
    label += ("--images", f"{root}/shapes/photos", "--abstain", "0.85", "--no-report", "--out")
    _must(*label, root / "out")  # the same again: it is finished
    for verb in (
        ("review", "{}", "--export"),
        ("audit", "{}", "--answers", str(answers)),
        ("suggest", "{}"),
        (*label, "{}"),
    ):
        yield Case("out", "project.json", verb)
    yield Case("out", "summary.json", (*label, "{}"))
    yield Case("out", "reviews.jsonl", ("review", "{}", "--export"))
    yield Case("out", "audit.json", ("audit", "{}", "--answers", str(answers)))
    (root / "begun" / "parts").mkdir(parents=True)
    shutil.copy(
        root / "out" / "labels.parquet", root / "begun" / "parts" / "00000.parquet"
    )  # of one part
    key = json.loads((root / "out" / "project.json").read_text())["key"]
    (root / "begun" / "parts" / "key.json").write_text(json.dumps(key))
    yield Case("begun", "parts/key.json", (*label, "{}"))


def _compared(root: Path) -> Iterator[Case]:
    compare: tuple[str, ...] = (
        "compare",
        "digits",
        "--algorithm",
        "fixmatch",
        "--ratio",
        "10",
        "--seeds",
        "1",
        *FEW,
    )
    compare += ("--set", f"train.steps={STEPS}", "--out")
    _must(*compare, root / "compared")
    cells = Path("cells") / "fixmatch+gp" / "seed0"
    found = next((root / "compared").rglob(str(cells)))
    for file in ("config.json", "split.json", "summary.json"):
        yield Case("compared", str((found / file).relative_to(root / "compared")), (*compare, "{}"))


# Edits --------------------------------------------------------------------------------------------

VALUES: tuple[Any, ...] = (
    None,
    -1,
    -3.5,
    10**18,
    10**400,
    float("nan"),
    float("inf"),
    [],
    {},
    "",
    "x" * 100_000,
    True,
    "nonsense",
)
WHOLE = (
    "truncated",
    "empty",
    "mark",
    "latin",
    "twice",
    "deep",
    "folder",
    "pipe",
    "list",
    "text",
    "null",
)


def spoil(path: Path, rng: random.Random) -> str:
    """Edit a file by hand; returns how, for whoever has to find out why a test failed."""
    if rng.random() < 0.2:
        return _spoil_whole(path, rng.choice(WHOLE), rng)
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
    old, kind = (
        holder[key],
        rng.choice(("delete", "value", "value", "value", "wrap", "swap", "more")),
    )
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
    match how:
        case "truncated":
            path.write_bytes(content[: rng.randrange(len(content))])
        case "empty":
            path.write_bytes(b"")
        case "mark":
            path.write_bytes(b"\xef\xbb\xbf" + content)
        case "latin":
            path.write_bytes(content[:40] + b"\xe4\xff" + content[40:])
        case "twice":
            path.write_bytes(first.rstrip()[:-1] + b', "step": 1, "step": 2}\n')
        case "deep":
            path.write_bytes(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)
        case "folder" | "pipe":
            path.unlink()
            path.mkdir() if how == "folder" else os.mkfifo(path)
        case _:
            path.write_bytes({"list": b"[1, 2]", "text": b'"text"', "null": b"null"}[how] + b"\n")
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


def attempt(case: Case, root: Path, copied: Path, rng: random.Random) -> tuple[str, Result]:
    """Copy the folder, spoil the file and call the verb."""
    shutil.copytree(root / case.folder, copied, symlinks=True)
    how = spoil(copied / case.file, rng)
    with time_limit(SECONDS):
        return how, semigpc(*(str(copied) if word == "{}" else word for word in case.verb))


def complaint(case: Case, done: Result) -> str | None:
    """What is wrong with how a verb ended: a way that was not foreseen, or a message that does not
    name the file.
    """
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return f"raised {done.exception!r}"
    if "not foreseen" in done.output or "Traceback" in done.output:
        return "was not foreseen"
    if done.exit_code not in (0, 1, 2):
        return f"ended with {done.exit_code}"
    if done.exit_code and Path(case.file).name not in done.output:
        return "does not name the file"
    return None
