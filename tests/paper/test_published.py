"""Every printed number is there: against the spec's transcription where it is at hand, and against
sums taken from it.
"""

import re
from pathlib import Path

import pytest

from semigpc.paper.published import (
    NOTES,
    PUBLISHED,
    STATEMENTS,
    Published,
    agrees,
    band,
    judge_gain,
)

SPEC = Path(__file__).parents[3] / "shared" / "spec" / "paper_tables.md"
# Sums over each section of the spec's file: rows, accuracies, deviations, printed gains.
SUMS = {
    "cifar100_lt": (15, 1068.65, 7.64, 9.16),
    "cifar10_lt": (15, 1318.48, 29.42, 29.18),
    "fgvc": (12, 790.02, 4.58, 7.10),
    "balanced_cifar": (12, 1067.94, 0.0, 1.09),
    "algorithm_ablation": (8, 544.53, 0.0, 3.17),
    "pretraining_ablation": (6, 399.50, 0.0, 5.20),
}
SECTIONS = dict(enumerate(SUMS, start=2))
SETS = {"SemiCUB": "cub", "SemiAves": "semi_aves", "SemiFungi": "semi_fungi"}
SETS |= {"Semi-iNat": "semi_inat"}
RUN = {"SimMatch": "simmatch+none", "SimMatch + SemiGPC": "simmatch+gp"}
Printed = tuple[float, float | None, float | None, bool]


def rows() -> dict[tuple[str, str, str], Published]:
    return {
        (table, group, row): entry
        for table, groups in PUBLISHED.items()
        for group, entries in groups.items()
        for row, entry in entries.items()
    }


