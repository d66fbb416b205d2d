"""What ``semigpc bench field`` comes to: mean ranks of methods, and each of them with SemiGPC against without it.

Everything is counted twice: as runs are judged, which on cached features is by the GP itself where there is one, and by the
network's own answer, which add-ons with a head of their own give in its place.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from semigpc.bench.field import Field, refusals, rows_of
from semigpc.bench.ranks import paired, rank
from semigpc.recipes.field import PROBLEMS

Record = dict[str, Any]


def summarise(field: Field, out: Path) -> Record:
    """Everything but step times, from the runs that are finished."""
    problems: dict[str, Record] = {
        name: {"title": PROBLEMS[name].title, "rows": rows_of(field, name, out), "of_seeds": field.seeds}
        for name in field.problems
    }
    ranking, by_network = (rank(scores(problems, field, key), field.methods()) for key in ("mean", "by_network"))
    return {
        "seeds": field.seeds,
        "bases": list(field.bases),
        "problems": problems,
        "unfinished": field.runs() - sum(len(row["seeds"]) for one in problems.values() for row in one["rows"]),
        "refused": refusals(field),
        "ranks": ranking.plain(),
        "with_gp": gains(problems, field.bases, "mean"),
        "by_network": {"ranks": by_network.plain(), "with_gp": gains(problems, field.bases, "by_network")},
    }


def scores(problems: Mapping[str, Record], field: Field, key: str) -> dict[str, dict[str, float]]:
    """Block -> method -> mean balanced accuracy; a block is a problem with a base, and counts rows with all seeds."""
    found: dict[str, dict[str, float]] = {}
    for name, problem in problems.items():
        for base in field.bases:
            found[f"{name}, {base}"] = {
                row["method"]: row[key] for row in problem["rows"] if row["base"] == base and len(row["seeds"]) == field.seeds
            }
    return found


def gains(problems: Mapping[str, Record], bases: Sequence[str], key: str) -> Record:
    """With SemiGPC minus without, of the same problem, base, add-on and seeds: in all, and by each of the first three."""
    found: list[Record] = []
    for name, problem in problems.items():
        rows = {(row["base"], row["addon"], row["refiner"]): row for row in problem["rows"] if row["base"] in bases}
        for (base, addon, refiner), row in rows.items():
            without = rows.get((base, addon, "none"))
            if refiner == "gp" and without is not None and row["seeds"] == without["seeds"]:
                gain = row[key] - without[key]
                found.append({"problem": name, "base": base, "addon": addon, "gain": gain})
    return {"all": _gain(found)} | {f"by_{part}": _by(found, part) for part in ("problem", "base", "addon")}


def _by(found: Sequence[Record], part: str) -> dict[str, Record]:
    return {name: _gain([one for one in found if one[part] == name]) for name in dict.fromkeys(one[part] for one in found)}


def _gain(found: Sequence[Record]) -> Record:
    return paired([one["gain"] for one in found])
