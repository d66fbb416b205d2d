"""How a page writes numbers and names."""

import math
from collections.abc import Mapping
from typing import Any

from semigpc.io.text import CLASS_GROUPS, count, printable

METRICS = {
    "top1": "Top-1",
    "top5": "Top-5",
    "macro_f1": "Macro F1",
    "ece": "ECE",
}  # others are named by their key
HEAD_NAMES = {"linear": "linear head", "gp": "GP head"}
JUDGED = " (judged)"  # after the name of the head whose figures count, and which predicts
SCORE_NAMES = {
    "auroc_linear": "largest probability, linear head",
    "auroc_max_softmax": "largest probability, GP",
    "auroc_variance": "variance explained, GP",
    "auroc_expected": "expected probability, GP",
}
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


def metric_name(key: str) -> str:
    """Name a metric as a heading."""
    return METRICS.get(key, key.replace("_", " ").capitalize())


def number_of(entry: Mapping[str, Any], key: str) -> float | None:
    """Return a metric of an evaluation, looking among the class groups too; None where it is null,
    missing or not finite.
    """
    value = (
        (entry.get("groups") or {}).get(key)
        if key in CLASS_GROUPS and key not in entry
        else entry.get(key)
    )
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def short(name: str, limit: int = 18) -> str:
    """Fit a class name to an axis: one line, cut in the middle if long, and never read as
    mathematics by matplotlib.
    """
    line = printable(" ".join(name.split()))
    if len(line) > limit:
        tail = limit // 3
        line = line[: limit - 1 - tail].rstrip() + ELLIPSIS + line[-tail:].lstrip()
    return line.replace("$", r"\$")


def counted(number: float, nouns: str) -> str:
    """Write a number with its noun, which is given in the plural: "1 given label", "2 images"."""
    one = nouns.removesuffix("es") if nouns.endswith("sses") else nouns.removesuffix("s")
    return f"{count(number)} {one if number == 1 else nouns}"


def run_title(config: Mapping[str, Any], label: str | None = None) -> str:
    """Name a run by its method, data and seed, as far as they are known; ``label`` is the method's
    name for people.
    """
    names = {
        part: str((config.get(part) or {}).get("name", ""))
        for part in ("algorithm", "addon", "refiner", "data")
    }
    parts = [
        names[part] for part in ("algorithm", "addon", "refiner") if names[part] not in ("", "none")
    ]
    on = f" on {names['data']}" if names["data"] else ""
    return (
        (label or " + ".join(parts) or "Run")
        + on
        + (f", seed {config['seed']}" if "seed" in config else "")
    )


def flatten(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    """List the leaves of nested dictionaries as dotted keys with their values as text."""
    if isinstance(value, Mapping) and value:
        return [
            leaf
            for key, inner in value.items()
            for leaf in flatten(inner, f"{prefix}.{key}" if prefix else str(key))
        ]
    return [(prefix, "none" if value is None else str(value))]
