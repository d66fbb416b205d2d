"""Training: an experiment in, a run folder out."""

from semigpc.training.experiment import Experiment, FrozenConfig, TrainConfig
from semigpc.training.loop import train
from semigpc.training.processes import Stopped
from semigpc.training.run_folder import RunFolder, last_result
from semigpc.training.run_log import Listener

__all__ = [
    "Experiment",
    "FrozenConfig",
    "Listener",
    "RunFolder",
    "Stopped",
    "TrainConfig",
    "last_result",
    "train",
]
