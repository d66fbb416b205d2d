"""How many images per second are embedded, beside bare batches through the same network?"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))  # so that the script can be started as a file too

from benchmarks.tables import Json, Seed, new_table, script, show
from semigpc.labeling.embed import EmbedConfig, Network, embed_folder
from semigpc.threads import granted, using

Record = dict[str, Any]


def bench_embed(config: EmbedConfig, *, images: int, side: int, seed: int = 0) -> Record:
    """Time ``embed_folder`` on generated JPEG files, and the network alone on as many batches that are in memory.

    Args:
        config: which network, and how. images: how many. side: pixels of the files, which are then scaled for the network.

    Returns:
        ``images_per_s`` of the product's path, from files to a table; ``network_images_per_s`` of the network; and the
        ``ratio`` of their times, which is what reading, decoding, scaling and writing cost that is not hidden.
    """
    rng = np.random.default_rng(seed)
    network = Network(config.model, config.pretrained, config.image_size)
    batch = rng.integers(0, 256, (config.batch, network.image_size, network.image_size, 3), dtype=np.uint8)
    with using(granted()):
        network.embed(batch)  # warms up
        began = time.perf_counter()
        for _ in range(0, images, config.batch):
            network.embed(batch)
        network_s = (time.perf_counter() - began) * images / (-(-images // config.batch) * config.batch)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(images):
            coarse = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
            coarse.resize((side, side), Image.Resampling.BICUBIC).save(Path(folder) / f"{number:06d}.jpg", quality=90)
        began = time.perf_counter()
        embed_folder(Path(folder), Path(folder) / "embeddings.parquet", config)
        seconds = time.perf_counter() - began
    return {
        "model": config.model,
        "images": images,
        "side": side,
        "image_size": network.image_size,
        "batch": config.batch,
        "workers": config.workers,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "images_per_s": images / seconds,
        "network_images_per_s": images / network_s,
        "ratio": seconds / network_s,
    }


def embed(
    images: Annotated[int, typer.Option(help="Files to embed.", min=1)] = 512,
    side: Annotated[int, typer.Option(help="Pixels of a file's side.", min=16)] = 500,
    model: Annotated[str, typer.Option(help="Any timm backbone.", metavar="NAME")] = EmbedConfig.model,
    pretrained: Annotated[str, typer.Option(help="Weights, as in semigpc embed; none is as fast.")] = EmbedConfig.pretrained,
    image_size: Annotated[int | None, typer.Option(help="Pixels that the network sees.", min=2)] = None,
    batch: Annotated[int, typer.Option(help="Images that go through the network together.", min=1)] = EmbedConfig.batch,
    workers: Annotated[int, typer.Option(help="Processes that decode images.", min=0)] = EmbedConfig.workers,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Time semigpc embed on generated JPEG files against the bare network.

    python benchmarks/embed.py --images 2000 --image-size 96
    """
    config = EmbedConfig(model=model, pretrained=pretrained, image_size=image_size, batch=batch, workers=workers)
    with Console(stderr=True).status(f"{images} images through {model}"):
        record = bench_embed(config, images=images, side=side, seed=seed)
    show(record, lambda: [_table(record)], as_json=as_json)


def _table(record: Record) -> Table:
    title = f"{record['model']}, {record['images']} files of {record['side']} pixels seen at {record['image_size']}"
    table = new_table(title, "", "images per second", caption=f"time / time of the network alone: {record['ratio']:.2f}")
    table.add_row("semigpc embed, from files to a table", f"{record['images_per_s']:,.1f}")
    table.add_row("the network alone, batches in memory", f"{record['network_images_per_s']:,.1f}")
    return table


app = script(embed)
if __name__ == "__main__":
    app()
