"""What does SemiGPC add to the algorithms and add-ons of the field, on long-tailed problems in runs
of seconds each?

Runs what benchmarks/study.py defines, and counts: 29 methods on 21 problems. Figures at this scale
compare methods with each other under one short budget; they say nothing of published ones.
"""

import json
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.progress import Progress

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.ranks import draw_study, rank, sign_test
from benchmarks.study import (
    BASES,
    FINETUNED,
    GRID,
    LABELS_ONLY,
    METHODS,
    PROBLEMS,
    SEEDS,
    STEPS,
    TITLES,
    TUNING,
    Record,
    Setting,
    Study,
    StudyProblem,
    run_missing,
)
from benchmarks.tables import WIDTH, Jobs, Json, Plot, check_folders, new_table, script
from semigpc.io.errors import SettingsError
from semigpc.io.text import unknown_name
from semigpc.training.metrics import CLASS_GROUPS

POINT = 0.01  # of balanced accuracy
EVERY = "".join(get_args(Setting))  # all settings together, as a key of the summary
Names = list[str] | None
Score = Callable[[Record], float]


# Counting -----------------------------------------------------------------------------------------


def by_linear(record: Record) -> float:
    """Return the balanced accuracy by the linear head."""
    return float(record["heads"]["linear"]["balanced_accuracy"])


def by_chosen(record: Record) -> float:
    """Return the balanced accuracy by the head that the run chose."""
    return float(record["heads"][record["chosen_head"]]["balanced_accuracy"])


def by_better(record: Record) -> float:
    """Return the balanced accuracy by the better head."""
    return float(max(head["balanced_accuracy"] for head in record["heads"].values()))


def of_group(group: str, record: Record) -> float:
    """Return the balanced accuracy of a third of the classes, by the head that the run chose."""
    return float(record["heads"][record["chosen_head"]][group])


SCORES: dict[str, Score] = {"linear": by_linear, "chosen": by_chosen, "better": by_better}


Gains = list[tuple[StudyProblem, float]]


def gains(
    records: Sequence[Record], score: Score, *, addons: bool = False, against: str = "none"
) -> Gains:
    """Return the gain of each run with SemiGPC over its pair with another refiner: same problem,
    base, add-on and seed.

    Args:
        records: of all runs. score: of a run. addons: of methods with an add-on, or without.
            against: the other refiner.
    """
    found = {(one["problem"], one["method"], one["seed"]): one for one in records}
    pairs = []
    for (problem, name, seed), record in found.items():
        method = METHODS[name]
        if method.refiner == "gp" and (method.addon != "none") == addons:
            other = found.get((problem, replace(method, refiner=against).name, seed))
            pairs += [] if other is None else [(PROBLEMS[problem], score(record) - score(other))]
    return pairs


def summarise(records: Sequence[Record]) -> Record:
    """Return the figures that the study is judged by, each None or empty where its runs are not
    there yet.
    """
    plain = {name: gains(records, score) for name, score in SCORES.items()}
    summary: Record = {
        "runs": len(records),
        "gain": {name: _by_setting(pairs) for name, pairs in plain.items()},
        "gain_on_addons": {
            name: _by_setting(gains(records, score, addons=True)) for name, score in SCORES.items()
        },
        "gain_by_problem": {
            by: {
                name: _mean(gain for one, gain in pairs if one == problem)
                for name, problem in PROBLEMS.items()
            }
            for by, pairs in plain.items()
        },
        "gain_over_fixed": {
            name: _by_data(gains(records, score, against="gp_fixed"))
            for name, score in SCORES.items()
        },
        "gain_by_group": {
            group: _by_setting(gains(records, partial(of_group, group))) for group in CLASS_GROUPS
        },
        "over_labels_only": _over_labels_only(records),
        "ranks": {
            name: rank(_scores(records, score), _methods(records)).plain()
            for name, score in SCORES.items()
        },
    }
    ours = [record for record in records if METHODS[record["method"]].refiner == "gp"]
    acting = [
        one for one in ours if "coverage" in one and METHODS[one["method"]].base != "remixmatch"
    ]  # it accepts everything
    bases = [
        by_linear(one) - one["halfway"]["linear"]
        for one in records
        if METHODS[one["method"]].refiner == "none"
    ]
    summary["head_within_a_point"] = _mean(by_better(one) - by_chosen(one) <= POINT for one in ours)
    summary["coverage"] = {
        "least": min((one["least_coverage"] for one in acting), default=None),
        "most": max((one["most_coverage"] for one in acting), default=None),
        "late": _mean(one["coverage"] for one in acting),
    }
    summary["ece"] = _mean(one["ece"] for one in ours)
    summary["second_half_of_bases"] = _mean(bases)
    return summary


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return float(mean(found)) if found else None


