"""Which engine a refiner gets, and that each one answers as the exact one where it should."""

import logging
from typing import Any

import pytest
import torch

from semigpc.gp import EnsembleGP, ExactGP, LowRankGP, MatrixFreeGP
from semigpc.refiners import GPConfig
from semigpc.refiners.engines import build_engine, choose_engine
from tests.refiners.outputs import make, points, said, show

EXACT: dict[str, Any] = {"dtype": "float64", "buffer_size": 40}


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"engine": "exact"}, ExactGP),
        ({"engine": "lowrank", "rank": 40}, LowRankGP),
        ({"engine": "ensemble", "members": 1}, EnsembleGP),
        ({"engine": "matrix_free", "tolerance": 1e-9}, MatrixFreeGP),
    ],
)
@pytest.mark.parametrize("prior", ["none", "frequency"])
def test_an_engine_that_approximates_nothing_answers_as_the_exact_one(
    options: dict[str, Any], kind: type[Any], prior: str, generator: torch.Generator
) -> None:
    exact, other = make("gp", **EXACT, class_prior=prior), make("gp", **EXACT, **options, class_prior=prior)
    assert isinstance(other.engine, kind)
    for _ in range(12):  # more rows than the buffer holds
        features, labels = points(5, generator)
        for refiner in (exact, other):
            show(refiner, features, labels)
    queries = said(points(10, generator)[0])
    if options.get("rank"):
        other.engine.reanchor(other.engine.kernel, other.engine.noise_std)  # landmarks at all rows, as they are now
    torch.testing.assert_close(other.logits(queries), exact.logits(queries), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        other.engine.variance(queries.features), exact.engine.variance(queries.features), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("engine", ["exact", "lowrank", "ensemble", "matrix_free"])
def test_every_engine_goes_on_from_its_state(engine: str, generator: torch.Generator) -> None:
    options: dict[str, Any] = {"engine": engine, "buffer_size": 40, "rank": 16, "members": 2}
    refiner, resumed = make("gp", **options), make("gp", **options)
    for _ in range(10):
        show(refiner, *points(5, generator))
    refiner.rebuild()
    resumed.load_state_dict(refiner.state_dict())
    queries, more = said(points(10, generator)[0]), points(5, generator)
    for one in (refiner, resumed):
        show(one, *more)
    torch.testing.assert_close(resumed.logits(queries), refiner.logits(queries), rtol=0, atol=1e-5)


def test_auto_is_exact_where_its_matrices_fit_and_low_rank_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semigpc.gp.exact._memory", lambda _device: 8 * 2**30)
    fitting = choose_engine(GPConfig())
    assert fitting == ("exact", "the inverse of K for 16300 rows takes 1014 MiB of 8192")
    many = choose_engine(GPConfig(buffer_size=80_000))
    assert many == ("lowrank", "80000 rows are more than 32768")
    monkeypatch.setattr("semigpc.gp.exact._memory", lambda _device: 2**30)
    assert choose_engine(GPConfig()) == ("lowrank", "the inverse of K for 16300 rows takes 1014 MiB of 1024")
    assert choose_engine(GPConfig(buffer_size=4000)).name == "exact"
    assert choose_engine(GPConfig(kernel_clip=0.1)).name == "exact"


def test_it_says_which_engine_it_takes(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="semigpc.refiners.engines"):
        engine = build_engine(GPConfig(buffer_size=40_000, rank=64), 3, 2)
    assert isinstance(engine, LowRankGP)
    assert caplog.messages == ["engine lowrank: 40000 rows are more than 32768"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "lowrank", "rank": 41, "buffer_size": 40}, r"rank must not be larger than buffer_size.*; got 41 > 40"),
        ({"engine": "ensemble", "members": 41, "buffer_size": 40}, "members must not be more than buffer_size; got 41 > 40"),
        ({"rank": 0}, "rank must be at least 1; got 0"),
        ({"members": 0}, "members must be at least 1; got 0"),
        ({"landmark_steps": -1}, "landmark_steps must not be negative; got -1"),
        ({"tolerance": 0.0}, "tolerance must lie between 0 and 1; got 0"),
        (
            {"engine": "lowrank", "kernel_clip": 0.1},
            "kernel_clip may make K indefinite, which engine='lowrank' cannot work with",
        ),
        ({"engine": "lowrank", "role": "classifier", "exclude_same_index": True}, "exclude_same_index needs engine='exact'"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPConfig(**options)


def test_copies_cannot_be_left_out_of_a_buffer_that_only_landmarks_carry() -> None:
    config = GPConfig(role="classifier", exclude_same_index=True, buffer_size=40_000)
    with pytest.raises(ValueError, match=r"exclude_same_index needs the exact engine; got engine='lowrank' \(40000 rows"):
        build_engine(config, 3, 2)
