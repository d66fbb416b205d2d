"""How much longer does the GP make a training step, fed by the real loader?"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.progress import Progress

sys.path.insert(
    0, str(Path(__file__).parents[1])
)  # so that the script can be started as a file too

from benchmarks.tables import Json, Seed, script
from benchmarks.timing import time_in_turns
from semigpc.algorithms import ALGORITHMS
from semigpc.data import Augment, AugmentConfig, BatchStream, Splits, splits_from_arrays
from semigpc.data.loaders import normalised
from semigpc.io.text import unknown_name
from semigpc.models import ModelConfig
from semigpc.refiners import GPConfig, NoRefinerConfig
from semigpc.training import Experiment, TrainConfig
from semigpc.training.loop import take_step
from semigpc.training.state import Trainer, assemble, build_fabric
from semigpc.types import Batch, Clock

IMAGES = 256
SIZE = 32
N_CLASSES = 10
WARM = 5000  # a step number past every warm-up


class StepTimes(NamedTuple):
    """Seconds of the fastest step of each kind, their ratio, and the share of a step that waits for
    its batch.

    The fastest, because whatever else the machine does only ever makes a step slower.
    """

    base_s: float
    gp_s: float
    ratio: float
    data_wait_share: float
    repetitions: int


def bench_step(
    *,
    model: str = "vit_tiny_patch2_32",
    algorithm: str = "fixmatch",
    buffer_size: int = 2048,
    batch: int = 8,
    repetitions: int = 10,
    workers: int = 1,
    seed: int = 0,
    advance: Callable[[], object] = lambda: None,
) -> StepTimes:
    """Time whole steps (forward, GP, backward, optimiser) in turns, with a full buffer, and then
    the loop with its loader.

    Args:
        model: by name, for images of 32 x 32. algorithm: by name. buffer_size: N.
        batch: B labelled and B unlabelled images.
        repetitions: of each kind of step, and of the steps that wait for data. workers: that load.
    """
    base = Experiment(
        augment=AugmentConfig(image_size=SIZE),
        model=ModelConfig(name=model),
        algorithm=ALGORITHMS[algorithm].config(),
        refiner=NoRefinerConfig(),
        train=TrainConfig(
            labeled_batch=batch,
            workers=workers,
            ema=0.999 if algorithm in ("simmatch", "comatch") else 0.0,
        ),
        seed=seed,
    )
    refined = replace(base, refiner=GPConfig(buffer_size=buffer_size, warmup_steps=0))
    splits = _random_images(seed)
    trainers = {"base": make_trainer(base, splits), "gp": make_trainer(refined, splits)}
    batches = load_batches(
        base, splits, trainers["base"], first=WARM, count=repetitions + 2, workers=workers
    )
    first = next(batches)
    steps = {
        name: partial(_take, trainer, first, WARM, base.train) for name, trainer in trainers.items()
    }
    seconds = time_in_turns(steps, repetitions=repetitions, advance=advance)
    share = _data_wait_share(trainers["gp"], batches, base.train, repetitions, advance)
    base_s = min(seconds["base"])
    gp_s = min(seconds["gp"])
    return StepTimes(base_s, gp_s, gp_s / base_s, share, repetitions)


def _random_images(seed: int) -> Splits:
    generator = np.random.default_rng(seed)
    images = generator.integers(0, 256, (IMAGES, SIZE, SIZE, 3), dtype=np.uint8)
    labels = np.arange(IMAGES) % N_CLASSES
    labels[IMAGES // 2 :] = -1
    return splits_from_arrays(images, labels)


def make_trainer(experiment: Experiment, splits: Splits) -> Trainer:
    """Return a trainer whose buffer, if it has one, is full."""
    with torch.random.fork_rng():
        torch.manual_seed(experiment.seed)
        trainer = assemble(
            experiment,
            splits.class_counts,
            build_fabric(experiment),
            n_unlabeled=len(splits.unlabeled),
        )
        gp = trainer.gp
        if gp is not None:
            features = F.normalize(torch.randn(gp.config.buffer_size, gp.n_features), dim=1).to(
                trainer.fabric.device
            )
            gp.write(features, torch.arange(len(features), device=features.device) % N_CLASSES)
    return trainer


def load_batches(
    experiment: Experiment,
    splits: Splits,
    trainer: Trainer,
    *,
    first: int,
    count: int,
    workers: int = 0,
) -> Iterator[Batch]:
    """Return the batches of steps ``first`` .. ``first + count - 1`` of a run, from the loader that
    training uses.
    """
    config = experiment.train
    stream = BatchStream(
        splits,
        Augment(experiment.augment),
        views=trainer.algorithm.views,
        labeled_batch=config.labeled_batch,
        unlabeled_batch=config.unlabeled_batch,
        seed=experiment.seed,
        epoch_steps=config.epoch_steps,
        total_steps=first + count,
        power=experiment.addon.sampling_power,
        balanced=experiment.addon.needs_balanced_batch,
    )
    return (
        normalised(batch, stream.source)
        for batch in stream.batches(first_step=first, workers=workers)
    )


def _take(trainer: Trainer, batch: Batch, step: int, config: TrainConfig) -> None:
    take_step(
        trainer,
        trainer.fabric.to_device(batch),
        Clock(step, config.steps, config.epoch_steps),
        config,
    )


def _data_wait_share(
    trainer: Trainer,
    batches: Iterator[Batch],
    config: TrainConfig,
    repetitions: int,
    advance: Callable[[], object],
) -> float:
    """Seconds spent waiting for batches, divided by all, over steps as the loop takes them."""
    waited = 0.0
    began = time.perf_counter()
    for step in range(repetitions):
        asked = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - asked
        _take(trainer, batch, WARM + 1 + step, config)
        advance()
    return waited / (time.perf_counter() - began)


def step(
    model: Annotated[
        str, typer.Option(help="Network for images of 32 x 32.", metavar="NAME")
    ] = "vit_tiny_patch2_32",
    algorithm: Annotated[
        str, typer.Option(help="Algorithm, with and without the GP.", metavar="NAME")
    ] = "fixmatch",
    buffer: Annotated[int, typer.Option(help="Buffer size N; the buffer is full.", min=64)] = 2048,
    batch: Annotated[
        int, typer.Option(help="Labelled and unlabelled images per step, B.", min=1)
    ] = 8,
    repetitions: Annotated[int, typer.Option(help="Timed steps of each kind.", min=2)] = 10,
    workers: Annotated[int, typer.Option(help="Processes that load images.", min=0)] = 1,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Time a whole training step with the GP and without it.

    Both see the same batch in turns: forward, pseudo-labels, backward,
    optimiser, and the GP's query and update with a full buffer. Then the loop
    runs on its real loader, to see how long a step waits for its images.
    """
    if algorithm not in ALGORITHMS:
        raise typer.BadParameter(
            unknown_name("algorithm", algorithm, ALGORITHMS), param_hint="--algorithm"
        )
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("Steps", total=3 * repetitions)
        times = bench_step(
            model=model,
            algorithm=algorithm,
            buffer_size=buffer,
            batch=batch,
            repetitions=repetitions,
            workers=workers,
            seed=seed,
            advance=lambda: progress.advance(task),
        )
    if as_json:
        typer.echo(json.dumps(times._asdict()))
    else:
        typer.echo(
            f"{algorithm} on {model}, B = {batch}: {times.base_s:.3f} s per step, "
            f"{times.gp_s:.3f} s with a GP over {buffer} rows, ratio {times.ratio:.3f}; "
            f"{times.data_wait_share:.1%} of a step waits for data (fastest of {repetitions})."
        )


app = script(step)
if __name__ == "__main__":
    app()
