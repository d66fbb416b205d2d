"""The matrix-free engine keeps to its tolerance of a dense float64 solve, and to its memory."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.references import kernel_matrix, posterior
from semigpc.gp import RBF, Cosine, Kernel, Laplace, MatrixFreeGP, matrix_free
from semigpc.gp.conjugate_gradients import PIECE, cross_product, kernel_columns, symmetric_product
from tests.gp.streams import assert_near, clusters, replace_rows

WIDTH, CLASSES, NOISE_STD = 16, 4, 0.3
KERNEL = RBF(length_scale=0.5)


def make(capacity: int, **options: Any) -> MatrixFreeGP:
    model: dict[str, Any] = {"kernel": KERNEL, "noise_std": NOISE_STD}
    solver = {"rank": 32, "tolerance": 1e-3, "dtype": torch.float64}
    return MatrixFreeGP(capacity, WIDTH, CLASSES, **(model | solver | options))


def true_residual(engine: MatrixFreeGP) -> Tensor:
    """y - K alpha over the occupied slots, (n, C), by dense float64."""
    held = engine.occupied
    K = kernel_matrix(engine.features[held].double(), engine.kernel, engine.noise_std)
    return engine.targets[held].double() - K @ engine.alpha[held]


def assert_within_tolerance(engine: MatrixFreeGP) -> None:
    """Residual and mean are within their bounds, and nothing lies in empty slots."""
    held = engine.occupied
    norms = torch.linalg.vector_norm(engine.targets[held].double(), dim=0)
    residual = torch.linalg.vector_norm(true_residual(engine), dim=0)
    assert (residual <= engine.tolerance * norms).all(), residual / norms
    features, targets = engine.features[held].double(), engine.targets[held].double()
    queries = torch.cat([features, -features])
    exact, _ = posterior(queries, features, targets, engine.kernel, engine.noise_std)
    error = engine.mean(queries) - exact
    at_rows = torch.linalg.vector_norm(error[: len(features)], dim=0)
    assert (at_rows <= residual + 1e-6 * norms).all()
    assert (error.abs() <= residual / engine.noise_std + 1e-6).all()  # k(h, h) = 1
    assert not engine.alpha[~held].any()
    assert not engine.residual[~held].any()
    assert len(engine) == int(held.sum())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "dtype", "tolerance"),
    [
        ("fifo", torch.float32, 1e-3),
        ("balanced", torch.float64, 1e-6),
        ("arbitrary", torch.float32, 1e-4),
    ],
)
def test_hundreds_of_replacements_stay_within_the_tolerance(
    order: str, dtype: torch.dtype, tolerance: float, generator: torch.Generator
) -> None:
    engine = make(120, dtype=dtype, tolerance=tolerance)
    draw, sizes = clusters(generator, dtype=dtype), [1 + step % 9 for step in range(200)]
    for step in replace_rows(engine, order, draw, sizes, generator):
        if order == "arbitrary" and step % 5 == 4:
            engine.remove(engine.occupied.nonzero().squeeze(1)[::7][:3])
        if step < 4 or step % 25 == 24:
            assert_within_tolerance(engine)
    assert engine.health.steps >= 200
    assert 2 <= engine.health.landmark_choices <= 40


@pytest.mark.parametrize(
    "kernel", [Laplace(length_scale=0.7), Cosine(), RBF(length_scale=2.0)], ids=repr
)
def test_every_positive_definite_kernel_is_solved(
    kernel: Kernel, generator: torch.Generator
) -> None:
    engine, draw = make(120, kernel=kernel), clusters(generator, spread=1.0)
    for step in range(30):
        engine.replace((torch.arange(8) + 8 * step) % 120, *draw(8))
    assert_within_tolerance(engine)


def test_the_state_holds_the_rows_and_nothing_that_is_solved_for() -> None:
    assert set(make(20).state_dict()) == {"features", "targets", "occupied"}


@pytest.mark.slow
def test_a_warm_start_takes_less_than_half_of_a_cold_one(generator: torch.Generator) -> None:
    size = 2000
    engine = MatrixFreeGP(
        size, 32, CLASSES, kernel=RBF(length_scale=0.6), noise_std=0.316, rank=256
    )
    draw = clusters(generator, width=32, spread=0.8, dtype=torch.float32)
    engine.replace(torch.arange(size), *draw(size))
    before = engine.health.total_iterations
    for step in range(6):
        engine.replace(torch.arange(8) + 8 * step, *draw(8))
    warm = (engine.health.total_iterations - before) / 6
    engine.rebuild()
    assert engine.health.iterations >= 6
    assert warm <= engine.health.iterations / 2  # 3 to 4 of 13


def test_a_small_change_needs_no_pass_over_the_matrix(generator: torch.Generator) -> None:
    engine, draw = make(300, rank=128, tolerance=1e-2), clusters(generator)
    features, targets = draw(300)
    engine.replace(torch.arange(300), features, targets)
    passes = engine.health.passes
    for slot in range(10):
        nearly = features[slot : slot + 1] + 1e-3 * draw(1)[0]
        engine.replace(torch.tensor([slot]), nearly, targets[slot : slot + 1])
    assert engine.health.passes == passes
    assert engine.health.kept >= 10
    assert_within_tolerance(engine)


def test_a_small_change_makes_the_host_wait_twice(generator: torch.Generator) -> None:
    """For the factor of K_SS and for the residual; arguments are checked elsewhere."""
    waits: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name, indices = func.overloadpacket.__name__, args[1] if len(args) > 1 else None
            masked = isinstance(indices, (list, tuple)) and any(
                getattr(i, "dtype", None) == torch.bool for i in indices
            )
            if masked or name in ("_local_scalar_dense", "nonzero", "masked_select"):
                waits.append(name)
            return func(*args, **(kwargs or {}))

    engine, draw = make(300, rank=128, tolerance=1e-2), clusters(generator)
    features, targets = draw(300)
    engine.replace(torch.arange(0, 300, 3), features[::3], targets[::3])
    engine.replace(torch.arange(1, 300, 3), features[1::3], targets[1::3])
    with Watch():  # type: ignore[no-untyped-call]
        engine.put(torch.tensor([3]), features[3:4] + 1e-4, targets[3:4])
    assert waits == ["_local_scalar_dense"] * 2
    assert_within_tolerance(engine)


def test_nothing_of_the_size_of_the_matrix_is_ever_made(generator: torch.Generator) -> None:
    """N = 4000: K would be 16 million numbers; tiles, features and columns are far fewer."""
    size, largest = 4000, 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            nonlocal largest
            made = func(*args, **(kwargs or {}))
            for tensor in made if isinstance(made, (tuple, list)) else [made]:
                largest = max(largest, tensor.numel() if isinstance(tensor, Tensor) else 0)
            return made

    engine = MatrixFreeGP(
        size, 8, 2, kernel=RBF(length_scale=1.0), noise_std=0.5, rank=64, tolerance=1e-2
    )
    draw = clusters(generator, n_classes=2, width=8, dtype=torch.float32)
    with Watch():  # type: ignore[no-untyped-call]
        engine.replace(torch.arange(size), *draw(size))
        engine.replace(torch.arange(8), *draw(8))
        engine.mean(draw(4)[0])
        engine.variance(draw(4)[0])
    assert 0 < largest <= max(PIECE * PIECE, size * 256)
    assert largest < size * size / 10


def test_variance_is_exact_to_the_tolerance_and_never_too_sure(generator: torch.Generator) -> None:
    engine, draw = make(200), clusters(generator)
    engine.replace(torch.arange(200), *draw(200))
    engine.remove(torch.arange(50, 60))
    held = engine.occupied
    queries = torch.cat([draw(70)[0], 5 * draw(3)[0]])
    _, exact = posterior(queries, engine.features[held], engine.targets[held], KERNEL, NOISE_STD)
    error = engine.variance(queries) - exact
    k = torch.linalg.vector_norm(KERNEL(queries, engine.features[held]), dim=1)
    assert (error >= -1e-9).all()
    assert (error <= (engine.tolerance * k / NOISE_STD) ** 2 + 1e-9).all()


def test_products_in_tiles_equal_the_whole_matrix(generator: torch.Generator) -> None:
    features, points = clusters(generator)(2 * PIECE + 37)[0], clusters(generator)(50)[0]
    x = torch.randn(len(features), 3, generator=generator, dtype=torch.float64)
    whole = kernel_matrix(features, KERNEL, 1e-8) @ x
    assert_near(symmetric_product(features, KERNEL, x), whole, atol=1e-9)
    narrow = features.float()
    in_float64 = kernel_matrix(narrow.double(), KERNEL, 1e-8) @ x
    assert_near(symmetric_product(narrow, KERNEL, x), in_float64, atol=2e-4)
    k = KERNEL(features, points)
    assert_near(kernel_columns(features, points, KERNEL), k, atol=1e-12)
    assert_near(cross_product(features, points, KERNEL, x[:50]), k @ x[:50], atol=1e-10)


def test_a_residual_that_has_drifted_is_found_and_mended(generator: torch.Generator) -> None:
    engine, draw = make(150), clusters(generator)
    engine.replace(torch.arange(150), *draw(150))
    engine.solution[:, 0] *= 1.01  # alpha no longer fits the residual that is kept
    for step in range(matrix_free.AUDIT_EVERY):
        engine.replace(torch.arange(4) + 4 * step, *draw(4))
    assert_within_tolerance(engine)


def test_the_residual_is_computed_afresh_now_and_then(
    monkeypatch: pytest.MonkeyPatch, generator: torch.Generator
) -> None:
    monkeypatch.setattr(matrix_free, "REFRESH_EVERY", 3)
    engine, draw = make(60), clusters(generator)
    features, targets = draw(60)
    engine.replace(torch.arange(60), features, targets)
    passes = engine.health.passes
    for _ in range(9):
        engine.replace(torch.arange(1), features[:1], targets[:1])
    assert engine.health.passes >= passes + 2


def test_a_class_whose_last_row_leaves_is_forgotten_exactly(generator: torch.Generator) -> None:
    engine, draw = make(60), clusters(generator)
    features, targets = draw(60)
    targets[:, 3] = 0
    targets[7] = torch.eye(CLASSES)[3]
    engine.replace(torch.arange(60), features, targets)
    assert engine.alpha[:, 3].any()
    engine.replace(torch.tensor([7]), features[:1], targets[:1])
    assert not engine.alpha[:, 3].any()
    assert_within_tolerance(engine)


def test_more_landmarks_than_rows_and_rows_that_coincide_are_no_trouble(
    generator: torch.Generator,
) -> None:
    engine, draw = make(60, rank=1000), clusters(generator)
    features, targets = draw(4)
    engine.replace(torch.arange(60), features.repeat(15, 1), targets.repeat(15, 1))
    engine.replace(torch.arange(8), features[[0, 1, 2, 3] * 2], targets[[0, 1, 2, 3] * 2])
    assert_within_tolerance(engine)


def test_mixed_precision_around_the_engine_does_not_reach_it(generator: torch.Generator) -> None:
    engine, draw = make(40, dtype=torch.float32), clusters(generator, dtype=torch.float32)
    torch.nn.Sequential(engine).half()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        engine.replace(torch.arange(40), *draw(40))
    assert engine.features.dtype == torch.float32
    assert engine.alpha.dtype == torch.float64
    assert_within_tolerance(engine)
    assert engine.mean(draw(3)[0].half()).dtype == torch.float16
