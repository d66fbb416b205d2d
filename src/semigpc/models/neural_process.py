"""A neural process as a classifier (NP-Match, Wang et al., 2022): logits that depend on a memory of
labelled images.
"""

from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.losses import mean_log_probs
from semigpc.pseudo_labels import one_hot

SAMPLES = 10  # T, as in the authors' code
ROWS = 2560  # N, encodings in each memory, as in the authors' code
SLOPE = 0.1  # of the leaky ReLUs
LEAST_ENTROPY = 1e-8  # added to entropies, so that their ratio is defined where both are 0


class Gaussian(NamedTuple):
    """N(mean, diag(sigma^2)), both (L,)."""

    mean: Tensor
    sigma: Tensor


class ContextMemory(nn.Module):
    """The last N encodings of width L; new ones replace the oldest.

    Args:
        rows: N. width: L.
    """

    rows: Tensor
    written: Tensor

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(rows, width))
        self.register_buffer("written", torch.tensor(0))

    @torch.no_grad()
    def write(self, rows: Tensor, mask: Tensor | None = None) -> None:
        """Put the rows (M, L), or those where the mask (M,) is true, in the place of the oldest
        ones.
        """
        mask = torch.ones_like(rows[:, 0], dtype=torch.bool) if mask is None else mask
        n = len(self.rows)
        order = mask.cumsum(dim=0)  # 1, 2, ... for the rows to write
        kept = mask & (order > order[-1] - n)
        slots = torch.where(
            kept, (self.written + order - 1) % n, n
        )  # n: a row below the last, for what is not written
        self.rows.copy_(
            F.pad(self.rows, (0, 0, 0, 1)).index_copy_(0, slots, rows.to(self.rows))[:n]
        )
        self.written += order[-1]

    def mean(self) -> Tensor:
        """(L,) of what was written so far; 0 as long as that is nothing."""
        return self.rows.sum(dim=0) / self.written.clamp(1, len(self.rows))


