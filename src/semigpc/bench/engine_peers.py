"""The low-rank engine beside scikit-learn's Nystroem features and ridge regression, on the same landmarks."""

from typing import Any

import torch

from semigpc.bench.engine_rows import compare, exact_mean, rbf
from semigpc.bench.engines import Study
from semigpc.bench.timing import time_in_turns
from semigpc.gp import LowRankGP

CHUNK = 4096


def peers(study: Study, *, size: int, rank: int, repetitions: int) -> dict[str, Any]:
    """Seconds to fit and to answer, and the error against the exact GP, with the same landmarks, kernel and noise.

    Nystroem takes all rows that it is fitted on as landmarks if there are no more than it wants. Both fit a table that is
    there from the beginning; to take in new rows later, the peer has to fit again.
    """
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import Ridge

    rows = study.rows(size)
    picked = study.picked(rows)
    kernel, noise = rbf(picked.length_scale), picked.noise_std
    study.report(f"exact GP of {size} rows")
    exact = exact_mean(rows, kernel, noise)
    X, y, queries, gamma = rows.features.numpy(), rows.targets.numpy(), rows.queries.numpy(), 0.5 / picked.length_scale**2

    ours = LowRankGP(
        size, rows.features.shape[1], rows.targets.shape[1], rank=rank, kernel=kernel, noise_std=noise, seed=study.seed
    )
    ours.replace(torch.arange(size), rows.features, rows.targets)
    landmarks = ours.landmarks[: len(ours.basis)]
    features = Nystroem(kernel="rbf", gamma=gamma, n_components=len(landmarks), random_state=0)
    ridge = Ridge(alpha=noise**2, fit_intercept=False, solver="cholesky")

    def fit_peer() -> None:
        features.fit(landmarks.numpy())
        ridge.fit(features.transform(X), y)

    study.report("fitting both in turns")
    fits = time_in_turns({"ours": ours.rebuild, "peer": fit_peer}, repetitions=repetitions)
    answers = time_in_turns(
        {"ours": lambda: ours.mean(rows.queries), "peer": lambda: ridge.predict(features.transform(queries))},
        repetitions=repetitions,
    )
    theirs = torch.from_numpy(ridge.predict(features.transform(queries)))
    return {
        "size": size,
        "rank": len(landmarks),
        "queries": len(queries),
        "fit_s": {name: min(values) for name, values in fits.items()},
        "answer_s": {name: min(values) for name, values in answers.items()},
        "ours": compare(ours.mean(rows.queries), exact.mean, rows.classes),
        "peer": compare(theirs, exact.mean, rows.classes),
    }