def spec_lines(section: int) -> list[list[str]]:
    """Cells of the rows of one section's table, without its heading."""
    text = re.split(r"^## ", SPEC.read_text(), flags=re.MULTILINE)
    (own,) = [part for part in text if part.startswith(f"{section}. ")]
    lines = [line.strip("|").split("|") for line in own.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def number(text: str) -> tuple[float, float | None]:
    value, _, std = text.partition("+-")
    return float(value), float(std) if std else None


def delta(text: str) -> float | None:
    found = re.search(r"[+-]\d+\.\d+", text)
    return float(found[0]) if found else None


def from_spec() -> dict[tuple[str, str, str], Printed]:
    found: dict[tuple[str, str, str], Printed] = {}
    for section in (2, 3, 4, 5):
        for line in spec_lines(section):
            model, top1, gain = line[1], *line[-2:]
            if section in (2, 3):
                group = f"{line[0]}/{line[3]}"
            elif section == 4:
                group = SETS[line[0]]
            else:
                group = f"{line[0].lower().replace('-', '')}/{line[2]}"
            quoted = model.endswith("*")
            name = re.sub(r" \(.*\)", "", model.removesuffix("*").strip())
            row = name if quoted else RUN[name]
            found[SECTIONS[section], group, row] = (*number(top1), delta(gain), quoted)
    for section in (6, 7):
        for name, alone, refined, gain in spec_lines(section):
            ablated = name.lower()
            group, algorithm = ("semi_aves", ablated) if section == 6 else (ablated, "simmatch")
            table = SECTIONS[section]
            found[table, group, f"{algorithm}+none"] = (*number(alone), None, False)
            found[table, group, f"{algorithm}+gp"] = (*number(refined), delta(gain), False)
    return found


@pytest.mark.skipif(not SPEC.exists(), reason=f"the spec is not beside the repository: {SPEC.name}")
def test_every_number_of_the_spec_is_there_and_no_other() -> None:
    ours = {key: (row.top1, row.std, row.delta, row.quoted) for key, row in rows().items()}
    assert ours == from_spec()


@pytest.mark.parametrize("table", SUMS)
def test_the_sums_of_each_table_are_those_of_the_spec(table: str) -> None:
    entries = [entry for key, entry in rows().items() if key[0] == table]
    count, top1, std, gain = SUMS[table]
    assert len(entries) == count
    assert sum(entry.top1 for entry in entries) == pytest.approx(top1)
    assert sum(entry.std or 0 for entry in entries) == pytest.approx(std)
    assert sum(entry.delta or 0 for entry in entries) == pytest.approx(gain)


def test_some_numbers_as_printed() -> None:
    assert PUBLISHED["cifar10_lt"]["B/150"]["simmatch+gp"].top1 == 84.25
    assert PUBLISHED["cifar10_lt"]["B/150"]["simmatch+gp"].std == 8.92
    assert PUBLISHED["cifar100_lt"]["A/20"]["CoSSL"].top1 == 55.80
    assert PUBLISHED["fgvc"]["semi_fungi"]["simmatch+gp"].delta == 3.49
    assert PUBLISHED["algorithm_ablation"]["semi_aves"]["remixmatch+none"].top1 == 67.9
    assert PUBLISHED["pretraining_ablation"]["msn"]["simmatch+none"].top1 == 64.7


def test_gains_are_the_differences_beside_them_or_a_note_says_otherwise() -> None:
    for (table, group, row), entry in rows().items():
        if not row.endswith("+gp"):
            continue
        base = PUBLISHED[table][group][row.replace("+gp", "+none")]
        assert entry.delta is not None
        recomputed = round(entry.top1 - base.top1, 2)
        claimed = entry.delta if entry.meant is None else entry.meant
        assert abs(claimed - recomputed) < 0.025
        assert entry.delta == recomputed or entry.note is not None


def test_the_gain_with_the_wrong_sign_is_claimed_as_it_was_meant() -> None:
    entry = PUBLISHED["balanced_cifar"]["cifar10/250"]["simmatch+gp"]
    assert (entry.delta, entry.meant) == (-0.18, 0.18)
    assert entry.note is not None
    beside = PUBLISHED["balanced_cifar"]["cifar10/40"]["simmatch+gp"]
    assert (beside.delta, beside.meant) == (-0.18, None)  # this one is right


def test_sources_say_who_quotes_whom() -> None:
    for entry in rows().values():
        assert "SemiGPC paper, table of " in entry.source
        assert entry.quoted == ("as quoted by the" in entry.source)
    assert NOTES.keys() == PUBLISHED.keys()


# Statements ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "printed", "recomputed"),
    [
        ("cifar10_lt", [17.39, 9.54, 45], [17.393, 9.540, 45.2]),
        ("cifar100_lt", [5.62, 3.85, 32], [5.617, 3.853, 31.4]),
        ("fgvc", [1.92, 20.52], [1.775, 20.515]),
        ("algorithm_ablation", [0.8], [0.7925]),
        ("pretraining_ablation", [1.3], [1.733]),
    ],
)
def test_what_the_text_says_of_a_table_beside_what_its_rows_give(
    table: str, printed: list[float], recomputed: list[float]
) -> None:
    top1 = {
        (group, row): entry.top1 for (name, group, row), entry in rows().items() if name == table
    }
    assert [statement.printed for statement in STATEMENTS[table]] == printed
    for statement, value in zip(STATEMENTS[table], recomputed, strict=True):
        assert statement.units(top1) == list(statement.pairs)
        rounding = 0.05 if value > 30 else 0.001
        found = statement.value(top1, statement.units(top1))
        assert found == pytest.approx(value, abs=rounding)


def test_a_gap_is_computed_over_the_ratios_that_both_settings_have() -> None:
    alone, refined, share = STATEMENTS["cifar10_lt"]
    plain = {"A/50": 90.0, "B/50": 80.0, "A/100": 70.0}
    with_gp = {"A/50": 92.0, "B/50": 88.0, "B/150": 10.0}
    top1 = {(group, "simmatch+none"): value for group, value in plain.items()}
    top1 |= {(group, "simmatch+gp"): value for group, value in with_gp.items()}
    assert alone.units(top1) == refined.units(top1) == share.units(top1) == ["ratio 50"]
    assert (alone.value(top1, ["ratio 50"]), refined.value(top1, ["ratio 50"])) == (10, 4)
    assert share.value(top1, ["ratio 50"]) == pytest.approx(60)
    no_gap = top1 | {("B/50", "simmatch+none"): 90.0}
    assert share.value(no_gap, ["ratio 50"]) is None
    del top1["A/50", "simmatch+none"]
    assert share.units(top1) == []


# Verdicts -----------------------------------------------------------------------------------------


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
