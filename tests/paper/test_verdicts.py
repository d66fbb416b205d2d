import pytest

from semigpc.paper.published import Published, agrees, band, judge_gain


def printed(top1: float, std: float | None = None) -> Published:
    return Published(top1=top1, std=std, source="a table made for this test")


@pytest.mark.parametrize(
    ("ours", "top1", "std", "verdict"),
    [
        (95.5, 95.0, None, True),  # half a point, without a deviation
        (95.51, 95.0, None, False),
        (94.5, 95.0, 0.1, True),  # a small deviation leaves the half point
        (94.49, 95.0, 0.1, False),
        (86.0, 84.0, 1.0, True),  # two deviations, where those are more
        (86.01, 84.0, 1.0, False),
    ],
)
def test_a_figure_agrees_within_two_deviations_or_half_a_point(
    ours: float, top1: float, std: float | None, verdict: bool
) -> None:
    assert agrees(ours, printed(top1, std)) is verdict


def test_the_band_is_the_larger_of_the_two() -> None:
    assert band(printed(95, None)) == band(printed(95, 0.2)) == 0.5
    assert band(printed(84.25, 8.92)) == 17.84


@pytest.mark.parametrize(
    ("gains", "claimed", "verdict"),
    [
        ([0.5, 0.5, 0.5], 1.0, "reproduced"),  # half of it
        ([0.5, 0.5, 0.49], 1.0, "not reproduced"),
        ([3.0, 3.0, -4.5], 1.0, "reproduced"),  # the mean counts
        ([-1.0, -1.0, -1.0], 1.0, "not reproduced"),  # the sign
        ([-0.1, -0.1, -0.1], -0.18, "reproduced"),  # a loss that is claimed has to come out too
        ([-0.08, -0.08, -0.08], -0.18, "not reproduced"),
        ([0.2, 0.2, 0.2], -0.18, "not reproduced"),
        ([5.0, 5.0], 1.0, "too few seeds"),
    ],
)
def test_a_gain_is_reproduced_by_sign_and_half_its_size(
    gains: list[float], claimed: float, verdict: str
) -> None:
    assert judge_gain(gains, claimed) == verdict


def test_a_group_may_want_more_seeds() -> None:
    assert judge_gain([9.0] * 4, 7.63, enough=5) == "too few seeds"
    assert judge_gain([9.0] * 5, 7.63, enough=5) == "reproduced"
