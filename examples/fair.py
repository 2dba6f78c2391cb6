"""Which posterior is worth its cost? Methods on the same rows with the same seeds, and their paired differences."""

from data import concrete, small

import posterity as po

fast, faster = {"learning_rate": po.Cosine(0.03)}, {"learning_rate": po.Cosine(0.3)}  # the best on a split of its own
methods = {"ensemble": po.DeepEnsemble(5, **fast), "score-vi": po.ScoreVI(**fast), "ivon": po.IVON(**faster)}
result = po.Evaluation()
for seed in range(3):
    train, test = concrete(seed)
    models = {name: [po.fit(small, train, "gaussian", methods[name], epochs=100, seed=seed)] for name in methods}
    result += po.compare(models, test)
print(result)
result.report("fair.html", "Which posterior?")
