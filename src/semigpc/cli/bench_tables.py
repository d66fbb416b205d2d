"""The table of ``semigpc bench update``."""

from rich.table import Table

from semigpc.bench.update import OURS, PEERS, Record


def update_table(record: Record) -> Table:
    """One row a method, fastest facts below."""
    title = f"One update, rows: {record['rows']}, N = {record['size']}, B = {record['batch']}, C = {record['classes']}"
    table = Table(title=title, title_justify="left", caption_justify="left")
    table.add_column("method")
    table.add_column("time", justify="right")
    table.add_column("time / ours", justify="right")
    table.add_column("repetitions", justify="right")
    for key, label in (OURS | PEERS).items():
        seconds = record.get(key)
        name = key.removesuffix("_s")
        if seconds is None:
            table.add_row(label, "not timed", "", "")
            continue
        ratio = float(seconds) / float(record["ours_s"] or 1)
        repetitions = str(record.get(f"repetitions_{name}") or record["steps"])
        style = "bold" if key == "ours_s" else ""
        table.add_row(label, f"{1e3 * float(seconds):.2f} ms", f"{ratio:.2f} x", repetitions, style=style)
    table.caption = (
        f"ours / floor {record['ratio_floor']:.2f} (median step {record['ratio_floor_median']:.2f}), "
        f"slowest / median step {record['slowest_share']:.1f}\n"
        f"filling the buffer at once {record['fill_s']:.1f} s, {record['ratio_fill']:.2f} x one Cholesky inverse\n"
        f"P takes {record['matrix_share']:.2f} x 4 N^2 bytes, an update {record['peak_share']:.3f} x more\n"
        f"error of the means {record['max_abs_error']:.1e}"
    )
    return table
