"""``semigpc toy``: the paper's toy problem, drawn and tabulated."""

from pathlib import Path
from typing import Annotated

import typer

from semigpc.cli.failures import reported


@reported("toy")
def toy(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder for the two images; made if it is missing.")] = Path(
        "toy"
    ),
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**31, help="Which draw of the points.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the figures behind the images as JSON on standard output.")
    ] = False,
) -> None:
    """Draw the paper's toy problem, which shows why labels are spread with a GP.

    Four classes sit at the corners of a square, with 16, 32, 64 and 128
    points. Similarity lets every labelled point vote for its class, so the
    larger class has more votes. SemiGPC lets points that lie together share
    their vote, and hears no vote from far away.

    propagation.png: one point in eight has its label. Which labels do the
    others get? Look at the class of 16.

    confidence_maps.png: where is each classifier at least 80% sure? Look at
    the star, where no class has a point.

    The tables tell the rest. With a short length-scale similarity spreads
    labels as well as SemiGPC does, with a long one it loses the class of 16,
    and with any it is sure of the outlier.
    """
    from semigpc.cli.toy_tables import show_toy

    show_toy(out, seed, as_json=as_json)
