"""A neural process as a classifier with a memory of labelled images (NP-Match, 2022)."""

from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from semigpc.losses import mean_log_probs
from semigpc.pseudo_labels import one_hot

SAMPLES = 10  # T, as in the authors' code
MEMORY_ROWS = 2560  # N, encodings in each memory, as in the authors' code
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
        """Replace the oldest rows by these (M, L), or by those where the mask (M,) is true."""
        if mask is None:
            mask = torch.ones_like(rows[:, 0], dtype=torch.bool)
        n = len(self.rows)
        order = mask.cumsum(dim=0)  # 1, 2, ... for the rows to write
        kept = mask & (order > order[-1] - n)
        # Rows that are not kept go to slot n, below the last row, which is then cut off.
        slots = torch.where(kept, (self.written + order - 1) % n, n)
        padded = F.pad(self.rows, (0, 0, 0, 1))
        self.rows.copy_(padded.index_copy_(0, slots, rows.to(self.rows))[:n])
        self.written += order[-1]

    def mean(self) -> Tensor:
        """Return the mean (L,) of the encodings; 0 while there are none."""
        return self.rows.sum(dim=0) / self.written.clamp(1, len(self.rows))


class NeuralProcess(nn.Module):
    """A classifier p(y | h) that averages over samples z_t of a latent variable.

        p(y | h) = mean_t softmax( g(z_t, h, r) ),  z_t ~ N(mu(e), sigma(e)^2),
        sigma = 0.1 + 0.9 softplus(s(e))

    r and e are means of a(h_i, y_i) and b(h_i, y_i) over images of known class: in :meth:`study`
    over the batch, elsewhere over the last 2560 encodings that :meth:`study` wrote to two memories.
    As in the original, encodings are stored when they are computed, and not features to be encoded
    again. An empty memory counts as an encoding of 0; at the start, with biases of 0, this makes
    z ~ N(0, 0.724^2).

    All maps are perceptrons with leaky ReLUs: a, b: D + C -> L -> L, activated twice; mu, s: L -> L
    -> L; g: 2 L + D -> D -> D -> C. L = D / 4, rounded down and at least 1. A prediction costs O(N
    L + T M D^2): the first layer of g is applied to h once, not for every z.

    ``forward`` uses T samples that were drawn once, in training mode too, so equal images have
    equal outputs. It has no gradient; the losses come from :meth:`study`.

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
        self.location = _perceptron(width)  # mu
        self.spread = _perceptron(width)  # s
        self.joint = nn.Linear(2 * width + n_features, n_features)  # g, of (z, h, r)
        self.hidden = nn.Linear(n_features, n_features)
        self.out = nn.Linear(n_features, n_classes)
        self.contexts = ContextMemory(MEMORY_ROWS, width)
        self.latents = ContextMemory(MEMORY_ROWS, width)
        self.register_buffer("noise", torch.randn(SAMPLES, width))
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_normal_(layer.weight)
                nn.init.zeros_(layer.bias)

    # Predicting -----------------------------------------------------------------------------------

    @torch.no_grad()
    def forward(self, features: Tensor) -> Tensor:
        """Return log p(y | h) (M, C) of features (M, D) from the memories; the same every time."""
        return self._log_probs(features, self.noise)

    @torch.no_grad()
    def predict(self, features: Tensor) -> Tensor:
        """Return log p(y | h) with new samples: T L numbers of torch's generator."""
        return self._log_probs(features.to(self.noise), torch.randn_like(self.noise))

    def _log_probs(self, features: Tensor, noise: Tensor) -> Tensor:
        latent = self._gaussian(self.latents.mean())
        return mean_log_probs(self._decode(features, latent, self.contexts.mean(), noise))

    # Learning -------------------------------------------------------------------------------------

    def study(
        self, x: Tensor, y: Tensor, strong: Tensor, targets: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits and the divergence of one step, and store its encodings.

        Labelled images are the context: they give r, and e_c with its N_c. Strong views use the
        same r, but e_s and N_s come from those in the mask with their pseudo-labels. If the mask is
        empty, e_s is 0 and the divergence is 0. Draws 2 T L numbers of torch's generator: for x,
        then for the strong views. All of it is computed in the precision of the weights.

        Args:
            x: (B, D) features of labelled images.
            y: (B,) their labels.
            strong: (U, D) features of strong views.
            targets: (U,) their pseudo-labels.
            mask: (U,) which pseudo-labels are used.

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
        """Return encodings (M, L) of features (M, D) with labels (M,)."""
        classes = one_hot(labels, self.n_classes).to(features)
        encodings: Tensor = encoder(torch.cat([features, classes], dim=1))
        return encodings

    def _gaussian(self, encoding: Tensor) -> Gaussian:
        """Return N(mu(e), sigma(e)^2) of an encoding e (L,)."""
        return Gaussian(self.location(encoding), 0.1 + 0.9 * F.softplus(self.spread(encoding)))

    def _decode(self, features: Tensor, latent: Gaussian, context: Tensor, noise: Tensor) -> Tensor:
        """Return g(mu + sigma noise_t, h, r), (T, M, C)."""
        z = latent.mean + latent.sigma * noise.to(latent.mean)  # (T, L)
        sizes = [len(context), features.shape[1], len(context)]
        by_z, by_h, by_r = self.joint.weight.split(sizes, dim=1)
        apart = F.linear(z, by_z) + F.linear(context, by_r, self.joint.bias)  # (T, D)
        joint = F.leaky_relu(F.linear(features, by_h) + apart.unsqueeze(1), SLOPE)
        logits: Tensor = self.out(F.leaky_relu(self.hidden(joint), SLOPE))
        return logits


@torch.no_grad()
def skew(logits_x: Tensor, logits_s: Tensor, mask: Tensor) -> Tensor:
    """Return a = u_c / (u_c + u_s), from the mean entropies of two sets of predictions.

    u_c is that of labelled images, logits (T, B, C), u_s that of strong views in the mask, (T, U,
    C). Both have 1e-8 added, so that a is 1/2 where both are 0, and never 0 or 1.
    """
    entropy_x = _entropy(logits_x)
    entropy_s = _entropy(logits_s)
    weights = mask.to(entropy_s)
    u_c = entropy_x.mean()
    u_s = (weights * entropy_s).sum() / weights.sum().clamp_min(1)
    share: Tensor = (u_c + LEAST_ENTROPY) / (u_c + u_s + 2 * LEAST_ENTROPY)
    return share


def _entropy(logits: Tensor) -> Tensor:
    """Return the entropies (M,) of the mean predictions of logits (T, M, C)."""
    entropy: Tensor = torch.special.entr(mean_log_probs(logits).exp()).sum(dim=1)
    return entropy


def skewed_divergence(context: Gaussian, target: Gaussian, a: Tensor) -> Tensor:
    """Return (1 - a) KL(N_c | N_a) + a KL(N_s | N_a), a scalar >= 0.

    N_a ~ N_c^(1 - a) N_s^a, the geometric mean, is the Gaussian with 1 / v = (1 - a) / v_c + a /
    v_s and m = v ((1 - a) m_c / v_c + a m_s / v_s), where v are variances. With b = 1 - a, d = m_c
    - m_s and w = log(v_s / v_c) of each of the L numbers, the result is half the sum of

        2 a b (cosh w - 1)  -  log(b + a e^-w)  -  a w
        +  a b d^2 (b / v_c^2 + a / v_s^2) / (b / v_c + a / v_s)

    which depends on ratios of variances, so that small and large ones lose no precision. The last
    fraction and d^2 are computed in units of the smaller variance.
    """
    b = 1 - a
    w = 2 * (target.sigma.log() - context.sigma.log())
    widths = 2 * a * b * (w.cosh() - 1) - torch.logaddexp(b.log(), a.log() - w) - a * w
    least = torch.minimum(context.sigma, target.sigma)
    p_c = (least / context.sigma).square()  # precisions, of which one is 1
    p_s = (least / target.sigma).square()
    d_squared = ((context.mean - target.mean) / least).square()
    apart = d_squared * (b * p_c.square() + a * p_s.square()) / (b * p_c + a * p_s)
    return (widths + a * b * apart).sum() / 2


def _encoder(n_inputs: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(n_inputs, width),
        nn.LeakyReLU(SLOPE),
        nn.Linear(width, width),
        nn.LeakyReLU(SLOPE),
    )


def _perceptron(width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, width), nn.LeakyReLU(SLOPE), nn.Linear(width, width))


def _weigh(tensor: Tensor, factor: float) -> Tensor:
    """Return the same tensor with its gradient multiplied by ``factor``.

    In distributed training every process computes the head for all rows, and gradients are summed
    over processes, so that of the head's weights is divided by their number. The gradient that
    flows back into the network is not: each process keeps only that of its own rows.
    """
    if factor == 1 or not tensor.requires_grad:
        return tensor
    same = tensor.view_as(tensor)
    same.register_hook(lambda gradient: factor * gradient)
    return same
