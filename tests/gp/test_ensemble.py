"""An ensemble equals its formula over members fitted afresh, whatever has been done to it."""

import copy
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.references import posterior
from semigpc.gp import RBF, EnsembleGP, ExactGP, NotPositiveDefiniteError
from semigpc.gp.ensemble import member_capacities, member_slots
from semigpc.refiners.buffers import FIFOBuffer
from tests.gp.streams import assert_near, clusters, failing_once, replace_rows
from tests.training.together import run_all

WIDTH, CLASSES, NOISE_STD = 16, 4, 0.3
KERNEL = RBF(length_scale=0.5)
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal")


def member(capacity: int) -> ExactGP:
    return ExactGP(capacity, WIDTH, CLASSES, kernel=KERNEL, noise_std=NOISE_STD)


def make(capacity: int, **options: Any) -> EnsembleGP:
    chosen: dict[str, Any] = {"members": 3, "combine": "precision", "stripe": 4} | options
    return EnsembleGP(capacity, WIDTH, CLASSES, make=member, **chosen)


def expected(ensemble: EnsembleGP, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance by the formulas, from dense solves of what each member should hold."""
    slots, stripe = torch.arange(ensemble.capacity), ensemble.stripe
    means, variances = [], []
    for number in range(len(ensemble.members)):
        held = ensemble.occupied & (slots // stripe % len(ensemble.members) == number)
        if held.any():
            rows = ensemble.features[held], ensemble.targets[held]
            mean, variance = posterior(queries, *rows, ensemble.kernel, ensemble.noise_std)
            means.append(mean)
            variances.append(variance)
    mu, v = torch.stack(means), torch.stack(variances)
    if ensemble.combine == "mean":
        return mu.mean(dim=0), v.mean(dim=0)
    w = 1 / (v + ensemble.noise_std**2)
    total = w.sum(dim=0)
    mean = (w.unsqueeze(2) * mu).sum(dim=0) / total.unsqueeze(1)
    return mean, len(w) / total - ensemble.noise_std**2


def assert_true(ensemble: EnsembleGP, queries: Tensor) -> None:
    mean, variance = expected(ensemble, queries)
    assert_near(ensemble.mean(queries), mean, atol=1e-10)
    assert_near(ensemble.variance(queries), variance, atol=1e-10)


@pytest.mark.parametrize(
    ("capacity", "members", "stripe"),
    [(60, 3, 4), (61, 3, 4), (70, 5, 8), (7, 7, 64), (9, 2, 3), (5, 1, 2)],
)
def test_every_slot_has_one_place_in_one_member(capacity: int, members: int, stripe: int) -> None:
    ensemble, slots = make(capacity, members=members, stripe=stripe), torch.arange(capacity)
    owner, local = member_slots(slots, members, ensemble.stripe)
    sizes = member_capacities(capacity, members, ensemble.stripe)
    assert sum(sizes) == capacity
    assert max(sizes) - min(sizes) <= ensemble.stripe
    for number, size in enumerate(sizes):
        assert local[owner == number].tolist() == list(range(size))
        assert torch.equal(ensemble._slots_of(number), slots[owner == number])


def test_batches_of_a_fifo_buffer_go_to_one_member_at_a_time(generator: torch.Generator) -> None:
    ensemble, draw, buffer = make(48, stripe=8), clusters(generator), FIFOBuffer(48, CLASSES)
    for step in range(12):
        before = [copy.copy(engine.health) for engine in ensemble.engines]
        features, targets = draw(8)
        ensemble.replace(buffer.write(targets.argmax(dim=1)).slots, features, targets)
        pairs = zip(ensemble.engines, before, strict=True)
        changed = [engine.health != old for engine, old in pairs]
        assert changed == [number == step % 3 for number in range(3)]


@pytest.mark.parametrize("combine", ["precision", "mean"])
@pytest.mark.parametrize("order", ["fifo", "balanced", "arbitrary"])
def test_replacing_rows_equals_members_fitted_afresh(
    order: str, combine: Literal["precision", "mean"], generator: torch.Generator
) -> None:
    ensemble, draw = make(62, combine=combine), clusters(generator)
    queries = draw(10)[0]
    sizes = [1 + step % 7 for step in range(60)]
    for step in replace_rows(ensemble, order, draw, sizes, generator):
        if order == "arbitrary" and step % 5 == 4:
            ensemble.remove(ensemble.occupied.nonzero().squeeze(1)[:3])
        if step in (0, 3) or step % 20 == 19:
            assert_true(ensemble, queries)
    assert len(ensemble) == int(ensemble.occupied.sum())


def test_rows_are_found_in_the_slots_they_were_put_into(generator: torch.Generator) -> None:
    ensemble, (features, targets) = make(31), clusters(generator)(20)
    slots = torch.randperm(31, generator=generator)[:20]
    ensemble.replace(slots.int(), features, targets)
    assert torch.equal(ensemble.features[slots], features)
    assert torch.equal(ensemble.targets[slots], targets)
    assert ensemble.occupied.nonzero().squeeze(1).tolist() == sorted(slots.tolist())
    ensemble.remove(slots[:5])
    assert not ensemble.occupied[slots[:5]].any()
    assert not ensemble.features[slots[:5]].any()


def test_a_member_without_data_near_a_query_dilutes_only_the_plain_mean() -> None:
    near = torch.eye(WIDTH, dtype=torch.float64)[:1]
    far = 9 * torch.eye(WIDTH, dtype=torch.float64)[1:2]
    target = torch.tensor([[1.0, 0, 0, 0]], dtype=torch.float64)
    answers = {}
    for combine in ("precision", "mean"):
        ensemble = make(8, members=2, combine=combine)
        rows = torch.cat([near.repeat(4, 1), far.repeat(4, 1)])
        ensemble.replace(torch.arange(8), rows, target.repeat(8, 1))
        answers[combine] = float(ensemble.mean(near)[0, 0])
    knowing = 4 / (4 + NOISE_STD**2)
    sure, unsure = 1 / (1 - knowing + NOISE_STD**2), 1 / (1 + NOISE_STD**2)
    assert answers["mean"] == pytest.approx(knowing / 2)
    assert answers["precision"] == pytest.approx(knowing * sure / (sure + unsure))
    assert answers["precision"] > 0.85 * knowing


def test_the_weighted_mean_is_differentiable_with_weights_held(generator: torch.Generator) -> None:
    draw, weighted = clusters(generator), make(30)
    weighted.replace(torch.arange(30), *draw(30))
    queries = draw(3)[0].requires_grad_()
    (gradient,) = torch.autograd.grad(weighted.mean(queries).sum(), queries)
    parts, precisions = [], []
    for engine in weighted.engines:
        parts.append(torch.autograd.grad(engine.mean(queries).sum(), queries)[0])
        precisions.append(1 / (engine.variance(queries.detach()) + NOISE_STD**2))
    w = torch.stack(precisions).unsqueeze(2)
    held = (w * torch.stack(parts)).sum(dim=0) / w.sum(dim=0)
    assert_near(gradient, held, atol=1e-12)


def test_what_one_member_refuses_leaves_all_as_they_were(generator: torch.Generator) -> None:
    def noiseless(capacity: int) -> ExactGP:
        return ExactGP(capacity, WIDTH, CLASSES, kernel=RBF(length_scale=1.0), noise_std=1e-9)

    ensemble = EnsembleGP(24, WIDTH, CLASSES, make=noiseless, members=2, stripe=4)
    draw = clusters(generator, spread=100.0, dtype=torch.float32)
    ensemble.replace(torch.arange(6), *draw(6))
    queries, features = draw(5)[0], ensemble.features
    before = ensemble.mean(queries)
    rows, targets = draw(8)
    rows[4:] = rows[4]  # slots 4 to 7 are the second member's: rows that coincide need noise
    with pytest.raises(NotPositiveDefiniteError):
        ensemble.replace(torch.arange(8), rows, targets)
    assert torch.equal(ensemble.features, features)
    assert ensemble.occupied.sum() == 6
    assert_near(ensemble.mean(queries), before, atol=1e-5)
    with pytest.raises(NotPositiveDefiniteError):
        ensemble.reanchor(RBF(length_scale=1e9), 1e-9)
    assert {engine.kernel for engine in ensemble.engines} == {RBF(length_scale=1.0)}


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("call", ["replace", "remove"])
def test_a_change_that_fails_in_one_member_changes_none(
    call: str, written: bool, generator: torch.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble, draw = make(30), clusters(generator)
    ensemble.replace(torch.arange(20), *draw(20))
    queries, rows = draw(5)[0], draw(24)
    before = ensemble.mean(queries)
    state = {name: value.clone() for name, value in ensemble.state_dict().items()}
    middle = ensemble.engines[1]
    monkeypatch.setattr(
        middle, "_change", failing_once(middle._change, RuntimeError, written=written)
    )
    arguments = (torch.arange(24), *rows) if call == "replace" else (torch.arange(12),)
    with pytest.raises(RuntimeError, match="no solution"):
        getattr(ensemble, call)(*arguments)
    assert len(ensemble) == int(ensemble.occupied.sum()) == 20
    assert [len(engine) for engine in ensemble.engines] == [8, 8, 4]
    for name, value in ensemble.state_dict().items():
        assert "steps" in name or torch.equal(value, state[name])
    assert_near(ensemble.mean(queries), before, atol=1e-10)
    ensemble.replace(torch.arange(24), *rows)
    assert_true(ensemble, queries)


@pytest.mark.parametrize("combine", ["precision", "mean"])
def test_a_step_waits_three_times_for_the_device(
    combine: Literal["precision", "mean"], generator: torch.Generator
) -> None:
    """To check the queries, to check the rows, and to update the one member they belong to."""

    class Waits(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = func.overloadpacket.__name__
            masked = name in ("index", "index_put_") and any(
                x is not None and x.dtype == torch.bool for x in args[1]
            )
            self.count += masked or name in WAITING
            return func(*args, **(kwargs or {}))

    ensemble, draw = make(192, stripe=8, combine=combine), clusters(generator)
    ensemble.replace(torch.arange(192), *draw(192))
    queries, rows, slots = draw(6)[0], draw(8), torch.arange(16, 24)
    with Waits() as waits:  # type: ignore[no-untyped-call]
        ensemble.mean(queries)
        ensemble.replace(slots, *rows)
    assert waits.count == 3


def test_refused_calls_change_nothing(generator: torch.Generator) -> None:
    ensemble, draw = make(30), clusters(generator)
    ensemble.replace(torch.arange(20), *draw(20))
    before = {name: value.clone() for name, value in ensemble.state_dict().items()}
    features, targets = draw(8)
    features[7] = torch.nan
    with pytest.raises(ValueError, match="features must be finite"):
        ensemble.replace(torch.arange(8), features, targets)
    with pytest.raises(IndexError, match=r"slots must lie in \[0, 30\)"):
        ensemble.replace(torch.tensor([0, 30]), *draw(2))
    with pytest.raises(IndexError, match="slot 25 is empty"):
        ensemble.remove(torch.tensor([0, 25]))
    with pytest.raises(ValueError, match="noise_std must be a positive"):
        ensemble.reanchor(KERNEL, -1.0)
    with pytest.raises(ValueError, match=r"\(30, 5, 4\); this one has \(30, 3, 4\)"):
        ensemble.load_state_dict(make(30, members=5).state_dict())
    damaged = make(30).state_dict() | {"members.2.targets": torch.full((8, CLASSES), torch.nan)}
    with pytest.raises(ValueError, match=r"members\.2\.targets.*damaged"):
        ensemble.load_state_dict(damaged)
    assert all(torch.equal(value, before[name]) for name, value in ensemble.state_dict().items())


def test_what_no_ensemble_can_be_made_of_is_refused() -> None:
    with pytest.raises(ValueError, match=r"at most capacity.*; got 5 members for 4 slots"):
        make(4, members=5)
    with pytest.raises(ValueError, match="members must be an integer of at least 1; got 0"):
        make(4, members=0)
    with pytest.raises(ValueError, match="stripe must be an integer of at least 1; got -3"):
        make(4, members=2, stripe=-3)
    with pytest.raises(ValueError, match="combine must be 'precision' or 'mean'; got 'vote'"):
        make(4, combine="vote")
    with pytest.raises(ValueError, match="9 features and 4 classes; got 16 and 4"):
        EnsembleGP(20, 9, CLASSES, make=member)
    noises = iter([0.1, 0.2])

    def uneven(capacity: int) -> ExactGP:
        return ExactGP(capacity, 9, 2, noise_std=next(noises))

    with pytest.raises(ValueError, match="engines of one kernel, noise_std and dtype"):
        EnsembleGP(20, 9, 2, make=uneven, members=2)


def test_a_stripe_too_wide_for_the_slots_is_narrowed_to_an_equal_share() -> None:
    ensemble = make(23, members=5, stripe=64)
    assert ensemble.stripe == 4
    assert [engine.capacity for engine in ensemble.engines] == [7, 4, 4, 4, 4]


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc"
)
def test_the_papers_outlook_of_five_times_16300_rows_costs_little_until_it_fills(
    generator: torch.Generator,
) -> None:
    before = resident_bytes()
    ensemble = EnsembleGP(
        5 * 16300, 384, CLASSES, make=lambda capacity: ExactGP(capacity, 384, CLASSES)
    )
    draw = clusters(generator, width=384, dtype=torch.float32)
    features, targets = draw(64)
    ensemble.replace(torch.arange(64), features, targets)
    assert ensemble.mean(features[:4]).argmax(dim=1).equal(targets[:4].argmax(dim=1))
    assert resident_bytes() - before < 1.5e9


@pytest.mark.nightly
def test_members_on_two_processes_answer_as_one_ensemble() -> None:
    run_all("tests.gp.spread_checks")
