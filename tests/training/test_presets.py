import pytest

from semigpc.algorithms import ALGORITHMS
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
