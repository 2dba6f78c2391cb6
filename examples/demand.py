"""How many bicycles will be rented in an hour? Intervals in bicycles, beside the count of a week ago."""

from data import rentals

import posterity as po
from posterity.sklearn import PosterityRegressor

(X, rented), (X_new, rented_new) = rentals()
model = PosterityRegressor("mean-field", target_transform="log", random_state=0).fit(X, rented)
model.predict_interval(X_new, levels=(0.5, 0.8, 0.95)).to_csv("intervals.csv")
naive = {"mean": X_new["last_week"], "std": 0 * rented_new + (rented - X["last_week"]).std()}
said = {"last week": naive, "mean-field": model.predictive(X_new)}
result = po.compare(said, rented_new, levels=(0.8, 0.5, 0.95), groups=X_new["hr"], show=model.about(X_new))
print(result)
result.report("demand.html", "How many bicycles?")
