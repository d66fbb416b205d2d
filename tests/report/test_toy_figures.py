"""The images show what the figures say, and stay small."""

from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from semigpc.report.toy_figures import (
    CLASS_COLOURS,
    UNSURE,
    _percent,
    _shade,
    confidence_figure,
    propagation_figure,
    save_png,
)
from semigpc.toy import CLASSIFIERS, PROPAGATORS, ConfidenceMap, Propagation, ToyData, confidence_map, draw, propagate

MAPS = (("linear", 0.5), ("similarity", 0.5), ("gp", 0.5), ("similarity", 1.0), ("gp", 1.0))


@pytest.fixture(scope="module")
def data() -> ToyData:
    return draw(0)


@pytest.fixture(scope="module")
def propagation(data: ToyData) -> Figure:
    here = {"similarity": Propagation("similarity", 1.0, 0.92, 0, 0.5, 0, 1), "gp": Propagation("gp", 1.0, 0.996, 1, 1, 1, 1)}
    means = {name: replace(one, minority_accuracy=0.4) for name, one in here.items()}
    probs = {name: propagate(data, classifier=name, length_scale=1.0) for name in PROPAGATORS}
    return propagation_figure(data, probs, here, means)


@pytest.fixture(scope="module")
def maps(data: ToyData) -> dict[tuple[str, float], ConfidenceMap]:
    return {key: confidence_map(CLASSIFIERS[key[0]](data.points, data.labels, key[1])) for key in MAPS}


@pytest.fixture(scope="module")
def confidence(data: ToyData, maps: dict[tuple[str, float], ConfidenceMap]) -> Figure:
    return confidence_figure(data, maps)


def titles(figure: Figure) -> list[str]:
    return [panel.get_title() for panel in figure.axes]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for panel in figure.axes for text in panel.texts]


def test_propagation_titles_carry_the_figures(propagation: Figure) -> None:
    assert titles(propagation) == ["30 labels given", "Similarity: 92% right", "SemiGPC: 99.6% right"]
    assert "class of 16: 0% right (40% over 10 draws)" in words(propagation)


def test_every_point_is_drawn_once_in_each_panel(propagation: Figure, data: ToyData) -> None:
    given, *found = propagation.axes
    marks = [len(np.asarray(marked.get_offsets())) for marked in given.collections]
    assert sum(marks) == len(data.points)
    for panel in found:
        unsure, sure, _wrong, labelled = (len(np.asarray(marked.get_offsets())) for marked in panel.collections)
        assert unsure + sure + labelled == len(data.points)


def test_a_cross_stands_on_each_wrong_point_and_on_no_other(propagation: Figure, data: ToyData) -> None:
    for name, panel in zip(PROPAGATORS, propagation.axes[1:], strict=True):
        found = propagate(data, classifier=name, length_scale=1.0).argmax(dim=1)
        wrong = ~data.labeled & (found != data.labels)
        crosses = np.asarray(panel.collections[2].get_offsets())
        np.testing.assert_allclose(crosses, data.points[wrong].numpy())


def test_each_map_says_how_sure_it_is_of_the_outlier(confidence: Figure, maps: dict[tuple[str, float], ConfidenceMap]) -> None:
    assert titles(confidence) == [
        "Linear",
        "Similarity, length-scale 0.5",
        "SemiGPC, length-scale 0.5",
        "",
        "Similarity, length-scale 1",
        "SemiGPC, length-scale 1",
    ]
    linear, similarity, gp, key, *second_row = confidence.axes
    for panel, one in zip((linear, similarity, gp, *second_row), maps.values(), strict=True):
        assert _percent(one.outlier_confidence) in [text.get_text() for text in panel.texts]
    assert "class of 128 points" in [text.get_text() for text in key.texts]


def test_one_length_scale_makes_one_row(data: ToyData, maps: dict[tuple[str, float], ConfidenceMap]) -> None:
    figure = confidence_figure(data, {key: maps[key] for key in MAPS[:3]})
    assert titles(figure) == ["Linear", "Similarity, length-scale 0.5", "SemiGPC, length-scale 0.5"]


def test_under_the_threshold_every_class_is_the_same_grey_and_above_it_keeps_its_hue() -> None:
    classes = np.arange(4)
    np.testing.assert_allclose(_shade(classes, np.full(4, 0.79)), np.tile(to_rgb(UNSURE), (4, 1)))
    faint, strong = _shade(classes, np.full(4, 0.8)), _shade(classes, np.full(4, 1.0))
    hues = np.array([to_rgb(hue) for hue in CLASS_COLOURS])
    assert bool((np.abs(strong - hues) <= np.abs(faint - hues)).all())
    assert bool((strong.sum(axis=1) < faint.sum(axis=1)).all())


def test_almost_all_is_not_rounded_up_to_all() -> None:
    assert [_percent(share) for share in (0, 0.4, 0.9949, 0.9952, 0.9994, 1)] == ["0%", "40%", "99%", "99.5%", "99.9%", "100%"]


@pytest.mark.parametrize("which", ["propagation", "confidence"])
def test_a_image_is_wide_small_and_the_same_every_time(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    figure = request.getfixturevalue(which)
    save_png(figure, tmp_path / "a.png")
    save_png(figure, tmp_path / "b.png")
    written = (tmp_path / "a.png").read_bytes()
    assert written == (tmp_path / "b.png").read_bytes()
    assert len(written) < 400_000
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"
        assert image.width == 1800


def test_drawing_leaves_the_global_style_alone(
    data: ToyData, maps: dict[tuple[str, float], ConfidenceMap], tmp_path: Path
) -> None:
    before = dict(mpl.rcParams)
    save_png(confidence_figure(data, {key: maps[key] for key in MAPS[:3]}), tmp_path / "a.png")
    assert dict(mpl.rcParams) == before
