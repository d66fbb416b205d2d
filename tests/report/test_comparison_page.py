"""The page of a comparison: means, pairs, fixed colours, links; and no more than its runs can tell."""

import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from semigpc.report.comparison_page import read_comparison, write_comparison_report
from semigpc.report.run_page import write_run_report
from tests.report.synthetic import write_comparison

FOUR = list(itertools.product(("fixmatch", "simmatch"), ("none", "gp")))


def page_of(folder: Path) -> str:
    return write_comparison_report(folder).read_text(encoding="utf-8")


class Four(NamedTuple):
    folder: Path
    record: dict[str, Any]
    page: str


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Four:
    folder = tmp_path_factory.mktemp("four")
    record = write_comparison(folder, methods=FOUR, n_classes=6)
    write_run_report(folder / "cells" / "simmatch+gp" / "seed1")
    return Four(folder, record, page_of(folder))


def test_the_table_holds_mean_deviation_and_seeds_of_every_cell(four: Four) -> None:
    _, record, page = four
    for cell in record["cells"]:
        row = next(
            row
            for row in re.findall(r"<tr>.*?</tr>", page, re.DOTALL)
            if f"</svg>{cell['label']}<" in row
        )
        assert '<td class="number">3</td>' in row
        for key in ("balanced_accuracy", "few", "ece"):
            assert (
                f"{100 * cell['mean'][key]:.1f} <small>± {100 * cell['std'][key]:.1f}</small>"
                in row
            )
    best = max(cell["mean"]["few"] for cell in record["cells"])
    assert f'best">{100 * best:.1f} ' in page
    assert '<span class="tag">baseline</span>' in page


def test_pairs_are_drawn_and_listed_seed_by_seed(four: Four) -> None:
    _, record, page = four
    for pair in record["pairs"]:
        assert f"<td>{pair['name']}</td>" in page
        assert ", ".join(f"{100 * gap:+.1f}" for gap in pair["differences"]) in page.replace(
            "\N{MINUS SIGN}", "-"
        )
    assert "Paired differences, seed by seed" in page


def test_the_page_has_every_chart_and_the_command_and_nothing_from_outside(four: Four) -> None:
    page = four.page
    assert re.findall(r"<h3>([^<]+)</h3>\s*<svg", page) == [
        "Paired differences, seed by seed",
        "Balanced accuracy over training",
        "Recall of each class",
        "Quality of the pseudo-labels",
        "Class counts: believed and true",
    ]
    assert "<pre>semigpc compare --data digits --seeds 3</pre>" in page
    assert not re.search(r"https?://|<script|<link|@import", page)


def test_runs_with_a_page_are_linked_and_others_named(four: Four) -> None:
    assert '<a href="cells/simmatch+gp/seed1/report.html">' in four.page
    assert four.page.count("(no report)") == 11


def test_twins_share_a_hue_and_differ_in_lightness_and_dashes(four: Four) -> None:
    plain, refined, other_plain, other_refined = read_comparison(four.folder).cells
    assert len({cell.colour for cell in (plain, refined, other_plain, other_refined)}) == 4
    assert plain.marker == refined.marker != other_plain.marker
    assert plain.dashes == other_plain.dashes != refined.dashes == "-"


def test_a_cell_keeps_its_colour_in_another_comparison(four: Four, tmp_path: Path) -> None:
    write_comparison(tmp_path / "b", methods=[("mymatch", "none"), ("simmatch", "gp")], seeds=(0,))
    colours = {cell.name: cell.colour for cell in read_comparison(four.folder).cells}
    assert read_comparison(tmp_path / "b").cells[1].colour == colours["simmatch+gp"]


def test_without_run_folders_the_results_still_speak(four: Four, tmp_path: Path) -> None:
    shutil.copy(four.folder / "comparison.json", tmp_path)
    page = page_of(tmp_path)
    assert "The files of fixmatch+none for seed 0, 1, 2 are missing" in page
    assert "Recall of each class" in page
    assert "Balanced accuracy over training" not in page


@pytest.mark.slow
def test_a_seed_that_failed_is_told(four: Four, tmp_path: Path) -> None:
    record = json.loads(json.dumps(four.record))
    record["cells"][3]["runs"].pop()
    record["cells"][3]["std"] = None
    (tmp_path / "comparison.json").write_text(json.dumps(record))
    assert "Means over fewer than the 3 seeds asked for: SimMatch + SemiGPC (2)." in page_of(
        tmp_path
    )


@pytest.mark.slow
def test_many_methods_get_a_panel_for_each_algorithm_and_one_seed_has_no_deviation(
    tmp_path: Path,
) -> None:
    write_comparison(
        tmp_path,
        methods=list(
            itertools.product(("fixmatch", "simmatch", "x<y"), ("none", "similarity", "gp"))
        ),
        seeds=(0,),
    )
    page = page_of(tmp_path)
    assert "FixMatch: Coverage" in page
    assert "x&lt;y: Precision" in page
    assert "<small>" not in page
    assert "x<y" not in page


def test_a_folder_without_a_comparison_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"holds comparison.json; .* does not. Give the folder"
    ):
        write_comparison_report(tmp_path)
    (tmp_path / "comparison.json").write_text("[]")
    with pytest.raises(
        ValueError,
        match=r"comparison.json cannot be used: the content must be a valid dictionary; got \[\]. Run the comparison again",
    ):
        write_comparison_report(tmp_path)


def test_a_comparison_with_nothing_yet_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "comparison.json").write_text(
        json.dumps({"title": "Soon", "cells": [], "pairs": [], "seeds": [0]})
    )
    assert "No method has been run yet." in page_of(tmp_path)
