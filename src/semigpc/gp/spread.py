"""The ensemble with its members spread over processes: each keeps and changes its own, and one sum joins their answers."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from semigpc.gp.checks import (
    check_classes,
    check_engine,
    check_offset,
    check_queries,
    check_rows,
    check_slots,
    check_tensor,
    full_precision,
)
from semigpc.gp.collectives import Sum, SumGradients, gathered
from semigpc.gp.engine import Engine, Expansion, NoExpansionError
from semigpc.gp.kernels import Kernel
from semigpc.gp.members import by_member, check_members, ensemble_slots, fitting_stripe, member_capacities


class SpreadEnsembleGP(nn.Module):
    """An :class:`EnsembleGP` whose member m lives on process m mod W, of the W processes in torch's default group.

        mu(h) = sum_r sum_{m on r} w_m mu_m(h) / sum_r sum_{m on r} w_m

    Every process gives the same calls with the same arguments, and gets the same answers: those of an EnsembleGP up to the
    order of sums. ``mean`` is one all-reduce of (Q, C + 1) float64, ``variance`` one of (Q, 2), a change costs no message at
    all. ``features``, ``targets``, ``explain``, ``expansion``, ``state_dict`` and loading bring together what is spread. A
    state has the keys of an EnsembleGP's with all members, and either loads the other's.

    ``mean`` is differentiable in the queries: the sum passes the gradient on to each process's members, and what they make of
    it is added up, one more all-reduce of (Q, D). So it serves role="classifier" too.

    A member that refuses a change (a K that cannot be inverted) raises on its own process alone, which ends the run.

    Args:
        capacity, n_features, n_classes, make, members, combine, stripe: as for :class:`EnsembleGP`. With fewer members than
            processes some hold none.
    """

    layout: Tensor
    occupied: Tensor

    def __init__(
        self,
        capacity: int,
        n_features: int,
        n_classes: int,
        *,
        make: Callable[[int], Engine],
        members: int = 5,
        combine: Literal["precision", "mean"] = "precision",
        stripe: int = 64,
    ) -> None:
        super().__init__()
        if combine not in ("precision", "mean"):
            raise ValueError(f"combine must be 'precision' or 'mean'; got {combine!r}.")
        self.stripe, self.n_members, self.combine = fitting_stripe(capacity, members, stripe), members, combine
        self.capacity, self.n_features, self.n_classes = capacity, n_features, n_classes
        sizes = member_capacities(capacity, members, self.stripe)
        own = {number: make(sizes[number]) for number in range(dist.get_rank(), members, dist.get_world_size())}
        sample = next(iter(own.values()), None) or make(1)
        check_members([sample, *own.values()], n_features, n_classes)
        self.members = nn.ModuleDict({str(number): cast("nn.Module", engine) for number, engine in own.items()})
        self.kernel: Kernel = sample.kernel
        self.noise_std, self.dtype = sample.noise_std, sample.dtype
        check_engine(capacity, n_features, n_classes, kernel=self.kernel, noise_std=self.noise_std, dtype=self.dtype)
        device = sample.features.device
        self.register_buffer("layout", torch.tensor([capacity, members, self.stripe]))
        self.register_buffer("occupied", torch.zeros(capacity, dtype=torch.bool, device=device), persistent=False)
        self.register_state_dict_post_hook(_add_the_others)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_keep_our_own)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_post_hook(_ask_what_is_held)  # type: ignore[no-untyped-call]

    # Asking ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Occupied slots, of all processes."""
        return int(self.occupied.sum())

    @property
    def features(self) -> Tensor:
        """h_Q, (N, D), of all processes; rows of empty slots are 0."""
        return self._bring_together("features", self.n_features)

    @property
    def targets(self) -> Tensor:
        """y_Q, (N, C), of all processes; rows of empty slots are 0."""
        return self._bring_together("targets", self.n_classes)

    @full_precision()
    def mean(self, queries: Tensor, *, offset: Tensor | None = None) -> Tensor:
        """mu(h), (Q, C), for targets less ``offset`` (C,); differentiable in the queries, the weights taken as constants.

        Args:
            queries: (Q, D), the same on all processes.
        """
        check_queries(self, queries)
        if offset is not None:
            check_offset(self, offset)
        asked: Tensor = SumGradients.apply(queries) if queries.requires_grad else queries
        sums = torch.cat([0 * asked[:, :1].double()] * (self.n_classes + 1), dim=1)  # so that all take part in the way back
        for number, engine in self._own_active():
            weights = self._weights(number, engine, queries.detach())
            sums = sums + torch.cat([weights * engine.mean(asked, offset=offset).double(), weights], dim=1)
        total: Tensor = Sum.apply(sums)
        return (total[:, :-1] / total[:, -1:]).to(queries.dtype)

    @full_precision()
    @torch.no_grad()
    def variance(self, queries: Tensor) -> Tensor:
        """var(h) = sum_m w_m v_m(h) / sum_m w_m, (Q,), at least 0.

        Args:
            queries: (Q, D), the same on all processes.
        """
        check_queries(self, queries)
        sums = queries.new_zeros(len(queries), 2, dtype=torch.float64)
        for number, engine in self._own_active():
            weights = self._weights(number, engine, queries)
            sums += torch.cat([weights * engine.variance(queries).double().unsqueeze(1), weights], dim=1)
        dist.all_reduce(sums)
        return (sums[:, 0] / sums[:, 1]).to(queries.dtype)

    @full_precision()
    @torch.no_grad()
    def explain(self, queries: Tensor, classes: Tensor) -> Tensor:
        """What each slot adds to the mean of one class per query, (Q, N), of all processes; rows sum to the mean.

        Args:
            queries: (Q, D). classes: (Q,) the class to explain for each query.
        """
        check_classes(self, queries, classes)
        reasons = queries.new_zeros(len(queries), self.capacity + 1, dtype=torch.float64)
        for number, engine in self._own_active():
            weights = self._weights(number, engine, queries)
            reasons[:, self._slots_of(number)] = weights * engine.explain(queries, classes).double()
            reasons[:, -1:] += weights
        dist.all_reduce(reasons)
        return (reasons[:, :-1] / reasons[:, -1:]).to(queries.dtype)

    @torch.no_grad()
    def expansion(self, *, offset: Tensor | None = None) -> Expansion:
        """The mean as a sum of kernels, of all processes. Only with combine="mean"."""
        if self.combine == "precision":
            raise NoExpansionError(
                "an ensemble with combine='precision' is no fixed sum of kernels: its weights need every member's variance at "
                "the query. One with combine='mean' can be exported."
            )
        parts = gathered({number: engine.expansion(offset=offset) for number, engine in self._own_active()})
        ordered = [parts[number] for number in sorted(parts)]
        device = self.occupied.device
        points, weights = (torch.cat([part[i].to(device) for part in ordered]) for i in range(2))
        return Expansion(points, weights / len(ordered))

    # Changing -------------------------------------------------------------------------------------------------------

    @full_precision()
    @torch.no_grad()
    def replace(self, slots: Tensor, features: Tensor, targets: Tensor) -> None:
        """Put new rows into slots, empty or occupied; a process changes those of its own members.

        Args:
            slots: (B,) distinct integers in [0, capacity). features: (B, D). targets: (B, C). The same on all processes.
        """
        slots = check_slots(self, slots)
        features, targets = check_rows(self, slots, features, targets)
        for rows in by_member(slots, self.n_members, self.stripe):
            if (engine := self._own(rows.member)) is not None:
                engine.replace(rows.slots, features[rows.positions], targets[rows.positions])
        self.occupied[slots] = True

    @full_precision()
    @torch.no_grad()
    def remove(self, slots: Tensor) -> None:
        """Empty some occupied slots. No slots, no change.

        Args:
            slots: (B,) distinct, occupied; the same on all processes.
        """
        check_tensor("slots", slots)
        if slots.shape == (0,):
            return
        slots = check_slots(self, slots, occupied=True)
        for rows in by_member(slots, self.n_members, self.stripe):
            if (engine := self._own(rows.member)) is not None:
                engine.remove(rows.slots)
        self.occupied[slots] = False

    def rebuild(self) -> None:
        """Every member anew from its stored features and targets."""
        for _, engine in self._owned():
            engine.rebuild()

    def reanchor(self, kernel: Kernel, noise_std: float) -> None:
        """Go on with another kernel and noise in all members."""
        check_engine(self.capacity, self.n_features, self.n_classes, kernel=kernel, noise_std=noise_std, dtype=self.dtype)
        for _, engine in self._owned():
            engine.reanchor(kernel, noise_std)
        self.kernel, self.noise_std = kernel, noise_std

    # Members --------------------------------------------------------------------------------------------------------

    def _owned(self) -> Iterator[tuple[int, Engine]]:
        for number, engine in self.members.items():
            yield int(number), cast("Engine", engine)

    def _own(self, number: int) -> Engine | None:
        return cast("Engine", self.members[str(number)]) if str(number) in self.members else None

    def _slots_of(self, number: int) -> Tensor:
        """The ensemble's slots (n,) of a member, in its own order."""
        size = member_capacities(self.capacity, self.n_members, self.stripe)[number]
        local = torch.arange(size, device=self.occupied.device)
        return ensemble_slots(number, local, self.n_members, self.stripe)

    def _active(self) -> list[int]:
        """Members that hold rows, wherever they are; the first one, which answers with the prior, if none does."""
        return [number for number in range(self.n_members) if bool(self.occupied[self._slots_of(number)].any())] or [0]

    def _own_active(self) -> list[tuple[int, Engine]]:
        active = self._active()
        return [(number, engine) for number, engine in self._owned() if number in active]

    @torch.no_grad()
    def _weights(self, number: int, engine: Engine, queries: Tensor) -> Tensor:
        """w_m, (Q, 1) float64: 1 where there is nothing to weigh."""
        if self.combine == "mean" or self._active() == [number]:
            return queries.new_ones(len(queries), 1, dtype=torch.float64)
        return (engine.variance(queries).double() + self.noise_std**2).reciprocal().unsqueeze(1)

    @torch.no_grad()
    def _bring_together(self, name: str, width: int) -> Tensor:
        rows = torch.zeros(self.capacity, width, dtype=self.dtype, device=self.occupied.device)
        for number, engine in self._owned():
            rows[self._slots_of(number)] = getattr(engine, name)
        dist.all_reduce(rows)
        return rows

    def extra_repr(self) -> str:
        return (
            f"capacity={self.capacity}, n_features={self.n_features}, n_classes={self.n_classes}, members={self.n_members}, "
            f"combine={self.combine!r}, stripe={self.stripe}"
        )