def _by_setting(pairs: Gains) -> Record:
    return {
        key: sign_test([gain for problem, gain in pairs if problem.setting in key])
        for key in (*get_args(Setting), EVERY)
    }


def _by_data(pairs: Gains) -> Record:
    return {
        data: sign_test([gain for problem, gain in pairs if problem.data == data]) for data in STEPS
    }


def _over_labels_only(records: Sequence[Record]) -> dict[str, float | None]:
    """Return by problem the mean of the bases with the GP, each by its better head, over labels
    only.
    """
    labels = {
        (one["problem"], one["seed"]): by_linear(one)
        for one in records
        if one["method"] == LABELS_ONLY
    }
    names = [f"{base}+gp" for base in BASES]
    return {
        name: _mean(
            by_better(one) - labels[name, one["seed"]]
            for one in records
            if one["problem"] == name and one["method"] in names and (name, one["seed"]) in labels
        )
        for name in PROBLEMS
    }


def _methods(records: Sequence[Record]) -> list[str]:
    there = {record["method"] for record in records}
    return [name for name in METHODS if name in there]


def _scores(records: Sequence[Record], score: Score) -> dict[str, dict[str, float]]:
    """Problem -> method -> mean over the seeds that all of its methods have."""
    found: dict[str, dict[str, dict[int, float]]] = {}
    for one in records:
        found.setdefault(one["problem"], {}).setdefault(one["method"], {})[one["seed"]] = score(one)
    table: dict[str, dict[str, float]] = {}
    for problem, methods in found.items():
        seeds = set.intersection(*(set(values) for values in methods.values()))
        table[problem] = (
            {name: mean(values[seed] for seed in seeds) for name, values in methods.items()}
            if seeds
            else {}
        )
    return table


# Tables -------------------------------------------------------------------------------------------

Rows = list[list[str]]  # the first has the headings


def percent(value: float | None, *, sign: bool = False) -> str:
    """Return a share in percent or points, "-" where there is none."""
    return "-" if value is None else f"{100 * value:{'+' if sign else ''}.1f}"


def problem_rows(records: Sequence[Record], summary: Mapping[str, Any]) -> Rows:
    """Return one row per problem: means over bases and seeds, and the gain of SemiGPC over its
    base.
    """
    rows = [
        [
            "",
            "labels only",
            "base",
            "similarity",
            "fixed GP",
            "SemiGPC",
            "by chosen head",
            "gain",
            "chosen head's",
        ]
    ]
    for name, problem in PROBLEMS.items():
        ours = [
            one
            for one in records
            if one["problem"] == name and METHODS[one["method"]].addon == "none"
        ]
        if not ours:
            continue

        def score(refiner: str, by: Score, ours: Sequence[Record] = ours) -> str:
            kind = [
                one
                for one in ours
                if METHODS[one["method"]].refiner == refiner and one["method"] != LABELS_ONLY
            ]
            return percent(_mean(map(by, kind)))

        labels = percent(_mean(by_linear(one) for one in ours if one["method"] == LABELS_ONLY))
        linear = [score(refiner, by_linear) for refiner in ("none", "similarity", "gp_fixed", "gp")]
        gain = [
            percent(summary["gain_by_problem"][by][name], sign=True) for by in ("linear", "chosen")
        ]
        rows.append([problem.title, labels, *linear, score("gp", by_chosen), *gain])
    return rows


