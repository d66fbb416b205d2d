"""DARP (Kim et al., 2020): the nearest pseudo-labels that have the expected class shares."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from semigpc.addons.base import AddOn, AddOnConfig, ExtraLoss, Step
from semigpc.io.errors import SettingsError
from semigpc.pseudo_labels import last_of_each, one_hot
from semigpc.types import ModelOutput, Task, check_ranges

FLOOR = 1e-6  # of an entry that is not kept, and the smallest share of a class
LARGEST_CONDITION = 100.0  # of the confusion matrix, for an estimate; as in the authors' code


@dataclass(frozen=True, kw_only=True)
class DARPConfig(AddOnConfig):
    """Options of DARP.

    Fallbacks, each noted once: where the projection does not converge, labels stay unrefined until
    the next round; where the shares cannot be estimated (a class without an image so far, a
    confusion matrix close to singular), those of the labels are used; a class without labels is
    expected, where shares are those of the labels, in one image of a million.

    Args:
        warmup: share of training before labels are refined; 200 of 500 epochs in the authors' code.
        every: steps between two rounds of refinement.
        counts: where M_c, the expected images of a class, come from: shares of the ``labeled``
            images, or ``estimated`` from the network's predictions for labelled and unlabelled
            batches. It is trained on the labelled ones, so confusions are underestimated.
        keep: entries kept of each class, in multiples of M_c.
        alternations: of row and column steps in a projection.
        newton_steps: largest number in a column step.
        tolerance: largest last step of nu_c in a column step that converged; 0.3 for CIFAR-100 and
            STL-10 in the authors' code.
        momentum: of the running sums behind ``estimated``.
    """

    warmup: float = 0.4
    every: int = 10
    counts: Literal["labeled", "estimated"] = "labeled"
    keep: float = 2.0
    alternations: int = 10
    newton_steps: int = 30
    tolerance: float = 0.1
    momentum: float = 0.999

    def __post_init__(self) -> None:
        counts = ("every", "alternations", "newton_steps")
        check_ranges(
            self,
            fractions=("warmup",),
            below_one=("momentum",),
            positive=("keep", "tolerance"),
            at_least_one=counts,
        )
        if self.counts not in ("labeled", "estimated"):
            raise SettingsError(f"counts must be 'labeled' or 'estimated'; got {self.counts!r}.")


class DARP(AddOn):
    """The finished labels of all images seen so far are refined every ``every`` steps.

    A round is :func:`trim`, then :func:`project`. The refined row replaces an image's label, for
    the loss and for the mask, until the next round; an image that was not seen before the round
    keeps its own.

    A step costs U rows written; a round sorts the columns of an (N, C) matrix, N images seen, and
    takes some 50 exponentials of each entry, in float64. The two stores hold u x C numbers each.
    """

    config: DARPConfig
    stored: Tensor
    seen: Tensor
    refined: Tensor
    is_refined: Tensor
    shares: Tensor
    confusion: Tensor
    labeled_mass: Tensor
    said_mass: Tensor

    def __init__(self, config: DARPConfig, task: Task) -> None:
        super().__init__(config, task)
        n_classes = task.n_classes
        u = task.n_unlabeled
        if u < 1:
            raise SettingsError(
                f"DARP needs at least one unlabelled image; got {u}. "
                "Add unlabelled images, or leave the add-on out."
            )
        self.learns = config.counts == "estimated"
        self._noted: set[str] = set()
        self.register_buffer("stored", torch.zeros(u, n_classes))
        self.register_buffer("seen", torch.zeros(u, dtype=torch.bool))
        self.register_buffer("refined", torch.zeros(u, n_classes))
        self.register_buffer("is_refined", torch.zeros(u, dtype=torch.bool))
        self.register_buffer("shares", task.class_counts.double() / task.n_labeled)
        # sums of predictions over labelled rows, by their class
        self.register_buffer("confusion", torch.zeros(n_classes, n_classes))
        self.register_buffer("labeled_mass", torch.zeros(n_classes))
        self.register_buffer("said_mass", torch.zeros(n_classes))
        absent = (task.class_counts == 0).nonzero().flatten().tolist()
        if absent and config.counts == "labeled":
            self._note_once(
                "no labels",
                f"DARP expects next to no images of the classes {absent}: they have no labels.",
            )

    def targets(self, step: Step, output: ModelOutput, probs: Tensor) -> Tensor:
        """Store the labels (U, C), refine all stored ones every few steps, return this batch's."""
        index = step.batch.view_index
        clock = step.clock
        self.stored[index] = probs[last_of_each(index)].to(self.stored)
        self.seen[index] = True
        if clock.progress < self.config.warmup:
            return probs
        if clock.step % self.config.every == 0:
            self._refine()
        is_refined = self.is_refined[index].unsqueeze(1)
        return torch.where(is_refined, self.refined[index].to(probs), probs)

    @torch.no_grad()
    def extra_loss(
        self, step: Step, x: ModelOutput, weak: ModelOutput, strong: ModelOutput
    ) -> ExtraLoss | None:
        """Update the running sums behind ``estimated``, and return no loss."""
        m = self.config.momentum
        labeled_probs = torch.softmax(x.logits, dim=1).to(self.confusion)  # (B, C)
        classes = one_hot(step.batch.y, len(self.confusion)).to(labeled_probs)  # (B, C)
        weak_mass = torch.softmax(weak.logits, dim=1).sum(dim=0)
        self.confusion.mul_(m).add_(classes.mT @ labeled_probs)
        self.labeled_mass.mul_(m).add_(classes.sum(dim=0))
        self.said_mass.mul_(m).add_(weak_mass.to(labeled_probs))
        return None

    def _refine(self) -> None:
        """Refine the images seen so far; if it does not converge, all keep their own labels."""
        config = self.config
        probs = self.stored[self.seen].double()  # (N, C)
        shares = self._expected_shares().clamp_min(FLOOR)
        counts = len(probs) * shares / shares.sum()  # M
        refined, converged = project(
            trim(probs, counts, config.keep),
            counts,
            config.alternations,
            config.newton_steps,
            config.tolerance,
        )
        if converged:
            self.refined[self.seen] = refined.to(self.refined)
            self.is_refined.copy_(self.seen)
        else:
            self.is_refined.zero_()
            self._note_once(
                "projection",
                f"DARP's projection of {len(probs)} labels did not converge to {config.tolerance} "
                f"in {config.newton_steps} Newton steps: they are not refined in this round.",
            )

    def _expected_shares(self) -> Tensor:
        """Return the shares (C,) expected among unlabelled images.

        They are those of the labels, or the s >= 0 of sum 1 next to the root of mean_u p = s K,
        K_cj the mean p_j of labelled images of class c. This is BBSE (Lipton et al., 2018), which
        assumes that labelled and unlabelled images of a class look alike.
        """
        if self.config.counts == "labeled":
            return self.shares.double()
        missing = (self.labeled_mass < FLOOR).nonzero().flatten().tolist()
        if missing:
            self._note_once(
                "missing",
                f"DARP has seen no labelled image of the classes {missing} yet: it uses the shares "
                "of the labels.",
            )
            return self.shares.double()
        rates = (self.confusion / self.labeled_mass.unsqueeze(1)).double()  # K
        condition = float(torch.linalg.cond(rates))
        if not condition < LARGEST_CONDITION:
            self._note_once(
                "confusion",
                f"DARP cannot estimate class shares: the confusion matrix has condition "
                f"{condition:.3g}, above {LARGEST_CONDITION:g}. It uses the shares of the labels.",
            )
            return self.shares.double()
        predicted_shares = (self.said_mass / self.said_mass.sum()).double()
        return nearest_shares(torch.linalg.solve(rates.mT, predicted_shares))

    def _note_once(self, kind: str, message: str) -> None:
        """Add a note, unless there was one of this kind."""
        if kind not in self._noted:
            self._noted.add(kind)
            self.note(message)