def _add_the_others(ensemble: SpreadEnsembleGP, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Complete a state with the members of the other processes."""
    below = f"{prefix}members."
    own = {key.removeprefix(below): value.detach().cpu() for key, value in state.items() if key.startswith(below)}
    device = ensemble.occupied.device
    state.update({below + key: value.to(device) for key, value in gathered(own).items() if key not in own})


def _keep_our_own(ensemble: SpreadEnsembleGP, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Leave in the state what is to be loaded here."""
    layout = state.get(prefix + "layout")
    if layout is not None and layout.tolist() != ensemble.layout.tolist():
        saved, ours = layout.tolist(), ensemble.layout.tolist()
        raise ValueError(f"saved is an ensemble of (capacity, members, stripe) {tuple(saved)}; this one has {tuple(ours)}.")
    for number in range(ensemble.n_members):
        below = f"{prefix}members.{number}."
        if ensemble._own(number) is None:
            for key in [key for key in state if key.startswith(below)]:
                del state[key]


def _ask_what_is_held(ensemble: SpreadEnsembleGP, *_: object) -> None:
    """After loading: which slots are occupied, on whatever process."""
    held = torch.zeros(ensemble.capacity, dtype=torch.int32, device=ensemble.occupied.device)
    for number, engine in ensemble._owned():
        held[ensemble._slots_of(number)] = engine.occupied.to(held)
    dist.all_reduce(held)
    ensemble.occupied.copy_(held > 0)
