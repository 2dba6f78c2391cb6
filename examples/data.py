"""What the people in the examples have: their data, from the folder that POSTERITY_DATA names, networks and a clock."""

import os
import time

import numpy as np
import onnxruntime
import pandas as pd
import torch
from torch import nn

FOLDER = os.environ.get("POSTERITY_DATA", "data")


def stays():
    """8000 stays in intensive care: (measurements, died) to train on, to calibrate on and to test on."""
    found = np.load(f"{FOLDER}/open/icu/physionet2012_features.npz")
    frame = pd.DataFrame(found["X"], columns=found["features"])  # a quarter of the values is missing
    frame["unit"] = np.array(["", "CCU", "CSRU", "MICU", "SICU"])[found["icutype"]]
    died = np.where(found["y"], "died", "lived")
    parts = np.split(np.random.default_rng(0).permutation(len(frame)), [4000, 6000])
    return [(frame.iloc[part], died[part]) for part in parts]


def rentals():
    """Bicycles rented in an hour, the weather, the count a week before: (known, rented) of the past and the future."""
    found = np.load(f"{FOLDER}/open/tabular/uci_bikesharing_hour.npz")
    frame = pd.DataFrame(found["X"], columns=found["features"], index=pd.to_datetime(found["time"]))
    rented = pd.Series(found["y"].astype(float), frame.index)
    frame["last_week"] = rented.reindex(frame.index - pd.Timedelta(weeks=1)).to_numpy()
    known = frame["last_week"].notna()
    past = known & (frame.index < "2012-09")
    future = known & ~past
    return (frame[past], rented[past]), (frame[future], rented[future])


def clothes():
    """Pictures of clothes: (pictures, kinds) to train on, to calibrate on and to test on; and pictures of digits."""
    parts = []
    for name in ("fashion_mnist_train10k", "fashion_mnist_test", "mnist_test"):
        found = np.load(f"{FOLDER}/open/images/{name}.npz")
        parts.append((torch.from_numpy(found["x"]).float()[:, None] / 255, torch.from_numpy(found["y"]).long()))
    (x, y), test, (foreign, _) = parts
    return (x[:8000], y[:8000]), (x[8000:], y[8000:]), test, foreign


def concrete(seed):
    """Strength of concrete by its mixture, a split per seed: (mixtures, strengths) to train on and to test on."""
    found = np.load(f"{FOLDER}/open/tabular/uci_concrete.npz")
    order = np.random.default_rng(seed).permutation(len(found["y"]))
    x = torch.from_numpy((found["X"] - found["X"].mean(0)) / found["X"].std(0)).float()[order]
    y = torch.from_numpy(found["y"]).float()[order]
    return (x[:800], y[:800]), (x[800:], y[800:])


def box():
    """A network for a small box: two convolutions and ten kinds."""
    features = [nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 32, 5, 2), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*features, nn.Linear(512, 10))


def small():
    """A network for concrete."""
    return nn.Sequential(nn.Linear(8, 50), nn.Tanh(), nn.Linear(50, 1))


def latency(file, x):
    """Milliseconds for `x` in ONNX Runtime, over 200 runs on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session, times = onnxruntime.InferenceSession(file, options), []
    for _ in range(200):
        began = time.perf_counter()
        session.run(None, {"x": x.numpy()})
        times.append(1000 * (time.perf_counter() - began))
    return f"{file}: p50 {np.quantile(times, 0.5):.2f} ms, p95 {np.quantile(times, 0.95):.2f} ms"
