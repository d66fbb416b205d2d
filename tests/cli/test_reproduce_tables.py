"""What ``semigpc reproduce`` prints of figures made by hand."""

import io
from typing import Any

from rich.console import Console

from semigpc.cli.reproduce import gains_table, notes, results_table
from semigpc.recipes.paper import TABLES
from semigpc.recipes.published import PUBLISHED
from semigpc.recipes.reproduction import without_folders


def told(top1: float, table: str, group: str, row: str, *, agree: bool | None, best: bool | None) -> dict[str, Any]:
    """A cell as figures.json has it, made by hand."""
    published = PUBLISHED[table][group][row]
    one = {"top1": [top1], "mean": top1, "std": 0.1, "difference": round(top1 - published.top1, 2)}
    return {
        "label": row,
        "published": {"top1": published.top1, "std": published.std, "note": published.note},
        "last": one | {"agrees": agree},
        "best_on_test": one | {"agrees": best},
    }


def rendered(table: Any) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(table)
    return " ".join(console.export_text().split())


def test_tables_say_what_agrees_and_what_is_reproduced() -> None:
    base = told(97.3, "balanced_cifar", "cifar10/250", "simmatch+none", agree=True, best=True)
    refined = told(96.0, "balanced_cifar", "cifar10/250", "simmatch+gp", agree=False, best=True)
    gain = {
        "label": "SimMatch + SemiGPC",
        "mean": -1.3,
        "std": 0.2,
        "linear": None,
        "published": -0.18,
        "claimed": 0.18,
        "claim": "not reproduced",
    }
    figures = {
        "title": "Balanced CIFAR",
        "scale": "paper",
        "changed": [],
        "seeds": [0, 1, 2],
        "groups": {"cifar10/250": {"cells": {"simmatch+none": base, "simmatch+gp": refined}, "gains": [gain]}},
    }
    shown = rendered(results_table(figures))
    assert "ours, last (3 seeds)" in shown
    assert "simmatch+none 97.30 ± 0.10 97.30 ± 0.10 97.21 +0.09 yes" in shown
    assert "simmatch+gp 96.00 ± 0.10 96.00 ± 0.10 97.39 -1.39 no, best* does" in shown
    assert "-1.30 ± 0.20 same -0.18 (meant: +0.18) not reproduced" in rendered(gains_table(figures))
    lines = notes(figures, TABLES["balanced_cifar"])
    assert any("printed as -0.18" in line for line in lines)
    assert any("2 printed deviations" in line for line in lines)
    assert any("train.lr=1" in line for line in notes(figures | {"changed": ["train.lr=1"]}, TABLES["balanced_cifar"]))


def test_a_gp_that_is_judged_by_its_own_head_is_called_so_with_what_the_linear_layer_gains() -> None:
    cell = told(96.0, "balanced_cifar", "cifar10/250", "simmatch+gp", agree=None, best=None) | {"head": "gp"}
    gain = {"label": "SimMatch + SemiGPC", "mean": 3.0, "std": 0.2, "linear": -0.5, "published": None, "claim": None}
    figures = {
        "title": "Balanced CIFAR",
        "scale": "cpu",
        "changed": ["train.steps=20"],
        "seeds": [0],
        "groups": {"cifar10/250": {"cells": {"simmatch+gp": cell | {"config": {"refiner": {}}}}, "gains": [gain]}},
    }
    assert "simmatch+gp, GP head" in rendered(results_table(figures))
    assert "SimMatch + SemiGPC +3.00 -0.50" in rendered(gains_table(figures))
    lines = notes(figures, TABLES["balanced_cifar"])
    assert any("the GP's own" in line for line in lines)
    assert any("train.steps=20" in line for line in lines)


def test_paths_are_reduced_to_names() -> None:
    plain = {"data": {"root": "data/cifar", "n": 3}, "model": {"pretrained": "/home/me/w.pth", "name": "vit"}, "x": "/a/b"}
    short = {"data": {"root": "cifar", "n": 3}, "model": {"pretrained": "w.pth", "name": "vit"}, "x": "b"}
    assert without_folders(plain) == short
