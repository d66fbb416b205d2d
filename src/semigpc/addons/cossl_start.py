"""How CoSSL's balanced head starts: on features of every class alike, those of rare classes made up from their neighbours."""

import torch
import torch.nn.functional as F
from torch import Tensor

BETA = 0.75  # of both parameters of the mixing weights' distribution


def imprinted_probs(features: Tensor, labeled: Tensor, y: Tensor, n_classes: int) -> Tensor:
    """softmax_c(h . w_c), w_c = unit(mean of class c): (M, C) for features (M, D), from labelled ones (n, D) with classes (n,).

    A class without a labelled image has probability 0.
    """
    members = F.one_hot(y, n_classes).to(labeled)  # (n, C)
    weights = F.normalize(members.mT @ labeled, dim=1)  # a sum points where the mean does
    return torch.softmax((features @ weights.mT).masked_fill(members.sum(dim=0) == 0, -torch.inf), dim=1)


def balanced_features(labeled: Tensor, y: Tensor, unlabeled: Tensor, n_classes: int) -> tuple[Tensor, Tensor]:
    """All labelled features, and made-up ones until each class has n_max: rows (at most C n_max, D) and their classes.

    Row i of the n_max - n_c that class c lacks is r f_c + (1 - r) f_o, r ~ Beta(0.75, 0.75), with f_c any labelled feature of
    the class and f_o the i-th of all other features, labelled and unlabelled, by decreasing probability of c
    (:func:`imprinted_probs`). There are enough of these, as n >= n_max. Classes without a labelled feature get none. Draws,
    class by class: which f_c (n_max - n_c), then r. Cost: C sorts of n + u numbers.

    Args:
        labeled: (n, D). y: (n,) their classes. unlabeled: (u, D). n_classes: C.
    """
    everything = torch.cat([labeled, unlabeled])
    probs = imprinted_probs(everything, labeled, y, n_classes)  # (n + u, C)
    counts = torch.bincount(y, minlength=n_classes).tolist()
    rows, classes = [labeled], [y]
    for c, count in enumerate(counts):
        lacking = max(counts) - count
        if not count or not lacking:
            continue
        is_own = torch.zeros(len(everything), dtype=torch.bool, device=y.device)
        is_own[: len(y)] = y == c
        own, others = is_own.nonzero().flatten(), (~is_own).nonzero().flatten()
        others = others[probs[others, c].argsort(descending=True, stable=True)[:lacking]]
        own = own[torch.randint(count, (lacking,)).to(own.device)]
        r = torch.distributions.Beta(BETA, BETA).sample((lacking, 1)).to(labeled)
        rows.append(r * everything[own] + (1 - r) * everything[others])
        classes.append(torch.full((lacking,), c, device=y.device))
    return torch.cat(rows), torch.cat(classes)
