"""How many labels are needed? Guaranteed labels by the number of random labels that were given."""

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.figure import Figure
from rich.table import Table

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.estimator import FirstContact, meet
from benchmarks.tables import (
    COLOURS,
    DataNames,
    Embeddings,
    Jobs,
    Json,
    Plot,
    Seeds,
    StudyFile,
    dress,
    new_table,
    script,
    show,
    study,
)

COUNTS = (20, 40, 80, 160, 320)  # random labels among the rows of a draw
ROWS = 1200  # of a data set, that are drawn
PROBLEMS = tuple(FirstContact(data, ROWS, n) for data in ("waste", "signs") for n in COUNTS)
Record = dict[str, Any]


def summarise(records: Sequence[Record]) -> Record:
    """Return for each data set and number of labels the means over draws: accuracy, and for each
    grade the share of unlabelled rows that reach it and the share of these that is right.
    """
    ordered = sorted(records, key=lambda record: (_data(record), record["labels"]))
    curves: dict[str, list[Record]] = {}
    for (data, labels), group in groupby(ordered, key=lambda one: (_data(one), one["labels"])):
        draws = list(group)
        curves.setdefault(data, []).append(
            {
                "labels": labels,
                "draws": len(draws),
                "accuracy": round(fmean(one["accuracy"] for one in draws), 4),
                "grades": [_mean_grade(draws, place) for place in range(len(draws[0]["grades"]))],
            }
        )
    return {"curves": curves}


def _data(record: Record) -> str:
    return str(record["problem"]).split(",")[0]


def _mean_grade(draws: Sequence[Record], place: int) -> Record:
    """Return the figures of one grade: mean coverage, its extremes, and precision of all draws."""
    grades = [one["grades"][place] for one in draws]
    coverage = [grade["given"] / one["unlabeled"] for grade, one in zip(grades, draws, strict=True)]
    given = sum(grade["given"] for grade in grades)
    right = sum(grade["right"] for grade in grades)
    return {
        "grade": grades[0]["grade"],
        "coverage": round(fmean(coverage), 4),
        "lowest": round(min(coverage), 4),
        "highest": round(max(coverage), 4),
        "precision": round(right / given, 4) if given else None,
    }


def draw(summary: Record) -> Figure:
    """Return coverage at each grade against the number of labels, a panel for each data set, and
    the accuracy of all guesses as a dashed line.
    """
    curves = summary["curves"]
    figure = Figure(figsize=(5.2, 3.2 * len(curves) + 0.6), layout="constrained")
    for place, (data, points) in enumerate(curves.items()):
        axes = figure.add_subplot(len(curves), 1, place + 1)
        labels = [point["labels"] for point in points]
        for colour, number in zip(COLOURS, range(len(points[0]["grades"])), strict=False):
            grades = [point["grades"][number] for point in points]
            axes.plot(
                labels,
                [100 * grade["coverage"] for grade in grades],
                "o-",
                color=colour,
                label=f"{100 * grades[0]['grade']:g} % guaranteed",
            )
            axes.fill_between(
                labels,
                [100 * grade["lowest"] for grade in grades],
                [100 * grade["highest"] for grade in grades],
                color=colour,
                alpha=0.15,
                linewidth=0,
            )
        accuracy = [100 * point["accuracy"] for point in points]
        axes.plot(labels, accuracy, "--", color="#555555", label="right, of all guesses")
        axes.set_xscale("log", base=2)
        axes.set_xticks(labels, [str(n) for n in labels])
        axes.set_ylim(0, 100)
        dress(axes, data, "random labels", "% of the other images")
    lines, names = figure.axes[0].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=2, frameon=False)
    return figure


def label_counts(
    out: StudyFile,
    embeddings: Embeddings = None,
    data: DataNames = None,
    seeds: Seeds = "100:103",
    plot: Plot = None,
    jobs: Jobs = 1,
    as_json: Json = False,
) -> None:
    """Measure what 20 to 320 random labels guarantee.

    1 200 photographs of each data set; the labels of a draw with more labels
    contain those of a draw with fewer.

      python benchmarks/label_counts.py --embeddings waste=waste.parquet --out counts.json
    """
    sources: dict[str, Any] = {"embeddings": embeddings, "data": data}
    summary = study(
        PROBLEMS, meet, summarise, out=out, plot=plot, **sources, seeds=seeds, jobs=jobs
    )
    if plot is not None:
        draw(summary).savefig(plot, dpi=110)
    show(summary, lambda: _tables(summary), as_json=as_json)


def _tables(summary: Record) -> list[Table]:
    tables = []
    for data, points in summary["curves"].items():
        grades = [f"{100 * one['grade']:g} %" for one in points[0]["grades"]]
        table = new_table(f"{data}: share of the rest that reaches a grade", "labels", *grades)
        for point in points:
            cells = [f"{100 * one['coverage']:.0f} %" for one in point["grades"]]
            table.add_row(str(point["labels"]), *cells)
        tables.append(table)
    return tables


app = script(label_counts)
if __name__ == "__main__":
    app()
