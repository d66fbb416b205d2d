"""A head that was stored computes the same bits as the one that was not."""

import numpy as np
import pytest
import torch

from semigpc.estimator import SemiGPClassifier
from semigpc.estimator.head import restored_head, stored_head


def fitted(scaling: str, self_training: int) -> tuple[SemiGPClassifier, torch.Tensor]:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, 90)
    x = (3 * rng.normal(size=(3, 12))[codes] + rng.normal(size=(90, 12))).astype(np.float32)
    y = np.where(rng.random(90) < 0.3, codes, -1)
    model = SemiGPClassifier(scaling=scaling, self_training=self_training, random_state=0)
    return model.fit(x, y, transduce=False), torch.from_numpy(x)


@pytest.mark.parametrize(
    ("scaling", "self_training"),
    [
        ("centered", 2),
        ("standard", 0),
        ("rank", 0),
        ("weighted", 2),
        ("weighted_steps", 0),
        ("whitened", 2),
    ],
)
def test_every_output_is_the_same_after_storing(scaling: str, self_training: int) -> None:
    model, x = fitted(scaling, self_training)
    head = model.head()
    assert (head.joined is not None) == (self_training > 0)
    tensors, facts = stored_head(head, model.length_scale_)
    again = restored_head(tensors, facts)
    expected = head(x)
    found = again(x)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name], values), name
    assert found["probabilities"].numpy() == pytest.approx(model.predict_proba(x), abs=1e-4)


def test_a_missing_tensor_is_named() -> None:
    model, _ = fitted("unit", 0)
    tensors, facts = stored_head(model.head(), model.length_scale_)
    for name in ("given.points", "grades"):
        fewer = {key: value for key, value in tensors.items() if key != name}
        with pytest.raises(KeyError, match=name):
            restored_head(fewer, facts)
