"""Which engine a refiner gets, and that each one answers as the exact one where it should."""

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch

from semigpc.gp import EnsembleGP, ExactGP, MatrixFreeGP
from semigpc.refiners import (
    AutoOptions,
    EnsembleOptions,
    ExactOptions,
    GaussianProcessRefiner,
    GPConfig,
    MatrixFreeOptions,
)
from semigpc.refiners.gp_config import ENGINES, EngineOptions, build_engine, choose_engine
from tests.refiners.outputs import make, points, said, show


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (ExactOptions(), ExactGP),
        (EnsembleOptions(members=1), EnsembleGP),
        (MatrixFreeOptions(tolerance=1e-9, dtype="float64"), MatrixFreeGP),
    ],
)
@pytest.mark.parametrize("prior", ["none", "frequency"])
def test_an_engine_that_approximates_nothing_answers_as_the_exact_one(
    options: EngineOptions, kind: type[Any], prior: str, generator: torch.Generator
) -> None:
    exact, other = (
        make("gp", buffer_size=40, engine=each, class_prior=prior) for each in ("exact", options)
    )
    assert isinstance(other.engine, kind)
    for _ in range(12):  # more rows than the buffer holds
        features, labels = points(5, generator)
        for refiner in (exact, other):
            show(refiner, features, labels)
    queries = said(points(10, generator)[0])
    torch.testing.assert_close(other.logits(queries), exact.logits(queries), rtol=0, atol=1e-6)
    variance, expected = (one.engine.variance(queries.features) for one in (other, exact))
    torch.testing.assert_close(variance, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", sorted(ENGINES))
def test_a_name_stands_for_the_default_options(name: str) -> None:
    assert GPConfig(engine=name) == GPConfig(engine=ENGINES[name]())
    assert GPConfig(engine=name).engine.name == name
    assert GPConfig().engine == AutoOptions()


def test_by_default_there_are_1024_landmarks_or_as_many_as_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = "semigpc.refiners.gp_config.MatrixFreeGP"
    monkeypatch.setattr(made, lambda *_sizes, rank, **_others: rank)
    for size, rank in ((40, 40), (2000, 1024)):
        built: Any = build_engine(GPConfig(engine="matrix_free", buffer_size=size), 3, 2)
        assert built == rank


def test_auto_is_exact_where_its_matrices_fit_and_an_ensemble_beyond(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semigpc.gp.exact._memory", lambda _device: 8 * 2**30)
    config = GPConfig(engine=AutoOptions(members=7, combine="mean"))
    ensemble = EnsembleOptions(members=7, combine="mean")
    reason = "the inverse of K for 16300 rows takes 1014 MiB of "
    assert choose_engine(config) == (ExactOptions(), f"{reason}8192")
    many = choose_engine(replace(config, buffer_size=80_000))
    assert many == (ensemble, "80000 rows are more than 32768")
    large = choose_engine(replace(config, buffer_size=300_000)).options
    assert large == EnsembleOptions(members=84, combine="mean"), "7 would take 48 GiB of 8"
    monkeypatch.setattr("semigpc.gp.exact._memory", lambda _device: 2**30)
    assert choose_engine(config) == (ensemble, f"{reason}1024")
    assert choose_engine(replace(config, buffer_size=4000)).name == "exact"
    assert choose_engine(replace(config, kernel_clip=0.1)).name == "exact"


def test_auto_decides_by_the_memory_of_the_device_it_is_built_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def memory(device: Any) -> int:
        """A machine with 64 GiB, and 1 GiB on every device but the CPU."""
        return 2**36 if device is None or torch.device(device).type == "cpu" else 2**30

    monkeypatch.setattr("semigpc.gp.exact._memory", memory)
    assert choose_engine(GPConfig(), "cpu").name == "exact"
    assert choose_engine(GPConfig(), "cuda:1").name == "ensemble"
    monkeypatch.setattr(
        "semigpc.refiners.gp_config.EnsembleGP", lambda *_sizes, make, **_others: make
    )
    built: Any = build_engine(GPConfig(), 3, 2, device="cuda:1")
    assert built.keywords["device"] == "cuda:1", "no such device is needed to see that it arrives"


def test_the_buffer_of_an_evaluation_has_the_engine_of_the_training_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semigpc.gp.exact._memory", lambda _device: 2**10)
    refiner = GaussianProcessRefiner(GPConfig(engine=AutoOptions(members=6), buffer_size=24), 3, 2)
    monkeypatch.setattr("semigpc.gp.exact._memory", lambda _device: 2**36)
    copy = refiner.empty_copy()
    assert isinstance(copy.engine, EnsembleGP)
    assert (copy.engine.n_members, copy.choice.options) == (6, refiner.choice.options)


def test_it_says_which_engine_it_takes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semigpc.gp.exact.EXACT_ROWS", 500)
    with caplog.at_level(logging.INFO, logger="semigpc.refiners.gp_config"):
        engine = build_engine(GPConfig(buffer_size=600), 3, 2)
    assert isinstance(engine, EnsembleGP)
    assert caplog.messages == ["engine ensemble: 600 rows are more than 500"]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (AutoOptions, {"members": 0}, "members must be at least 1; got 0"),
        (EnsembleOptions, {"members": 0}, "members must be at least 1; got 0"),
        (MatrixFreeOptions, {"rank": -2}, "rank must be at least 1; got -2"),
        (MatrixFreeOptions, {"tolerance": 0.0}, "tolerance must lie between 0 and 1; got 0"),
    ],
)
def test_options_of_an_engine_are_checked_where_they_are_given(
    kind: type[EngineOptions], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        kind(**options)


def test_copies_cannot_be_left_out_of_a_buffer_that_members_share() -> None:
    config = GPConfig(role="classifier", exclude_same_index=True, buffer_size=40_000)
    with pytest.raises(ValueError, match=r"exclude_same_index .*got 'ensemble' \(40000 rows"):
        build_engine(config, 3, 2)
