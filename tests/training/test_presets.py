import pytest

from semigpc.algorithms import ALGORITHMS
from semigpc.io.errors import SettingsError
from semigpc.refiners import REFINERS
from semigpc.training.presets import RECIPES


@pytest.mark.parametrize("refiner", REFINERS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_takes_every_algorithm_and_refiner(
    recipe: str, algorithm: str, refiner: str
) -> None:
    experiment = RECIPES[recipe](imbalance_ratio=20, algorithm=algorithm, refiner=refiner, seed=3)
    assert (experiment.algorithm_name, experiment.refiner_name, experiment.seed) == (
        algorithm,
        refiner,
        3,
    )
    assert experiment.data.split.unlabeled_ratio == 20


@pytest.mark.parametrize(
    ("settings", "message"), [({"algorithm": "fixmach"}, "fixmatch"), ({"refiner": "pg"}, "gp")]
)
def test_a_misspelt_name_is_answered_with_the_nearest(
    settings: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=f"did you mean '{message}'"):
        RECIPES["digits"](**settings)
