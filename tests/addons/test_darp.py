"""DARP against a slow version: labels of all images, moved to the expected class shares."""

from typing import Any

import pytest
import torch
from torch import Tensor

from semigpc.addons import DARP, DARPConfig, Step
from semigpc.addons.darp import nearest_shares, project, trim
from semigpc.algorithms.fixmatch import FixMatch, FixMatchConfig
from semigpc.refiners import NoRefiner
from semigpc.types import Batch, Clock, ModelOutput, Task
from tests.addons.slow_darp import SlowDARP, slow_project, slow_shares, slow_trim
from tests.algorithms.tiny import CLASSES, COUNTS, LABELED, UNLABELED, copy_of, learn, pair, stream

IMAGES, STEPS = 18, 9
TASK = Task(torch.tensor(COUNTS), LABELED, UNLABELED, n_unlabeled=IMAGES)
EXACT = 1e-9  # a tolerance


def rows(n: int, seed: int = 0, scale: float = 1.5) -> Tensor:
    noise = torch.randn(
        n, CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return torch.softmax(scale * noise, dim=1)


def batches(steps: int = STEPS) -> list[Batch]:
    """A stream over eighteen unlabelled images, in which the last row of a batch shows the image of
    its first once more.
    """
    generator = torch.Generator().manual_seed(3)
    drawn = [torch.randperm(IMAGES, generator=generator)[:UNLABELED] for _ in range(steps)]
    return [
        batch._replace(view_index=torch.cat([i[:-1], i[:1]]))
        for batch, i in zip(stream(steps, seed=5), drawn, strict=True)
    ]


# The projection -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.5, 1.5, 6.0])
def test_trimming_and_projecting_are_those_of_plain_loops(scale: float) -> None:
    p, counts = rows(20, scale=scale), torch.tensor([9.0, 6.0, 4.0, 1.0], dtype=torch.float64)
    trimmed = trim(p, counts, 2.0)
    slow = slow_trim(p.tolist(), counts.tolist())
    torch.testing.assert_close(
        trimmed, torch.tensor(slow, dtype=torch.float64), rtol=1e-12, atol=1e-15
    )
    q, converged = project(trimmed, counts, tolerance=EXACT)
    assert converged
    expected = torch.tensor(slow_project(slow, counts.tolist()), dtype=torch.float64)
    torch.testing.assert_close(q, expected, rtol=1e-8, atol=1e-10)
    # with the paper's tolerance
    torch.testing.assert_close(project(trimmed, counts)[0], expected, rtol=0, atol=0.01)


def test_columns_come_to_their_counts_and_rows_to_one_with_enough_alternations() -> None:
    counts = torch.tensor([18.0, 7.5, 3.5, 1.0], dtype=torch.float64)
    q, converged = project(rows(30), counts, 400, 50, 1e-10)
    assert converged
    torch.testing.assert_close(q.sum(dim=0), counts, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        q.sum(dim=1), torch.ones(30, dtype=torch.float64), rtol=1e-14, atol=0
    )


def test_what_the_projection_finds_is_stationary() -> None:
    """w_n log(q_nc / p_nc) = a_n + b_c: the differences between two classes minus those of another
    row are 0.
    """
    p = rows(30)
    q, _ = project(p, torch.tensor([18.0, 7.5, 3.5, 1.0], dtype=torch.float64), 400, 50, 1e-10)
    pull = (q / p).log() / -(p * p.log()).sum(dim=1, keepdim=True)
    between = pull - pull[:, :1]
    torch.testing.assert_close(between, between[:1].expand_as(between), rtol=1e-8, atol=1e-8)
    assert float(between.abs().max()) > 0.1


def test_labels_that_have_the_right_shares_are_left_alone() -> None:
    p = rows(30)
    q, converged = project(p, p.sum(dim=0))
    assert converged
    torch.testing.assert_close(q, p, rtol=1e-12, atol=1e-14)


def test_a_projection_that_does_not_converge_answers_with_what_it_was_given() -> None:
    p = rows(30)
    counts = torch.tensor([18.0, 7.5, 3.5, 1.0], dtype=torch.float64)
    for q, converged in (
        project(p, counts, 10, 1, 1e-9),
        project(p.clone().fill_(torch.nan), counts),
    ):
        assert not converged
        assert bool(q.isnan().all()) or torch.equal(q, p)


@pytest.mark.parametrize(
    "values",
    [[0.5, 0.3, 0.2], [0.9, 0.6, -0.5], [3.0, -1.0, -1.0], [0.1, 0.1, 0.1], [-2.0, -3.0, -2.5]],
)
def test_shares_are_the_nearest_ones_that_sum_to_one(values: list[float]) -> None:
    assert nearest_shares(torch.tensor(values, dtype=torch.float64)).tolist() == pytest.approx(
        slow_shares(values), abs=1e-12
    )


# The add-on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts", ["labeled", "estimated"])
def test_fixmatch_with_darp_is_its_equations_over_several_rounds(counts: Any) -> None:
    addon = DARP(
        DARPConfig(warmup=2 / STEPS, every=2, counts=counts, momentum=0.9, tolerance=EXACT), TASK
    )
    algorithm = FixMatch(FixMatchConfig(threshold=0.6), NoRefiner(), TASK, addon).double()
    slow, networks = SlowDARP(0.6, counts == "estimated"), pair()
    twins = copy_of(networks)
    for k, batch in enumerate(batches()):
        output = algorithm.step(networks, batch, Clock(k, STEPS, 4))
        expected = slow.step(twins, batch, k)
        assert output.loss.item() == pytest.approx(expected.item(), rel=1e-8)
        for image, row in slow.refined.items():
            assert addon.refined[image].tolist() == pytest.approx(row, rel=1e-6, abs=1e-8)
        gradients, expected_gradients = learn(networks, output.loss), learn(twins, expected)
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-7, atol=1e-9)
    assert slow.changed > 10
    assert slow.kept > 0
    assert slow.estimates > 1 or counts == "labeled"


