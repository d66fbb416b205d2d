"""How pages and commands write numbers and names. Nothing here needs matplotlib."""

import math
from collections.abc import Mapping

from semigpc.io.text import printable

Record = Mapping[str, object]  # a line or a result of a run
METRIC_NAMES = {"top1": "Top-1", "top5": "Top-5", "macro_f1": "Macro F1", "ece": "ECE"}
HEAD_NAMES = {"linear": "linear head", "gp": "GP head", "label": "label head"}
JUDGED = " (judged)"  # after the name of the head whose figures count, and which predicts
CHECKPOINTS = {"best": "the best on validation", "last": "the last"}
SCORE_NAMES = {
    "auroc_linear": "largest probability, linear head",
    "auroc_max_softmax": "largest probability, GP",
    "auroc_variance": "variance explained, GP",
    "auroc_expected": "expected probability, GP",
}
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
ABSENT = "\N{EN DASH}"  # in place of a number
MINUS = "\N{MINUS SIGN}"
PLUS_MINUS = "\N{PLUS-MINUS SIGN}"


def percent(share: float | None) -> str:
    """Write a share with one decimal, and a dash where there is none."""
    return ABSENT if share is None or not math.isfinite(share) else f"{100 * share:.1f}%"


def mean_and_spread(mean: float | None, std: float | None, n: int) -> tuple[str, str]:
    """Write a mean share and its deviation in percent; one seed has no deviation."""
    spread = f"{PLUS_MINUS} {100 * std:.1f}" if std is not None and n > 1 else ""
    return (ABSENT, "") if mean is None else (f"{100 * mean:.1f}", spread)


def points(difference: float | None) -> str:
    """Write a difference of shares in percentage points, with its sign."""
    if difference is None or not math.isfinite(difference):
        return ABSENT
    written = f"{100 * difference:+.1f}"
    return "0.0" if float(written) == 0 else written.replace("-", MINUS)


def count(value: float | None) -> str:
    """Write a whole number with a thousands separator."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:,.0f}"


def used_sentence(checkpoint: str, step: int, head: str) -> str:
    """Name the step and the head that commands use of a run."""
    chosen = f"the {HEAD_NAMES[head]} of step {count(step)}, {CHECKPOINTS[checkpoint]}"
    return f"predict, evaluate and export use {chosen}."


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


def no_new_labels(needed: Mapping[str, int | None], *, most: int = 12) -> str:
    """Return a sentence on the classes that get no new label, or nothing if there are none.

    For example "No new labels for: heron, egret. Label 6 more of each."

    Args:
        needed: how many more labels each class needs; None where that is not known.
        most: names that are listed.
    """
    if not needed:
        return ""
    names = list(needed)
    rest = f" and {len(names) - most} more classes" if len(names) > most else ""
    start = f"No new labels for: {', '.join(names[:most])}{rest}."
    numbers = sorted({number for number in needed.values() if number})
    if not numbers:
        return f"{start} Label more of {'it' if len(names) == 1 else 'each'}."
    many = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"{start} Label {many} more{' of each' if len(names) > 1 else ''}."


def metric_name(key: str) -> str:
    """Name a metric as a heading; one without a name of its own by its key."""
    return METRIC_NAMES.get(key, key.replace("_", " ").capitalize())


def number_of(record: Record, key: str) -> float | None:
    """Return a figure of a record or of its class groups; None if it is missing or not finite."""
    value = record.get(key)
    groups = record.get("groups")
    if key not in record and isinstance(groups, Mapping):
        value = groups.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def short(name: str, limit: int = 18) -> str:
    """Fit a class name to an axis: one line, cut in the middle, and never read as mathematics."""
    line = printable(" ".join(name.split()))
    if len(line) > limit:
        tail = limit // 3
        line = line[: limit - 1 - tail].rstrip() + ELLIPSIS + line[-tail:].lstrip()
    return line.replace("$", r"\$")


def counted(number: float, nouns: str) -> str:
    """Write a number with its noun, which is given in the plural: "1 given label", "2 images"."""
    one = nouns.removesuffix("es") if nouns.endswith("sses") else nouns.removesuffix("s")
    return f"{count(number)} {one if number == 1 else nouns}"


def flatten(value: object, prefix: str = "") -> list[tuple[str, str]]:
    """List the leaves of nested dictionaries as dotted keys with their values as text."""
    if isinstance(value, Mapping) and value:
        return [
            leaf
            for key, inner in value.items()
            for leaf in flatten(inner, f"{prefix}.{key}" if prefix else str(key))
        ]
    return [(prefix, "none" if value is None else str(value))]
