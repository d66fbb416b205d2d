"""The parts of a fit, each against a slow or hand-made version of itself."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import f as f_distribution
from scipy.stats import f_oneway, norm, rankdata

from semigpc import SemiGPClassifier
from semigpc.estimator.answers import (
    FARTHEST_STEP,
    STEPS,
    Probabilities,
    left_out_scores,
    sharpened,
)
from semigpc.estimator.calibration import (
    USUAL_SHARPNESS,
    best_logit_scale,
    choose_sharpness,
    doubted_sharpness,
    estimate_shares,
    label_weights,
    share_divergence,
)
from semigpc.estimator.classifier import read_targets
from semigpc.estimator.fitting import (
    JOINING_CONFIDENCE,
    WHITENING_RIDGE,
    TrainingRows,
    _scalings_to_try,
    fit_scalings,
    self_train,
    variance_ratios,
    weighted_scalings,
)
from semigpc.gp.certainty import class_scales
from semigpc.gp.kernels import make_kernel
from tests.estimator.long_tail import blobs


def test_left_out_scores_count_one_label_less() -> None:
    counts = torch.tensor([3.0, 2.0, 1.0])
    scores = left_out_scores(torch.ones(2, 3), torch.zeros(2), counts, torch.eye(3)[[0, 2]])
    assert scores[0] == pytest.approx(class_scales(torch.tensor([2.0, 2.0, 1.0])))
    assert scores[1, 2] == -torch.inf
    assert scores[1, :2] == pytest.approx(torch.tensor([(2.5 / 3) ** 0.5, (2.5 / 2) ** 0.5]))


def test_the_logit_scale_is_that_of_the_likelihood_once_there_are_labels_enough() -> None:
    rng = torch.Generator().manual_seed(0)
    scores = torch.randn(30_000, 4, generator=rng, dtype=torch.float64)
    codes = torch.multinomial(torch.softmax(5 * scores, dim=1), 1, generator=rng).squeeze(1)
    assert best_logit_scale(scores, codes, default=20.0) == pytest.approx(5, rel=0.15)
    assert best_logit_scale(scores[:0], codes[:0], default=20.0) == 20


def test_shares_are_found_from_calibrated_probabilities() -> None:
    rng = np.random.default_rng(0)
    shares = np.array([0.8, 0.15, 0.05])
    truth = rng.choice(3, size=20_000, p=shares)
    x = torch.from_numpy(rng.standard_normal(len(truth)) + 1.5 * truth)
    log_density = -((x[:, None] - 1.5 * torch.arange(3)) ** 2) / 2
    counts = torch.full((3,), 9.0, dtype=torch.float64)
    found = estimate_shares(log_density, 0.5, counts)  # 0.5: it sharpens twice
    assert found.numpy() == pytest.approx(shares, abs=0.02)


def test_no_share_collapses_where_labels_are_few() -> None:
    rng = np.random.default_rng(0)
    shares = np.array([0.9, 0.08, 0.02])
    truth = rng.choice(3, size=3000, p=shares)
    scores = torch.from_numpy(np.eye(3)[truth] + rng.normal(0, 0.4, (3000, 3)))

    def found(*counts: float) -> Any:
        return estimate_shares(scores, 2.0, torch.tensor(counts, dtype=torch.float64)).numpy()

    ratio = found(90, 8, 2) / shares
    assert min(ratio) > 0.5
    assert max(ratio) < 2
    even = found(5, 5, 5) / shares
    like_the_rest, unlike = (abs(np.log(each)).mean() for each in (ratio, even))
    assert like_the_rest < unlike, "labels that are drawn like the rest help"
    assert found(2, 8, 90)[0] > 0.5, "labels that are not drawn like the rest do not decide"
    assert found(9, 0, 1)[1] == 0


@pytest.mark.parametrize("name", ["unit", "centered"])
def test_rows_are_put_on_the_sphere(name: str) -> None:
    X, _, _ = blobs()
    lengths = fit_scalings(X, name)[name](X).norm(dim=1)
    assert lengths.numpy() == pytest.approx(1, abs=1e-5)


def test_columns_are_standardised_and_constant_ones_vanish() -> None:
    X, _, _ = blobs()
    X = np.concatenate([X * 1000, np.full((len(X), 1), 7, np.float32)], axis=1)
    points = fit_scalings(X, "standard")["standard"](X)
    assert points.mean(dim=0).numpy() == pytest.approx(0, abs=1e-4)
    assert points[:, :-1].std(dim=0).numpy() == pytest.approx(1, abs=0.01)
    assert (points[:, -1] == 0).all()


def test_ranks_do_not_change_when_columns_are_stretched() -> None:
    X, _, _ = blobs()
    X = np.abs(X) + 0.1
    plain, stretched = fit_scalings(X, "rank")["rank"](X), fit_scalings(X**5, "rank")["rank"](X**5)
    assert plain.numpy() == pytest.approx(stretched.numpy(), abs=0.15)
    assert plain.abs().max() < 4
    order = np.argsort(X[:, 0])
    assert (np.diff(plain[order, 0]) >= 0).all()


def test_ranks_are_continuous_and_frequent_values_have_the_middle_rank() -> None:
    X = np.random.default_rng(0).standard_normal((4000, 3)).astype(np.float32)
    X[:1200, 1] = 0  # 30 % of the column, between ranks 0.35 and 0.65
    ranks = fit_scalings(X, "rank")["rank"]
    points = ranks(X).numpy()
    nudged = ranks(X + 1e-6 * np.sign(X[::-1])).numpy()
    assert np.abs(nudged - points)[:, [0, 2]].max() < 1e-4, "a quantile's step is 0.005 and more"
    truth = norm.ppf((rankdata(X[:, 0]) - 0.5) / len(X))
    inner = np.abs(truth) < 2
    assert points[inner, 0] == pytest.approx(truth[inner], abs=0.1)
    share = (X[:, 1] < 0).mean() + 0.15
    assert points[:1200, 1] == pytest.approx(norm.ppf(share), abs=0.1)
    far = ranks(np.array([[-1e6, 1e6, 0]], np.float32)).numpy()[0]
    assert far[:2] == pytest.approx([points[:, 0].min(), points[:, 1].max()])


def test_columns_are_weighted_by_how_well_they_tell_classes_apart() -> None:
    X, codes, _ = blobs(counts=(20, 10, 5), unlabeled=0)
    X[:, 3] = np.random.default_rng(0).standard_normal(len(X))  # tells nothing
    ratios = variance_ratios(X.astype(np.float64), codes)
    for j in (0, 3):
        expected = f_oneway(*(X[codes == c, j].astype(np.float64) for c in range(3))).statistic
        assert ratios[j] == pytest.approx(expected, rel=1e-6)
    plain = fit_scalings(X, "standard")
    (scaling,) = weighted_scalings(plain, X, codes).values()
    assert scaling.name == "weighted"
    factors = (scaling(X) / plain["standard"](X)).median(dim=0).values.numpy()
    F = variance_ratios(plain["standard"](X).double().numpy(), codes)
    least = f_distribution.isf(0.05 / X.shape[1], 2, 32)
    excess = 1 + np.maximum(0, F - least)
    assert factors == pytest.approx((excess / excess.mean()) ** 0.25, rel=1e-4)
    assert factors.argmin() == 3


def test_columns_that_tell_nothing_keep_equal_weights() -> None:
    rng = np.random.default_rng(0)
    weighted = 0
    for _ in range(40):
        X = rng.standard_normal((60, 20)).astype(np.float32)
        codes = rng.integers(0, 3, 60)
        plain = fit_scalings(X, "standard")
        (scaling,) = weighted_scalings(plain, X, codes).values()
        weighted += not torch.allclose(scaling(X), plain["standard"](X))
    assert weighted <= 6, "at 5 % each, more have a probability of 1 %"


def test_steps_add_up_absolute_differences_of_ranks() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 4)).astype(np.float32) ** 3
    codes = rng.integers(0, 3, 300)
    X[:, 1] += 2 * codes
    ranks = fit_scalings(X, "rank")
    stepped = weighted_scalings(ranks, X, codes)["weighted_steps"](X).double()
    r = ranks["rank"](X).double().numpy()
    F = variance_ratios(r, codes)
    excess = 1 + np.maximum(0, F - f_distribution.isf(0.05 / 4, 2, 297))
    weights = (excess / excess.mean()) ** 0.5
    expected = np.abs(r[:, None] - r) @ weights * STEPS / (2 * FARTHEST_STEP)
    found = torch.cdist(stepped, stepped).square().numpy()
    # Within a step the difference is squared, so up to a quarter of each step's ends is lost.
    assert (found <= expected + 1e-6).all()
    assert (found >= expected - weights.sum() / 2 - 1e-6).all()


def test_auto_tries_steps_on_tables_and_not_on_embeddings() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 8, 500)
    bits = (truth[:, None] >> np.arange(3)) & 1  # classes are boxes, and so no blobs
    narrow = np.c_[rng.uniform(-1, 1, (500, 3)) + 1.5 * bits, rng.standard_normal((500, 3))]
    codes = np.where(np.arange(500) < 100, truth, -1)
    assert SemiGPClassifier().fit(narrow, codes).scaling_ == "weighted_steps"
    wide = np.tile(narrow, 22) + rng.normal(0, 1e-3, (500, 132))
    assert not SemiGPClassifier().fit(wide, codes).scaling_.startswith("weighted")


def test_a_column_that_decides_is_found_among_many_that_do_not() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 400)
    X = rng.standard_normal((400, 30)).astype(np.float32) * 10.0 ** rng.uniform(-2, 2, 30)
    X[:, 7] = 3 * truth + rng.standard_normal(400)
    codes = np.where(np.arange(400) < 60, truth, -1)
    accuracy = {
        name: (SemiGPClassifier(scaling=name).fit(X, codes).predict(X) == truth)[60:].mean()
        for name in ("standard", "weighted", "weighted_rank", "auto")
    }
    assert accuracy["weighted"] > accuracy["standard"] + 0.1
    assert accuracy["weighted_rank"] > accuracy["standard"] + 0.1
    assert accuracy["auto"] > accuracy["standard"] + 0.1


def correlated(rows: int, seed: int = 0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Rows whose columns share a factor that tells nothing; what is left tells three classes."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, rows)
    centres = np.random.default_rng(5).standard_normal((3, 10))
    shared = 12 * rng.standard_normal((rows, 1))
    X = centres[truth] + 0.7 * rng.standard_normal((rows, 10)) + shared
    return X.astype(np.float32), truth


def test_whitened_columns_are_uncorrelated_but_for_the_ridge() -> None:
    X, _ = correlated(500)
    X[:, 2] = 4  # a constant column
    scaling = fit_scalings(X, "whitened")["whitened"]
    points = scaling(X).double().numpy()
    kept = np.delete(np.arange(10), 2)
    R = np.corrcoef(X[:, kept], rowvar=False)
    expected = R @ np.linalg.inv(R + WHITENING_RIDGE * np.eye(9))
    assert points[:, kept].T @ points[:, kept] / 500 == pytest.approx(expected, abs=1e-5)
    assert points[:, 2] == pytest.approx(0, abs=1e-12)
    alone = torch.cat([scaling(X[i : i + 1]) for i in range(100)])
    assert torch.equal(alone, scaling(X)[:100]), "a row has the same point in any batch"


def test_auto_whitens_tables_where_a_shared_factor_hides_the_classes() -> None:
    X, truth = correlated(400)
    codes = np.where(np.arange(400) < 45, truth, -1)
    models = {name: SemiGPClassifier(scaling=name).fit(X, codes) for name in ("auto", "standard")}
    accuracy = {name: (model.predict(X) == truth)[45:].mean() for name, model in models.items()}
    assert models["auto"].scaling_ == "whitened"
    assert accuracy["auto"] > accuracy["standard"] + 0.03
    rng = np.random.default_rng(0)
    plain = (rng.standard_normal((400, 2)) + truth[:, None]).astype(np.float32)
    names = _scalings_to_try(plain, codes, np.arange(45), 45, "auto")
    assert "whitened" not in names, "columns that vary in all directions are left as they are"


def test_unlike_columns_are_told_from_alike_ones() -> None:
    X, _, _ = blobs()
    assert set(fit_scalings(X)) == {"unit", "centered"}
    X[:, 0] *= 1000
    assert set(fit_scalings(X)) == {"standard", "rank"}


def test_only_confident_rows_join_and_no_class_more_than_its_share() -> None:
    X, codes, truth = blobs(counts=(8, 4, 4), unlabeled=100)
    known = codes >= 0
    labels = torch.from_numpy(codes[known])
    rows = TrainingRows(
        points=torch.from_numpy(X[known]),
        codes=labels,
        targets=torch.nn.functional.one_hot(labels).double(),
        numbers=np.flatnonzero(known),
        groups=np.arange(known.sum()),
        unlabeled=torch.from_numpy(X[~known]),
        unlabeled_numbers=np.flatnonzero(~known),
    )
    memory = rows.memory(make_kernel("rbf", 6.0), 0.2)
    scores = memory.score(rows.unlabeled).mean
    helped, after = self_train(memory, rows, scores, 8.0, rounds=3)
    assert helped is not None
    assert (after.argmax(dim=1).numpy() == truth[~known]).mean() > 0.95
    assert (helped.given()[0] == rows.numbers).all(), "joined rows have no given label"
    (member,) = helped.members
    joined = torch.from_numpy(np.isin(helped.row_numbers(), rows.unlabeled_numbers))
    soft = member.engine.targets[member.slots[member.places.argsort()]][joined]
    assert len(soft) == len(helped) - 16
    assert (soft.max(dim=1).values >= JOINING_CONFIDENCE).all()
    numbers = helped.row_numbers()[joined.numpy()]
    assert (soft.argmax(dim=1).numpy() == truth[numbers]).mean() > 0.95
    nobody, after = self_train(memory, rows, scores, 8.0, rounds=0)
    assert nobody is None
    assert torch.equal(after, scores)


def test_sharpness_is_found_where_probabilities_are_too_soft() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4000, 4, generator=rng, dtype=torch.float64)
    codes = torch.multinomial(torch.softmax(logits, dim=1), 1, generator=rng).squeeze(1)
    soft = torch.softmax(0.5 * logits, dim=1)
    counts = torch.full((4000, 4), 1e6)  # of which the correction for few labels vanishes
    assert choose_sharpness(soft, codes, counts, torch.ones(4000)) == pytest.approx(2, rel=0.1)
    nothing = choose_sharpness(soft[:0], codes[:0], counts[:0], torch.ones(0))
    assert np.log(nothing) == pytest.approx(USUAL_SHARPNESS, abs=1e-2)


def test_a_class_with_one_label_is_believed_less_and_stays_the_first() -> None:
    probs = torch.tensor([[0.7, 0.2, 0.1, 0.0], [0.1, 0.2, 0.7, 0.0]], dtype=torch.float64)
    found = sharpened(probs, 1.0, torch.tensor([1.0, 5.0, 500.0, 0.0]))
    power = probs[0, :3] ** (1 / 1.5)
    assert found[0, :3].numpy() == pytest.approx((power / power.sum()).numpy())
    assert found[1, 2] == pytest.approx(0.7, abs=1e-3)
    assert (found[:, 3] == 0).all()
    assert (found.argmax(dim=1) == probs.argmax(dim=1)).all()


@pytest.mark.parametrize(
    ("counts", "shares", "weight"),
    [
        ([60.0, 20, 6, 2], [0.25, 0.25, 0.25, 0.25], 0.3),  # labels have a tail, the rest has none
        ([60.0, 20, 6, 2], [0.68, 0.23, 0.07, 0.02], 0.6),  # both have the same tail
        ([60.0, 20, 6, 2], [0.02, 0.07, 0.23, 0.68], 0.6),  # reversed, and as uneven
        ([4.0, 4, 4, 4], [0.7, 0.2, 0.07, 0.03], 0.6),  # as many labels of each
        ([30.0, 3, 0, 0], [0.5, 0.5, 0.0, 0.0], 0.3),  # classes without a label do not count
    ],
)
def test_the_gp_over_given_labels_weighs_less_where_the_rest_is_more_even(
    counts: list[float], shares: list[float], weight: float
) -> None:
    probabilities = Probabilities(
        logit_scale=3.0,
        confidence_scale=2.0,
        sharpness=1.0,
        shares=torch.tensor(shares, dtype=torch.float64),
        counts=torch.tensor(counts, dtype=torch.float64),
    )
    plain, even = torch.randn(2, 5, 4, generator=torch.Generator().manual_seed(0)).double()
    prior = torch.tensor(shares).double().clamp_min(1e-12).log() / 2
    prior[torch.tensor(counts) == 0] = -torch.inf
    one = torch.softmax(2 * plain + prior, dim=1)
    two = torch.softmax(2 * 3 * even + prior, dim=1)
    expected = weight * one + (1 - weight) * two
    torch.testing.assert_close(probabilities.average(plain, even), expected)


@pytest.mark.parametrize(
    ("counts", "shares", "factor"),
    [
        ([40.0, 40], [0.5, 0.5], 1.0),  # as the labels
        ([40.0, 40], [0.95, 0.05], 0.9),  # KL 0.49
        ([40.0, 40], [0.6, 0.4], None),  # KL 0.02
        ([9.0, 1, 0], [0.1, 0.9, 0.0], 0.9),
    ],
)
def test_sharpness_is_doubted_where_shares_are_far_from_those_of_the_labels(
    counts: list[float], shares: list[float], factor: float | None
) -> None:
    n = np.array(counts)
    pi = np.array(shares)
    nu = (n + 0.5) / (n + 0.5).sum()
    divergence = sum(p * math.log(p / q) for p, q in zip(pi, nu, strict=True) if p > 0)
    assert share_divergence(pi, n) == pytest.approx(divergence, abs=1e-9)
    expected = 1 - divergence if factor is None else factor  # 0.1 for each 0.1 nats, 0.1 at most
    assert doubted_sharpness(2.0, pi, n) == pytest.approx(2 * expected, abs=1e-9)


def test_weights_of_labels_give_classes_their_shares() -> None:
    codes = torch.tensor([0] * 8 + [1] * 2)
    shares = torch.tensor([0.2, 0.8], dtype=torch.float64)
    weights = label_weights(codes, shares)
    assert float(weights[codes == 1].sum() / weights.sum()) == pytest.approx(0.8)
    assert float(weights.sum()) == pytest.approx(1 / (8 * 0.025**2 + 2 * 0.4**2))
    assert float(label_weights(codes, torch.tensor([0.8, 0.2])).sum()) == pytest.approx(10)


def test_targets_keep_their_kind() -> None:
    assert read_targets(["b", None, "a"])[1].tolist() == ["a", "b"]
    assert read_targets(np.array([3, -1, 1], np.int8))[0].tolist() == [1, -1, 0]
    assert read_targets(np.array([2.0, np.nan, 5.0]))[1].tolist() == [2.0, 5.0]
    assert read_targets([True, False])[1].tolist() == [False, True]
    assert read_targets(["c"], np.array(["a", "b"]))[1].tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("nothing", [None, np.nan, -1, -1.0, "", " ", "-1", "-1.0", "nan"])
def test_what_stands_for_no_label_in_tables_does_so_in_python(nothing: Any) -> None:
    mixed = np.array(["b", nothing, "a"], dtype=object)
    assert read_targets(mixed)[0].tolist() == [1, -1, 0]
    if isinstance(nothing, str):
        assert read_targets(np.array(["b", nothing, "a"]))[0].tolist() == [1, -1, 0]
        assert read_targets(["b", nothing, "a"])[1].tolist() == ["a", "b"]
