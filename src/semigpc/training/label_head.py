"""The head of a run on frozen features that needs no training: what ``semigpc label`` would answer.

It is a :class:`semigpc.estimator.SemiGPClassifier` on the rows of the labelled and unlabelled
images, with the network, the image size and the settings of ``semigpc label``; rows come from the
same cache. Nothing that trains moves these rows, so it is fitted once, when a run starts, and every
checkpoint contains it.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import TypedDict

from semigpc.data import ImageSet, Splits
from semigpc.data.feature_views import JoinedImages
from semigpc.estimator import SemiGPClassifier
from semigpc.estimator.fitting import POOL_ROWS
from semigpc.estimator.head import (
    PROBABILITIES,
    ClassifierHead,
    HeadFacts,
    restored_head,
    stored_head,
)
from semigpc.io.images import Images
from semigpc.io.tables import TableKey
from semigpc.models import ModelConfig
from semigpc.models.encoder import NO_WEIGHTS, EmbedConfig, embed_pool, encoder_key

Floats = NDArray[np.float64]
Progress = Callable[[int, int], None]  # images embedded, of those without an embedding
SAMPLE_STREAM = 41  # keeps the random numbers of drawing these apart from others of a seed
ROWS_AT_ONCE = 1024  # that are predicted together, to bound memory


class LabelFacts(TypedDict):
    """What a checkpoint stores of the head besides tensors; ``key`` is that of the embeddings."""

    classifier: HeadFacts
    network: str
    pretrained: str
    key: dict[str, str | int]


@dataclass(frozen=True)
class LabelHead:
    """A fitted head.

    Args:
        classifier: from rows (M, D) to probabilities (M, C), classes in the order of the run.
        length_scale: of its kernel. config: the network. key: what rows depend on besides images.
    """

    classifier: ClassifierHead
    length_scale: float
    config: EmbedConfig
    key: TableKey

    def probs(self, images: ImageSet, progress: Progress | None = None) -> Floats:
        """Return calibrated probabilities (M, C) of images; their rows come from the cache.

        Raises:
            DataError: an image cannot be read, or the network is another one than in training.
        """
        rows = embedded([images], self.config, self.key, progress)[0]
        return self.of_rows(torch.from_numpy(rows))

    @torch.no_grad()
    def of_rows(self, rows: Tensor) -> Floats:
        """Return probabilities (M, C) of rows (M, D). O(M N (D + C + N)) for N points."""
        parts = [self.classifier(part)[PROBABILITIES] for part in rows.split(ROWS_AT_ONCE)]
        return torch.cat(parts).double().numpy()

    def stored(self) -> tuple[dict[str, Tensor], LabelFacts]:
        """Return what a checkpoint stores: tensors and facts."""
        tensors, facts = stored_head(self.classifier, self.length_scale)
        stored: LabelFacts = {
            "classifier": facts,
            "network": self.config.model,
            "pretrained": self.config.source,
            "key": asdict(self.key),
        }
        return tensors, stored

    @classmethod
    def restored(cls, tensors: Mapping[str, Tensor], facts: LabelFacts) -> "LabelHead":
        """Return the head that :meth:`stored` returned; it computes the same bits.

        Raises:
            KeyError, ValueError, TypeError: something is missing or does not fit.
        """
        key = TableKey(**facts["key"])  # type: ignore[arg-type]
        config = EmbedConfig(model=facts["network"], pretrained=facts["pretrained"])
        classifier = restored_head(tensors, facts["classifier"])
        return cls(classifier, facts["classifier"]["length_scale"], config, key)


def fit_label_head(
    model: ModelConfig, splits: Splits, seed: int, progress: Progress | None = None
) -> LabelHead | None:
    """Return the head for these splits; None if all rows are the same.

    All labelled images and at most POOL_ROWS others are learned from, validation and test
    images are not. O(n^3) for n labels, and the time of embedding what was never embedded.

    Args:
        model: the frozen network. splits: whose images. seed: of the folds and the sample.
        progress: called while images are embedded, those of validation and test among them.
    """
    config = EmbedConfig(model=model.name, pretrained=model.pretrained or NO_WEIGHTS)
    key = encoder_key(config.encoder(), config)
    labeled = _by_name(splits.labeled)
    unlabeled = _by_name(_sample(splits, seed))
    held_out = [part for part in (splits.validation, splits.test) if part is not None]
    x, u, *_ = embedded([labeled, unlabeled, *held_out], config, key, progress)
    rows = np.concatenate([x, u])
    if not (rows != rows[0]).any():
        return None
    y = np.concatenate([labeled.labels, np.full(len(u), -1)])
    classifier = SemiGPClassifier(random_state=seed)
    with warnings.catch_warnings():  # they are about labels to give out, which a run does not
        warnings.simplefilter("ignore", UserWarning)
        classifier.fit(rows, y, transduce=False)
    return LabelHead(classifier.head().eval(), float(classifier.length_scale_), config, key)


def embedded(
    parts: list[ImageSet], config: EmbedConfig, key: TableKey, progress: Progress | None
) -> list[NDArray[np.float32]]:
    """Return the rows (M, D) of each set of images; those never embedded go through the network."""

    def report(stage: str, done: int, total: int | None) -> None:
        if progress is not None and stage == "embedding" and total:
            progress(done, total)

    pools = [part.images for part in parts]
    pool: Images = reduce(JoinedImages, pools)
    starts = np.cumsum([0, *map(len, pools)])
    places = [part.positions + start for part, start in zip(parts, starts[:-1], strict=True)]
    positions = np.concatenate(places).tolist()
    marks = [mark for part in parts for mark in part.marks]
    rows = embed_pool(pool, positions, marks, config, key, progress=report)
    return np.split(rows, np.cumsum([len(part) for part in parts])[:-1])


def _sample(splits: Splits, seed: int) -> ImageSet:
    """Return at most POOL_ROWS unlabelled images, none of which is a labelled one too."""
    unlabeled = splits.unlabeled
    chosen = np.arange(len(unlabeled))
    if unlabeled.images is splits.labeled.images:
        chosen = chosen[~np.isin(unlabeled.positions, splits.labeled.positions)]
    if len(chosen) > POOL_ROWS:
        rng = np.random.default_rng([seed, SAMPLE_STREAM])
        chosen = np.sort(rng.choice(chosen, POOL_ROWS, replace=False))
    return unlabeled.subset(chosen)


def _by_name(images: ImageSet) -> ImageSet:
    """Return images in the order of ``semigpc label``: left-out parts depend on it."""
    order = sorted(range(len(images)), key=images.names.__getitem__)
    return images.subset(np.array(order, dtype=np.int64))
