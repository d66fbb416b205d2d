"""The reasons that are found are those of a full search."""

import pytest
import torch
from torch import Tensor

from semigpc.estimator.posterior import GROUP, ReasonSearch, grouping_order


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


def check(search: ReasonSearch, weights: Tensor, values: Tensor, classes: Tensor, top: int) -> None:
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
    check(search, weights, values, torch.randint(5, (200,), generator=generator), top)


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
    check(search, weights, values, classes, 3)
    assert sum(asked) < 30


def test_queries_whose_bounds_promise_too_much_are_answered_from_all_rows(
    generator: torch.Generator,
) -> None:
    weights = torch.full((8 * GROUP, 1), 0.1)
    weights[::GROUP] = 1.0  # large where likeness is small: every bound is far too high
    values = 0.5 + 0.5 * torch.rand(5, len(weights), generator=generator)
    values[:, ::GROUP] = 0.01
    check(ReasonSearch(weights), weights, values, torch.zeros(5, dtype=torch.int64), 3)


def test_weights_below_zero_are_reasons_too_if_there_are_no_others(
    generator: torch.Generator,
) -> None:
    weights = -torch.rand(8 * GROUP, 2, generator=generator) - 0.1
    weights[5, 0] = 1.0
    values = torch.rand(20, len(weights), generator=generator) + 0.1
    check(ReasonSearch(weights), weights, values, torch.arange(20) % 2, 3)


def test_equal_weights_are_different_rows() -> None:
    weights = torch.full((8 * GROUP, 1), 0.5)
    values = torch.full((4, len(weights)), 0.25)
    check(ReasonSearch(weights), weights, values, torch.zeros(4, dtype=torch.int64), 5)


def test_values_of_any_sign_are_searched_in_full(generator: torch.Generator) -> None:
    weights, _ = labels(generator, 130)
    search = ReasonSearch(weights)
    values, classes = torch.randn(20, 130, generator=generator), torch.arange(20) % 5
    places, best = search.find_among_all(kernel_values(search, values)[0], classes, 3)
    shares = values * weights.mT[classes]
    assert torch.equal(best, shares.topk(3, dim=1).values)
    assert torch.equal(best, shares.gather(1, places))
