"""The low-rank engine: equal to the dense formulas of its landmarks, and to the exact engine where
landmarks are all rows.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from semigpc.gp import (
    NTK,
    RBF,
    Clipped,
    Cosine,
    ExactGP,
    Kernel,
    LandmarkFeatures,
    Laplace,
    LowRankGP,
    NotPositiveDefiniteError,
    choose_landmarks,
)
from semigpc.gp import lowrank as module
from semigpc.gp import tiles as tiles_module

D, C, NOISE = 5, 3, 0.3
KERNEL = RBF(length_scale=1.5)


def rows(n: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(C, (n,), generator=generator)
    centres = torch.randn(C, D, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    x = centres[y] + 0.8 * torch.randn(n, D, generator=generator, dtype=torch.float64)
    return x.to(dtype), F.one_hot(y, C).to(dtype)


def engine(
    capacity: int = 200, rank: int = 40, dtype: torch.dtype = torch.float64, kernel: Kernel = KERNEL
) -> LowRankGP:
    return LowRankGP(capacity, D, C, rank=rank, kernel=kernel, noise_std=NOISE, dtype=dtype)


def filled(n: int = 200, **options: object) -> LowRankGP:
    made = engine(**options)  # type: ignore[arg-type]
    made.replace(torch.arange(n), *rows(n, 0, made.dtype))
    return made


def dense(gp: LowRankGP, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance by the formulas of the class's docstring, from rows and landmarks alone."""
    basis = LandmarkFeatures(gp.landmarks[: gp.health.landmarks], gp.kernel)
    held = gp.occupied
    Phi, phi = basis.phi(gp.features[held]), basis.phi(queries)
    A = Phi.mT @ Phi + gp.noise_std**2 * torch.eye(len(basis), dtype=torch.float64)
    mean = phi @ torch.linalg.solve(A, Phi.mT @ gp.targets[held].double())
    return mean, basis.residual(queries) + gp.noise_std**2 * (
        phi * torch.linalg.solve(A, phi.mT).mT
    ).sum(dim=1)


def assert_true(gp: LowRankGP, atol: float = 1e-11) -> None:
    queries = rows(25, 5, gp.dtype)[0].double()
    mean, variance = dense(gp, queries)
    torch.testing.assert_close(gp.mean(queries), mean, rtol=0, atol=atol)
    torch.testing.assert_close(gp.variance(queries), variance, rtol=0, atol=atol)


def churn(gp: LowRankGP, steps: int, seed: int = 7) -> None:
    """Replace and remove at random."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        slots = torch.randperm(gp.capacity, generator=generator)[:8]
        gp.replace(slots, *rows(8, 1000 * seed + step, gp.dtype))
        if step % 5 == 0:
            gp.remove(slots[:3])


@pytest.fixture(params=["one tile", "many tiles"])
def few_tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small inverse in one tile, as it would be, and in many, as only large ones are."""
    if request.param == "many tiles":
        monkeypatch.setattr(tiles_module, "ONE_TILE", 1)
        monkeypatch.setattr(tiles_module, "TILE", 16)


@pytest.mark.slow
@pytest.mark.usefixtures("few_tiles")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_after_hundreds_of_changes_it_equals_the_dense_formulas(dtype: torch.dtype) -> None:
    gp = engine(dtype=dtype)
    for _ in range(4):
        churn(gp, 80)
        assert_true(gp)
    assert gp.health.rebuilds == 0


@pytest.mark.slow
def test_without_other_landmarks_it_stays_true_for_thousands_of_rows() -> None:
    gp = LowRankGP(
        200, D, C, rank=40, kernel=KERNEL, noise_std=0.01, landmark_steps=10**6, dtype=torch.float64
    )
    gp.replace(torch.arange(200), *rows(200, 0))
    for step in range(500):
        gp.replace((torch.arange(8) + 8 * step) % 200, *rows(8, step))
    assert (gp.health.choices, gp.health.rebuilds) == (1, 0)
    assert_true(gp, atol=1e-9)


