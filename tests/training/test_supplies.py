"""What runs of a comparison share changes nothing in any of them."""

from pathlib import Path

import pytest

from semigpc.data import feature_views
from semigpc.training import train
from semigpc.training.run_data import DataCache
from tests.training.small_runs import small_run
from tests.training.test_frozen import frozen_run, weights


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMIGPC_CACHE", str(tmp_path / "features"))
    monkeypatch.setattr(feature_views, "FEW", 10**6)


def test_runs_that_share_their_data_end_with_the_same_bits_as_alone(tmp_path: Path) -> None:
    cache, short = DataCache(), ("train.steps=8", "train.eval_steps=8")
    for algorithm, refiner in (("fixmatch", "gp"), ("remixmatch", "none")):
        experiment = frozen_run(algorithm, refiner, *short)
        alone = train(experiment, tmp_path / algorithm / "alone")
        shared = train(experiment, tmp_path / algorithm / "shared", cache=cache)
        assert shared["results"] == alone["results"]
        found, expected = (
            weights(tmp_path / algorithm / "shared"),
            weights(tmp_path / algorithm / "alone"),
        )
        assert all(found[name].equal(value) for name, value in expected.items())


def test_data_are_read_again_where_they_differ() -> None:
    cache = DataCache()
    first = cache.run_data(frozen_run("fixmatch"))
    assert cache.run_data(frozen_run("simmatch", "none")) == first
    other = cache.run_data(frozen_run("fixmatch", seed=1))
    assert other.splits.sha256 != first.splits.sha256
    again = cache.run_data(frozen_run("fixmatch"))
    assert again.splits is not first.splits
    assert again.source is not first.source
    assert again.splits.sha256 == first.splits.sha256


def test_images_are_listed_once_for_all_runs_with_the_same_data() -> None:
    cache = DataCache()
    first = cache.run_data(small_run("fixmatch", "none"))
    assert cache.run_data(small_run("simmatch", "gp")).splits is first.splits
    assert cache.splits(small_run().data, 5) is not first.splits