class NeuralProcess(nn.Module):
    """p(y | h) = mean_t softmax( g(z_t, h, r) ), with z_t ~ N(mu(e), sigma(e)^2), sigma = 0.1 + 0.9
    softplus(s(e)).

    r and e are means of a(h_i, y_i) and b(h_i, y_i) over images of known class: of the batch in
    :meth:`study`, elsewhere of the last 2560 encodings that :meth:`study` left in two memories.
    Encodings are kept as they were when they were made, as the original does it, and not as
    features to be encoded again. An empty memory counts as an encoding of 0; at the start, with
    biases of 0, this makes z ~ N(0, 0.724^2).

    All maps are perceptrons with leaky ReLUs: a, b: D + C -> L -> L, activated twice; mu, s: L -> L
    -> L; g: 2 L + D -> D -> D -> C. L = D / 4, rounded down and at least 1. A prediction costs O(N
    L + T M D^2): the first layer of g sees h once, and not with every z.

    In evaluation mode and out of it, ``forward`` uses T samples that were drawn once, so the same
    images have the same output. It has no gradient; the losses come from :meth:`study`.

    Args:
        n_features: D. n_classes: C.
    """

    noise: Tensor

    def __init__(self, n_features: int, n_classes: int) -> None:
        super().__init__()
        width = max(n_features // 4, 1)
        self.n_classes = n_classes
        self.context_encoder = _encoder(n_features + n_classes, width)  # a
        self.latent_encoder = _encoder(n_features + n_classes, width)  # b
        self.location = nn.Sequential(
            nn.Linear(width, width), nn.LeakyReLU(SLOPE), nn.Linear(width, width)
        )  # mu
        self.spread = nn.Sequential(
            nn.Linear(width, width), nn.LeakyReLU(SLOPE), nn.Linear(width, width)
        )  # s
        self.joint = nn.Linear(2 * width + n_features, n_features)  # g, of (z, h, r)
        self.hidden = nn.Linear(n_features, n_features)
        self.out = nn.Linear(n_features, n_classes)
        self.contexts = ContextMemory(ROWS, width)
        self.latents = ContextMemory(ROWS, width)
        self.register_buffer("noise", torch.randn(SAMPLES, width))
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                nn.init.zeros_(layer.bias)

    # Predicting -----------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, features: Tensor) -> Tensor:
        """Return log p(y | h) from the memories: features (M, D) to (M, C). The same every time."""
        return self._log_probs(features, self.noise)

    @torch.no_grad()
    def predict(self, features: Tensor) -> Tensor:
        """Return the same with fresh samples: T L numbers of torch's generator."""
        return self._log_probs(features.to(self.noise), torch.randn_like(self.noise))

    def _log_probs(self, features: Tensor, noise: Tensor) -> Tensor:
        logits = self._decode(
            features, self._gaussian(self.latents.mean()), self.contexts.mean(), noise
        )
        return mean_log_probs(logits)

    # Learning -------------------------------------------------------------------------------------

    def study(
        self, x: Tensor, y: Tensor, strong: Tensor, targets: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return what one step learns from, and write its encodings into the memories.

        Labelled images are the context: r, and e_c with its N_c. Strong views have r from them too,
        but their own e_s, of those in the mask with their pseudo-labels, and N_s. If the mask is
        empty, e_s is 0 and there is no divergence. Draws 2 T L numbers of torch's generator: for x,
        then for the strong views. All of it has the precision of the weights.

        Args:
            x: (B, D) features of labelled images. y: (B,) their labels.
            strong: (U, D) features of strong views. targets: (U,) their pseudo-labels. mask: (U,)
                which of them to believe.

        Returns:
            logits of x, (T, B, C), of strong views, (T, U, C), and the divergence of N_c and N_s, a
            scalar; see :func:`skewed_divergence`.
        """
        processes = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        x = _weigh(x.to(self.noise), processes)
        strong = _weigh(strong.to(self.noise), processes)
        weights = mask.to(strong).unsqueeze(1)
        contexts = self._encode(self.context_encoder, x, y)
        latents_x = self._encode(self.latent_encoder, x, y)
        latents_s = self._encode(self.latent_encoder, strong, targets)
        context = contexts.mean(dim=0)
        known = self._gaussian(latents_x.mean(dim=0))
        guessed = self._gaussian((weights * latents_s).sum(dim=0) / weights.sum().clamp_min(1))
        logits_x = self._decode(x, known, context, torch.randn_like(self.noise))
        logits_s = self._decode(strong, guessed, context, torch.randn_like(self.noise))
        divergence = skewed_divergence(known, guessed, skew(logits_x, logits_s, mask)) * mask.any()
        self.contexts.write(contexts)
        self.latents.write(
            torch.cat([latents_x, latents_s]),
            torch.cat([torch.ones_like(y, dtype=torch.bool), mask.bool()]),
        )
        return (
            _weigh(logits_x, 1 / processes),
            _weigh(logits_s, 1 / processes),
            _weigh(divergence, 1 / processes),
        )

    # Parts ----------------------------------------------------------------------------------------

    def _encode(self, encoder: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
        """(M, L) of features (M, D) and labels (M,)."""
        classes = one_hot(labels, self.n_classes).to(features)
        encodings: Tensor = encoder(torch.cat([features, classes], dim=1))
        return encodings

    def _gaussian(self, encoding: Tensor) -> Gaussian:
        """Of an encoding (L,)."""
        return Gaussian(self.location(encoding), 0.1 + 0.9 * F.softplus(self.spread(encoding)))

    def _decode(self, features: Tensor, latent: Gaussian, context: Tensor, noise: Tensor) -> Tensor:
        """g(mu + sigma noise_t, h, r), (T, M, C)."""
        z = latent.mean + latent.sigma * noise.to(latent.mean)  # (T, L)
        by_z, by_h, by_r = self.joint.weight.split(
            [len(context), features.shape[1], len(context)], dim=1
        )
        apart = F.linear(z, by_z) + F.linear(context, by_r, self.joint.bias)  # (T, D)
        joint = F.leaky_relu(F.linear(features, by_h) + apart.unsqueeze(1), SLOPE)
        logits: Tensor = self.out(F.leaky_relu(self.hidden(joint), SLOPE))
        return logits


@torch.no_grad()
def skew(logits_x: Tensor, logits_s: Tensor, mask: Tensor) -> Tensor:
    """a = u_c / (u_c + u_s): mean entropies of what is said of labelled (T, B, C), and of masked
    strong views (T, U, C).

    Both have 1e-8 added, so that a is 1/2 where there is no doubt on either side, and never 0 or 1.
    """
    known, guessed = (
        torch.special.entr(mean_log_probs(logits).exp()).sum(dim=1)
        for logits in (logits_x, logits_s)
    )
    weights = mask.to(guessed)
    u_c = known.mean()
    u_s = (weights * guessed).sum() / weights.sum().clamp_min(1)
    share: Tensor = (u_c + LEAST_ENTROPY) / (u_c + u_s + 2 * LEAST_ENTROPY)
    return share


def skewed_divergence(context: Gaussian, target: Gaussian, a: Tensor) -> Tensor:
    """(1 - a) KL(N_c | N_a) + a KL(N_s | N_a), a scalar >= 0, with N_a ~ N_c^(1 - a) N_s^a, their
    geometric mean.

    N_a is the Gaussian with 1 / v = (1 - a) / v_c + a / v_s and m = v ((1 - a) m_c / v_c + a m_s /
    v_s), v being variances. Put in, with b = 1 - a, d = m_c - m_s and w = log(v_s / v_c) of each of
    the L numbers, this is half the sum of

        2 a b (cosh w - 1)  -  log(b + a e^-w)  -  a w  +  a b d^2 (b / v_c^2 + a / v_s^2) / (b /
        v_c + a / v_s)

    in which the variances' size does not matter, so that small and large ones lose nothing. The
    last fraction is computed in units of the smaller variance, d^2 too.
    """
    b = 1 - a
    w = 2 * (target.sigma.log() - context.sigma.log())
    widths = 2 * a * b * (w.cosh() - 1) - torch.logaddexp(b.log(), a.log() - w) - a * w
    least = torch.minimum(context.sigma, target.sigma)
    # precisions, of which one is 1
    p_c = (least / context.sigma).square()
    p_s = (least / target.sigma).square()
    apart = (
        ((context.mean - target.mean) / least).square()
        * (b * p_c.square() + a * p_s.square())
        / (b * p_c + a * p_s)
    )
    return (widths + a * b * apart).sum() / 2


def _encoder(n_inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(n_inputs, width),
        nn.LeakyReLU(SLOPE),
        nn.Linear(width, width),
        nn.LeakyReLU(SLOPE),
    )


def _weigh(tensor: Tensor, factor: float) -> Tensor:
    """Return the same tensor with its gradient multiplied by ``factor``.

    Processes that train together all compute the head for all rows, and their gradients are added
    up: that of its weights has to count once. What goes back into the network is a process's own
    rows as it is.
    """
    if factor == 1 or not tensor.requires_grad:
        return tensor
    same = tensor.view_as(tensor)
    same.register_hook(lambda gradient: factor * gradient)
    return same
