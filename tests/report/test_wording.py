"""Words, numbers and ticks as a page writes them."""

import math

import pytest

from semigpc.report import style
from semigpc.report.run_page import run_title
from semigpc.report.wording import (
    count,
    counted,
    duration,
    flatten,
    mean_and_spread,
    no_new_labels,
    number_of,
    percent,
    points,
    short,
)
from semigpc.training.run_folder import RunSettings


def test_what_is_not_known_is_a_dash() -> None:
    dash = "\N{EN DASH}"
    unknown = [percent(None), percent(math.nan), points(None), count(None), duration(None)]
    assert unknown == [dash] * 5
    assert mean_and_spread(None, 0.1, 3) == (dash, "")


def test_numbers_have_one_decimal_and_their_sign() -> None:
    assert percent(0.1234) == "12.3%"
    assert [points(gap) for gap in (0.031, -0.02, -0.0001)] == ["+3.1", "\N{MINUS SIGN}2.0", "0.0"]
    assert mean_and_spread(0.5, 0.013, 3) == ("50.0", "± 1.3")
    assert mean_and_spread(0.5, 0.0, 1) == ("50.0", "")
    assert count(12345) == "12,345"


def test_times_have_two_units() -> None:
    written = [duration(seconds) for seconds in (4.25, 174, 3600 * 5 + 60, 3600 * 50)]
    assert written == ["4.2 s", "2 min 54 s", "5 h 1 min", "2 d 2 h"]


def test_figures_are_found_flat_or_among_the_groups_if_they_are_finite() -> None:
    assert number_of({"groups": {"few": 0.5}}, "few") == number_of({"few": 0.5}, "few") == 0.5
    assert number_of({"groups": {"few": None}}, "few") is None
    assert number_of({"ece": math.nan}, "ece") is None
    lines: list[dict[str, object]] = [
        {"step": 1, "ece": None},
        {"step": 2, "ece": 0.5},
        {"step": 3},
    ]
    assert [values.tolist() for values in style.series(lines, "ece")] == [[2], [0.5]]


def test_long_names_are_cut_in_the_middle_and_are_never_mathematics() -> None:
    assert short("Scarlet tanager, female 12", 14) == "Scarlet t…e 12"
    assert short("a\nb") == "a b"
    assert short("$x$") == r"\$x\$"
    assert short("a\x1b]0;t\x07\udcff", 40) == r"a\x1b]0;t\x07\udcff"


def test_a_run_is_named_by_what_is_known_of_it() -> None:
    algorithm = {"name": "simmatch"}
    refiner = {"name": "gp"}
    data = {"name": "digits"}
    plain = run_title({"algorithm": algorithm, "refiner": refiner, "data": data, "seed": 3})
    assert plain == "simmatch + gp on digits, seed 3"
    assert run_title({"data": data, "seed": 3}, "SimMatch + SemiGPC") == (
        "SimMatch + SemiGPC on digits, seed 3"
    )
    for addon, title in (("darp", "simmatch + darp + gp"), ("none", "simmatch + gp")):
        settings: RunSettings = {"algorithm": algorithm, "refiner": refiner}
        settings["addon"] = {"name": addon}
        assert run_title(settings) == title
    assert run_title({}) == "Run"


def test_nested_settings_become_dotted_keys() -> None:
    nested = {"a": {"b": 1, "c": {}}, "d": None}
    assert flatten(nested) == [("a.b", "1"), ("a.c", "{}"), ("d", "none")]


def test_nouns_follow_their_number() -> None:
    for noun, one in (("images", "image"), ("classes", "class"), ("given labels", "given label")):
        assert counted(1, noun) == f"1 {one}"
    several = [counted(number, "rows") for number in (0, 2, 1234)]
    assert several == ["0 rows", "2 rows", "1,234 rows"]


def test_ticks_are_written_as_they_stand() -> None:
    figure, (axes,) = style.panels(1, 1, height=3)
    axes.plot([0, 1], [0.9, 0.95])
    style.share_axis(axes)
    figure.canvas.draw()
    for place, text in zip(axes.get_yticks(), axes.get_yticklabels(), strict=True):
        assert float(text.get_text().removesuffix("%")) == pytest.approx(100 * place)


def test_classes_without_new_labels_are_named_with_what_they_need() -> None:
    start = "No new labels for: heron"
    for needed, expected in (
        ({}, ""),
        ({"heron": 6, "egret": 6}, f"{start}, egret. Label 6 more of each."),
        ({"heron": 6, "egret": 2, "owl": None}, f"{start}, egret, owl. Label 2 to 6 more of each."),
        ({"heron": 3}, f"{start}. Label 3 more."),
        ({"heron": None}, f"{start}. Label more of it."),
    ):
        assert no_new_labels(needed) == expected
    many = no_new_labels(dict.fromkeys(map(str, range(20))))
    assert many.endswith("10, 11 and 8 more classes. Label more of each.")
