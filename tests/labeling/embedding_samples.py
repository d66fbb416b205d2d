"""What tests of embedding share: a tiny network, and how to look at a table."""

from pathlib import Path

from pyarrow import parquet

from semigpc.models.encoder import EmbedConfig

TINY = EmbedConfig(model="test_resnet", pretrained="none", image_size=32, batch=3)


def rows_of(path: Path) -> dict[str, list[float]]:
    table = parquet.read_table(path)
    return dict(
        zip(
            table.column("file_name").to_pylist(),
            table.column("embedding").to_pylist(),
            strict=True,
        )
    )


def leftovers(folder: Path) -> list[str]:
    return sorted(
        path.name for path in folder.iterdir() if path.name not in ("photos", "x.parquet")
    )
