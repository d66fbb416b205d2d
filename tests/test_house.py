"""Habits of the code that a reader relies on, counted: what a linter has no rule for.

Each rule has a ceiling. Lower it when you remove a case; a new case needs a better reason than the
place where it stands.
"""

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "semigpc"
# Of a function, with its docstring: one screen. Verbs of the CLI list their options.
MOST_LINES = 50
FLAG = re.compile(r"(?<![\w(-])--[a-z]")  # an option of the CLI, not a variable of CSS
ONE_FILE_EACH = {"algorithms", "addons", "data", "cli"}
# Objects of other packages, or of the user, that may lack an attribute.
OUTSIDE = {
    *("error", "multiprocessing.current_process()", "fabric.strategy.launcher", "backbone"),
    *("images", "image_set.images", "build"),  # any sequence of images; a functools.partial
}

Place = tuple[str, int, str]  # file, line, source


@cache
def trees() -> dict[str, ast.Module]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in paths}


@cache
def every_node() -> list[tuple[str, ast.AST]]:
    return [(name, node) for name, tree in trees().items() for node in ast.walk(tree)]


def is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def calls(function: str) -> Iterator[tuple[str, ast.Call]]:
    for name, node in every_node():
        if isinstance(node, ast.Call) and is_name(node.func, function):
            yield name, node


def untyped_records() -> Iterator[Place]:
    """``dict[str, Any]``: for JSON alone; other records are dataclasses or typed dictionaries."""
    for name, node in every_node():
        if not (isinstance(node, ast.Subscript) and is_name(node.value, "dict")):
            continue
        if ast.unparse(node) == "dict[str, Any]":
            yield name, node.lineno, "dict[str, Any]"


def attributes_that_may_be_missing() -> Iterator[Place]:
    """``getattr(ours, name, default)``: a class of ours declares what it has."""
    for name, node in calls("getattr"):
        is_outside = ast.unparse(node.args[0]).removeprefix("self.") in OUTSIDE
        if len(node.args) == 3 and not is_outside:
            yield name, node.lineno, ast.unparse(node)


def packed_assignments() -> Iterator[Place]:
    """``a, b = x, y``, unless it swaps: one assignment to a line."""
    for name, node in every_node():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            left = node.targets[0]
            values = {ast.unparse(value) for value in node.value.elts}
            if isinstance(left, ast.Tuple) and not values & {ast.unparse(e) for e in left.elts}:
                yield name, node.lineno, ast.unparse(node)


def algorithms_told_apart() -> Iterator[Place]:
    """``isinstance`` of an algorithm or its config outside of ``algorithms/``: ask the protocol."""
    classes = {
        node.name
        for name, node in every_node()
        if name.startswith("algorithms/") and isinstance(node, ast.ClassDef)
    }
    for name, node in calls("isinstance"):
        names = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
        if names & classes and not name.startswith("algorithms/"):
            yield name, node.lineno, ast.unparse(node)


def long_functions() -> Iterator[Place]:
    for name, node in every_node():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > MOST_LINES and not name.startswith("cli/"):
                yield name, node.lineno, f"{node.name}: {lines} lines"


def flags_in_the_library() -> Iterator[Place]:
    """``--out`` in a message: the library names its parameter, and cli/failures.py translates."""
    for name, tree in trees().items():
        if name.startswith("cli/"):
            continue
        docstrings = {
            ast.get_docstring(node, clean=False)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        }
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
                continue
            if FLAG.search(node.value) and node.value not in docstrings:
                yield name, node.lineno, node.value


@pytest.mark.parametrize(
    ("rule", "ceiling"),
    [
        (untyped_records, 37),
        (attributes_that_may_be_missing, 0),
        (packed_assignments, 0),
        (algorithms_told_apart, 0),
        (long_functions, 3),  # in labeling
        (flags_in_the_library, 5),  # of USB, and in the command that a comparison records
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_code_keeps_its_habits(rule: Callable[[], Iterator[Place]], ceiling: int) -> None:
    places = list(rule())
    listing = "\n".join(f"{name}:{line}: {source:.90}" for name, line, source in places)
    assert len(places) <= ceiling, f"{rule.__doc__}\n{listing}"


def test_the_package_has_few_rooms() -> None:
    rooms = [path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    files = [path.name for path in PACKAGE.glob("*.py")]
    assert len(rooms) <= 16, rooms
    assert len(files) <= 5, files
    # Rooms with one file for each algorithm, add-on, data set or verb grow with these.
    others = [name for name in trees() if name.split("/")[0] not in ONE_FILE_EACH]
    assert len(others) <= 119
