"""The page of a comparison: which method is better, by how much, on which classes, and how sure that is."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from semigpc.report.chart_style import present
from semigpc.report.comparison_figures import curve_chart, difference_chart, pseudo_chart, recall_chart, share_chart
from semigpc.report.comparison_folder import Cell, Comparison, read_comparison
from semigpc.report.page import write_page
from semigpc.report.wording import number_of
from semigpc.text import CLASS_GROUPS, count, mean_and_spread, points

COLUMNS = ("balanced_accuracy", *CLASS_GROUPS, "top1", "macro_f1", "ece")
LOWER_IS_BETTER = ("ece", "loss")


def write_comparison_report(folder: Path) -> Path:
    """Read a comparison folder and write ``report.html`` into it, leaving out what needs files that are not there.

    Runs that have a ``report.html`` of their own are linked, by relative paths, so write theirs first.

    Returns:
        The path of the page: one file, with everything it shows inside.

    Raises:
        FileNotFoundError: if the folder holds no comparison.json.
        ValueError: if comparison.json is not a JSON object, or if files of a run disagree on the number of classes.
    """
    return write_page(folder / "report.html", "comparison.html", _context(read_comparison(folder)))


def _context(comparison: Comparison) -> dict[str, Any]:
    record = comparison.record
    seeds = record.get("seeds") or []
    labelled = comparison.reference.counts("labeled_counts")
    facts = [("Methods", count(len(comparison.cells))), ("Seeds", ", ".join(map(str, seeds)) or "none")]
    if comparison.reference.class_names:
        facts.append(("Classes", count(len(comparison.reference.class_names))))
    if labelled is not None and len(labelled):
        facts.append(("Labelled images", count(labelled.sum())))
    charts = {
        "differences": [difference_chart(comparison)],
        "curves": [curve_chart(comparison)],
        "classes": [recall_chart(comparison)],
        "pseudo": [pseudo_chart(comparison), share_chart(comparison)],
    }
    return {
        "title": str(record.get("title") or "Comparison"),
        "command": str(record.get("command") or ""),
        "metric": comparison.metric,
        "seeds": seeds,
        "facts": facts,
        "problems": [*comparison.problems, *_shortfall(comparison)],
        "columns": _columns(comparison),
        "rows": _rows(comparison),
        "pairs": [_pair(pair) for pair in record.get("pairs") or []],
        "runs": [run for cell in comparison.cells for run in _runs(comparison, cell)],
        **{name: [[one] for one in present(found)] for name, found in charts.items()},
    }


def _columns(comparison: Comparison) -> list[str]:
    return list(dict.fromkeys((comparison.metric, *COLUMNS)))


def _rows(comparison: Comparison) -> list[dict[str, Any]]:
    """List the cells as mean and deviation by column, with the best of each column marked."""
    columns, baseline = _columns(comparison), comparison.record.get("baseline")
    means = {cell.name: {key: number_of(cell.record.get("mean") or {}, key) for key in columns} for cell in comparison.cells}
    best = {}
    for key in columns:
        known = [value for mean in means.values() if (value := mean[key]) is not None]
        if len(set(known)) > 1:
            best[key] = min(known) if key in LOWER_IS_BETTER else max(known)
    rows = []
    for cell in comparison.cells:
        mean, std, n = means[cell.name], cell.record.get("std") or {}, len(cell.results())
        start = means.get(str(baseline), {}).get(comparison.metric)
        reached = mean[comparison.metric]
        gain = None if start is None or reached is None or cell.name == baseline else reached - start
        rows.append(
            {
                "label": cell.label,
                "swatch": _swatch(cell),
                "baseline": cell.name == baseline,
                "n": n,
                "gain": points(gain),
                "numbers": [
                    (*mean_and_spread(mean[key], number_of(std, key), n), mean[key] is not None and mean[key] == best.get(key))
                    for key in columns
                ],
            }
        )
    return rows


def _pair(pair: dict[str, Any]) -> dict[str, Any]:
    differences = [value for value in pair.get("differences") or [] if value is not None]
    spread = f" \N{PLUS-MINUS SIGN} {100 * pair['std']:.1f}" if len(differences) > 1 and pair.get("std") is not None else ""
    return {
        "name": pair["name"],
        "mean": points(pair.get("mean_difference")) + spread,
        "wins": pair.get("wins", 0),
        "losses": pair.get("losses", 0),
        "differences": ", ".join(points(value) for value in differences),
    }


def _runs(comparison: Comparison, cell: Cell) -> list[dict[str, Any]]:
    rows = []
    for run in cell.record.get("runs") or []:
        folder = str(run.get("folder") or "")
        there = bool(folder) and (comparison.path / folder / "report.html").is_file()
        rows.append(
            {
                "label": cell.label,
                "seed": run.get("seed"),
                "folder": folder,
                "link": quote(f"{folder}/report.html", safe="/+") if there else "",
                "value": number_of(run.get("result") or {}, comparison.metric),
                "seconds": run.get("seconds"),
            }
        )
    return rows


def _shortfall(comparison: Comparison) -> list[str]:
    """Name the cells that have fewer results than the comparison has seeds: their means are not over the same draws."""
    wanted = len(comparison.record.get("seeds") or [])
    lacking = [f"{cell.label} ({len(cell.results())})" for cell in comparison.cells if len(cell.results()) < wanted]
    return [f"Means over fewer than the {wanted} seeds asked for: {', '.join(lacking)}."] if lacking else []


def _swatch(cell: Cell) -> Markup:
    """A short piece of the cell's line, as its charts draw it."""
    dashes = "" if isinstance(cell.dashes, str) else " ".join(f"{2 * length:g}" for length in cell.dashes[1])
    return Markup(
        '<svg class="swatch" viewBox="0 0 34 10" aria-hidden="true"><path d="M1 5H33" fill="none" stroke="{}" '
        'stroke-width="3" stroke-dasharray="{}"/></svg>'
    ).format(cell.colour, dashes or "none")
