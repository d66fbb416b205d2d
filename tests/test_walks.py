"""The files that a reader opens to follow one batch, one labelled row, one cell of a comparison and
one answer on the review page: the lists in docs/architecture.md against the calls that are made.

A file has to be listed if one of its functions runs during the walk, and may be listed only then.
Functions that are read where they are called do not count: those with one simple statement
(properties, hooks that do nothing), and constructors. Neither do files whose names say enough:
``io/``, ``report/wording`` (numbers as text) and the parts of ``cli/`` that the verbs share; nor
what runs when a module is imported.
"""

import ast
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import semigpc
from semigpc.training import Listener, train
from semigpc.training.presets import digits
from tests.cli.calls import semigpc as call
from tests.labeling.samples import IDS, LABELS, X, write, write_labels
from tests.review.shapes import make_labelled

pytestmark = pytest.mark.slow
ROOT = Path(semigpc.__file__).parent
PAGE = ROOT.parents[1] / "docs" / "architecture.md"
GROUND = re.compile(r"io/|report/wording$|cli/(__init__|failures|options|progress|tables)$")
BATCH = "One batch"
ROW = "One labelled row"
CELL = "One cell of a comparison"
ANSWER = "One answer"
# An answer has two more than the 12 that were planned. The exact GP and its tiled inverse are two
# files, as together they would have 750 lines; copies of labelled rows, which every left-out label
# has to know, are a third idea in the estimator.
MOST_FILES = {BATCH: 23, ROW: 24, CELL: 17, ANSWER: 15}
COMPOUND = (ast.For, ast.If, ast.Match, ast.Try, ast.While, ast.With)


@cache
def short_functions(file: str) -> set[int]:
    """Return the first lines of the functions that need no reading."""
    lines = set()
    for node in ast.walk(ast.parse(Path(file).read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[ast.get_docstring(node) is not None :]
            is_short = len(body) < 2 and not any(isinstance(line, COMPOUND) for line in body)
            if is_short or node.name in ("__init__", "__post_init__"):
                lines.add(min([node.lineno, *(one.lineno for one in node.decorator_list)]))
    return lines


class Walk:
    """Collects the files of semigpc whose functions run while it is active, in any thread."""

    def __init__(self) -> None:
        self.active = False
        self.ran: set[str] = set()
        self.to_read: set[str] = set()
        self.imports_under_way = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if frame.f_code.co_filename.startswith(str(ROOT)):
            if frame.f_code.co_name == "<module>":
                self.imports_under_way += {"call": 1, "return": -1}.get(event, 0)
            elif event == "call" and self.active and not self.imports_under_way:
                self.note(frame.f_code)

    def note(self, code: CodeType) -> None:
        """Count the file of a function; class bodies and templates are none."""
        path = Path(code.co_filename)
        if path.suffix != ".py" or not code.co_flags & CO_OPTIMIZED:
            return
        name = path.relative_to(ROOT).with_suffix("").as_posix()
        self.ran.add(name)
        is_named = not code.co_name.startswith("<")
        if is_named and code.co_firstlineno not in short_functions(code.co_filename):
            self.to_read.add(name)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Trace this thread and those that it starts."""
        before = sys.getprofile()
        threading.setprofile(self)
        sys.setprofile(self)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(None)


def listed(section: str) -> list[str]:
    """Return the files in the list of a section: one line per room, its name first."""
    block = re.search(rf"^## {section}$.*?^Files, [^\n]*\((\d+)\):\n\n```\n(.*?)```", *_page())
    assert block is not None, f"{PAGE}: no list of files under {section!r}"
    files: list[str] = []
    for line in block[2].splitlines():
        room, *names = line.split()
        files += names if room == "semigpc" else [f"{room}/{name}" for name in names]
    assert int(block[1]) == len(files) == len(set(files)), f"{section}: {len(files)} files"
    return files


def _page() -> tuple[str, re.RegexFlag]:
    return PAGE.read_text(), re.DOTALL | re.MULTILINE


def as_list(files: set[str]) -> str:
    """Return the files as the page lists them."""
    rooms: dict[str, list[str]] = {}
    for file in sorted(files):
        *room, name = file.split("/")
        rooms.setdefault("/".join(room) or "semigpc", []).append(name)
    return "\n".join(f"{room:12}{'  '.join(names)}" for room, names in rooms.items())


def check(section: str, walk: Walk, besides: set[str] | None = None) -> None:
    files = set(listed(section))
    left_out = {name for name in walk.ran if GROUND.match(name)} | (besides or set())
    needed = walk.to_read - left_out
    message = f"{section}: the walk goes through these {len(needed)} files\n{as_list(needed)}\n"
    assert needed <= files, f"{message}not listed: {needed - files}"
    assert files <= walk.ran - left_out, f"{message}not used: {files - (walk.ran - left_out)}"
    assert len(files) <= MOST_FILES[section], message


def test_one_batch(tmp_path: Path) -> None:
    """A step between those that log, evaluate or save."""
    walk = Walk()

    class Switch(Listener):
        def step(self, step: int) -> None:
            walk.active = step == 8

    settings = ["train.steps=12", "train.log_steps=12", "train.eval_steps=12"]
    settings += ["refiner.warmup_steps=2", "refiner.buffer_size=96"]
    experiment = digits(algorithm="simmatch", refiner="gp", seed=0).override(settings)
    with walk.watching():
        train(experiment, tmp_path / "run", listener=Switch())
    walk.to_read.add("training/loop")  # whose frame was there before
    check(BATCH, walk)


def test_one_labelled_row(tmp_path: Path) -> None:
    walk = Walk()
    data = write(tmp_path, "parquet", X, IDS)
    labels = write_labels(tmp_path / "labels.csv", LABELS)
    with walk.watching():
        walk.active = True
        done = call("label", data, "--labels", labels, "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    check(ROW, walk)


def test_one_cell_of_a_comparison(tmp_path: Path) -> None:
    walk = Walk()
    options = ("--algorithm", "simmatch", "--refiner", "gp", "--seeds", "1", "--steps", "12")
    small = ("--set", "refiner.buffer_size=96", "--set", "train.threads=1")
    with walk.watching():
        walk.active = True
        done = call("compare", "digits", *options, *small, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    check(CELL, walk, besides={*listed(BATCH), "algorithms/supervised"})


def test_one_answer(tmp_path: Path) -> None:
    client: Any = pytest.importorskip("starlette.testclient", reason="needs semigpc[review]")
    from semigpc.review.app import make_app
    from semigpc.review.session import open_session

    walk = Walk()
    session = open_session(make_labelled(tmp_path))
    address = "http://127.0.0.1:1234/a-secret/"
    with walk.watching(), client.TestClient(make_app(session, "a-secret", 1234), address) as page:
        card = page.post("api/cards", json={}).json()["cards"][0]
        other = next(name for name in ("circle", "square") if name != card["label"])
        walk.active = True
        answer = {"row": card["row"], "label": other, "version": card["version"]}
        response = page.post("api/correct", json=answer)
        walk.active = False
    session.close()
    assert response.status_code == 200, response.text
    check(ANSWER, walk)