def test_many_rows_go_in_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 16)
    gp = filled()
    gp.replace(torch.arange(30, 80), *rows(50, 3))
    gp.remove(torch.arange(100, 140))
    assert gp.health.choices == 1
    assert_true(gp)


@pytest.mark.parametrize(
    "kernel", [KERNEL, Laplace(length_scale=2.0), Cosine(), NTK()], ids=lambda k: type(k).__name__
)
def test_with_all_rows_as_landmarks_it_is_the_exact_engine(kernel: Kernel) -> None:
    gp = filled(60, capacity=60, rank=60, kernel=kernel)
    exact = ExactGP(60, D, C, kernel=kernel, noise_std=NOISE)
    exact.replace(torch.arange(60), *rows(60, 0))
    queries, _ = rows(20, 5)
    classes = exact.mean(queries).argmax(dim=1)
    torch.testing.assert_close(gp.mean(queries), exact.mean(queries), rtol=0, atol=1e-7)
    torch.testing.assert_close(gp.variance(queries), exact.variance(queries), rtol=0, atol=1e-7)
    torch.testing.assert_close(
        gp.explain(queries, classes), exact.explain(queries, classes), rtol=0, atol=1e-6
    )
    offset = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    torch.testing.assert_close(
        gp.mean(queries, offset=offset), exact.mean(queries, offset=offset), rtol=0, atol=1e-7
    )
    assert gp.gap().mean < 1e-7


def test_far_from_all_landmarks_it_is_as_unsure_as_the_prior() -> None:
    gp = filled()
    far = torch.full((1, D), 50.0, dtype=torch.float64)
    assert float(gp.variance(far)) == pytest.approx(1.0, abs=1e-12)
    assert gp.mean(far).abs().max() < 1e-12


def test_the_reasons_add_up_to_the_mean() -> None:
    gp = engine()
    churn(gp, 60)
    queries, _ = rows(12, 5)
    classes = torch.arange(12) % C
    weights = gp.explain(queries, classes)
    torch.testing.assert_close(
        weights.sum(dim=1),
        gp.mean(queries).gather(1, classes[:, None]).squeeze(1),
        rtol=0,
        atol=1e-9,
    )
    assert not weights[:, ~gp.occupied].any()


def test_the_expansion_answers_as_the_engine_does() -> None:
    gp, (queries, _) = filled(), rows(12, 5)
    offset = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    points, weights = gp.expansion(offset=offset)
    torch.testing.assert_close(
        gp.kernel(queries, points) @ weights, gp.mean(queries, offset=offset), rtol=0, atol=1e-10
    )


def test_an_empty_engine_predicts_nothing_and_can_be_emptied_again() -> None:
    gp, (queries, _) = engine(), rows(4, 5)
    for _ in range(2):
        assert not gp.mean(queries).any()
        torch.testing.assert_close(gp.variance(queries), torch.ones(4, dtype=torch.float64))
        assert not gp.explain(queries, torch.zeros(4, dtype=torch.int64)).any()
        assert gp.expansion().points.shape == (0, D)
        gp.replace(torch.arange(20), *rows(20, 0))
        gp.remove(torch.arange(20))
        assert len(gp) == 0


def test_the_gradient_in_the_queries_is_that_of_the_mean() -> None:
    gp, (queries, _) = filled(), rows(3, 5)
    queries = queries.requires_grad_()
    assert torch.autograd.gradcheck(lambda q: gp.mean(q), queries)


def test_a_gradient_may_be_taken_after_the_buffer_has_changed() -> None:
    gp, (queries, _) = filled(), rows(3, 5)
    gp.rebuild()
    (wanted,) = torch.autograd.grad(gp.mean(queries.requires_grad_()).square().sum(), queries)
    loss = gp.mean(queries).square().sum()
    gp.replace(torch.arange(20), *rows(20, 3))
    gp.replace(torch.arange(200), *rows(200, 1))
    (late,) = torch.autograd.grad(loss, queries)
    assert torch.equal(late, wanted)


