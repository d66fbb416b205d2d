"""An algorithm of your own, with and without SemiGPC, in about twenty seconds on a CPU.

Mean Teacher in its simplest form: the strong view has to agree with the moving average's prediction
for the weak one. No file of semigpc is changed.
"""

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from semigpc.algorithms import ALGORITHMS, Algorithm, AlgorithmConfig, AlgorithmEntry
from semigpc.training import last_result, train
from semigpc.training.presets import digits
from semigpc.types import Batch, Clock, Networks, PseudoLabels, StepOutput


@dataclass(frozen=True, kw_only=True)
class MeanTeacherConfig(AlgorithmConfig):
    """Options; ``--set algorithm.consistency_weight=...`` changes this one."""

    consistency_weight: float = 1.0


class MeanTeacher(Algorithm):
    """L = H(z_x, y) + w H(z_s, f(p_teacher)), with the refiner f.

    State would live in registered buffers; there is none.
    """

    views = ("weak", "strong")
    config: MeanTeacherConfig

    def step(self, networks: Networks, batch: Batch, clock: Clock) -> StepOutput:  # noqa: ARG002
        """Return the loss of one batch."""
        x, strong = networks.forward(batch.x, batch.views["strong"])
        self.refiner.observe("before", x, batch)
        with torch.no_grad():
            weak = networks.ask_teacher(batch.views["weak"])
            probs = self.refiner.refine("semantic", weak, torch.softmax(weak.logits, dim=1))
        self.refiner.observe("after", x, batch)
        loss_x = F.cross_entropy(x.logits, batch.y)
        loss_u = F.cross_entropy(strong.logits, probs)
        loss = loss_x + self.config.consistency_weight * loss_u
        pseudo = PseudoLabels(probs, torch.ones(len(probs)))
        return StepOutput(loss, {"loss_x": loss_x, "loss_u": loss_u}, pseudo)


def main() -> None:
    """Train it twice on long-tailed digits."""
    ALGORITHMS["mean_teacher"] = AlgorithmEntry(MeanTeacherConfig, MeanTeacher, "Mean Teacher")
    for refiner in ("none", "gp"):
        experiment = digits(algorithm="mean_teacher", refiner=refiner)
        experiment = replace(experiment, train=replace(experiment.train, steps=300, threads=1))
        with tempfile.TemporaryDirectory() as folder:
            result = last_result(train(experiment, Path(folder) / "run"))
        groups = ", ".join(f"{name} {value:.0%}" for name, value in result["groups"].items())
        accuracy = result["balanced_accuracy"]
        print(f"Mean Teacher, refiner {refiner}: balanced accuracy {accuracy:.1%} ({groups})")


if __name__ == "__main__":
    main()
