"""The page of a comparison: means, pairs, fixed colours, links; and no more than its runs know."""

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


def test_the_table_has_mean_deviation_and_seeds_of_every_method(four: Four) -> None:
    rows = re.findall(r"<tr>.*?</tr>", four.page, re.DOTALL)
    for cell in four.record["cells"]:
        row = next(row for row in rows if f"</svg>{cell['label']}<" in row)
        assert '<td class="number">3</td>' in row
        for key in ("balanced_accuracy", "few", "ece"):
            mean = 100 * cell["mean"][key]
            std = 100 * cell["std"][key]
            assert f"{mean:.1f} <small>± {std:.1f}</small>" in row
    best = max(cell["mean"]["few"] for cell in four.record["cells"])
    assert f'best">{100 * best:.1f} ' in four.page
    assert '<span class="tag">baseline</span>' in four.page


def test_pairs_are_listed_seed_by_seed(four: Four) -> None:
    page = four.page.replace("\N{MINUS SIGN}", "-")
    for pair in four.record["pairs"]:
        assert f"<td>{pair['name']}</td>" in page
        assert ", ".join(f"{100 * gap:+.1f}" for gap in pair["differences"]) in page


def test_the_page_has_every_chart_and_the_command_and_nothing_from_outside(four: Four) -> None:
    assert re.findall(r"<h3>([^<]+)</h3>\s*<svg", four.page) == [
        "Paired differences, seed by seed",
        "Balanced accuracy over training",
        "Recall of each class",
        "Quality of the pseudo-labels",
        "Class counts: predicted and true",
    ]
    assert "<pre>semigpc compare --data digits --seeds 3</pre>" in four.page
    assert not re.search(r"https?://|<script|<link|@import", four.page)


def test_runs_with_a_page_are_linked_and_others_named(four: Four) -> None:
    assert '<a href="cells/simmatch+gp/seed1/report.html">' in four.page
    assert four.page.count("(no report)") == 11


def test_twins_share_a_hue_and_every_method_keeps_its_colour(four: Four, tmp_path: Path) -> None:
    methods = read_comparison(four.folder).methods
    plain, refined, other_plain, other_refined = methods
    assert len({method.colour for method in methods}) == 4
    assert plain.marker == refined.marker != other_plain.marker
    assert plain.dashes == other_plain.dashes != refined.dashes == ()
    write_comparison(tmp_path / "b", methods=[("mymatch", "none"), ("simmatch", "gp")], seeds=(0,))
    assert read_comparison(tmp_path / "b").methods[1].colour == other_refined.colour


def test_without_run_folders_the_results_are_still_shown(four: Four, tmp_path: Path) -> None:
    shutil.copy(four.folder / "comparison.json", tmp_path)
    page = page_of(tmp_path)
    assert "The files of fixmatch+none for seed 0, 1, 2 are missing" in page
    assert "Recall of each class" in page
    assert "Balanced accuracy over training" not in page


def test_a_row_without_training_has_figures_and_a_difference_but_no_curves(
    four: Four, tmp_path: Path
) -> None:
    record = json.loads(json.dumps(four.record))
    first = record["cells"][0]
    runs = [{**run, "seconds": 3.0} for run in first["runs"]]
    for run in runs:
        del run["folder"]
    row = {"name": "label", "label": "label, without training", "rank": None, "runs": runs}
    record["cells"].append({**first, "algorithm": "label", "refiner": "none", **row})
    names = {"name": "label, without training - FixMatch", "with": "label", "without": "fixmatch"}
    gaps = {"differences": [0.0, 0.01, -0.01], "mean_difference": 0.0, "std": 0.008}
    record["untrained_pairs"] = [{**names, **gaps, "wins": 1, "losses": 1}]
    shutil.copytree(four.folder / "cells", tmp_path / "cells")
    (tmp_path / "comparison.json").write_text(json.dumps(record))
    page = page_of(tmp_path)
    assert "are missing" not in page
    assert "</svg>label, without training<" in page
    assert "<h2>Without training</h2>" in page
    assert "<td>label, without training - FixMatch</td>" in page
    assert page.count("nothing to train") == 3
    assert "<h2>Without training</h2>" not in four.page
    shown = read_comparison(tmp_path).methods
    assert len({method.colour for method in shown}) == 5
    assert not shown[-1].runs


@pytest.mark.slow
def test_a_seed_without_a_result_is_reported(four: Four, tmp_path: Path) -> None:
    record = json.loads(json.dumps(four.record))
    record["cells"][3]["runs"].pop()
    record["cells"][3]["std"] = None
    (tmp_path / "comparison.json").write_text(json.dumps(record))
    assert re.search(r"fewer than the 3 seeds .*SimMatch \+ SemiGPC \(2\)", page_of(tmp_path))


@pytest.mark.slow
def test_many_methods_get_a_panel_for_each_algorithm_and_one_seed_has_no_deviation(
    tmp_path: Path,
) -> None:
    algorithms = ("fixmatch", "simmatch", "x<y")
    methods = list(itertools.product(algorithms, ("none", "similarity", "gp")))
    write_comparison(tmp_path, methods=methods, seeds=(0,))
    page = page_of(tmp_path)
    assert "FixMatch: Coverage" in page
    assert "x&lt;y: Precision" in page
    assert "<small>" not in page
    assert "x<y" not in page


def test_a_folder_without_a_comparison_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"comparison\.json.*Give the folder"):
        write_comparison_report(tmp_path)
    (tmp_path / "comparison.json").write_text("[]")
    with pytest.raises(ValueError, match=r"comparison\.json .*got \[\].*Run the comparison again"):
        write_comparison_report(tmp_path)


def test_a_comparison_with_nothing_yet_has_a_page(tmp_path: Path) -> None:
    empty = {"title": "Soon", "cells": [], "pairs": [], "seeds": [0]}
    (tmp_path / "comparison.json").write_text(json.dumps(empty))
    assert "No method has been run yet." in page_of(tmp_path)