def test_landmarks_follow_the_rows() -> None:
    gp = engine()
    churn(gp, 60)
    moved = 40.0
    for step in range(
        60
    ):  # the network has drifted away: the rows that come are nothing like those that went
        x, y = rows(8, 500 + step)
        gp.replace((torch.arange(8) + 8 * step) % 200, x + moved, y)
    queries, _ = rows(50, 5)
    assert float(gp.variance(queries + moved).mean()) < 0.6
    assert gp.health.uncovered < 0.5


def test_a_schedule_of_landmarks_is_kept() -> None:
    gp = LowRankGP(
        200,
        D,
        C,
        rank=20,
        kernel=RBF(length_scale=3.0),
        noise_std=NOISE,
        landmark_steps=10,
        dtype=torch.float64,
    )
    gp.replace(torch.arange(200), *rows(200, 0))
    before = gp.health.choices
    for step in range(30):
        gp.replace(torch.arange(4) + 4 * step, *rows(4, step))
    assert gp.health.choices == before + 3


def test_a_run_goes_on_from_its_state_bit_for_bit() -> None:
    gp = engine(dtype=torch.float32)
    churn(gp, 40)
    saved = copy.deepcopy(gp.state_dict())
    gp.rebuild()
    other = engine(dtype=torch.float32)
    other.load_state_dict(saved)
    queries, _ = rows(10, 5, torch.float32)
    for one in (gp, other):
        churn(one, 30, seed=11)
    assert torch.equal(gp.mean(queries), other.mean(queries))
    assert torch.equal(gp.variance(queries), other.variance(queries))
    assert gp.health == other.health
    assert set(saved) == {"features", "targets", "occupied", "landmarks", "counters"}


def test_with_another_kernel_it_goes_on_as_if_it_had_always_had_it() -> None:
    gp, (queries, _) = filled(rank=200), rows(10, 5)
    gp.reanchor(RBF(length_scale=0.7, output_scale=2.0), 0.5)
    fresh = ExactGP(200, D, C, kernel=RBF(length_scale=0.7, output_scale=2.0), noise_std=0.5)
    fresh.replace(torch.arange(200), gp.features, gp.targets)
    torch.testing.assert_close(gp.mean(queries), fresh.mean(queries), rtol=0, atol=1e-7)
    churn(gp, 20)
    assert_true(gp)


def test_the_gap_is_that_between_two_gps_over_the_same_rows() -> None:
    gp = filled(rank=10)
    gap = gp.gap()
    assert gap.rows + gap.queries == 200
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    asked = order[gp.basis.residual(gp.features[order]) > 1e-3][: gap.queries]
    held = torch.tensor([slot for slot in order.tolist() if slot not in asked.tolist()])
    exact = ExactGP(200, D, C, kernel=KERNEL, noise_std=NOISE)
    exact.replace(held, gp.features[held], gp.targets[held])
    gp.remove(asked)
    queries = rows(200, 0)[0][asked]
    difference = (gp.mean(queries) - exact.mean(queries)).abs()
    assert gap.mean == pytest.approx(float(difference.mean()), rel=1e-6)
    assert gap.largest == pytest.approx(float(difference.max()), rel=1e-6)


@pytest.mark.parametrize("rank", [30, 150])
def test_the_gap_tells_what_new_rows_will_meet(rank: int) -> None:
    gp = filled(300, capacity=300, rank=rank, kernel=RBF(length_scale=0.8))
    exact = ExactGP(300, D, C, kernel=RBF(length_scale=0.8), noise_std=NOISE)
    exact.replace(torch.arange(300), gp.features, gp.targets)
    queries, _ = rows(400, 77)
    true = float((gp.mean(queries) - exact.mean(queries)).abs().mean())
    assert true / 1.6 < gp.gap().mean < 1.6 * true


def test_rows_that_a_kernel_cannot_tell_from_nothing_predict_nothing() -> None:
    gp = engine(kernel=Cosine())
    gp.replace(torch.arange(20), torch.zeros(20, D, dtype=torch.float64), rows(20, 0)[1])
    assert not gp.mean(rows(4, 5)[0]).any()
    gp.replace(torch.arange(20, 60), *rows(40, 1))
    assert gp.mean(rows(4, 5)[0]).any()