def ready(seen: int = IMAGES, **options: Any) -> tuple[DARP, Step, ModelOutput]:
    """An add-on past its warm-up that has stored labels of the first ``seen`` images, and a batch
    of ten of them.
    """
    addon, networks, batch = DARP(DARPConfig(**options), TASK).double(), pair(), stream(1)[0]
    addon.stored[:seen], addon.seen[:seen] = rows(seen), True
    with torch.no_grad():
        (weak,) = networks.forward(batch.views["weak"])
    return addon, Step(networks, batch, Clock(50, 100, 10)), weak


def test_refined_labels_decide_the_mask_too() -> None:
    addon, networks, batch = DARP(DARPConfig(warmup=0, every=1), TASK), pair(), stream(1)[0]
    algorithm = FixMatch(FixMatchConfig(threshold=0.7), NoRefiner(), TASK, addon).double()
    (weak,) = networks.forward(batch.views["weak"])
    output = algorithm.step(copy_of(networks), batch, Clock(0, 10, 10))
    assert output.pseudo is not None
    torch.testing.assert_close(output.pseudo.probs, addon.refined[:UNLABELED])
    assert (
        output.pseudo.mask.tolist() == (addon.refined[:UNLABELED].max(dim=1).values >= 0.7).tolist()
    )
    unrefined = torch.softmax(weak.logits.detach(), dim=1).max(dim=1).values >= 0.7
    assert output.pseudo.mask.tolist() != unrefined.tolist()


def test_between_rounds_a_image_keeps_its_refined_label_and_one_not_seen_before_its_own() -> None:
    addon, step, weak = ready(seen=4)
    own = rows(UNLABELED, seed=1)
    four = step._replace(batch=step.batch._replace(view_index=torch.arange(4)))
    refined = addon.targets(four, weak, own[:4])
    torch.testing.assert_close(refined, addon.refined[:4])
    later = step._replace(clock=Clock(51, 100, 10))
    answer = addon.targets(later, weak, own.flip(0))
    torch.testing.assert_close(answer[:4], refined)
    assert torch.equal(answer[4:], own.flip(0)[4:])
    # what is stored is what came, not what was refined
    torch.testing.assert_close(addon.stored[:UNLABELED], own.flip(0))


def test_labels_are_stored_and_left_alone_during_the_warm_up() -> None:
    addon, step, weak = ready(seen=0)
    own = rows(UNLABELED)
    assert addon.targets(step._replace(clock=Clock(39, 100, 10)), weak, own) is own
    assert addon.seen.tolist() == [True] * UNLABELED + [False] * (IMAGES - UNLABELED)
    assert not addon.is_refined.any()


@pytest.mark.parametrize("broken", [False, True])
def test_a_round_that_does_not_converge_is_noted_once_and_leaves_labels_as_they_are(
    broken: bool,
) -> None:
    addon, step, weak = ready() if broken else ready(newton_steps=1, tolerance=1e-12)
    if broken:
        addon.stored[IMAGES - 1] = torch.nan
    own = rows(UNLABELED, seed=1)
    for _ in range(2):
        assert torch.equal(addon.targets(step, weak, own), own)
    (note,) = addon.take_notes()
    assert note.startswith("DARP's projection of 18 labels did not converge")
    if broken:
        addon.stored[IMAGES - 1] = 0.25
        # the next round is a new chance
        assert not torch.equal(addon.targets(step, weak, own), own)


