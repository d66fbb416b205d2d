"""The images show what the figures say, and stay small."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from semigpc.paper import plots, toy

NUMBERS = {
    name: toy.Confidence(name, 1.0, 0.1 + 0.01 * i, 0.4 + 0.01 * i, 0.7 + 0.01 * i, ())
    for i, name in enumerate(toy.CLASSIFIERS)
}


@pytest.fixture(scope="module")
def data() -> toy.ToyData:
    return toy.draw(0)


@pytest.fixture(scope="module")
def propagation(data: toy.ToyData) -> Figure:
    here = {
        "similarity": toy.Propagation("similarity", 1.0, 0.92, 0, 0.5, 0, 1),
        "gp": toy.Propagation("gp", 1.0, 0.996, 1, 1, 1, 1),
    }
    means = {name: replace(one, minority_accuracy=0.4) for name, one in here.items()}
    probs = {
        name: toy.propagate(data, classifier=name, length_scale=1.0) for name in toy.PROPAGATORS
    }
    return plots.propagation_figure(data, probs, here, means)


@pytest.fixture(scope="module")
def figure1() -> Figure:
    return plots.situations_figure(toy.situations(0), NUMBERS)


def titles(figure: Figure) -> list[str]:
    return [panel.get_title() for panel in figure.axes]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for panel in figure.axes for text in panel.texts]


def test_propagation_titles_carry_the_figures(propagation: Figure) -> None:
    found = ["30 labels given", "Similarity: 92% right", "SemiGPC: 99.6% right"]
    assert titles(propagation) == found
    assert "class of 16: 0% right (40% over 10 draws)" in words(propagation)


def test_every_point_is_drawn_once_in_each_panel(propagation: Figure, data: toy.ToyData) -> None:
    given, *found = propagation.axes
    marks = [len(np.asarray(marked.get_offsets())) for marked in given.collections]
    assert sum(marks) == len(data.points)
    for panel in found:
        unsure, sure, _wrong, labelled = (
            len(np.asarray(marked.get_offsets())) for marked in panel.collections
        )
        assert unsure + sure + labelled == len(data.points)


def test_a_cross_stands_on_each_wrong_point_and_on_no_other(
    propagation: Figure, data: toy.ToyData
) -> None:
    for name, panel in zip(toy.PROPAGATORS, propagation.axes[1:], strict=True):
        found = toy.propagate(data, classifier=name, length_scale=1.0).argmax(dim=1)
        wrong = ~data.labeled & (found != data.labels)
        crosses = np.asarray(panel.collections[2].get_offsets())
        np.testing.assert_allclose(crosses, data.points[wrong].numpy())


@pytest.mark.slow
def test_each_panel_of_figure_1_has_its_classifier_its_number_and_a_ring_at_the_place(
    figure1: Figure,
) -> None:
    assert titles(figure1) == list(plots.CLASSIFIER_NAMES.values()) * 3
    panels = iter(figure1.axes)
    for key, situation in toy.situations(0).items():
        for entry in NUMBERS.values():
            panel = next(panels)
            assert plots._percent(getattr(entry, key)) in [text.get_text() for text in panel.texts]
            marks = [np.asarray(marked.get_offsets()) for marked in panel.collections]
            rings = [mark for mark in marks if mark.shape == (1, 2)]
            assert any(np.allclose(ring, situation.place) for ring in rings)


def test_each_row_of_figure_1_asks_its_question(figure1: Figure) -> None:
    asked = [panel.texts[0].get_text() for panel in figure1.axes[::3]]
    starts = ("Labels that disagree", "A minority", "An outlier")
    for line, start in zip(asked, starts, strict=True):
        assert line.startswith(start)
        assert line.count("?") == 1


def test_disputed_points_show_both_colours(figure1: Figure) -> None:
    for number, panel in enumerate(figure1.axes):
        (half,) = [line for line in panel.lines if line.get_fillstyle() == "left"]
        assert len(half.get_xdata()) == (4 if number < 3 else 0)  # type: ignore[arg-type]


def test_under_the_threshold_every_class_is_the_same_grey_and_above_it_keeps_its_hue() -> None:
    classes = np.arange(4)
    np.testing.assert_allclose(
        plots._shade(classes, np.full(4, 0.79)), np.tile(to_rgb(plots.UNSURE), (4, 1))
    )
    faint, strong = plots._shade(classes, np.full(4, 0.8)), plots._shade(classes, np.full(4, 1.0))
    hues = np.array([to_rgb(hue) for hue in plots.CLASS_COLOURS])
    assert bool((np.abs(strong - hues) <= np.abs(faint - hues)).all())
    assert bool((strong.sum(axis=1) < faint.sum(axis=1)).all())


def test_almost_all_is_not_rounded_up_to_all() -> None:
    shares = [plots._percent(share) for share in (0, 0.4, 0.9949, 0.9952, 0.9994, 1)]
    assert shares == ["0%", "40%", "99%", "99.5%", "99.9%", "100%"]


@pytest.mark.parametrize("which", ["propagation", "figure1"])
def test_a_image_is_wide_small_and_the_same_every_time(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    figure = request.getfixturevalue(which)
    plots.save_png(figure, tmp_path / "a.png")
    plots.save_png(figure, tmp_path / "b.png")
    written = (tmp_path / "a.png").read_bytes()
    assert written == (tmp_path / "b.png").read_bytes()
    assert len(written) < 400_000
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"
        assert image.width == 1800


def test_drawing_leaves_the_global_style_alone(figure1: Figure, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    plots.save_png(figure1, tmp_path / "a.png")
    assert dict(mpl.rcParams) == before


# Recall of every class ----------------------------------------------------------------------------


def recalls(label: str, *seeds: list[float]) -> dict[str, Any]:
    return {"label": label, "last": {"per_class_recall": list(seeds)}}


@pytest.fixture
def groups() -> dict[str, Any]:
    cells = {
        "supervised+none": recalls("labels only", [90.0, 50.0, 10.0], [70.0, 30.0, 20.0]),
        "cossl": {"label": "CoSSL", "published": {}},  # quoted, and not run
        "fixmatch+none": recalls("FixMatch", [80.0, 40.0, 0.0]),
        "simmatch+none": recalls("SimMatch", [60.0, 20.0, 10.0]),
        "simmatch+gp": recalls("SimMatch + SemiGPC", [70.0, 60.0, 50.0]),
    }
    group = {"class_names": ["cat", "dog", "emu"], "cells": cells}
    unrun = {"class_names": ["cat"], "cells": {"cossl": {"label": "CoSSL"}}}
    return {"A/50": group, "A/100": group, "B/50": unrun}


def test_lines_are_means_over_seeds_and_then_over_algorithms(groups: dict[str, Any]) -> None:
    axes = plots.class_recall_figure(groups).axes[0]
    lines = {str(line.get_label()): list(line.get_ydata()) for line in axes.get_lines()}  # type: ignore[arg-type]
    assert lines["labels only"] == [80.0, 40.0, 15.0]
    assert lines["algorithms alone"] == [70.0, 30.0, 5.0]
    assert lines["with SemiGPC"] == [70.0, 60.0, 50.0]


def test_there_is_a_panel_for_each_group_that_was_run_with_its_classes_named(
    groups: dict[str, Any],
) -> None:
    panels = plots.class_recall_figure(groups).axes
    assert [axes.get_title(loc="left") for axes in panels] == ["A/50", "A/100"]
    assert [label.get_text() for label in panels[1].get_xticklabels()] == ["cat", "dog", "emu"]


def test_many_classes_are_not_named() -> None:
    cells = {"supervised+none": recalls("labels only", np.linspace(90, 10, 100).tolist())}
    names = [f"class {c}" for c in range(100)]
    figure = plots.class_recall_figure({"A/50": {"class_names": names, "cells": cells}})  # type: ignore[typeddict-item]
    assert "largest" in figure.axes[0].get_xlabel()


@pytest.mark.slow
def test_the_image_is_a_png(groups: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "classes.png"
    plots.draw_class_recall(groups, path)
    assert path.read_bytes().startswith(b"\x89PNG")
