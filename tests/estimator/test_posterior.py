"""Scores, reasons and kernel values of many rows equal slow ones in float64."""

import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import semigpc.estimator.posterior as module
from benchmarks.references import kernel_matrix
from benchmarks.timing import peak_extra_bytes
from semigpc.estimator.posterior import (
    GROUP,
    LARGEST_EXPONENT,
    SMALLEST_VALUE,
    Posterior,
    ReasonSearch,
    ScaledKernel,
    Scored,
    grouping_order,
)
from semigpc.gp import KERNELS, NTK, RBF, Clipped, Cosine, Kernel, Laplace, NotPositiveDefiniteError
from semigpc.io import threads
from tests.gp.streams import assert_near, clusters

NOISE_STD = 0.3
EVERY_KERNEL: list[Kernel] = [
    *(kernel() for kernel in KERNELS.values()),
    RBF(length_scale=0.7, output_scale=2.5),
    Laplace(length_scale=0.7, output_scale=2.5),
    Cosine(output_scale=2.5),
    Clipped(RBF(length_scale=0.7), 0.1),
]


class Problem(NamedTuple):
    features: Tensor  # (N, D) float64
    weights: Tensor  # (N, C)
    queries: Tensor  # (M, D)


def problem(
    generator: torch.Generator, *, n: int = 150, m: int = 70, kernel: Kernel | None = None
) -> Problem:
    draw = clusters(generator)
    features, targets = draw(n)
    weights = torch.linalg.solve(kernel_matrix(features, kernel or RBF(), NOISE_STD), targets - 0.2)
    queries = draw(m)[0]
    shared = min(n, m) // 3
    queries[:shared] = features[:shared]
    return Problem(features, weights, queries)


def fitted(problem: Problem, kernel: Kernel | None = None) -> Posterior:
    features, weights, _ = problem
    return Posterior(features, weights, kernel=kernel or RBF(), noise_std=NOISE_STD)


def watch(posterior: Posterior, patch: pytest.MonkeyPatch, seen: Callable[..., None]) -> None:
    """Call ``seen(chunk, start)`` before each chunk of queries is written."""
    write = posterior._scaled.write

    def recorded(chunk: Tensor, out: Tensor, start: int) -> Tensor | None:
        seen(chunk, start)
        return write(chunk, out, start)

    patch.setattr(posterior._scaled, "write", recorded)


def check_against_reference(
    scored: Scored,
    problem: Problem,
    kernel: Kernel,
    *,
    top: int = 3,
    bias: Tensor | None = None,
    atol: float = 1e-5,
) -> None:
    """Compare with float64; reasons by size, so that equals may come in any order."""
    features, weights, queries = (x.double() for x in problem)
    k = kernel(queries, features)
    mean = k @ weights
    assert_near(scored.mean.double(), mean, atol=atol)
    if scored.variance is not None:
        solved = torch.linalg.solve(kernel_matrix(features, kernel, NOISE_STD), k.mT).mT
        variance = kernel.diagonal(queries) - (k * solved).sum(dim=1)
        assert_near(scored.variance.double(), variance.clamp_min(0), atol=atol)
        assert (scored.variance >= 0).all()
    decided = mean if bias is None else mean + bias
    best = decided.max(dim=1).values
    assert_near(decided.gather(1, scored.classes[:, None])[:, 0], best, atol=atol)
    own = k * weights.mT[scored.classes]
    found = min(top, len(features))
    assert scored.slots.shape == scored.reasons.shape == (len(queries), top)
    assert (scored.slots[:, found:] == -1).all()
    assert (scored.reasons[:, found:] == 0).all()
    slots, reasons = scored.slots[:, :found], scored.reasons[:, :found].double()
    assert all(len(set(row)) == found for row in slots.tolist())
    assert_near(reasons, own.gather(1, slots), atol=atol)
    assert_near(reasons, own.topk(found, dim=1).values, atol=atol)


@pytest.mark.parametrize("kernel", EVERY_KERNEL, ids=repr)
def test_every_kernel_equals_the_slow_path(kernel: Kernel, generator: torch.Generator) -> None:
    given = Problem(*(x.float() for x in problem(generator, kernel=kernel)))
    posterior = fitted(given, kernel)
    scored = posterior.score(given.queries, variance=kernel.positive_definite)
    atol = 4e-5 if isinstance(kernel, NTK) else 2e-5  # its values reach 2
    check_against_reference(scored, given, kernel, atol=atol)


