"""The snippets of docs/python.md run as they stand, one after the other, and the pages beside it
say what the code says.
"""

import re
from pathlib import Path
from typing import Any

import pytest

from semigpc.models import networks
from semigpc.models.networks import NETWORKS, Network
from tests.cli.own_data import make_folder
from tests.labeling.samples import IDS, LABELS, X
from tests.models.hub_cache import add_to_hub_cache, tiny_network

DOCS = Path(__file__).parents[2] / "docs"
SNIPPETS = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(), flags=re.DOTALL)
VIT = "test_vit.r160_in1k"


@pytest.mark.slow
def test_the_snippets_run_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import datasets
    import numpy as np

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    add_to_hub_cache(tmp_path / "hub", f"timm/{VIT}", dict(tiny_network(VIT).state_dict()))
    best = Network(name="best", timm=VIT, width=64, image_size=32, megabytes=1, good_for="tests")
    monkeypatch.setattr(networks, "NETWORKS", (best, NETWORKS[-1]))
    make_folder(tmp_path, side=40)
    classes = sorted(set(LABELS.values()))
    y = np.array([classes.index(LABELS[name]) if name in LABELS else -1 for name in IDS])
    names: dict[str, Any] = {"X": X, "y": y}
    assert len(SNIPPETS) == 4
    datasets.disable_progress_bars()
    for snippet in SNIPPETS:
        exec(compile(snippet, "docs/python.md", "exec"), names)
    assert names["sure"].num_rows < names["labelled"].num_rows == len(X)
    assert f"network: best ({VIT})" in capsys.readouterr().out
    assert len(names["suspects"]) == (y >= 0).sum()


def test_the_page_on_networks_has_the_table_of_the_code() -> None:
    page = (DOCS / "which-network.md").read_text()
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| `")]
    assert [row[0].strip("| `") for row in rows] == [one.name for one in NETWORKS]
    for row, one in zip(rows, NETWORKS, strict=True):
        assert row[1].strip("`") in (one.timm, "the same")
        assert row[2:5] == [str(one.width), str(one.image_size), str(one.megabytes)]
        assert row[5].replace("`", "") == one.good_for
        time = "not measured" if one.milliseconds is None else f"{one.milliseconds:g} ms"
        assert row[6].startswith(time)
