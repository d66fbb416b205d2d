"""Tables of a reproduction: ours beside the published, what SemiGPC adds, and what every cell would cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from semigpc.recipes.cost import ASSUMED_RATES
from semigpc.recipes.paper import PaperTable, Scale

QUOTED = "quoted"
BALANCED = (
    "Top-1 accuracy in percent, mean and standard deviation over seeds. All test sets are balanced, so that balanced accuracy "
    "is the same number."
)
OPTIMISTIC = (
    "* of all evaluations the one that was best on the test images themselves: no honest figure, but maybe the paper's, "
    "which follows USB and does not say. Differences and verdicts are those of the last step."
)
BANDS = (
    "A figure agrees within 2 printed deviations or 0.5 points, whichever is more; a gain is reproduced by its sign and half "
    "of its size on the mean of three seeds, on CIFAR-10-LT in setting B of five."
)
SMALLER = (
    "Scale cpu: these figures are NOT comparable with the published ones, since network and images are smaller and training "
    "is shorter. Differences are printed, verdicts are not."
)
BEYOND = "SemiGPC has a class prior here (refiner.class_prior=frequency), which the paper's method has not."

GP_HEAD = ", GP head"
HEADS = (
    "GP head: the prediction judged is the GP's own, of the base algorithm it is the linear layer's; what SemiGPC adds to the "
    "linear layer stands beside it."
)


def results_table(figures: Mapping[str, Any]) -> Table:
    """Ours beside the published, a section for each group."""
    count = len(figures["seeds"])
    table = _table(f"{figures['title']} ({figures['scale']} scale)")
    table.add_column("", no_wrap=True)
    seeds = f"{count} seed{'s' if count > 1 else ''}"
    for heading in (f"ours, last ({seeds})", "best on test*", "published", "difference", "agrees?"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, group in figures["groups"].items():
        table.add_row(f"[bold]{name}[/bold]", *[""] * 5)
        for cell in group["cells"].values():
            table.add_row(f"  {cell['label']}{GP_HEAD if cell.get('head') == 'gp' else ''}", *_row(cell, spread=count > 1))
        table.add_section()
    return table


def _row(cell: Mapping[str, Any], *, spread: bool) -> list[str]:
    published = cell["published"]
    printed = "-" if published is None else _figure(published["top1"], published["std"])
    if "last" not in cell:
        return ["", "", printed, "", QUOTED]
    last, best = cell["last"], cell["best_on_test"]
    verdict = {True: "yes", False: "no", None: "-"}[last.get("agrees")]
    if last.get("agrees") is False and best["agrees"]:
        verdict = "no, best* does"
    difference = f"{last['difference']:+.2f}" if "difference" in last else "-"
    return [*(_figure(one["mean"], one["std"] if spread else None) for one in (last, best)), printed, difference, verdict]


def _figure(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def gains_table(figures: Mapping[str, Any]) -> Table:
    """What a refiner adds to its base, at the last step."""
    table = _table("What the refiner adds, in points at the last step")
    table.add_column("", no_wrap=True)
    for heading in ("ours", "by the linear layer", "published", "claim"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, group in figures["groups"].items():
        for gain in group["gains"]:
            ours = f"{gain['mean']:+.2f}" + (f" ± {gain['std']:.2f}" if len(figures["seeds"]) > 1 else "")
            linear = "same" if gain["linear"] is None else f"{gain['linear']:+.2f}"
            table.add_row(f"{name}: {gain['label']}", ours, linear, _printed(gain), gain["claim"] or "-")
    return table


def _printed(gain: Mapping[str, Any]) -> str:
    if gain["published"] is None:
        return "-"
    meant = f" (meant: {gain['claimed']:+.2f})" if gain["claimed"] != gain["published"] else ""
    return f"{gain['published']:+.2f}{meant}"


def remarks(figures: Mapping[str, Any], table: PaperTable) -> list[str]:
    """What has to be known to read the tables."""
    lines = [BALANCED, OPTIMISTIC]
    if figures["scale"] == "cpu":
        lines.append(SMALLER)
        lines += [BEYOND] if _has_class_prior(figures) else []
    elif not figures["changed"]:
        lines.append(BANDS)
    if figures["changed"]:
        lines.append(f"Settings were changed ({', '.join(figures['changed'])}), so nothing is held against the paper.")
    if any(cell.get("head") == "gp" for group in figures["groups"].values() for cell in group["cells"].values()):
        lines.append(HEADS)
    lines += [f"In print: {note}" for note in table.notes]
    about: dict[tuple[str, str], list[str]] = {}
    for name, group in figures["groups"].items():
        for cell in group["cells"].values():
            if cell["published"] and cell["published"]["note"]:
                about.setdefault((cell["label"], cell["published"]["note"]), []).append(name)
    return lines + [f"{', '.join(names)}: {label}: {note}" for (label, note), names in about.items()]


def _has_class_prior(figures: Mapping[str, Any]) -> bool:
    cells = [cell for group in figures["groups"].values() for cell in group["cells"].values() if "config" in cell]
    return any(cell["config"]["refiner"].get("class_prior") == "frequency" for cell in cells)


# Costs -------------------------------------------------------------------------------------------------------------


def price_table(prices: Mapping[str, Any]) -> Table:
    """One row a cell."""
    table = _table(f"{prices['table']}: {prices['title']}")
    table.add_column("cell", no_wrap=True)
    for heading in ("steps", "images", "passes", "FLOP", "time", "GP"):
        table.add_column(heading, justify="right", no_wrap=True)
    for key, cell in prices["cells"].items():
        table.add_row(
            key,
            str(cell["steps"]),
            f"{cell['images_with_gradient']} + {cell['images_without']}",
            _scaled(cell["embedded"] or cell["passes"]),
            _scaled(cell["flop"]),
            _time(cell["hours"]),
            f"{_scaled(cell['gp_bytes'])}B" if cell["gp_bytes"] else "-",
        )
    table.add_section()
    table.add_row(f"all of it, {prices['seeds']} seeds", "", "", "", _scaled(prices["flop"]), _time(prices["hours"]), "")
    return table


def price_remarks(prices: Sequence[Mapping[str, Any]], scale: Scale) -> list[str]:
    """What the numbers mean, and their sum."""
    rate = ASSUMED_RATES[scale]
    machine = "one GPU" if scale == "paper" else "one CPU"
    hours = sum(table["hours"] for table in prices)
    cells = [cell for table in prices for cell in table["cells"].values()]
    networks = {cell["network"]: cell["forward_flop"] for cell in cells}
    forward = ", ".join(f"{name} {_scaled(flop)}FLOP" for name, flop in networks.items())
    lines = [
        "images: a step's, with and without a gradient. passes: images through the network in one run, evaluations "
        "included. FLOP: operations of one run, three times the forward pass for images with a gradient. One image forward "
        f"takes: {forward}.",
        f"time: of one run at {_scaled(rate)}FLOP/s of {machine}. That rate is an ASSUMPTION about float32 in small batches, "
        "not a measurement. The GP's own updates and the loading of images come on top.",
        "GP: memory of N^2 float32 numbers, of which the engine keeps half.",
        f"In all {_time(hours)}, that is {hours / 24:.3g} days.",
    ]
    if any(cell["embedded"] for cell in cells):
        lines[0] = (
            "images: features a step, with and without a gradient. passes: views of images through the frozen network, "
            "which sees each once; all cells of a group share them, and the sum counts them once a seed. FLOP: "
            f"operations of one run, if no features are there yet. One image forward takes: {forward}."
        )
    return lines


def _scaled(number: float) -> str:
    """Three digits and a prefix, as in 5.92 M."""
    for power, prefix in ((18, "E"), (15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if number >= 10**power:
            return f"{number / 10**power:.3g} {prefix}"
    return f"{number:.3g} "


def _time(hours: float) -> str:
    return f"{hours:.0f} h" if hours >= 100 else f"{hours:.3g} h" if hours >= 1 else f"{60 * hours:.2g} min"


def _table(title: str) -> Table:
    return Table(title=title, box=box.SIMPLE, padding=(0, 1), title_style="bold", title_justify="left")
