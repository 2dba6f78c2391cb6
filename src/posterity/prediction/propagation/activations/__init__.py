"""Moments of f(X), X ~ N(mean, var) element by element, for the activations f that networks have."""

from __future__ import annotations

from posterity.prediction.propagation.activations.accuracy import fast_within
from posterity.prediction.propagation.activations.clamped import clamp, hardsigmoid
from posterity.prediction.propagation.activations.elu import elu
from posterity.prediction.propagation.activations.gelu import gelu
from posterity.prediction.propagation.activations.hardswish import hardswish
from posterity.prediction.propagation.activations.kinked import abs, leaky_relu, relu
from posterity.prediction.propagation.activations.logistic import sigmoid, tanh
from posterity.prediction.propagation.activations.moments import Accuracy, Moments
from posterity.prediction.propagation.activations.positive import log, power
from posterity.prediction.propagation.activations.powers import exp, square
from posterity.prediction.propagation.activations.quadrature import elementwise
from posterity.prediction.propagation.activations.soft import silu, softplus

__all__ = [
    "Accuracy",
    "Moments",
    "abs",
    "clamp",
    "elementwise",
    "elu",
    "exp",
    "fast_within",
    "gelu",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "log",
    "power",
    "relu",
    "sigmoid",
    "silu",
    "softplus",
    "square",
    "tanh",
]