@pytest.mark.parametrize("n", [1, 2, 3, 63, 64, 65, 127, 200])
@pytest.mark.parametrize("top", [0, 1, 3, 5])
def test_any_number_of_labelled_rows_and_reasons(
    n: int, top: int, generator: torch.Generator
) -> None:
    given = problem(generator, n=n)
    posterior = fitted(given)
    check_against_reference(posterior.score(given.queries.float(), top=top), given, RBF(), top=top)


def test_chunks_and_strips_of_any_size_give_the_same(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = problem(generator, m=331)
    posterior = fitted(given)
    monkeypatch.setattr(module, "PRODUCT_ROWS", 150)
    monkeypatch.setattr(module, "STRIP_CELLS", 70 * 150)
    check_against_reference(posterior.score(given.queries.float()), given, RBF())


def test_chunks_shrink_where_there_are_many_labelled_rows(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = problem(generator, m=331)
    posterior = fitted(given)
    monkeypatch.setattr(module, "FEWEST_PRODUCT_ROWS", 20)
    monkeypatch.setattr(module, "PRODUCT_CELLS", 100 * 150)
    seen: list[int] = []
    watch(posterior, monkeypatch, lambda chunk, _: seen.append(len(chunk)))
    check_against_reference(posterior.score(given.queries.float()), given, RBF())
    assert seen == [100, 100, 100, 31]


def test_chunks_are_shared_among_threads(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = problem(generator, m=331)
    posterior = fitted(given)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setattr(threads, "SMALL_WORK", 0)
    monkeypatch.setattr(module, "PRODUCT_ROWS", 50)
    seen: list[tuple[int, bool, int]] = []

    def record(_: Tensor, start: int) -> None:
        is_main = threading.current_thread() is threading.main_thread()
        seen.append((start, is_main, torch.get_num_threads()))

    watch(posterior, monkeypatch, record)
    with threads.using(3):
        scored = posterior.score(given.queries.float().requires_grad_())
        check_against_reference(scored, given, RBF())
        assert torch.get_num_threads() == 3
        assert sorted(seen) == [(start, False, 1) for start in range(0, 331, 50)]
        given.queries[120, 3] = torch.nan
        with pytest.raises(ValueError, match="row 120 is not"):
            posterior.score(given.queries.float())
        assert torch.get_num_threads() == 3
        seen.clear()
        posterior.score(given.queries[:100].float())  # few chunks: threads share each of them
        assert seen == [(0, True, 3), (50, True, 3)]


def test_reasons_are_found_among_rows_of_other_classes_and_for_a_class_of_one_row(
    generator: torch.Generator,
) -> None:
    draw = clusters(generator)
    features, queries = draw(600)[0], draw(200)[0]
    weights = 0.3 * torch.rand(600, 4, generator=generator).double()
    weights[torch.arange(600), torch.arange(600) % 3] += 0.1 * torch.rand(600, generator=generator)
    weights[:, 3] = -0.1
    weights[7, 3] = 2.0  # the only row that speaks for the last class
    weights = weights / 20  # so that sums of 600 of them are about 1, as the tolerance supposes
    posterior = Posterior(features, weights, kernel=RBF(), noise_std=NOISE_STD)
    for last in (0.0, 100.0):
        bias = torch.tensor([0.0, 0.0, 0.0, last])

        def choose(mean: Tensor, _: int, bias: Tensor = bias) -> Tensor:
            return (mean + bias).argmax(dim=1)

        scored = posterior.score(queries, choose=choose)
        assert ((scored.classes == 3) == (last > 0)).all()
        given = Problem(features, weights, queries)
        check_against_reference(scored, given, RBF(), bias=bias.double())


def test_without_labelled_rows_the_prior_answers(generator: torch.Generator) -> None:
    queries = torch.randn(5, 4, generator=generator)
    for kernel in (RBF(output_scale=2.0), Laplace(output_scale=2.0), Cosine(output_scale=2.0)):
        posterior = fitted(Problem(torch.empty(0, 4), torch.empty(0, 3), queries), kernel)
        assert len(posterior) == 0
        scored = posterior.score(queries, choose=lambda mean, _: torch.ones(len(mean)))
        assert (scored.mean == 0).all()
        assert scored.variance is not None
        assert (scored.variance == 2).all()
        assert (scored.classes == 1).all()
        assert (scored.slots == -1).all()
        assert (scored.reasons == 0).all()


def test_no_rows_no_answers(generator: torch.Generator) -> None:
    given = problem(generator)
    for kernel in (RBF(), Laplace()):
        scored = fitted(given, kernel).score(torch.empty(0, 16))
        shapes = [tuple(x.shape) for x in scored if x is not None]
        assert shapes == [(0, 4), (0,), (0,), (0, 3), (0, 3)]
        assert scored.classes.dtype == scored.slots.dtype == torch.int64


def test_equal_reasons_are_different_labelled_rows(generator: torch.Generator) -> None:
    features = torch.randn(3, 8, generator=generator).repeat(50, 1)  # every point 50 times over
    weights = torch.randn(3, 4, generator=generator).repeat(50, 1) / 50
    given = Problem(features.double(), weights.double(), features[:6].double())
    posterior = Posterior(features, weights, kernel=RBF(length_scale=2.0), noise_std=NOISE_STD)
    scored = posterior.score(features[:6], top=7)
    check_against_reference(scored, given, RBF(length_scale=2.0), top=7)


def test_reasons_are_found_where_every_weight_is_zero() -> None:
    posterior = Posterior(torch.zeros(70, 2), torch.zeros(70, 2), kernel=RBF(), noise_std=NOISE_STD)
    scored = posterior.score(torch.zeros(2, 2), top=3)
    assert all(len(set(row)) == 3 and max(row) < 70 for row in scored.slots.tolist())
    assert (scored.reasons == 0).all()


def test_the_caller_chooses_the_class_and_nothing_else(generator: torch.Generator) -> None:
    given = problem(generator)
    posterior = fitted(given)
    bias = torch.tensor([-1e30, 0.3, 0.0, -0.1])
    plain = posterior.score(given.queries.float())
    asked = []

    def choose(mean: Tensor, start: int) -> Tensor:
        asked.append((start, len(mean)))
        assert torch.equal(mean, plain.mean[start : start + len(mean)])
        return (mean + bias).argmax(dim=1)

    biased = posterior.score(given.queries.float(), choose=choose)
    assert sum(rows for _, rows in asked) == len(given.queries)
    assert torch.equal(plain.mean, biased.mean)
    assert not (biased.classes == 0).any()
    assert not torch.equal(plain.classes, biased.classes)
    check_against_reference(biased, given, RBF(), bias=bias.double())


def test_without_variance_the_rest_is_the_same(generator: torch.Generator) -> None:
    given = problem(generator)
    posterior = fitted(given)
    whole = posterior.score(given.queries.float())
    part = posterior.score(given.queries.float(), variance=False)
    assert part.variance is None
    for field in ("mean", "classes", "slots", "reasons"):
        assert torch.equal(getattr(whole, field), getattr(part, field))


@pytest.mark.parametrize("kernel", [RBF(), Laplace()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_queries_of_any_precision_and_layout(
    kernel: Kernel, dtype: torch.dtype, generator: torch.Generator
) -> None:
    given = problem(generator, kernel=kernel)
    rounded = given.queries.to(dtype)
    posterior = fitted(given, kernel)
    scored = posterior.score(rounded)
    assert scored.mean.dtype == scored.reasons.dtype == torch.float32
    check_against_reference(scored, given._replace(queries=rounded), kernel)
    scattered = torch.stack([rounded, rounded], dim=2).mT.contiguous().mT[:, :, 0]
    assert not scattered.is_contiguous()
    check_against_reference(posterior.score(scattered), given._replace(queries=rounded), kernel)


def test_a_common_offset_costs_no_digits(generator: torch.Generator) -> None:
    given = problem(generator)
    there = Problem((given.features + 50).float(), given.weights, (given.queries + 50).float())
    posterior = fitted(there)
    check_against_reference(posterior.score(there.queries), there, RBF(), atol=1e-5)


@pytest.mark.parametrize("length_scale", [0.08, 0.1117, 0.113, 0.2])
def test_short_length_scales_are_as_exact(length_scale: float, generator: torch.Generator) -> None:
    """Around the one below which unit vectors are too far apart for one product and one exp."""
    kernel = RBF(length_scale=length_scale)
    given = problem(generator, kernel=kernel)
    there = Problem(given.features.float(), given.weights, given.queries.float())
    there.queries[30:50] = there.features[:20] + 0.02
    posterior = fitted(there, kernel)
    check_against_reference(posterior.score(there.queries), there, kernel, atol=3e-5)


def test_far_rows_answer_with_the_prior_and_likeness_never_exceeds_the_scale(
    generator: torch.Generator,
) -> None:
    given = problem(generator)
    kernel = RBF(length_scale=0.003, output_scale=2.0)
    posterior = Posterior(given.features, torch.ones(150, 2), kernel=kernel, noise_std=NOISE_STD)
    scored = posterior.score(torch.cat([given.features[:20], given.features[:20] + 30]))
    assert scored.variance is not None
    assert (scored.reasons <= 2).all()
    assert (scored.mean[:20] >= 1.9).all()
    assert (scored.mean[20:] < 1e-20).all()
    assert (scored.variance[20:] == 2).all()


def test_ill_conditioned_kernel_matrices_keep_the_variance_true(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = clusters(generator, spread=0.3)
    features, queries = draw(400)[0], draw(100)[0]
    kernel = RBF(length_scale=1.0)
    K = kernel_matrix(features, kernel, 0.03)
    assert 5e4 < torch.linalg.cond(K) < 5e6
    k = kernel(queries, features)
    variance = 1 - (k * torch.linalg.solve(K, k.mT).mT).sum(dim=1)
    for precise in (module.FLOAT64_ROWS, 0):  # factorised in float64, and in float32
        monkeypatch.setattr(module, "FLOAT64_ROWS", precise)
        posterior = Posterior(features, torch.ones(400, 2), kernel=kernel, noise_std=0.03)
        scored = posterior.score(queries)
        assert scored.variance is not None
        assert_near(scored.variance.double(), variance, atol=1e-5 if precise else 1e-4)


def test_what_float32_cannot_factorise_is_done_in_float64(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = torch.randn(40, 3, generator=generator).repeat(4, 1)
    monkeypatch.setattr(module, "FLOAT64_ROWS", 0)
    scored = Posterior(
        features, torch.ones(160, 2), kernel=RBF(length_scale=3.0), noise_std=1e-5
    ).score(features)
    assert scored.variance is not None
    assert (scored.variance < 1e-2).all()


def test_a_kernel_matrix_without_a_factor_is_refused(generator: torch.Generator) -> None:
    features = torch.randn(60, 1, generator=generator)
    kernel = Clipped(RBF(length_scale=1.0), 0.9)
    posterior = Posterior(features, torch.ones(60, 2), kernel=kernel, noise_std=1e-3)
    with pytest.raises(NotPositiveDefiniteError, match="Raise noise_std, or do without"):
        posterior.score(features)
    assert posterior.score(features, variance=False).variance is None


def test_memory_is_bounded_by_the_chunk(generator: torch.Generator) -> None:
    features = torch.randn(100, 8, generator=generator)
    queries = torch.randn(20 * module.PRODUCT_ROWS, 8, generator=generator)
    posterior = fitted(Problem(features, torch.ones(100, 2), queries))
    posterior.score(queries[:1])
    answers = len(queries) * (2 * 4 + 4 + 8 + 3 * 8 + 3 * 4)
    kernel_values = module.PRODUCT_ROWS * 100 * 4
    most = answers + 4 * kernel_values
    assert most < answers + len(queries) * 100
    assert peak_extra_bytes(lambda: posterior.score(queries)) < most


def test_is_untouched_by_autocast_gradients_and_its_caller(generator: torch.Generator) -> None:
    given = problem(generator)
    features = given.features.float().requires_grad_()
    weights = given.weights.float().requires_grad_()
    posterior = Posterior(features, weights, kernel=RBF(), noise_std=NOISE_STD)
    with torch.no_grad():
        features.zero_()
        weights.zero_()
    queries = given.queries.float().requires_grad_()
    before = queries.detach().clone()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scored = posterior.score(queries)
    assert not any(x.requires_grad for x in scored if x is not None)
    assert torch.equal(queries, before)
    check_against_reference(scored, given, RBF())


def test_bad_arguments_are_refused_by_name(generator: torch.Generator) -> None:
    features, weights = torch.randn(5, 3, generator=generator), torch.ones(5, 2)
    infinite = features.index_fill(0, torch.tensor([2]), torch.inf)
    with pytest.raises(ValueError, match=r"features must be finite.* row 2 is not"):
        fitted(Problem(infinite, weights, features))
    with pytest.raises(ValueError, match="top must be at least 0; got -1"):
        fitted(Problem(features, weights, features)).score(features, top=-1)


@pytest.mark.parametrize("kernel", [RBF(), Cosine()], ids=repr)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, 1e30])
def test_rows_that_are_not_finite_are_named(
    kernel: Kernel, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PRODUCT_ROWS", 4)
    posterior = Posterior(torch.ones(5, 3), torch.ones(5, 2), kernel=kernel, noise_std=NOISE_STD)
    queries = torch.ones(10, 3)
    queries[6, 1] = wrong
    with pytest.raises(ValueError, match=r"queries must be finite.* row 6 is not"):
        posterior.score(queries)


# The search for reasons ---------------------------------------------------------------------------


def labels(generator: torch.Generator, n: int, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Weights (n, C), mostly above 0 for a row's own class alone, and the classes, as grouped."""
    own = torch.randint(classes, (n,), generator=generator)
    weights = 0.1 * torch.randn(n, classes, generator=generator)
    weights[torch.arange(n), own] += torch.rand(n, generator=generator)
    order = grouping_order(weights)
    return weights[order], own[order]


def kernel_values(search: ReasonSearch, values: Tensor) -> tuple[Tensor, Tensor]:
    room = search.workspace(len(values))
    room[:, : values.shape[1]] = values
    return room, room.view(len(values), -1, GROUP).amax(dim=2)


def check_reasons(
    search: ReasonSearch, weights: Tensor, values: Tensor, classes: Tensor, top: int
) -> None:
    places, best = search.find(*kernel_values(search, values), classes, top)
    shares = values * weights.mT[classes]
    assert torch.equal(best, shares.topk(top, dim=1).values)
    assert torch.equal(best, shares.gather(1, places))
    assert all(len(set(row)) == top for row in places.tolist())


@pytest.mark.parametrize("n", [10, GROUP, 4 * GROUP + 1, 10 * GROUP - 1, 10 * GROUP])
@pytest.mark.parametrize("top", [1, 3, 9])
def test_finds_what_a_full_search_finds(n: int, top: int, generator: torch.Generator) -> None:
    weights, _ = labels(generator, n)
    search = ReasonSearch(weights)
    values = torch.rand(200, n, generator=generator) ** 4
    check_reasons(search, weights, values, torch.randint(5, (200,), generator=generator), top)


def test_rows_are_ordered_by_class_and_then_by_weight() -> None:
    weights = torch.tensor([[0.9, 0.1], [0.2, 0.3], [0.1, 0.0], [-0.5, 0.2]])
    assert grouping_order(weights).tolist() == [2, 0, 3, 1]


def test_few_queries_need_all_rows_where_labels_are_as_a_gp_has_them(
    generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, own = labels(generator, 20 * GROUP)
    search = ReasonSearch(weights)
    classes = torch.randint(5, (300,), generator=generator)
    near = 0.5 * (classes[:, None] == own)  # the rows of a query's class are nearer
    values = 0.2 + near + 0.3 * torch.rand(300, len(own), generator=generator)
    asked: list[int] = []
    full = search.find_among_all

    def counted(values: Tensor, classes: Tensor, top: int) -> tuple[Tensor, Tensor]:
        asked.append(len(values))
        return full(values, classes, top)

    monkeypatch.setattr(search, "find_among_all", counted)
    check_reasons(search, weights, values, classes, 3)
    assert sum(asked) < 30


def test_queries_whose_bounds_promise_too_much_are_answered_from_all_rows(
    generator: torch.Generator,
) -> None:
    weights = torch.full((8 * GROUP, 1), 0.1)
    weights[::GROUP] = 1.0  # large where likeness is small: every bound is far too high
    values = 0.5 + 0.5 * torch.rand(5, len(weights), generator=generator)
    values[:, ::GROUP] = 0.01
    check_reasons(ReasonSearch(weights), weights, values, torch.zeros(5, dtype=torch.int64), 3)


def test_weights_below_zero_are_reasons_too_if_there_are_no_others(
    generator: torch.Generator,
) -> None:
    weights = -torch.rand(8 * GROUP, 2, generator=generator) - 0.1
    weights[5, 0] = 1.0
    values = torch.rand(20, len(weights), generator=generator) + 0.1
    check_reasons(ReasonSearch(weights), weights, values, torch.arange(20) % 2, 3)


def test_equal_weights_are_different_rows() -> None:
    weights = torch.full((8 * GROUP, 1), 0.5)
    values = torch.full((4, len(weights)), 0.25)
    check_reasons(ReasonSearch(weights), weights, values, torch.zeros(4, dtype=torch.int64), 5)


def test_values_of_any_sign_are_searched_in_full(generator: torch.Generator) -> None:
    weights, _ = labels(generator, 130)
    search = ReasonSearch(weights)
    values, classes = torch.randn(20, 130, generator=generator), torch.arange(20) % 5
    places, best = search.find_among_all(kernel_values(search, values)[0], classes, 3)
    shares = values * weights.mT[classes]
    assert torch.equal(best, shares.topk(3, dim=1).values)
    assert torch.equal(best, shares.gather(1, places))


# Kernel values in units ---------------------------------------------------------------------------


def values(scaled: ScaledKernel, queries: Tensor) -> Tensor:
    """k = r g e."""
    out = torch.empty(len(queries), len(scaled.points))
    r = scaled.write(queries, out)
    return out * scaled.units if r is None else out.exp() * scaled.units * r[:, None]


def check_kernel(
    points: Tensor, queries: Tensor, kernel: Kernel, *, fast: bool, rtol: float = 1e-4
) -> ScaledKernel:
    scaled = ScaledKernel(points, kernel)
    truth = kernel(queries.double(), points.double())
    found = values(scaled, queries).double()
    torch.testing.assert_close(found, truth, rtol=rtol, atol=2 * SMALLEST_VALUE)
    assert (scaled.write(queries, torch.empty(len(queries), len(points))) is not None) == fast
    return scaled


@pytest.fixture
def points(generator: torch.Generator) -> Tensor:
    return torch.randn(40, 6, generator=generator)


def test_an_rbf_is_one_product_and_one_exp(points: Tensor) -> None:
    scaled = check_kernel(
        points, points[:9] + 0.1, RBF(length_scale=1.5, output_scale=2.5), fast=True
    )
    assert scaled.origin is None


def test_points_far_from_zero_are_seen_from_their_mean(points: Tensor) -> None:
    kernel = RBF(length_scale=1.5)
    scaled = check_kernel(points + 30, points[:9] + 30.1, kernel, fast=True, rtol=2e-4)
    assert scaled.origin is not None
    wide = (points[:9] + 30.1).double()
    found, truth = values(scaled, wide).double(), kernel(wide, (points + 30).double())
    torch.testing.assert_close(found, truth, rtol=2e-4, atol=SMALLEST_VALUE)


def test_queries_that_are_too_far_are_evaluated_as_they_are(points: Tensor) -> None:
    kernel = RBF(length_scale=1.0)
    far = 1.01 * (2 * LARGEST_EXPONENT) ** 0.5 * torch.nn.functional.normalize(points[:5], dim=1)
    scaled = check_kernel(points, torch.cat([points[5:9], far]), kernel, fast=False)
    assert scaled.columns is not None
    assert (values(scaled, 1e4 * far) <= SMALLEST_VALUE * 1.01).all()


def test_points_that_are_too_far_apart_are_evaluated_as_they_are(points: Tensor) -> None:
    scaled = check_kernel(points, points[:9] + 0.01, RBF(length_scale=0.1), fast=False, rtol=2e-3)
    assert scaled.columns is None
    assert (scaled.units == 1).all()


def test_nothing_overflows_or_vanishes_at_the_edge_of_the_range(points: Tensor) -> None:
    edge = 0.999 * (2 * LARGEST_EXPONENT) ** 0.5 * torch.nn.functional.normalize(points, dim=1)
    both = torch.cat([edge, -edge])  # the mean is 0
    check_kernel(both, both, RBF(length_scale=1.0), fast=True)


@pytest.mark.parametrize("kernel", [kernel() for kernel in KERNELS.values()], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_every_kernel_and_precision(kernel: Kernel, dtype: torch.dtype, points: Tensor) -> None:
    rounded = (points[:9] * 0.3).to(dtype)
    check_kernel(points * 0.3, rounded, kernel, fast=isinstance(kernel, RBF), rtol=1e-3)


@pytest.mark.parametrize("kernel", [RBF(), Laplace(), Cosine()], ids=repr)
def test_no_points_no_values(kernel: Kernel) -> None:
    scaled = ScaledKernel(torch.empty(0, 3), kernel)
    assert scaled.write(torch.ones(2, 3), torch.empty(2, 0)) is None
    assert scaled.units.shape == (0,)


def test_a_row_that_is_not_finite_is_named(points: Tensor) -> None:
    queries = points[:4].clone()
    queries[2, 1] = torch.nan
    with pytest.raises(ValueError, match=r"queries must be finite.* row 102 is not"):
        ScaledKernel(points, RBF()).write(queries, torch.empty(4, 40), start=100)