def everything(gp: LowRankGP) -> list[Tensor]:
    """What a call that raises an error must leave alone, bit for bit."""
    queries, _ = rows(20, 5)
    offset = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    return [
        *(value.clone() for value in gp.state_dict().values()),
        gp.landmarks[: len(gp.basis)].clone(),
        gp.mean(queries, offset=offset),
        gp.variance(queries),
    ]


def assert_unchanged(gp: LowRankGP, call: Callable[[], object], message: str) -> None:
    before, kernel, held = everything(gp), (gp.kernel, gp.noise_std), len(gp)
    with pytest.raises(NotPositiveDefiniteError, match=message):
        call()
    assert all(torch.equal(new, old) for new, old in zip(everything(gp), before, strict=True))
    assert ((gp.kernel, gp.noise_std), len(gp)) == (kernel, held)


def due(gp: LowRankGP) -> None:
    gp.replace(torch.arange(50), *rows(50, 3))


CALLS_THAT_CHOOSE: dict[str, Callable[[LowRankGP], object]] = {
    "replacing most rows": lambda gp: gp.replace(torch.arange(200), *rows(200, 1)),
    "replacing rows when a choice is due": due,
    "removing rows when a choice is due": lambda gp: gp.remove(torch.arange(150, 200)),
    "removing all rows": lambda gp: gp.remove(torch.arange(200)),
    "another kernel": lambda gp: gp.reanchor(RBF(length_scale=9.0), 0.01),
}


def fail(*_: object, **__: object) -> Any:
    raise NotPositiveDefiniteError("it cannot be solved for")


