"""Several engines that share the buffer: the paper's way past one inverse (section 5)."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from semigpc.gp.engine import Engine, Expansion, NoExpansionError
from semigpc.gp.kernels import Kernel
from semigpc.gp.scales import Integers, balanced_quota

# Of the rows of a member whose rows are dealt by class: its share of all rows. The rest is for
# small classes, which all members hold.
OWN_SHARE = 5 / 6


class EnsembleGP(Engine):
    """M engines that share the slots among them, combined into one mean and variance.

        mu(h)  = sum_m w_m mu_m(h) / sum_m w_m        w_m = 1 / (v_m(h) + sigma^2)
        var(h) = sum_m w_m v_m(h) / sum_m w_m = M / sum_m w_m - sigma^2

    with combine="precision": a generalised product of experts with exponents 1/M. Where members
    agree, the result is that of each, and far from all data it is the prior. The weights depend on
    the features alone, so by convexity of the square ``variance`` is an upper bound of the squared
    error to expect of this mean, if the prior is right. ``combine="mean"`` has w_m = 1 instead,
    with the same bound: members without data near a query then dilute it, but ``mean`` needs no
    variance. Members without rows take no part. Gradients of the mean take the weights as
    constants.

    Slots lie in stripes, dealt out in turn: batches of a FIFO buffer go to one member at a time,
    and each sees all times and classes alike. A change costs what it costs the members it touches:
    with exact ones of N / M slots each, M times fewer operations and M times less memory than one
    engine of N. With "precision", ``mean`` costs M variances, O(Q N^2 / M) there.

    If torch's default process group has W > 1 processes at construction, process r holds the
    members m with m mod W = r. Every process must then make the same calls with the same arguments,
    and gets the same results, equal to those of one process up to the order of sums. ``mean`` is
    one all-reduce of (Q, C + 1) float64, and one of (Q, D) in its backward pass; ``variance`` is
    one of (Q, 2); a change needs none. ``features``, ``targets``, ``explain``, ``expansion``,
    ``state_dict`` and loading bring together the members of all processes, so a state can be loaded
    by any number of them. If a member raises an error in a change, it does so on its own process
    alone, which ends the run.

    Args:
        capacity: N, slots of all members together. n_features: D. n_classes: C.
        make: returns a member of a given capacity: any engine of D features and C classes, all of
            one kernel, noise and dtype.
        members: M, at most N. combine: "precision" or "mean".
        stripe: consecutive slots that belong to one member; made narrower where a member would have
            none.
        spread: whether processes that train together share the members.
    """

    layout: Tensor

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
        spread: bool = True,
    ) -> None:
        if combine not in ("precision", "mean"):
            raise ValueError(f"combine must be 'precision' or 'mean'; got {combine!r}.")
        stripe = fitting_stripe(capacity, members, stripe)
        sizes = member_capacities(capacity, members, stripe)
        spread = spread and spread_out()
        numbers = range(members)
        if spread:
            numbers = range(dist.get_rank(), members, dist.get_world_size())
        own = {str(number): make(sizes[number]) for number in numbers}
        first = next(iter(own.values())) if own else make(1)
        _check_members([first, *own.values()], n_features, n_classes)
        super().__init__(
            capacity,
            n_features,
            n_classes,
            kernel=first.kernel,
            noise_std=first.noise_std,
            dtype=first.dtype,
        )
        self.n_members = members
        self.combine = combine
        self.stripe = stripe
        self._spread = spread
        self.members = nn.ModuleDict(own)
        self.register_buffer("layout", torch.tensor([capacity, members, stripe]))
        occupied = torch.zeros(capacity, dtype=torch.bool, device=first.device)
        self.register_buffer("occupied", occupied, persistent=False)
        self.register_state_dict_post_hook(_add_other_members)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_drop_other_members)  # type: ignore[no-untyped-call]

    # Queries --------------------------------------------------------------------------------------

    @property
    def engines(self) -> list[Engine]:
        """The members of this process."""
        return cast("list[Engine]", list(self.members.values()))

    @property
    def features(self) -> Tensor:  # type: ignore[override]
        """h_Q, (N, D), gathered from the members; rows of empty slots are 0."""
        return self._gather("features", self.n_features)

    @property
    def targets(self) -> Tensor:  # type: ignore[override]
        """y_Q, (N, C), gathered from the members; rows of empty slots are 0."""
        return self._gather("targets", self.n_classes)

    def _mean(self, queries: Tensor, offset: Tensor | None) -> Tensor:
        if self._spread and queries.requires_grad:
            queries = SumGradients.apply(queries)
        # Made from the queries, so that backward runs also in a process without members.
        sums = 0 * queries[:, :1].double().repeat(1, self.n_classes + 1)
        for _, engine in self._active():
            weights = self._weights(engine, queries.detach())
            mean = engine._mean(queries, offset).double()
            sums = sums + torch.cat([weights * mean, weights], dim=1)
        sums = self._total(sums)
        return sums[:, :-1] / sums[:, -1:]

    def _variance(self, queries: Tensor) -> Tensor:
        sums = torch.zeros(len(queries), 2, dtype=torch.float64, device=self.device)
        for _, engine in self._active():
            variance = engine._variance(queries).clamp_min(0).double()
            weights = self._precision(variance)
            sums += torch.stack([weights * variance, weights], dim=1)
        sums = self._total(sums)
        return sums[:, 0] / sums[:, 1]

    def _nearest(self, queries: Tensor) -> Tensor:
        nearest = queries.new_full((len(queries),), torch.inf)
        for _, engine in self._own():
            nearest = torch.minimum(nearest, engine._nearest(queries))
        if self._spread:
            dist.all_reduce(nearest, op=dist.ReduceOp.MIN)
        return nearest

    def _explain(self, queries: Tensor, classes: Tensor) -> Tensor:
        sums = torch.zeros(len(queries), self.capacity + 1, dtype=torch.float64, device=self.device)
        for number, engine in self._active():
            weights = self._weights(engine, queries)
            sums[:, self._slots_of(number)] = weights * engine._explain(queries, classes).double()
            sums[:, -1:] += weights
        sums = self._total(sums)
        return sums[:, :-1] / sums[:, -1:]

    def _expansion(self, offset: Tensor | None) -> Expansion:
        if self.combine == "precision":
            raise NoExpansionError(
                "an ensemble with combine='precision' is no fixed sum of kernels: its weights "
                "need every member's variance at the query. One with combine='mean' can be "
                "exported."
            )
        parts = {number: engine._expansion(offset) for number, engine in self._active()}
        if self._spread:
            on_host = {n: Expansion(*(x.cpu() for x in part)) for n, part in parts.items()}
            parts = _gathered(on_host)
        ordered = [parts[number] for number in sorted(parts)]
        points = torch.cat([part.points for part in ordered]).to(self.device)
        weights = torch.cat([part.weights for part in ordered]).to(self.device)
        return Expansion(points, weights / len(parts))

    @torch.no_grad()
    def _weights(self, engine: Engine, queries: Tensor) -> Tensor:
        """w_m, (Q, 1) float64."""
        if self.combine == "mean" or self.n_members == 1:
            return torch.ones(len(queries), 1, dtype=torch.float64, device=self.device)
        return self._precision(engine._variance(queries).clamp_min(0).double()).unsqueeze(1)

    def _precision(self, variance: Tensor) -> Tensor:
        if self.combine == "mean":
            return torch.ones_like(variance)
        return (variance + self.noise_std**2).reciprocal()

    def _own(self) -> Iterator[tuple[int, Engine]]:
        """Return the members of this process with their numbers."""
        return zip(map(int, self.members), self.engines, strict=True)

    def _active(self) -> list[tuple[int, Engine]]:
        """Return members of this process that hold rows; if none does, the first of all.

        The mean and variance of an empty member are those of the prior.
        """
        if not len(self):
            return [(number, engine) for number, engine in self._own() if number == 0]
        return [(number, engine) for number, engine in self._own() if len(engine)]

    def _slots_of(self, number: int) -> Tensor:
        """Return the ensemble's slots (n,) of a member of this process, in its own order."""
        local = torch.arange(cast("Engine", self.members[str(number)]).capacity, device=self.device)
        return (local // self.stripe * self.n_members + number) * self.stripe + local % self.stripe

    def _total(self, sums: Tensor) -> Tensor:
        return cast("Tensor", Sum.apply(sums)) if self._spread else sums

    @torch.no_grad()
    def _gather(self, name: str, width: int) -> Tensor:
        """Return rows of all members in the ensemble's order, (N, width)."""
        rows = torch.zeros(self.capacity, width, dtype=self.dtype, device=self.device)
        for number, engine in self._own():
            rows[self._slots_of(number)] = getattr(engine, name).view(-1, width).to(rows)
        return self._total(rows)

    # Changes --------------------------------------------------------------------------------------

    def reanchor(self, kernel: Kernel, noise_std: float) -> None:
        for engine in self.engines:
            engine._check_kernel(kernel, noise_std)  # of all, before the first is changed
        super().reanchor(kernel, noise_std)

    def _change(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        owner, local = member_slots(slots, self.n_members, self.stripe)
        positions: dict[int, list[int]] = {}
        for position, number in enumerate(owner.tolist()):
            positions.setdefault(number, []).append(position)
        changes = []
        for number, engine in self._own():
            if number in positions:
                part = torch.tensor(positions[number])
                there = part.to(self.device, non_blocking=True)
                new_features = None if features is None else features[there]
                new_targets = None if targets is None else targets[there]
                changes.append((engine, local[part], new_features, new_targets))
        change_together(changes)
        self.occupied[slots.to(self.device, non_blocking=True)] = features is not None

    def _rebuild(self) -> None:
        for engine in self.engines:
            engine.rebuild()

    def _reanchor(self) -> None:
        for engine in self.engines:
            if (engine.kernel, engine.noise_std) != (self.kernel, self.noise_std):
                engine.reanchor(self.kernel, self.noise_std)

    # Saving and loading ---------------------------------------------------------------------------

    def _check_saved(self, state: dict[str, Tensor], prefix: str) -> None:
        layout = state.get(prefix + "layout")
        if layout is not None and layout.tolist() != self.layout.tolist():
            raise ValueError(
                f"saved is an ensemble of (capacity, members, stripe) {tuple(layout.tolist())}; "
                f"this one has {tuple(self.layout.tolist())}."
            )
        for number, engine in self._own():  # of all, before the first is loaded
            engine._check_saved(state, f"{prefix}members.{number}.")

    def _adopt_state(self) -> None:
        self.occupied.copy_(self._gather("occupied", 1).squeeze(1))
        self._recount()

    def extra_repr(self) -> str:
        own = f"members={self.n_members}, combine={self.combine!r}, stripe={self.stripe}"
        return f"{super().extra_repr()}, {own}"


def _add_other_members(
    ensemble: EnsembleGP, state: dict[str, Tensor], prefix: str, *_: object
) -> None:
    """Complete a state with the members of the other processes."""
    if ensemble._spread:
        own = {
            key: value.detach().cpu()
            for key, value in state.items()
            if key.startswith(f"{prefix}members.")
        }
        state.update(
            {
                key: value.to(ensemble.device)
                for key, value in _gathered(own).items()
                if key not in own
            }
        )


def _drop_other_members(
    ensemble: EnsembleGP, state: dict[str, Tensor], prefix: str, *_: object
) -> None:
    """Leave in a state the members of this process."""
    others = tuple(
        f"{prefix}members.{number}."
        for number in range(ensemble.n_members)
        if str(number) not in ensemble.members
    )
    for key in [key for key in state if key.startswith(others)]:
        del state[key]


# Members and their slots --------------------------------------------------------------------------


def deal_rows(codes: Integers, size: int, rng: np.random.Generator) -> list[Integers]:
    """Return sorted positions of the rows of each member; together they hold all rows.

    A member gets an equal share of every class, and more rows of the classes that would then have
    fewer than others, up to its size: all members hold the small classes, and each its own part of
    the large ones. With an equal share of every class alone, members would be worse on small
    classes than one GP over far fewer rows: on MNIST with a tail of 1 : 100, balanced accuracy fell
    from 0.952 to 0.939.

    Args:
        codes: (n,) classes. size: rows of a member at most, except that it holds at least one of
            each class.
    """
    counts = np.bincount(codes)
    members = -(-len(codes) // max(1, int(OWN_SHARE * size)))
    shares = -(-counts // members)
    quota = min(balanced_quota(counts, size, least=shares), int(shares.max()))
    taken = np.maximum(shares, np.minimum(counts, quota))
    orders = [rng.permutation(np.flatnonzero(codes == c)) for c in range(len(counts))]
    parts = []
    for member in range(members):
        starts = member * counts // members
        runs = [
            order.take(np.arange(start, start + n), mode="wrap")
            for order, start, n in zip(orders, starts, taken, strict=True)
            if n
        ]
        parts.append(np.sort(np.concatenate(runs)))
    return parts


def member_slots(slots: Tensor, members: int, stripe: int) -> tuple[Tensor, Tensor]:
    """Return which member holds each slot (B,), and which slot there.

    Stripe q = s // stripe belongs to member q % members.
    """
    stripes = slots // stripe
    return stripes % members, stripes // members * stripe + slots % stripe


def member_capacities(capacity: int, members: int, stripe: int) -> list[int]:
    """Return the slots of each member; they sum to ``capacity`` and differ by at most a stripe."""
    rounds, rest = divmod(capacity, members * stripe)
    return [
        rounds * stripe + min(max(rest - member * stripe, 0), stripe) for member in range(members)
    ]


def fitting_stripe(capacity: int, members: int, stripe: int) -> int:
    """Return the stripe, narrowed to an equal share of the slots if a member would have none."""
    for name, value in (("capacity", capacity), ("members", members), ("stripe", stripe)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1; got {value!r}.")
    if capacity < members:
        raise ValueError(
            "members must be at most capacity, one slot each; "
            f"got {members} members for {capacity} slots."
        )
    return min(stripe, capacity // members)


def _check_members(made: list[Engine], n_features: int, n_classes: int) -> None:
    """Raise an error for members that cannot be combined."""
    first = made[0]
    for engine in made:
        if not isinstance(engine, Engine):
            raise TypeError(
                f"make must return an Engine, such as ExactGP; got {type(engine).__name__}."
            )
        if (engine.n_features, engine.n_classes) != (n_features, n_classes):
            raise ValueError(
                f"make must return engines of {n_features} features and {n_classes} classes; "
                f"got {engine.n_features} and {engine.n_classes}."
            )
        setting = (engine.kernel, engine.noise_std, engine.dtype)
        if setting != (first.kernel, first.noise_std, first.dtype):
            raise ValueError(
                "make must return engines of one kernel, noise_std and dtype; "
                "they differ from call to call."
            )


def change_together(changes: Iterable[tuple[Engine, Tensor, Tensor | None, Tensor | None]]) -> None:
    """Write or empty slots (on the CPU) of several engines; restore all if one raises an error."""
    before: list[tuple[Engine, Tensor, Tensor, Tensor, set[int]]] = []
    for engine, slots, features, targets in changes:
        there = slots.to(engine.device, non_blocking=True)
        occupied = engine._held.intersection(slots.tolist())
        old = (engine.features[there], engine.targets[there], occupied)
        before.append((engine, slots, *old))
        try:
            if features is None or targets is None:
                engine.remove(slots)
            else:
                engine.put(slots, features, targets)
        except BaseException:
            for change in before:
                _put_back(*change)
            raise


def _put_back(
    engine: Engine, slots: Tensor, features: Tensor, targets: Tensor, occupied: set[int]
) -> None:
    """Write the old rows to the slots that were occupied, and empty the others."""
    engine._recount()  # the engine that raised the error may have written rows before that
    now = engine._held.intersection(slots.tolist())
    same_features = torch.equal(engine.features[slots], features)
    if now == occupied and same_features and torch.equal(engine.targets[slots], targets):
        return
    # All of them are removed first: with some of the new rows, K may be singular.
    engine.remove(torch.tensor(sorted(now), dtype=torch.int64))
    kept = [position for position, slot in enumerate(slots.tolist()) if slot in occupied]
    at = torch.tensor(kept, dtype=torch.int64)
    if len(at):
        engine.put(slots[at], features[at], targets[at])


# Processes that train together --------------------------------------------------------------------


def spread_out() -> bool:
    """Return whether this process is one of several that train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class Sum(torch.autograd.Function):
    """The sum over processes.

    The loss is the same on all of them, so the gradient of each term is that of the sum.
    """

    @staticmethod
    def forward(ctx: Any, term: Tensor) -> Tensor:  # noqa: ARG004
        total = term.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient


class SumGradients(torch.autograd.Function):
    """The identity, whose gradient is summed over processes: each computes that of its members."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:  # noqa: ARG004
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def _gathered(part: dict[Any, Any]) -> dict[Any, Any]:
    """Return the dictionaries of all processes as one."""
    parts: list[dict[Any, Any]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, part)
    return {key: value for part in parts for key, value in part.items()}
