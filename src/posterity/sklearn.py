"""scikit-learn estimators: `from posterity.sklearn import PosterityClassifier, PosterityRegressor`."""

from posterity.interfaces.sklearn import PosterityClassifier, PosterityRegressor

__all__ = ["PosterityClassifier", "PosterityRegressor"]
