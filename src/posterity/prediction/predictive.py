"""What is predicted: from the outputs of draws (`Reducer`) to a distribution over targets (`Predictive`).

CategoricalPredictive    one class per row or position: categorical, bernoulli, tokens
MultilabelPredictive     any of L labels
GaussianMixture          numbers: gaussian, heteroscedastic
StudentMixture           numbers: student-t
PoissonMixture           counts
"""

from posterity.prediction.base import Predictive, concat
from posterity.prediction.classes import CategoricalPredictive, MultilabelPredictive
from posterity.prediction.components import GaussianMixture, PoissonMixture, StudentMixture
from posterity.prediction.mixture import MixturePredictive
from posterity.prediction.reducer import Reducer, reducer

__all__ = [
    "CategoricalPredictive",
    "GaussianMixture",
    "MixturePredictive",
    "MultilabelPredictive",
    "PoissonMixture",
    "Predictive",
    "Reducer",
    "StudentMixture",
    "concat",
    "reducer",
]