def method_rows(records: Sequence[Record], summary: Mapping[str, Any]) -> Rows:
    """Return one row per method, by mean rank: means over problems and seeds, by the chosen head
    and by the linear one.
    """
    settings = get_args(Setting)
    rows = [
        [
            "",
            "rank",
            *settings,
            "few",
            "rank, linear",
            *settings,
            "few",
            "accepted",
            "right",
            "foreign",
            "calibration",
        ]
    ]
    ranks = {name: one["mean_ranks"] for name, one in summary["ranks"].items()}
    for name in ranks["chosen"] or _methods(records):
        ours = [one for one in records if one["method"] == name]
        row = [METHODS[name].label]
        for by, head in (
            ("chosen", lambda one: one["chosen_head"]),
            ("linear", lambda _: "linear"),
        ):
            row.append(f"{ranks[by][name]:.1f}" if name in ranks[by] else "-")
            for setting in get_args(Setting):
                row.append(
                    percent(
                        _mean(
                            SCORES[by](one)
                            for one in ours
                            if PROBLEMS[one["problem"]].setting == setting
                        )
                    )
                )
            row.append(percent(_mean(one["heads"][head(one)]["few"] for one in ours)))
        for figure in ("coverage", "precision", "foreign_coverage", "calibration_error"):
            row.append(percent(_mean(one[figure] for one in ours if one.get(figure) is not None)))
        rows.append(row)
    return rows


def grid_rows(records: Sequence[Record]) -> Rows:
    """Return one row per problem: FixMatch, SemiGPC, and the best of the fixed pairs of scales, by
    the linear head.
    """
    rows = [
        [
            "",
            "FixMatch",
            "SemiGPC",
            "best of 16",
            "l^2",
            "lambda",
            "behind it",
            "mean of 16",
            "worst",
            "coverage",
        ]
    ]
    for name, problem in PROBLEMS.items():
        ours = [one for one in records if one["problem"] == name]
        scores = {
            method: _mean(by_linear(one) for one in ours if one["method"] == method)
            for method in _methods(ours)
        }
        pairs = {
            refiner: score
            for refiner in GRID
            if (score := scores.get(f"fixmatch+{refiner}")) is not None
        }
        base = scores.get("fixmatch")
        tuned = scores.get("fixmatch+gp")
        if not pairs or base is None or tuned is None:
            continue
        best = max(pairs, key=lambda refiner: pairs[refiner])
        found = [one for one in ours if one["method"] == "fixmatch+gp"]
        least = min(one["least_coverage"] for one in found)
        most = max(one["most_coverage"] for one in found)
        coverage = f"{percent(least)} to {percent(most)}"
        scales = [f"{scale:g}" for scale in GRID[best]]
        others = [
            percent(pairs[best] - tuned, sign=True),
            percent(mean(pairs.values())),
            percent(min(pairs.values())),
            coverage,
        ]
        rows.append(
            [problem.title, percent(base), percent(tuned), percent(pairs[best]), *scales, *others]
        )
    return rows


def claim_rows(summary: Mapping[str, Any]) -> Rows:
    """Return one row per claim that the study can decide."""
    settings = get_args(Setting)
    rows = [["", *(f"setting {setting}" for setting in settings), "all", "sign test"]]
    labels = {"linear": "linear head", "chosen": "chosen head", "better": "better head"}
    gained = {f"gain over the base, {labels[by]}": one for by, one in summary["gain"].items()}
    gained |= {
        f"on top of add-ons, {labels[by]}": one
        for by, one in summary["gain_on_addons"].items()
        if by != "better"
    }
    gained |= {
        f"gain for classes with {group} labels, chosen head": one
        for group, one in summary["gain_by_group"].items()
    }
    for title, one in gained.items():
        test = (
            "-"
            if one[EVERY]["p_value"] is None
            else f"{one[EVERY]['wins']}:{one[EVERY]['losses']}, p {one[EVERY]['p_value']:.1g}"
        )
        means = [percent(one[key]["mean_gain"], sign=True) for key in (*settings, EVERY)]
        rows.append([title, *means, test])
    return rows