@pytest.mark.parametrize("part", ["choose_landmarks", "LandmarkFeatures", "WeightSpace"])
@pytest.mark.parametrize("case", CALLS_THAT_CHOOSE)
def test_a_choice_that_fails_changes_nothing(
    case: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gp = filled()
    for _ in range(3):
        due(gp)
    assert gp.health.choices == 1
    with monkeypatch.context() as broken:
        broken.setattr(module, part, fail)
        assert_unchanged(gp, lambda: CALLS_THAT_CHOOSE[case](gp), "cannot be solved for")
    CALLS_THAT_CHOOSE[case](gp)
    assert gp.health.choices == 1 + (case != "removing all rows")


def test_a_kernel_that_cannot_be_solved_for_leaves_the_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gp = filled()
    churn(gp, 5)

    def choose_for_the_old(features: Tensor, kernel: Kernel, rank: int, **options: Any) -> Tensor:
        return choose_landmarks(features, kernel, rank, **options) if kernel == KERNEL else fail()

    monkeypatch.setattr(module, "choose_landmarks", choose_for_the_old)
    assert_unchanged(gp, lambda: gp.reanchor(RBF(length_scale=9.0), NOISE), "cannot be solved for")


def failing_from(batch: int) -> Callable[..., float]:
    """A floor that the given update, and all after it, fail."""
    calls = iter(range(10**6))
    return lambda *_: 0.0 if next(calls) < batch else float("inf")


@pytest.mark.parametrize("batch", [0, 2])
def test_where_an_update_fails_everything_is_computed_anew(
    batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gp = filled()
    monkeypatch.setattr(module, "BATCH", 16)
    monkeypatch.setattr(module, "rounding_floor", failing_from(batch))
    with monkeypatch.context() as broken:
        broken.setattr(module, "WeightSpace", fail)
        assert_unchanged(
            gp, lambda: gp.replace(torch.arange(50), *rows(50, 3)), "cannot be solved for"
        )
    monkeypatch.setattr(module, "rounding_floor", failing_from(batch))
    gp.replace(torch.arange(50), *rows(50, 3))
    assert (gp.health.rebuilds, gp.health.choices) == (1, 1)
    assert_true(gp)


@pytest.mark.parametrize("spoil", ["landmarks that coincide", "a NaN"])
def test_a_state_that_cannot_be_used_changes_nothing(spoil: str) -> None:
    gp, other = filled(), filled(150)
    churn(gp, 5)
    state = copy.deepcopy(other.state_dict())
    if spoil == "a NaN":
        state["features"][3, 2] = torch.nan
    else:
        state["landmarks"][1] = state["landmarks"][0]
    before, health = everything(gp), gp.health
    with pytest.raises(
        ValueError, match="damaged" if spoil == "a NaN" else "landmarks must be distinct"
    ):
        gp.load_state_dict(state)
    assert all(torch.equal(new, old) for new, old in zip(everything(gp), before, strict=True))
    assert gp.health == health
    gp.load_state_dict(other.state_dict())
    assert len(gp) == 150
    assert all(
        torch.equal(new, old) for new, old in zip(everything(gp), everything(other), strict=True)
    )


WAITS = (
    "_local_scalar_dense",
    "nonzero",
    "unique",
    "bincount",
    "masked_select",
    "repeat_interleave",
)


class Waits(TorchDispatchMode):
    """Counts operations for which the host would wait for a GPU."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += any(name in str(func) for name in WAITS)
        return func(*args, **(kwargs or {}))


def test_a_usual_step_waits_for_the_device_three_times() -> None:
    gp = filled()
    slots, (x, y), (queries, _) = torch.arange(8), rows(8, 3), rows(20, 5)
    for _ in range(3):
        with Waits() as waits:  # type: ignore[no-untyped-call]
            gp.mean(queries)
            gp.replace(slots, x, y)
        assert waits.count == 3
        slots += 8
    with Waits() as waits:  # type: ignore[no-untyped-call]
        gp.remove(slots - 8)
    assert waits.count == 1


def test_landmarks_are_chosen_sooner_where_new_rows_are_covered_badly() -> None:
    gp = filled(1000, capacity=1000, rank=20)
    for step in range(31):
        x, y = rows(8, 500 + step)
        gp.replace(torch.arange(8) + 8 * step, x + 40.0, y)
    assert gp.health.choices == 2
    assert gp.health.rows_since < 250


def test_a_state_of_another_rank_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"saved landmarks have shape \(40, 5\); this engine holds \(30, 5\)"
    ):
        engine(rank=30).load_state_dict(filled().state_dict())


def test_the_gap_closes_as_the_rank_grows() -> None:
    gaps = [filled(rank=rank).gap().mean for rank in (5, 20, 80, 200)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] > 0.05
    assert gaps[-1] < 1e-6


def test_half_precision_around_it_leaves_its_numbers_alone() -> None:
    gp, (queries, _) = filled(dtype=torch.float32), rows(4, 5, torch.float32)
    before = gp.mean(queries)
    assert torch.equal(gp.half().mean(queries), before)


def test_a_refused_call_changes_nothing() -> None:
    gp, (queries, _) = filled(), rows(4, 5)
    before, (x, y) = gp.mean(queries), rows(3, 1)
    x[1, 2] = torch.nan
    with pytest.raises(ValueError, match="features must be finite"):
        gp.replace(torch.tensor([0, 1, 2]), x, y)
    with pytest.raises(ValueError, match="slots must be distinct"):
        gp.replace(torch.tensor([0, 0, 2]), *rows(3, 1))
    with pytest.raises(IndexError, match="slots must lie in"):
        gp.remove(torch.tensor([500]))
    assert torch.equal(gp.mean(queries), before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"rank": 201},
            r"rank must lie in \[1, 200\], as there are no more landmarks than slots; got 201",
        ),
        ({"rank": 0}, r"rank must lie in \[1, 200\]"),
        ({"landmark_steps": -1}, "landmark_steps must not be negative; got -1"),
        (
            {"kernel": Clipped(RBF(), 0.5)},
            r"landmarks need a positive definite kernel, .* use the exact engine",
        ),
        ({"noise_std": 0.0}, "noise_std must be a positive finite number"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LowRankGP(200, D, C, **({"rank": 10} | options))  # type: ignore[arg-type]


def test_a_state_of_another_size_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"saved features have shape \(200, 5\); this engine holds \(100, 5\)"
    ):
        engine(capacity=100).load_state_dict(filled().state_dict())
