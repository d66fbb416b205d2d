"""The low-rank engine: equal to the dense formulas of its landmarks, and to the exact engine where landmarks are all rows."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

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
)

D, C, NOISE = 5, 3, 0.3
KERNEL = RBF(length_scale=1.5)


def rows(n: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(C, (n,), generator=generator)
    centres = torch.randn(C, D, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    x = centres[y] + 0.8 * torch.randn(n, D, generator=generator, dtype=torch.float64)
    return x.to(dtype), F.one_hot(y, C).to(dtype)


def engine(capacity: int = 200, rank: int = 40, dtype: torch.dtype = torch.float64, kernel: Kernel = KERNEL) -> LowRankGP:
    return LowRankGP(capacity, D, C, rank=rank, kernel=kernel, noise_std=NOISE, dtype=dtype)


def filled(n: int = 200, **options: object) -> LowRankGP:
    made = engine(**options)  # type: ignore[arg-type]
    made.replace(torch.arange(n), *rows(n, 0, made.dtype))
    return made


def dense(gp: LowRankGP, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance by the formulas of the class's docstring, from rows and landmarks alone."""
    assert gp.basis is not None
    basis = LandmarkFeatures(gp.basis.landmarks.double(), gp.kernel)
    held = gp.occupied
    Phi, phi = basis.phi(gp.features[held].double()), basis.phi(queries.double())
    A = Phi.mT @ Phi + NOISE**2 * torch.eye(len(basis), dtype=torch.float64)
    mean = phi @ torch.linalg.solve(A, Phi.mT @ gp.targets[held].double())
    return mean, basis.residual(queries.double()) + NOISE**2 * (phi * torch.linalg.solve(A, phi.mT).mT).sum(dim=1)


def churn(gp: LowRankGP, steps: int, seed: int = 7) -> None:
    """Replace and remove at random."""
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        slots = torch.randperm(gp.capacity, generator=generator)[:8]
        gp.replace(slots, *rows(8, 1000 * seed + step, gp.dtype))
        if step % 5 == 0:
            gp.remove(slots[:3])


@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-11), (torch.float32, 2e-5)])
def test_after_hundreds_of_changes_it_equals_the_dense_formulas(dtype: torch.dtype, close: float) -> None:
    gp, (queries, _) = engine(dtype=dtype), rows(25, 5, dtype)
    for _ in range(4):
        churn(gp, 80)
        mean, variance = dense(gp, queries)
        torch.testing.assert_close(gp.mean(queries).double(), mean, rtol=0, atol=close)
        torch.testing.assert_close(gp.variance(queries).double(), variance, rtol=0, atol=close)


@pytest.mark.parametrize("kernel", [KERNEL, Laplace(length_scale=2.0), Cosine(), NTK()], ids=lambda k: type(k).__name__)
def test_with_all_rows_as_landmarks_it_is_the_exact_engine(kernel: Kernel) -> None:
    gp = filled(60, capacity=60, rank=60, kernel=kernel)
    exact = ExactGP(60, D, C, kernel=kernel, noise_std=NOISE)
    exact.replace(torch.arange(60), *rows(60, 0))
    queries, _ = rows(20, 5)
    classes = exact.mean(queries).argmax(dim=1)
    torch.testing.assert_close(gp.mean(queries), exact.mean(queries), rtol=0, atol=1e-7)
    torch.testing.assert_close(gp.variance(queries), exact.variance(queries), rtol=0, atol=1e-7)
    torch.testing.assert_close(gp.explain(queries, classes), exact.explain(queries, classes), rtol=0, atol=1e-6)
    offset = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    torch.testing.assert_close(gp.mean(queries, offset=offset), exact.mean(queries, offset=offset), rtol=0, atol=1e-7)
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
    torch.testing.assert_close(weights.sum(dim=1), gp.mean(queries).gather(1, classes[:, None]).squeeze(1), rtol=0, atol=1e-9)
    assert not weights[:, ~gp.occupied].any()


def test_the_expansion_answers_as_the_engine_does() -> None:
    gp, (queries, _) = filled(), rows(12, 5)
    offset = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    points, weights = gp.expansion(offset=offset)
    torch.testing.assert_close(gp.kernel(queries, points) @ weights, gp.mean(queries, offset=offset), rtol=0, atol=1e-10)


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


def test_landmarks_follow_the_rows() -> None:
    gp = engine()
    churn(gp, 60)
    moved = 40.0
    for step in range(60):  # the network has drifted away: the rows that come are nothing like those that went
        x, y = rows(8, 500 + step)
        gp.replace((torch.arange(8) + 8 * step) % 200, x + moved, y)
    queries, _ = rows(50, 5)
    assert float(gp.variance(queries + moved).mean()) < 0.6
    assert gp.health.uncovered < 0.5


def test_a_schedule_of_landmarks_is_kept() -> None:
    gp = LowRankGP(200, D, C, rank=20, kernel=RBF(length_scale=3.0), noise_std=NOISE, landmark_steps=10, dtype=torch.float64)
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
    assert not any("inverse" in name or "gram" in name for name in saved)


def test_with_another_kernel_it_goes_on_as_if_it_had_always_had_it() -> None:
    gp, (queries, _) = filled(rank=200), rows(10, 5)
    gp.reanchor(RBF(length_scale=0.7, output_scale=2.0), 0.5)
    churn(gp, 20)
    fresh = ExactGP(200, D, C, kernel=RBF(length_scale=0.7, output_scale=2.0), noise_std=0.5)
    held = gp.occupied.nonzero().squeeze(1)
    fresh.replace(held, gp.features[held], gp.targets[held])
    gp.reanchor(gp.kernel, gp.noise_std)  # landmarks at all rows again
    torch.testing.assert_close(gp.mean(queries), fresh.mean(queries), rtol=0, atol=1e-7)


def test_the_gap_is_that_between_two_gps_over_the_same_rows() -> None:
    gp = filled(rank=10)
    gap = gp.gap()
    assert gap.rows + gap.queries == 200
    assert gp.basis is not None
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


def test_a_kernel_that_cannot_be_solved_for_leaves_the_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gp, (queries, _) = filled(), rows(4, 5)
    before = gp.mean(queries)

    def fail() -> None:
        raise NotPositiveDefiniteError("it cannot be solved for")

    monkeypatch.setattr(gp, "_choose", fail)
    with pytest.raises(NotPositiveDefiniteError, match="cannot be solved for"):
        gp.reanchor(RBF(length_scale=9.0), 0.01)
    assert (gp.kernel, gp.noise_std) == (KERNEL, NOISE)
    torch.testing.assert_close(gp.mean(queries), before)


def test_a_state_of_another_rank_is_refused() -> None:
    with pytest.raises(ValueError, match=r"saved landmarks have shape \(40, 5\); this engine holds \(30, 5\)"):
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
        ({"rank": 201}, r"rank must lie in \[1, 200\], as there are no more landmarks than slots; got 201"),
        ({"rank": 0}, r"rank must lie in \[1, 200\]"),
        ({"landmark_steps": -1}, "landmark_steps must not be negative; got -1"),
        ({"kernel": Clipped(RBF(), 0.5)}, r"landmarks need a positive definite kernel, .* use the exact engine"),
        ({"noise_std": 0.0}, "noise_std must be a positive finite number"),
    ],
)
def test_what_cannot_work_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LowRankGP(200, D, C, **({"rank": 10} | options))  # type: ignore[arg-type]


def test_a_state_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"saved features have shape \(200, 5\); this engine holds \(100, 5\)"):
        engine(capacity=100).load_state_dict(filled().state_dict())
