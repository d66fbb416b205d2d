"""One kernel per class: the same results as so many engines."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from benchmarks.references import kernel_matrix
from semigpc.gp import (
    RBF,
    Clipped,
    Engine,
    ExactGP,
    Kernel,
    Laplace,
    LowRankGP,
    NoExpansionError,
    NotPositiveDefiniteError,
    PerClassGP,
)
from semigpc.gp.per_class import AverageKernel
from tests.gp.streams import clusters, failing_once

WIDTH, CLASSES, SLOTS = 16, 4, 24
KERNELS: list[Kernel] = [
    RBF(length_scale=0.5),
    RBF(length_scale=0.9),
    Laplace(output_scale=2.0),
    RBF(output_scale=0.5),
]
NOISES = [0.3, 0.4, 0.5, 0.6]


def exact(kernel: Kernel, noise_std: float) -> ExactGP:
    return ExactGP(SLOTS, WIDTH, 1, kernel=kernel, noise_std=noise_std)


def low_rank(kernel: Kernel, noise_std: float) -> LowRankGP:
    return LowRankGP(
        SLOTS, WIDTH, 1, rank=SLOTS, kernel=kernel, noise_std=noise_std, dtype=torch.float64
    )


def make(
    kernels: list[Kernel] | None = None,
    noises: list[float] | None = None,
    member: Callable[[Kernel, float], Engine] = exact,
) -> PerClassGP:
    return PerClassGP(
        SLOTS, WIDTH, CLASSES, make=member, kernels=kernels or KERNELS, noise_stds=noises or NOISES
    )


def slow_mean(engine: PerClassGP, queries: Tensor, offset: Tensor | None = None) -> Tensor:
    h, y = engine.features[engine.occupied], engine.targets[engine.occupied]
    y = y if offset is None else y - offset
    columns = [
        kernel(queries, h) @ torch.linalg.solve(kernel_matrix(h, kernel, noise), y[:, c])
        for c, (kernel, noise) in enumerate(zip(engine.kernels, engine.noise_stds, strict=True))
    ]
    return torch.stack(columns, dim=1)


def fill(engine: PerClassGP, generator: torch.Generator, steps: int = 8) -> Tensor:
    """Some steps around the ring, a few slots emptied; answers with queries."""
    draw = clusters(generator, spread=1.0)
    for step in range(steps):
        engine.replace((torch.arange(5) + 5 * step) % SLOTS, *draw(5))
    engine.remove(torch.tensor([2, 7]))
    return draw(12)[0]


def test_every_class_has_the_mean_of_its_own_kernel(generator: torch.Generator) -> None:
    engine = make()
    queries = fill(engine, generator)
    assert (len(engine), engine.features.shape, engine.targets.shape) == (
        22,
        (SLOTS, WIDTH),
        (SLOTS, CLASSES),
    )
    torch.testing.assert_close(engine.mean(queries), slow_mean(engine, queries), rtol=0, atol=1e-10)
    offset = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    torch.testing.assert_close(
        engine.mean(queries, offset=offset), slow_mean(engine, queries, offset), rtol=0, atol=1e-10
    )


def test_with_one_kernel_for_all_it_is_one_engine(generator: torch.Generator) -> None:
    engine = make([RBF()] * CLASSES, [0.3] * CLASSES)
    queries = fill(engine, generator)
    single = ExactGP(SLOTS, WIDTH, CLASSES, kernel=RBF(), noise_std=0.3)
    rows = engine.occupied.nonzero().squeeze(1)
    single.replace(rows, engine.features[rows], engine.targets[rows])
    torch.testing.assert_close(engine.mean(queries), single.mean(queries), rtol=0, atol=1e-10)
    torch.testing.assert_close(
        engine.variance(queries), single.variance(queries), rtol=0, atol=1e-10
    )
    classes = single.mean(queries).argmax(dim=1)
    torch.testing.assert_close(
        engine.explain(queries, classes), single.explain(queries, classes), rtol=0, atol=1e-10
    )
    assert engine.noise_std == pytest.approx(0.3)


def test_variance_is_the_share_left_to_the_class_of_the_largest_mean(
    generator: torch.Generator,
) -> None:
    engine = make()
    queries = fill(engine, generator)
    share = engine.variance(queries) / engine.kernel.diagonal(queries)
    assert engine.kernel.diagonal(queries).tolist() == pytest.approx([(1 + 1 + 2 + 0.5) / 4] * 12)
    for row, c in enumerate(engine.mean(queries).argmax(dim=1).tolist()):
        own = engine.engines[c]
        expected = own.variance(queries[row : row + 1]) / own.kernel.diagonal(
            queries[row : row + 1]
        )
        assert float(share[row]) == pytest.approx(float(expected))
    average = engine.kernel(queries, queries)
    torch.testing.assert_close(
        average, torch.stack([kernel(queries, queries) for kernel in KERNELS]).mean(dim=0)
    )
    assert engine.kernel.positive_definite
    assert not make([Clipped(RBF(), 0.1), *KERNELS[1:]]).kernel.positive_definite


def test_reasons_sum_to_the_mean_and_gradients_reach_the_queries(
    generator: torch.Generator,
) -> None:
    engine = make()
    queries = fill(engine, generator).requires_grad_()
    classes = torch.arange(12) % CLASSES
    mean = engine.mean(queries)
    torch.testing.assert_close(
        engine.explain(queries, classes).sum(dim=1),
        mean[torch.arange(12), classes],
        rtol=0,
        atol=1e-10,
    )
    (gradient,) = torch.autograd.grad(mean.sum(), queries)
    (expected,) = torch.autograd.grad(slow_mean(engine, queries).sum(), queries)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-9)


def test_empty_it_predicts_nothing_and_is_as_unsure_as_the_prior(
    generator: torch.Generator,
) -> None:
    engine, queries = make(), torch.randn(3, WIDTH, generator=generator, dtype=torch.float64)
    assert len(engine) == 0
    assert engine.mean(queries).eq(0).all()
    torch.testing.assert_close(engine.variance(queries), engine.kernel.diagonal(queries))


def test_other_kernels_over_the_same_rows_are_as_if_they_had_always_been(
    generator: torch.Generator,
) -> None:
    engine = make([RBF()] * CLASSES, [0.3] * CLASSES)
    fill(engine, generator)
    engine.reanchor_all(KERNELS, NOISES)
    assert (engine.kernels, engine.noise_stds) == (tuple(KERNELS), tuple(NOISES))
    queries = fill(engine, generator, steps=3)
    torch.testing.assert_close(engine.mean(queries), slow_mean(engine, queries), rtol=0, atol=1e-10)
    engine.reanchor(Laplace(), 0.7)
    assert engine.kernels == (Laplace(),) * CLASSES
    torch.testing.assert_close(engine.mean(queries), slow_mean(engine, queries), rtol=0, atol=1e-10)


def test_a_state_round_trip_and_a_rebuild_change_nothing(generator: torch.Generator) -> None:
    first, second = make(), make()
    queries = fill(first, generator)
    second.load_state_dict(first.state_dict())
    first.rebuild()
    assert torch.equal(first.mean(queries), second.mean(queries))
    first.half()
    assert first.features.dtype == torch.float64


def test_low_rank_members_with_a_landmark_a_row_agree_with_exact_ones(
    generator: torch.Generator,
) -> None:
    engine = make(member=low_rank)
    queries = fill(engine, generator, steps=12)
    engine.rebuild()
    engine.reanchor_all(KERNELS[::-1], NOISES[::-1])
    torch.testing.assert_close(engine.mean(queries), slow_mean(engine, queries), rtol=0, atol=1e-6)


def test_a_kernel_that_one_class_refuses_changes_no_class(generator: torch.Generator) -> None:
    engine = make()
    queries = fill(engine, generator)
    before = engine.mean(queries)
    singular = Clipped(RBF(length_scale=1e6), 0.5)  # all ones: singular but for the noise
    with pytest.raises((ValueError, NotPositiveDefiniteError)):
        engine.reanchor_all([RBF(), RBF(), RBF(), singular], [0.3, 0.3, 0.3, 0.0])
    assert engine.kernels == tuple(KERNELS)
    torch.testing.assert_close(engine.mean(queries), before, rtol=0, atol=1e-10)


@pytest.mark.parametrize("member", [exact, low_rank])
@pytest.mark.parametrize("error", [NotPositiveDefiniteError, KeyboardInterrupt])
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("call", ["replace", "remove"])
def test_a_change_that_fails_for_one_class_changes_no_class(
    call: str,
    written: bool,
    error: type[BaseException],
    member: Callable[[Kernel, float], Engine],
    generator: torch.Generator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make(member=member)
    queries = fill(engine, generator)
    before = rows_of(engine)
    mean, atol = engine.mean(queries), 1e-10 if member is exact else 1e-6
    monkeypatch.setattr(
        engine.engines[1],
        "_change",
        failing_once(engine.engines[1]._change, error, written=written),
    )
    arguments = (
        (torch.tensor([1, 2, 3, 7]), *clusters(generator)(4))
        if call == "replace"
        else (torch.tensor([1, 3, 5]),)
    )
    with pytest.raises(error, match="no solution"):
        getattr(engine, call)(*arguments)  # slots 2 and 7 are empty
    assert [len(engine), *(len(one) for one in engine.engines)] == [22] * (1 + CLASSES)
    assert all(torch.equal(now, then) for now, then in zip(rows_of(engine), before, strict=True))
    torch.testing.assert_close(engine.mean(queries), mean, rtol=0, atol=atol)
    engine.replace(torch.arange(4), *clusters(generator)(4))
    mean = engine.mean(queries)
    engine.rebuild()
    torch.testing.assert_close(engine.mean(queries), mean, rtol=0, atol=atol)


def rows_of(engine: PerClassGP) -> list[Tensor]:
    """Copies of all that the members store."""
    return [
        rows.clone() for one in engine.engines for rows in (one.features, one.targets, one.occupied)
    ]


@pytest.mark.parametrize("error", [NotPositiveDefiniteError, RuntimeError])
def test_a_kernel_with_which_one_class_fails_changes_no_class(
    error: type[Exception], generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make()
    queries = fill(engine, generator)
    before = engine.mean(queries)
    monkeypatch.setattr(
        engine.engines[1],
        "_reanchor",
        failing_once(engine.engines[1]._reanchor, error, written=True),
    )
    with pytest.raises(error, match="no solution"):
        engine.reanchor(RBF(length_scale=3.0), 0.9)
    assert (engine.kernels, engine.noise_stds) == (tuple(KERNELS), tuple(NOISES))
    assert [(member.kernel, member.noise_std) for member in engine.engines] == list(
        zip(KERNELS, NOISES, strict=True)
    )
    assert engine.kernel == AverageKernel(tuple(KERNELS))
    torch.testing.assert_close(engine.mean(queries), before, rtol=0, atol=1e-10)


def test_a_damaged_state_is_loaded_by_no_class(generator: torch.Generator) -> None:
    engine, other = make(), make()
    queries = fill(engine, generator)
    fill(other, generator)
    before, damaged = (
        engine.mean(queries),
        other.state_dict() | {"members.2.targets": torch.full((SLOTS, 1), torch.nan)},
    )
    with pytest.raises(ValueError, match=r"members\.2\.targets.*damaged"):
        engine.load_state_dict(damaged)
    assert torch.equal(engine.mean(queries), before)


def test_what_does_not_fit_is_refused(generator: torch.Generator) -> None:
    engine = make()
    fill(engine, generator)
    with pytest.raises(NoExpansionError, match="learn_per_class=False can be exported"):
        engine.expansion()
    with pytest.raises(ValueError, match="4 kernels and noise_stds are needed; got 3 and 4"):
        engine.reanchor_all(KERNELS[:3], NOISES)
    with pytest.raises(
        ValueError, match=r"engines of shape \(30, 16, 1\), with one class; got \(24, 16, 1\)"
    ):
        PerClassGP(30, WIDTH, CLASSES, make=exact, kernels=KERNELS, noise_stds=NOISES)
    with pytest.raises(ValueError, match=r"targets must have shape \(1, 4\); got \(1, 3\)"):
        engine.replace(torch.tensor([0]), torch.zeros(1, WIDTH), torch.zeros(1, 3))
    with pytest.raises(IndexError, match="slot 2 is empty"):
        engine.remove(torch.tensor([0, 2]))
    with pytest.raises(TypeError, match=r"slots must be a torch\.Tensor; got int"):
        engine.remove(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"offset must have shape \(4,\); got \(3,\)"):
        engine.mean(torch.zeros(1, WIDTH, dtype=torch.float64), offset=torch.zeros(3))
