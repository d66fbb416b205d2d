"""Run as one of two processes by test_ensemble.py: every statement holds on each of them."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from semigpc.gp import RBF, EnsembleGP, ExactGP, NoExpansionError
from tests.gp.streams import assert_near

N, D, C = 22, 3, 4
KERNEL = RBF(length_scale=0.8)
CASES = ((3, "precision"), (3, "mean"), (1, "precision"), (5, "precision"))


def make(members: int, combine: str) -> EnsembleGP:
    """An ensemble of the processes in the group, or of this one alone before there is a group."""
    member = partial(ExactGP, n_features=D, n_classes=C, kernel=KERNEL, noise_std=0.3)
    return EnsembleGP(N, D, C, make=member, members=members, combine=combine, stripe=4)  # type: ignore[arg-type]


def assert_same(spread: EnsembleGP, whole: EnsembleGP, queries: torch.Tensor) -> None:
    close = partial(torch.testing.assert_close, rtol=0, atol=1e-10)
    classes, offset = torch.arange(len(queries)) % C, torch.full((C,), 0.25, dtype=torch.float64)
    assert len(spread) == len(whole)
    close(spread.occupied, whole.occupied)
    close(spread.features, whole.features)
    close(spread.targets, whole.targets)
    close(spread.variance(queries), whole.variance(queries))
    close(spread.explain(queries, classes), whole.explain(queries, classes))
    gradients = []
    for engine in (spread, whole):
        points = queries.clone().requires_grad_()
        mean = engine.mean(points, offset=offset)
        mean.square().sum().backward()
        gradients.append((mean.detach(), points.grad))
    close(*(mean for mean, _ in gradients))
    close(*(gradient for _, gradient in gradients))


def check(whole: EnsembleGP, whole_again: EnsembleGP) -> None:
    """Fill, overwrite, empty, save and load an ensemble of both processes like one of a single
    process.
    """
    torch.manual_seed(0)
    members, combine = whole.n_members, whole.combine
    spread, spread_again = make(members, combine), make(members, combine)
    assert list(whole.members) == [str(number) for number in range(members)]
    assert list(spread.members) == [str(number) for number in range(dist.get_rank(), members, 2)]
    queries = torch.randn(6, D, dtype=torch.float64)
    assert_same(spread, whole, queries)  # empty: the prior
    for step in range(6):
        slots = torch.randperm(N)[: 3 if step == 0 else 9]
        rows = torch.randn(len(slots), D).double()
        targets = torch.eye(C).double()[torch.randint(C, (len(slots),))]
        for engine in (spread, whole):
            engine.replace(slots, rows, targets)
        assert_same(spread, whole, queries)
    for engine in (spread, whole):
        engine.remove(slots[:5])
        engine.reanchor(RBF(length_scale=0.5), 0.4)
    assert_same(spread, whole, queries)

    saved, theirs = spread.state_dict(), whole.state_dict()
    assert saved.keys() == theirs.keys()
    for again in (spread_again, whole_again):
        again.reanchor(RBF(length_scale=0.5), 0.4)
    spread_again.load_state_dict(theirs)  # each loads what the other saved
    whole_again.load_state_dict(saved)
    assert_same(spread_again, whole, queries)
    assert_same(spread, whole_again, queries)
    for engine in (spread_again, whole_again):
        engine.remove(torch.tensor(sorted(engine._held)[:4]))
    assert_same(spread_again, whole_again, queries)
    expand(spread, whole, queries)


def expand(spread: EnsembleGP, whole: EnsembleGP, queries: torch.Tensor) -> None:
    if spread.combine == "mean":
        points, weights = spread.expansion()
        assert_near(whole.kernel(queries, points) @ weights, whole.mean(queries), atol=1e-8)
        return
    with pytest.raises(NoExpansionError, match="combine='mean' can be exported"):
        spread.expansion()


if __name__ == "__main__":
    wholes = [(make(*case), make(*case)) for case in CASES]
    dist.init_process_group("gloo")
    for pair in wholes:
        check(*pair)
    with pytest.raises(ValueError, match=r"\(22, 5, 4\); this one has \(22, 3, 4\)"):
        make(3, "mean").load_state_dict(wholes[-1][0].state_dict())
    dist.destroy_process_group()
