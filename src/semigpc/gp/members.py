"""How slots are shared out among the members of an ensemble, and how their answers become one."""

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor, nn

from semigpc.gp.engine import Engine


class MemberRows(NamedTuple):
    """What of a change concerns one member: its number, its own slots (b,), and their positions (b,) in the call."""

    member: int
    slots: Tensor
    positions: Tensor


def member_slots(slots: Tensor, members: int, stripe: int) -> tuple[Tensor, Tensor]:
    """Which member holds a slot, and in which slot of its own: stripe q = s // stripe belongs to member q % members.

    Args:
        slots: (B,) of the ensemble.

    Returns:
        member (B,) and local slot (B,): (q // members) * stripe + s % stripe.
    """
    stripes = slots // stripe
    return stripes % members, stripes // members * stripe + slots % stripe


def by_member(slots: Tensor, members: int, stripe: int) -> Iterator[MemberRows]:
    """Slots (B,) of the ensemble sorted by the member that holds them; each only once there is something for it."""
    member, local = member_slots(slots, members, stripe)
    for number in member.unique().tolist():
        positions = (member == number).nonzero().squeeze(1)
        yield MemberRows(number, local[positions], positions)


def ensemble_slots(member: int, local: Tensor, members: int, stripe: int) -> Tensor:
    """The way back from ``member_slots``: slots (B,) of the ensemble, from those (B,) of a member."""
    return (local // stripe * members + member) * stripe + local % stripe


def member_capacities(capacity: int, members: int, stripe: int) -> list[int]:
    """Slots that each member holds; they sum to ``capacity`` and differ by at most one stripe."""
    rounds, rest = divmod(capacity, members * stripe)
    return [rounds * stripe + min(max(rest - member * stripe, 0), stripe) for member in range(members)]


def fitting_stripe(capacity: int, members: int, stripe: int) -> int:
    """The stripe, or an equal share of the slots where that is narrower, so that no member is left without."""
    for name, value in (("capacity", capacity), ("members", members), ("stripe", stripe)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} must be an integer of at least 1; got {value!r}.")
    if capacity < members:
        raise ValueError(f"members must be at most capacity, a slot each; got {members} members for {capacity} slots.")
    return min(stripe, capacity // members)


def member_shares(variances: Tensor, noise_variance: float) -> Tensor:
    """w_m / sum_m w_m with w_m = 1 / (v_m + sigma^2), (M, Q) from variances (M, Q): they sum to 1 over the members."""
    precisions = (variances.double() + noise_variance).reciprocal()
    return precisions / precisions.sum(dim=0)


def combine_means(means: Tensor, variances: Tensor | None, noise_variance: float) -> Tensor:
    """sum_m w_m mu_m / sum_m w_m with w_m = 1 / (v_m + sigma^2); the plain average without variances.

    Args:
        means: (M, Q, C) of the members that hold rows. variances: (M, Q) of the same.

    Returns:
        (Q, C) in the dtype of the means.
    """
    if variances is None:
        return means.mean(dim=0)
    shares = member_shares(variances, noise_variance)
    return (shares.unsqueeze(2) * means).sum(dim=0).to(means.dtype)


def check_members(made: list[Engine], n_features: int, n_classes: int) -> None:
    """Refuse members that cannot be asked together."""
    first = made[0]
    for engine in made:
        if not isinstance(engine, nn.Module):
            raise TypeError(f"make must give an engine that is an nn.Module, such as ExactGP; got {type(engine).__name__}.")
        if (engine.n_features, engine.n_classes) != (n_features, n_classes):
            raise ValueError(
                f"make must give engines of {n_features} features and {n_classes} classes; got {engine.n_features} and "
                f"{engine.n_classes}."
            )
        same_kernel = engine.kernel is first.kernel or engine.kernel == first.kernel
        if not same_kernel or engine.noise_std != first.noise_std or engine.dtype != first.dtype:
            raise ValueError("make must give engines of one kernel, noise_std and dtype; it gave others from call to call.")
