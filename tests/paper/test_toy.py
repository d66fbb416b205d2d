"""The toy problems: the claims of the paper that a laptop can check, over ten draws."""

import json
from dataclasses import asdict

import pytest
import torch

from semigpc.paper.toy import (
    CENTRES,
    CLASSIFIERS,
    COUNTS,
    LENGTH_SCALES,
    N_DISPUTED,
    NOISE_STD,
    OUTLIER,
    PROPAGATORS,
    Confidence,
    confidence_figures,
    confidence_map,
    draw,
    propagate,
    propagation_figures,
    similarity,
    situations,
    toy_figures,
)

SEEDS = range(10)


@pytest.fixture(scope="module", params=SEEDS, ids=lambda seed: f"seed{seed}")
def confidence(request: pytest.FixtureRequest) -> dict[tuple[str, float], Confidence]:
    return {
        (entry.classifier, entry.length_scale): entry for entry in confidence_figures(request.param)
    }


def test_counts_double_clockwise_from_the_top_right_and_an_eighth_is_labelled() -> None:
    data = draw(0)
    assert torch.bincount(data.labels).tolist() == [16, 32, 64, 128]
    assert torch.bincount(data.labels[data.labeled]).tolist() == [2, 4, 8, 16]
    for c, centre in enumerate(CENTRES):
        offset = data.points[data.labels == c].mean(dim=0) - torch.tensor(centre)
        assert offset.norm() < 4 * 0.35 / COUNTS[c] ** 0.5


def test_a_draw_depends_on_its_seed_alone_and_leaves_the_global_generator_untouched() -> None:
    before = torch.get_rng_state()
    first = draw(3)
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        torch.manual_seed(99)
        assert torch.equal(draw(3).points, first.points)
    assert not torch.equal(draw(4).points, first.points)


def test_where_labels_disagree_a_long_length_scale_leaves_only_the_gp_unsure(
    confidence: dict[tuple[str, float], Confidence],
) -> None:
    assert confidence["linear", 1.0].disagreement > 0.95
    # The cluster beside outvotes the four disputed points, unless nothing reaches from there.
    assert confidence["similarity", 1.0].disagreement > 0.84
    assert confidence["similarity", 0.35].disagreement < 0.65
    for length_scale in LENGTH_SCALES:
        assert confidence["gp", length_scale].disagreement < 0.75


def test_a_surrounded_minority_keeps_its_class_by_the_gp_at_any_length_scale(
    confidence: dict[tuple[str, float], Confidence],
) -> None:
    for length_scale in LENGTH_SCALES:
        assert confidence["gp", length_scale].minority > 0.95
        assert confidence["linear", length_scale].minority < 0.15  # its share of all points
    assert confidence["similarity", 1.0].minority < 0.3
    assert confidence["similarity", 0.35].minority > 0.9


def test_only_the_gp_is_unsure_of_the_outlier(
    confidence: dict[tuple[str, float], Confidence],
) -> None:
    for length_scale in LENGTH_SCALES:
        assert confidence["linear", length_scale].outlier > 0.95
        assert confidence["similarity", length_scale].outlier > 0.95
        assert confidence["gp", length_scale].outlier < (0.8 if length_scale == 1 else 0.27)


def test_the_gp_is_sure_at_every_centre_and_similarity_loses_the_smallest_class(
    confidence: dict[tuple[str, float], Confidence],
) -> None:
    for length_scale in LENGTH_SCALES:
        assert min(confidence["gp", length_scale].centres) >= 0.98
    assert confidence["similarity", 1.0].centres[0] < 0.6
    assert confidence["similarity", 1.0].centres[3] > 0.85


def test_disputed_points_have_a_label_of_either_class_and_the_ring_leaves_the_minority_alone() -> (
    None
):
    places = situations(7)
    disputed = places["disagreement"].data
    points, counts = disputed.points.unique(dim=0, return_counts=True)
    twice = points[counts == 2]
    assert len(twice) == N_DISPUTED
    for point in twice:
        assert disputed.labels[(disputed.points == point).all(dim=1)].tolist() == [0, 1]
    surrounded = places["minority"].data
    distances = surrounded.points.norm(dim=1)
    assert distances[surrounded.labels == 0].max() < distances[surrounded.labels == 1].min()
    angles = torch.atan2(*surrounded.points[surrounded.labels == 1].T.flip(0)).sort().values
    assert angles.diff().max() < torch.pi / 4  # the ring is closed


