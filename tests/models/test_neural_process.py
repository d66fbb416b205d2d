import copy
import math

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from semigpc.losses import mean_log_probs
from semigpc.models import Classifier, SmallCNN
from semigpc.models.neural_process import (
    ContextMemory,
    Gaussian,
    NeuralProcess,
    skew,
    skewed_divergence,
)
from semigpc.training.optim import average_of, update_average
from semigpc.types import HeadSpec

D, C, L, T = 9, 4, 2, 10


def head(seed: int = 0) -> NeuralProcess:
    torch.manual_seed(seed)
    made = NeuralProcess(D, C)
    for parameter in made.parameters():
        nn.init.normal_(parameter, std=0.5)
    return made.double()


def rows(n: int, width: int = D) -> Tensor:
    return torch.randn(n, width, dtype=torch.float64)


def leaky(v: Tensor) -> Tensor:
    return torch.stack([value if value > 0 else 0.1 * value for value in v])


def slow_answer(
    made: NeuralProcess, h: Tensor, latents: list[Tensor], contexts: list[Tensor], noise: Tensor
) -> Tensor:
    """log p(y | h) of one image, from the equations, with the weights as they are named."""
    w = {name: value.detach() for name, value in made.named_parameters()}

    def layer(name: str, v: Tensor) -> Tensor:
        return w[f"{name}.weight"] @ v + w[f"{name}.bias"]

    nothing = torch.zeros(L, dtype=torch.float64)
    e = sum(latents, nothing) / max(len(latents), 1)
    r = sum(contexts, nothing) / max(len(contexts), 1)
    mean = layer("location.2", leaky(layer("location.0", e)))
    sigma = 0.1 + 0.9 * torch.log1p(torch.exp(layer("spread.2", leaky(layer("spread.0", e)))))
    total = torch.zeros(C, dtype=torch.float64)
    for t in range(T):
        joint = leaky(layer("joint", torch.cat([mean + sigma * noise[t], h, r])))
        logits = layer("out", leaky(layer("hidden", joint)))
        total += torch.exp(logits) / torch.exp(logits).sum()
    return torch.log(total / T)


