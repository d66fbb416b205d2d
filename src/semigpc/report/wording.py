"""How a page writes numbers and names."""

import math
from collections.abc import Mapping
from typing import Any

from semigpc.text import CLASS_GROUPS, printable

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
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def metric_name(key: str) -> str:
    """Name a metric as a heading; an unknown one by its key."""
    return METRICS.get(key, key.replace("_", " ").capitalize())


def number_of(entry: Mapping[str, Any], key: str) -> float | None:
    """Return a metric of an evaluation, looking among the class groups too; None where it is null, missing or not finite."""
    value = (entry.get("groups") or {}).get(key) if key in CLASS_GROUPS and key not in entry else entry.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


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