def test_labels_of_an_earlier_round_do_not_outlive_one_that_fails() -> None:
    addon, step, weak = ready()
    own = rows(UNLABELED, seed=1)
    assert not torch.equal(addon.targets(step, weak, own), own)
    addon.stored[IMAGES - 1] = torch.nan
    assert torch.equal(addon.targets(step, weak, own), own)
    assert torch.equal(addon.targets(step._replace(clock=Clock(51, 100, 10)), weak, own), own)


def test_labels_nobody_doubts_move_without_breaking() -> None:
    addon, step, weak = ready(every=1)
    sure = torch.eye(CLASSES, dtype=torch.float64)[torch.full((UNLABELED,), 3)]
    addon.stored.copy_(torch.eye(CLASSES, dtype=torch.float64)[torch.full((IMAGES,), 3)])
    answer = addon.targets(step, weak, sure)
    assert bool(answer.isfinite().all())
    assert answer.sum(dim=1).tolist() == pytest.approx([1.0] * UNLABELED)


# Expected counts ----------------------------------------------------------------------------------


def spoken(classes: list[int], rates: Tensor) -> ModelOutput:
    """Rows whose probabilities are those of their class in ``rates`` (C, C)."""
    return ModelOutput(rates[classes].log(), torch.zeros(len(classes), 1, dtype=torch.float64), {})


def estimate(rates: Tensor, labels: list[int], unlabeled: list[int]) -> DARP:
    addon = DARP(DARPConfig(counts="estimated"), TASK).double()
    batch = stream(1)[0]._replace(y=torch.tensor(labels))
    for k in range(3):
        weak = spoken(unlabeled, rates)
        assert (
            addon.extra_loss(
                Step(pair(), batch, Clock(k, 10, 10)), spoken(labels, rates), weak, weak
            )
            is None
        )
    return addon


def confused(own: float) -> Tensor:
    return torch.full((CLASSES, CLASSES), (1 - own) / 3, dtype=torch.float64).fill_diagonal_(own)


def test_estimated_shares_are_those_of_the_unlabelled_images_and_not_of_the_labels() -> None:
    addon = estimate(confused(0.7), [0, 0, 0, 1, 2, 3], [3] * 6 + [2] * 3 + [1])
    assert addon._expected_shares().tolist() == pytest.approx([0, 0.1, 0.3, 0.6], abs=1e-9)
    assert not addon.take_notes()


def test_shares_that_cannot_be_estimated_are_those_of_the_labels_and_are_noted_once() -> None:
    given = [n / sum(COUNTS) for n in COUNTS]
    for addon, message in (
        (
            estimate(confused(0.7), [0, 0, 1, 2], [3, 3, 0]),
            "DARP has seen no labelled image of the classes [3] yet",
        ),
        (estimate(confused(0.25), [0, 1, 2, 3], [3, 3, 0]), "DARP cannot estimate class shares"),
    ):
        for _ in range(2):
            assert addon._expected_shares().tolist() == pytest.approx(given)
        (note,) = addon.take_notes()
        assert note.startswith(message)
        assert note.endswith("uses the shares of the labels.")


def test_only_an_estimate_asks_for_labelled_images() -> None:
    assert not DARP(DARPConfig(), TASK).learns
    assert DARP(DARPConfig(counts="estimated"), TASK).learns


def test_a_class_without_labels_is_noted_and_gets_next_to_nothing() -> None:
    task = Task(torch.tensor([7, 5, 4, 0]), LABELED, UNLABELED, n_unlabeled=IMAGES)
    addon = DARP(DARPConfig(alternations=50), task).double()
    assert addon.take_notes() == [
        "DARP expects next to no images of the classes [3]: they have no labels."
    ]
    addon.stored.copy_(rows(IMAGES))
    addon.seen.fill_(True)
    addon._refine()
    assert bool(addon.is_refined.all())
    assert addon.refined.sum(dim=0).tolist() == pytest.approx(
        [7 / 16 * 18, 5 / 16 * 18, 4 / 16 * 18, 0], abs=0.05
    )


# Refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": 0}, "every must be at least 1; got 0"),
        ({"alternations": 0}, "alternations must be at least 1; got 0"),
        ({"newton_steps": 0}, "newton_steps must be at least 1; got 0"),
        ({"keep": 0.0}, "keep must be positive; got 0.0"),
        ({"tolerance": -1.0}, "tolerance must be positive; got -1.0"),
        ({"warmup": 1.5}, r"warmup must lie in \[0, 1\]; got 1.5"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\); got 1.0"),
        ({"counts": "true"}, "counts must be 'labeled' or 'estimated'; got 'true'"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DARPConfig(**options)


def test_darp_without_unlabelled_images_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got 0\. Add unlabelled images"):
        DARP(DARPConfig(), Task(torch.tensor(COUNTS), LABELED, UNLABELED))
