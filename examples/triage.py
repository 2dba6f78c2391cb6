"""Who dies in intensive care? Answered alone where the error is under 2 %, deferred to a clinician elsewhere."""

from data import stays

from posterity import SelectiveClassifier
from posterity.sklearn import PosterityClassifier

train, calibration, (X, died) = stays()
model = PosterityClassifier("low-rank", random_state=0).fit(*train)
triage = SelectiveClassifier(model, max_risk=0.02, confidence=0.95).calibrate(calibration)
print(triage.guarantee, triage.report((X, died), groups=X["unit"]), sep="\n")
print(triage.predict(X).to_frame().head(10))  # label, answered, reason, confidence, ...
result = triage.evaluate((X, died), groups=X["unit"], show=model.about(X))
result.report("triage.html", "May it answer alone?")
triage.to_json("triage.json")
