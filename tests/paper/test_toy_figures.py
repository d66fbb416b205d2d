"""The images show what the figures say, and stay small."""

from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from semigpc.paper.toy import (
    CLASSIFIERS,
    PROPAGATORS,
    Confidence,
    Propagation,
    ToyData,
    draw,
    propagate,
    situations,
)
from semigpc.paper.toy_figures import (
    CLASS_COLOURS,
    NAMES,
    UNSURE,
    _percent,
    _shade,
    propagation_figure,
    save_png,
    situations_figure,
)

NUMBERS = {
    name: Confidence(name, 1.0, 0.1 + 0.01 * i, 0.4 + 0.01 * i, 0.7 + 0.01 * i, ())
    for i, name in enumerate(CLASSIFIERS)
}


@pytest.fixture(scope="module")
def data() -> ToyData:
    return draw(0)


@pytest.fixture(scope="module")
def propagation(data: ToyData) -> Figure:
    here = {
        "similarity": Propagation("similarity", 1.0, 0.92, 0, 0.5, 0, 1),
        "gp": Propagation("gp", 1.0, 0.996, 1, 1, 1, 1),
    }
    means = {name: replace(one, minority_accuracy=0.4) for name, one in here.items()}
    probs = {name: propagate(data, classifier=name, length_scale=1.0) for name in PROPAGATORS}
    return propagation_figure(data, probs, here, means)


@pytest.fixture(scope="module")
def figure1() -> Figure:
    return situations_figure(situations(0), NUMBERS)


def titles(figure: Figure) -> list[str]:
    return [panel.get_title() for panel in figure.axes]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for panel in figure.axes for text in panel.texts]


def test_propagation_titles_carry_the_figures(propagation: Figure) -> None:
    assert titles(propagation) == [
        "30 labels given",
        "Similarity: 92% right",
        "SemiGPC: 99.6% right",
    ]
    assert "class of 16: 0% right (40% over 10 draws)" in words(propagation)


def test_every_point_is_drawn_once_in_each_panel(propagation: Figure, data: ToyData) -> None:
    given, *found = propagation.axes
    marks = [len(np.asarray(marked.get_offsets())) for marked in given.collections]
    assert sum(marks) == len(data.points)
    for panel in found:
        unsure, sure, _wrong, labelled = (
            len(np.asarray(marked.get_offsets())) for marked in panel.collections
        )
        assert unsure + sure + labelled == len(data.points)


def test_a_cross_stands_on_each_wrong_point_and_on_no_other(
    propagation: Figure, data: ToyData
) -> None:
    for name, panel in zip(PROPAGATORS, propagation.axes[1:], strict=True):
        found = propagate(data, classifier=name, length_scale=1.0).argmax(dim=1)
        wrong = ~data.labeled & (found != data.labels)
        crosses = np.asarray(panel.collections[2].get_offsets())
        np.testing.assert_allclose(crosses, data.points[wrong].numpy())


def test_each_panel_of_figure_1_has_its_classifier_its_number_and_a_ring_at_the_place(
    figure1: Figure,
) -> None:
    assert titles(figure1) == list(NAMES.values()) * 3
    panels = iter(figure1.axes)
    for key, situation in situations(0).items():
        for entry in NUMBERS.values():
            panel = next(panels)
            assert _percent(getattr(entry, key)) in [text.get_text() for text in panel.texts]
            rings = [np.asarray(marked.get_offsets()) for marked in panel.collections]
            assert any(
                ring.shape == (1, 2) and np.allclose(ring, situation.place) for ring in rings
            )


def test_each_row_of_figure_1_asks_its_question(figure1: Figure) -> None:
    asked = [panel.texts[0].get_text() for panel in figure1.axes[::3]]
    for line, start in zip(
        asked, ("Labels that disagree", "A minority", "An outlier"), strict=True
    ):
        assert line.startswith(start)
        assert line.count("?") == 1


def test_disputed_points_show_both_colours(figure1: Figure) -> None:
    for number, panel in enumerate(figure1.axes):
        (half,) = [line for line in panel.lines if line.get_fillstyle() == "left"]
        assert len(half.get_xdata()) == (4 if number < 3 else 0)  # type: ignore[arg-type]


def test_under_the_threshold_every_class_is_the_same_grey_and_above_it_keeps_its_hue() -> None:
    classes = np.arange(4)
    np.testing.assert_allclose(_shade(classes, np.full(4, 0.79)), np.tile(to_rgb(UNSURE), (4, 1)))
    faint, strong = _shade(classes, np.full(4, 0.8)), _shade(classes, np.full(4, 1.0))
    hues = np.array([to_rgb(hue) for hue in CLASS_COLOURS])
    assert bool((np.abs(strong - hues) <= np.abs(faint - hues)).all())
    assert bool((strong.sum(axis=1) < faint.sum(axis=1)).all())


def test_almost_all_is_not_rounded_up_to_all() -> None:
    assert [_percent(share) for share in (0, 0.4, 0.9949, 0.9952, 0.9994, 1)] == [
        "0%",
        "40%",
        "99%",
        "99.5%",
        "99.9%",
        "100%",
    ]


@pytest.mark.parametrize("which", ["propagation", "figure1"])
def test_a_image_is_wide_small_and_the_same_every_time(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    figure = request.getfixturevalue(which)
    save_png(figure, tmp_path / "a.png")
    save_png(figure, tmp_path / "b.png")
    written = (tmp_path / "a.png").read_bytes()
    assert written == (tmp_path / "b.png").read_bytes()
    assert len(written) < 400_000
    with Image.open(tmp_path / "a.png") as image:
        assert image.format == "PNG"
        assert image.width == 1800


def test_drawing_leaves_the_global_style_alone(figure1: Figure, tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    save_png(figure1, tmp_path / "a.png")
    assert dict(mpl.rcParams) == before
