"""Several engines with a part of the buffer each: the paper's way past one inverse (section 5, "~80K entries")."""

from collections.abc import Callable
from typing import Any, Literal, cast

import torch
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
from semigpc.gp.engine import Engine, Expansion, NoExpansionError
from semigpc.gp.kernels import Kernel
from semigpc.gp.members import (
    MemberRows,
    by_member,
    check_members,
    combine_means,
    ensemble_slots,
    fitting_stripe,
    member_capacities,
    member_shares,
    member_slots,
)

__all__ = ["EnsembleGP", "combine_means", "member_slots"]


class EnsembleGP(nn.Module):
    """M engines that share the slots among them, asked together.

        mu(h)  = sum_m w_m mu_m(h) / sum_m w_m        w_m = 1 / (v_m(h) + sigma^2)         combine="precision"
        var(h) = sum_m w_m v_m(h) / sum_m w_m = M / sum_m w_m - sigma^2

    A generalised product of experts with exponents 1/M: members that agree give their own answer, and far from all data it is
    the prior. The weights depend on the features alone, so by convexity of the square ``variance`` is an upper bound of the
    squared error to expect of this mean, if the prior is right. ``combine="mean"`` has w_m = 1 instead, with the same bound:
    members that know nothing of a query then dilute it, but no variance is needed to answer. Members without rows take no part.

    Slots lie in stripes, dealt out in turn: batches of a FIFO buffer go to one member at a time, and each sees all times and
    classes alike. A change costs what it costs the members it touches: with exact ones of N / M slots each, M times fewer
    operations and M times less memory than one engine of N. With "precision", ``mean`` costs M variances, O(Q N^2 / M) there.

    Args:
        capacity: N, slots of all members together.
        n_features: D.
        n_classes: C.
        make: a member from its capacity; any engine of D features and C classes. All of one kernel, noise and dtype.
        members: M, at most N.
        combine: "precision" or "mean".
        stripe: slots in a row that belong to one member; made narrower, see ``stripe``, where a member would have none.
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
    ) -> None:
        super().__init__()
        if combine not in ("precision", "mean"):
            raise ValueError(f"combine must be 'precision' or 'mean'; got {combine!r}.")
        self.stripe = fitting_stripe(capacity, members, stripe)
        self.capacity, self.n_features, self.n_classes, self.combine = capacity, n_features, n_classes, combine
        made = [make(size) for size in member_capacities(capacity, members, self.stripe)]
        check_members(made, n_features, n_classes)
        self.members = nn.ModuleList(cast("list[nn.Module]", made))
        self.dtype = made[0].dtype
        check_engine(capacity, n_features, n_classes, kernel=self.kernel, noise_std=self.noise_std, dtype=self.dtype)
        self.register_buffer("layout", torch.tensor([capacity, members, self.stripe]))
        self.register_load_state_dict_pre_hook(_refuse_what_does_not_fit)  # type: ignore[no-untyped-call]

    # Asking ---------------------------------------------------------------------------------------------------------

    @property
    def engines(self) -> list[Engine]:
        """The members, as engines."""
        return cast("list[Engine]", list(self.members))

    def __len__(self) -> int:
        """Occupied slots."""
        return sum(len(engine) for engine in self.engines)

    @property
    def kernel(self) -> Kernel:
        """The kernel k of all members."""
        return self.engines[0].kernel

    @property
    def noise_std(self) -> float:
        """Sigma of all members."""
        return self.engines[0].noise_std

    @property
    def features(self) -> Tensor:
        """h_Q, (N, D), gathered from the members; rows of empty slots are 0."""
        return self._gather([engine.features for engine in self.engines])

    @property
    def targets(self) -> Tensor:
        """y_Q, (N, C), gathered from the members; rows of empty slots are 0."""
        return self._gather([engine.targets for engine in self.engines])

    @property
    def occupied(self) -> Tensor:
        """(N,) bool, gathered from the members."""
        return self._gather([engine.occupied for engine in self.engines])

    @full_precision()
    def mean(self, queries: Tensor, *, offset: Tensor | None = None) -> Tensor:
        """mu(h), (Q, C), for targets less ``offset`` (C,); differentiable in the queries, the weights taken as constants.

        Args:
            queries: (Q, D).
        """
        check_queries(self, queries)
        if offset is not None:
            check_offset(self, offset)
        active = self._active()
        means = torch.stack([engine.mean(queries, offset=offset) for _, engine in active])
        return combine_means(means, self._weighing_variances(active, queries), self.noise_std**2)

    @full_precision()
    @torch.no_grad()
    def variance(self, queries: Tensor) -> Tensor:
        """var(h) = sum_m w_m v_m(h) / sum_m w_m, (Q,), at least 0. What M members' variances cost.

        Args:
            queries: (Q, D).
        """
        check_queries(self, queries)
        variances = torch.stack([engine.variance(queries) for _, engine in self._active()])
        if self.combine == "mean":
            return variances.mean(dim=0)
        return (member_shares(variances, self.noise_std**2) * variances).sum(dim=0).to(queries.dtype)

    @full_precision()
    @torch.no_grad()
    def explain(self, queries: Tensor, classes: Tensor) -> Tensor:
        """What each slot adds to the mean of one class per query, (Q, N): a member's reasons times its share; sum to the mean.

        Args:
            queries: (Q, D). classes: (Q,) the class to explain for each query.
        """
        check_classes(self, queries, classes)
        active = self._active()
        variances = self._weighing_variances(active, queries)
        shares = None if variances is None else member_shares(variances, self.noise_std**2).to(queries.dtype)
        weights = queries.new_zeros(len(queries), self.capacity)
        for position, (number, engine) in enumerate(active):
            share = 1 / len(active) if shares is None else shares[position].unsqueeze(1)
            weights[:, self._slots_of(number)] = engine.explain(queries, classes) * share
        return weights

    @torch.no_grad()
    def expansion(self, *, offset: Tensor | None = None) -> Expansion:
        """The mean as a sum of kernels: the members' own sums over their number. Only with combine="mean"."""
        if self.combine == "precision":
            raise NoExpansionError(
                "an ensemble with combine='precision' is no fixed sum of kernels: its weights need every member's variance at "
                "the query. One with combine='mean' can be exported."
            )
        parts = [engine.expansion(offset=offset) for _, engine in self._active()]
        weights = torch.cat([part.weights for part in parts]) / len(parts)
        return Expansion(torch.cat([part.points for part in parts]), weights)

    # Changing -------------------------------------------------------------------------------------------------------

    @full_precision()
    @torch.no_grad()
    def replace(self, slots: Tensor, features: Tensor, targets: Tensor) -> None:
        """Put new rows into slots, empty or occupied; the members concerned are changed one after the other.

        A call refused for its arguments changes nothing at all. One that a member refuses later (a K that cannot be inverted)
        leaves what is stored as it was, and the answers up to rounding.

        Args:
            slots: (B,) distinct integers in [0, capacity). features: (B, D). targets: (B, C).
        """
        slots = check_slots(self, slots)
        features, targets = check_rows(self, slots, features, targets)
        self._change(slots, features, targets)

    @full_precision()
    @torch.no_grad()
    def remove(self, slots: Tensor) -> None:
        """Empty some occupied slots. No slots, no change; a refused call changes nothing.

        Args:
            slots: (B,) distinct, occupied.
        """
        check_tensor("slots", slots)
        if slots.shape != (0,):
            self._change(check_slots(self, slots, occupied=True), None, None)

    def rebuild(self) -> None:
        """Every member anew from its stored features and targets."""
        for engine in self.engines:
            engine.rebuild()

    def reanchor(self, kernel: Kernel, noise_std: float) -> None:
        """Go on with another kernel and noise in all members; back to the old ones in all if one member refuses."""
        check_engine(self.capacity, self.n_features, self.n_classes, kernel=kernel, noise_std=noise_std, dtype=self.dtype)
        before = self.kernel, self.noise_std
        for number, engine in enumerate(self.engines):
            try:
                engine.reanchor(kernel, noise_std)
            except Exception:
                for changed in self.engines[:number]:
                    changed.reanchor(*before)
                raise

    def _change(self, slots: Tensor, features: Tensor | None, targets: Tensor | None) -> None:
        """Change the members one after the other; put back those already changed if a later one refuses."""
        changed: list[tuple[MemberRows, Tensor, Tensor, Tensor]] = []
        for rows in by_member(slots, len(self.members), self.stripe):
            engine = self.engines[rows.member]
            before = engine.features[rows.slots], engine.targets[rows.slots], engine.occupied[rows.slots]
            try:
                if features is None or targets is None:
                    engine.remove(rows.slots)
                else:
                    engine.replace(rows.slots, features[rows.positions], targets[rows.positions])
            except Exception:
                for done, *old in changed:
                    _put_back(self.engines[done.member], done.slots, *old)
                raise
            changed.append((rows, *before))

    def _active(self) -> list[tuple[int, Engine]]:
        """Members that hold rows with their numbers; the first one, which then answers with the prior, if none does."""
        numbered = list(enumerate(self.engines))
        return [(number, engine) for number, engine in numbered if len(engine)] or numbered[:1]

    def _weighing_variances(self, active: list[tuple[int, Engine]], queries: Tensor) -> Tensor | None:
        """Variances (M, Q) that decide on the weights; None where nothing is to be weighed."""
        if self.combine == "mean" or len(active) == 1:
            return None
        return torch.stack([engine.variance(queries.detach()) for _, engine in active])

    def _slots_of(self, number: int) -> Tensor:
        """The ensemble's slots (n,) of a member, in its own order."""
        local = torch.arange(self.engines[number].capacity, device=self.layout.device)
        return ensemble_slots(number, local, len(self.members), self.stripe)

    def _gather(self, parts: list[Tensor]) -> Tensor:
        """Rows of the members in the ensemble's order, (N, ...)."""
        gathered = parts[0].new_empty(self.capacity, *parts[0].shape[1:])
        for number, part in enumerate(parts):
            gathered[self._slots_of(number)] = part
        return gathered

    def extra_repr(self) -> str:
        return (
            f"capacity={self.capacity}, n_features={self.n_features}, n_classes={self.n_classes}, combine={self.combine!r}, "
            f"stripe={self.stripe}"
        )


