"""How a page writes numbers and names."""

import math
from collections.abc import Mapping
from typing import Any

from semigpc.text import printable

METRICS = {
    "balanced_accuracy": "Balanced accuracy",
    "top1": "Top-1",
    "top5": "Top-5",
    "many": "Many",
    "medium": "Medium",
    "few": "Few",
    "macro_precision": "Macro precision",
    "macro_recall": "Macro recall",
    "macro_f1": "Macro F1",
    "ece": "ECE",
}
GROUPS = ("many", "medium", "few")
ALGORITHMS = {
    "supervised": "Supervised",
    "fixmatch": "FixMatch",
    "freematch": "FreeMatch",
    "remixmatch": "ReMixMatch",
    "simmatch": "SimMatch",
    "comatch": "CoMatch",
    "npmatch": "NP-Match",
}
REFINERS = {"gp": "SemiGPC", "similarity": "similarity"}
HEAD_NAMES = {"linear": "linear head", "gp": "GP head"}
SCORE_NAMES = {
    "auroc_linear": "largest probability, linear head",
    "auroc_max_softmax": "largest probability, GP",
    "auroc_variance": "variance explained, GP",
    "auroc_expected": "expected probability, GP",
}
ABSENT = "\N{EN DASH}"
MINUS, PLUS_MINUS, ELLIPSIS = "\N{MINUS SIGN}", "\N{PLUS-MINUS SIGN}", "\N{HORIZONTAL ELLIPSIS}"


def metric_name(key: str) -> str:
    """Name a metric as a heading; an unknown one by its key."""
    return METRICS.get(key, key.replace("_", " ").capitalize())


def number_of(entry: Mapping[str, Any], key: str) -> float | None:
    """Return a metric of an evaluation, looking among the class groups too; None where it is null, missing or not finite."""
    value = (entry.get("groups") or {}).get(key) if key in GROUPS and key not in entry else entry.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def percent(share: float | None) -> str:
    """Write a share with one decimal, and a dash where there is none."""
    return ABSENT if share is None or not math.isfinite(share) else f"{100 * share:.1f}%"


def mean_and_spread(mean: float | None, std: float | None, n: int) -> tuple[str, str]:
    """Write a mean share and its deviation in percent, without the sign; one seed has no deviation."""
    spread = f"{PLUS_MINUS} {100 * std:.1f}" if std is not None and n > 1 else ""
    return (ABSENT, "") if mean is None else (f"{100 * mean:.1f}", spread)


def points(difference: float | None) -> str:
    """Write a difference of shares in percentage points, with its sign."""
    if difference is None or not math.isfinite(difference):
        return ABSENT
    written = f"{100 * difference:+.1f}"
    return "0.0" if float(written) == 0 else written.replace("-", MINUS)


def count(value: float | None) -> str:
    """Write a whole number with thousands set apart."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:,.0f}"


def duration(seconds: float | None) -> str:
    """Write a time in its two largest units."""
    if seconds is None or not math.isfinite(seconds):
        return ABSENT
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"


def short(name: str, limit: int = 18) -> str:
    """Fit a class name to an axis: one line, cut in the middle if long, and never read as mathematics by matplotlib."""
    line = printable(" ".join(name.split()))
    if len(line) > limit:
        tail = limit // 3
        line = line[: limit - 1 - tail].rstrip() + ELLIPSIS + line[-tail:].lstrip()
    return line.replace("$", r"\$")


def run_title(config: Mapping[str, Any]) -> str:
    """Name a run by its algorithm, add-on, refiner, data and seed, as far as they are known."""
    parts = {key: str((config.get(key) or {}).get("name", "")) for key in ("algorithm", "addon", "refiner", "data")}
    method = ALGORITHMS.get(parts["algorithm"], parts["algorithm"]) or "Run"
    if parts["addon"] not in ("", "none"):
        method += f" + {parts['addon']}"
    if parts["refiner"] not in ("", "none"):
        method += f" + {REFINERS.get(parts['refiner'], parts['refiner'])}"
    on = f" on {parts['data']}" if parts["data"] else ""
    return method + on + (f", seed {config['seed']}" if "seed" in config else "")


def flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """List the leaves of nested dictionaries as dotted keys with their values as text."""
    if isinstance(value, Mapping) and value:
        return [leaf for key, inner in value.items() for leaf in flatten(inner, f"{prefix}.{key}" if prefix else str(key))]
    return [(prefix, "none" if value is None else str(value))]
