"""Tables of ``semigpc bench field``."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from rich import box
from rich.table import Table

from semigpc.algorithms import ALGORITHMS
from semigpc.bench.field import SEMIGPC
from semigpc.text import CLASS_GROUPS

STEP = (
    "Slower: seconds of a step over those of the algorithm without add-on, mean over algorithms, fastest of several windows "
    "late in a run on digits; what happens once in a run is in the seconds alone."
)


def problem_table(problem: Mapping[str, Any], bases: Sequence[str]) -> Table:
    """A row a method, a column an algorithm; then methods that have no base of these."""
    seeds = problem["of_seeds"]
    title = f"{problem['title']}\nbalanced accuracy in percent" + (f", mean and spread of {seeds} seeds" if seeds > 1 else "")
    table = _table(title, "", *(ALGORITHMS[base].label for base in bases), *CLASS_GROUPS, "s a run")
    ours = [row for row in problem["rows"] if row["base"] in bases]
    best = {base: max((row["mean"] for row in ours if row["base"] == base), default=None) for base in bases}
    for method in dict.fromkeys(row["method"] for row in ours):
        rows = {row["base"]: row for row in ours if row["method"] == method}
        figures = (_figure(rows.get(base), seeds, best[base]) for base in bases)
        table.add_row(method, *figures, *_means(list(rows.values())))
    table.add_section()
    for row in problem["rows"]:
        if row["base"] not in bases:
            name = row["label"] + (f" + {SEMIGPC}" if row.get("refiner") == "gp" else "")
            table.add_row(name, _figure(row, seeds, None), *[""] * (len(bases) - 1), *_means([row]))
    partial = any(len(row["seeds"]) < seeds for row in problem["rows"])
    table.caption = "Groups and seconds are means over algorithms." + (" * fewer seeds so far." if partial else "")
    return table


def _figure(row: Mapping[str, Any] | None, seeds: int, best: float | None) -> str:
    if row is None:
        return "-"
    text = f"{100 * row['mean']:.1f}" + (f" ± {100 * row['std']:.1f}" if len(row["seeds"]) > 1 else "")
    text += "" if len(row["seeds"]) == seeds else "*"
    return f"[bold]{text}[/bold]" if row["mean"] == best else text


def _means(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    groups = [mean(row["groups"][group] for row in rows) for group in CLASS_GROUPS]
    return [*(f"{100 * value:.0f}" for value in groups), f"{mean(row['seconds'] for row in rows):.1f}"]


def rank_table(summary: Mapping[str, Any]) -> Table:
    """Methods by mean rank; beside them what SemiGPC adds to an add-on, and how much slower that makes a step."""
    table = _table("Mean ranks, 1 is best", "", "mean rank", "slower")
    rows = {row["method"]: row for problem in summary["problems"].values() for row in problem["rows"] if row["method"]}
    for method, value in summary["ranks"]["mean_ranks"].items():
        addon = rows[method]["addon"]
        ratios = [times[addon]["ratio"] for times in summary["step_times"].values() if addon in times]
        slower = f"x {mean(ratios):.2f}" if ratios and SEMIGPC not in method else ""
        table.add_row(method, f"{value:.2f}", slower)
    return table


def field_remarks(summary: Mapping[str, Any]) -> list[str]:
    """What has to be known to read the tables, and what they say of SemiGPC."""
    ranks = summary["ranks"]
    lines = [f"Mean ranks: {_test(ranks)}", *_of_semigpc(summary)] if ranks["mean_ranks"] else []
    heads = {row["head"] for problem in summary["problems"].values() for row in problem["rows"] if row["head"]}
    if "gp" in heads and summary["by_network"]["ranks"]["mean_ranks"]:
        lines.append("On features runs with SemiGPC are judged by the GP. By the network's own answer everywhere instead:")
        lines += [f"  {line}" for line in _of_semigpc(summary["by_network"])]
    if ranks["dropped"]:
        count = "1 block was" if len(ranks["dropped"]) == 1 else f"{len(ranks['dropped'])} blocks were"
        lines.append(f"{count} not ranked, as runs are missing: {', '.join(ranks['dropped'])}.")
    if ranks["mean_ranks"]:
        lines.append(STEP)
    if summary["unfinished"]:
        lines.append(f"{summary['unfinished']} runs are not finished; give the command without --only-summary to go on.")
    for one in summary["refused"]:
        name = "+".join((one["base"], one["addon"], one["refiner"]))
        lines.append(f"Left out: {name} on {', '.join(one['problems'])}: {one['reason']}")
    return lines


def _test(ranks: Mapping[str, Any]) -> str:
    text = f"{len(ranks['mean_ranks'])} methods over {ranks['blocks']} blocks of a problem with an algorithm"
    if ranks["statistic"] is not None:
        text += f"; Friedman's chi2 {ranks['statistic']:.1f}, p {ranks['p_value']:.2g}"
    return f"{text}; those closer than {ranks['critical_difference']:.2f} cannot be told apart (Nemenyi, 5 %)."


def _of_semigpc(part: Mapping[str, Any]) -> list[str]:
    """Its rank without an add-on, and with it against without."""
    means, pairs, lines = part["ranks"]["mean_ranks"], part["with_gp"]["all"], []
    if SEMIGPC in means:
        place = list(means).index(SEMIGPC) + 1
        lines.append(f"SemiGPC without an add-on has mean rank {means[SEMIGPC]:.2f}, place {place} of {len(means)}.")
    if pairs["pairs"]:
        p = "" if pairs["p_value"] is None else f", Wilcoxon's p {pairs['p_value']:.2g}"
        lines.append(
            f"With SemiGPC against without, same problem, algorithm and add-on: better in {pairs['wins']} of {pairs['pairs']}, "
            f"worse in {pairs['losses']}, {100 * pairs['mean_gain']:+.2f} points on the mean{p}."
        )
    for kind in ("problem", "base", "addon"):
        gains = part["with_gp"][f"by_{kind}"].items()
        said = [f"{name} {100 * one['mean_gain']:+.1f} ({one['wins']}:{one['losses']})" for name, one in gains]
        lines += [f"  by {kind}: {', '.join(said)}"] if said else []
    return lines


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, box=box.SIMPLE, title_justify="left", caption_justify="left", padding=(0, 1), title_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    return table
