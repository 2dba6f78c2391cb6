"""Clothes or not? One pass in an ONNX file says how sure it is, and a gate keeps out what the network never saw."""

from data import box, clothes, latency

import posterity as po

train, held_out, test, digits = clothes()
ivon = po.IVON(learning_rate=po.Cosine(0.3), init_hessian=1.0, clip=0.03)
model = po.fit(box, train, "categorical", ivon, epochs=5, seed=0)
result = po.evaluate(model, test, ood={"digits": digits}, via=("mean", "draws"))
model.calibrate(held_out, via="propagation")
result += po.evaluate(model, test, ood={"digits": digits}, via="propagation")
gate = po.SelectiveClassifier(model, max_risk=0.02, foreign=0.01, via="propagation").calibrate(test)
print(result, gate.guarantee, f"answered of the digits: {gate.predict(digits).answered.float().mean():.1%}", sep="\n")
print(latency(model.export("clothes.onnx", example=test[0][:8]), test[0][:1]))
