"""Training: an experiment in, a run folder out."""

from semigpc.training.evaluate import DivergedError
from semigpc.training.experiment import Experiment, FrozenConfig, TrainConfig
from semigpc.training.loop import train
from semigpc.training.processes import Stopped
from semigpc.training.run_folder import CheckpointError, RunError, RunFolder
from semigpc.training.run_log import Listener
from semigpc.training.settings import SettingError

__all__ = [
    "CheckpointError",
    "DivergedError",
    "Experiment",
    "FrozenConfig",
    "Listener",
    "RunError",
    "RunFolder",
    "SettingError",
    "Stopped",
    "TrainConfig",
    "train",
]
