"""The snippets of docs/other_loops.md run as they stand."""

import importlib.util
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

PAGE = (Path(__file__).parent.parent.parent / "docs" / "other_loops.md").read_text()
LOOP, LIGHTNING, USB = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def run(snippet: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "snippet"}
    with torch.random.fork_rng(devices=[]):
        exec(compile(snippet, "docs/other_loops.md", "exec"), names)
    return names


def test_the_plain_loop_runs() -> None:
    names = run(LOOP)
    assert names["targets"].shape == (56, 10)
    assert (len(names["refiner"].buffer), int(names["refiner"].placement.steps)) == (24, 3)


@pytest.mark.filterwarnings("ignore::UserWarning:pytorch_lightning", "ignore::FutureWarning:pytorch_lightning")
def test_the_lightning_module_trains(generator: torch.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(LIGHTNING)
    x, weak, strong = (torch.randn(20, 8, generator=generator) for _ in range(3))
    rows = TensorDataset(x, torch.randint(3, (20,), generator=generator), weak, strong)
    names["trainer"].fit(names["MyModule"](), DataLoader(rows, batch_size=4))
    assert len(names["callback"].refiner.buffer) == 20


def test_the_usb_snippet_configures_it() -> None:
    if importlib.util.find_spec("semilearn") is None:
        pytest.skip("semilearn is not installed: it asks for packages that our pins exclude, see docs/other_loops.md")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            names = run(USB)
        except (ImportError, OSError, RuntimeError) as error:
            pytest.skip(f"semilearn is installed and cannot be imported: {error}")
    assert names["config"].gp_balanced is True
