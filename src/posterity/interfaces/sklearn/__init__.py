"""scikit-learn estimators: `PosterityClassifier` and `PosterityRegressor`.

from posterity.sklearn import PosterityClassifier
PosterityClassifier(method="ivon").fit(frame, y).predict_proba(new)
"""

from posterity.interfaces.sklearn.classifier import PosterityClassifier
from posterity.interfaces.sklearn.regressor import PosterityRegressor

__all__ = ["PosterityClassifier", "PosterityRegressor"]
