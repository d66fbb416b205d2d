"""The table of ``semigpc bench update``."""

from rich.table import Table

from semigpc.bench.update import OURS, PEERS, Record


def update_table(record: Record) -> Table:
    """One row a method, fastest facts below."""
    title = f"One update, N = {record['size']}, B = {record['batch']}, C = {record['classes']}"
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("method")
    table.add_column("time", justify="right")
    table.add_column("time / ours", justify="right")
    table.add_column("repetitions", justify="right")
    for key, label in (OURS | PEERS).items():
        seconds = record.get(key)
        name = key.removesuffix("_s")
        if seconds is None:
            table.add_row(label, "not installed", "", "")
            continue
        ratio = float(seconds) / float(record["ours_s"] or 1)
        repetitions = str(record.get(f"repetitions_{name}") or record["steps"])
        style = "bold" if key == "ours_s" else ""
        table.add_row(label, f"{1e3 * float(seconds):.2f} ms", f"{ratio:.2f} x", repetitions, style=style)
    table.caption = (
        f"ours / floor {record['ratio_floor']:.2f} (median step {record['ratio_floor_median']:.2f}), "
        f"refining {record['ratio_floor_refined']:.2f}\n"
        f"extra memory {100 * float(record['peak_share'] or 0):.1f} % of N^2\n"
        f"error of the means {record['max_abs_error']:.1e}, refining {record['max_abs_error_refined']:.1e}"
    )
    return table