def trim(probs: Tensor, counts: Tensor, keep: float) -> Tensor:
    """Return labels (N, C) with the ``keep`` M_c largest entries of each class, scaled to M_c.

    Their number is rounded down, and at least one; the other entries become 1e-6, and rows are
    renormalised. M are the ``counts`` (C,).
    """
    by_class = probs.mT.contiguous()  # (C, N): sorting is faster along the memory
    order = by_class.argsort(dim=1, descending=True, stable=True)
    ranks = torch.arange(len(probs), device=probs.device).expand_as(order)
    rank = torch.empty_like(order).scatter_(1, order, ranks)
    kept = probs * (rank.mT < (keep * counts).floor().clamp_min(1))
    scaled = kept * (counts + FLOOR) / (kept.sum(dim=0) + FLOOR) + FLOOR
    return scaled / scaled.sum(dim=1, keepdim=True)


def project(
    probs: Tensor,
    counts: Tensor,
    alternations: int = 10,
    newton_steps: int = 30,
    tolerance: float = 0.1,
) -> tuple[Tensor, bool]:
    """Return the q (N, C) nearest to p whose rows sum to 1 and columns to M (C,), if found.

        min_q  sum_n w_n KL(q_n || p_n),   w_n = 1 / h_n,
        s.t.   sum_c q_nc = 1 (lambda_n),  sum_n q_nc = M_c (nu_c),

    h_n the entropy of p_n: confident rows change less. Where the gradient w_n (log q_nc / p_nc + 1)
    + lambda_n + nu_c is 0,

        q_nc = x_n p_nc exp(- nu_c h_n),   x_n = exp(- 1 - lambda_n h_n).

    Each alternation computes the x_n that make rows sum to 1, x_n = 1 / sum_c p_nc exp(- nu_c h_n),
    then the nu_c that make columns sum to M_c: the root of g(nu) = log sum_n x_n p_nc exp(- nu h_n)
    - log M_c, by Newton's method for all classes at once. g is convex and falls; unlike the sum
    itself it is nearly a line, and cannot overflow. After a last row step rows sum to 1 exactly,
    columns to M approximately. Cost: alternations x (Newton steps + 1) x N C exponentials.
    """
    log_p = probs.log()  # (N, C)
    h = -torch.special.xlogy(probs, probs).sum(dim=1, keepdim=True)  # (N, 1)
    nu = torch.zeros_like(counts)
    for _ in range(alternations):
        log_x = -torch.logsumexp(log_p - h * nu, dim=1, keepdim=True)
        nu, converged = _column_step(log_x + log_p, h, counts.log(), nu, newton_steps, tolerance)
        if not converged:
            return probs, False
    q = torch.softmax(log_p - h * nu, dim=1)
    return (q, True) if bool(q.isfinite().all()) else (probs, False)


def _column_step(
    log_a: Tensor, h: Tensor, log_counts: Tensor, nu: Tensor, newton_steps: int, tolerance: float
) -> tuple[Tensor, bool]:
    """Return nu (C,) with log sum_n a_nc exp(- nu_c h_n) = log M_c, and whether it converged."""
    for _ in range(newton_steps):
        terms = log_a - h * nu
        largest = terms.amax(dim=0)
        scaled = terms.sub_(largest).exp_()
        sums = scaled.sum(dim=0)
        slopes = (h.mT @ scaled).squeeze(0) / sums  # minus the derivative of the sum's logarithm
        moves = (largest + sums.log() - log_counts) / slopes
        nu = nu + moves
        if bool((moves.abs() < tolerance).all()):
            return nu, True
        if not bool(moves.isfinite().all()):
            return nu, False
    return nu, False


def nearest_shares(values: Tensor) -> Tensor:
    """Return the s >= 0 of sum 1 nearest to ``values`` (C,): max(v_c - t, 0) with a suitable t."""
    ordered = values.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(values) + 1, device=values.device)
    last = int((ordered > excess).nonzero().max())
    return (values - excess[last]).clamp_min(0)