def test_an_answer_is_the_mean_over_samples_given_the_means_of_the_memories() -> None:
    made, h = head(), rows(5)
    latents, contexts = rows(7, L), rows(3, L)
    made.latents.write(latents)
    made.contexts.write(contexts)
    expected = torch.stack(
        [slow_answer(made, row, list(latents), list(contexts), made.noise) for row in h]
    )
    torch.testing.assert_close(made(h), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(made(h).exp().sum(dim=1), torch.ones(5, dtype=torch.float64))
    torch.manual_seed(3)
    other = made.predict(h)
    torch.manual_seed(3)
    noise = torch.randn(T, L, dtype=torch.float64)
    torch.testing.assert_close(
        other[0], slow_answer(made, h[0], list(latents), list(contexts), noise), rtol=0, atol=1e-12
    )


def test_an_empty_memory_is_an_encoding_of_zero_and_at_the_start_a_known_prior() -> None:
    made, h = head(), rows(3)
    torch.testing.assert_close(
        made(h)[0], slow_answer(made, h[0], [], [], made.noise), rtol=0, atol=1e-12
    )
    fresh = NeuralProcess(D, C)
    mean, sigma = fresh._gaussian(fresh.latents.mean())
    assert mean.tolist() == [0, 0]
    assert sigma.tolist() == pytest.approx([0.1 + 0.9 * math.log(2)] * 2)
    assert bool(fresh(h.float()).isfinite().all())


@pytest.mark.parametrize("mode", [True, False])
def test_it_answers_alike_every_time_and_without_gradient(mode: bool) -> None:
    made, h = head().train(mode), rows(4).requires_grad_()
    before = torch.get_rng_state()
    first = made(h)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(made(h), first)
    assert not first.requires_grad
    assert not torch.equal(made.predict(h), made.predict(h))


def test_a_memory_drops_its_oldest_rows_across_its_end() -> None:
    memory, kept = ContextMemory(5, 2), torch.zeros(0, 2)
    assert memory.mean().tolist() == [0, 0]
    for n in (3, 0, 1, 4, 2, 9, 5, 1, 12):
        batch, mask = torch.randn(16, 2), torch.zeros(16, dtype=torch.bool)
        mask[torch.randperm(16)[:n]] = True
        memory.write(batch, mask)
        kept = torch.cat([kept, batch[mask]])[-5:]
        torch.testing.assert_close(memory.mean(), kept.mean(dim=0))
        assert sorted(memory.rows[: len(kept)].tolist()) == sorted(kept.tolist())


def test_the_divergence_of_equals_is_zero_and_of_others_positive() -> None:
    for sigma in (1e-10, 0.1, 1.0, 1e10):
        one = Gaussian(sigma * torch.tensor([3.0, -2.0]), torch.full((2,), sigma))
        for a in (1e-8, 0.1, 0.5, 0.999):
            share = torch.tensor(a)
            assert abs(float(skewed_divergence(one, one, share))) < 1e-6
            if a > 1e-6:
                moved = one._replace(mean=one.mean + sigma)
                wider = one._replace(sigma=2 * one.sigma)
                assert float(skewed_divergence(one, moved, share)) > 0
                assert float(skewed_divergence(one, wider, share)) > 0


@pytest.mark.parametrize(
    ("s_c", "s_s"), [(1e-6, 1e6), (1e6, 1e-6), (1e-6, 1e-6), (1e6, 1e6), (0.1, 1e8)]
)
@pytest.mark.parametrize("a", [1e-8, 0.3, 1 - 1e-7])
def test_the_divergence_stays_finite_with_its_gradient(s_c: float, s_s: float, a: float) -> None:
    values = torch.tensor([0.3, s_c, -0.4, s_s], requires_grad=True)
    m_c, sigma_c, m_s, sigma_s = values.unsqueeze(1)
    divergence = skewed_divergence(Gaussian(m_c, sigma_c), Gaussian(m_s, sigma_s), torch.tensor(a))
    assert math.isfinite(float(divergence.detach()))
    assert float(divergence.detach()) > -1e-6
    (gradient,) = torch.autograd.grad(divergence, values)
    assert bool(gradient.isfinite().all())


def test_the_skew_is_the_context_s_share_of_the_entropies() -> None:
    logits_x, logits_s = torch.randn(T, 3, C), 3 * torch.randn(T, 5, C)
    mask = torch.tensor([True, False, True, True, False])

    def doubt(logits: Tensor) -> float:
        probs = torch.softmax(logits, dim=-1).mean(dim=0)
        return float(-(probs * probs.log()).sum(dim=1).mean())

    known, guessed = doubt(logits_x), doubt(logits_s[:, mask])
    assert float(skew(logits_x, logits_s, mask)) == pytest.approx(known / (known + guessed))
    sure = torch.full((T, 5, C), -1e4)
    sure[..., 0] = 1e4
    assert float(skew(sure, sure, mask)) == 0.5
    assert float(skew(logits_x, logits_s, torch.zeros(5, dtype=torch.bool))) == pytest.approx(1)


def test_with_nothing_believed_there_is_nothing_to_diverge_from() -> None:
    made = head()
    y = torch.tensor([0, 1])
    targets = torch.zeros(3, dtype=torch.int64)
    mask = torch.zeros(3, dtype=torch.bool)
    _, logits_s, divergence = made.study(rows(2), y, rows(3), targets, mask)
    assert float(divergence.detach()) == 0
    assert bool(logits_s.isfinite().all())
    assert int(made.latents.written) == int(made.contexts.written) == 2


@pytest.mark.parametrize("processes", [2, 3])
def test_gradients_that_processes_add_up_count_once(
    monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    """Each computes the head for all rows: a share of the weights' gradient."""
    gradients = []
    x, strong = rows(3), rows(4)
    for many in (False, True):
        monkeypatch.setattr(dist, "is_initialized", lambda many=many: many)
        monkeypatch.setattr(dist, "get_world_size", lambda: processes)
        made, inputs = head(), [x.clone().requires_grad_(), strong.clone().requires_grad_()]
        torch.manual_seed(5)
        labels, mask = torch.tensor([0, 1, 3]), torch.tensor([True, True, False, True])
        logits_x, logits_s, divergence = made.study(
            inputs[0], labels, inputs[1], torch.tensor([2, 1, 0, 3]), mask
        )
        loss = logits_x.square().mean() + logits_s.square().mean() + divergence
        gradients.append(torch.autograd.grad(loss, [*inputs, *made.parameters()]))
    for i, (one, shared) in enumerate(zip(*gradients, strict=True)):
        torch.testing.assert_close(shared, one if i < 2 else one / processes)


def test_features_of_less_precision_than_the_weights_are_taken_as_they_come() -> None:
    """A network of float64 hands out float32."""
    made, x, strong = head(), rows(2).float(), rows(3).float()
    assert made.predict(x).dtype == torch.float64
    answers = made.study(
        x, torch.tensor([0, 1]), strong, torch.tensor([2, 3, 0]), torch.tensor([True, False, True])
    )
    assert all(answer.dtype == torch.float64 for answer in answers)


def test_it_is_a_head_of_a_classifier_whose_average_has_the_memory_too() -> None:
    model = Classifier(SmallCNN(8), 7, {"neural_process": HeadSpec("neural_process")})
    made = model.heads["neural_process"]
    assert isinstance(made, NeuralProcess)
    average = average_of(model)
    x = torch.randn(3, model.n_features)
    strong = torch.randn(2, model.n_features)
    mask = torch.tensor([True, False])
    made.study(x, torch.tensor([0, 1, 6]), strong, torch.tensor([2, 3]), mask)
    update_average(average, model, 0.5)
    state = average.state_dict()
    assert int(state["heads.neural_process.latents.written"]) == 4
    assert torch.equal(state["heads.neural_process.contexts.rows"], made.contexts.rows)
    assert average(torch.zeros(2, 3, 8, 8)).heads["neural_process"].shape == (2, 7)
    again = copy.deepcopy(model)
    again.load_state_dict(state)
    assert torch.equal(
        again.eval()(torch.ones(2, 3, 8, 8)).logits, average(torch.ones(2, 3, 8, 8)).logits
    )


def test_narrow_features_have_a_latent_all_the_same() -> None:
    assert NeuralProcess(3, 2).noise.shape == (T, 1)
    assert NeuralProcess(64, 2).noise.shape == (T, 16)


def test_the_mean_of_probabilities_is_taken_in_full_precision() -> None:
    logits = 9 * torch.randn(T, 4, C)
    expected = torch.softmax(logits.double(), dim=-1).mean(dim=0).log()
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 0.2)):
        answer = mean_log_probs(logits.to(dtype))
        assert answer.dtype == torch.float32
        torch.testing.assert_close(answer.double(), expected, rtol=0, atol=tolerance)
