"""Pseudo-labels from a GP over a class-balanced buffer, beside the kernel average that it replaces.

A long-tailed stream of labelled features fills the buffer batch by batch, as a training loop would;
then unlabelled
features are labelled by the buffer. Run it: ``python examples/refine_with_a_gp.py`` (a few
seconds).
"""

import torch
import torch.nn.functional as F

from semigpc import RBF, BalancedBuffer, ExactGP

CLASSES = 5
WIDTH = 32
CAPACITY = 500
BATCH = 8
LOGIT_SCALE = 6.0  # lambda: turns posterior means between 0 and 1 into logits


def main() -> None:
    """Fill the buffer, ask it, print what the answers are worth."""
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(CLASSES, WIDTH, generator=generator), dim=1)
    frequencies = 4.0 ** -torch.arange(CLASSES)  # every class four times rarer than the one before

    def draw(labels: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(len(labels), WIDTH, generator=generator) / WIDTH**0.5
        return F.normalize(centres[labels] + 0.9 * noise, dim=1)

    buffer = BalancedBuffer(CAPACITY, CLASSES)
    gp = ExactGP(CAPACITY, WIDTH, CLASSES, kernel=RBF(length_scale=0.45))
    for _ in range(200):  # the labelled half of a training loop
        labels = torch.multinomial(frequencies, BATCH, replacement=True, generator=generator)
        written = buffer.write(labels)
        gp.replace(
            written.slots,
            draw(labels)[written.rows],
            F.one_hot(labels, CLASSES).float()[written.rows],
        )

    truth = torch.arange(CLASSES).repeat_interleave(400)
    unlabelled = draw(truth)
    by_gp = torch.softmax(LOGIT_SCALE * gp.mean(unlabelled), dim=1)
    by_average = (
        gp.kernel(unlabelled.double(), gp.features) @ gp.targets
    )  # what SimMatch and CoMatch smooth with
    print("entries of each class in the buffer:", buffer.entries.class_counts().tolist())
    for name, scores in (("kernel average", by_average), ("GP", by_gp)):
        correct = (scores.argmax(dim=1) == truth).float().view(CLASSES, -1).mean(dim=1)
        print(f"{name:>14}: accuracy by class", [f"{value:.2f}" for value in correct.tolist()])

    query = unlabelled[-1:]  # of the rarest class: why was it labelled so?
    label = by_gp[-1:].argmax(dim=1)
    weights = gp.explain(query, label).squeeze(0)
    print(
        f"the last one is {int(label)} with mean {float(weights.sum()):.2f}, "
        "because of these entries:"
    )
    for slot in weights.abs().topk(3).indices.tolist():
        print(
            f"  slot {slot}, labelled {int(buffer.entries.labels[slot])}, "
            f"adds {float(weights[slot]):+.2f}"
        )


if __name__ == "__main__":
    main()
