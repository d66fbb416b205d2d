"""How many images per second does a network embed in torch and in ONNX Runtime, and how many from
files?
"""

import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from PIL import Image
from rich.console import Console
from rich.table import Table

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.tables import Json, Seed, new_table, script, show
from semigpc.io.threads import granted, using
from semigpc.io.versions import versions
from semigpc.models import ModelConfig, build_model
from semigpc.models.encoder import EmbedConfig, embed_folder

Record = dict[str, Any]
SIZES = (96, 160, 224)  # pixels a side
EAGER = "torch"
CHANNELS_LAST = "torch, channels last"
ONNX = "ONNX Runtime"


def bench_engines(
    model: str, pretrained: str, image_size: int, *, batch: int, rounds: int, seed: int = 0
) -> list[Record]:
    """Time one network in each engine on batches in memory; every round measures all engines, one
    after the other.

    In each round every engine embeds one batch per core: torch one after the other with all cores,
    ONNX Runtime all at once with one core each, as the product does.

    Returns:
        For each engine its median ``images_per_s``, the ``ratio`` to torch as it is, and
        ``prepare_s`` to set it up.
    """
    cores = granted()
    shape = (batch, image_size, image_size, 3)
    rng = np.random.default_rng(seed)
    pixels = torch.from_numpy(rng.integers(0, 256, shape, dtype=np.uint8))
    images = pixels.permute(0, 3, 1, 2).float().div(255).contiguous()
    plain = (
        build_model(ModelConfig(name=model), 2).backbone.eval().requires_grad_(False)
    )  # any weights are as fast
    config = EmbedConfig(model=model, pretrained=pretrained, image_size=image_size)
    last = config.encoder()
    onnx = config.encoder()
    began = time.perf_counter()
    note = onnx.accelerate(10**6, threads=1)
    prepare_s = time.perf_counter() - began
    with torch.inference_mode(), using(cores), ThreadPoolExecutor(cores) as pool:
        engines: dict[str, Callable[[], Any]] = {
            EAGER: lambda: [plain(images) for _ in range(cores)],
            CHANNELS_LAST: lambda: [last(pixels) for _ in range(cores)],
        }
        if onnx.in_onnx_runtime:
            engines[ONNX] = lambda: list(pool.map(onnx, [pixels] * cores))
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(rounds + 1):
            for name, run in engines.items():
                began = time.perf_counter()
                run()
                if number:  # the first round warms up
                    seconds[name].append(time.perf_counter() - began)
    rates = {name: batch * cores / median(times) for name, times in seconds.items()}
    return [
        {
            "image_size": image_size,
            "engine": name,
            "images_per_s": rate,
            "ratio": rate / rates[EAGER],
            "prepare_s": prepare_s if name == ONNX else 0.0,
            "note": note,
        }
        for name, rate in rates.items()
    ]


def bench_folder(config: EmbedConfig, *, images: int, side: int, seed: int = 0) -> Record:
    """Time :func:`embed_folder` on generated JPEG files: ``seconds`` in all, of which ``prepare_s``
    before the first batch.
    """
    rng = np.random.default_rng(seed)
    moments = []
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(images):
            coarse = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
            coarse.resize((side, side), Image.Resampling.BICUBIC).save(
                Path(folder) / f"{number:06d}.jpg", quality=90
            )

        def progress(stage: str, _done: int, total: int | None) -> None:
            if total == 0:
                moments.append(time.perf_counter())
                lines.append(stage)

        began = time.perf_counter()
        embed_folder(Path(folder), Path(folder) / "embeddings.parquet", config, progress=progress)
        seconds = time.perf_counter() - began
    prepare_s = moments[0] - began
    after_first = images - min(config.batch, images)
    return {
        "line": lines[0],
        "images": images,
        "side": side,
        "seconds": seconds,
        "prepare_s": prepare_s,
        "images_per_s": after_first / (seconds - prepare_s),
    }


def embed(
    images: Annotated[int, typer.Option(help="Files to embed.", min=1)] = 1000,
    side: Annotated[int, typer.Option(help="Pixels of a file's side.", min=16)] = 500,
    model: Annotated[
        str, typer.Option(help="Any timm backbone.", metavar="NAME")
    ] = EmbedConfig.model,
    pretrained: Annotated[
        str, typer.Option(help="Weights, as in semigpc embed; none is as fast.")
    ] = EmbedConfig.pretrained,
    image_size: Annotated[
        list[int] | None, typer.Option(help="Pixels that the network sees; repeat for more.", min=2)
    ] = None,
    batch: Annotated[
        int, typer.Option(help="Images that go through the network together.", min=1)
    ] = EmbedConfig.batch,
    rounds: Annotated[
        int, typer.Option(help="Measurements of each engine; the median counts.", min=1)
    ] = 9,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Time a network in torch and ONNX Runtime, and semigpc embed on generated JPEG files.

    python benchmarks/embed.py --images 3000
    """
    sizes = image_size or list(SIZES)
    with Console(stderr=True).status(model) as status:
        engines = []
        for size in sizes:
            status.update(f"{model} at {size} px")
            engines += bench_engines(model, pretrained, size, batch=batch, rounds=rounds, seed=seed)
        status.update(f"{images} files of {side} px")
        config = EmbedConfig(
            model=model,
            pretrained=pretrained,
            image_size=image_size[-1] if image_size else None,
            batch=batch,
        )
        folder = bench_folder(config, images=images, side=side, seed=seed)
    record = {
        "model": model,
        "batch": batch,
        "cores": granted(),
        "engines": engines,
        "folder": folder,
    }
    record["versions"] = versions("onnxruntime")
    show(record, lambda: [_table(record)], as_json=as_json)


def _table(record: Record) -> Table:
    folder = record["folder"]
    caption = (
        f"{folder['images']} files of {folder['side']} px: {folder['seconds']:.1f} s, of which "
        f"{folder['prepare_s']:.1f} s "
        f"until the first batch, then {folder['images_per_s']:,.0f} images per second"
    )
    table = new_table(
        f"{record['model']}, {record['cores']} cores, images per second",
        "pixels",
        EAGER,
        CHANNELS_LAST,
        ONNX,
        caption=caption,
    )
    rates = {(entry["image_size"], entry["engine"]): entry for entry in record["engines"]}
    for size in dict.fromkeys(size for size, _ in rates):
        cells = [rates.get((size, name)) for name in (EAGER, CHANNELS_LAST, ONNX)]
        table.add_row(
            str(size),
            *(
                f"{cell['images_per_s']:,.0f} ({cell['ratio']:.1f}x)" if cell else "-"
                for cell in cells
            ),
        )
    return table


app = script(embed)
if __name__ == "__main__":
    app()