def _put_back(engine: Engine, slots: Tensor, features: Tensor, targets: Tensor, occupied: Tensor) -> None:
    if bool(occupied.any()):
        engine.replace(slots[occupied], features[occupied], targets[occupied])
    if not bool(occupied.all()):
        engine.remove(slots[~occupied][engine.occupied[slots[~occupied]]])


def _refuse_what_does_not_fit(ensemble: EnsembleGP, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Look at all parts of a state before any of it is copied: a member must not load what the next one refuses."""
    layout = state.get(prefix + "layout")
    if layout is not None and layout.tolist() != ensemble.layout.tolist():
        saved, ours = layout.tolist(), ensemble.layout.tolist()
        raise ValueError(f"saved is an ensemble of (capacity, members, stripe) {tuple(saved)}; this one has {tuple(ours)}.")
    for name, ours in ensemble.members.state_dict(prefix=f"{prefix}members.").items():
        saved = state.get(name)
        if saved is not None and saved.shape != ours.shape:
            raise ValueError(f"saved {name} have shape {tuple(saved.shape)}; this ensemble holds {tuple(ours.shape)}.")
        if saved is not None and not bool(saved.to(ours.dtype).square().isfinite().all()):
            raise ValueError(f"saved {name} are not all finite, or too large for {ours.dtype}: the file is damaged.")
