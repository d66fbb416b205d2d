"""What runs of a comparison share changes nothing in any of them."""

from pathlib import Path

import pytest

from semigpc.data import feature_cache
from semigpc.training import train
from semigpc.training.run_data import DataCache
from tests.training.small_runs import small_run
from tests.training.test_frozen import frozen_run, weights


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "features"))
    monkeypatch.setattr(feature_cache, "FEW", 10**6)


def test_runs_that_share_their_material_end_with_the_same_bits_as_alone(tmp_path: Path) -> None:
    supplies, short = DataCache(), ("train.steps=8", "train.eval_steps=8")
    for algorithm, refiner in (("fixmatch", "gp"), ("remixmatch", "none")):
        experiment = frozen_run(algorithm, refiner, *short)
        alone = train(experiment, tmp_path / algorithm / "alone")
        shared = train(experiment, tmp_path / algorithm / "shared", material=supplies.of(experiment))
        assert shared["results"] == alone["results"]
        found, expected = weights(tmp_path / algorithm / "shared"), weights(tmp_path / algorithm / "alone")
        assert all(found[name].equal(value) for name, value in expected.items())


def test_material_is_read_again_where_it_differs() -> None:
    supplies = DataCache()
    first = supplies.of(frozen_run("fixmatch"))
    assert supplies.of(frozen_run("simmatch", "none")) is first
    other = supplies.of(frozen_run("fixmatch", seed=1))
    assert first is not None
    assert other is not None
    assert other.splits.sha256 != first.splits.sha256
    again = supplies.of(frozen_run("fixmatch"))
    assert again is not first
    assert again is not None
    assert again.splits.sha256 == first.splits.sha256


def test_images_need_no_material() -> None:
    assert DataCache().of(small_run("fixmatch", "none")) is None
