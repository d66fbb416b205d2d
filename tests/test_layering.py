"""The map in docs/architecture.md: imports point up this list, never down, and only where it says
so.
"""

import ast
import importlib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import semigpc

ROOT = Path(semigpc.__file__).parent
EVERYWHERE = {"io", "types"}  # the ground that every room stands on
MAY_IMPORT: dict[str, set[str]] = {
    "io": set(),
    "types": set(),
    "losses": set(),
    "pseudo_labels": set(),
    "gp": set(),
    "refiners": {"gp", "pseudo_labels"},
    "addons": {"losses", "pseudo_labels"},
    "integrations": {"refiners"},
    "algorithms": {"addons", "refiners", "losses", "pseudo_labels"},
    "models": {"losses", "pseudo_labels"},
    "data": set(),
    "training": {"gp", "addons", "algorithms", "refiners", "models", "data", "estimator"},
    "report": {"gp", "training"},
    "estimator": {"gp"},
    "labeling": {"gp", "estimator", "models", "data", "report"},
    "export": {"training", "refiners", "gp", "models", "data", "estimator", "labeling"},
    "review": {"labeling", "estimator", "data", "report"},
    "paper": {"report", "training", "addons", "algorithms", "refiners", "gp", "models", "data"},
    "cli": {"addons", "algorithms", "refiners", "models", "data", "training", "export"}
    | {"paper", "report", "estimator", "labeling", "review"},
    "__init__": {"gp", "refiners", "algorithms", "data", "models", "training", "estimator"}
    | {"labeling"},
    "__main__": {"cli"},
}


def imported(path: Path) -> set[str]:
    """Modules of semigpc that a file imports, as dotted paths below the package."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole path"
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.removeprefix("semigpc.") for name in names if name.startswith("semigpc.")}


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_map(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert room in MAY_IMPORT, f"{room} is not on the map: add it here and in docs/architecture.md"
    for module in imported(path):
        other = module.split(".")[0]
        assert other == room or other in MAY_IMPORT[room] | EVERYWHERE, (
            f"{room} may not import {other}"
        )


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.stem != "__main__"],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_every_module_can_be_imported(path: Path) -> None:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    importlib.import_module(".".join(part for part in parts if part != "__init__"))


def test_modules_of_the_gp_import_each_other_in_one_direction() -> None:
    arrows = {
        path.stem: {m.removeprefix("gp.") for m in imported(path) - EVERYWHERE}
        for path in (ROOT / "gp").glob("*.py")
    }
    TopologicalSorter(arrows).prepare()  # raises CycleError


def test_there_is_no_room_for_odds_and_ends() -> None:
    assert not {path.stem for path in FILES} & {"utils", "util", "common", "helpers", "misc"}
