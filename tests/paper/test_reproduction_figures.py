"""The image of a whole reproduction, class by class."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semigpc.report.comparison_page import class_recall_figure, draw_class_recall


def _cell(label: str, *seeds: list[float]) -> dict[str, Any]:
    return {"label": label, "last": {"per_class_recall": list(seeds)}}


@pytest.fixture
def figures() -> dict[str, Any]:
    cells = {
        "supervised+none": _cell("labels only", [90.0, 50.0, 10.0], [70.0, 30.0, 20.0]),
        "cossl": {"label": "CoSSL", "published": {}},  # quoted, and not run
        "fixmatch+none": _cell("FixMatch", [80.0, 40.0, 0.0]),
        "simmatch+none": _cell("SimMatch", [60.0, 20.0, 10.0]),
        "simmatch+gp": _cell("SimMatch + SemiGPC", [70.0, 60.0, 50.0]),
    }
    group = {"class_names": ["cat", "dog", "emu"], "cells": cells}
    unrun = {"class_names": ["cat"], "cells": {"cossl": {"label": "CoSSL"}}}
    return {"groups": {"A/50": group, "A/100": group, "B/50": unrun}}


def test_lines_are_means_over_seeds_and_then_over_algorithms(figures: dict[str, Any]) -> None:
    axes = class_recall_figure(figures).axes[0]
    lines = {
        str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()
    }
    assert lines["labels only"] == [80.0, 40.0, 15.0]
    assert lines["algorithms alone"] == [70.0, 30.0, 5.0]
    assert lines["with SemiGPC"] == [70.0, 60.0, 50.0]


def test_there_is_a_panel_for_each_group_that_was_run_with_its_classes_named(
    figures: dict[str, Any],
) -> None:
    panels = class_recall_figure(figures).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["A/50", "A/100"]
    assert [label.get_text() for label in panels[1].get_xticklabels()] == ["cat", "dog", "emu"]


def test_many_classes_are_counted_and_not_named(figures: dict[str, Any]) -> None:
    recall = np.linspace(90, 10, 100).tolist()
    figures["groups"] = {
        "A/50": {
            "class_names": [f"class {c}" for c in range(100)],
            "cells": {"supervised+none": _cell("labels only", recall)},
        }
    }
    assert "largest" in class_recall_figure(figures).axes[0].get_xlabel()


@pytest.mark.slow
def test_the_image_is_a_png(figures: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "classes.png"
    draw_class_recall(figures, path)
    assert path.read_bytes().startswith(b"\x89PNG")