def note_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the rest of the claims, one per line."""
    coverage = summary["coverage"]
    above = {k: v for k, v in summary["over_labels_only"].items() if v is not None}
    below = {
        name: gain
        for name, gain in summary["gain_by_problem"]["linear"].items()
        if gain is not None
    }
    lines = [f"Runs: {summary['runs']}."]
    if below:
        worst = min(below, key=lambda name: below[name])
        gain = percent(below[worst], sign=True)
        lines.append(f"Least gain of a problem, linear head: {gain}, {PROBLEMS[worst].title}.")
    if above:
        worst = min(above, key=lambda name: above[name])
        wins = sum(value > 0 for value in above.values())
        lines.append(
            f"Above labels only by the better head on {wins} of {len(above)} problems, "
            f"least {percent(above[worst], sign=True)}, {PROBLEMS[worst].title}."
        )
    for by in ("linear", "chosen"):
        fixed = [
            f"{TITLES[data]} {percent(one['mean_gain'], sign=True)}"
            for data, one in summary["gain_over_fixed"][by].items()
            if one["mean_gain"] is not None
        ]
        lines.append(f"Self-tuned over the paper's fixed values, {by} head: {', '.join(fixed)}.")
    lines += [
        "The chosen head is within a point of the better one in "
        f"{percent(summary['head_within_a_point'])} % of runs.",
        f"Coverage of SemiGPC after the warm-up: {percent(coverage['least'])} to "
        f"{percent(coverage['most'])} %, late in a run {percent(coverage['late'])} % on average.",
        f"Calibration error of what SemiGPC's runs report: {percent(summary['ece'])} points.",
        f"Methods without a refiner gain {percent(summary['second_half_of_bases'], sign=True)} "
        "in the second half of a run.",
    ]
    if difference := summary["ranks"]["chosen"]["critical_difference"]:
        lines.append(
            f"Mean ranks closer than {difference:.1f} cannot be told apart (Nemenyi, 5 %)."
        )
    return lines


def markdown(rows: Rows) -> str:
    """Return a table of Markdown."""
    head, *body = rows
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def field(
    out: Annotated[
        Path,
        typer.Option(
            "--out", metavar="DIR", help="Folder of study.json; what it holds is not run again."
        ),
    ],
    mnist: Annotated[
        Path | None,
        typer.Option(metavar="PATH", exists=True, help="MNIST, .npz or folder of idx files."),
    ] = None,
    cifar: Annotated[
        Path | None, typer.Option(metavar="PATH", exists=True, help="CIFAR-10, a folder or a .zip.")
    ] = None,
    problem: Annotated[
        Names,
        typer.Option(metavar="NAME", help="Such as mnist_a50 or digits_b4; repeat for several."),
    ] = None,
    method: Annotated[
        Names, typer.Option(metavar="NAME", help="Such as fixmatch+cossl+gp; repeat for several.")
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="0 to 4 without it; from 100 on, judged on validation."),
    ] = None,
    grid: Annotated[
        bool,
        typer.Option(
            "--grid",
            help="Run FixMatch with SemiGPC and with 16 pairs of fixed l and lambda instead.",
        ),
    ] = False,
    times: Annotated[
        float,
        typer.Option(
            metavar="X", min=0.03, help="Make every run so many times longer, or shorter."
        ),
    ] = 1.0,
    jobs: Jobs = 1,
    only_summary: Annotated[
        bool, typer.Option("--only-summary", help="Run nothing more; show what is finished.")
    ] = False,
    plot: Plot = None,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the tables as Markdown.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare methods of the field with and without SemiGPC, on the same splits and seeds.

    Problems: digits and MNIST from scratch, CIFAR-10 as features of a frozen
    network; a50 and a100 have long-tailed labels of that ratio, b4 and b10 so
    many of each class and unlabelled images with a ratio of 50; c50 has
    long-tailed labels and equally many unlabelled images of each class, r50 an
    unlabelled tail the other way round, and o10 ten labels of each of seven
    classes and unlabelled images of three others too. Without --mnist
    or --cifar those problems are left out. finetuned_b4 and _b10, which train
    all of the pre-trained network at 64 px in minutes, are run if asked for.

    The figures of all runs are in study.json in the output folder, written
    after each run. What was stopped goes on where it was: give the command
    again. A study.json of another machine can be continued in the same way.

      python benchmarks/field.py --mnist mnist.npz --cifar cifar10.zip --out study --jobs 2
    """
    check_folders(plot=plot)
    roots = {
        name: path for name, path in (("mnist", mnist), ("cifar10", cifar)) if path is not None
    }
    if grid:
        method = ["fixmatch", "fixmatch+gp", *(f"fixmatch+{refiner}" for refiner in GRID)]
        seed = seed or [TUNING]
    study = _chosen(problem, method, seed, out, roots, times)
    words = (
        Path(word).name if "/" in word else word for word in sys.argv[1:]
    )  # of no use elsewhere: where the files lie
    command = shlex.join(["python", "benchmarks/field.py", *words])
    runs = study.runs()
    if only_summary:
        records = study.finished()
    else:
        out.mkdir(parents=True, exist_ok=True)
        errors = Console(stderr=True)
        with Progress(console=errors, disable=not errors.is_terminal) as bar:
            task = bar.add_task("runs", total=len(runs))

            def advance(records: list[Record], text: str) -> None:
                bar.update(task, completed=len(records) or None, description=text)
                if records:
                    study.write(records, {}, command)

            records = run_missing(study, jobs, advance)
    summary = summarise(records)
    study.write(records, summary, command)
    if plot is not None:
        titles = {name: one.title for name, one in PROBLEMS.items()}
        labels = {name: one.label for name, one in METHODS.items()}
        draw_study(summary, plot, titles=titles, labels=labels)
    if as_json:
        typer.echo(json.dumps(summary, indent=2))
        return
    console = Console(width=None if Console().is_terminal else WIDTH)
    if grid:
        title = "Scales of SemiGPC on FixMatch, balanced accuracy by the linear head"
        tables = {title: grid_rows(records)}
    else:
        by_problem = "Balanced accuracy in percent, means over bases and seeds, by the linear head"
        by_method = "Methods by mean rank, by the chosen head and by the linear one"
        tables = {
            by_problem: problem_rows(records, summary),
            by_method: method_rows(records, summary),
            "What SemiGPC adds, in points of balanced accuracy": claim_rows(summary),
        }
    for title, rows in tables.items():
        if as_markdown:
            typer.echo(f"{title}:\n\n{markdown(rows)}")
            continue
        table = new_table(title, *rows[0])
        for row in rows[1:]:
            table.add_row(*row)
        console.print(table)
    for line in () if grid else note_lines(summary):
        typer.echo(f"- {line}" if as_markdown else line)


def _chosen(
    problem: Names,
    method: Names,
    seed: list[int] | None,
    out: Path,
    roots: Mapping[str, Path],
    times: float,
) -> Study:
    """Return what is to be run, with every name checked before anything is."""
    at_hand = [name for name, one in PROBLEMS.items() if one.source in ("digits", *roots)]
    for kind, names, known in (("problem", problem, PROBLEMS), ("method", method, METHODS)):
        for name in names or ():
            if name not in known:
                raise SettingsError(unknown_name(kind, name, known))
    for name in problem or ():
        if name not in at_hand:
            option = "--mnist" if PROBLEMS[name].source == "mnist" else "--cifar"
            raise SettingsError(
                f"{name} is made of images: give the path of their data by {option}."
            )
    return Study(
        problems=tuple(
            name for name in at_hand if (name in problem if problem else name not in FINETUNED)
        ),
        methods=tuple(
            name
            for name, one in METHODS.items()
            if (name in method if method else one.refiner not in GRID)
        ),
        seeds=tuple(dict.fromkeys(seed or SEEDS)),
        out=out,
        roots={name: path.resolve() for name, path in roots.items()},
        times=times,
    )


app = script(field)
if __name__ == "__main__":
    app()