@pytest.mark.parametrize("key", ["disagreement", "minority", "outlier"])
def test_the_numbers_of_figure_1_are_those_of_a_slow_reference(key: str) -> None:
    """Recompute them with an inverse and sums over points, one at a time."""
    one = situations(3)[key]
    points, labels = one.data.points, one.data.labels.tolist()

    def kernel(a: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.exp(-(a - b).square().sum() / 2) for b in points])

    k = kernel(torch.tensor(one.place, dtype=torch.float64))
    K = torch.stack([kernel(a) for a in points])
    w = k @ torch.linalg.inv(K + NOISE_STD**2 * torch.eye(len(points), dtype=torch.float64))
    votes, mean = torch.zeros(2, max(labels) + 1, dtype=torch.float64)
    for i, label in enumerate(labels):
        votes[label] += k[i]
        mean[label] += w[i]
    expected = {"similarity": votes / votes.sum(), "gp": torch.softmax(6 * mean, dim=0)}
    for entry in confidence_figures(3):
        if entry.length_scale == 1 and entry.classifier in expected:
            probs = expected[entry.classifier]
            number = float(probs.max() if key != "minority" else probs[0])
            assert getattr(entry, key) == pytest.approx(number, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_at_length_scale_1_the_gp_finds_the_minority_that_similarity_loses(seed: int) -> None:
    entries = [entry for entry in propagation_figures(draw(seed)) if entry.length_scale == 1]
    found = {entry.classifier: entry for entry in entries}
    by_gp, by_similarity = found["gp"], found["similarity"]
    assert by_gp.accuracy > by_similarity.accuracy
    # of 14 points; 0.35 or more
    assert by_gp.minority_accuracy > by_similarity.minority_accuracy + 0.2
    assert by_gp.coverage > by_similarity.coverage + 0.3
    assert by_gp.minority_coverage > by_similarity.minority_coverage + 0.6
    assert by_gp.covered_precision > 0.95


def test_short_length_scales_propagate_equally_well_either_way() -> None:
    entries = toy_figures(0).propagation_mean
    means = {(entry.classifier, entry.length_scale): entry.accuracy for entry in entries}
    for length_scale in (0.35, 0.5):
        similar = means["similarity", length_scale]
        assert means["gp", length_scale] == pytest.approx(similar, abs=0.005)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_probabilities_are_probabilities_at_any_distance(name: str) -> None:
    data = draw(0)
    far = torch.tensor([OUTLIER, (0.0, 0.0), (-60.0, 60.0), (1e4, 1e4)], dtype=torch.float64)
    probs = CLASSIFIERS[name](data.points, data.labels, 0.35)(far)
    assert probs.shape == (4, 4)
    assert bool((probs >= 0).all())
    torch.testing.assert_close(probs.sum(dim=1), torch.ones(4, dtype=torch.float64))


def test_similarity_is_the_kernel_average_near_by_and_the_nearest_point_far_away() -> None:
    data = draw(1)
    queries = torch.tensor([(0.2, 0.1), (1.0, -0.4)], dtype=torch.float64)
    k = torch.exp(-torch.cdist(queries, data.points).square() / (2 * 0.5**2))
    y = torch.eye(4, dtype=torch.float64)[data.labels]
    predict = similarity(data.points, data.labels, 0.5)
    torch.testing.assert_close(predict(queries), k @ y / k.sum(dim=1, keepdim=True))

    far = torch.tensor([(-60.0, 60.0)], dtype=torch.float64)
    nearest = data.labels[torch.cdist(far, data.points).argmin()]
    assert predict(far)[0, nearest] == pytest.approx(1)


def test_hidden_labels_are_not_looked_at() -> None:
    data = draw(0)
    lying = type(data)(data.points, torch.where(data.labeled, data.labels, 0), data.labeled)
    for name in PROPAGATORS:
        one, other = (propagate(each, classifier=name, length_scale=1.0) for each in (data, lying))
        assert torch.equal(one, other)


def test_a_map_is_indexed_by_y_then_x_and_as_dense_upwards_as_sideways() -> None:
    data = draw(0)
    predict = CLASSIFIERS["linear"](data.points, data.labels, 1.0)
    one = confidence_map(predict, (-4, 4, -2, 4), width=5)
    assert one.x.tolist() == [-4, -2, 0, 2, 4]
    assert one.y.tolist() == [-2, 0, 2, 4]
    assert one.probs.shape == (4, 5, 4)
    assert int(one.probs[3, 0].argmax()) == 3  # x = -4, y = 4: the class at the top left
    assert int(one.probs[0, 4].argmax()) == 1  # x = 4, y = -2: the class at the bottom right


def test_figures_cover_every_length_scale_and_classifier_and_survive_json() -> None:
    figures = toy_figures(0)
    assert figures == toy_figures(0)
    assert len(figures.confidence) == len(LENGTH_SCALES) * len(CLASSIFIERS)
    each = len(LENGTH_SCALES) * len(PROPAGATORS)
    assert len(figures.propagation) == len(figures.propagation_mean) == each
    plain = json.loads(json.dumps(asdict(figures)))
    assert plain["confidence"][2]["classifier"] == "gp"
    assert plain["seeds_averaged"] == list(range(10))


def test_means_are_means_over_the_draws() -> None:
    figures = toy_figures(4)
    each = [propagation_figures(draw(seed))[3].minority_accuracy for seed in figures.seeds_averaged]
    assert figures.propagation_mean[3].minority_accuracy == pytest.approx(sum(each) / len(each))
    assert figures.propagation[3].minority_accuracy == each[0]
